"""Run what a benchmark needs, once, in chunks that fit the device's memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lessvfl.bench.paper import grid, stages
from lessvfl.bench.paper.scene import Scene, Spec
from lessvfl.bench.paper.stages import Arrays
from lessvfl.bench.paper.store import Place, Store, scene_key
from lessvfl.data import Dataset

MEMORY_SHARE = 0.5  # of what is free on the device, unless the user sets a limit

Say = Callable[[str], None]


@dataclass
class Clock:
    """Seconds by part, the device waited for at the end of each."""

    device: str
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.device == "cuda":
                torch.cuda.synchronize()
            spent = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + spent


@dataclass
class Bench:
    """What the runs of a benchmark share.

    Parameters
    ----------
    profile : str
        ``official-code`` or ``paper``.
    seeds : tuple of int
        One run of every setting each.
    device : str
        ``cpu`` or ``cuda``.
    store : Store
        Takes the records.
    memory : int or None
        Bytes a chunk may take; None asks the device.
    overrides : mapping
        Settings that differ from the profile's.
    tf32 : bool
        Let matrix products on CUDA round their factors to ten bits.
    say : callable
        Told what is being run.
    """

    profile: str
    seeds: tuple[int, ...]
    device: str
    store: Store
    memory: int | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    tf32: bool = False
    say: Say = lambda line: None
    clock: Clock = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.clock = Clock(self.device)
        torch.backends.cuda.matmul.allow_tf32 = self.tf32

    def scene(self, dataset: Dataset, spurious: float | tuple[float, ...]) -> Scene:
        """Prepare the rows of a data set."""
        with self.clock.part("prepare"):
            return Scene(
                dataset,
                self.profile,
                self.seeds,
                spurious,
                self.device,
                self.overrides,
            )

    def key(self, scene: Scene) -> str:
        """Return what the runs of a scene depend on, besides their settings."""
        return scene_key(
            data=scene.dataset.name,
            rows=[len(scene.problem.y_train), len(scene.problem.y_test)],
            sums=[f"{party.X_train.sum():.6g}" for party in scene.problem.parties],
            profile=self.profile,
            seeds=self.seeds,
            spurious=scene.spurious,
            holdout=scene.holdout,
            overrides=dict(self.overrides),
            tf32=self.tf32,
        )

    # ------------------------------------------------------------------------- programs

    def baseline(self, scene: Scene, name: str) -> Place:
        """Run VFL without selection, or find it."""
        spec = Spec("plain")
        key = self.key(scene)
        if self.store.find(key, spec) is None:
            self.say(f"{scene.dataset.name}: VFL ({name})")
            with self.clock.part("baselines"):
                arrays = grid.run_plain(scene)
            self._keep(scene, key, [spec], arrays, f"plain-{name}")
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
        for chunk in self._chunks(scene, key, group):
            self._say_chunk(scene, chunk)
            with self.clock.part("group_lasso"):
                arrays = grid.run_group_lasso(scene, chunk, curve)
            self._keep(scene, key, chunk, arrays, _name(scene, "group"))
        self._run_others(scene, key, others, curve)
        found = {spec: self.store.find(key, spec) for spec in specs}
        return {spec: place for spec, place in found.items() if place is not None}

    def _run_others(
        self, scene: Scene, key: str, specs: Sequence[Spec], curve: bool
    ) -> None:
        chunks = self._chunks(scene, key, specs)
        if not chunks:
            return
        longest = max(spec.pretrain_epochs for spec in specs)
        with self.clock.part("pretrain"):
            start = stages.pretrain(scene, longest)
        tasks = sorted(
            {
                (spec.pretrain_epochs, spec.lam_server)
                for spec in specs
                if spec.method == "less-vfl"
            }
        )
        with self.clock.part("select_components"):
            fusion = stages.select_components(scene, start, tasks)
        for chunk in chunks:
            self._say_chunk(scene, chunk)
            arrays = grid.run_selection(
                scene, start, fusion, chunk, curve, self.clock.part
            )
            before = {
                f"pretrain_{name}": np.repeat(values, len(chunk), axis=2)
                for name, values in start.arrays.items()
            }
            self._keep(scene, key, chunk, arrays | before, _name(scene, "selection"))

    def _chunks(
        self, scene: Scene, key: str, specs: Sequence[Spec]
    ) -> list[list[Spec]]:
        """Cut settings into chunks that fit; leave out what is in the store.

        Chunks are cut before anything is left out, so that a resumed run has the same.
        """
        if not specs:
            return []
        size = max(1, self._limit() // grid.bytes_per_setting(scene))
        n_chunks = -(-len(specs) // size)
        size = -(-len(specs) // n_chunks)
        chunks = [list(specs[i : i + size]) for i in range(0, len(specs), size)]
        missing = [
            [spec for spec in chunk if self.store.find(key, spec) is None]
            for chunk in chunks
        ]
        return [chunk for chunk in missing if chunk]

    def _limit(self) -> int:
        """Return the bytes that a chunk may take."""
        if self.memory is not None:
            return self.memory
        if self.device == "cuda":
            free, _ = torch.cuda.mem_get_info()
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return int(free * MEMORY_SHARE)

    def _keep(
        self,
        scene: Scene,
        key: str,
        specs: Sequence[Spec],
        arrays: Arrays,
        name: str,
    ) -> None:
        about = {"data": scene.dataset.name, "device": self.device}
        with self.clock.part("records"):
            self.store.add(key, specs, arrays, about, f"{scene.dataset.name}-{name}")

    def _say_chunk(self, scene: Scene, chunk: Sequence[Spec]) -> None:
        lams = f"{chunk[0].lam_party:g} to {chunk[-1].lam_party:g}"
        n_runs = len(chunk) * len(self.seeds)
        kind = "group lasso" if chunk[0].method == "group-lasso" else "LESS-VFL"
        where = ", validation rows held out" if scene.holdout else ""
        self.say(f"{scene.dataset.name}: {kind}, {n_runs} runs, λ_m {lams}{where}")


def _name(scene: Scene, program: str) -> str:
    if scene.holdout:
        return f"validation-{program}"
    return f"uneven-{program}" if isinstance(scene.spurious, tuple) else program
