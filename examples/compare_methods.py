"""All four methods on one data set: what each keeps and what it sends.

Run it: python examples/compare_methods.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from lessvfl import data, report
from lessvfl.run import experiment, profiles, simulate

# Weights of the penalty mean different things to different methods.
SETTINGS: dict[str, dict[str, float]] = {
    "less-vfl": {"pretrain_epochs": 30, "lam_server": 0.03, "lam_party": 2.5},
    "local-lasso": {"pretrain_epochs": 30, "lam_party": 3.0},
    "group-lasso": {"joint_epochs": 100, "lam_party": 0.4},
    "plain": {"train_epochs": 50},
}


def main(
    train_epochs: int = 20, settings: dict[str, dict[str, float]] | None = None
) -> dict[str, float]:
    """Run the methods, print a line for each, write one page for all of them."""
    options = {
        "n_samples": 2000,
        "n_test": 500,
        "n_parties": 2,
        "n_significant": 3,
        "n_noise": 7,
    }
    dataset = data.load("synthetic", options=options)
    sent = {}
    with tempfile.TemporaryDirectory() as folder:
        folders = []
        for method, own in (settings or SETTINGS).items():
            shared: dict[str, float] = {"batch_size": 100, "train_epochs": train_epochs}
            chosen = profiles.resolve(method, "default", dataset, shared | own)
            job = simulate.Job(dataset, chosen)
            record, runs = experiment.run(job, seeds=[0], options=options)
            folders.append(Path(folder) / method)
            experiment.save(folders[-1], record, runs)

            numbers = record.runs[0]
            payload = numbers["communication"]["payload_bytes"]
            sent[method] = (payload["up"] + payload["down"]) / 1e6
            n_kept = sum(len(some) for some in runs[0].model.features.values())
            print(
                f"{method:<12} keeps {n_kept:>2} of {len(dataset.X.names)} features, "
                f"sends {sent[method]:5.1f} MB, R2 {numbers['r2']['final']:.3f}"
            )
        page = report.compare(folders, Path(folder) / "compare.html")
        print(f"One page for all: {page.name}, {page.stat().st_size // 1024} KiB")
    return sent


if __name__ == "__main__":
    main()
