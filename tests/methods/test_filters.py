"""The filters: what they keep, what each side sees, and their bill."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.naive_bayes import CategoricalNB

import lessvfl
from lessvfl import data
from lessvfl.core import limits, sharing
from lessvfl.core.limits import split_rows
from lessvfl.core.plans import QueryPlan
from lessvfl.core.sharing import Ring
from lessvfl.errors import ConfigError
from lessvfl.methods.filters import FilterParty
from lessvfl.party import Party
from lessvfl.wire import messages

FILTERS = ("gini-filter", "iv-filter")
FEW = {"train_epochs": 1, "batch_size": 64}


def simulate(
    method: str,
    seeds: list[int],
    parties: int = 3,
    task: str = "binary",
    **more: Any,
) -> Any:
    made = "regression" if task == "multiclass" else task
    options = {"n_samples": 300, "n_test": 60, "task": made}
    dataset = data.load("synthetic", options=options)
    if task == "multiclass":
        thirds = np.digitize(dataset.y, np.quantile(dataset.y, [1 / 3, 2 / 3]))
        dataset = data.from_arrays(dataset.X.numeric, thirds)
    own = lessvfl.resolve(method, "default", dataset, FEW | more)
    return lessvfl.simulate(lessvfl.Job(dataset, own, parties=parties), seeds)


def kept(run: Any) -> dict[str, Any]:
    return {name: own["kept"] for name, own in run.numbers["features"].items()}


@pytest.mark.parametrize("method", FILTERS)
def test_under_sharing_and_in_the_clear_the_same_is_kept(method: str) -> None:
    shared, clear = (simulate(method, [0, 1], secret=s) for s in ("sharing", "none"))
    for one, other in zip(shared, clear, strict=True):
        assert kept(one) == kept(other)
        assert one.numbers["accuracy"] == other.numbers["accuracy"]
    assert kept(shared[0]) != kept(shared[1])


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("method", FILTERS)
def test_by_rows_held_out_sharing_and_the_clear_keep_the_same(
    method: str, task: str
) -> None:
    both = [
        simulate(method, [0, 1], task=task, how_many="held-out", secret=secret)
        for secret in ("sharing", "none")
    ]
    for one, other in zip(*both, strict=True):
        assert kept(one) == kept(other)
        assert one.ratings == other.ratings
        n_rows = len(one.problem.y_train) - round(0.2 * len(one.problem.y_train))
        for rated in one.ratings.values():  # of the rows that are not held out
            for feature in rated["features"]:
                assert sum(line["rows"] for line in feature["bins"]) == n_rows
    assert any(kept(both[0][0]).values())


def test_rows_held_out_keep_what_matters() -> None:
    """Also beside a category of many levels, whose score is large by chance."""
    rng, n = np.random.default_rng(0), 4000
    table = pd.DataFrame({f"x{i}": rng.normal(size=n) for i in range(7)})
    table["street"] = np.char.add("no. ", rng.integers(0, 50, n).astype(str))
    y = (table.x0 + table.x5 + 5 * rng.normal(size=n) > 0).astype(int)
    dataset = data.from_arrays(table, y)
    more = {"how_many": "held-out", "split": "stratified"}
    own = lessvfl.resolve("iv-filter", "default", dataset, FEW | more)
    (run,) = lessvfl.simulate(lessvfl.Job(dataset, own, parties=2), [0])
    assert {name for names in kept(run).values() for name in names} == {"x0", "x5"}
    others = run.ratings["party1"]["features"][1:]
    assert others[0]["feature"] == "street"
    assert others[0]["score"] > 2 * others[1]["score"]


def test_keep_is_how_many_each_party_keeps() -> None:
    (run,) = simulate("iv-filter", [0], keep=2)
    assert [len(names) for names in kept(run).values()] == [2, 2, 2]


def test_the_bill_in_closed_form() -> None:
    """16 bits an element: bins of every row up, labels and shares down."""
    (run,) = simulate("gini-filter", [0], parties=2, keep=1)
    stage = run.numbers["communication"]["by_stage"]["select_features"]
    n_rows, ring = len(run.problem.y_train), 2  # bytes of an element
    widths = [table.X_train.shape[1] * 10 for table in run.problem.parties]
    key, number = 32, 4
    up = sum(
        key + number + (key + ring * width) + ring * n_rows * width for width in widths
    )
    down = sum((key + 2 * number) + (key + ring * n_rows) + ring * w for w in widths)
    assert stage == {"up": up, "down": down, "rounds": 4}
    (clear,) = simulate("gini-filter", [0], parties=2, keep=1, secret="none")
    stage = clear.numbers["communication"]["by_stage"]["select_features"]
    assert stage == {"up": 0, "down": 2 * 4 * n_rows, "rounds": 1}


def test_the_bill_of_rows_held_out_in_closed_form() -> None:
    """Two rounds more: largest scores, sums at 12 limits of a fifth of the rows."""
    bills = {}
    for secret in ("sharing", "none"):
        more = {"how_many": "held-out", "secret": secret}
        (run,) = simulate("gini-filter", [0], parties=2, **more)
        bills[secret] = run.numbers["communication"]["by_stage"]["select_features"]
    n_rows, value = len(run.problem.y_train), 4
    n_held = round(0.2 * n_rows)
    n_used, ring, key = n_rows - n_held, 2, 32
    widths = [table.X_train.shape[1] * 10 for table in run.problem.parties]
    sums = 2 * (value + value * n_held * 12)
    sizes = {name: own["of"] for name, own in run.numbers["components"].items()}
    sums += sum(value * sizes[name] for name, own in kept(run).items() if not own)
    limits = 2 * 2 * value
    down = limits + 2 * value * n_used
    assert bills["none"] == {"up": sums, "down": down, "rounds": 3}
    up = sum(key + 4 + (key + ring * w) + ring * n_used * w for w in widths)
    down = sum((key + 8) + (key + ring * n_used) + ring * w for w in widths)
    assert bills["sharing"] == {"up": up + sums, "down": down + limits, "rounds": 6}


def test_a_party_plans_what_it_shows_of_rows_held_out() -> None:
    dataset = data.load("synthetic", options={"n_samples": 300, "n_test": 60})
    shown = {}
    for secret in ("sharing", "none"):
        more = {"how_many": "held-out", "secret": secret}
        own = lessvfl.resolve("iv-filter", "default", dataset, more)
        query, *_ = own.config.plans(3)
        assert isinstance(query, QueryPlan)
        shown[secret] = (query.n_queries, query.n_values)
    assert shown == {"sharing": (6, 0), "none": (3, pytest.approx(0.2 * 12 * 32))}
    own = lessvfl.resolve("iv-filter", "default", dataset, more | {"keep": 3})
    query, *_ = own.config.plans(3)
    assert isinstance(query, QueryPlan)
    assert query.n_queries == 1


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any, Any]]:
    """Return what every party is asked and answers in stages of queries."""
    seen: list[tuple[str, Any, Any]] = []
    answer = Party.handle

    def watched(party: Party, request: Any) -> Any:
        reply = answer(party, request)
        if isinstance(request, messages.Query):
            seen.append((party.name, request, reply))
        return reply

    monkeypatch.setattr(Party, "handle", watched)
    return seen


def is_uniform(values: torch.Tensor) -> bool:
    """Test the upper bytes of elements of the ring of 16 bits against chance."""
    cells = (Ring(16).unpack(values) >> 8).flatten().numpy()
    observed = np.bincount(cells, minlength=256)
    return float(stats.chisquare(observed).pvalue) > 1e-4


def test_the_server_sees_uniform_numbers_and_a_party_counts(
    traffic: list[tuple[str, Any, Any]],
) -> None:
    (run,) = simulate("gini-filter", [0], parties=2)
    tables = {table.name: table for table in run.problem.parties}
    y = torch.from_numpy(run.problem.y_train)
    assert len(traffic) == 2 * 4
    for name, query, reply in traffic:
        n_rows, width = len(y), tables[name].X_train.shape[1] * 10
        match query.step:
            case 0:  # the server learns the number of bins
                assert reply.arrays[1].tolist() == [width]
            case 1:  # a dealer learns sizes; the server's share of a'b is random
                assert is_uniform(reply.arrays[1])
            case 2:  # labels less their mask; bins of every row less theirs
                _, labels = query.arrays
                assert labels.shape == (n_rows, 1)
                assert not torch.equal(Ring(16).unpack(labels)[:, 0], y)
                (rows,) = reply.arrays
                assert rows.shape == (n_rows, width)
                assert is_uniform(rows)
            case 3:  # alone, the server's share of the counts is random, too
                assert is_uniform(query.arrays[0])
                assert isinstance(reply, messages.Done)


@pytest.mark.parametrize("method", FILTERS)
def test_no_message_tells_a_rate(
    traffic: list[tuple[str, Any, Any]], method: str
) -> None:
    """Scores, weights of evidence and parts are real numbers; none of them travels."""
    (run,) = simulate(method, [0])
    assert run.ratings.keys() == kept(run).keys()
    for _, query, reply in traffic:
        arrays = (*query.arrays, *getattr(reply, "arrays", ()))
        assert not any(array.is_floating_point() for array in arrays)
    assert "ratings" not in json.dumps(run.numbers)


@pytest.mark.parametrize("parties", [2, 3])
def test_under_sharing_the_server_sees_sums_of_all_parties_alone(
    traffic: list[tuple[str, Any, Any]], parties: int
) -> None:
    """What each sends is uniform; together it is what all say in the clear."""
    said = {}
    for secret, step in (("sharing", 4), ("none", 1)):
        more = {"how_many": "held-out", "secret": secret}
        simulate("iv-filter", [0], parties=parties, **more)
        said[secret] = [r.arrays[0] for _, q, r in traffic if q.step == step][-parties:]
    for part in said["sharing"]:
        assert part.dtype == torch.int32
        cells = (Ring(32).unpack(part) >> 24).flatten().numpy()
        observed = np.bincount(cells, minlength=256)
        assert float(stats.chisquare(observed).pvalue) > 1e-4
    total = torch.stack(said["none"]).double().sum(dim=0)
    assert total.abs().max() > 1
    assert torch.equal(sharing.revealed_sum(said["sharing"]), total)


def test_sums_are_what_naive_bayes_says(
    traffic: list[tuple[str, Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scikit-learn's, of the same bins, at a limit that every feature reaches."""
    seen: list[FilterParty] = []
    make = FilterParty.__init__

    def watched(party: FilterParty, *more: Any) -> None:
        make(party, *more)
        seen.append(party)

    monkeypatch.setattr(FilterParty, "__init__", watched)
    monkeypatch.setattr(limits, "above", lambda scores, *_: scores > -torch.inf)
    more = {"how_many": "held-out", "secret": "none"}
    (run,) = simulate("iv-filter", [0], parties=2, **more)
    held, used = split_rows(len(run.problem.y_train), 0)
    codes = [
        torch.cat([party.bins.codes, party.held_out.codes], dim=1)
        for party in seen
        if party.held_out is not None
    ]
    firsts = [own.min(dim=1, keepdim=True).values for own in codes]
    local = torch.cat([c - f for c, f in zip(codes, firsts, strict=True)]).T.numpy()
    n = len(used)
    y = run.problem.y_train.astype(int)
    n_bins = [int(size) for party in seen for size in party.bins.sizes]
    model = CategoricalNB(alpha=0.5, min_categories=n_bins)
    model.fit(local[:n], y[used])
    found = model.predict_joint_log_proba(local[n:])
    odds = found[:, 1] - found[:, 0] + np.log((y[used] == 0).sum())
    odds -= np.log((y[used] == 1).sum())
    sent = [reply.arrays[0] for _, query, reply in traffic if query.step == 1]
    total = torch.stack(sent).sum(dim=0).view(len(held), 12)
    assert total[:, -1].tolist() == pytest.approx(odds.tolist(), abs=2e-3)


