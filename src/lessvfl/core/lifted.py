"""Any ``torch.nn.Module`` of the user's as a network with a replica axis."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lessvfl.core.module_view import ModuleView, cut_inputs, cut_outputs, weight_of
from lessvfl.core.network import Network, kept_by_any, mask_left
from lessvfl.core.passes import Graph, Passes
from lessvfl.core.plans import stream
from lessvfl.errors import ConfigError, NetworkError

Factory = Callable[[int, int], nn.Module]


def _stack(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack one state a replica; parameters become leaves again."""
    stacked = {}
    for name, first in states[0].items():
        values = torch.stack([state[name].detach() for state in states])
        stacked[name] = values.requires_grad_(first.requires_grad)
    return stacked


def _make(factory: Factory | nn.Module, n_in: int, n_out: int, name: str) -> nn.Module:
    """Call the user's factory; whatever it raises becomes one sentence."""
    if isinstance(factory, nn.Module):
        return copy.deepcopy(factory)
    try:
        return factory(n_in, n_out)
    except Exception as problem:
        raise NetworkError(
            f"The network factory of {name} must take (n_inputs, n_outputs) = "
            f"({n_in}, {n_out}). Got {type(problem).__name__}: {problem}"
        ) from None


class Lifted:
    """Any module of the user's, replicated by stacking its state.

    `modules` are one for each replica, equal but for their weights; `owner` is whose
    network this is, for error messages.
    """

    def __init__(
        self,
        modules: list[nn.Module],
        owner: str,
        view: ModuleView,
        slot_mask: Tensor | None = None,
        output_mask: Tensor | None = None,
        scatter: tuple[Tensor, int] | None = None,
        outputs: Tensor | None = None,
    ) -> None:
        self.owner = owner
        self._view = view
        self._module = copy.deepcopy(modules[0])
        self._params = _stack([dict(m.named_parameters()) for m in modules])
        self._buffers = _stack([dict(m.named_buffers()) for m in modules])
        self._slot_mask = slot_mask  # (R, slots)
        self._output_mask = output_mask  # (R, n_outputs)
        self._scatter = scatter  # columns kept and their former number: zeros elsewhere
        self._outputs = outputs  # outputs kept by slicing
        self._mappable = len(modules) > 1 and self._maps()

    @classmethod
    def create(
        cls,
        factory: Factory | nn.Module,
        n_columns: int,
        n_outputs: int,
        seeds: tuple[int, ...],
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Lifted:
        """Build one module a seed; a module given as it is starts as it is."""
        made: dict[int, nn.Module] = {}
        for seed in set(seeds):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(stream(seed, "init", name).get_state())
                module = _make(factory, n_columns, n_outputs, name)
            if not isinstance(module, nn.Module):
                raise NetworkError(
                    f"The network factory of {name} must return a torch.nn.Module. "
                    f"Got {type(module).__name__}."
                )
            made[seed] = module.to(device, dtype)
        modules = [made[seed] for seed in seeds]
        network = cls(modules, name, ModuleView.of(modules[0], n_columns, name))
        if network.n_outputs != n_outputs:
            raise NetworkError(
                f"The module of {name} must return {n_outputs} components. "
                f"Got {network.n_outputs}."
            )
        return network

    def _maps(self) -> bool:
        """Tell whether vmap can map this module."""
        like = next(iter(self._params.values()))
        n_columns = len(self.column_slots)
        x = torch.zeros(self.n_replicas, 2, n_columns, dtype=like.dtype)
        buffers = {name: b.clone() for name, b in self._buffers.items()}
        was_training = self._module.training
        try:
            self._module.train(True)
            vmap(self._call_one)(self._params, buffers, self._spread(x.to(like.device)))
        except Exception:
            return False
        finally:
            self._module.train(was_training)
        return True

    def _call_one(
        self, params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor
    ) -> Tensor:
        out: Tensor = functional_call(self._module, (params, buffers), (x,))
        return out

    def _spread(self, x: Tensor) -> Tensor:
        if self._scatter is None:
            return x
        columns, n_before = self._scatter
        full = x.new_zeros(*x.shape[:-1], n_before)
        return full.index_copy(x.dim() - 1, columns, x)

    @property
    def n_replicas(self) -> int:
        """Return R."""
        return int(self.input_weights.shape[0])

    @property
    def n_outputs(self) -> int:
        """Return the width of the output."""
        return self._view.n_outputs if self._outputs is None else len(self._outputs)

    @property
    def column_slots(self) -> Tensor:
        """Return the slot of every column the network is fed."""
        slots = self._view.column_slots
        return slots if self._scatter is None else slots[self._scatter[0]]

    @property
    def input_weights(self) -> Tensor:
        """Return the first layer's weights, (R, out, slots, ...)."""
        weights: Tensor = self._params[weight_of(self._view.first)]
        return weights

    @property
    def output_mask(self) -> Tensor:
        """Return which outputs each replica has, (R, n_outputs)."""
        if self._output_mask is not None:
            return self._output_mask
        size = (self.n_replicas, self.n_outputs)
        return torch.ones(size, dtype=torch.bool, device=self.input_weights.device)

    def parameters(self) -> list[Tensor]:
        """Return every parameter that the user did not freeze."""
        return [p for p in self._params.values() if p.requires_grad]

    def train(self, mode: bool) -> None:
        """Switch layers such as dropout between training and use."""
        self._module.train(mode)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (S, n, columns) to (R, n, n_outputs)."""
        x = self._spread(x)
        if self._slot_mask is not None:
            x = x * self._slot_mask[:, self._view.column_slots].unsqueeze(1)
        if self._mappable:
            is_shared = x.shape[0] == 1
            call = vmap(self._call_one, in_dims=(0, 0, None if is_shared else 0))
            h = call(self._params, self._buffers, x[0] if is_shared else x)
        else:
            h = torch.stack(
                [
                    self._call_one(
                        {name: p[r] for name, p in self._params.items()},
                        {name: b[r] for name, b in self._buffers.items()},
                        x[min(r, x.shape[0] - 1)],
                    )
                    for r in range(self.n_replicas)
                ]
            )
        if self._outputs is not None:
            h = h.index_select(2, self._outputs)
        if self._output_mask is not None:
            h = h * self._output_mask.unsqueeze(1)
        return h

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back, by autograd."""
        return Graph(self, self.parameters(), inputs)

    def _modules(self, pick: range) -> list[nn.Module]:
        """Return one module a replica with that replica's state."""
        modules = []
        for r in pick:
            module = copy.deepcopy(self._module)
            state = {name: p.detach()[r].clone() for name, p in self._params.items()}
            state |= {name: b[r].clone() for name, b in self._buffers.items()}
            module.load_state_dict(state)
            modules.append(module)
        return modules

    def _rebuild(
        self,
        pick: range,
        slots: Tensor | None,
        outputs: Tensor | None,
        slot_mask: Tensor | None,
        output_mask: Tensor | None,
    ) -> Lifted:
        """Cut, verify the cut by calling, and fall back to zeros and slices."""
        modules = self._modules(pick)
        view, scatter, sliced = self._view, self._scatter, self._outputs
        device = self.input_weights.device
        if slots is not None:
            keep = kept_by_any(slots, self.input_weights.shape[2], device)
            view, scatter, modules = self._narrowed_inputs(modules, keep)
            slot_mask = mask_left(slot_mask, slots, keep)
            if slot_mask is not None and scatter is not None:
                full = slots.new_zeros(len(slots), self.input_weights.shape[2])
                full[:, keep] = slot_mask
                slot_mask = full
        if outputs is not None:
            keep = kept_by_any(outputs, self.n_outputs, device)
            if view.last is not None and sliced is None:
                modules = [cut_outputs(m, view.last, keep) for m in modules]
                view = ModuleView(view.first, view.column_slots, len(keep), view.last)
            else:
                sliced = keep if sliced is None else sliced[keep]
            output_mask = mask_left(output_mask, outputs, keep)
        masks = (slot_mask, output_mask)
        return Lifted(modules, self.owner, view, *masks, scatter, sliced)

    def _narrowed_inputs(
        self, modules: list[nn.Module], keep: Tensor
    ) -> tuple[ModuleView, tuple[Tensor, int] | None, list[nn.Module]]:
        """Cut slots physically where the module still runs, otherwise feed zeros."""
        view = self._view
        columns = torch.isin(view.column_slots, keep).nonzero().squeeze(1)
        n_before = len(view.column_slots)
        place = {int(slot): i for i, slot in enumerate(keep)}
        if self._scatter is None:
            new_slots = torch.tensor(
                [place[int(s)] for s in view.column_slots[columns]],
                dtype=torch.long,
                device=keep.device,
            )
            cut = [cut_inputs(m, view.first, keep) for m in modules]
            if self._agrees(modules[0], cut[0], columns, n_before):
                view = ModuleView(view.first, new_slots, view.n_outputs, view.last)
                return view, None, cut
        if self._scatter is not None:
            former, n_before = self._scatter
            columns = columns[torch.isin(columns, former)]
        return view, (columns, n_before), modules

    def _agrees(
        self, whole: nn.Module, cut: nn.Module, columns: Tensor, n_before: int
    ) -> bool:
        """Tell whether the cut module gives what the whole one gives on zeros."""
        like = self.input_weights
        full = torch.zeros(3, n_before, dtype=like.dtype, device=like.device)
        values = torch.linspace(-1, 1, 3 * len(columns), dtype=like.dtype)
        full[:, columns] = values.view(3, len(columns)).to(like.device)
        training = whole.training
        try:
            with torch.no_grad():
                here, there = whole.eval()(full), cut.eval()(full[:, columns])
        except Exception:
            return False
        finally:
            whole.train(training)
            cut.train(training)
        return here.shape == there.shape and torch.allclose(here, there, atol=1e-5)

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Lifted:
        """Keep these slots and outputs; weights keep their values."""
        return self._rebuild(
            range(self.n_replicas), slots, outputs, self._slot_mask, self._output_mask
        )

    def redrawn(self, seeds: tuple[int, ...], name: str) -> None:
        """Return nothing: a module of the user's starts at a scale of its own."""

    def replica(self, index: int) -> Lifted:
        """Return one replica, cut to its own slots and outputs."""
        pick = slice(index, index + 1)
        return self._rebuild(
            range(index, index + 1),
            None if self._slot_mask is None else self._slot_mask[pick],
            None if self._output_mask is None else self._output_mask[pick],
            None,
            None,
        )

    def astype(self, dtype: torch.dtype) -> Lifted:
        """Return a copy with parameters of that number format."""
        modules = [m.to(dtype) for m in self._modules(range(self.n_replicas))]
        masks = (self._slot_mask, self._output_mask)
        own = (self._view, *masks, self._scatter, self._outputs)
        return Lifted(modules, self.owner, *own)

    def module(self) -> nn.Module:
        """Return the one replica as a module on its own, (n, columns) to (n, out)."""
        assert self.n_replicas == 1
        return Alone(self)

    def state(self) -> dict[str, Tensor]:
        """Return parameters and buffers of the one replica."""
        assert self.n_replicas == 1
        named = {name: p.detach()[0] for name, p in self._params.items()}
        return named | {name: b[0] for name, b in self._buffers.items()}

    def copy_buffers(self, other: Lifted) -> None:
        """Take over the buffers that have the same shapes."""
        for name, buffer in self._buffers.items():
            if buffer.shape == other._buffers[name].shape:
                buffer.copy_(other._buffers[name])

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over parameters and buffers of the same shapes."""
        with torch.no_grad():
            for name, tensor in (self._params | self._buffers).items():
                tensor[0] = state[name]


class Alone(nn.Module):
    """The one replica of a lifted module, without the axis: what exporters can read."""

    def __init__(self, net: Lifted) -> None:
        super().__init__()
        self._net = net.replica(0)
        (self.inner,) = self._net._modules(range(1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, columns) to (n, n_outputs)."""
        h: Tensor = self.inner(self._net._spread(x))
        kept = self._net._outputs
        return h if kept is None else h.index_select(1, kept)


def widen(cut: Network, whole: Network, slots: Tensor) -> Network:
    """Return a network with all slots again, those that were cut away at zero.

    Values are those of `cut`, narrowed from `whole` to the `slots` (R, slots).
    """
    net = whole.narrow()
    used = slots.any(dim=0)
    with torch.no_grad():
        for new, old in zip(net.parameters(), cut.parameters(), strict=True):
            if new.shape == old.shape:
                new.copy_(old)
            else:
                new.zero_()
                new[:, :, used] = old
        first = net.input_weights
        first.mul_(slots.view(*slots.shape[:1], 1, -1, *[1] * (first.dim() - 3)))
    if isinstance(net, Lifted) and isinstance(cut, Lifted):
        net.copy_buffers(cut)
    return net


def find_factory(spec: str) -> Factory:
    """Return the function named by ``FILE.py:FUNCTION`` or ``MODULE:FUNCTION``."""
    where, _, name = spec.rpartition(":")
    wrong = (
        "The network must be named FILE.py:FUNCTION or MODULE:FUNCTION, a function of "
        f"(n_inputs, n_outputs) that returns a torch.nn.Module. Got '{spec}'"
    )
    if not where:
        raise ConfigError(f"{wrong}.")
    try:
        if where.endswith(".py"):
            loaded = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert loaded is not None
            assert loaded.loader is not None
            module = importlib.util.module_from_spec(loaded)
            loaded.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
        factory = getattr(module, name)
    except Exception as problem:  # the user's own code may raise anything
        reason = f"{type(problem).__name__}: {problem}"
        raise ConfigError(f"{wrong} ({reason}).") from None
    if not callable(factory):
        raise ConfigError(f"{wrong}, which is no function.")
    checked: Factory = factory
    return checked
