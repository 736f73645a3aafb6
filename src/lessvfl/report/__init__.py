"""Reports: records in, files out."""

from lessvfl.report.card import write_card
from lessvfl.report.comparison import compare
from lessvfl.report.evaluation import write_evaluation
from lessvfl.report.folder import build, page
from lessvfl.report.verdicts import FEATURES_NAME

__all__ = [
    "FEATURES_NAME",
    "build",
    "compare",
    "page",
    "write_card",
    "write_evaluation",
]
