"""The contract of ``lessvfl run --json``: every key and type, and what they say."""

from __future__ import annotations

from typing import Any

import pytest

import lessvfl
from lessvfl.terms import MEASURES

SCORES: dict[str, tuple[str, ...]] = {str(k): v for k, v in MEASURES.items()}

METHODS = ("less-vfl-auto", "less-vfl", "local-lasso", "group-lasso", "plain")
MOMENTS = {"pretrained", "selected", "final", "best"}
AUTO = ["pretrain", "select_features", "train_first", "select_again", "train"]
STAGES = {
    "less-vfl-auto": {*AUTO, "embed"},
    "less-vfl": {"pretrain", "embed", "select_features", "train"},
    "local-lasso": {"pretrain", "select_features", "train"},
    "group-lasso": {"joint_lasso", "train"},
    "plain": {"train"},
}
CURVED = {  # the stages after whose epochs all networks fit each other
    "less-vfl-auto": AUTO,
    "less-vfl": ["pretrain", "select_features", "train", "train"],
    "local-lasso": ["pretrain", "select_features", "train", "train"],
    "group-lasso": ["joint_lasso"] * 4 + ["train", "train"],
    "plain": ["train", "train"],
}
POINT = {
    "stage",
    "epoch",
    "accuracy",
    "balanced_accuracy",
    "train_accuracy",
    "removed_share",
    "payload_bytes",
    "rounds",
    "paper_mib",
}
RUN = {
    "seed",
    "score",
    "accuracy",
    "balanced_accuracy",
    "baseline",
    "above_baseline",
    "predicted",
    "threshold",
    "undefined",
    "without",
    "intervals",
    "missed",
    "test_rows_seen",
    "spurious",
    "truth",
    "features",
    "importance",
    "selection",
    "components",
    "silent",
    "communication",
    "curve",
    "seconds",
}

# Every setting that a method reads, so that features and components really go.
SELECTING = {
    "train_epochs": 2,
    "batch_size": 100,
    "pretrain_epochs": 1,
    "server_epochs": 5,
    "server_step_size": 0.1,
    "lam_server": 0.1,
    "party_epochs": 5,
    "party_step_size": 0.02,
    "lam_party": 4,
}
GROUP_LASSO = {
    "train_epochs": 2,
    "batch_size": 100,
    "joint_epochs": 4,
    "learning_rate": 0.1,
    "lam_party": 0.65,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "less-vfl-auto": {"train_epochs": 2, "batch_size": 100, "pretrain_epochs": 1},
    "less-vfl": SELECTING,
    "local-lasso": {k: v for k, v in SELECTING.items() if "server" not in k},
    "group-lasso": GROUP_LASSO,
    "plain": {"train_epochs": 2, "batch_size": 100},
}

DATA: dict[str, dict[str, Any]] = {
    "breast-cancer": {},
    "digits": {},
    "synthetic": {"data.n_samples": 400, "data.task": "regression"},
}
TASKS = {"breast-cancer": "binary", "digits": "multiclass", "synthetic": "regression"}
CLASSES = {"breast-cancer": 2, "digits": 10, "synthetic": 0}


def options(settings: dict[str, Any]) -> list[str]:
    texts = {k: "none" if v is None else v for k, v in settings.items()}
    pairs = [f"{key}={value}" for key, value in texts.items()]
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture
def run_json(run_cli):
    """Return a function that runs a method and gives back its JSON object."""

    def run(data: str, method: str, *more: object, **settings: Any) -> Any:
        chosen = SETTINGS[method] | DATA.get(data, {}) | settings
        result = run_cli(
            "run", data, "--method", method, "--json", *more, *options(chosen)
        )
        assert result.code == 0, result.err
        assert result.out.count("\n") == 1
        return result.json

    return run


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def check_moments(run: Any, name: str, method: str) -> None:
    """Check the four moments of a measure against the curve they come from."""
    moments, curve = run[name], run["curve"]
    assert moments.keys() == MOMENTS
    by_stage = {point["stage"]: point[name] for point in curve}
    assert moments["final"] == curve[-1][name]
    assert moments["best"] == max(point[name] for point in curve)
    assert moments["pretrained"] == by_stage.get("pretrain")
    selected = by_stage.get("select_features", by_stage.get("joint_lasso"))
    assert moments["selected"] == selected
    assert (selected is None) == (method == "plain")
    assert all(value is None or is_number(value) for value in moments.values())


def check_measures(run: Any, task: str, method: str) -> None:
    measures = SCORES[task]
    assert run["score"] in measures
    assert run["baseline"].keys() == set(measures)
    assert run["above_baseline"] in (True, False)
    for name in measures:
        check_moments(run, name, method)
    if task == "regression":
        assert run["accuracy"] is None
        assert run["balanced_accuracy"] is None
    for name in {"auc", "average_precision", "r2"} - set(measures):
        assert name not in run


