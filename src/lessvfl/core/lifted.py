"""Any ``torch.nn.Module`` of the user's as a network that can be narrowed."""

from __future__ import annotations

import copy
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from lessvfl.core.module_view import ModuleView, cut_inputs, cut_outputs, weight_of
from lessvfl.core.network import Network
from lessvfl.core.passes import Graph, Passes
from lessvfl.core.plans import stream
from lessvfl.errors import ConfigError, NetworkError

Factory = Callable[[int, int], nn.Module]


class Lifted(Network):
    """A module of the user's; `owner` is whose network it is, for error messages.

    Columns that the module could not be cut to are fed as zeros.
    """

    def __init__(
        self,
        module: nn.Module,
        owner: str,
        view: ModuleView,
        scatter: tuple[Tensor, int] | None = None,
        outputs: Tensor | None = None,
    ) -> None:
        self.owner = owner
        self._view = view
        self._module = copy.deepcopy(module)
        self._scatter = scatter  # columns kept and their former number: zeros elsewhere
        self._outputs = outputs  # outputs kept by slicing

    @classmethod
    def create(
        cls,
        factory: Factory | nn.Module,
        n_columns: int,
        n_outputs: int,
        seed: int,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Lifted:
        """Build a module; one that is given instead of a factory starts as it is."""
        if isinstance(factory, nn.Module):
            module = copy.deepcopy(factory)
        else:
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.set_rng_state(stream(seed, "init", name).get_state())
                    module = factory(n_columns, n_outputs)
            except Exception as problem:  # the user's own code may raise anything
                raise NetworkError(
                    f"The network factory of {name} must take (n_inputs, n_outputs) = "
                    f"({n_columns}, {n_outputs}). Got {type(problem).__name__}: "
                    f"{problem}"
                ) from None
        if not isinstance(module, nn.Module):
            raise NetworkError(
                f"The network factory of {name} must return a torch.nn.Module. "
                f"Got {type(module).__name__}."
            )
        module = module.to(device, dtype)
        network = cls(module, name, ModuleView.of(module, n_columns, name))
        if network.n_outputs != n_outputs:
            raise NetworkError(
                f"The module of {name} must return {n_outputs} components. "
                f"Got {network.n_outputs}."
            )
        return network

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
        """Return the first layer's weights, (out, slots, ...)."""
        return self._module.get_parameter(weight_of(self._view.first))

    def parameters(self) -> list[Tensor]:
        """Return every parameter that the user did not freeze."""
        return [p for p in self._module.parameters() if p.requires_grad]

    def train(self, mode: bool) -> None:
        """Switch layers such as dropout between training and use."""
        self._module.train(mode)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (n, columns), those still kept, to (n, n_outputs)."""
        if self._scatter is not None:
            columns, n_before = self._scatter
            n_rows = x.shape[0]  # not len(x): ONNX would have it as a constant
            x = x.new_zeros(n_rows, n_before).index_copy(1, columns, x)
        h: Tensor = self._module(x)
        return h if self._outputs is None else h.index_select(1, self._outputs)

    def passes(self, inputs: bool = False) -> Passes:
        """Return this network forward and back, by autograd."""
        return Graph(self, self.parameters(), inputs)

    def narrow(
        self, slots: Tensor | None = None, outputs: Tensor | None = None
    ) -> Lifted:
        """Return a copy with the slots and outputs where these masks are True.

        What cannot be cut out of the module is fed zeros, or sliced from its output.
        """
        module, view = self._module, self._view
        scatter, sliced = self._scatter, self._outputs
        if slots is not None:
            keep = slots.nonzero().squeeze(1)
            view, scatter, module = self._narrowed_inputs(module, keep)
        if outputs is not None:
            keep = outputs.nonzero().squeeze(1)
            if view.last is not None and sliced is None:
                module = cut_outputs(module, view.last, keep)
                view = ModuleView(view.first, view.column_slots, len(keep), view.last)
            else:
                sliced = keep if sliced is None else sliced[keep]
        return Lifted(module, self.owner, view, scatter, sliced)

    def _narrowed_inputs(
        self, module: nn.Module, keep: Tensor
    ) -> tuple[ModuleView, tuple[Tensor, int] | None, nn.Module]:
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
            cut = cut_inputs(module, view.first, keep)
            if self._agrees(module, cut, columns, n_before):
                view = ModuleView(view.first, new_slots, view.n_outputs, view.last)
                return view, None, cut
        if self._scatter is not None:
            former, n_before = self._scatter
            columns = columns[torch.isin(columns, former)]
        return view, (columns, n_before), module

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

    def astype(self, dtype: torch.dtype) -> Lifted:
        """Return a copy with parameters of that number format."""
        copied = self.narrow()
        copied._module.to(dtype)
        return copied

    def module(self) -> nn.Module:
        """Return a module on its own, (n, columns) to (n, out)."""
        return Alone(self)

    def state(self) -> dict[str, Tensor]:
        """Return all parameters and buffers by name, more than a state_dict has."""
        values = {
            **dict(self._module.named_parameters()),
            **dict(self._module.named_buffers()),
        }
        return {name: value.detach() for name, value in values.items()}


class Alone(nn.Module):
    """A lifted module by itself: what exporters can read."""

    def __init__(self, net: Lifted) -> None:
        super().__init__()
        self._net = net.narrow()
        self.inner = self._net._module

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, columns) to (n, n_outputs)."""
        h: Tensor = self._net(x)
        return h


def widen(cut: Network, whole: Network, slots: Tensor) -> Network:
    """Return a network as large as `whole` with the values of `cut`, zero elsewhere.

    `cut` was narrowed from `whole` to the input slots of the mask `slots` (slots,).
    """
    net = whole.narrow()
    with torch.no_grad():
        for new, old in zip(net.parameters(), cut.parameters(), strict=True):
            if new.shape == old.shape:
                new.copy_(old)
            else:
                new.zero_()
                new[:, slots] = old
        if isinstance(net, Lifted) and isinstance(cut, Lifted):
            buffers = dict(cut._module.named_buffers())
            for name, buffer in net._module.named_buffers():
                if buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])
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