def test_masks_are_new_in_every_run(traffic: list[tuple[str, Any, Any]]) -> None:
    for _ in range(2):
        simulate("gini-filter", [0], parties=2)
    steps = [(name, q, r) for name, q, r in traffic if q.step == 2]
    first, again = steps[:2], steps[2:]
    for (name, query, reply), (other, query_again, reply_again) in zip(
        first, again, strict=True
    ):
        assert name == other
        assert not torch.equal(query.arrays[1], query_again.arrays[1])
        assert not torch.equal(reply.arrays[0], reply_again.arrays[0])


def test_in_the_clear_a_party_is_sent_the_labels(
    traffic: list[tuple[str, Any, Any]],
) -> None:
    (run,) = simulate("gini-filter", [0], parties=2, secret="none")
    for _, query, _ in traffic:
        assert query.arrays[0].tolist() == run.problem.y_train.astype(int).tolist()


def test_one_party_has_no_dealer() -> None:
    with pytest.raises(ConfigError, match="must be none with one party"):
        simulate("iv-filter", [0], parties=1)
    (run,) = simulate("iv-filter", [0], parties=1, secret="none")
    assert kept(run)


def rated(method: str, **more: Any) -> dict[str, Any]:
    """Return by feature what a party says of a tiny table of 120 rows."""
    n = np.arange(120)
    colour = np.array(["red", "blue", None], dtype=object)[n % 3]
    age = np.where(n % 4 == 0, np.nan, 20.0 + n // 40)
    table = pd.DataFrame({"colour": colour, "age": age, "x": n % 7, "z": n % 5})
    y = (n % 3 == 0) | (n < 6)
    dataset = data.from_arrays(table, y.astype(int))
    own = lessvfl.resolve(method, "default", dataset, FEW | {"test_share": 0.0} | more)
    job = lessvfl.Job(dataset, own, parties=2, curve=False)
    (run,) = lessvfl.simulate(job, [0])
    assert "ratings" not in str(run.numbers)
    return {
        one["feature"]: {**one, "measure": how["measure"]}
        for how in run.ratings.values()
        for one in how["features"]
    }


def test_information_value_of_a_tiny_table_by_hand() -> None:
    """Categories are bins, missing cells are; 44 events of 120 rows."""
    found = rated("iv-filter")
    lines = {line["bin"]: line for line in found["colour"]["bins"]}
    counts = {"red": (0, 40), "blue": (38, 2), "missing": (38, 2)}
    assert {k: tuple(line["classes"]) for k, line in lines.items()} == counts
    assert list(lines) == ["blue", "red", "missing"]
    total = 0.0
    for name, (others, events) in counts.items():
        share, other = (events + 0.5) / (44 + 1.5), (others + 0.5) / (76 + 1.5)
        woe = math.log(share / other)
        assert lines[name]["rows"] == 40
        assert lines[name]["woe"] == [pytest.approx(woe)]
        assert lines[name]["part"] == pytest.approx((share - other) * woe)
        total += (share - other) * woe
    assert found["colour"]["score"] == pytest.approx(total)
    assert found["colour"]["measure"] == "information value"
    ages = [(line["bin"], line["rows"]) for line in found["age"]["bins"]]
    assert ages == [("20.0", 30), ("21.0", 30), ("22.0", 30), ("missing", 30)]


def test_gini_impurity_of_a_tiny_table_by_hand() -> None:
    found = rated("gini-filter")["colour"]
    before = 1 - (44 / 120) ** 2 - (76 / 120) ** 2
    parts = {
        "blue": 1 - 0.95**2 - 0.05**2,
        "red": 0.0,
        "missing": 1 - 0.95**2 - 0.05**2,
    }
    for line in found["bins"]:
        assert "woe" not in line
        expected = (1 - parts[line["bin"]] / before) / 3
        assert line["part"] == pytest.approx(expected)
    assert found["score"] == pytest.approx(sum(line["part"] for line in found["bins"]))
    assert found["measure"] == "Gini impurity removed"


def test_with_more_classes_every_one_has_its_weight_of_evidence() -> None:
    (run,) = simulate("iv-filter", [0], task="multiclass")
    n_classes = run.problem.n_classes
    for how in run.ratings.values():
        for one in how["features"]:
            assert {len(line["woe"]) for line in one["bins"]} == {n_classes}
            assert sum(line["part"] for line in one["bins"]) == pytest.approx(
                one["score"]
            )


def test_useful_columns_stay_and_noise_goes() -> None:
    dataset = data.load("breast-cancer")
    own = lessvfl.resolve("iv-filter", "default", dataset, {"train_epochs": 2})
    job = lessvfl.Job(dataset, own, parties=3, spurious=1.0)
    (run,) = lessvfl.simulate(job, [0])
    assert run.numbers["spurious"]["removed_share"] >= 0.9
    assert run.numbers["spurious"]["real_kept_share"] >= 0.8
