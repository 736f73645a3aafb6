"""Reports: records in, files out."""

from lessvfl.report.card import write_card
from lessvfl.report.comparison import compare
from lessvfl.report.page import build, page
from lessvfl.report.paper.page import build_bench

__all__ = ["build", "build_bench", "compare", "page", "write_card"]
