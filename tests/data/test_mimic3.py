"""MIMIC-III: statistics by hand, on a made-up folder."""

import csv
import math

import numpy as np
import pytest
from scipy import stats

from lessvfl.data import DataConfig, load, prepare
from lessvfl.data.sets import mimic3
from lessvfl.errors import DataError

HEADER = ["Hours", *mimic3.VARIABLES]
EYE = "Glascow coma scale eye opening"


def write_stay(path, rows):
    """Write a time series from (hour, {variable: cell}) pairs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(HEADER)
        for hour, cells in rows:
            writer.writerow([hour, *(cells.get(name, "") for name in HEADER[1:])])


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "in-hospital-mortality"
    rng = np.random.default_rng(0)
    for part, n in (("train", 6), ("test", 3)):
        lines = ["stay,y_true"]
        for i in range(n):
            name = f"{i}_episode1_timeseries.csv"
            rows = [
                (hour, {v: f"{rng.normal(10, 2):.4f}" for v in mimic3.VARIABLES})
                for hour in (0.5, 10, 20, 30, 47)
            ]
            for _, cells in rows:
                for variable, codes in mimic3.CODES.items():
                    cells[variable] = rng.choice(list(codes))
            write_stay(root / part / name, rows)
            lines.append(f"{name},{i % 2}")
        (root / f"{part}_listfile.csv").write_text("\n".join(lines) + "\n")
    write_stay(
        root / "train" / "0_episode1_timeseries.csv",
        [
            (0, {"Heart Rate": "60", EYE: "4 Spontaneously"}),
            (2, {"Heart Rate": "90", EYE: "Spontaneously"}),
            (4, {"Glucose": "5.5", EYE: "None"}),
            (10, {"Heart Rate": "60", EYE: "2 To pain"}),
        ],
    )
    return tmp_path


def test_statistics_by_hand(folder):
    data = load("mimic3", data_dir=folder)
    row = dict(zip(data.X.names, data.X.numeric[0], strict=True))
    # Heart rate 60, 90, 60 at hours 0, 2, 10.
    assert row["heart_rate_all_min"] == 60
    assert row["heart_rate_all_max"] == 90
    assert row["heart_rate_all_mean"] == 70
    assert row["heart_rate_all_std"] == pytest.approx(math.sqrt(200))
    # third moment (2 * -1000 + 8000) / 3 = 2000 over 200 ** 1.5
    assert row["heart_rate_all_skew"] == pytest.approx(2000 / 200**1.5)
    assert row["heart_rate_all_count"] == 3
    # Hours 0 to 1, 0 to 2.5, 0 to 5; 9 to 10, 7.5 to 10, 5 to 10.
    counts = [row[f"heart_rate_{p}_count"] for p in mimic3.SUB_PERIODS]
    assert counts == [3, 1, 2, 2, 1, 1, 1]
    assert row["heart_rate_first25_mean"] == 75
    assert row["heart_rate_last50_mean"] == 60
    assert row["heart_rate_first10_skew"] == 0
    # One measurement is in every sub-period.
    assert [row[f"glucose_{p}_mean"] for p in mimic3.SUB_PERIODS] == [5.5] * 7
    # Texts 4, 4, 0, 2.
    assert row["glascow_coma_scale_eye_opening_all_mean"] == 2.5
    assert math.isnan(row["ph_all_count"])


def test_order_and_number_of_features(folder):
    names = mimic3.feature_names()
    assert len(names) == 17 * 7 * 6
    assert names[42] == "diastolic_blood_pressure_all_min"
    assert names[6] == "capillary_refill_rate_first10_min"
    assert names[-2:] == ["ph_last50_skew", "ph_last50_count"]
    data = load("mimic3", data_dir=folder)
    assert data.X.names == tuple(names[:712])
    assert data.X.n_rows == 6
    assert data.X_test is not None
    assert data.X_test.n_rows == 3
    assert data.y.tolist() == [0, 1] * 3
    assert (data.n_parties, data.scale) == (4, "standardize")


def test_sub_periods_in_measurements():
    """All; first 10, 25, 50 %; last 10, 25, 50 % of a hundred hours."""
    table = mimic3.statistics(np.arange(101.0), np.arange(101.0)).reshape(7, 6)
    least, most, count = table[:, 0], table[:, 1], table[:, 5]
    assert least.tolist() == [0, 0, 0, 0, 90, 75, 50]
    assert most.tolist() == [100, 10, 25, 50, 100, 100, 100]
    assert count.tolist() == [101, 11, 26, 51, 11, 26, 51]


def test_statistics_agree_with_scipy():
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 48, size=40))
    values = rng.gamma(2.0, size=40)
    table = mimic3.statistics(times, values).reshape(7, 6)
    begin, end = times[0], times[-1]
    for (start, stop), row in zip(mimic3.SUB_PERIODS.values(), table, strict=True):
        low, high = begin + (end - begin) * start, begin + (end - begin) * stop
        part = values[(times > low - 1e-6) & (times < high + 1e-6)]
        skew = stats.skew(part) if len(part) > 1 else 0.0
        expected = [part.min(), part.max(), part.mean(), part.std(), skew, len(part)]
        np.testing.assert_allclose(row, expected, rtol=1e-9)


def test_prepare_fills_in_and_standardises(folder):
    data = load("mimic3", data_dir=folder / "in-hospital-mortality")
    with pytest.warns(match="one value in all training rows"):
        problem = prepare(data, DataConfig(scale="standardize"))
    assert [party.X_train.shape for party in problem.parties] == [(6, 178)] * 4
    assert problem.imputed == int(np.isnan(data.X.numeric).sum())
    assert "fitted on the training rows" in problem.notes[0]


def task(folder):
    return folder / "in-hospital-mortality"


def spoil_cell(folder):
    write_stay(
        task(folder) / "train" / "0_episode1_timeseries.csv", [(0, {EYE: "Winking"})]
    )


def spoil_header(folder):
    (task(folder) / "train" / "0_episode1_timeseries.csv").write_text("Hours,pH\n")


def empty_stay(folder):
    (task(folder) / "train" / "0_episode1_timeseries.csv").write_text("")


@pytest.mark.parametrize(
    ("spoil", "fragment"),
    [
        (
            lambda f: (task(f) / "train_listfile.csv").unlink(),
            "in a local folder.*Got '",
        ),
        (
            lambda f: (task(f) / "test_listfile.csv").unlink(),
            "test_listfile.csv'. Got no",
        ),
        (
            lambda f: (task(f) / "test" / "1_episode1_timeseries.csv").unlink(),
            "must have its time series. Got no file .*1_episode1",
        ),
        (
            lambda f: (task(f) / "test_listfile.csv").write_text("a,b\nc,0\n"),
            "header stay,y_true.*Got the header 'a,b' and 1 lines",
        ),
        (lambda f: (task(f) / "test_listfile.csv").write_text(""), "and 0 lines"),
        (
            lambda f: (task(f) / "test_listfile.csv").write_text("stay,y_true\na,2\n"),
            "a file name and 0 or 1",
        ),
        (spoil_cell, f"'{EYE}' in .*must be numbers or known texts.*Winking"),
        (spoil_header, "Got none named 'Capillary refill rate'"),
        (empty_stay, "Got none named 'Hours'"),
    ],
)
def test_refusals(folder, spoil, fragment):
    spoil(folder)
    with pytest.raises(DataError, match=fragment):
        load("mimic3", data_dir=folder)


def test_no_folder(monkeypatch):
    monkeypatch.delenv("LESSVFL_DATA", raising=False)
    with pytest.raises(DataError, match=r"'mimic3'.*LESSVFL_DATA. Got no folder"):
        load("mimic3")
