"""Tables larger than memory: DuckDB makes a party's columns, lessvfl reads them.

A clinic has patients and their measurements, many for each patient. DuckDB joins and
aggregates the two on disk, with a bound on its memory, into one row a patient.

Run it: python examples/prepare_with_duckdb.py (pip install duckdb)
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from lessvfl import data
from lessvfl.run import profiles, simulate

TESTS = ["glucose", "crp", "sodium", "calcium"]
PARTIES = {
    "clinic": ["age", "n_*", *(f"{test}_*" for test in TESTS)],
    "insurer": ["claims", "plan_*"],
}

# What goes beyond the limit is put into the temporary folder.
CLINIC = """
SET memory_limit = '256MB'; SET temp_directory = '{folder}/spill';
COPY (
    SELECT patient, any_value(age) AS age, count(*) AS n_measurements, {aggregates}
    FROM '{folder}/patients.parquet'
    JOIN '{folder}/measurements.parquet' USING (patient)
    GROUP BY patient ORDER BY patient
) TO '{folder}/clinic.parquet' (FORMAT parquet)
"""
AGGREGATES = ", ".join(
    f"avg(value) FILTER (WHERE test = '{test}') AS {test}_mean, "
    f"stddev(value) FILTER (WHERE test = '{test}') AS {test}_spread"
    for test in TESTS
)

# For a simulation alone: between machines every side keeps its own file, and ids are
# aligned.
SIDE_BY_SIDE = """
COPY (
    SELECT * EXCLUDE (patient)
    FROM '{folder}/clinic.parquet' JOIN '{folder}/insurer.parquet' USING (patient)
    ORDER BY patient
) TO '{folder}/both.parquet' (FORMAT parquet)
"""


def write_raw_tables(folder: Path, n_patients: int, n_each: int) -> None:
    """Make up what the clinic and the insurer have, chance deciding on most of it."""
    rng = np.random.default_rng(0)
    patient = np.arange(n_patients)
    age = rng.normal(50, 15, n_patients).round()
    level = rng.normal(5, 1, (n_patients, len(TESTS)))
    spread = rng.uniform(0.2, 1.8, (n_patients, len(TESTS)))
    who = rng.integers(n_patients, size=n_patients * n_each * len(TESTS))
    which = rng.integers(len(TESTS), size=len(who))
    value = rng.normal(level[who, which], spread[who, which])
    claims = rng.normal(size=n_patients)
    score = (age - 50) / 15 + (level[:, 0] - 5) + 2 * (spread[:, 1] - 1) + claims
    measured = {"patient": who, "test": np.array(TESTS)[which], "value": value}
    insured = {"patient": patient, "claims": claims}
    insured |= {f"plan_{i}": rng.normal(size=n_patients) for i in range(5)}
    insured["risk"] = np.where(score > 0, "high", "low")  # the label
    for name, columns in {
        "patients": {"patient": patient, "age": age},
        "measurements": measured,
        "insurer": insured,
    }.items():
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")


def main(n_patients: int = 2000, n_each: int = 20) -> dict[str, tuple[str, ...]]:
    """Write raw tables, have DuckDB make columns of them, and run LESS-VFL on these."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_raw_tables(folder, n_patients, n_each)
        with duckdb.connect() as engine:
            engine.execute(CLINIC.format(folder=folder, aggregates=AGGREGATES))
            engine.execute(SIDE_BY_SIDE.format(folder=folder))
        dataset = data.load(folder / "both.parquet", label="risk")
    settings = profiles.resolve("less-vfl-auto", "default", dataset)
    (run,) = simulate.simulate(simulate.Job(dataset, settings, PARTIES), [0])
    for table in run.problem.parties:
        kept = run.model.features[table.name]
        n_held = len(table.features)
        print(f"{table.name} keeps {', '.join(kept)} of {n_held} columns")
    print(f"Test accuracy: {run.numbers['accuracy']['final']:.3f}")
    return run.model.features


if __name__ == "__main__":
    main()
