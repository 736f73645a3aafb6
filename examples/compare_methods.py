"""Our method and the paper's on one data set: what each keeps and what it sends.

Run it: python examples/compare_methods.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lessvfl import data, report
from lessvfl.run import experiment, folder, profiles, simulate

# Weights of the penalty mean different things to different methods; less-vfl-auto
# needs none.
SETTINGS: dict[str, dict[str, float]] = {
    "less-vfl-auto": {},
    "less-vfl": {
        "pretrain_epochs": 12,
        "lam_server": 0.03,
        "server_epochs": 25,
        "lam_party": 2.2,
        "party_epochs": 25,
    },
    "local-lasso": {"pretrain_epochs": 15, "lam_party": 3.3, "party_epochs": 25},
    "group-lasso": {"joint_epochs": 25, "lam_party": 0.6},
    "plain": {"train_epochs": 25},
}


def main(
    train_epochs: int = 10, settings: dict[str, dict[str, float]] | None = None
) -> dict[str, float]:
    """Run the methods, print a line for each, write one page for all of them."""
    options = {
        "n_samples": 1000,
        "n_test": 500,
        "n_parties": 2,
        "n_significant": 3,
        "n_noise": 7,
    }
    dataset = data.load("synthetic", options=options)
    sent = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = []
        for method, own in (settings or SETTINGS).items():
            shared: dict[str, float] = {"batch_size": 100, "train_epochs": train_epochs}
            chosen = profiles.resolve(method, "default", dataset, shared | own)
            job = simulate.Job(dataset, chosen)
            record, runs = experiment.run(job, seeds=[0], options=options)
            folders.append(Path(scratch) / method)
            folder.save(folders[-1], record, runs)

            numbers = record.runs[0]
            payload = numbers["communication"]["payload_bytes"]
            sent[method] = (payload["up"] + payload["down"]) / 1e6
            n_kept = sum(len(some) for some in runs[0].model.features.values())
            print(
                f"{method:<13} keeps {n_kept:>2} of {len(dataset.X.names)} features, "
                f"sends {sent[method]:5.1f} MB, R2 {numbers['r2']['final']:.3f}"
            )
        page = report.compare(folders, Path(scratch) / "compare.html")
        print(f"One page for all: {page.name}, {page.stat().st_size // 1024} KiB")
    return sent


if __name__ == "__main__":
    main()
