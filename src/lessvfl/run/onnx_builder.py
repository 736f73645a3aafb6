"""Building an ONNX graph step by step; the one place that calls the package onnx."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl import __version__
from lessvfl.errors import ConfigError
from lessvfl.run.record import dumps

EXTRA = "onnx"
OPSET, ML_OPSET, IR_VERSION = 17, 3, 8  # of onnx 1.12, so that old runtimes read them
N_ROWS = "N"

Operand = str | float | NDArray[Any]  # the name of a value, or a constant


def package(name: str) -> Any:
    """Return the module `name` of onnx, or refuse with how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(
            "Export to ONNX needs the package 'onnx' of the extra "
            f"'{EXTRA}', as in pip install 'lessvfl[{EXTRA}]'. Got no such package."
        ) from None


class GraphBuilder:
    """An ONNX graph under construction; values go by the names they have in it.

    `taken` are names of the user's, which no value of ours may have.
    """

    def __init__(self, taken: Collection[str], owner: str) -> None:
        if "" in taken:
            raise ConfigError(
                f"Every input of the graph of {owner} must have a name. Got ''."
            )
        self.owner = owner
        self._onnx = package("onnx")
        self._helper = self._onnx.helper
        self._taken = set(taken)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def _name(self, wanted: str) -> str:
        """Return a name that nothing else has."""
        while wanted in self._taken:
            wanted += "_"
        self._taken.add(wanted)
        return wanted

    def _kind(self, dtype: Any) -> Any:
        return self._helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def _info(self, name: str, dtype: Any, shape: Sequence[int | str]) -> Any:
        return self._helper.make_tensor_value_info(name, self._kind(dtype), shape)

    def input(self, name: str, dtype: Any, shape: Sequence[int | str]) -> str:
        """Add an input under the user's own name, or one of ours."""
        self._inputs.append(self._info(name, dtype, shape))
        return name

    def output(self, wanted: str, value: str, dtype: Any, *width: int) -> None:
        """Give a value out; where a column has that name, with ``_`` at its end."""
        name = self._name(wanted)
        self._nodes.append(self._helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._info(name, dtype, [N_ROWS, *width]))

    def add(self, operator: str, *inputs: Operand, **attributes: Any) -> str:
        """Add a step; return the name of what it gives.

        A whole number among the inputs is an int64, another one a double.
        """
        names = [
            value if isinstance(value, str) else self.constant(np.asarray(value))
            for value in inputs
        ]
        name = self._name(f"step{len(self._nodes)}")
        node = self._helper.make_node(operator, names, [name], **attributes)
        self._nodes.append(node)
        return name

    def constant(self, values: NDArray[Any]) -> str:
        """Add a constant that several steps take; return its name."""
        name = self._name(f"constant{len(self._constants)}")
        self._constants.append(self._onnx.numpy_helper.from_array(values, name))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Change the number format of a value."""
        return self.add("Cast", value, to=self._kind(dtype))

    def flat(self, value: str) -> str:
        """Turn (N, 1) into (N,)."""
        return self.add("Squeeze", value, np.array([1]))

    def inline(self, model: Any, x: str) -> str:
        """Add the steps of another model with one input `x`; return its output."""
        prefix = self._name("module")
        while any(name.startswith(f"{prefix}/") for name in self._taken):
            prefix = self._name(prefix)
        graph = package("onnx.compose").add_prefix(model, f"{prefix}/").graph
        self._constants += graph.initializer
        entry = self._helper.make_node("Identity", [x], [graph.input[0].name])
        self._nodes += [entry, *graph.node]
        return str(graph.output[0].name)

    def model(self, about: Mapping[str, Any]) -> bytes:
        """Return the bytes of the ONNX file, with `about` as JSON in its metadata."""
        helper = self._helper
        graph = helper.make_graph(
            self._nodes, "lessvfl", self._inputs, self._outputs, self._constants
        )
        opsets = [("", OPSET), ("ai.onnx.ml", ML_OPSET)]
        model = helper.make_model(
            graph,
            producer_name="lessvfl",
            producer_version=__version__,
            opset_imports=[helper.make_opsetid(*pair) for pair in opsets],
            ir_version=IR_VERSION,
        )
        helper.set_model_props(model, {k: dumps(v) for k, v in about.items()})
        self._onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())
