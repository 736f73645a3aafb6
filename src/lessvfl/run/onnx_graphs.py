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
    ANSWER,
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
    constant = None
    if party.constant is not None:
        constant = party.constant.detach().cpu().numpy()[None]
    elif isinstance(party.net, Splits) and not party.encoding.columns:
        constant = np.zeros((1, 1), ANSWER)
    if constant is not None:
        rows, width = graph.input("rows", np.int64, [1]), constant.shape[1]
        shape = graph.add("Concat", rows, np.array([width]), axis=0)
        repeated = graph.add("Expand", constant, shape)
        graph.output("embedding", repeated, constant.dtype, width)
        return graph.model(about)
    x = graph.cast(_encode(graph, party.encoding), _format_of(party.net))
    embedding = _run_network(graph, party.net, x, len(party.net.column_slots))
    dtype = _format_of_embeddings(party.net)
    graph.output("embedding", embedding, dtype, party.net.n_outputs)
    return graph.model(about)


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
        scaled = graph.add("Mul", z, float(model.label_scale))
        value = graph.add("Add", scaled, float(model.label_shift))
        graph.output("value", graph.flat(value), np.float64)
        return graph.model(about)
    offsets = np.array(decision_offsets(model.threshold, model.fusion.n_outputs))
    if model.task == "binary":
        positive = graph.add("Sigmoid", z)
        negative = graph.add("Sub", 1.0, positive)
        chances = graph.add("Concat", negative, positive, axis=1)
        above = graph.add("Greater", graph.add("Add", z, offsets), 0.0)
        place = graph.cast(graph.flat(above), np.int64)
    else:
        chances = graph.add("Softmax", z, axis=1)
        decided = graph.add("Add", z, offsets)
        place = graph.add("ArgMax", decided, axis=1, keepdims=0)
    graph.output("probabilities", chances, np.float64, len(model.label_names))
    graph.output("class", place, np.int64)
    names = np.array(model.label_names, dtype=object)
    graph.output("label", graph.add("Gather", names, place, axis=0), np.object_)
    return graph.model({**about, "label_names": list(model.label_names)})


# -------------------------------------------------------------------------- preparation


def _encode(graph: GraphBuilder, encoding: Encoding) -> str:
    """Write the encoding of a party's columns; return the name of the matrix (N, d)."""
    columns = encoding.columns
    inputs = []
    for column in columns:
        dtype = np.object_ if column.kind == "categorical" else np.float64
        cells = graph.input(column.name, dtype, [N_ROWS, 1])
        if column.kind != "categorical":
            for mark in column.missing:  # numbers that stand for a missing cell
                is_mark = graph.add("Equal", cells, float(mark))
                cells = graph.add("Where", is_mark, np.nan, cells)
        inputs.append(cells)
    starts = np.cumsum([0, *(column.width for column in columns)])
    blocks: list[str] = []
    places: list[int] = []  # in the matrix, of every column of the blocks
    plain = [i for i, c in enumerate(columns) if _writer(c) is None]
    if plain:
        cells = graph.add("Concat", *(inputs[i] for i in plain), axis=1)
        numbers = [columns[i] for i in plain]
        blocks.append(_scale(graph, _fill(graph, cells, numbers), numbers))
        places += [int(starts[i]) for i in plain]
    # That of a category is one of its columns.
    flags = [i for i, c in enumerate(columns) if c.flag and c.kind != "categorical"]
    for i, column in enumerate(columns):
        if (write := _writer(column)) is not None:
            blocks.append(write(graph, inputs[i], column))
            places += range(starts[i], starts[i + 1] - (i in flags))
    if flags:
        cells = graph.add("Concat", *(inputs[i] for i in flags), axis=1)
        blocks.append(graph.cast(graph.add("IsNaN", cells), np.float64))
        places += [int(starts[i + 1]) - 1 for i in flags]
    matrix = graph.add("Concat", *blocks, axis=1)
    if places == sorted(places):
        return matrix
    return graph.add("Gather", matrix, np.argsort(places), axis=1)


def _writer(column: EncodedColumn) -> Callable[..., str] | None:
    """Return what writes a column that is not one number, shifted and scaled."""
    if column.kind in ("date", "categorical"):
        return _calendar if column.kind == "date" else _one_hot
    return _number_of_heavy_tails if column.knots else None


def _fill(graph: GraphBuilder, cells: str, columns: Sequence[EncodedColumn]) -> str:
    fill = np.array([[column.fill for column in columns]], dtype=np.float64)
    return graph.add("Where", graph.add("IsNaN", cells), fill, cells)


def _scale(graph: GraphBuilder, cells: str, columns: Sequence[EncodedColumn]) -> str:
    shift = np.array([[column.shift for column in columns]])
    scale = np.array([[column.scale for column in columns]])
    return graph.add("Div", graph.add("Sub", cells, shift), scale)


def _number_of_heavy_tails(
    graph: GraphBuilder, cells: str, column: EncodedColumn
) -> str:
    """Write the lines between knots: the first level, and the rise up to a cell.

    Of the rise from each knot to the next a cell has a share, between 0 and 1.
    """
    knots, levels = np.array([column.knots]), np.array([column.levels])
    above = graph.add("Sub", _fill(graph, cells, [column]), knots[:, :-1])
    share = graph.add("Div", above, np.diff(knots))
    share = graph.add("Min", graph.add("Max", share, 0.0), 1.0)
    rise = graph.add("MatMul", share, np.diff(levels).T)
    return _scale(graph, graph.add("Add", rise, levels[:, :1]), [column])


