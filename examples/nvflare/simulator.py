"""A run in FLARE's simulator, and the same run in one process: equal to the bit.

    python -m examples.nvflare.simulator
    LESSVFL_DATA=DIR python -m examples.nvflare.simulator --data phishing

Needs ``pip install 'lessvfl[nvflare]'``. The simulator gives all sites one ``local``
folder, so there every site's config bears the site's name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.nvflare import sides

from lessvfl.remote import nvflare

LONGEST = 600.0  # seconds


def main(
    name: str = "breast-cancer",
    settings: Mapping[str, Any] = sides.QUICK,
    base: Path | None = None,
) -> bool:
    """Run, and tell whether both runs are the same."""
    with sides.prepared(name, settings, base) as (base, job, names):
        folder, workspace = base / "sides", base / "workspace"
        (workspace / "local").mkdir(parents=True)
        for side in names:
            config = sides.config_of(folder, side)
            nvflare.install(config, workspace, sides.RUN, side)
        simulate(sides.write_job(folder, base / "job"), workspace, names[1:])
        return sides.compare(job, folder)


def simulate(job: Path, workspace: Path, sites: list[str]) -> None:
    """Run a job in FLARE's simulator; what it says goes to ``log.txt``."""
    with open(workspace.parent / "log.txt", "ab") as log:
        subprocess.run(
            [
                *(sys.executable, "-m", "nvflare.cli", "simulator", str(job)),
                *("-w", str(workspace), "-c", ",".join(sites), "-t", str(len(sites))),
            ],
            check=True,
            timeout=LONGEST,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="breast-cancer", help="see 'lessvfl data'")
    sys.exit(0 if main(parser.parse_args().data) else 1)
