"""What predicting with hidden paths costs: bytes, milliseconds and rounds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from lessvfl import data
from lessvfl.report.parts import markdown_table
from lessvfl.run import profiles, simulate
from lessvfl.run.hidden import LocalParties
from lessvfl_bench.study import BY_CLASS, NameList, NumberList, Study, option

HEADS = (
    *("data set", "parties", "trees", "leaves", "bytes a row", "in the clear"),
    *("ms a row", "in the clear", "rounds", "largest difference", "labels that differ"),
)
WHOLE = 8  # bytes of the place of a row, of which every party is told


@dataclass(frozen=True)
class Paths(Study):
    """What trees cost that predict with hidden paths, beside those in the clear.

    Boosted trees predict their test rows, all sides in this process, on one thread.
    Bytes are those of all messages, one batch after the other, in both directions;
    milliseconds those of all sides together, from encoded columns on.
    """

    datasets: NameList = option(("phishing", "credit"), "Data sets.")
    parties: NumberList = option((2, 5), "Parties.")
    trees: int = option(100, "Trees.")
    leaves: int = option(31, "The most leaves of a tree.")
    smallest: ClassVar = {"datasets": ("breast-cancer",), "parties": (2,), "trees": 40}

    def cases(self) -> list[tuple[str, int, int, int]]:
        """Return data set, parties, trees and leaves."""
        sizes = self.trees, self.leaves
        return [(name, n, *sizes) for name in self.datasets for n in self.parties]

    def measure(self, case: Any) -> list[float]:
        """Return a row of the table."""
        name, n_parties, trees, leaves = case
        dataset = data.load(name)
        given = {"trees": trees, "leaves": leaves, "select_trees": 0, **BY_CLASS}
        own = profiles.resolve("vertical-boost", "default", dataset, given)
        job = simulate.Job(dataset, own, parties=n_parties)
        (run,) = simulate.simulate(job, [0])
        model, n_rows = run.model, len(run.problem.y_test)
        start = time.perf_counter()
        blocks = []
        for party, table in zip(model.parties, run.problem.parties, strict=True):
            kept = set(party.kept)
            used = [table.features[group] in kept for group in table.groups]
            x = torch.as_tensor(table.X_test[:, used], dtype=torch.float32)
            blocks.append(party.net(x))
        split = time.perf_counter()
        clear = model.fuse(blocks, n_rows)
        in_the_clear = time.perf_counter()
        paths = model.hidden_paths()
        local = LocalParties(dict(zip(model.party_names, blocks, strict=True)))
        found = local.predict(paths, n_rows).double().numpy()
        end = time.perf_counter()
        n_batches = -(-n_rows // paths.rows_at_once)
        n_values = sum(block.numel() for block in blocks)
        off = np.abs(found - clear).max()
        differ = (model.answers(found) != model.answers(clear)).sum()
        return [
            paths.order.n_leaves,
            local.n_bytes / n_rows + WHOLE * n_parties,
            4 * n_values / n_rows + WHOLE * n_parties,
            1e3 * (split - start + end - in_the_clear) / n_rows,
            1e3 * (in_the_clear - start) / n_rows,
            local.n_rounds / n_batches,
            float(off),
            float(differ),
        ]

    def lines(self, found: Mapping[Any, Any]) -> Iterator[str]:
        """Yield a row for every data set and number of parties."""
        rows = (
            [
                name,
                str(n),
                str(trees),
                f"{leaves:,.0f}",
                f"{up:,.0f}",
                f"{clear:,.0f}",
                f"{ms:.2f}",
                f"{clear_ms:.2f}",
                f"{rounds:.0f}",
                f"{off:.0e}",
                f"{differ:.0f}",
            ]
            for (name, n, trees, _), values in found.items()
            for leaves, up, clear, ms, clear_ms, rounds, off, differ in [values]
        )
        return markdown_table(HEADS, rows)
