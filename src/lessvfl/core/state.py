"""Lists of tensors as part of a saved state: by a name and their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def numbered(name: str, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return tensors by name and number.

    >>> list(numbered("net", [torch.ones(1), torch.ones(2)]))
    ['net.0', 'net.1']
    """
    return {f"{name}.{i}": tensor for i, tensor in enumerate(tensors)}


def by_number(tensors: Mapping[str, Tensor], name: str) -> list[Tensor]:
    """Return the tensors of a name, in the order of their numbers."""
    return [tensors[key] for key in sorted(tensors) if key.startswith(f"{name}.")]


def fill(params: Sequence[Tensor], tensors: Mapping[str, Tensor], name: str) -> None:
    """Put the tensors of a name into parameters, in place."""
    with torch.no_grad():
        for i, param in enumerate(params):
            param.copy_(tensors[f"{name}.{i}"])
