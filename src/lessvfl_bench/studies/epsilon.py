"""``lessvfl bench epsilon``: what selection finds behind noise that has a price."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from lessvfl import data
from lessvfl.data import Dataset
from lessvfl.privacy.noise import ClippedNoise
from lessvfl.report.parts import markdown_table
from lessvfl.run import accounting, profiles, simulate
from lessvfl.run.profiles import Settings
from lessvfl_bench.shapes import held_out
from lessvfl_bench.shapes.made import SHAPES, KnownTable
from lessvfl_bench.shapes.run import BY_SHARES, OURS, final, kept_of, recovery, said
from lessvfl_bench.study import (
    BY_CLASS,
    NameList,
    NumberList,
    Repeated,
    Study,
    check_options,
    mean,
    number,
    option,
)

DATA = ("phishing", "credit", "rosmap", "activity_time265")
MADE = ("weak parties", "t2", "nested", "400 x 300", "weak, in blocks", "20 classes")
NOTHING, LABELS, EMBEDDINGS, GRADIENTS = "none", "labels", "embeddings", "gradients"
DEFENCES = (LABELS, EMBEDDINGS, GRADIENTS)
SPURIOUS = 0.5  # planted in tables whose truth is not known
# The noise, by its sensitivity, of one Gaussian release that spends an epsilon (delta
# 1e-5), by `accounting.noise_for`; k releases take the root of k times as much.
OF_ONE = {1: 3.7306, 3: 1.3906, 8: 0.6002}
ON: dict[str, dict[str, Any]] = {  # settings that a profile knows the defence by
    NOTHING: {},
    EMBEDDINGS: {"embedding_noise": 1.0},
    GRADIENTS: {"gradient_defence": "gaussian", "gradient_noise": 1.0},
}

EpsilonCase = tuple[str, str, int, int]  # table, defence, epsilon (0: none), seed


@dataclass(frozen=True)
class Epsilon(Study):
    """Selection behind noise that spends an epsilon, beside selection without any.

    Randomised labels, noise on a party's embeddings or on the gradients it is sent, so
    much that a run spends each epsilon (delta 1e-5), with less-vfl-auto. Tables have 50
    % planted noise, shapes a known truth. For every table, defence and epsilon: useless
    features removed, real ones kept, the share of useless ones among those kept, said
    and true (in runs that keep and say something), and balanced accuracy or R2.
    """

    data: NameList = option(DATA, "By name or file.")
    shapes: Repeated = option(MADE, "A made shape by name.")
    defences: NameList = option(DEFENCES, f"Some of {', '.join(DEFENCES)}.")
    epsilons: NumberList = option(tuple(OF_ONE), "Some of 1, 3, 8; without any too.")
    seeds: NumberList = option((0, 1, 2, 3, 4), "One run each.")
    set: Repeated = option((), "KEY=VALUE, a setting of every run.")
    data_dir: Path | None = option(None, "Folder of local data sets (LESSVFL_DATA).")
    smallest: ClassVar = {
        "data": ("breast-cancer",),
        "shapes": ("u-shapes, 300 rows",),
        "epsilons": (3,),
        "seeds": (0,),
    }

    def __post_init__(self) -> None:
        """Check the options."""
        lists: dict[str, Any] = {"defences": self.defences, "seeds": self.seeds}
        check_options(
            {**lists, "epsilons": self.epsilons},
            {
                "defences": (self.defences, DEFENCES),
                "epsilons": (self.epsilons, tuple(OF_ONE)),
                "shapes": (self.shapes, tuple(SHAPES | held_out.HELD_OUT)),
            },
        )

    @property
    def tables(self) -> Sequence[str]:
        """Return the names of data sets and shapes."""
        return [name for name in (*self.data, *self.shapes) if name]

    @property
    def defended(self) -> list[tuple[str, int]]:
        """Return every defence with its epsilon, none first."""
        some = [(d, epsilon) for d in self.defences for epsilon in self.epsilons]
        return [(NOTHING, 0), *some]

    def cases(self) -> list[EpsilonCase]:
        """Return table, defence, epsilon and seed."""
        return [
            (name, defence, epsilon, seed)
            for name in self.tables
            for defence, epsilon in self.defended
            for seed in self.seeds
        ]

    def measure(self, case: EpsilonCase) -> dict[str, Any]:
        """Run one seed."""
        name, defence, epsilon, seed = case
        began = time.monotonic()
        shape = held_out.make(name, seed) if name not in self.data else None
        dataset = shape.dataset if shape else data.load(name, data_dir=self.data_dir)
        given = dict(pair.split("=", 1) for pair in self.set)
        if shape is not None and shape.is_rare:
            given = {**BY_SHARES, **given}
        own = protected(dataset, defence, epsilon, given)
        with threadpool_limits(1):
            if shape is None:
                job = simulate.Job(dataset, own, spurious=SPURIOUS)
            else:
                job = simulate.Job(dataset, own, shape.sizes)
            (run,) = simulate.simulate(job, [seed])
        found = planted(run) if shape is None else against_truth(shape, run)
        found |= {"said": said(run.numbers), "score": final(run.numbers)}
        return found | {"seconds": time.monotonic() - began}

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every table, defence and epsilon; then all tables' shares."""
        rows = [
            [name, *_words(d, e), *_cells([found[name, d, e, s] for s in self.seeds])]
            for name in self.tables
            for d, e in self.defended
        ]
        heads = ("table", "noise on", "epsilon", "noise removed", "real kept")
        shares = ("false share said", "true")
        yield from markdown_table((*heads, *shares, "score", "keeps nothing"), rows)
        yield ""
        rows = []
        for d, e in self.defended:
            runs = [found[n, d, e, s] for n in self.tables for s in self.seeds]
            rows.append([*_words(d, e), *_honesty(runs)])
        low = "true above said by more than 0.05"
        yield from markdown_table(("noise on", "epsilon", "runs", *shares, low), rows)


