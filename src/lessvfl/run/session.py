"""One function runs a seed, over any channel: in process, between machines, FLARE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lessvfl import methods
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.data import Problem
from lessvfl.party import Party
from lessvfl.run import numbers
from lessvfl.run.build import Builder, clamp_batch, n_outputs
from lessvfl.run.recorder import Recorder
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties


@dataclass(frozen=True)
class ServerSeed:
    """What the server brings into the run of a seed."""

    build: Builder
    problem: Problem
    labels: Labels
    evaluation: str  # when test rows are scored: "epochs", "end" or "nothing"
    observe: Observer  # told of every event
    scored: Callable[[float, str], None]  # told of every score
    tested: Callable[[Tensor], None] | None  # given the outputs for the test rows
    bits: int = 32  # of a value that is asked for to be scored


@dataclass(frozen=True)
class FinishedSeed:
    """What a seed leaves at the server."""

    fusion: Network
    numbers: dict[str, Any]  # those of the server
    means: dict[str, Tensor]  # of every party's embedding, (E_m,)


def run_seed(
    own: ServerSeed,
    server: Parties,
    keeper_of: Callable[[Recorder], Keeper],
    parties: Sequence[Party] = (),
    **communication: Callable[[], int],
) -> FinishedSeed:
    """Run a method with parties that are there, from its start or a checkpoint.

    `parties` are those in this process, whose features are recorded on the way;
    `communication` are amounts that are asked for at the end and added to the bill.
    """
    settings, problem = own.build.settings, own.problem
    recorder = Recorder(
        problem,
        own.labels.y,
        own.build.labels(problem.y_test, problem.task),
        own.observe,
        own.evaluation,
        own.bits,
        own.scored,
        own.tested,
    )
    recorder.attach(server, parties)
    fusion = own.build.fusion_network(  # as wide as at the start
        sum(server.sizes.values()), n_outputs(problem.task, problem.n_classes)
    )
    config = clamp_batch(settings.config, len(problem.y_train))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own.build.seed)  # a user's dropout and the like
        keeper = keeper_of(recorder)  # which may put back torch's state of a break
        run = methods.get(settings.method).run
        fusion = run(server, fusion, own.labels, config, recorder, keeper)
    of_server = numbers.server_numbers(
        own.build.seed,
        server,
        recorder.recorded(),
        **{name: amount() for name, amount in communication.items()},
    )
    trees = numbers.trees_of(fusion, server)
    return FinishedSeed(fusion, of_server | trees, recorder.state.means)
