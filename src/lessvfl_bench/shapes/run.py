"""What methods find where the truth is known: shapes, and their calibration."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lessvfl.core import metrics
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl_bench.peers import pooled
from lessvfl_bench.peers.pooled import Mask
from lessvfl_bench.shapes import held_out, made, models
from lessvfl_bench.shapes.made import KnownTable
from lessvfl_bench.study import (
    BY_CLASS,
    NameList,
    NumberList,
    Repeated,
    Study,
    number,
    option,
)
from lessvfl_bench.study import mean as mean_of

OURS, PUBLISHED = "less-vfl-auto", "less-vfl"
BY_SHARES: dict[str, Any] = {
    "threshold": "balanced"
}  # as the balanced accuracy asks of rare classes
PEERS = {"L1": pooled.l1_logistic, "Boruta": pooled.boruta}
SCORED = ("VFL", "linear", "boosting")  # on all columns
METHODS = (OURS, PUBLISHED, *PEERS, *SCORED)
# Left out of the calibration: nothing is true there, or what is useless is debatable.
NOT_CALIBRATED = ("pure noise", "correlated blocks")

ShapeRuns = Mapping[tuple[str, int, str], dict[str, Any]]


@dataclass(frozen=True)
class Shapes(Study):
    """Selection where the truth is known: tables of many shapes.

    For every shape: features found and useless ones kept, F1 of the support, the share
    of useless features that the parties report beside the true one, and scores of the
    test rows (balanced accuracy, R2 for regression) of less-vfl-auto, of the published
    less-vfl with its lambdas, of plain VFL with the same networks, of a linear model
    and of gradient boosting on the pooled columns, of plain on the features that
    less-vfl-auto kept, and of a linear model on those that a selector kept. With
    --calibrate reported and true shares of useless features are compared instead.
    """

    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each.")
    shapes: Repeated = option((), "A shape by name; all unless given.")
    methods: NameList = option(METHODS, "Of these; L1 and Boruta see pooled columns.")
    set: Repeated = option((), "KEY=VALUE, for less-vfl-auto and VFL.")
    calibrate: int = option(0, "How many runs, with seeds from 100 on.")
    held_out: bool = option(False, "Calibrate on shapes that nothing was chosen on.")
    smallest: ClassVar = {
        "seeds": (0,),
        "shapes": ("u-shapes, 300 rows",),
        "methods": tuple(name for name in METHODS if name != "Boruta"),
    }

    @property
    def names(self) -> Sequence[str]:
        """Return the shapes that are run."""
        if self.held_out:
            return list(held_out.HELD_OUT)
        names = list(self.shapes or made.SHAPES)
        return [n for n in names if not self.calibrate or n not in NOT_CALIBRATED]

    def cases(self) -> list[tuple[str, int, str]]:
        """Return shape, seed and method."""
        names = self.names
        if not self.calibrate:
            return [(n, s, m) for n in names for s in self.seeds for m in self.methods]
        rounds = range(self.calibrate)
        return [(names[i % len(names)], 100 + i // len(names), OURS) for i in rounds]

    def measure(self, case: tuple[str, int, str]) -> dict[str, Any]:
        """Run one method on one shape with one seed."""
        name, seed, method = case
        began = time.monotonic()
        with threadpool_limits(1):
            shape = held_out.make(name, seed)
            given = dict(pair.split("=", 1) for pair in self.set)
            found = run(shape, seed, method, given, not self.calibrate)
        return found | {"seconds": time.monotonic() - began}

    def lines(self, found: ShapeRuns) -> Iterator[str]:
        """Yield what every selector found, then every score; or the calibration."""
        if self.calibrate:
            yield from calibration(found)
            return
        runs = {
            (shape, name): [found[shape, seed, name] for seed in self.seeds]
            for shape in self.names
            for name in self.methods
        }
        yield from markdown_table(
            (
                *("shape", "method", "true found", "blocks found", "false kept", "F1"),
                *("false share said", "false share", "keeps nothing", "seconds"),
            ),
            (
                [*key, *_support(many)]
                for key, many in runs.items()
                if "kept" in many[0]
            ),
        )
        names = self.methods
        columns = [(n, "score") for n in names if n in (OURS, PUBLISHED, *SCORED)]
        columns += [(OURS, "plain on kept")] if OURS in names else []
        columns += [(name, "linear on kept") for name in names if name not in SCORED]
        heads = [
            n if key == "score" else f"{key.removesuffix(' kept')} {n}'s"
            for n, key in columns
        ]
        rows = [
            [n, *(number(mean_of(runs[n, name], key)) for name, key in columns)]
            for n in self.names
        ]
        yield ""
        yield from markdown_table(["shape", *heads], rows)


def _support(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of a selector on a shape."""

    def count(key: str) -> str:
        if key not in runs[0]:
            return ""
        return f"{number(mean_of(runs, f'{key} found'), 1)} of {runs[0][key]}"

    return [
        count("true"),
        count("blocks"),
        number(mean_of(runs, "false kept"), 1),
        number(mean_of(runs, "F1")) if runs[0]["true"] else "",
        number(mean_of(runs, "said")),
        number(mean_of(runs, "false share")),
        number(statistics.fmean(one["kept"] == 0 for one in runs), 2),
        number(mean_of(runs, "seconds"), 1),
    ]


