"""What a fitted estimator shows: features with their verdicts, figures, a card."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from lessvfl.run.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FitViews(abc.ABC):
    """Tables and figures of the run that a fit was."""

    run_: dict[str, Any]
    _record: RunRecord

    @property
    def selection_(self) -> dict[str, list[Any]]:
        """Every feature with its verdict: by party, kept ones and strong ones first."""
        from lessvfl.report import verdicts

        check_is_fitted(self)
        return verdicts.as_columns(self._record)

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram, under a card of what a fit has found."""
        diagram: str = estimator_html_repr(self)
        if "_record" not in vars(self):
            return diagram
        from lessvfl.report import notebook

        return notebook.card(self._record) + diagram

    def plot_selection(self, ax: Axes | None = None, *, most: int = 30) -> Axes:
        """Draw by party how strong its features are, and which of them were kept.

        `most` is how many features are drawn: kept ones first, the strongest first.
        """
        from lessvfl.report import selection_figures

        check_is_fitted(self)
        return selection_figures.plot_selection(self.run_, ax, most=most)

    def plot_path(self, ax: Axes | None = None, *, party: str | None = None) -> Axes:
        """Draw features and shadows kept along the lambdas, of one party or of all."""
        from lessvfl.report import selection_figures

        check_is_fitted(self)
        return selection_figures.plot_path(self.run_, ax, party=party)

    def plot_parties(self, ax: Axes | None = None) -> Axes:
        """Draw what each party kept and sent, and the score without it."""
        from lessvfl.report import selection_figures

        check_is_fitted(self)
        return selection_figures.plot_parties(self._record, ax)

    def plot_bytes(self, ax: Axes | None = None) -> Axes:
        """Draw bytes by stage and direction."""
        from lessvfl.report import figures

        check_is_fitted(self)
        return figures.plot_bytes(self.run_, ax=ax)

    def plot_curve(self, ax: Axes | None = None) -> Axes:
        """Draw the score on training rows against megabytes sent."""
        from lessvfl.report import figures

        check_is_fitted(self)
        return figures.plot_curve([self.run_], ax=ax)
