"""From probabilities to decisions: against scikit-learn, and by definition."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from sklearn.isotonic import IsotonicRegression

from lessvfl import data
from lessvfl.errors import ConfigError, DataError, RecordError
from lessvfl.run.decide import fitting, scores
from lessvfl.run.decide.evaluation import Asked, evaluate, to_keep
from lessvfl.run.decide.fitting import (
    EVERYBODY,
    NOBODY,
    Aim,
    choose,
    outcome,
    read_aim,
    threshold_of,
)
from lessvfl.run.decide.kept import (
    DECISION_NAME,
    KeptDecision,
    marks_of_rows,
    read_decision,
)
from lessvfl.run.decide.recalibration import (
    Recalibration,
    logit,
    outputs_of,
    shares_of,
    sigmoid,
)
from lessvfl.run.decide.scored import ScoredRows, rows_of_predictions
from lessvfl.run.decide.scores import by_group

N = 600
COST = Aim("cost", fp=1, fn=20)
LATE: dict[str, Any] = {"name": "late", "digest": "digest"}
LATER: dict[str, Any] = LATE | {"name": "later"}


def some_rows(n: int = N, positive: int = 1, ties: bool = False, seed: int = 0) -> Any:
    """Return rows whose probabilities are too sure, with a tenth of positives."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < (0.1 if positive else 0.9)).astype(np.int64)
    z = 3 * rng.normal(1.2 * (2 * y - 1), 1, n) + 1
    if ties:
        z = np.round(z / 2) * 2
    groups = rng.choice(["north", "south"], n).astype(object)
    groups[:30] = "west"
    names = ("bad", "good") if positive == 0 else ("good", "bad")
    own = (names, y, z[:, None], positive, None, groups)
    return ScoredRows("binary", *own)


def many_rows(n: int = N) -> ScoredRows:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 3, n)
    z = 2 * (rng.normal(size=(n, 3)) + 1.5 * np.eye(3)[y])
    return ScoredRows("multiclass", ("a", "b", "c"), y, z)


def some_numbers(n: int = N) -> ScoredRows:
    rng = np.random.default_rng(2)
    y = rng.normal(100, 20, n)
    return ScoredRows("regression", (), y, (y + rng.normal(0, 10, n))[:, None])


# ------------------------------------------------------------------------------ ranking


@pytest.mark.parametrize("positive", [0, 1])
@pytest.mark.parametrize("ties", [False, True])
def test_ks_and_gini_by_definition(positive, ties):
    rows = some_rows(positive=positive, ties=ties)
    found = scores.ranking(rows)
    hits, odds = rows.hits, rows.odds
    gaps = [
        (odds[hits] >= cut).mean() - (odds[~hits] >= cut).mean()
        for cut in np.unique(odds)
    ]
    assert found["ks"] == pytest.approx(max(gaps))
    assert found["gini"] == pytest.approx(2 * metrics.roc_auc_score(hits, odds) - 1)
    assert found["positive"] == "bad"


def test_curves_are_scikit_learns_and_not_too_long():
    rows = some_rows(20_000)
    found = scores.curves(rows.odds, rows.hits)
    roc, both = found["roc"], found["precision_recall"]
    assert len(roc["fpr"]) <= scores.MOST_POINTS
    assert len(both["recall"]) <= scores.MOST_POINTS
    area = metrics.auc(roc["fpr"], roc["tpr"])
    assert area == pytest.approx(metrics.roc_auc_score(rows.hits, rows.odds), abs=1e-3)
    assert (roc["fpr"][0], roc["tpr"][-1]) == (0, 1)
    assert (both["recall"][0], both["recall"][-1]) == (0, 1)
    assert both["precision"][-1] == pytest.approx(rows.hits.mean())
    at = len(roc["fpr"]) // 2
    taken = rows.p[:, 1] >= roc["cut_off"][at] - 1e-12
    assert taken[rows.hits].mean() == pytest.approx(roc["tpr"][at])