def calibration(found: ShapeRuns) -> Iterator[str]:
    """Yield the table of reported and true shares of useless features.

    A run that kept nothing, or said nothing, is left out. Beside the mean of the true
    shares stands its standard error.
    """
    shares: dict[str, list[tuple[float, float]]] = {"all": []}
    for (shape, _, _), one in found.items():
        own = shares.setdefault(shape, [])
        if one["said"] is not None and one["kept"]:
            own.append((one["said"], one["false kept"] / one["kept"]))
            shares["all"].append(own[-1])
    rows = []
    for shape, own in shares.items():
        cells = ["", "", ""]
        if own:
            stated, true = ([pair[i] for pair in own] for i in (0, 1))
            error = statistics.stdev(true) / math.sqrt(len(own)) if len(own) > 1 else 0
            n_low = sum(t - s > 0.05 for s, t in own)
            cells = [
                number(statistics.fmean(stated)),
                f"{number(statistics.fmean(true))} ± {number(error)}",
                f"{n_low} of {len(own)}",
            ]
        rows.append([shape, len(own), *cells])
    low = "true above stated by more than 0.05"
    return markdown_table(["shape", "runs", "stated", "true", low], rows)


# -- one run ---------------------------------------------------------------------------


def run(
    shape: KnownTable, seed: int, method: str, given: Mapping[str, str], scores: bool
) -> dict[str, Any]:
    """Return scores, if wanted, and support where there is one, of one method."""
    dataset, is_rare = shape.dataset, shape.is_rare
    given = {} if method == PUBLISHED else given
    given = {**BY_CLASS, **(BY_SHARES if is_rare else {}), **given}
    own = PUBLISHED if method == PUBLISHED else OURS
    settings = profiles.resolve(own, "default", dataset, given)
    job = simulate.Job(dataset, settings, shape.sizes)
    if method == own:
        (done,) = simulate.simulate(job, [seed])
        kept = kept_of(done, dataset.X.names)
        found = {**recovery(shape, kept), "said": said(done.numbers)}
        if not scores:
            return found
        names = {n for n, stays in zip(dataset.X.names, kept, strict=True) if stays}
        return found | {
            "score": final(done.numbers),
            "linear on kept": models.linear_score(done.problem, names, is_rare),
            "plain on kept": plain_score(shape, kept, seed) if own == OURS else None,
        }
    if method == "VFL":
        ours = settings.flat()
        keys = ("embedding_size", "batch_size", "learning_rate", "train_epochs")
        same = {key: ours[key] for key in (*keys, "schedule", "threshold", "split")}
        plain = profiles.resolve("plain", "default", dataset, same)
        (done,) = simulate.simulate(dataclasses.replace(job, settings=plain), [seed])
        return {"score": final(done.numbers)}
    problem = job.problem(seed)
    if method == "linear":
        return {"score": models.linear_score(problem, None, is_rare)}
    if method == "boosting":
        return {"score": models.boosting_score(problem, is_rare)}
    if problem.task == "regression":
        if method != "L1":
            return {}  # Boruta here is for classes
        kept = models.lasso(problem)
    else:
        table = pooled.pool(problem, seed, torch.device("cpu"))
        kept = np.asarray(PEERS[method](table).kept)
    names = {name for name, stays in zip(dataset.X.names, kept, strict=True) if stays}
    on_kept = models.linear_score(problem, names, is_rare)
    return {**recovery(shape, kept), "linear on kept": on_kept}


def kept_of(run: simulate.Run, names: Sequence[str]) -> Mask:
    """Return which of these features a run kept."""
    parties = run.numbers["features"].values()
    kept = {name for party in parties for name in party["kept"]}
    return np.array([name in kept for name in names])


def plain_score(shape: KnownTable, kept: Mask, seed: int) -> float | None:
    """Return the score of ``plain``, profile ``default``, on the columns kept."""
    dataset = shape.dataset
    parts = np.split(kept, np.cumsum(shape.sizes)[:-1])
    sizes = [int(part.sum()) for part in parts if part.any()]
    if not sizes:
        return None
    names = [name for name, stays in zip(dataset.X.names, kept, strict=True) if stays]
    own = dataclasses.replace(dataset, X=dataset.X.select(names), significant=None)
    given = {**BY_CLASS, **(BY_SHARES if shape.is_rare else {})}
    settings = profiles.resolve("plain", "default", own, given)
    (done,) = simulate.simulate(simulate.Job(own, settings, sizes), [seed])
    return final(done.numbers)


def final(numbers: Mapping[str, Any]) -> float:
    """Return the last score of a run."""
    scores = numbers["balanced_accuracy"] or numbers["r2"]
    return float(scores["final"])


def said(numbers: Mapping[str, Any]) -> float | None:
    """Return the share of useless features reported, over all parties that say one."""
    useless, n_kept = 0.0, 0
    for party, how in (numbers["selection"] or {}).items():
        if how["false_share"] is not None:
            n_own = len(numbers["features"][party]["kept"])
            useless, n_kept = useless + how["false_share"] * n_own, n_kept + n_own
    return useless / n_kept if n_kept else None


def recovery(shape: KnownTable, kept: Mask) -> dict[str, Any]:
    """Return how the features kept compare with the truth."""
    true, counted = shape.significant, ~shape.neutral
    false = int((kept & ~true & counted).sum())
    n_kept = int(kept.sum())
    found = {
        "true": int(true.sum()),
        "true found": int((kept & true).sum()),
        "kept": n_kept,
        "false kept": false,
        "false share": false / n_kept if n_kept else None,
        "F1": metrics.support_f1(kept[counted].tolist(), true[counted].tolist()),
    }
    if len(set(shape.blocks)) < len(kept):
        blocks = set(shape.blocks[true])
        of_kept = blocks & set(shape.blocks[kept])
        found |= {"blocks": len(blocks), "blocks found": len(of_kept)}
    return found
