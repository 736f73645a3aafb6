"""What was told of each id is counted, whatever becomes of tables, files and runs."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.remote import test_attacks as attacks
from tests.remote import test_predict as predict
from tests.remote.test_attacks import (
    IDS,
    STEPS,
    TABLE,
    Server,
    own_secrets,
    refused,
)
from tests.remote.test_privacy import PRICED, server_of
from tests.remote.test_remote import HELD, labels, run_all

import lessvfl
from lessvfl import data
from lessvfl.core.plans import TrainPlan
from lessvfl.errors import ConfigError, PolicyError, RecordError
from lessvfl.remote.accounts import Accounts, Amounts, Charge
from lessvfl.remote.align import Ids
from lessvfl.remote.align.ids import account_name
from lessvfl.remote.config import PartyConfig
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import Policy, planned
from lessvfl.remote.predict.models import PartyModels
from lessvfl.remote.price import LabelBudget, _digest
from lessvfl.remote.session import Aligned
from lessvfl.remote.tables import resolve_settings
from lessvfl.run.build import clamp_batch
from lessvfl.wire.control import Welcome

__all__ = ["own_secrets"]  # a fixture

pytestmark = [
    pytest.mark.filterwarnings("ignore:The rows of the label holder"),
    pytest.mark.usefixtures("own_secrets"),
]

PLAN = 192  # values about a row of two seeds
BOUND = Policy(values=250)  # one run, and not two


def rows_of(path: Path, query: str) -> list[tuple[float, ...]]:
    with closing(sqlite3.connect(path)) as file:
        return file.execute(query).fetchall()


def told(folder: Path, whose: str = "clinic") -> list[tuple[float, ...]]:
    """Return values, bits and predictions of every account with any, and how often."""
    return rows_of(
        folder / f"ledger-{whose}.sqlite3",
        'SELECT "values", bits, predictions, count(*) FROM account '
        'WHERE "values" > 0 GROUP BY 1, 2, 3',
    )


def ignore(most: object) -> None:
    """Allow whatever comes."""


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("n_rows", [60, 469, 1200, 2000, 5500, 12_000, 20_000])
def test_an_undisturbed_run_shows_no_more_than_it_plans(n_rows, n_classes):
    """Once, half an epoch of few rows was all of them, and was charged as a break."""
    dataset = data.from_arrays(np.zeros((n_rows, 1)), np.arange(n_rows) % n_classes)
    own = lessvfl.resolve("less-vfl-auto", "default", dataset)
    most = planned(own, 4, n_parties=2, evaluation="end", n_rows=n_rows)
    for n in (n_rows, round(0.9 * n_rows), round(0.8 * n_rows)):  # to train with
        n_passes = 2.0  # stage 2, and test rows
        for plan in clamp_batch(own.config, n).plans(2):
            if isinstance(plan, TrainPlan):
                batches = plan.batches(n, 0)
                for _, rows in batches.steps(plan.n_epochs, torch.device("cpu")):
                    n_passes += torch.as_tensor(rows).numel() / n
                n_passes += plan.n_looks(n) * plan.n_held_out(n) / n
        assert 4 * n_passes <= most + 1e-9


# -------------------------------------------------------------------- never begun anew


def texts(ids, form):
    return np.array([form.format(one) for one in ids.tolist()], dtype=object)


LATER = {
    "reversed": (TABLE[::-1], IDS[::-1]),
    "one row more": (np.r_[TABLE, TABLE[:1]], np.r_[IDS, 1]),
    "one row less": (TABLE[:-1], IDS[:-1]),
    "other cells": (TABLE + 1, IDS),
    "few of them": (np.r_[TABLE[:1], TABLE], np.r_[IDS[:1], IDS + 10_000]),
    "as texts": (TABLE, texts(IDS, "{}")),
    "with zeros": (TABLE, texts(IDS, "00{}")),
    "with blanks": (TABLE, texts(IDS, " {} ")),
}


@pytest.mark.parametrize("later", LATER)
def test_another_table_of_the_same_ids_begins_no_new_account(tmp_path, later):
    """Once, a row more, or less, or in another place had all values shown again."""
    Server(attacks.a_party(tmp_path, policy=BOUND), **STEPS).begin()
    table, ids = LATER[later]
    party = attacks.a_party(tmp_path, table, ids, policy=BOUND, run="later")
    with refused("allows 250 values about a row", r"384 with what earlier") as error:
        Server(party, run="later", **STEPS).welcome()
    assert not any(str(one) in str(error.value) for one in IDS.tolist())
    assert "'values'" in error.value.public
    assert not any(figure.isdigit() for figure in error.value.public)


def test_other_ids_have_accounts_of_their_own(tmp_path):
    Server(attacks.a_party(tmp_path, policy=BOUND), **STEPS).begin()
    ids = IDS + 10_000
    party = attacks.a_party(tmp_path, ids=ids, policy=BOUND, run="later")
    Server(party, run="later", **STEPS).aligned(ids).prepare()
    assert told(tmp_path) == [(PLAN, 8 * PLAN, 0, 400)]


def test_rows_that_are_not_in_common_are_not_charged(tmp_path):
    party = attacks.a_party(tmp_path, policy=BOUND)
    Server(party, **STEPS).aligned(IDS[:100]).prepare(np.arange(80), np.arange(80, 100))
    assert told(tmp_path) == [(PLAN, 8 * PLAN, 0, 100)]


def test_runs_side_by_side_cannot_both_begin(tmp_path):
    both = [
        Server(attacks.a_party(tmp_path, policy=BOUND, run=name), run=name, **STEPS)
        for name in ("one", "two")
    ]
    for server in both:
        server.aligned()
    both[0].prepare()
    with refused("allows 250 values about a row in all"):
        both[1].prepare()
    assert told(tmp_path) == [(PLAN, 8 * PLAN, 0, 200)]


def test_a_run_that_is_killed_keeps_its_plan_and_pays_no_second_one(tmp_path):
    server = Server(attacks.a_party(tmp_path, policy=BOUND), **STEPS).begin()
    server.descend(0)
    for _ in range(3):
        server.party.close()  # as after kill -9: nothing more is written
        server.party = attacks.a_party(tmp_path, policy=BOUND)
        server.welcome()
        server.prepare()
        server.descend(0)
        assert told(tmp_path) == [(PLAN, 8 * PLAN, 0, 200)]


def test_a_run_that_is_over_gives_back_what_it_did_not_show(tmp_path):
    """And is told to finish again after that without another charge."""
    _, parties = run_all(tmp_path)
    for name in HELD:
        ((values, bits, _, _),) = told(tmp_path, name)
        shown = sum(run["shown"]["values"] for run in parties[name].runs)
        assert values == pytest.approx(shown)
        assert 4 * values <= bits <= 32 * values


def test_threads_and_processes_share_the_file(tmp_path):
    """Each adds in one transaction, and none is lost."""
    accounts = Accounts(tmp_path / "run", "clinic")
    charge = "accounts.charge(Charge(['a', 'b'], Amounts(1.0)), lambda most: None)"
    code = (
        "import sys; from pathlib import Path\n"
        "from lessvfl.remote.accounts import Accounts, Amounts, Charge\n"
        "accounts = Accounts(Path(sys.argv[1]), 'clinic')\n"
        f"for _ in range(10): {charge}\n"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")])

    def work() -> None:
        for _ in range(10):
            accounts.charge(Charge(["a", "b"], Amounts(1.0)), ignore)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert other.wait(60) == 0
    assert told(tmp_path) == [(50, 0, 0, 2)]


def test_what_is_refused_is_not_charged(tmp_path):
    accounts = Accounts(tmp_path / "run", "clinic")

    def refuse(most):
        raise PolicyError(f"{most.values}")

    accounts.charge(Charge(["a"], Amounts(1.0)), ignore)
    with pytest.raises(PolicyError, match=r"4\.0"):
        accounts.charge(Charge(["a"], Amounts(3.0), [b"answer"], "run"), refuse)
    assert told(tmp_path) == [(1, 0, 0, 1)]
    assert accounts.of_run("run") is None
    accounts.charge(Charge(["a"], Amounts(3.0), [b"answer"]), ignore)
    assert told(tmp_path) == [(4, 0, 0, 1)]


# ------------------------------------------------------------------------ whose account


@pytest.mark.parametrize("form", ["{}", "007", " 7", "7.0", 7, 7.0, np.int64(7)])
def test_another_way_to_write_an_id_is_the_same_account(form):
    assert account_name(form if not isinstance(form, str) else form.format(7)) == "7"


def test_other_ids_are_other_accounts():
    names = ["7", "70", "-7", "7.5", "a7", "A7", "é", "e", ""]
    assert len({account_name(name) for name in names}) == len(names)
    assert account_name("é") == account_name("é")


def test_two_rows_of_one_account_are_both_charged(tmp_path):
    accounts = Accounts(tmp_path / "run", "clinic")
    names = [*Ids(["7", "007", "8"]).account_names()]
    most = accounts.charge(Charge(names, Amounts(2.0)), ignore)
    assert most.values == 4
    assert told(tmp_path) == [(2, 0, 0, 1), (4, 0, 0, 1)]


def test_the_same_answer_about_an_id_is_charged_once(tmp_path):
    accounts = Accounts(tmp_path / "run", "clinic")

    def tell(names, *answers):
        return accounts.charge(Charge(names, Amounts(2.0), answers), ignore).values

    assert tell(["a", "b"], b"one", b"two") == 2
    assert tell(["b", "a"], b"two", b"one") == 2
    assert tell(["b"], b"one") == 4
    assert tell(["c", "c"], b"one", b"one") == 2


def test_rows_without_ids_have_one_account_that_counts_with_all(tmp_path):
    def without(run, table=TABLE):
        config = PartyConfig(out=str(tmp_path / run), align="none", policy=BOUND)
        frame = data.frame_of(table, list(attacks.NAMES))
        return PartyProcess("clinic", config, frame)

    def server(run, **more):
        found = Server(without(run, **more), run=run, **STEPS)
        found.party.handle(
            Welcome(run, (0, 1), found.method, found.settings, ("clinic",), "none")
        )
        return found

    accounts = Accounts(tmp_path / "run", "clinic")
    accounts.charge(Charge(["a"], Amounts(50.0)), ignore)
    server("first")
    accounts.charge(Charge(None, Amounts(100.0)), ignore)
    assert accounts.after(Charge(["b"], Amounts())).values == 100
    assert accounts.after(Charge(None, Amounts())).values == 150
    with refused("allows 250 values", "342 with what earlier ones told"):
        server("second", table=TABLE + 1)


def test_the_file_holds_no_id_and_is_its_owners_alone(tmp_path):
    accounts = Accounts(tmp_path / "run", "clinic")
    names = [f"person-{number}" for number in range(50)]
    answers = [name.encode() for name in names]
    accounts.charge(Charge(names, Amounts(1.0), answers), ignore)
    path = tmp_path / "ledger-clinic.sqlite3"
    assert b"person" not in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = Accounts(tmp_path / "other" / "run", "clinic")
    other.charge(Charge(names, Amounts(1.0)), ignore)
    known = "SELECT id FROM account WHERE id != x''"
    found = [{*rows_of(p, known)} for p in tmp_path.rglob("*.sqlite3")]
    assert [*map(len, found)] == [50, 50]
    assert not found[0] & found[1]


def test_a_file_that_others_may_read_is_refused(tmp_path):
    """Its secret is what ids are known by, and what labels are randomised by."""
    accounts = Accounts(tmp_path / "run", "clinic")
    accounts.charge(Charge(["a"], Amounts(1.0)), ignore)
    (tmp_path / "ledger-clinic.sqlite3").chmod(0o644)
    for ask in (accounts.secret, lambda: accounts.after(Charge(["a"], Amounts()))):
        with pytest.raises(ConfigError, match=r"mode 0644, which lets others in"):
            ask()


def test_a_question_makes_no_file(tmp_path):
    accounts = Accounts(tmp_path / "run", "clinic")
    assert accounts.after(Charge(["a"], Amounts(2.0))).values == 2
    assert not [*tmp_path.iterdir()]


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "ledger-clinic.sqlite3"
    path.write_bytes(b"no database" * 100)
    path.chmod(0o600)
    with pytest.raises(RecordError, match="must count what was told of each id"):
        Accounts(tmp_path / "run", "clinic").secret()
    path.unlink()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 9")
    path.chmod(0o600)
    with pytest.raises(RecordError, match=r"must be of format 1\. Got 9"):
        Accounts(tmp_path / "run", "clinic").secret()


# ------------------------------------------------------------------------------- labels


def label_budget(folder, ids, own, y=None, run="run", method="less-vfl"):
    """Return a server's budget of labels, with the labels that it randomises."""
    known = labels(ids=ids)
    if y is not None:
        known = replace(known, dataset=replace(known.dataset, y=y))
    config = server_of(folder, run, own, method, align="psi", id="who")
    budget = LabelBudget(config, resolve_settings(config, known), known)
    return budget, budget.randomise().training_labels


