"""Run what a benchmark needs, once, in chunks that fit the device's memory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lessvfl.data import Dataset
from lessvfl_bench.paper import grid, stages
from lessvfl_bench.paper.scene import Scene, Spec
from lessvfl_bench.paper.stages import Arrays
from lessvfl_bench.paper.store import Place, Store
from lessvfl_bench.study import Say

MEMORY_SHARE = 0.5  # of what is free on the device, unless the user sets a limit


@dataclass
class Bench:
    """What the runs of a benchmark share."""

    profile: str  # official-code or paper
    seeds: tuple[int, ...]  # one run of every setting each
    device: str  # cpu or cuda
    store: Store  # takes the records
    memory: float | None = None  # bytes a chunk may take; None asks the device
    overrides: Mapping[str, Any] = field(default_factory=dict)
    say: Say = lambda line: None  # told what is being run
    seconds: dict[str, float] = field(default_factory=dict)  # by part

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part, the device waited for at its end."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.device == "cuda":
                torch.cuda.synchronize()
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent

    def scene(self, dataset: Dataset, spurious: float | tuple[float, ...]) -> Scene:
        """Prepare the rows of a data set."""
        how = (self.profile, self.seeds, spurious, self.device, self.overrides)
        with self.part("prepare"):
            return Scene(dataset, *how)

    def key(self, scene: Scene) -> str:
        """Return what the runs of a scene depend on, besides their settings."""
        about = {
            "data": scene.dataset.name,
            "rows": [len(scene.problem.y_train), len(scene.problem.y_test)],
            "sums": [f"{party.X_train.sum():.6g}" for party in scene.problem.parties],
            "profile": self.profile,
            "seeds": self.seeds,
            "spurious": scene.spurious,
            "holdout": scene.holdout,
            "overrides": dict(self.overrides),
        }
        return json.dumps(about, sort_keys=True)

    def baseline(self, scene: Scene, name: str) -> Place:
        """Run VFL without selection, or find it."""
        spec, key = Spec("plain"), self.key(scene)
        if self.store.find(key, spec) is None:
            self.say(f"{scene.dataset.name}: VFL ({name})")
            with self.part("baselines"):
                arrays = grid.run_plain(scene)
            self._keep(scene, [spec], arrays, f"plain-{name}")
        found = self.store.find(key, spec)
        assert found is not None
        return found

    def selections(
        self, scene: Scene, specs: Sequence[Spec], curve: bool = True
    ) -> dict[Spec, Place]:
        """Run every setting that is not in the store yet, and return all of them."""
        key = self.key(scene)
        group = [spec for spec in specs if spec.method == "group-lasso"]
        others = [spec for spec in specs if spec.method != "group-lasso"]
        others.sort(key=lambda spec: (-spec.lam_party, spec))
        kind = "uneven-" if isinstance(scene.spurious, tuple) else ""
        kind = "validation-" if scene.holdout else kind
        for chunk in self._chunks(scene, key, group):
            self._say_chunk(scene, chunk)
            with self.part("group_lasso"):
                arrays = grid.run_group_lasso(scene, chunk, curve)
            self._keep(scene, chunk, arrays, f"{kind}group")
        for chunk, arrays in self._run_others(scene, key, others, curve):
            self._keep(scene, chunk, arrays, f"{kind}selection")
        found = {spec: self.store.find(key, spec) for spec in specs}
        return {spec: place for spec, place in found.items() if place is not None}

    def _run_others(
        self, scene: Scene, key: str, specs: Sequence[Spec], curve: bool
    ) -> Iterator[tuple[list[Spec], Arrays]]:
        """Run LESS-VFL and local lasso; yield every finished chunk."""
        chunks = self._chunks(scene, key, specs)
        if not chunks:
            return
        with self.part("pretrain"):
            start = stages.pretrain(scene, max(spec.pretrain_epochs for spec in specs))
        less = [spec for spec in specs if spec.method == "less-vfl"]
        tasks = sorted({(spec.pretrain_epochs, spec.lam_server) for spec in less})
        with self.part("select_components"):
            fusion, kept = stages.select_components(scene, start, tasks)
        for chunk in chunks:
            self._say_chunk(scene, chunk)
            arrays = grid.run_selection(
                scene, start, fusion, kept, chunk, curve, self.part
            )
            for name, values in start.arrays.items():
                arrays[f"pretrain_{name}"] = np.repeat(values, len(chunk), axis=2)
            yield chunk, arrays

    def _chunks(
        self, scene: Scene, key: str, specs: Sequence[Spec]
    ) -> list[list[Spec]]:
        """Cut settings into chunks that fit; leave out what is in the store.

        Chunks are cut before anything is left out, so that a resumed run has the same.
        """
        if not specs:
            return []
        limit = self.memory
        if limit is None:
            if self.device == "cuda":
                free, _ = torch.cuda.mem_get_info()
            else:
                free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            limit = int(free * MEMORY_SHARE)
        size = max(1, int(limit // grid.bytes_per_setting(scene)))
        n_chunks = -(-len(specs) // size)
        size = -(-len(specs) // n_chunks)
        chunks = [specs[i : i + size] for i in range(0, len(specs), size)]
        missing = [[s for s in c if self.store.find(key, s) is None] for c in chunks]
        return [chunk for chunk in missing if chunk]

    def _keep(
        self, scene: Scene, specs: Sequence[Spec], arrays: Arrays, name: str
    ) -> None:
        data = scene.dataset.name
        about = {"scene": self.key(scene), "data": data, "device": self.device}
        with self.part("records"):
            self.store.add(about, specs, arrays, f"{data}-{name}")

    def _say_chunk(self, scene: Scene, chunk: Sequence[Spec]) -> None:
        lams = f"{chunk[0].lam_party:g} to {chunk[-1].lam_party:g}"
        n_runs = len(chunk) * len(self.seeds)
        kind = "group lasso" if chunk[0].method == "group-lasso" else "LESS-VFL"
        where = ", validation rows held out" if scene.holdout else ""
        self.say(f"{scene.dataset.name}: {kind}, {n_runs} runs, λ_m {lams}{where}")
