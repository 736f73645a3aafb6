"""Reasons over Flight: they add up, and tell what a party's policy allows."""

from __future__ import annotations

import csv
import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr
from tests.remote import test_predict
from tests.remote.test_predict import (
    HELD,
    IDS,
    WIDE,
    a_frame,
    a_party,
    a_session,
    common,
    everybody,
    in_process,
    order,
)

from lessvfl import data, load, report
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.explanation.shapley import mean_embedding
from lessvfl.remote import background
from lessvfl.remote.policy import Telling
from lessvfl.remote.predict import reasons
from lessvfl.run.reasons import ServerReasons
from lessvfl.run.record import EFFECTS, JOURNAL, read_journal
from lessvfl.wire import codec
from lessvfl.wire.codec import WireFrame
from lessvfl.wire.control import Agreed, Ask, Declined, Explain, Explained, Open
from lessvfl.wire.due import Due, NotDueError

ALSO_PLAIN = dataclasses.replace(WIDE, methods=("plain", "vertical-boost"))
TEXTS = {"age": "Your age"}


def telling(**how: Telling) -> dict[str, dict[str, Any]]:
    """Return the configs of parties that give reasons so."""
    policies = {
        name: dataclasses.replace(ALSO_PLAIN, reasons=how.get(name, "none"))
        for name in HELD
    }
    more = {"clinic": {"reason_texts": TEXTS}}
    return {
        name: {"policy": own, **more.get(name, {})} for name, own in policies.items()
    }


def train(out: Path, method: str, labels: Any = None, **settings: Any) -> Path:
    how = {"method": method, "settings": settings, "seeds": (0,)}
    return test_predict.train(out, ALSO_PLAIN, labels, **how)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run with all features, every side in it."""
    out = tmp_path_factory.mktemp("trained")
    return train(out, "plain", train_epochs=6.0, batch_size=32)


@pytest.fixture
def folder(trained, tmp_path):
    return Path(shutil.copytree(trained, tmp_path / "run"))


def why(party, asked: Explain) -> Any:
    """Have a party predict rows, and explain them."""
    party.handle(Ask(asked.rows))
    return party.handle(asked)


def asked_of(out: Path, n_rows: int = 3) -> Explain:
    """Return a request about the first common rows, by slopes of the server's."""
    size = load(out / "clinic").n_components
    slopes = np.random.default_rng(0).normal(size=(n_rows, size)).astype(np.float32)
    return Explain(np.arange(n_rows), slopes, 2)


# -------------------------------------------------------------------------- the numbers


def test_reasons_are_those_of_the_parts_in_one_process(folder, monkeypatch):
    """Batch by batch, in the order of the ids; what the parties tell adds up."""
    monkeypatch.setattr(reasons, "ROWS_AT_ONCE", 50)
    every = telling(clinic="features", bank="features")
    ids = [str(name) for name in IDS]
    with a_session(folder, parties=every) as (predictor, _):
        table, _, missing = predictor.answer(ids, reasons=9)
    rows = common()
    assert len(missing) == len(IDS) - len(rows)
    found = pd.DataFrame(table)
    assert found["base"].isna().sum() == len(missing)
    found = found.iloc[rows].reset_index(drop=True)
    server = load(folder / "server")
    z = in_process(folder, rows)[:, 0]
    odds = found["base"] + found["contribution_clinic"] + found["contribution_bank"]
    assert np.allclose(odds, z if server.positive == 1 else -z, atol=1e-4)
    assert (found["prediction"] == server.answers(z[:, None])).all()
    assert set(found["explains"]) == {server.label_names[server.positive]}
    named = set(found.filter(regex=r"reason_\d$").stack().dropna())
    assert named == {
        "Your age",
        "clinic: town",
        "clinic: smokes",
        "bank: income",
        "bank: noise",
    }


def by_feature(out: Path, name: str, rows: list[int]) -> tuple[pd.DataFrame, Any]:
    """Return what a party wrote down at home, and its share by the server's part."""
    home = pd.read_csv(out / name / "reasons-seed-0.csv").set_index("id")
    home = home.loc[[str(i) for i in IDS[rows]]].drop(columns="time")
    server, parties = load(out / "server"), {n: load(out / n) for n in HELD}
    blocks = [parties[n].embed(a_frame(n).take(np.array(rows))) for n in HELD]
    found = ServerReasons.of(server, blocks, server.means, len(rows))
    return home, found.explanation({}).parties[name]


