"""Reports: records in, files out."""

from lessvfl.report.card import write_card
from lessvfl.report.comparison import compare
from lessvfl.report.folder import build, page
from lessvfl.report.paper.page import build_bench
from lessvfl.report.verdicts import FEATURES_NAME

__all__ = ["FEATURES_NAME", "build", "build_bench", "compare", "page", "write_card"]
