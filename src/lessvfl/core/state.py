"""State as a value: what changes in a run, written as tensors by name and plain values.

A state is a dataclass of tensors, arrays, numbers, texts and None, and of lists,
mappings and dataclasses of these. Whatever changes between two steps is in one of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np
import torch
from torch import Tensor

S = TypeVar("S")


def split_state(state: object) -> tuple[dict[str, Tensor], Any]:
    """Split a state into tensors by dotted name, and its plain values.

    In the values the name of a tensor stands in its place.

    >>> tensors, values = split_state({"net": [torch.ones(2)], "step": 3})
    >>> list(tensors), values
    (['net.0'], {'net': ['net.0'], 'step': 3})
    """
    tensors: dict[str, Tensor] = {}

    def plain(value: Any, *place: str) -> Any:
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
        if isinstance(value, Tensor):
            name = ".".join(place)
            tensors[name] = value.detach()
            return name
        if isinstance(value, Counter):
            value = list(value.items())
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            value = {name: getattr(value, name) for name in names}
        if isinstance(value, Mapping):
            return {str(k): plain(part, *place, str(k)) for k, part in value.items()}
        if isinstance(value, list | tuple):
            return [plain(part, *place, str(i)) for i, part in enumerate(value)]
        return value

    return tensors, plain(state)


def join_state(kind: type[S], tensors: Mapping[str, Tensor], values: Any) -> S:
    """Return the state of a kind that :func:`split_state` split; tensors are copied.

    >>> join_state(dict[str, Tensor], {"net": torch.ones(2)}, {"net": "net"})
    {'net': tensor([1., 1.])}
    """

    def part(kind: Any, value: Any) -> Any:
        if get_origin(kind) is Counter:
            (key,) = get_args(kind)
            return Counter({msgspec.convert(name, key): n for name, n in value})
        tensor = tensors[value].clone()
        return tensor if kind is Tensor else tensor.numpy()

    return msgspec.convert(values, kind, dec_hook=part, str_keys=True)