def check_features(run: Any, data: Any, size: int, planted: bool) -> None:
    names: list[str] = []
    n_spurious = n_spurious_removed = n_real_kept = 0
    for party, features in run["features"].items():
        assert features.keys() == {"kept", "removed"}
        own = features["kept"] + features["removed"]
        names += own
        noise = [name for name in own if name.startswith("spurious_")]
        assert sorted(noise) == [f"spurious_{party}_{i}" for i in range(len(noise))]
        n_spurious += len(noise)
        n_spurious_removed += len(set(noise) & set(features["removed"]))
        n_real_kept += len(set(features["kept"]) - set(noise))
    assert len(names) == len(set(names)) == data["n_features"]
    assert data["n_features"] - data["n_real"] == n_spurious
    if planted:
        assert run["spurious"] == {
            "planted": n_spurious,
            "removed": n_spurious_removed,
            "removed_share": pytest.approx(n_spurious_removed / n_spurious),
            "real_kept_share": pytest.approx(n_real_kept / data["n_real"]),
        }
        assert is_count(run["spurious"]["planted"])
        assert is_count(run["spurious"]["removed"])
    else:
        assert run["spurious"] is None
        assert n_spurious == 0
    for party, components in run["components"].items():
        assert party in run["features"]
        assert components.keys() == {"kept", "of"}
        assert is_count(components["kept"])
        assert components["kept"] <= components["of"] <= size


def check_truth(run: Any, data: Any, known: bool) -> None:
    truth = run["truth"]
    assert (truth is not None) == known
    if known:
        assert truth["significant"] + truth["other"] == data["n_features"]
        n_kept = sum(len(party["kept"]) for party in run["features"].values())
        n_good = truth["significant_kept"]
        assert n_kept == n_good + truth["other"] - truth["other_removed"]
        f1 = 2 * n_good / (n_kept + truth["significant"])
        assert truth["f1"] == pytest.approx(f1)


def check_bill(run: Any, method: str) -> None:
    bill = run["communication"]
    assert bill.keys() == {"payload_bytes", "rounds", "paper_mib", "by_stage"}
    assert bill["payload_bytes"].keys() == {"up", "down"}
    stages = bill["by_stage"]
    assert stages.keys() == STAGES[method] | {"evaluate"}
    for amounts in stages.values():
        assert amounts.keys() == {"up", "down", "rounds"}
        assert all(is_count(amount) for amount in amounts.values())
    cost = [amounts for stage, amounts in stages.items() if stage != "evaluate"]
    for way in ("up", "down"):
        assert bill["payload_bytes"][way] == sum(amounts[way] for amounts in cost)
    assert bill["rounds"] == sum(amounts["rounds"] for amounts in cost)
    assert is_number(bill["paper_mib"])
    last = run["curve"][-1]
    assert last["payload_bytes"] == sum(bill["payload_bytes"].values())
    assert last["rounds"] == bill["rounds"]
    assert last["paper_mib"] == bill["paper_mib"]


def check_curve(run: Any, task: str, method: str, planted: bool) -> None:
    assert [point["stage"] for point in run["curve"]] == CURVED[method]
    before = {"payload_bytes": 0, "rounds": 0, "paper_mib": 0.0}
    for point in run["curve"]:
        assert point.keys() == POINT | set(SCORES[task]) | {f"train_{run['score']}"}
        for name in ("accuracy", "balanced_accuracy", "train_accuracy"):
            value = point[name]
            assert value is None if task == "regression" else is_share(value)
        removed = point["removed_share"]
        assert is_share(removed) if planted else removed is None
        assert is_number(point["epoch"])
        for name, amount in before.items():
            assert point[name] >= amount
            before[name] = point[name]
        assert is_count(point["payload_bytes"])
        assert is_count(point["rounds"])
    if planted:
        share = run["spurious"]["removed_share"]
        assert run["curve"][-1]["removed_share"] == pytest.approx(share)


def check_consensus(found: Any) -> None:
    """Count by hand in how many runs every feature was kept."""
    runs = [run["features"] for run in found["runs"]]
    assert found["consensus"].keys() == runs[0].keys()
    for party, one in found["consensus"].items():
        assert one.keys() == {"recommended", "share", "verdicts"}
        assert one["verdicts"].keys() == {
            *runs[0][party]["kept"],
            *runs[0][party]["removed"],
        }
        kept = {name for run in runs for name in run[party]["kept"]}
        counts = {
            name: sum(name in run[party]["kept"] for run in runs) for name in kept
        }
        assert one["share"] == {name: n / len(runs) for name, n in counts.items()}
        assert list(one["share"].values()) == sorted(one["share"].values())[::-1]
        most = [name for name, n in counts.items() if 2 * n >= len(runs)]
        assert sorted(one["recommended"]) == sorted(most)
        if len(runs) == 1:
            assert one["recommended"] == runs[0][party]["kept"]


