"""One function runs a seed, over any channel: in process, between machines, FLARE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lessvfl import methods
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import Network
from lessvfl.run import numbers
from lessvfl.run.build import Builder, clamp_batch, n_outputs
from lessvfl.run.recorder import Recorder


def run_seed(
    build: Builder,
    labels: Labels,
    recorder: Recorder,
    keeper_of: Callable[[], Keeper],
    **communication: Callable[[], int],
) -> tuple[Network, dict[str, Any]]:
    """Run a method with parties that are there, from its start or a checkpoint.

    `keeper_of` makes what keeps checkpoints, and may restore torch's random state;
    `communication` has functions that are called at the end for further entries of the
    bill. Returns the fusion network and the server's numbers.
    """
    settings, problem, server = build.settings, recorder.problem, recorder.server
    fusion = build.fusion_network(  # as wide as at the start
        sum(server.sizes.values()), n_outputs(problem.task, problem.n_classes)
    )
    config = clamp_batch(settings.config, len(problem.y_train))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(build.seed)  # a user's dropout and the like
        run = methods.get(settings.method).run
        fusion = run(server, fusion, labels, config, recorder, keeper_of())
    of_server = numbers.server_numbers(
        build.seed,
        server,
        problem,
        recorder.state,
        evaluation=recorder.evaluation,
        **{name: amount() for name, amount in communication.items()},
    )
    return fusion, of_server | numbers.trees_of(fusion, server)