def test_lift_by_hand():
    odds = np.arange(20.0)
    hits = np.zeros(20, dtype=bool)
    hits[[19, 18, 15, 3]] = True
    lines = scores.lift(odds, hits)
    assert [line["rows"] for line in lines[:3]] == [2, 4, 6]
    assert lines[0] == {
        "share": 0.1,
        "rows": 2,
        "precision": 1.0,
        "captured": 0.5,
        "lift": 5.0,
    }
    assert lines[2]["precision"] == pytest.approx(3 / 6)
    assert lines[-1]["lift"] == pytest.approx(1)


def test_lift_of_ties_does_not_depend_on_the_order_of_rows():
    rows = some_rows(ties=True)
    first = scores.lift(rows.odds, rows.hits)
    back = scores.lift(rows.odds[::-1], rows.hits[::-1])
    assert [a["lift"] for a in first] == pytest.approx([b["lift"] for b in back])
    same = scores.lift(np.zeros(N), rows.hits)
    assert [line["lift"] for line in same] == pytest.approx([1.0] * 10)


def test_calibration_by_tenths():
    rows = some_rows()
    lines = scores.calibration(rows.p[:, 1], rows.hits)
    assert sum(line["rows"] for line in lines) == N
    order = np.argsort(rows.p[:, 1], kind="stable")[-60:]
    assert lines[-1]["predicted"] == pytest.approx(rows.p[order, 1].mean())
    assert lines[-1]["observed"] == pytest.approx(rows.hits[order].mean())
    assert len(scores.calibration(rows.p[:3, 1], rows.hits[:3])) == 3


def test_many_classes_have_the_mean_of_each_against_the_others():
    rows = many_rows()
    found = evaluate(rows, Asked())
    p = rows.p
    areas = [metrics.roc_auc_score(rows.y == k, p[:, k]) for k in range(3)]
    assert found["gini"] == pytest.approx(2 * np.mean(areas) - 1)
    assert found["auc"] == pytest.approx(np.mean(areas))
    assert [one["auc"] for one in found["classes"]] == pytest.approx(areas)
    assert 0 < found["ks"] < 1
    assert "decisions" not in found
    json.dumps(found, allow_nan=False)


def test_rows_of_one_class_have_no_ranking():
    rows = some_rows()
    good = rows.take(np.flatnonzero(~rows.hits))
    found = evaluate(good, Asked())
    assert found["ks"] is found["gini"] is found["curves"] is found["lift"] is None
    assert set(found["undefined"]) >= {"auc", "ks", "gini"}
    assert found["decisions"]["recall"] is None
    json.dumps(found, allow_nan=False)


# ----------------------------------------------------------------------------- cut-offs


def brute(rows: ScoredRows, fp: float, fn: float) -> Any:
    """Return the least cost of any cut-off."""
    cuts = [-np.inf, *np.unique(rows.odds)]
    taken = [rows.odds > cut for cut in cuts]
    return min(fp * (t & ~rows.hits).sum() + fn * (~t & rows.hits).sum() for t in taken)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("fp", "fn"), [(1, 20), (1, 1), (50, 1), (1, 1e6), (1e6, 1)])
@pytest.mark.parametrize("positive", [0, 1])
def test_the_cut_off_by_cost_has_the_least_of_all(ties, fp, fn, positive):
    rows = some_rows(ties=ties, positive=positive)
    aim = Aim("cost", fp=fp, fn=fn)
    cut = choose(rows.odds, rows.hits, aim)
    assert cut is not None
    found = outcome(rows.hits, rows.odds > cut, aim)
    assert found["cost"] == pytest.approx(brute(rows, fp, fn))
    # The threshold of a model decides the same.
    deciding = dataclasses.replace(rows, threshold=threshold_of(cut, positive))
    assert np.array_equal(deciding.decided == positive, rows.odds > cut)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rate", [0.0001, 0.05, 0.1, 0.5, 0.9999])
def test_the_cut_off_by_rate_takes_as_many_as_allowed(ties, rate):
    rows = some_rows(ties=ties)
    cut = choose(rows.odds, rows.hits, Aim("rate", rate))
    assert cut is not None
    shares = [(rows.odds > one).mean() for one in (-np.inf, *rows.odds)]
    allowed = [share for share in shares if share <= rate + 1e-9]
    assert (rows.odds > cut).mean() == pytest.approx(max(allowed, default=0))


