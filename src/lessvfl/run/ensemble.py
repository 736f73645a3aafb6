"""Models of several seeds as one: networks side by side, whose outputs are averaged.

Layers side by side are one network again: a party's takes the features that any seed
kept and gives the components of all of them, and the server's averages what the seeds'
own say. So whatever takes a model takes an ensemble too. The seeds must have been
trained on the same rows, so that columns are prepared in the same way.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lessvfl.core import bootstrap, metrics
from lessvfl.core.network import MLP, Network
from lessvfl.data import Encoding, Problem
from lessvfl.data.column import EncodedColumn
from lessvfl.errors import ConfigError
from lessvfl.run.fitted import FittedModel, FittedParty, FittedServer
from lessvfl.run.network_files import Shape
from lessvfl.terms import PartyId

S = TypeVar("S", bound=FittedServer)
ALIKE = ("task", "label_names", "party_names", "label_shift", "label_scale")


def merge_parties(seeds: Sequence[FittedParty]) -> FittedParty:
    """Return one party's networks of several seeds as one, with all their outputs."""
    first, columns = seeds[0], _columns(seeds)
    encoding = Encoding(first.name, tuple(columns.values()))
    widths = [column.width for column in columns.values()]
    *begins, n_inputs = itertools.accumulate([0, *widths])
    starts = dict(zip(columns, begins, strict=True))
    layers, pieces, shares = [], [], []
    for seed in seeds:
        places = [
            starts[column.name] + place
            for column in seed.encoding.columns
            for place in range(column.width)
        ]
        (weights, bias), *deeper = _layers(seed.net, seed.constant)
        if weights.dim() == 2:  # else of every column its value, then its shares
            weights = weights.unsqueeze(2)
        layers.append([(_spread(weights[..., 0], places, n_inputs), bias), *deeper])
        shares.append(_spread(weights[..., 1:], places, n_inputs))
        if isinstance(seed.net, MLP) and seed.net.pieces is not None:
            pieces.append(_spread(seed.net.pieces[None], places, n_inputs)[0])
    net = _side_by_side(layers, first.net)
    if pieces:
        net = _curved(net, torch.cat(pieces, dim=1), shares)
    constant = None
    if all(seed.constant is not None for seed in seeds):
        constant = net(torch.zeros(1, n_inputs, dtype=net.weights[0].dtype))[0]
        constant = constant.detach()
    kept = encoding.features
    removed = dict.fromkeys(name for seed in seeds for name in seed.removed)
    return FittedParty(
        name=first.name,
        kept=kept,
        removed=tuple(name for name in removed if name not in kept),
        encoding=encoding,
        net=net,
        shape=Shape.of(net),
        constant=constant,
    )


def merge_servers(seeds: Sequence[S]) -> S:
    """Return fusion networks of several seeds as one that averages their outputs."""
    first = seeds[0]
    for name in ALIKE:
        if any(getattr(seed, name) != getattr(first, name) for seed in seeds):
            raise _unlike(f"'{name}'")
    sizes = [sum(seed.sizes[p] for seed in seeds) for p in range(len(first.sizes))]
    begins = [*itertools.accumulate([0, *sizes])]
    layers = []
    for seed in seeds:
        places: list[int] = []
        for p, size in enumerate(seed.sizes):
            places += range(begins[p], begins[p] + size)
            begins[p] += size
        (weights, bias), *deeper = _layers(seed.fusion)
        layers.append([(_spread(weights, places, sum(sizes)), bias), *deeper])
    fusion = _side_by_side(layers, first.fusion, average=True)
    return dataclasses.replace(
        first,
        sizes=tuple(sizes),
        fusion=fusion,
        fusion_shape=Shape.of(fusion),
        means=_joined([seed.means for seed in seeds]),
        constants=_joined([seed.constants for seed in seeds]),
    )


def merge_models(seeds: Sequence[FittedModel]) -> FittedModel:
    """Return models of several seeds as one."""
    every = zip(*(seed.parties for seed in seeds), strict=True)
    parties = tuple(merge_parties(one) for one in every)
    return dataclasses.replace(merge_servers(seeds), parties=parties)


