"""A run in the stores that teams look at: MLflow and TensorBoard.

`Tracking` is a :class:`~lessvfl.terms.Progress`: it writes scores and bytes down while
a run goes on, and at its end what its record says. What a side may not know is not in
its record, so a party tracks its own side alone.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lessvfl.errors import ConfigError, LessVFLError, warn
from lessvfl.report.intervals import together
from lessvfl.report.tables import revealed, settings_in_use
from lessvfl.run.record import FILE_NAME, RunRecord
from lessvfl.terms import SCORES, Event, Stage

FILES = (FILE_NAME, "report.html", "features.csv", "run.yaml")
FOLDERS = "networks*"
EVALUATED = ("evaluation.html", "evaluation.json")
MOST_AT_ONCE = 100  # parameters that MLflow takes in one request
LONGEST = 500  # characters of a parameter


class Tracking:
    """Writes a run into a store, as it goes on and at its end.

    A store that fails is given up with a warning; the run goes on.
    """

    def __init__(self, store: TrackingStore) -> None:
        self._store: TrackingStore | None = store  # None once it is closed
        self._seed = 0
        self._scored: Counter[int] = Counter()

    def begin_seed(self, seed: int, number: int, n_seeds: int) -> None:
        """Learn that the run of a seed begins."""
        self._seed = seed

    def observe(self, event: Event) -> None:
        """Learn of an epoch; its score comes by itself."""

    def stepped(self, stage: Stage, step: int, n_steps: int) -> None:
        """Learn how many steps are done."""

    def scored(self, value: float, name: str) -> None:
        """Write down the score so far."""
        self._scored[self._seed] += 1
        self._point(f"progress/{name}", value, self._scored.total())

    def sent(self, up: int, down: int, rounds: int) -> None:
        """Write down what was sent so far."""
        self._point("progress/payload_bytes", up + down, rounds)

    def finish(self, record: RunRecord, folder: Path | None) -> None:
        """Write down what a record says, and keep the files of its run folder."""
        self._do(lambda store: store.set_parameters(parameters(record)))
        for name, value, step in points(record):
            self._point(name, value, step)
        if folder is not None:
            files = [folder / name for name in FILES if (folder / name).is_file()]
            for path in [*files, *sorted(folder.glob(FOLDERS))]:
                self._keep(path)
        self.close()

    def finish_evaluation(
        self, evaluation: Mapping[str, Any], folder: Path | None
    ) -> None:
        """Write down what an evaluation says, and keep its page and numbers."""
        leaves = dict(_leaves(evaluation))
        texts = {k: v[:LONGEST] for k, v in leaves.items() if isinstance(v, str)}
        self._do(lambda store: store.set_parameters(texts))
        for name, value in leaves.items():
            if isinstance(value, int | float):
                self._point(f"evaluated/{name.replace('.', '/')}", value, 0)
        if folder is not None:
            for name in EVALUATED:
                self._keep(folder / name)
        self.close()

    def close(self, *, failed: bool = False) -> None:
        """Say how the run ended, once."""
        self._do(lambda store: store.close(failed=failed))
        self._store = None

    def _point(self, name: str, value: float, step: int) -> None:
        if math.isfinite(value):
            self._do(lambda store: store.add_point(name, float(value), step))

    def _keep(self, path: Path) -> None:
        self._do(lambda store: store.keep(path))

    def _do(self, act: Callable[[TrackingStore], None]) -> None:
        if self._store is None:
            return
        try:
            act(self._store)
        except Exception as error:
            self._store = None
            why = " ".join(str(error).split())
            warn(f"The run goes on without being tracked: {why}.")


# ------------------------------------------------------------------- what a record says


def parameters(record: RunRecord) -> dict[str, str]:
    """Return what was run: method, data, settings, versions."""
    header = record.header
    versions = {f"version_{k}": v for k, v in header.get("versions", {}).items()}
    values = {
        "side": record.side,
        "method": header["method"],
        "profile": header["profile"],
        "data": header["data"]["name"],
        "seeds": [run["seed"] for run in record.runs],
        **settings_in_use(record),
        **versions,
    }
    return {name: str(value)[:LONGEST] for name, value in values.items()}


def points(record: RunRecord) -> Iterator[tuple[str, float, int]]:
    """Yield curves by seed, and at step 0 the numbers of every seed and their means."""
    finals: dict[str, list[float]] = {}
    for run in record.runs:
        seed = f"seed-{run['seed']}"
        for step, point in enumerate(run.get("curve", ()), start=1):
            for name in (*SCORES, "removed_share", "payload_bytes"):
                if point.get(name) is not None:
                    yield f"curve/{name}/{seed}", point[name], step
        for name, value in _numbers(run):
            yield f"{name}/{seed}", value, 0
            finals.setdefault(name, []).append(value)
    for name, values in finals.items():
        yield f"{name}/mean", sum(values) / len(values), 0
    for name in SCORES:
        if (whole := together(record, name)) is not None:
            yield f"final/{name}/ensemble", whole, 0


def _numbers(run: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of one seed, those that the side knows."""
    for name in SCORES:
        if (value := (run.get(name) or {}).get("final")) is not None:
            yield f"final/{name}", value
    for party, names in revealed(run).items():
        yield f"kept/{party}", float(len(names["kept"]))
    communication = run.get("communication") or {}
    for way, n_bytes in communication.get("payload_bytes", {}).items():
        yield f"payload_bytes/{way}", float(n_bytes)
    if "rounds" in communication:
        yield "rounds", float(communication["rounds"])


