"""The smallest size of every benchmark: ``--smoke``, seconds, and no data set to get.

``tests/bench/test_benchmarks.py`` runs each of them so.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

# Stages of the published experiment, as short as they can be.
SHORT = {"train_epochs": 2, "party_epochs": 2, "server_epochs": 2, "joint_epochs": 2}


def parse(
    parser: argparse.ArgumentParser,
    *commands: argparse.ArgumentParser,
    **smallest: Any,
) -> argparse.Namespace:
    """Read the command line, where ``--smoke`` sets other defaults.

    `commands` are the parsers of subcommands, where `parser` has some.
    """
    for one in commands or [parser]:
        one.add_argument("--smoke", action="store_true", help="the smallest size")
        if "--smoke" in sys.argv:
            known = {action.dest for action in one._actions}
            one.set_defaults(**{k: v for k, v in smallest.items() if k in known})
    return parser.parse_args()
