"""What a run would take on paper: measured slopes times parties, rows and columns.

    python benchmarks/scale.py
    python benchmarks/scale.py --parties 4 --rows 1e6 --columns 250 --batch 512

Bytes and rounds follow from the settings of ``less-vfl-auto`` (docs/protocol.md); all
else is a slope, measured by the command that stands beside it in `SLOPES`. Nothing is
run here. What a run cannot have, because of a limit in the code, is said at the end.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from lessvfl.remote.align.ids import MAX_IDS
from lessvfl.wire.codec import MAX_BODY

GB, MIB = 1e9, 2**20
LINKS = {  # bits a second, seconds of a round trip
    "1 Gbit/s, 1 ms (one campus)": (1e9, 0.001),
    "1 Gbit/s, 20 ms (one country)": (1e9, 0.020),
    "100 Mbit/s, 50 ms (far, or a small line)": (1e8, 0.050),
}


@dataclass(frozen=True)
class Slope:
    """What one more of something takes, and the command that measured it."""

    value: float
    unit: str
    command: str


SLOPES = {
    "server CPU": Slope(0.87e-3, "s a party and round", "parties.py"),
    "server memory": Slope(0.54 * MIB, "bytes a party", "parties.py"),
    "server rows": Slope(0.0, "bytes a row", "big_table.py grow"),
    "party rows": Slope(0.0, "bytes a row", "big_table.py grow"),
    "party base": Slope(0.0, "bytes", "big_table.py grow"),
    "prepare": Slope(0.0, "s a cell", "big_table.py run"),
    "step": Slope(0.0, "s a row and epoch", "big_table.py run"),
    "align party": Slope(0.45e-3, "s an id", "alignment.py"),
    "align server": Slope(0.17e-3, "s an id and party", "alignment.py"),
}
