"""How many features stay, by rows held out: one limit on scores for all parties.

The server tells the largest score of any party; every party says what its features
above each limit (``core/limits``) say of the rows held out; the server takes the limit
by its loss there, and tells which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from lessvfl.core.limits import choose_limit
from lessvfl.core.protocol import QueryArrays
from lessvfl.terms import Stage
from lessvfl.wire.messages import ArrayFormat
from lessvfl.wire.parties import Parties


def largest_of(answers: Mapping[str, tuple[Tensor, ...]]) -> Tensor:
    """Return the elementwise maximum, over parties, of the one array each answered."""
    return torch.stack([array for (array,) in answers.values()]).amax(dim=0)


def choose_together(
    parties: Parties,
    stage: Stage,
    step: int,
    largest: Tensor,
    answer: ArrayFormat,
    losses: Callable[[list[Tensor]], Tensor],
) -> None:
    """Take the last two steps of a protocol: the limit is chosen, all parties select.

    `largest` (1,) is a score. `losses` returns those of every row and limit, (n,
    limits), given what parties say in the format of an `answer`.
    """
    names = parties.names
    sent: dict[str, QueryArrays] = dict.fromkeys(names, (largest,))
    answers = parties.query(stage, step, sent, dict.fromkeys(names, (answer,)))
    choice = choose_limit(losses([array for (array,) in answers.values()]))
    parties.query_last(stage, step + 1, dict.fromkeys(names, (choice,)))
