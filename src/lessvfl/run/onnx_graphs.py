"""ONNX graphs of a fitted model: one of each party, and one of the server.

A party's graph takes its raw columns, one input of shape (N, 1) each under the column's
own name: numbers, truth values and dates (days since 1970-01-01) as double, NaN where a
cell is missing, and texts as strings, "" where one is missing. Preparation is in
double, as in :class:`Encoding`; the network has the number format it was trained in.
The server's graph takes what those of the parties give, one input of shape (N, E_m)
under each party's name.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.core.lifted import Lifted
from lessvfl.core.metrics import decision_offsets
from lessvfl.core.network import MLP, Network
from lessvfl.core.trees.networks import Splits, TreeSum
from lessvfl.core.trees.votes import Votes, VoteSum
from lessvfl.data import EncodedColumn, Encoding
from lessvfl.data.encode import codes_of
from lessvfl.errors import NetworkError
from lessvfl.run.fitted import FittedParty, FittedServer
from lessvfl.run.onnx_builder import N_ROWS, OPSET, GraphBuilder, package
from lessvfl.run.onnx_trees import (
    SAID,
    write_splits,
    write_sum,
    write_vote_sum,
    write_votes,
)

ALIKE = 1e-4  # how far the traced graph of a module may be from the module


def party_graph(party: FittedParty) -> bytes:
    """Return the ONNX file of one party: raw columns in, ``embedding`` out.

    A party that kept nothing has no columns; its graph takes ``rows``, an int64 of
    shape (1,), and gives its constant that often.
    """
    graph = GraphBuilder(party.encoding.names, f"party '{party.name}'")
    about: dict[str, Any] = {"party": party.name, "features": list(party.kept)}
    if dates := [c.name for c in party.encoding.columns if c.kind == "date"]:
        about["days_since_1970_01_01"] = dates
    constant = _constant(party)
    if constant is not None:
        rows = graph.input("rows", np.int64, [1])
        width = graph.constant(np.array([constant.shape[1]]))
        shape = graph.add("Concat", rows, width, axis=0)
        found = graph.add("Expand", graph.constant(constant), shape)
        graph.output("embedding", found, constant.dtype, constant.shape[1])
        return graph.model(about)
    x = graph.cast(_encode(graph, party.encoding), _format_of(party.net))
    found = _run_network(graph, party.net, x, len(party.net.column_slots))
    dtype = _format_of_embeddings(party.net)
    graph.output("embedding", found, dtype, party.net.n_outputs)
    return graph.model(about)


def _constant(party: FittedParty) -> NDArray[Any] | None:
    """Return what a party gives of every row, (1, components); None: not the same."""
    if party.constant is not None:
        return np.asarray(party.constant.detach().cpu().numpy()[None])
    is_grown = isinstance(party.net, Splits)
    return None if not is_grown or party.encoding.columns else np.zeros((1, 1), SAID)


def fusion_graph(model: FittedServer) -> bytes:
    """Return the ONNX file of the server: embeddings in, predictions out.

    Classes: ``probabilities`` (N, C), ``class`` (N,), the place of the predicted one,
    and ``label`` (N,), its name. Numbers: ``value`` (N,).
    """
    widths = dict(zip(model.party_names, model.sizes, strict=True))
    graph = GraphBuilder(tuple(widths), "the server")
    dtype = _format_of_embeddings(model.fusion)
    inputs = [graph.input(name, dtype, [N_ROWS, n]) for name, n in widths.items()]
    whole = graph.add("Concat", *inputs, axis=1)
    z = _run_network(graph, model.fusion, whole, sum(widths.values()))
    z = graph.cast(z, np.float64)
    about = {"task": model.task, "parties": list(widths)}
    if model.task == "regression":
        scaled = graph.add("Mul", z, graph.constant(np.array(model.label_scale)))
        value = graph.add("Add", scaled, graph.constant(np.array(model.label_shift)))
        graph.output("value", graph.flat(value), np.float64)
        return graph.model(about)
    if model.task == "binary":
        positive = graph.add("Sigmoid", z)
        negative = graph.add("Sub", graph.constant(np.array(1.0)), positive)
        chances = graph.add("Concat", negative, positive, axis=1)
    else:
        chances = graph.add("Softmax", z, axis=1)
    graph.output("probabilities", chances, np.float64, len(model.label_names))
    offsets = np.array(decision_offsets(model.threshold, model.fusion.n_outputs))
    decided = graph.add("Add", z, graph.constant(offsets))
    if model.task == "binary":
        above = graph.add("Greater", decided, graph.constant(np.array(0.0)))
        place = graph.cast(graph.flat(above), np.int64)
    else:
        place = graph.add("ArgMax", decided, axis=1, keepdims=0)
    graph.output("class", place, np.int64)
    names = graph.constant(np.array(model.label_names, dtype=object))
    graph.output("label", graph.add("Gather", names, place, axis=0), np.object_)
    return graph.model({**about, "label_names": list(model.label_names)})


# -------------------------------------------------------------------------- preparation


def _encode(graph: GraphBuilder, encoding: Encoding) -> str:
    """Write the encoding of a party's columns; return the matrix, (N, d)."""
    columns = encoding.columns
    inputs = [
        graph.input(c.name, np.object_ if _is_text(c) else np.float64, [N_ROWS, 1])
        for c in columns
    ]
    inputs = [_blank(graph, cells, c) for cells, c in zip(inputs, columns, strict=True)]
    starts = np.cumsum([0, *(column.width for column in columns)])
    blocks: list[str] = []
    places: list[int] = []  # in the matrix, of every column of the blocks
    plain = [i for i, c in enumerate(columns) if _writer(c) is None]
    if plain:
        cells = graph.add("Concat", *(inputs[i] for i in plain), axis=1)
        blocks.append(_numbers(graph, cells, [columns[i] for i in plain]))
        places += [int(starts[i]) for i in plain]
    for i, column in enumerate(columns):
        if (write := _writer(column)) is None:
            continue
        blocks.append(write(graph, inputs[i], column))
        places += range(starts[i], starts[i + 1] - _has_flag(column))
    if flags := [i for i, c in enumerate(columns) if _has_flag(c)]:
        cells = graph.add("Concat", *(inputs[i] for i in flags), axis=1)
        blocks.append(graph.cast(graph.add("IsNaN", cells), np.float64))
        places += [int(starts[i + 1]) - 1 for i in flags]
    matrix = graph.add("Concat", *blocks, axis=1)
    if places == sorted(places):
        return matrix
    return graph.add("Gather", matrix, graph.constant(np.argsort(places)), axis=1)