RANDOM = {"label_epsilon": 1.0}


def test_labels_are_paid_for_by_id_and_not_by_table(tmp_path):
    """Once, a row more was another table, whose draws of the same labels cost anew."""
    y, ids = labels().dataset.y, np.arange(150)

    def charge(*args):
        budget, told = label_budget(tmp_path, *args)
        budget.charge("run", None)
        return budget.spent(None), told

    spent, first = charge(ids, RANDOM)
    assert spent == 1.0
    assert charge(ids[::-1], RANDOM, y[::-1])[0] == 1.0
    zeros, again = charge(texts(ids, "00{}"), RANDOM)
    assert zeros == 1.0
    assert (again == first).all()  # once, another draw of the same label
    changed = np.where(ids == 7, 1 - y, y)
    assert charge(ids, RANDOM, changed)[0] == 2.0  # of the one that has two draws
    assert charge(ids[:7], RANDOM, y[:7])[0] == 1.0


def test_two_rows_of_one_account_have_no_randomised_labels(tmp_path):
    """One draw would be of both: who knows one label reads the other off it."""
    ids = np.array([f"{n}" for n in range(149)] + ["007"], dtype=object)
    with pytest.raises(ConfigError, match="differ in more than how they are written"):
        label_budget(tmp_path, ids, RANDOM)