def check_contract(
    found: Any, name: str, method: str, *, planted: bool, target: bool = False
) -> None:
    task = TASKS[name]
    header = {"lessvfl", "data", "method", "profile", "config"}
    assert found.keys() == header | {"consensus", "ensemble", "runs"}
    check_consensus(found)
    assert found["lessvfl"] == lessvfl.__version__
    assert found["method"] == method
    data = found["data"]
    assert data.keys() == {
        "name",
        "n_train",
        "n_test",
        "n_features",
        "n_real",
        "n_missing",
        "n_flagged",
        "n_parties",
        "n_classes",
        "n_blocks",
        "n_equal_rows",
        "split",
        "task",
        "task_reason",
        "classes",
        "power",
        "score",
        "score_reason",
    }
    assert data["score"] in SCORES[task]
    rows = data["classes"] or {}
    assert len(rows) == CLASSES[name]
    if rows:
        assert sum(rows.values()) == data["n_train"] + data["n_test"]
    assert data["name"] == name
    assert data["n_classes"] == CLASSES[name]
    assert data["task"] == task
    assert data["task_reason"] is None or data["task_reason"]
    counts = {k: v for k, v in data.items() if k.startswith("n_")}
    assert all(map(is_count, counts.values()))
    assert isinstance(found["config"], dict)
    assert not any(isinstance(value, dict) for value in found["config"].values())
    assert found["config"].keys() >= SETTINGS[method].keys()
    for run in found["runs"]:
        own = set(SCORES[task])
        assert run.keys() == RUN | own | ({"target"} if target else set())
        assert is_count(run["seed"])
        assert 0 <= run["test_rows_seen"] <= 1
        assert len(run["features"]) == len(run["components"]) == data["n_parties"]
        check_measures(run, task, method)
        check_features(run, data, found["config"]["embedding_size"], planted)
        check_truth(run, data, known=name == "synthetic")
        check_bill(run, method)
        check_curve(run, task, method, planted)
        seconds = dict(run["seconds"])
        total = seconds.pop("total")
        assert total == pytest.approx(sum(seconds.values()))
        assert seconds.keys() >= STAGES[method]


@pytest.mark.parametrize(
    ("data", "method"),
    [
        *(("breast-cancer", method) for method in METHODS),
        ("digits", "less-vfl"),
        ("synthetic", "less-vfl-auto"),
        ("synthetic", "group-lasso"),
    ],
)
def test_contract(run_json, data, method):
    is_other = data != "breast-cancer"
    lam = {"lam_party": 0.3} if is_other and method != "less-vfl-auto" else {}
    more = ("--spurious", "0.5", "--seeds", "3,1", "--quiet")
    found = run_json(data, method, *more, **lam)
    check_contract(found, data, method, planted=True)
    assert [run["seed"] for run in found["runs"]] == [3, 1]
    assert found["profile"] == "default"
    if not is_other and method != "plain":  # some go, some stay
        parties = [own for run in found["runs"] for own in run["features"].values()]
        assert any(own["removed"] for own in parties)
        assert any(own["kept"] for own in parties)


@pytest.mark.parametrize("method", METHODS[:2])
def test_components_really_go(run_json, method):
    own: dict[str, Any] = {"split": "stratified"}
    if method == "less-vfl-auto":
        own["components_per_column"] = None  # as many as the published profiles have
    found = run_json("breast-cancer", method, "-q", **own)
    kept = found["runs"][0]["components"].values()
    assert any(one["kept"] < one["of"] for one in kept)


@pytest.mark.parametrize("profile", ["paper", "official-code"])
def test_published_profiles(run_json, profile):
    found = run_json("breast-cancer", "less-vfl", "--profile", profile, "-q")
    check_contract(found, "breast-cancer", "less-vfl", planted=False)
    assert found["profile"] == profile
    assert found["data"]["n_real"] == 28  # 30 columns do not divide among 4
    assert found["data"]["n_train"] == 455  # the first 80 % of 569