def test_the_cut_off_by_precision_takes_as_many_as_have_it():
    rows = some_rows()
    cut = choose(rows.odds, rows.hits, Aim("precision", 0.6))
    assert cut is not None
    taken = rows.odds > cut
    assert metrics.precision_score(rows.hits, taken) >= 0.6
    for lower in np.sort(rows.odds[~taken]):
        assert rows.hits[rows.odds >= lower].mean() < 0.6
    backwards = dataclasses.replace(rows, z=-rows.z)
    assert choose(backwards.odds, rows.hits, Aim("precision", 0.99)) is None
    with pytest.raises(DataError, match=r"precision of 0.99 on the rows. Got 0\."):
        fitting.fit(backwards, None, Aim("precision", 0.99))


def test_nobody_and_everybody():
    odds, hits = np.array([0.0, 1.0]), np.array([True, False])
    assert choose(odds, hits, Aim("cost", fp=9, fn=1)) == NOBODY
    assert choose(odds, hits, Aim("cost", fp=1, fn=9)) == EVERYBODY
    certain = np.array([[1e5], [-1e5]])
    for cut, taken in ((NOBODY, 0), (EVERYBODY, 2)):
        own = dataclasses.replace(some_rows(2), z=certain / 1e3)
        own = dataclasses.replace(own, threshold=threshold_of(cut, 1))
        assert own.decided.sum() == taken
    next_to = np.array([1.0, np.nextafter(1.0, 2)])
    between = choose(next_to, np.array([False, True]), Aim("cost", fp=1, fn=1))
    assert between is not None
    assert (next_to > between).tolist() == [False, True]


