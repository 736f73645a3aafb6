"""Reports: records in, files out."""

from lessvfl.report.bench import build_bench
from lessvfl.report.comparison import compare
from lessvfl.report.page import build, page

__all__ = ["build", "build_bench", "compare", "page"]