def _leaves(numbers: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the texts and numbers of an evaluation by their paths, without lists."""
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        elif isinstance(value, str | int | float):
            yield f"{before}{name}", value


# ------------------------------------------------------------------------------- stores


class MLflowStore:
    """A run of MLflow, where ``MLFLOW_TRACKING_URI`` says (mlflow's own default).

    `title` is its name; it needs no folder.
    """

    def __init__(self, title: str, folder: Path) -> None:
        import mlflow

        self._client = mlflow.MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "lessvfl")
        known = self._client.get_experiment_by_name(name)
        place = self._client.create_experiment(name) if known is None else None
        experiment = place if known is None else known.experiment_id
        self._run = self._client.create_run(experiment, run_name=title).info.run_id

    def set_parameters(self, values: Mapping[str, str]) -> None:
        """Write down what was run."""
        from mlflow.entities import Param

        params = [Param(name, value) for name, value in values.items()]
        for start in range(0, len(params), MOST_AT_ONCE):
            some = params[start : start + MOST_AT_ONCE]
            self._client.log_batch(self._run, params=some)

    def add_point(self, name: str, value: float, step: int) -> None:
        """Write down a point of a curve."""
        self._client.log_metric(self._run, name, value, step=step)

    def keep(self, path: Path) -> None:
        """Keep a file or a folder as artefacts."""
        if path.is_dir():
            self._client.log_artifacts(self._run, str(path), path.name)
        else:
            self._client.log_artifact(self._run, str(path))

    def close(self, *, failed: bool) -> None:
        """Say how the run ended."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


class TensorBoardStore:
    """An event file of TensorBoard in a folder; it keeps no files, but their names.

    Nothing in it has a title.
    """

    def __init__(self, title: str, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(folder))

    def set_parameters(self, values: Mapping[str, str]) -> None:
        """Write down what was run, for the tab of hyper-parameters."""
        from tensorboard.plugins.hparams import summary_v2

        self._write(summary_v2.hparams_pb(dict(values)))

    def add_point(self, name: str, value: float, step: int) -> None:
        """Write down a point of a curve."""
        from tensorboard.plugins.scalar import summary_v2

        self._write(summary_v2.scalar_pb(name, value), step)

    def keep(self, path: Path) -> None:
        """Write down where a file is."""
        self._write_text(f"files/{path.name}", str(path.absolute()))

    def close(self, *, failed: bool) -> None:
        """Say how the run ended."""
        self._write_text("status", "failed" if failed else "complete")
        self._writer.close()

    def _write_text(self, name: str, text: str) -> None:
        from tensorboard.plugins.text import summary_v2

        self._write(summary_v2.text_pb(name, text))

    def _write(self, summary: Any, step: int = 0) -> None:
        from tensorboard.compat.proto import event_pb2

        event = event_pb2.Event(wall_time=time.time(), step=step)
        event.summary.ParseFromString(summary.SerializeToString())
        self._writer.add_event(event)


TrackingStore = MLflowStore | TensorBoardStore
STORES: dict[str, Callable[[str, Path], TrackingStore]] = {
    "mlflow": MLflowStore,
    "tensorboard": TensorBoardStore,
}


@contextlib.contextmanager
def tracked(name: str, title: str, folder: Path) -> Iterator[Tracking]:
    """Write what happens in the block into a store: mlflow or tensorboard.

    `title` is what a run of MLflow is called, `folder` where TensorBoard's files go. A
    block that fails is written down as failed.
    """
    if name not in STORES:
        raise ConfigError(
            f"A run is tracked by one of {', '.join(STORES)}. Got {name!r}."
        )
    try:
        tracking = Tracking(STORES[name](title, folder))
    except ModuleNotFoundError as error:
        needs = f"its extra, as in pip install 'lessvfl[{name}]'"
        if (error.name or "").partition(".")[0] != name:
            needs = f"more than its extra, as in pip install {name}"
        raise ConfigError(
            f"To track a run by {name} takes {needs}. Got no package '{error.name}'."
        ) from None
    except LessVFLError:
        raise
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"The store of {name} must open. Got this: {why}.") from None
    try:
        yield tracking
    except BaseException:
        tracking.close(failed=True)
        raise
    tracking.close()