def test_noise_on_gradients_adds_up_over_tables_of_the_same_ids(tmp_path):
    ids = np.arange(150)
    one, _ = label_budget(tmp_path, ids, **PRICED)
    one.charge("one", np.arange(100))
    first = one.spent(np.arange(100))
    assert first is not None
    assert one.spent(np.arange(100, 150)) is None  # they are not in common
    y = labels().dataset.y[::-1]
    two, _ = label_budget(tmp_path, ids[::-1], y=y, run="two", **PRICED)
    two.charge("two", None)
    two.charge("two", None)  # after a restart
    spent = two.spent(None)
    assert spent is not None
    assert spent > 1.3 * first
    assert two.spent(np.arange(50)) == pytest.approx(first)  # of the last 50 ids


def test_randomised_labels_of_an_earlier_release_are_not_paid_for_again(tmp_path):
    ids = np.arange(150)
    secret = "ab" * 32
    dataset = labels(ids=ids).dataset
    key = hashlib.sha256(secret.encode()).hexdigest()
    one = {"kind": "randomised response", "noise": 1.0, "times": 1, "n_classes": 2}
    known = {
        "secret": secret,
        "labels": {"": {f"{_digest(dataset, ids)} 1.0 {key}": [one]}},
    }
    (tmp_path / "spent-labels.json").write_text(json.dumps(known))
    budget, _ = label_budget(tmp_path, ids, RANDOM)
    budget.charge("run", None)
    assert budget.spent(None) == 1.0
    more = np.r_[ids[:-1], 1000]
    other, _ = label_budget(tmp_path, more, RANDOM)
    other.charge("other", None)
    assert other.spent(None) == 2.0  # of the new one, and of nobody else
    assert budget.spent(None) == 1.0