def test_outcome_is_scikit_learns():
    rows = some_rows()
    taken = rows.odds > 1
    found = outcome(rows.hits, taken, COST)
    assert found["precision"] == metrics.precision_score(rows.hits, taken)
    assert found["recall"] == metrics.recall_score(rows.hits, taken)
    assert found["rate"] == taken.mean()
    assert found["false_positive_rate"] == taken[~rows.hits].mean()
    assert found["cost"] == found["fp"] + 20 * found["fn"]
    assert sum(found[name] for name in ("tp", "fp", "fn", "tn")) == N


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("fp=1", None, None), "must be two costs above 0"),
        (("fp=1,fn=0", None, None), "must be two costs above 0"),
        (("fp=1,fn=2,tp=3", None, None), "must be two costs above 0"),
        (("fp=one,fn=2", None, None), "must be two costs above 0"),
        (("fp=1,fn=1e999", None, None), "must be two costs above 0"),
        ((None, 1.5, None), "'rate' option must be between 0 and 1. Got 1.5"),
        ((None, None, 0.0), "'precision' option must be between 0 and 1"),
        (("fp=1,fn=2", 0.5, None), "Got --cost and --rate"),
    ],
)
def test_aims_that_are_refused(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_aim(*given)


def test_aims_are_read():
    assert read_aim("fn=20, fp=1.5", None, None) == Aim("cost", fp=1.5, fn=20)
    assert read_aim(None, 0.1, None) == Aim("rate", 0.1)
    assert read_aim(None, None, None) is None


# ------------------------------------------------------------------------ recalibration


def test_isotonic_is_scikit_learns():
    rows = some_rows()
    how = Recalibration.fit("isotonic", rows.z, rows.y)
    right = IsotonicRegression(out_of_bounds="clip").fit(rows.p[:, 1], rows.y)
    later = some_rows(seed=5)
    found = shares_of(how.apply(later.z))[:, 1]
    assert found == pytest.approx(right.predict(later.p[:, 1]), abs=1e-8)


def test_platts_line_undoes_a_line():
    """Labels that were drawn with known log-odds; the model has others."""
    rng = np.random.default_rng(3)
    odds = rng.normal(-1, 2, 40_000)
    y = (rng.random(len(odds)) < sigmoid(odds)).astype(np.int64)
    how = Recalibration.fit("platt", (3 * odds - 2)[:, None], y)
    assert how.apply((3 * odds - 2)[:, None])[:, 0] == pytest.approx(odds, abs=0.35)
    assert how.maps[0][0][0] == pytest.approx(1 / 3, abs=0.02)
    twice = Recalibration.from_json(json.loads(json.dumps(dataclasses.asdict(how))))
    assert twice == how


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
def test_many_classes_are_fitted_as_scikit_learn_does(kind):
    """Each against all others, and then divided by their sum."""
    rows = many_rows()
    how = Recalibration.fit(kind, rows.z, rows.y)
    p = shares_of(how.apply(rows.z))
    assert p.sum(axis=1) == pytest.approx(1)
    assert metrics.log_loss(rows.y, p) < metrics.log_loss(rows.y, rows.p)
    if kind == "isotonic":
        each = [
            IsotonicRegression(out_of_bounds="clip")
            .fit(rows.p[:, k], rows.y == k)
            .predict(rows.p[:, k])
            for k in range(3)
        ]
        right = np.stack(each, axis=1)
        right /= right.sum(axis=1, keepdims=True)
        assert p == pytest.approx(right, abs=1e-6)


def test_probabilities_and_outputs_are_each_others():
    rows = many_rows()
    assert shares_of(outputs_of(rows.p)) == pytest.approx(rows.p)
    two = some_rows()
    assert outputs_of(two.p) == pytest.approx(two.z, abs=1e-6)
    certain = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert np.isfinite(outputs_of(certain)).all()
    assert shares_of(outputs_of(certain)) == pytest.approx(certain)
    assert np.isfinite(logit(np.array([0.0, 1.0]))).all()


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
@pytest.mark.parametrize("size", [0.01, 1, 1000])
def test_classes_that_are_told_apart_are_fitted_too(kind, size):
    """Platt's line would be infinitely steep."""
    y = np.arange(40) // 20
    z = size * np.linspace(-1, 1, 40)[:, None]
    p = shares_of(Recalibration.fit(kind, z, y).apply(z))[:, 1]
    assert ((p > 0.5) == y).all()
    assert 0 < p.min() < 1e-3
    assert 1 - 1e-3 < p.max() < 1


def test_recalibrations_that_are_refused():
    rows = some_rows()
    with pytest.raises(DataError, match="Platt's line must rise"):
        Recalibration.fit("platt", -rows.z, rows.y)
    with pytest.raises(DataError, match="must be of all classes"):
        Recalibration.fit("isotonic", rows.z, np.zeros(N, dtype=np.int64))
    two = Recalibration.fit("platt", rows.z, rows.y)
    with pytest.raises(DataError, match=r"of 1 outputs must be given as many. Got 3"):
        two.apply(many_rows().z)


# ----------------------------------------------------------- some rows, and the others


def test_rows_are_decided_by_others():
    """A row is fitted and decided on as if it were not there."""
    rows = some_rows(200)
    crossed = fitting.cross_fit(rows, "isotonic", COST)
    assert len(crossed.cuts) == fitting.N_FOLDS
    for k, (others, own) in enumerate(fitting._folds(rows)):
        decision, cut = fitting.fit(rows.take(others), "isotonic", COST)
        fold = rows.take(own).deciding(decision)
        assert np.array_equal(fold.z, crossed.rows.z[own])
        assert np.array_equal(fold.decided, crossed.decided[own])
        assert crossed.cuts[k] == cut
        assert not set(others) & set(own)


def test_a_cut_off_of_noise_saves_nothing():
    """Chosen and reported on the same rows, it seems to be worth something."""
    rng, aim = np.random.default_rng(4), Aim("cost", fp=3, fn=7)
    same, others, without = 0.0, 0.0, 0.0
    for _ in range(20):
        y = rng.permutation(np.arange(100) < 30).astype(np.int64)
        rows = ScoredRows("binary", ("no", "yes"), y, rng.normal(size=(100, 1)))
        cut = choose(rows.odds, rows.hits, aim)
        assert cut is not None
        decided = fitting.cross_fit(rows, None, aim).decided == 1
        same += outcome(rows.hits, rows.odds > cut, aim)["cost"]
        others += outcome(rows.hits, decided, aim)["cost"]
        without += outcome(rows.hits, np.zeros(100, dtype=bool), aim)["cost"]
    assert same < 0.97 * without < others


def test_what_is_reported_of_a_recalibration():
    rows = some_rows(2000)
    found = evaluate(rows, Asked("platt", COST), "where")
    how, cut = found["recalibration"], found["cut_off"]
    assert how["after"]["brier"] < how["before"]["brier"] == found["brier"]
    assert how["after"]["calibration_error"] < how["before"]["calibration_error"]
    assert cut["if_calibrated"] == pytest.approx(1 / 21)
    assert cut["cost"] < min(cut["cost_of_nobody"], cut["cost_of_everybody"])
    assert brute(rows, 1, 20) <= cut["cost"] < 1.2 * brute(rows, 1, 20)
    assert len(cut["folds"]) == fitting.N_FOLDS
    assert found["notes"] == [
        "The recalibration and cut-off are chosen on 4 of 5 folds of the rows and "
        "reported on the other, in turn; for later predictions all rows count.",
        f"What the cut-off does is therefore told of five, from {min(cut['folds']):.3g}"
        f" to {max(cut['folds']):.3g}; {cut['at']:.3g} itself takes "
        f"{cut['takes']:.1%} of these rows.",
    ]
    assert 0 < cut["takes"] < 1
    lines = found["groups"]["groups"]
    assert sum(line["tp"] for line in lines) == cut["tp"]
    json.dumps(found, allow_nan=False)


def test_too_few_rows_of_a_class_are_refused():
    rows = some_rows(200)
    few = np.concatenate([np.flatnonzero(~rows.hits), np.flatnonzero(rows.hits)[:4]])
    with pytest.raises(DataError, match=r"at least 5 must be of each class. Got 4 of"):
        evaluate(rows.take(few), Asked(aim=COST))


@pytest.mark.parametrize(
    ("rows", "asked", "sentence"),
    [
        (many_rows(), Asked(aim=COST), "A cut-off needs two classes. Got a model of 3"),
        (some_numbers(), Asked(aim=COST), "A cut-off needs classes. Got a regression"),
        (some_numbers(), Asked("platt"), "A recalibration needs classes. Got a reg"),
    ],
)
def test_tasks_that_have_none(rows, asked, sentence):
    with pytest.raises(ConfigError, match=sentence):
        evaluate(rows, asked)


def test_numbers_are_calibrated_by_tenths():
    rows = some_numbers()
    found = evaluate(rows, Asked())
    assert found["r2"] == pytest.approx(metrics.r2_score(rows.y, rows.z[:, 0]))
    assert len(found["calibration"]) == 10
    first = found["calibration"][0]
    assert first["observed"] > first["predicted"]  # noise draws the lowest down
    assert found["cut_off"] is None


def test_a_file_of_numbers_is_scored():
    model: Any = SimpleNamespace(
        task="regression", label_names=(), positive=1, rule=None
    )
    columns = {"prediction": np.array([1.0, 2.5, None], dtype=object)}
    two = {"prediction": columns["prediction"][:2]}
    rows = rows_of_predictions(model, two, [1, 2], "late")
    assert evaluate(rows, Asked())["mae"] == pytest.approx(0.25)
    with pytest.raises(DataError, match="Predictions must be finite in 'prediction'"):
        rows_of_predictions(model, columns, [1, 2, 3], "late")


# ------------------------------------------------------------------------------- groups


def test_scores_by_group_by_hand():
    rows = some_rows()
    found = by_group(rows, rows.decided, "where")
    assert [line["group"] for line in found["groups"]] == ["north", "south", "west"]
    assert found["few"] == ["west"]
    for line in found["groups"]:
        own = rows.groups == line["group"]
        hits, taken = rows.hits[own], rows.decided[own] == 1
        assert line["rows"] == own.sum()
        assert line["rate"] == pytest.approx(taken.mean())
        assert line["share"] == pytest.approx(hits.mean())
        assert line["recall"] == pytest.approx(metrics.recall_score(hits, taken))
        area = metrics.roc_auc_score(hits, rows.odds[own])
        assert line["auc"] == pytest.approx(area)
    north, south = (found["groups"][i]["rate"] for i in (0, 1))
    assert found["gaps"]["rate"] == pytest.approx(abs(north - south))
    assert found["rate_ratio"] == pytest.approx(min(north, south) / max(north, south))


@pytest.mark.parametrize("rows", [many_rows(), some_numbers()])
def test_other_tasks_have_groups_too(rows):
    halves = np.array(["a", "b"], dtype=object)[np.arange(N) % 2]
    halves[:5] = None
    grouped = rows.grouped(halves, "half")
    found = evaluate(grouped, Asked(), "half")
    lines = found["groups"]["groups"]
    assert [line["group"] for line in lines] == ["(missing)", "a", "b"]
    name = "mae" if rows.task == "regression" else "accuracy"
    mean = sum(line["rows"] * line[name] for line in lines) / N
    assert mean == pytest.approx(found[name])
    if rows.task == "multiclass":
        own = grouped.groups == "a"
        each = [
            metrics.roc_auc_score(rows.y[own] == k, rows.p[own, k]) for k in range(3)
        ]
        assert lines[1]["auc"] == pytest.approx(np.mean(each))
    assert found["warnings"] == [
        "Groups of 'half' with fewer than 100 rows, whose numbers say little: "
        "'(missing)'."
    ]


def test_groups_that_are_refused():
    rows = some_rows()
    with pytest.raises(DataError, match=r"at most 20 values to be scored by. Got 600"):
        rows.grouped(np.arange(N), "age")
    with pytest.raises(DataError, match="must have a cell for each of 600 rows"):
        rows.grouped(["a"], "where")


# ----------------------------------------------------------------------- what is kept


def test_what_is_kept_is_read_again_beside_the_same_model(tmp_path):
    rows = some_rows()
    kept = to_keep(rows, Asked("isotonic", COST), None, **LATE)
    kept.write(tmp_path, "model")
    again = read_decision(tmp_path, "model")
    assert again == kept
    assert "cut-off of" in kept.words
    assert kept.words.endswith("for 'bad' (cost fp=1, fn=20), by 600 rows of 'late'")
    one, other = rows.deciding(kept), rows.deciding(again)
    assert np.array_equal(one.z, other.z)
    assert np.array_equal(one.decided, other.decided)
    decision, _ = fitting.fit(rows, "isotonic", COST)
    assert np.array_equal(one.decided, rows.deciding(decision).decided)
    with pytest.raises(RecordError, match="kept for another network: remove the file"):
        read_decision(tmp_path, "another")


def test_a_new_cut_off_leaves_the_recalibration():
    rows = some_rows()
    first = to_keep(rows, Asked("isotonic", COST), None, **LATE)
    seen = rows.deciding(first)
    second = to_keep(seen, Asked(aim=Aim("rate", 0.1)), first, **LATER)
    assert second.recalibration == first.recalibration
    assert (rows.deciding(second).decided == 1).mean() <= 0.1
    third = to_keep(rows, Asked("platt"), None, **LATER)
    assert third.threshold is None


@pytest.mark.parametrize(
    "change",
    [
        {"recalibration": {"kind": "other", "maps": []}},
        {"recalibration": {"kind": "platt", "maps": [[[1.0], []]]}},
        {"recalibration": {"kind": "platt", "maps": [[["a"], [1]]]}},
        {"threshold": [0.0, 1.0]},
        {"threshold": 3},
        {"threshold": [float("nan"), 0.5]},
        {"threshold": [float("inf"), 0.5]},
        {"threshold": [0.5, 10**400]},
        {"recalibration": {"kind": "platt", "maps": [[[10**400], [1]]]}},
        {"recalibration": {"kind": "platt", "maps": [3]}},
        {"about": {}},
        {"about": None},
    ],
)
def test_a_file_that_was_changed_is_refused(tmp_path, change):
    rows = some_rows()
    path = to_keep(rows, Asked(aim=COST), None, **LATE).write(tmp_path, "m")
    assert path.name == DECISION_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RecordError, match="must be what 'lessvfl evaluate --keep'"):
        read_decision(tmp_path, "m")
    for text in ("{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(RecordError, match="must be what"):
            read_decision(tmp_path, "m")


def test_nothing_kept_changes_nothing():
    rows = some_rows()
    assert np.array_equal(rows.deciding(KeptDecision()).z, rows.z)


def test_rows_are_known_again_in_a_file_that_was_written_anew():
    """Its last digits may differ: pandas' own reader rounds them off."""
    table = data.load("breast-cancer")
    X = table.X.numeric
    moved = data.from_arrays(np.nextafter(X, np.inf), table.y).X
    first = marks_of_rows(table.X, table.y)
    assert len(first & marks_of_rows(moved, table.y)) == len(first) > 500
