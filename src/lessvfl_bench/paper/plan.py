"""What the paper's tables and figures need: which settings, on which rows."""

from __future__ import annotations

import functools
import itertools
import tomllib
from collections.abc import Sequence
from importlib import resources
from typing import Any

from lessvfl.data import Dataset
from lessvfl.run import profiles
from lessvfl_bench.paper import printed
from lessvfl_bench.paper.scene import Spec

METHODS = ("group-lasso", "local-lasso", "less-vfl")

# The paper's name of every data set it used.
PAPER_NAMES = {
    "mimic3": "MIMIC-III",
    "activity": "Activity",
    "phishing": "Phishing",
    "gina": "Gina",
    "sylva": "Sylva",
}

TABLES = (2, 3, 5, 6, 7, 8)
FIGURES = (2, 3, 4, 5, 6)
LAMBDA_TABLES = {  # the tables of the grid, and whose numbers they print
    6: ("Activity", "Phishing"),
    7: ("MIMIC-III",),
    8: ("Gina", "Sylva"),
}
FIGURE_DATA = {  # the data sets of every figure with panels
    2: ("Activity",),
    3: ("Activity", "Phishing"),
    4: ("Activity", "Phishing"),
    5: ("MIMIC-III", "Gina", "Sylva"),
    6: ("MIMIC-III", "Gina", "Sylva"),
}
UNEVEN = (0.8, 0.25, 0.1, 0.0)  # Table 3; three parties take the first three
EVEN = 0.5


def paper_name(data: str) -> str:
    """Return the paper's name of a data set, its own where the paper has none."""
    return PAPER_NAMES.get(profiles.STAND_INS.get(data, data), data)


def is_shown(figure: int, data: str) -> bool:
    """Tell whether a figure has a panel of a data set.

    Figure 2 has one of every data set, and data that the paper lacks are in all.
    """
    name = paper_name(data)
    known = name in PAPER_NAMES.values()
    return figure == 2 or not known or name in FIGURE_DATA[figure]


@functools.cache
def published() -> Any:
    """Return the settings hard-coded in the released scripts."""
    source = resources.files("lessvfl_bench.paper") / "published.toml"
    return tomllib.loads(source.read_text(encoding="utf-8"))


def _row(use: str, method: str, data: str) -> list[float]:
    """Return a published row; data the authors never ran take Phishing's."""
    rows = published()[use][method]
    found: list[float] = rows.get(paper_name(data), rows["Phishing"])
    return found


def communication(profile: str, dataset: Dataset) -> dict[str, Spec]:
    """Return the settings of Tables 2 and 3, by method: those of the profile."""
    found = {}
    for method in METHODS:
        config: Any = profiles.resolve(method, profile, dataset).config
        found[method] = Spec(
            method,
            config.lam_party,
            config.lam_server if method == "less-vfl" else 0.0,
            0 if method == "group-lasso" else int(config.pretrain_epochs),
        )
    return found


def of_figure(use: str, profile: str, dataset: Dataset) -> dict[str, Spec]:
    """Return the settings of a plot, by method."""
    if profile != "official-code":  # its lambdas are on another scale
        return communication(profile, dataset)
    found = {}
    for method in METHODS:
        row = _row(use, method, dataset.name)
        lam_server = row[1] if method == "less-vfl" else 0.0
        epochs = 0 if method == "group-lasso" else int(row[-1])
        found[method] = Spec(method, row[0], lam_server, epochs)
    return found


def by_epochs(profile: str, dataset: Dataset) -> list[Spec]:
    """Return the settings of Table 5: every length of pre-training."""
    specs = []
    lengths = published()["grid"]["pretrain_epochs"]
    for method in ("local-lasso", "less-vfl"):
        base = communication(profile, dataset)[method]
        lam_party, lam_server = base.lam_party, base.lam_server
        if profile == "official-code":
            row = _row("pretraining", method, dataset.name)
            lam_party, lam_server = row[0], row[1] if method == "less-vfl" else 0.0
        specs += [Spec(method, lam_party, lam_server, epochs) for epochs in lengths]
    return specs


def lambda_rows(
    table: int, data: str, whole: bool = False
) -> list[tuple[float, float]]:
    """Return the (lambda_m, lambda_s) printed for a data set, or of the grid too."""
    rows = [row.settings for row in printed.rows(table) if row.data == paper_name(data)]
    pairs = {(row["lam_party"], row["lam_server"]) for row in rows}
    if whole:
        own = {spec.lam_party for spec in whole_grid(data)}
        pairs |= set(itertools.product(own, published()["grid"]["lam_server"]))
    return sorted(pairs, reverse=True)


def lambda_spec(base: Spec | None, pair: tuple[float, float]) -> Spec:
    """Return a row of the lambda tables, with the length of pre-training of `base`."""
    assert base is not None
    lam_server = pair[1] if base.method == "less-vfl" else 0.0
    return Spec(base.method, pair[0], lam_server, base.pretrain_epochs)


def whole_grid(data: str) -> list[Spec]:
    """Return every setting of the authors' grid."""
    grid = published()["grid"]
    own = grid.get(paper_name(data), {}).get("lam_party", grid["lam_party"])
    lengths = grid["pretrain_epochs"]
    specs = [Spec("group-lasso", lam) for lam in grid["lam_party"]]
    pairs = itertools.product(own, lengths)
    specs += [Spec("local-lasso", lam, 0.0, epochs) for lam, epochs in pairs]
    triples = itertools.product(own, grid["lam_server"], lengths)
    return specs + [Spec("less-vfl", *triple) for triple in triples]


def needed(
    profile: str,
    dataset: Dataset,
    tables: Sequence[int],
    figures: Sequence[int],
    choose: bool,
) -> list[Spec]:
    """Return the settings to run with evenly planted noise, each once."""
    specs: list[Spec] = []
    if choose:
        specs += whole_grid(dataset.name)
    if {2, 3} & set(tables):
        specs += communication(profile, dataset).values()
    if 5 in tables:
        specs += by_epochs(profile, dataset)
    for table in set(tables) & set(LAMBDA_TABLES):
        specs += [
            lambda_spec(base, pair)
            for pair in lambda_rows(table, dataset.name)
            for base in communication(profile, dataset).values()
        ]
    for use, numbers in (("removal", (3, 5)), ("accuracy", (4, 6))):
        if any(n in figures and is_shown(n, dataset.name) for n in numbers):
            specs += of_figure(use, profile, dataset).values()
    return sorted(set(specs))