def _is_text(column: EncodedColumn) -> bool:
    return column.kind == "categorical"


def _has_flag(column: EncodedColumn) -> bool:
    """Tell whether a flag is to be written besides; that of a category is one of it."""
    return column.flag and not _is_text(column)


def _blank(graph: GraphBuilder, cells: str, column: EncodedColumn) -> str:
    """Write NaN where a number stands for a missing cell."""
    for mark in () if _is_text(column) else column.missing:
        is_mark = graph.add("Equal", cells, graph.constant(np.array(float(mark))))
        cells = graph.add("Where", is_mark, graph.constant(np.array(np.nan)), cells)
    return cells


def _writer(column: EncodedColumn) -> Callable[..., str] | None:
    """Return what writes a column that is not one number, shifted and scaled."""
    if column.kind == "date":
        return _calendar
    if _is_text(column):
        return _one_hot
    return _number_of_heavy_tails if column.knots else None


def _fill(graph: GraphBuilder, cells: str, columns: Sequence[EncodedColumn]) -> str:
    fill = np.array([[column.fill for column in columns]], dtype=np.float64)
    return graph.add("Where", graph.add("IsNaN", cells), graph.constant(fill), cells)


def _scale(graph: GraphBuilder, cells: str, columns: Sequence[EncodedColumn]) -> str:
    shift = np.array([[column.shift for column in columns]])
    scale = np.array([[column.scale for column in columns]])
    moved = graph.add("Sub", cells, graph.constant(shift))
    return graph.add("Div", moved, graph.constant(scale))


def _numbers(graph: GraphBuilder, cells: str, columns: Sequence[EncodedColumn]) -> str:
    return _scale(graph, _fill(graph, cells, columns), columns)


