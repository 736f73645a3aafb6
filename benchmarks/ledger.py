"""How long the ledger of a side takes, by the number of ids in a run.

    python benchmarks/ledger.py                # 1,000,000 ids
    python benchmarks/ledger.py --ids 100000

A run asks what it may, is charged for its plan, and gives back what it did not tell;
then a second run, and predictions of some rows. The size of the file is said at last.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lessvfl.remote.accounts import Accounts, Amounts, Charge
from lessvfl.remote.align import Ids

PLAN = Amounts(values=98.0, bits=32 * 98.0)
TOLD = Amounts(values=90.0, bits=32 * 90.0)
ONE = Amounts(values=4.0, bits=128.0, predictions=1.0)


def main() -> None:
    """Print the seconds of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=1_000_000)
    n_ids = parser.parse_args().ids
    ids = Ids(np.random.default_rng(0).permutation(n_ids) + 10**6)
    few = np.arange(min(n_ids, 1000))
    with tempfile.TemporaryDirectory() as folder:
        accounts = Accounts(Path(folder) / "run", "party")

        def timed(what: str, step: Callable[[], object]) -> None:
            start, busy = time.perf_counter(), time.process_time()
            step()
            of_all, of_cpu = time.perf_counter() - start, time.process_time() - busy
            print(f"{what:<24}{of_all:8.2f} s, {of_cpu:.2f} s of a core")

        def reserve(run: str) -> None:
            charge = Charge(ids.account_names(), PLAN, run=run)
            accounts.charge(charge, lambda most: None)

        def predict() -> None:
            answers = (b"%d" % place for place in few.tolist())
            charge = Charge(ids.account_names(few), ONE, answers)
            accounts.charge(charge, lambda most: None)

        timed("open", accounts.secret)
        timed("reserve, first run", lambda: reserve("one"))
        timed("settle", lambda: accounts.settle(ids.account_names(), "one", TOLD))
        timed("reserve, second run", lambda: reserve("two"))
        whole = Charge(ids.account_names(), Amounts())
        timed("most of all", lambda: accounts.after(whole))
        timed(f"predict {len(few):,} rows", predict)
        timed(f"predict {len(few):,} again", predict)
        (path,) = Path(folder).glob("*.sqlite3")
        print(f"{path.stat().st_size / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
