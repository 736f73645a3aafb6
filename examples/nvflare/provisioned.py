"""A run in a provisioned FLARE system, and the same in one process: equal to the bit.

    python -m examples.nvflare.provisioned
    LESSVFL_DATA=DIR python -m examples.nvflare.provisioned --data phishing

FLARE's own tool makes keys and certificates for a server, three sites and an admin; all
of them are started on this machine, the admin submits the job, and everything is shut
down at the end. Needs ``pip install 'lessvfl[nvflare]'``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from examples.nvflare import sides
from examples.nvflare.federation import Federation, wait_for_job

from lessvfl.remote import nvflare


def main(
    name: str = "breast-cancer",
    settings: Mapping[str, Any] = sides.QUICK,
    base: Path | None = None,
) -> bool:
    """Run, and tell whether both runs are the same."""
    with sides.prepared(name, settings, base) as (base, job, names):
        folder = base / "sides"
        with Federation(base / "flare", names[1:]) as flare:
            print("provisioning: a server, three sites, an admin")
            flare.provision()
            for side in names:
                config = sides.config_of(folder, side)
                nvflare.install(config, flare.kits[side], sides.RUN, side)
                flare.start(side)
            with flare.session() as session:
                flare.wait_for_sites(session)
                out = sides.write_job(folder, base / "job")
                job_id = session.submit_job(str(out))
                print(f"submitted: {job_id}")
                print(wait_for_job(session, job_id))
        return sides.compare(job, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="breast-cancer", help="see 'lessvfl data'")
    sys.exit(0 if main(parser.parse_args().data) else 1)
