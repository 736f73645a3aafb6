"""Reports: records in, files out."""

from lessvfl.report.comparison import compare
from lessvfl.report.page import build, page

__all__ = ["build", "compare", "page"]
