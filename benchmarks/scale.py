"""What a run would take on paper: measured slopes times parties, rows and columns.

    python benchmarks/scale.py
    python benchmarks/scale.py --parties 4 --rows 1e6 --columns 250 --batch 512

Bytes and rounds follow from the settings of ``less-vfl-auto`` (docs/protocol.md); the
rest are slopes, each measured by the command beside it in `SLOPES`, on 2 cores of a
Neoverse-N1. Nothing is run here. The last lines say what the code does not take.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import smoke

from lessvfl.remote.align.ids import MAX_IDS
from lessvfl.terms import bytes_text, time_text
from lessvfl.wire.kinds import MAX_BODY

MIB = 2**20
LINKS = {  # bits a second, seconds of a round trip
    "1 Gbit/s, 1 ms": (1e9, 0.001),
    "1 Gbit/s, 20 ms": (1e9, 0.020),
    "100 Mbit/s, 50 ms": (1e8, 0.050),
}


@dataclass(frozen=True)
class Slope:
    """What one more of something takes, and the command that measured it."""

    value: float
    unit: str
    command: str


SLOPES = {
    "round": Slope(0.86e-3, "s of the server a party and round", "parties.py"),
    "connection": Slope(0.54 * MIB, "bytes of the server a party", "parties.py"),
    "server": Slope(280 * MIB, "bytes of the server", "big_table.py grow"),
    "label": Slope(38, "bytes of the server a row", "big_table.py grow"),
    "place": Slope(17, "bytes of a party a row", "big_table.py grow"),
    "base": Slope(460 * MIB, "bytes of a party", "big_table.py grow"),
    "prepare": Slope(0.2e-6, "s of a party a cell", "big_table.py run"),
    "row": Slope(20e-6, "s of a party a row and epoch", "big_table.py run"),
    "point": Slope(0.9e-3, "s of a party an id", "alignment.py"),
    "offer": Slope(0.25e-3, "s of the server an id and party", "alignment.py"),
}


@dataclass(frozen=True)
class Run:
    """A run of the default method."""

    parties: int
    rows: float
    columns: int  # of each party
    batch: int
    epochs: float  # of training after the second look
    components: int = 4
    bits: int = 4
    train_share: float = 0.8

    @property
    def passes(self) -> float:
        """Return the epochs of training rows that are exchanged."""
        return 0.5 + 1 + self.epochs  # pre-training, before the second look, after it

    @property
    def rounds(self) -> float:
        """Return the exchanges: steps of 1,000 rows, of half a batch, and of one."""
        rows = self.train_share * self.rows
        return rows * (0.5 / 1000 + 1 / (self.batch / 2) + self.epochs / self.batch)

    @property
    def party_bytes(self) -> float:
        """Return the bytes of one party, both ways."""
        a_row = 2 * self.components * self.bits / 8
        return a_row * self.train_share * self.rows * self.passes

    def lines(self) -> list[tuple[str, str]]:
        """Return what it takes, in words."""
        of = {name: slope.value for name, slope in SLOPES.items()}
        rows, m = self.rows, self.parties
        server = of["server"] + m * of["connection"] + rows * of["label"]
        party = of["base"] + rows * of["place"]
        seconds = rows * self.columns * of["prepare"]
        seconds += self.train_share * rows * self.passes * of["row"]
        links = [
            (
                f"on their way, {name}",
                f"{time_text(self.rounds * trip)} of round trips, "
                f"{time_text(8 * self.party_bytes / speed)} of a party's bytes, "
                f"{time_text(8 * m * self.party_bytes / speed)} of the server's",
            )
            for name, (speed, trip) in LINKS.items()
        ]
        return [
            ("rounds", f"{self.rounds:,.0f}"),
            ("bytes of a party", bytes_text(self.party_bytes)),
            ("bytes of the server", bytes_text(m * self.party_bytes)),
            *links,
            ("processor of the server", time_text(self.rounds * m * of["round"])),
            ("processor of a party", time_text(seconds)),
            ("memory of the server", bytes_text(server)),
            ("memory of a party", bytes_text(party)),
            ("disk of a party, encoded rows", bytes_text(4 * rows * self.columns)),
            ("private alignment, a party", time_text(rows * of["point"])),
            ("private alignment, the server", time_text(rows * m * of["offer"])),
        ]


def main() -> None:
    """Print the slopes, and what a run takes by them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parties", type=int, default=1000)
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--columns", type=int, default=250, help="of each party")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=float, default=1.0)
    given = vars(smoke.parse(parser))
    run = Run(**{name: given[name] for name in given if name != "smoke"})
    for name, slope in SLOPES.items():
        print(f"{name:<12}{slope.value:>12.3g} {slope.unit:<36}{slope.command}")
    print(
        f"\n{run.parties:,} parties of {run.columns:,} columns, {run.rows:,.0f} rows, "
        f"steps of {run.batch:,}, {run.epochs:g} epochs after the second look"
    )
    for what, took in run.lines():
        print(f"{what:<34}{took}")
    print(f"\nrows that one message can name, in blocks: {8 * MAX_BODY:,}")
    print(f"rows that one message can name, shuffled: {MAX_BODY // 4:,}")
    print(f"ids of one table that can be aligned: {MAX_IDS:,}")


if __name__ == "__main__":
    main()
