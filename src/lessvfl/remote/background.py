"""The rows that a party compares others with to explain them, in a file of its own.

Training leaves it beside the party's network; it never leaves the party.
"""

from __future__ import annotations

from pathlib import Path

from lessvfl.core.trees.networks import GrownNetwork
from lessvfl.explanation.shapley import Background
from lessvfl.party import Party
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.run.fitted import FittedParty

NAME = "background.safetensors"


def write_background(folder: Path, fitted: FittedParty, party: Party, of: str) -> None:
    """Keep some of the training or test rows, whose mean embedding the server has.

    Nothing is kept of a party that has no network, or a constant in its place.
    """
    X = party.model.X_train if of == "train" else party.model.X_test
    has_net = fitted.constant is None and not isinstance(fitted.net, GrownNetwork)
    if has_net and len(X) and X.shape[1] == fitted.n_columns:
        fitted.net.train(False)
        background = Background.of(fitted.net, X)
        named = {"rows": background.rows, "weights": background.weights}
        write_state(folder / NAME, State(named, {}))


def read_background(folder: Path) -> Background | None:
    """Read what training left; None: nothing."""
    if not (folder / NAME).is_file():
        return None
    kept = read_state(folder / NAME).tensors
    return Background(kept["rows"], kept["weights"])