def protected(
    dataset: Dataset, defence: str, epsilon: int, given: Mapping[str, Any]
) -> Settings:
    """Return the settings of a run that spends an epsilon with a defence."""
    n_parties = len(dataset.parties) if dataset.parties else dataset.n_parties
    on = {**BY_CLASS, **ON.get(defence, {"label_epsilon": float(epsilon)})}
    own = profiles.resolve(OURS, "default", dataset, {**on, **given})
    if defence == EMBEDDINGS:
        name = "embedding_noise"
        extent = accounting.Extent(n_parties, n_rows=dataset.X.n_rows)
        times = accounting.n_embeddings(own, extent)
    elif defence == GRADIENTS:
        name = "gradient_noise"
        times = accounting.n_gradients(own, n_parties)
    else:
        return own
    one = ClippedNoise(1.0, 1.0)
    noise = OF_ONE[epsilon] * math.sqrt(times) * one.sensitivity / one.clip
    return profiles.resolve(OURS, "default", dataset, {**on, **given, name: noise})


def planted(run: simulate.Run) -> dict[str, Any]:
    """Return what became of planted and of real columns."""
    about, features = run.numbers["spurious"], run.numbers["features"]
    n_kept = sum(len(own["kept"]) for own in features.values())
    n_false = about["planted"] - about["removed"]
    return {
        "removed": about["removed_share"],
        "real": about["real_kept_share"],
        "false share": n_false / n_kept if n_kept else None,
    }


def against_truth(shape: KnownTable, run: simulate.Run) -> dict[str, Any]:
    """Return what became of useless and of true features."""
    found = recovery(shape, kept_of(run, shape.dataset.X.names))
    n_useless = int((~shape.significant & ~shape.neutral).sum())
    return {
        "removed": 1 - found["false kept"] / n_useless,
        "real": found["true found"] / found["true"],
        "false share": found["false share"],
    }


def _words(defence: str, epsilon: int) -> tuple[str, str]:
    return defence, str(epsilon) if epsilon else "infinity"


def _pairs(runs: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Return shares said and true, of runs that have both."""
    pairs = [(one["said"], one["false share"]) for one in runs]
    return [(said, true) for said, true in pairs if None not in (said, true)]


def _cells(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    both = list(zip(*_pairs(runs), strict=True)) or [(), ()]
    return [
        number(mean(runs, "removed")),
        number(mean(runs, "real")),
        *(number(statistics.fmean(own)) if own else "" for own in both),
        number(mean(runs, "score")),
        number(statistics.fmean(one["false share"] is None for one in runs), 2),
    ]


def _honesty(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    pairs = _pairs(runs)
    if not pairs:
        return ["0", "", "", ""]
    stated, true = ([pair[i] for pair in pairs] for i in (0, 1))
    error = statistics.stdev(true) / math.sqrt(len(true)) if len(true) > 1 else 0
    low = sum(t - s > 0.05 for s, t in pairs)
    return [
        str(len(pairs)),
        number(statistics.fmean(stated)),
        f"{number(statistics.fmean(true))} ± {number(error)}",
        f"{low} of {len(pairs)}",
    ]
