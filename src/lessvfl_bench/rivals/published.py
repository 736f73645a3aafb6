"""Table III of FedSDG-FS, its setting, and what is run beside its columns.

Li et al., INFOCOM 2023 (arXiv 2302.10417): two parties with random halves of the
columns, five folds, no planted noise. A seed is a fold, and deals the columns. Decided
here: folds are stratified; networks and final training are those of the bench, since
the published ones are not said; the rate, optimiser and rows of a step of training with
gates are those published (Adam, 0.03, 128), which are the defaults of ``dual-gates``.
Its lambda is the default, the one published, and the one of a few that keeps about the
published share; that of ``vflfs`` is the one of a few that keeps about half, as there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from sklearn.model_selection import StratifiedKFold

from lessvfl.data import Dataset
from lessvfl.errors import ConfigError

KIND = "published settings"  # of a place
N_PARTIES, N_FOLDS, HALF = 2, 5, 0.5


class PublishedColumn(NamedTuple):
    """A column of the table, and what is run beside it.

    `tried` are values of one setting, `setting`. Of several the one is taken whose
    share of features kept is nearest to the published one, or to half.
    """

    title: str  # nothing: not in the table
    method: str
    numbers: Mapping[str, tuple[float, float]] = {}  # accuracy in %, share kept
    setting: str = ""
    tried: tuple[float, ...] = ()

    def settings(self, dataset: Dataset) -> Iterator[tuple[tuple[str, float], ...]]:
        """Yield the settings to try; without one, none of its own."""
        values = self.tried
        if self.setting == "keep":  # of every party
            values = (max(1, int(HALF * len(dataset.X.names)) // N_PARTIES),)
        if not values:
            yield ()
        for value in values:
            yield ((self.setting, value),)

    def share(self, name: str) -> float:
        """Return what share of the features should stay."""
        return self.numbers[name][1] if name in self.numbers else HALF


GATES = {"pcmac": (98.7, 0.45), "isolet1": (96.7, 0.75)}
COLUMNS = {  # by what is run here
    "plain": PublishedColumn(
        "all features", "plain", {"pcmac": (97.6, 1.0), "isolet1": (98.0, 1.0)}
    ),
    "gini-filter, half": PublishedColumn(
        "MS-GINI",
        "gini-filter",
        {"pcmac": (90.2, HALF), "isolet1": (91.4, HALF)},
        "keep",
    ),
    "vflfs, half": PublishedColumn(
        "VFLFS",
        "vflfs",
        {"pcmac": (86.1, HALF), "isolet1": (71.4, HALF)},
        "lam_party",
        (2.0, 2.2, 2.5, 3.0, 3.5, 4.0),
    ),
    "dual-gates": PublishedColumn("FedSDG-FS", "dual-gates", GATES),
    "dual-gates, lambda 0.1": PublishedColumn(
        "FedSDG-FS", "dual-gates", GATES, "lam", (0.1,)
    ),
    "dual-gates, share": PublishedColumn(
        "FedSDG-FS", "dual-gates", GATES, "lam", (4e-4, 3e-4, 2e-4, 1e-4, 7e-5, 5e-5)
    ),
    "less-vfl-auto": PublishedColumn("", "less-vfl-auto"),
}


def fold(dataset: Dataset, seed: int) -> Dataset:
    """Return the fold of a seed: its rows are those to test on."""
    if dataset.task == "regression":
        raise ConfigError(
            f"A data set of the 'published' option must have classes. '{dataset.name}' "
            "has amounts."
        )
    n_before, place = divmod(seed, N_FOLDS)
    folds = StratifiedKFold(N_FOLDS, shuffle=True, random_state=n_before % 2**32)
    train, test = list(folds.split(dataset.y, dataset.y))[place]
    own = dataset.take(train)
    return replace(own, X_test=dataset.X.take(test), y_test=dataset.y[test])