def _calendar(graph: GraphBuilder, cells: str, column: EncodedColumn) -> str:
    """Write day, month, weekday and days since the first of a date.

    In whole numbers, of a year that begins in March: the 146,097 days of 400 years, in
    which leap years repeat, the day among them, its year, the day of that year, and a
    month (m' = 0 for March) by its share of the 153 days of every five months.
    """
    add = graph.add
    full = add("Floor", _fill(graph, cells, [column]))
    days = graph.cast(full, np.int64)
    n = add("Mod", add("Add", days, 719468), 146097)
    leaps = [add("Div", n, span) for span in (1460, 36524, 146096)]
    year = add("Sub", add("Add", add("Sub", n, leaps[0]), leaps[1]), leaps[2])
    year = add("Div", year, 365)
    past = add("Add", add("Mul", year, 365), add("Div", year, 4))
    day = add("Sub", n, add("Sub", past, add("Div", year, 100)))  # of the year
    month = add("Div", add("Add", add("Mul", day, 5), 2), 153)  # m'
    before = add("Div", add("Add", add("Mul", month, 153), 2), 5)
    parts = (
        add("Add", add("Sub", day, before), 1),
        add("Add", add("Mod", add("Add", month, 2), 12), 1),
        add("Mod", add("Add", days, 3), 7),  # 1970-01-01 was a Thursday
        add("Sub", days, int(column.first)),
    )
    values = graph.cast(add("Concat", *parts, axis=1), np.float64)
    shift, scale = np.array(column.parts).T
    return add("Div", add("Sub", values, shift[None]), scale[None])


def _one_hot(graph: GraphBuilder, cells: str, column: EncodedColumn) -> str:
    """Write the columns of a category: none is 1 where no training row has the text."""
    known = codes_of(column)
    missing = dict.fromkeys(("", *map(str, column.missing)), known.pop(None))
    codes = {str(text): code for text, code in known.items()} | missing
    code = graph.add(
        "LabelEncoder",
        cells,
        domain="ai.onnx.ml",
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=-1,
    )
    is_code = graph.add("Equal", code, np.arange(column.width)[None])
    return graph.cast(is_code, np.float64)


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
    for layer, (weights, bias) in enumerate(layers):
        if layer > 0:
            x = _activate(graph, net.activation, x, dtype)
        w, b = (t.detach().cpu().numpy() for t in (weights.flatten(1), bias))
        x = graph.add("Gemm", x, w, b, transB=1)
    return x


def _write_pieces(graph: GraphBuilder, pieces: NDArray[Any], x: str) -> str:
    """Write `with_pieces` of ``core/passes.py``, of pieces (in, k, 2)."""
    start, steepness = np.moveaxis(pieces, 2, 0)
    x = graph.add("Unsqueeze", x, np.array([2]))
    shares = graph.add("Mul", graph.add("Sub", x, start), steepness)
    shares = graph.add("Clip", shares, *np.array([0, 1], pieces.dtype))
    middle = (steepness > 0).astype(pieces.dtype) / 2
    both = graph.add("Concat", x, graph.add("Sub", shares, middle), axis=2)
    return graph.add("Flatten", both, axis=1)


def _activate(graph: GraphBuilder, name: str, x: str, dtype: np.dtype[Any]) -> str:
    """Write the activation `name` of ``core.passes.ACTIVATIONS`` for the value `x`."""
    one = np.array(1, dtype)
    if name == "none":
        return x
    if name == "silu":
        return graph.add("Mul", x, graph.add("Sigmoid", x))
    if name == "softplus":  # the operator of that name is missing in double
        small = graph.add("Exp", graph.add("Neg", graph.add("Abs", x)))
        more = graph.add("Log", graph.add("Add", small, one))
        return graph.add("Add", graph.add("Relu", x), more)
    if name == "gelu":
        half = graph.add("Mul", x, np.array(math.sqrt(0.5), dtype))
        part = graph.add("Erf", graph.cast(half, np.float32))  # missing in double
        both = graph.add("Add", graph.cast(part, dtype), one)
        return graph.add("Mul", graph.add("Mul", x, np.array(0.5, dtype)), both)
    return graph.add({"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu"}[name], x)


def _format_of(net: Network) -> np.dtype[Any]:
    """Return the number format of a network."""
    return np.dtype(str(net.input_weights.dtype).removeprefix("torch."))


def _format_of_embeddings(net: Network) -> np.dtype[Any]:
    """Return the number format of what a party's network gives, or the server's takes.

    What splits answer is 0 or 1, in one format whatever that of the run.
    """
    return ANSWER if isinstance(net, Splits | TreeSum) else _format_of(net)


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
            (output,) = evaluator(model).run(None, {"x": probe.numpy()})
        is_alike = np.allclose(output, expected, ALIKE, ALIKE)
        problem = "" if is_alike else "other numbers"
    except Exception as error:
        first, _, _ = str(error).strip().partition("\n")
        problem = f"{type(error).__name__}: {first.rstrip('.')}"
    if problem:
        raise NetworkError(
            f"The module of {owner} must be one that PyTorch can write as ONNX; "
            f"'--format safetensors' takes any. Got {problem}."
        )
    return model
