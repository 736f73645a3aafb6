"""What a ``torch.nn.Module`` of the user's does with its input, and cuts of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lessvfl.errors import NetworkError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


LayerCall = tuple[nn.Module, Tensor, Any]  # a layer, its input and its output


@dataclass(frozen=True)
class ModuleView:
    """What a module does with its input, as it shows when it is called."""

    first: str  # name of the first layer
    column_slots: Tensor
    n_outputs: int
    last: str | None  # name of a final Linear whose output is the module's

    @classmethod
    def of(cls, module: nn.Module, n_columns: int, owner: str) -> ModuleView:
        """Find the input groups of a module, or refuse it in one sentence."""
        names = {layer: name for name, layer in module.named_modules()}
        like = next(module.parameters(), torch.zeros(()))
        probe = torch.arange(2.0 * n_columns, dtype=like.dtype, device=like.device)
        probe = probe.view(2, n_columns)
        was_training = module.training
        module.eval()
        output, calls = _call(module, probe, owner)
        first, seen = _first_layer(calls, owner)
        column_slots = _column_slots(first, seen, probe, owner)
        _refuse_second_use(module, names[first], probe, owner)
        if not isinstance(output, Tensor) or output.dim() != 2:
            got = getattr(output, "shape", type(output).__name__)
            raise NetworkError(
                f"The module of {owner} must return one tensor of shape (n, "
                f"components). Got {got}."
            )
        layer, _, result = calls[-1]
        final = isinstance(layer, nn.Linear) and layer is not first and result is output
        module.train(was_training)
        last = names[layer] if final else None
        return cls(names[first], column_slots, output.shape[1], last)


def _call(module: nn.Module, probe: Tensor, owner: str) -> tuple[Any, list[LayerCall]]:
    """Return what a module makes of rows, and the calls of its layers with weights."""
    calls: list[LayerCall] = []

    def remember(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        calls.append((layer, inputs[0].detach().clone(), output))

    handles = [
        layer.register_forward_hook(remember)
        for layer in module.modules()
        if any(True for _ in layer.parameters(recurse=False))
    ]
    try:
        with torch.no_grad():
            return module(probe), calls
    except Exception as problem:
        raise NetworkError(
            f"The module of {owner} must accept a batch of shape (n, {probe.shape[1]}"
            f"). Got {type(problem).__name__}: {str(problem).splitlines()[0]}"
        ) from None
    finally:
        for handle in handles:
            handle.remove()


def _first_layer(calls: list[LayerCall], owner: str) -> tuple[nn.Module, Tensor]:
    """Return the first layer with weights and its input; NetworkError if unfit."""
    got = "a module without such a layer"
    if calls:
        first, seen, _ = calls[0]
        is_whole = not isinstance(first, _CONVOLUTIONS) or first.groups == 1
        if isinstance(first, (nn.Linear, *_CONVOLUTIONS)) and is_whole:
            return first, seen
        got = repr(first)
    raise NetworkError(
        f"The input groups of the module of {owner} cannot be found: it must have a "
        "Linear or Conv layer with groups=1 as its first layer with weights. "
        f"Got {got}."
    )


def _column_slots(first: nn.Module, seen: Tensor, probe: Tensor, owner: str) -> Tensor:
    """Return the slot of the first layer that every column takes."""
    row = seen.view(2, -1)[0] if seen.shape[0] == 2 else seen.reshape(-1)
    if not torch.equal(row.sort().values, probe[0]):
        raise NetworkError(
            f"The input groups of the module of {owner} cannot be found: its first "
            "layer must see every input column once, unchanged but for its shape. "
            "Got values that were changed, repeated or left out before it."
        )
    axis = seen.dim() - 1 if isinstance(first, nn.Linear) else 1
    grid = torch.arange(seen.shape[axis], device=probe.device)
    grid = grid.view([-1 if a == axis else 1 for a in range(seen.dim())])
    slots = grid.expand(1, *seen.shape[1:]).reshape(-1)
    column_slots = torch.empty_like(slots)
    column_slots[row.long()] = slots
    return column_slots


def weight_of(layer: str) -> str:
    """Return the name of a layer's weights; the module itself has no name."""
    return f"{layer}.weight" if layer else "weight"


def _refuse_second_use(
    module: nn.Module, first: str, probe: Tensor, owner: str
) -> None:
    """With the first layer's weights at zero nothing of the input may come through."""
    name = weight_of(first)
    silenced = {name: torch.zeros_like(dict(module.named_parameters())[name])}
    with torch.no_grad():
        here = functional_call(module, silenced, (probe,))
        there = functional_call(module, silenced, (-probe - 1.5,))
    if not torch.equal(here, there):
        raise NetworkError(
            f"The module of {owner} uses its raw input a second time: every path from "
            f"an input must go through its first layer '{first}', or a removed feature "
            "would still act. Got an output that depends on the input without it."
        )


def _same_kind(old: Tensor, values: Tensor) -> nn.Parameter:
    """Return a parameter with new values, frozen if the old one was."""
    return nn.Parameter(values, requires_grad=old.requires_grad)


def cut_inputs(module: nn.Module, first: str, keep: Tensor) -> nn.Module:
    """Return a copy of a module whose first layer takes only these slots."""
    module = copy.deepcopy(module)
    layer = module.get_submodule(first)
    assert isinstance(layer, (nn.Linear, *_CONVOLUTIONS))
    n_before = layer.weight.shape[1]
    layer.weight = _same_kind(layer.weight, layer.weight.detach()[:, keep])
    attribute = "in_features" if isinstance(layer, nn.Linear) else "in_channels"
    setattr(layer, attribute, len(keep))
    for part in module.modules():
        if isinstance(part, nn.Unflatten) and part.unflattened_size[0] == n_before:
            part.unflattened_size = (len(keep), *part.unflattened_size[1:])
    return module


def cut_outputs(module: nn.Module, last: str, keep: Tensor) -> nn.Module:
    """Return a copy of a module whose final Linear gives only these outputs."""
    module = copy.deepcopy(module)
    layer = module.get_submodule(last)
    assert isinstance(layer, nn.Linear)
    layer.weight = _same_kind(layer.weight, layer.weight.detach()[keep])
    if layer.bias is not None:
        layer.bias = _same_kind(layer.bias, layer.bias.detach()[keep])
    layer.out_features = len(keep)
    return module