def test_features_add_up_to_their_party_at_home(folder):
    rows = common()
    with a_session(folder, parties=telling(clinic="home", bank="home")) as (one, _):
        table, _, _ = one.answer([str(i) for i in IDS[rows]], reasons=2)
    known = {"clinic: its columns", "bank: its columns"}
    assert set(table["reason_1"]) - {None} <= known  # None: nothing pushes that way
    for name, names in HELD.items():
        home, share = by_feature(folder, name, rows)
        assert set(home) == set(names)
        assert np.allclose(home.sum(axis=1), share, atol=2e-3)
        path = folder / name / "reasons-seed-0.csv"
        assert path.stat().st_mode & 0o077 == 0


def test_amounts_are_explained_in_their_unit_which_no_party_is_told(tmp_path):
    age = np.nan_to_num(a_frame("clinic").numeric[:, 0], nan=50.0)
    amounts = data.from_arrays(np.zeros((len(age), 1)), 1e8 * age, name="people")
    out = train(tmp_path, "plain", amounts, train_epochs=2.0, batch_size=32)
    with a_session(out, parties=telling(clinic="features")) as (predictor, _):
        answers, columns = predictor.explain(everybody(predictor), 3)
    parts = [columns[f"contribution_{name}"] for name in HELD]
    value = np.sum([columns["base"], *parts], axis=0)
    assert np.allclose(value, predictor.model.answers(answers.z), rtol=1e-5)
    told = [np.array(columns[f"reason_{place}_contribution"]) for place in (1, 2, 3)]
    assert np.nanmax(np.abs(np.array(told, dtype=float))) > 1e7
    home, share = by_feature(out, "clinic", common())
    scale = predictor.model.label_scale
    assert scale > 1e8
    assert np.allclose(scale * home.sum(axis=1), share, atol=2e-3 * scale)


def test_a_background_has_the_mean_that_the_server_has(trained):
    server = load(trained / "server")
    for place, name in enumerate(HELD):
        part = trained / name / "networks" / "seed-0" / f"party{place}"
        kept, net = background.read_background(part), load(trained / name).net
        assert kept is not None
        own = kept.weights @ net(kept.rows).detach().double()
        assert np.allclose(own, server.means[name], atol=1e-3)
        assert not np.allclose(own, mean_embedding(net, 3 * kept.rows), atol=1e-3)


# --------------------------------------------------------------------------- the policy


def test_only_what_a_policy_allows_is_told(folder, caplog):
    """One party tells by feature; of the other nothing comes but embeddings."""
    replies: list[Any] = []
    with a_session(folder, parties=telling(clinic="features")) as (predictor, _):
        send = predictor.hub.send

        def hear(requests):
            found = send(requests)
            replies.extend(found.items())
            return found

        predictor.hub.send = hear
        with caplog.at_level(logging.WARNING):
            _, columns = predictor.explain(everybody(predictor)[:5], 1)
    assert (
        "'bank' gives no reasons: The policy of party 'bank' allows no" in caplog.text
    )
    kinds = {(name, type(reply)) for name, reply in replies}
    assert ("bank", Declined) in kinds
    assert ("bank", Explained) not in kinds
    (told,) = (reply for _, reply in replies if isinstance(reply, Explained))
    assert told.places.shape == (5, 2)  # one in each direction
    assert set(told.names) <= set(HELD["clinic"])
    assert dict(zip(told.names, told.texts, strict=True)).get("age", "") in (
        "Your age",
        "",
    )
    assert set(columns["reason_1"]) <= {
        "Your age",
        "clinic: town",
        "clinic: smokes",
        "bank: its columns",
        None,
    }
    assert not list((folder / "bank").glob("reasons*"))
    assert not (folder / "bank" / EFFECTS).exists()


@pytest.fixture
def a_clinic(folder):
    """Return a function that gives a party whose rows are aligned."""
    with a_session(folder, parties=telling()) as (predictor, _):
        session, digest = predictor._session.name, predictor.digest
        run = predictor.record.header["run"]
    parties: list[Any] = []

    def make(**allowed: Any):
        policy = dataclasses.replace(ALSO_PLAIN, **allowed)
        party = a_party("clinic", folder, align="plain", policy=policy)
        parties.append(party)
        agreed = party.handle(Open(run, (0,), session, digest, "plain"))
        assert agreed.revealed["aligned"] is True
        return party

    yield make
    for party in parties:
        party.close()


def test_a_request_is_declined_without_a_policy(folder, a_clinic):
    reply = why(a_clinic(), asked_of(folder))
    assert isinstance(reply, Declined)
    assert reply.reason == (
        "The policy of party 'clinic' allows no reasons (policy.reasons). Got a "
        "request for some."
    )