def _number_of_heavy_tails(
    graph: GraphBuilder, cells: str, column: EncodedColumn
) -> str:
    """Write the lines between knots: the first level, and the rise up to a cell.

    Of the rise from each knot to the next a cell has a share, between 0 and 1.
    """
    knots, levels = np.array([column.knots]), np.array([column.levels])
    full = _fill(graph, cells, [column])
    above = graph.add("Sub", full, graph.constant(knots[:, :-1]))
    share = graph.add("Div", above, graph.constant(np.diff(knots)))
    zero, one = (graph.constant(np.array(end)) for end in (0.0, 1.0))
    share = graph.add("Min", graph.add("Max", share, zero), one)
    rise = graph.add("MatMul", share, graph.constant(np.diff(levels).T))
    return _scale(
        graph, graph.add("Add", rise, graph.constant(levels[:, :1])), [column]
    )


def _calendar(graph: GraphBuilder, cells: str, column: EncodedColumn) -> str:
    """Write day, month, weekday and days since the first of a date.

    In whole numbers, of a year that begins in March: the 146,097 days of 400 years, in
    which leap years repeat, the day among them, its year, the day of that year, and a
    month (m' = 0 for March) by its share of the 153 days of every five months.
    """

    def whole(value: int) -> str:
        return graph.constant(np.array(value))

    def sums(operator: str, first: str, *others: str | int) -> str:
        for other in others:
            right = whole(other) if isinstance(other, int) else other
            first = graph.add(operator, first, right)
        return first

    full = graph.add("Floor", _fill(graph, cells, [column]))
    days = graph.cast(full, np.int64)
    n = sums("Mod", sums("Add", days, 719468), 146097)
    leaps = [sums("Div", n, span) for span in (1460, 36524, 146096)]
    year = sums("Sub", sums("Add", sums("Sub", n, leaps[0]), leaps[1]), leaps[2])
    year = sums("Div", year, 365)
    past = sums("Add", sums("Mul", year, 365), sums("Div", year, 4))
    day = sums("Sub", n, sums("Sub", past, sums("Div", year, 100)))  # of the year
    month = sums("Div", sums("Add", sums("Mul", day, 5), 2), 153)  # m'
    before = sums("Div", sums("Add", sums("Mul", month, 153), 2), 5)
    parts = (
        sums("Add", sums("Sub", day, before), 1),
        sums("Add", sums("Mod", sums("Add", month, 2), 12), 1),
        sums("Mod", sums("Add", days, 3), 7),  # 1970-01-01 was a Thursday
        sums("Sub", days, int(column.first)),
    )
    values = graph.cast(graph.add("Concat", *parts, axis=1), np.float64)
    shift, scale = (graph.constant(one[None]) for one in np.array(column.parts).T)
    return graph.add("Div", graph.add("Sub", values, shift), scale)


def _one_hot(graph: GraphBuilder, cells: str, column: EncodedColumn) -> str:
    """Write the columns of a category: none is 1 where no training row has the text."""
    known = codes_of(column)
    missing = dict.fromkeys(("", *map(str, column.missing)), known.pop(None))
    codes = {str(text): code for text, code in known.items()} | missing
    found = graph.add(
        "LabelEncoder",
        cells,
        domain="ai.onnx.ml",
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=-1,
    )
    every = graph.constant(np.arange(column.width)[None])
    return graph.cast(graph.add("Equal", found, every), np.float64)


# ----------------------------------------------------------------------------- networks


def _run_network(graph: GraphBuilder, net: Network, x: str, n_columns: int) -> str:
    """Write a network; return its output."""
    dtype = _format_of(net)
    if isinstance(net, Lifted):
        model = _traced(net, n_columns, graph.owner)
        return graph.cast(graph.inline(model, graph.cast(x, np.float32)), dtype)
    if isinstance(net, Splits):
        return write_splits(graph, net, x)
    if isinstance(net, TreeSum):
        return graph.cast(write_sum(graph, net, x), dtype)
    if isinstance(net, Votes):
        return graph.cast(write_votes(graph, net, x), dtype)
    if isinstance(net, VoteSum):
        return graph.cast(write_vote_sum(graph, net, x), dtype)
    assert isinstance(net, MLP)
    layers = list(zip(net.weights, net.biases, strict=True))
    if net.is_linear:  # one product, in the order of sums that the network has
        whole = net.collapse()
        layers = [(whole[..., :-1], whole[..., -1])]
    if net.pieces is not None:
        x = _write_pieces(graph, net.pieces.cpu().numpy(), x)
    for layer, pair in enumerate(layers):
        if layer > 0:
            x = _activate(graph, net.activation, x, dtype)
        flat = (pair[0].detach().flatten(1), pair[1].detach())
        w, b = (graph.constant(values.cpu().numpy()) for values in flat)
        x = graph.add("Gemm", x, w, b, transB=1)
    return x


