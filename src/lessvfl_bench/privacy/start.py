"""Labels from the first gradients, by the first weights of the fusion network.

Were these drawn from the seed of the run, which all know, every party could draw them
too, and read the error of each row off its first gradient. No label needs to be known.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lessvfl import methods
from lessvfl.core.keeper import Keeper
from lessvfl.core.network import MLP
from lessvfl.core.plans import SECRET
from lessvfl.data import Problem
from lessvfl.run.build import Builder, clamp_batch, n_outputs
from lessvfl.run.simulate import Job
from lessvfl.terms import PartyId
from lessvfl.wire import messages
from lessvfl.wire.inprocess import InProcess
from lessvfl.wire.ledger import Ledger
from lessvfl.wire.parties import Parties
from lessvfl_bench.privacy.labels import Judge, is_seen, two_sides
from lessvfl_bench.privacy.traffic import AnyArray, Recording, Shared, gradients_of

START = "labels by first weights of the fusion network"
N_SERVERS = 16  # for each seed


def by_first_weights(first: AnyArray, weights: AnyArray) -> AnyArray:
    """Score rows by dL/dz, found by dL/dh (N, E) = dL/dz W, with weights W (C, E)."""
    slopes = np.nan_to_num(first) @ np.linalg.pinv(weights)
    return two_sides(-slopes[:, 0]) if slopes.shape[1] == 1 else -slopes


def measure(
    job: Job, problem: Problem, y: AnyArray, seed: int
) -> list[dict[str, float]]:
    """Have each party attack first gradients of servers with secrets of their own.

    Weights that are none of theirs say as often the other label as the right one, of
    all rows at once: hence many servers. Without gradients there is nothing to attack.
    """
    found = []
    public = Builder(job.settings, seed, "cpu")
    for number in range(N_SERVERS):
        secret = SECRET + N_SERVERS * seed + number
        build = Builder(job.settings, seed, "cpu", private=secret)
        recording, sizes = first_step(job, problem, build)
        for party, weights in first_weights(public, problem, sizes).items():
            looks = gradients_of(recording, Shared.of(problem, seed), party)
            if not looks:
                return []
            first = next(iter(looks.values()))
            judge = Judge.of(is_seen(first), y, problem.n_classes, seed)
            found.append(judge.guessed(by_first_weights(first, weights)))
    return found


def first_weights(
    build: Builder, problem: Problem, sizes: Mapping[PartyId, int]
) -> dict[PartyId, AnyArray]:
    """Return by party what the fusion network does to components, (C, E), at first.

    Of several layers the product of all weights.
    """
    outputs = n_outputs(problem.task, problem.n_classes)
    net = build.fusion_network(sum(sizes.values()), outputs)
    assert isinstance(net, MLP)
    layers = [weights.detach().numpy() for weights in reversed(net.weights)]
    places = np.cumsum(list(sizes.values()))[:-1]
    parts = np.split(functools.reduce(np.matmul, layers), places, axis=1)
    return dict(zip(sizes, parts, strict=True))


def first_step(
    job: Job, problem: Problem, build: Builder
) -> tuple[Recording, dict[PartyId, int]]:
    """Run a method until gradients were sent; return messages, and parties' widths."""
    labels = build.server_labels(problem)
    parties = [
        build.party(
            table.name,
            (build.rows(table.X_train), build.rows(table.X_test)),
            table.groups,
            table.features,
            blocks=labels.blocks,
        )
        for table in problem.parties
    ]
    recording, names = Recording(), [party.name for party in parties]
    inner = InProcess({party.name: party.handle for party in parties})
    server = Parties(_FirstStep(recording.around(inner)), names, Ledger())
    sizes = dict(server.sizes)
    outputs = n_outputs(problem.task, problem.n_classes)
    fusion = build.fusion_network(sum(sizes.values()), outputs)
    config = clamp_batch(job.settings.config, len(problem.y_train))
    run = methods.get(job.settings.method).run
    try:
        run(server, fusion, labels, config, lambda event: None, Keeper())
    except _OverError:
        pass
    return recording, sizes


class _OverError(Exception):
    """The first gradients were sent."""


@dataclass
class _FirstStep:
    """A transport that ends a run once it has carried gradients."""

    inner: messages.Transport

    def exchange(
        self, requests: Mapping[PartyId, messages.Request]
    ) -> dict[PartyId, messages.Reply]:
        replies = self.inner.exchange(requests)
        if any(isinstance(r, messages.Descend) for r in requests.values()):
            raise _OverError
        return replies

    def close(self) -> None:
        self.inner.close()