def test_reasons_at_home_say_nothing(folder, a_clinic):
    assert why(a_clinic(reasons="home"), asked_of(folder)) == Agreed()
    with open(folder / "clinic" / "reasons-seed-0.csv", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["time", "id", *HELD["clinic"]]
    assert len(lines) == 4


def test_every_row_is_charged_for_every_time(folder, a_clinic):
    """And no restart gives it back; the same again counts, its slopes may be others."""
    party = a_clinic(reasons="features", reason_rows=7)
    for _ in "ab":
        assert isinstance(why(party, asked_of(folder)), Explained)
    party.close()
    party = a_clinic(reasons="features", reason_rows=7)
    reply = why(party, asked_of(folder))
    assert isinstance(reply, Declined)
    assert "allows reasons for 7 rows (policy.reason_rows). Got 3 more." in reply.reason
    assert isinstance(why(party, asked_of(folder, 1)), Explained)


def test_reasons_count_as_rows_of_a_minute(folder, a_clinic):
    party = a_clinic(reasons="features", predict_rate=7)
    assert isinstance(why(party, asked_of(folder)), Explained)
    reply = party.handle(asked_of(folder))
    assert "(policy.predict_rate)" in reply.reason


def test_rows_that_were_not_predicted_are_not_explained(folder, a_clinic):
    """Whoever may predict few rows has few explained."""
    party, asked = a_clinic(reasons="features", predict_rows=3), asked_of(folder)
    assert "that it has been asked to predict" in party.handle(asked).reason
    assert isinstance(why(party, asked), Explained)
    reply = why(party, asked_of(folder, 4))
    assert "that it has been asked to predict" in reply.reason
    none = dataclasses.replace(asked, rows=asked.rows[:0], slopes=asked.slopes[:0])
    assert "Got others, or none." in party.handle(none).reason


def test_the_journal_and_the_page_say_what_was_told(folder, a_clinic):
    party = a_clinic(reasons="features")
    why(party, asked_of(folder))
    party.close()
    lines = (folder / "clinic" / JOURNAL).read_text().splitlines()
    assert json.loads(lines[-1])["asked"] == "reasons told"
    assert read_journal(folder / "clinic")["told"] == 3
    page = report.build(folder / "clinic").read_text()
    assert (
        "to explain: the features that added most to the prediction of 3 rows" in page
    )
    assert "How the output moves with each column" in page


def test_what_no_honest_server_sends_is_refused(folder, a_clinic):
    party, asked = a_clinic(reasons="features"), asked_of(folder)
    with pytest.raises(ProtocolError, match=r"must be sent \d+ slopes a row\. Got 1\."):
        why(party, dataclasses.replace(asked, slopes=asked.slopes[:, :1]))
    beyond = party.handle(dataclasses.replace(asked, rows=asked.rows + 10**6))
    assert "answers for common rows" in beyond.reason
    none = why(party, dataclasses.replace(asked, most=0))
    assert (none.names, none.values.shape) == ((), (3, 0))
    many = why(party, dataclasses.replace(asked, most=10**9))
    assert many.values.shape == (3, 2 * len(HELD["clinic"]))


def test_what_a_party_may_not_answer_is_refused(folder):
    asked = asked_of(folder)
    many = Explained(("a",), ("",), np.zeros((3, 5), np.int32), np.zeros((3, 5), "f4"))
    few = dataclasses.replace(many, places=many.places[:1], values=many.values[:1])
    accept = Due({Explained: reasons.reasons_due(asked)}).accept
    for reply, got in ((many, r"\(3, 5\)"), (few, r"\(1, 5\)")):
        with pytest.raises(NotDueError, match=f"must be for 3 rows.* Got {got}"):
            codec.decode(codec.encode(WireFrame(reply, 1)), accept)


def test_texts_of_a_party_are_no_formulas():
    told = Explained(
        ("=a", "b\n"),
        ("", "=1+1"),
        np.array([[1, -1]], dtype=np.int32),
        np.array([[2.0, 0.0]], dtype=np.float32),
    )
    found = reasons.shares_of(told)
    assert found.names == ("a", "b ")
    assert found.texts == {"b ": "1+1"}
    assert np.array_equal(found.values, [[np.nan, 2.0]], equal_nan=True)


def test_a_text_for_no_feature_is_refused(folder):
    with pytest.raises(
        ConfigError, match=r"'reason_texts' setting must name features .*Got 'agee'"
    ):
        a_party("clinic", folder, reason_texts={"agee": "Your age"})


def test_contributions_tell_the_order_of_a_column(folder, a_clinic):
    """What 'features' gives away, and why it is not the default (threat model)."""
    party, n = a_clinic(reasons="features"), len(common())
    slopes = asked_of(folder, n).slopes
    found = []
    for component in np.eye(slopes.shape[-1], dtype=slopes.dtype):  # of its choice
        own = np.broadcast_to(component, slopes.shape).copy()
        told = why(party, Explain(np.arange(n), own, 3))
        row, at = np.nonzero(told.places == told.names.index("age"))
        ages = party.frame.numeric[party.state.rows, 0][row]
        known = np.isfinite(ages)
        found.append(spearmanr(told.values[row, at][known], ages[known]).statistic)
    assert np.abs(found).max() > 0.9


# -------------------------------------------------------------------------- the effects


def test_curves_of_effects_follow_the_column(folder, a_clinic):
    """By the mean of all slopes so far, whoever comes back."""
    first, more = asked_of(folder, 2), asked_of(folder, 5)
    for asked in (first, more):
        party = a_clinic(reasons="home")
        why(party, asked)
        party.close()
    found = json.loads((folder / "clinic" / EFFECTS).read_text())
    mean = np.concatenate([first.slopes, more.slopes]).mean(axis=0)
    assert found["rows"] == 7
    assert np.allclose(found["slopes"], mean, atol=1e-5)
    curves = {one["column"]: one for one in found["curves"]}
    assert set(curves) == set(HELD["clinic"])
    assert curves["smokes"]["values"] == [False, True]
    assert set(curves["town"]["values"]) == {"Ulm", "Bonn", "Jena"}
    age, model = curves["age"], load(folder / "clinic")
    rows = a_frame("clinic").take(order("clinic"))
    places = np.linspace(0, rows.n_rows - 1, 200).round().astype(int)
    rows = rows.take(places)
    before = model.embed(rows).numpy() @ mean
    numeric = rows.numeric.copy()
    numeric[:, 0] = age["values"][-1]
    after = model.embed(dataclasses.replace(rows, numeric=numeric)).numpy() @ mean
    assert age["effects"][-1] == pytest.approx((after - before).mean(), abs=1e-4)


# ------------------------------------------------------------------------------- others


def test_a_party_that_is_away_adds_nothing(folder):
    every = telling(clinic="features", bank="features")
    with a_session(folder, parties=every, allow_missing=True) as (predictor, _):
        places = everybody(predictor)
        predictor.hub.rules = dataclasses.replace(
            predictor.hub.rules, newest_stays=False, admit=lambda hello: "not now"
        )
        predictor.hub.hang_up("bank")
        answers, columns = predictor.explain(places, 1)
    assert answers.missing == ("bank",)
    assert not np.any(columns["contribution_bank"])


def test_trees_are_split_among_parties_alone(tmp_path):
    own = {"trees": 5, "select_trees": 0, "leaves": 4}
    out = train(tmp_path, "vertical-boost", **own)
    assert not list(out.rglob("background.safetensors"))
    with a_session(out, parties=telling(clinic="features")) as (predictor, _):
        answers, columns = predictor.explain(everybody(predictor), 2)
    odds = np.add(columns["base"], columns["contribution_clinic"])
    odds = odds + columns["contribution_bank"]
    sign = 1 if predictor.model.positive == 1 else -1
    assert np.allclose(odds, sign * answers.z[:, 0], atol=1e-5)
    assert set(columns["reason_1"]) <= {
        "clinic: its columns",
        "bank: its columns",
        None,
    }


def test_a_model_without_a_background_gives_no_reasons(folder, a_clinic):
    for path in (folder / "clinic").rglob("background.safetensors"):
        path.unlink()
    reply = why(a_clinic(reasons="features"), asked_of(folder))
    assert "that were evaluated in training. Got another model." in reply.reason


@pytest.mark.parametrize(
    "how", [("--http", "127.0.0.1:0"), ("--inference", "fed-eini")]
)
def test_reasons_are_for_a_batch_in_the_clear(run_cli, how):
    command = ("predict", "server", "--config", "server.yaml", "--reasons", 2)
    result = run_cli(*command, *how)
    assert result.code == 2
    assert "'--reasons' must be 0 with --" in result.err
    assert result.err.endswith("Got 2.\n")


def test_a_table_is_explained_by_all_sides_together(run_cli, folder, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("id,label\nperson-1,ill\n")
    result = run_cli("evaluate", folder / "server", rows, "--reasons", 2)
    assert result.code == 2
    assert "'lessvfl predict server --reasons' asks the parties." in result.err


def test_hidden_paths_are_not_explained(folder):
    with a_session(folder, parties=telling()) as (predictor, _):
        predictor._paths = object()
        with pytest.raises(ConfigError, match="'inference' must be clear"):
            predictor.explain(everybody(predictor), 1)