def scores(
    problem: Problem, seeds: Sequence[int], outputs: Sequence[Tensor | None]
) -> dict[str, Any]:
    """Return the test scores of the mean of what seeds predict, with their intervals.

    `outputs` are of every seed those of its network for the test rows, (n, outputs).
    """
    known = [z.cpu() for z in outputs if z is not None and len(z)]
    if len(known) < len(seeds):
        return {"seeds": [*seeds], "scores": {}, "intervals": None}
    z = torch.stack(known).mean(dim=0)
    y = torch.as_tensor(problem.y_test)
    y = y.to(z.dtype) if problem.task == "regression" else y.long()
    offsets = None
    if problem.threshold is not None:
        moved = metrics.decision_offsets(problem.threshold, z.shape[1])
        offsets = torch.tensor(moved, dtype=z.dtype)
    measured = metrics.measure(
        z, y, problem.task, offsets=offsets, positive=problem.positive
    )
    values = {name: metrics.defined(float(value)) for name, value in measured.items()}
    rows = bootstrap.ResampledRows(
        y, problem.task, problem.positive, offsets, problem.test_blocks
    )
    intervals, _ = bootstrap.score_intervals(rows, [z], [values], problem.score)
    return {"seeds": [*seeds], "scores": values, "intervals": intervals}


# ------------------------------------------------------------------------------- layers

NetLayer = tuple[Tensor, Tensor]  # weights (out, in) and biases (out,)


def _unlike(what: str) -> ConfigError:
    return ConfigError(
        "The seeds of an ensemble must have been trained on the same rows, with "
        f"'ensemble'. Got others: they differ in {what}."
    )


def _layers(net: Network, constant: Tensor | None = None) -> list[NetLayer]:
    """Return the layers of a network, the last one such that it gives the constant."""
    if not isinstance(net, MLP):
        raise ConfigError(
            "An ensemble is made of the networks that lessvfl makes itself. Got "
            f"{type(net).__name__}."
        )
    pairs = zip(net.weights, net.biases, strict=True)
    layers = [(w.detach().clone(), b.detach().clone()) for w, b in pairs]
    if constant is not None:
        last, _ = layers[-1]
        layers[-1] = last.new_zeros(len(constant), last.shape[1]), constant
    return layers


def _columns(seeds: Sequence[FittedParty]) -> dict[str, EncodedColumn]:
    """Return by name the columns that any seed takes; they must be prepared alike."""
    by_feature: dict[str, dict[str, EncodedColumn]] = {}
    for seed in seeds:
        for column in seed.encoding.columns:
            known = by_feature.setdefault(column.feature, {})
            if known.setdefault(column.name, column) != column:
                raise _unlike(f"column '{column.name}' of party '{seed.name}'")
    return {name: c for columns in by_feature.values() for name, c in columns.items()}


def _spread(weights: Tensor, places: Sequence[int], n_inputs: int) -> Tensor:
    """Return weights (out, in, ...) at their places among more, zero elsewhere."""
    wide = weights.new_zeros(len(weights), n_inputs, *weights.shape[2:])
    wide[:, list(places)] = weights
    return wide


def _side_by_side(
    networks: Sequence[Sequence[NetLayer]], like: Network, average: bool = False
) -> MLP:
    """Return networks of the same inputs as one, its outputs all theirs or the mean."""
    assert isinstance(like, MLP)
    n, depth = len(networks), len(networks[0])
    weights, biases = [], []
    for layer, every in enumerate(zip(*networks, strict=True)):
        blocks, bias = [w for w, _ in every], torch.cat([b for _, b in every])
        if layer == 0:
            whole = torch.cat(blocks)
        else:
            whole = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        if average and layer == depth - 1:
            whole = whole.view(n, -1, whole.shape[1]).mean(dim=0)
            bias = bias.view(n, -1).mean(dim=0)
        weights.append(whole)
        biases.append(bias)
    return MLP(weights, biases, like.activation)


def _curved(net: MLP, pieces: Tensor, shares: Sequence[Tensor]) -> MLP:
    """Return a network with the pieces of all seeds, each with weights of its own."""
    net = net.curved(pieces)
    row, place = 0, 1
    with torch.no_grad():
        for weights in shares:  # (out, in, k)
            n_out, _, k = weights.shape
            net.weights[0][row : row + n_out, :, place : place + k] = weights
            row, place = row + n_out, place + k
    return net


def _joined(
    of_seeds: Sequence[Mapping[PartyId, Tensor]],
) -> dict[PartyId, Tensor]:
    """Return by party the tensors that all seeds have of it, one after the other."""
    return {
        party: torch.cat([of_parties[party] for of_parties in of_seeds])
        for party in of_seeds[0]
        if all(party in of_parties for of_parties in of_seeds)
    }
