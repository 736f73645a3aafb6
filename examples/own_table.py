"""Your own table: mixed columns in a CSV file, two named parties, one model.

Run it: python examples/own_table.py
"""

from __future__ import annotations

import csv
import random
import tempfile
from pathlib import Path

from lessvfl import FittedModel, data, report
from lessvfl.run import experiment, folder, profiles, simulate

# Which party holds which columns; names or globs. On the command line this is a YAML
# file: lessvfl run patients.csv --label risk --parties parties.yaml
PARTIES = {
    "clinic": ["age", "smoker", "lab_*"],
    "insurer": ["plan", "claims", "visit_*"],
}


def write_table(path: Path, n_rows: int) -> None:
    """Make up patients: numbers, truth values, a category, and some empty cells."""
    rng = random.Random(0)
    noise = [f"lab_{i}" for i in range(4)] + [f"visit_{i}" for i in range(4)]
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["age", "smoker", "plan", "claims", *noise, "risk"])
        for _ in range(n_rows):
            age, claims = rng.gauss(50, 15), rng.gauss(0, 1)
            smoker, plan = rng.random() < 0.4, rng.choice(["basic", "plus", "full"])
            score = (age - 50) / 15 + 1.5 * smoker + claims + 1.5 * (plan == "full")
            cells = [f"{age:.1f}", str(smoker).lower(), plan, f"{claims:.3f}"]
            cells += [f"{rng.gauss(0, 1):.3f}" for _ in noise]
            if rng.random() < 0.05:
                cells[0] = ""  # not measured: the clinic fills in its own mean
            writer.writerow([*cells, "high" if score > 1 else "low"])


def main(n_rows: int = 1000, epochs: int = 12) -> dict[str, tuple[str, ...]]:
    """Write a table, run LESS-VFL on it, save the run, load it, predict."""
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "patients.csv"
        write_table(table, n_rows)

        dataset = data.load(table, label="risk")
        settings = profiles.resolve(
            "less-vfl-auto", "default", dataset, {"train_epochs": epochs}
        )
        job = simulate.Job(dataset, settings, parties=PARTIES)
        record, runs = experiment.run(job, seeds=[0])
        for note in record.header["notes"]:
            print(f"Note: {note}")

        run_folder = Path(scratch) / "run"
        folder.save(run_folder, record, runs)
        print(f"Report: {report.build(run_folder).name}")

        model: FittedModel = folder.load(run_folder)
        for party, kept in model.features.items():
            print(f"{party} keeps {', '.join(kept) or 'nothing'}")
        print(f"Test accuracy: {record.runs[0]['accuracy']['final']:.3f}")
        print(f"First predictions: {', '.join(model.predict(dataset.X)[:5])}")
        return model.features


if __name__ == "__main__":
    main()