# ------------------------------------------------------------------ of earlier releases


EARLIER = {
    "alignments": [[4e9, 256]],
    "values": {"table": {"a": 100.0, "b": 30.0}, "other": {"c": 20.0}},
    "releases": {
        "table": {"a": [{"kind": "gaussian", "noise": 2.0, "times": 8, "n_classes": 2}]}
    },
}


def test_what_an_earlier_release_counted_is_charged_to_every_id_once(tmp_path):
    (tmp_path / "spent-clinic.json").write_text(json.dumps(EARLIER))
    accounts = Accounts(tmp_path / "run", "clinic")
    assert accounts.after(Charge(["x"], Amounts())).values == 130
    assert (tmp_path / "spent-clinic.json").is_file()  # only asked
    for _ in range(2):
        accounts.charge(Charge(["y"], Amounts(5.0), run="new"), ignore)
    assert not (tmp_path / "spent-clinic.json").exists()
    most = accounts.after(Charge(["x", "y"], Amounts()))
    assert (most.values, most.noise) == (135, ((2.0, 0.0),))
    accounts.charge(Charge(["x"], Amounts(110.0, gaussian=2.0), run="a"), ignore)
    assert accounts.after(Charge(["x"], Amounts())).values == 140  # it had 100 of them
    counts: list[int] = []
    accounts.align(3, counts.extend)
    assert sorted(counts) == [3, 256]