def _write_pieces(graph: GraphBuilder, pieces: NDArray[Any], x: str) -> str:
    """Write `with_pieces` of ``core/passes.py``, of pieces (in, k, 2)."""
    start, steepness = np.moveaxis(pieces, 2, 0)
    number = [graph.constant(np.array(value, pieces.dtype)) for value in (0, 1)]
    x = graph.add("Unsqueeze", x, graph.constant(np.array([2])))
    shares = graph.add("Sub", x, graph.constant(start))
    shares = graph.add("Mul", shares, graph.constant(steepness))
    shares = graph.add("Clip", shares, *number)
    middle = (steepness > 0).astype(pieces.dtype) / 2
    shares = graph.add("Sub", shares, graph.constant(middle))
    both = graph.add("Concat", x, shares, axis=2)
    return graph.add("Flatten", both, axis=1)


def _activate(graph: GraphBuilder, name: str, x: str, dtype: np.dtype[Any]) -> str:
    """Write an activation of ``core.passes.ACTIVATIONS``."""

    def number(value: float) -> str:
        return graph.constant(np.array(value, dtype=dtype))

    if name == "none":
        return x
    if name == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if name == "softplus":  # the operator of that name is missing in double
        small = graph.add("Exp", graph.add("Neg", graph.add("Abs", x)))
        more = graph.add("Log", graph.add("Add", small, number(1)))
        return graph.add("Add", graph.add("Relu", x), more)
    if name == "gelu":
        half = graph.add("Mul", x, number(math.sqrt(0.5)))
        part = graph.add("Erf", graph.cast(half, np.float32))  # missing in double
        both = graph.add("Add", graph.cast(part, dtype), number(1))
        return graph.add("Mul", graph.add("Mul", x, number(0.5)), both)
    return graph.add({"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu"}[name], x)


def _format_of(net: Network) -> np.dtype[Any]:
    """Return the number format of a network."""
    return np.dtype(str(net.input_weights.dtype).removeprefix("torch."))


def _format_of_embeddings(net: Network) -> np.dtype[Any]:
    """Return the number format of what a party's network gives, or the server's takes.

    What splits say is 0 or 1, in one format whatever that of the run.
    """
    return SAID if isinstance(net, Splits | TreeSum) else _format_of(net)


def _traced(net: Lifted, n_columns: int, owner: str) -> Any:
    """Return the ONNX model of a user's module, as PyTorch traces it in float32.

    Runtimes have few operators in double. A module whose graph gives something else
    than the module does is refused.
    """
    onnx = package("onnx")
    evaluator = package("onnx.reference").ReferenceEvaluator
    draws = torch.Generator().manual_seed(0)
    probe = torch.randn(3, n_columns, generator=draws)
    module = net.astype(torch.float32).module().eval()
    try:
        with warnings.catch_warnings(), TemporaryDirectory() as folder, torch.no_grad():
            warnings.simplefilter("ignore")
            path = Path(folder) / "module.onnx"
            torch.onnx.export(
                module,
                (probe[:2],),
                path,
                opset_version=OPSET,
                input_names=["x"],
                output_names=["y"],
                dynamic_axes={"x": {0: N_ROWS}, "y": {0: N_ROWS}},
                dynamo=False,  # the other way needs one more package
            )
            expected = module(probe).numpy()
            model = onnx.load(path)
            (found,) = evaluator(model).run(None, {"x": probe.numpy()})
        problem = "" if np.allclose(found, expected, ALIKE, ALIKE) else "other numbers"
    except Exception as error:
        first, _, _ = str(error).strip().partition("\n")
        problem = f"{type(error).__name__}: {first.rstrip('.')}"
    if problem:
        raise NetworkError(
            f"The module of {owner} must be one that PyTorch can write as ONNX; "
            f"'--format safetensors' takes any. Got {problem}."
        )
    return model
