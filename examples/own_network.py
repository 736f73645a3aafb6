"""A network of your own: a residual one at every party.

Run it: python examples/own_network.py
"""

from __future__ import annotations

import torch
from torch import nn

from lessvfl import data
from lessvfl.run import profiles, simulate
from lessvfl.run.build import Networks


class Residual(nn.Module):
    """Linear, then blocks with a skip around each, then Linear.

    Every path from an input goes through ``enter``, so that a feature whose weights
    there are zero is really gone. A skip around ``enter`` would be refused.
    """

    def __init__(self, n_inputs: int, n_outputs: int, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(n_inputs, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.leave = nn.Linear(width, n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (n, n_inputs) to (n, n_outputs)."""
        h = self.enter(x)
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        out: torch.Tensor = self.leave(h)
        return out


def main(n_samples: int = 1000, epochs: int = 10) -> tuple[set[str], set[str]]:
    """Run LESS-VFL with it on data whose significant features are known."""
    options = {
        "n_samples": n_samples,
        "n_test": 500,
        "n_parties": 2,
        "n_significant": 3,
        "n_noise": 7,
    }
    dataset = data.load("synthetic", options=options)
    settings = profiles.resolve(
        "less-vfl-auto", "default", dataset, {"train_epochs": epochs}
    )
    # The same from the command line: --set party_net=examples/own_network.py:Residual
    networks = Networks(party=Residual)
    job = simulate.Job(dataset, settings, networks=networks, curve=False)
    (run,) = simulate.simulate(job, seeds=[0])

    assert dataset.significant is not None
    names = dataset.X.names
    truth = {
        n for n, matters in zip(names, dataset.significant, strict=True) if matters
    }
    kept = {name for some in run.model.features.values() for name in some}
    print(f"significant features: {', '.join(sorted(truth))}")
    print(f"kept features:        {', '.join(sorted(kept))}")
    return truth, kept


if __name__ == "__main__":
    main()