# ----------------------------------------------------------------- rows that are spent


def test_rows_that_are_spent_stay_away_where_the_policy_says_so(tmp_path):
    first = attacks.a_party(tmp_path, TABLE[50:150], IDS[50:150], policy=BOUND)
    train, test = np.arange(80), np.arange(80, 100)
    Server(first, **STEPS).aligned().prepare(train, test)
    policy = replace(BOUND, withhold_exhausted=True)

    def later():
        return attacks.a_party(tmp_path, policy=policy, run="later")

    server = Server(later(), run="later", **STEPS).aligned()
    server.prepare(train, test)
    assert told(tmp_path) == [(PLAN, 8 * PLAN, 0, 200)]
    assert isinstance(server.party.state, Aligned)
    rows, due = server.party.state.rows.numeric, np.r_[TABLE[:50], TABLE[150:]]
    assert np.allclose(np.sort(rows[:, 0]), np.sort(due[:, 0]))
    server.party.close()
    server.party = later()  # and is aligned still, though its own rows are spent now
    assert server.welcome()
    server.prepare(train, test)
    third = attacks.a_party(tmp_path, policy=policy, run="third")
    with refused("allows 250 values"):  # none would be left
        Server(third, run="third", **STEPS).welcome()


def test_rows_without_ids_cannot_stay_away():
    with pytest.raises(ConfigError, match="must align by ids"):
        PartyConfig(policy=Policy(withhold_exhausted=True))


# -------------------------------------------------------------------------- predictions


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secrets, "token_bytes", os.urandom)
        return predict.train(tmp_path_factory.mktemp("trained"))


def test_predictions_are_charged_with_the_rows_of_training(trained):
    """Once, all rows left at full precision, and nothing was counted."""

    def ask(**more):
        parties = {"clinic": {"policy": replace(predict.WIDE, **more)}}
        with predict.a_session(trained, parties=parties) as (predictor, _):
            places = predict.everybody(predictor)
            predictor.predict(places[:100])
            return len(places)

    ((before, bits, _, n_common),) = told(trained)
    assert ask() == n_common
    found = {n: (values, b) for values, b, n, _ in told(trained)}
    width = found[1][0] - before
    assert width >= 1
    assert found[1][1] == bits + 32 * width
    assert [n for *_, n in told(trained)] == [n_common - 100, 100]
    ask()  # the same numbers again, after a restart of everybody
    assert {n: (values, b) for values, b, n, _ in told(trained)} == found
    with predict.a_session(
        trained,
        parties={"clinic": {"policy": replace(predict.WIDE, values=int(before))}},
    ) as (predictor, _):
        places = predict.everybody(predictor)
        with pytest.raises(PolicyError, match=r"declines: .*policy\.values") as error:
            predictor.predict(places[100:])
    assert "person" not in str(error.value)


def test_equal_numbers_of_two_models_are_two_answers(trained, tmp_path, monkeypatch):
    """What trees say of a row is a few bits, and often those of other trees."""

    def ones(models, model):
        return torch.ones(models._frame.n_rows, model.n_components)

    monkeypatch.setattr(PartyModels, "_embed", ones)
    folder = Path(shutil.copytree(trained, tmp_path / "run"))

    def ask(seed):
        with predict.a_session(folder, seed=seed) as (predictor, _):
            predictor.predict(predict.everybody(predictor))
        return {n for _, _, n, _ in told(folder)}

    before = {n for _, _, n, _ in told(folder)}
    assert ask(0) == {n + 1 for n in before}
    assert ask(4) == {n + 2 for n in before}
    assert ask(0) == {n + 2 for n in before}  # the same numbers of the same model