def test_seeds_together_equal_each_alone(run_json):
    """In single precision, to a row; tests/methods has all methods, to the bit."""
    # Eight bits a value would turn a difference in the last bit into a step.
    more = ("--spurious", "0.5", "--quiet", "--set", "bits=32")
    together = run_json("breast-cancer", "less-vfl", *more, "--seeds", "0,1")
    slack = 1.5 / together["data"]["n_test"]
    for run in together["runs"]:
        alone = run_json("breast-cancer", "less-vfl", *more, "--seeds", run["seed"])
        of_all: dict[str, Any] = {"runs": [], "consensus": None}  # what differs
        assert alone | of_all == together | of_all
        (other,) = alone["runs"]
        for exact in ("seed", "features", "components", "communication", "spurious"):
            assert run[exact] == other[exact]
        for here, there in zip(run["curve"], other["curve"], strict=True):
            for name, value in here.items():
                if "accuracy" in name or name == "auc":
                    assert value == pytest.approx(there[name], abs=slack)
                else:
                    assert value == there[name]
        for party, norms in run["importance"].items():
            assert norms == pytest.approx(other["importance"][party], rel=1e-3)


def test_spurious_shares_by_party(run_json):
    shares = "0.8,0.25,0.1,0"
    found = run_json("breast-cancer", "plain", "--spurious", shares, "-q")
    check_contract(found, "breast-cancer", "plain", planted=True)
    features = found["runs"][0]["features"]
    planted = [
        [name for name in party["kept"] if name.startswith("spurious_")]
        for party in features.values()
    ]
    # Columns 8, 8, 7 and 7.
    assert [len(names) for names in planted] == [6, 2, 0, 0]
    assert planted[1] == ["spurious_party1_0", "spurious_party1_1"]


@pytest.mark.parametrize(("given", "sizes"), [(3, [10, 10, 10]), ("20,10", [20, 10])])
def test_parties_by_number_and_by_size(run_json, given, sizes):
    found = run_json("breast-cancer", "plain", "--parties", given, "-q")
    features = found["runs"][0]["features"]
    assert list(features) == [f"party{i}" for i in range(len(sizes))]
    assert [len(party["kept"]) for party in features.values()] == sizes


def test_parties_by_file(run_json, tmp_path):
    path = tmp_path / "who holds what.yaml"
    path.write_text("clinic: ['mean*']\nlab: ['worst*', 'area error']\n")
    more = ("--parties", path, "--spurious", "0.5")
    found = run_json("breast-cancer", "plain", *more)
    features = found["runs"][0]["features"]
    assert list(features) == ["clinic", "lab"]
    assert len(features["clinic"]["kept"]) == 15
    assert "spurious_lab_4" in features["lab"]["kept"]
    assert "area error" in features["lab"]["kept"]
    assert found["data"]["n_real"] == 21
    assert found["data"]["n_parties"] == 2


def test_groups_by_file(run_json, tmp_path):
    path = tmp_path / "groups.yaml"
    path.write_text("size: ['mean radius', 'mean perimeter', 'mean area']\n")
    found = run_json("breast-cancer", "plain", "--groups", path, "-q")
    assert "size" in found["runs"][0]["features"]["party0"]["kept"]
    assert found["data"]["n_real"] == 28


@pytest.mark.parametrize("method", ["less-vfl", "group-lasso"])
def test_target_of_the_paper(run_json, method):
    more = ("--spurious", "0.5", "--seeds", "0,1", "--target", "paper", "-q")
    found = run_json("breast-cancer", method, *more)
    check_contract(found, "breast-cancer", method, planted=True, target=True)
    thresholds = set()
    for run in found["runs"]:
        target = run["target"]
        assert target.keys() == {
            "accuracy",
            "reached",
            "paper_mib",
            "payload_bytes",
            "rounds",
        }
        assert isinstance(target["reached"], bool)
        costs = [target[name] for name in ("paper_mib", "payload_bytes", "rounds")]
        hits = [
            [point[name] for name in ("paper_mib", "payload_bytes", "rounds")]
            for point in run["curve"]
            if point["accuracy"] >= target["accuracy"] and point["removed_share"] >= 0.8
        ]
        assert target["reached"] == bool(hits)
        assert costs == (hits[0] if hits else [None] * 3)
        thresholds.add(target["accuracy"])
    assert len(thresholds) == 1


def test_target_can_be_reached(run_json):
    more = ("--spurious", "0.5", "--target", "paper", "-q")
    own = {"lam_party": 7, "train_epochs": 10, "scale": "standardize"}
    own |= {"split": "stratified"}
    found = run_json("breast-cancer", "less-vfl", *more, **own)
    target = found["runs"][0]["target"]
    assert target["reached"] is True
    assert is_number(target["paper_mib"])
    assert is_count(target["payload_bytes"])
    assert is_count(target["rounds"])


def test_progress_stays_off_standard_output(run_cli):
    """Plain lines on standard error where there is no terminal."""
    command = ["run", "breast-cancer", "--method", "plain", "--json"]
    loud = run_cli(*command, *options(SETTINGS["plain"]))
    assert "training: 2 epochs" in loud.err.splitlines()
    assert loud.json["method"] == "plain"
