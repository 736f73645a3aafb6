"""Defences between machines, what they cost, and the bounds of what may be spent."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import shutil
import sqlite3
import stat
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.remote import test_attacks as attacks
from tests.remote import test_predict as predict
from tests.remote.test_attacks import (
    STEPS,
    Server,
    own_secrets,
    refused,
    skip_to,
    training,
)
from tests.remote.test_remote import (
    HELD,
    Cut,
    Death,
    a_dataset,
    a_hub,
    a_party,
    a_status,
    a_table,
    labels,
    lives,
    own_settings,
    party_config,
    run_all,
    server_config,
    start,
    told,
)

from lessvfl.core.losses import Labels
from lessvfl.core.plans import SECRET
from lessvfl.data import Scratch
from lessvfl.data.labels import randomise
from lessvfl.errors import ConfigError, PolicyError, ProtocolError, RecordError
from lessvfl.privacy.accounting import epsilon_spent
from lessvfl.privacy.noise import GradientDefence
from lessvfl.remote import accounts, price
from lessvfl.remote.config import PartyConfig, read_side
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import LabelPolicy, Policy
from lessvfl.remote.predict import models as predict_models
from lessvfl.remote.server import ServerProcess
from lessvfl.remote.tables import SeedLabels
from lessvfl.run import profiles, simulate
from lessvfl.run.folder import load
from lessvfl.wire.control import Restore
from lessvfl.wire.messages import Begin, Block, Descend, Embed

__all__ = ["own_secrets"]  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

NOISE = {"embedding_noise": 20.0, "seed_private": "own"}


DP = {"label_epsilon": 1.0}
ALONE = {"evaluation": "end", "tell_share": False, "seed_private": "own"}
GAUSSIAN: dict[str, Any] = {"gradient_defence": "gaussian", "gradient_noise": 500.0}
# Noise on gradients, and nothing else that is computed from labels.
PRICED: dict[str, Any] = {"method": "local-lasso", "own": GAUSSIAN}


def server_of(folder, run="server", own=None, method="less-vfl", **more):
    """Return the config of a server whose run folder stands in a folder of its own."""
    values = told(own_settings(method)) | (DP if own is None else own)
    config = server_config(folder, method, settings=values, **ALONE | more)
    return replace(config, out=str(folder / run))


@pytest.fixture(autouse=True)
def known_draws(monkeypatch):
    """Draw labels alike at every run of a test; another folder has other draws."""
    count = itertools.count()
    own = SimpleNamespace(token_bytes=lambda n: next(count).to_bytes(n, "big"))
    monkeypatch.setattr(accounts, "secrets", own)


def begun(config, hub, table=None):
    """Return a server that waits for parties, and let go of its run folder."""
    process = ServerProcess(config, table or labels(), hub, a_status())
    process.close()
    return process


# ------------------------------------------------------------------------------- labels


@pytest.fixture
def hub():
    with a_hub() as hub:
        yield hub


def told_labels(hub, *args, table=None, **more):
    return begun(server_of(*args, **more), hub, table).table.dataset.training_labels


def test_labels_are_randomised_alike_in_all_runs(tmp_path, hub):
    one = told_labels(hub, tmp_path / "here", "first")
    assert (one != labels().dataset.y).mean() == pytest.approx(0.27, abs=0.1)
    assert (told_labels(hub, tmp_path / "here", "second") == one).all()
    assert (told_labels(hub, tmp_path / "there", "first") != one).any()
    path = tmp_path / "here" / "ledger-labels.sqlite3"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_row_is_known_by_its_id_whatever_its_place(tmp_path, hub):
    ids = np.arange(150) + 1000
    order = np.random.default_rng(0).permutation(150)[:120]
    config = server_of(tmp_path, align="psi", id="who")
    one = begun(config, hub, labels(ids=ids)).table.dataset.training_labels
    config = replace(config, out=str(tmp_path / "second"))
    again = begun(config, hub, labels(order, ids[order])).table.dataset.training_labels
    assert (one[order] == again).all()


def changed(rows):
    """Return the table with other labels in some rows."""
    dataset = labels().dataset
    y = dataset.y.copy()
    y[rows] = 1 - y[rows]
    return replace(labels(), dataset=replace(dataset, y=y))


def test_a_changed_label_has_a_draw_of_its_own(tmp_path, hub):
    """By the same draw, both runs together would tell that it was changed."""
    ids, half = np.arange(150), np.arange(75)
    config = server_of(tmp_path, align="psi", id="who")
    one = begun(config, hub, labels(ids=ids)).table.dataset.training_labels
    config = replace(config, out=str(tmp_path / "second"))
    other = replace(changed(half), ids=ids)
    again = begun(config, hub, other).table.dataset.training_labels
    assert (one[75:] == again[75:]).all()
    same = (one[half] == again[half]).mean()  # never, by the same draw
    assert same == pytest.approx(2 * 0.73 * 0.27, abs=0.15)


def test_classes_of_other_names_have_draws_of_their_own(tmp_path, hub):
    """By the same ones, in another order, a row told otherwise twice is of neither."""

    def kept(run, *names):
        y = np.array([names.index(name) for name in ["a", "b", "c"] * 50])
        dataset = replace(labels().dataset, y=y, label_names=names, task="multiclass")
        table = replace(labels(ids=np.arange(150)), dataset=dataset)
        config = server_of(tmp_path, run, align="psi", id="who")
        return begun(config, hub, table).table.dataset.training_labels == y

    one, again = kept("first", "a", "b", "c"), kept("second", "a", "c", "b")
    assert (one[::3] != again[::3]).any()


def test_without_ids_another_table_has_draws_of_its_own(tmp_path, hub):
    one = told_labels(hub, tmp_path, "first")
    again = told_labels(hub, tmp_path, "second", table=changed([0]))
    assert (one[1:] != again[1:]).any()


def test_parties_hear_of_randomised_labels_alone(tmp_path, hub):
    """The share of classes, which may be told, counts no true label."""
    process = begun(server_of(tmp_path, tell_share=True), hub)
    table = process.table
    scratch = Scratch(process.folder)
    seed = SeedLabels.of(table, process.settings, 0, scratch, process.home.seed)
    share = seed.message(tell_share=True).share
    counts = np.bincount(table.dataset.training_labels[seed.train])
    assert share == min(counts) / len(seed.train)
    assert (seed.problem.y_train == table.dataset.training_labels[seed.train]).all()
    assert (seed.problem.y_test == labels().dataset.y[seed.test]).all()


# ----------------------------------------------------------------------- runs, in whole


def test_noise_and_randomised_labels_are_those_of_the_simulator(tmp_path, monkeypatch):
    """With the simulator's seeds, which no real party shares."""
    monkeypatch.setattr(PartyProcess, "private_seed", lambda self, seed: seed)
    monkeypatch.setattr(
        price, "randomise", lambda data, own, draws: randomise(data, own)
    )
    own = {"label_epsilon": 1.0, "bits": 32}  # test rows leave as exactly in both
    record, parties = run_all(tmp_path, own=own, evaluation="end", **NOISE)
    dataset = a_dataset()
    values = own_settings("less-vfl") | own | {"embedding_noise": 20.0}
    resolved = profiles.resolve("less-vfl", "default", dataset, values)
    job = simulate.Job(dataset, resolved, parties=HELD, device="cpu")
    expected = simulate.simulate(job, [0])[0].numbers
    assert record.runs[0]["accuracy"]["final"] == expected["accuracy"]["final"]
    for name in HELD:
        of_party = parties[name].runs[0]
        assert of_party["features"][name] == expected["features"][name]
        spent = of_party["privacy"]
        assert spent["all_runs"] == pytest.approx(spent["columns"][name]["epsilon"])


# ------------------------------------------------------------ what a server cannot have


def a_row(policy=None, **more):
    """Return the config of a party that may spend so much of a row."""
    return {"embedding_noise": 20.0, "policy": policy or Policy()} | more


def sent(reply):
    return reply.block.values


def at_first(server, number=0):
    """Have the first batch sent, and move the network by some gradient."""
    plan = server.plans[0]
    reply = server.party.handle(Begin(plan, 0))
    values = torch.full_like(sent(reply), float(number))
    after = server.party.handle(Descend(plan.stage, Block(values)))
    return sent(reply), sent(after)


def restarted(server, out, **own):
    """Have the party killed, started again, and told its rows again."""
    server.party.close()
    server.party = attacks.a_party(out, **own)
    server.welcome()
    server.prepare()


def test_a_step_back_gives_no_second_look(tmp_path):
    server = Server(attacks.a_party(tmp_path, **a_row()), **STEPS).begin()
    first = at_first(server)
    for _ in range(3):
        server.party.handle(Restore(None))
        again = at_first(server)
        assert all(map(torch.equal, first, again))
    server.party.handle(Restore(None))
    with refused("a step goes 1 way at most"):
        at_first(server, 1)
    restarted(server, tmp_path, **a_row())
    assert all(map(torch.equal, first, at_first(server)))
    server.party.handle(Restore(None))
    with refused("a step goes 1 way at most"):
        at_first(server, 1)


def test_rows_of_stage_2_leave_once(tmp_path):
    server = Server(attacks.a_party(tmp_path, **a_row()), **STEPS).begin()
    skip_to(server, "select_features")
    ask = Embed("embed", "train", 160, 8)
    first = sent(server.party.handle(ask))
    with pytest.raises(ProtocolError, match="the rows of stage 2, once and when due"):
        server.party.handle(ask)
    server.party.handle(Restore(None))
    skip_to(server, "select_features")
    assert torch.equal(sent(server.party.handle(ask)), first)


def test_a_row_is_scored_once_an_epoch(tmp_path):
    """Once, after every step, by a network that each step had moved."""
    policy = Policy(evaluation="epochs")
    server = Server(attacks.a_party(tmp_path, **a_row(policy)), **STEPS).begin()
    at_first(server)
    ask = Embed("evaluate", "test")
    first = sent(server.party.handle(ask))
    assert torch.equal(sent(server.party.handle(ask)), first)
    plan, gradient = server.plans[0], Block(torch.ones(40, first.shape[1]))
    server.party.handle(Descend(plan.stage, gradient))
    for bits in (32, 16):  # of other bits, once, it was a look at another place
        with refused("a step goes 1 way at most"):
            server.party.handle(replace(ask, bits=bits))


def test_training_rows_are_not_scored_where_there_are_no_test_rows(tmp_path):
    server = Server(attacks.a_party(tmp_path, **a_row()), **STEPS).aligned()
    server.prepare(np.arange(200), np.arange(0))
    training(server.party).progress.behind = len(server.plans)
    bits = training(server.party).prepared.bits
    with refused("evaluation by test rows"):
        server.party.handle(Embed("evaluate", "train", bits=bits))


def accounts_of(folder, whose="clinic"):
    """Return the sum of 1 / noise², and epsilon of randomised labels, of ids."""
    with contextlib.closing(
        sqlite3.connect(folder / f"ledger-{whose}.sqlite3")
    ) as file:
        query = "SELECT DISTINCT gaussian, epsilon FROM account"
        return [one for one in file.execute(query) if any(one)]


def price_of(party):
    """Return the sum of 1 / noise² of every id of a party's that has one."""
    ((gaussian, _),) = accounts_of(party.folder.parent)
    return gaussian


@pytest.mark.parametrize("delta", [1e-5, 0.02])
def test_a_delta_that_is_large_for_the_rows_is_said(tmp_path, hub, caplog, delta):
    begun(server_of(tmp_path, policy=LabelPolicy(delta=delta), **PRICED), hub)
    Server(attacks.a_party(tmp_path, **a_row(Policy(delta=delta))), **STEPS).welcome()
    told = [one.getMessage() for one in caplog.records if "told whole" in one.message]
    assert len(told) == (2 if delta == 0.02 else 0)
    for line in told:
        n_rows = int(line.split()[1])
        assert f"that about {0.02 * n_rows:.0f} are told whole" in line


@pytest.mark.usefixtures("own_secrets")
def test_all_runs_with_the_same_rows_share_a_bound(tmp_path):
    """And a restart of one of them spends nothing more."""
    bound = a_row(Policy(epsilon=3.0))
    server = Server(attacks.a_party(tmp_path, **bound), **STEPS).begin()
    at_first(server)
    spent = price_of(server.party)
    restarted(server, tmp_path, **bound)
    at_first(server)
    assert price_of(server.party) == spent
    again = Server(attacks.a_party(tmp_path, run="again", **bound), **STEPS)
    with refused(
        "allows epsilon 3 of every row", r"\(policy.epsilon\)", "earlier"
    ) as error:
        again.welcome()
    assert "policy.epsilon" in error.value.public  # and no amount
    assert not re.search(r"\d", error.value.public)
    again.party.close()
    wider = a_row(Policy(epsilon=9.0))
    Server(attacks.a_party(tmp_path, run="again", **wider), **STEPS).begin()
    assert price_of(server.party) == pytest.approx(2 * spent)


@pytest.mark.usefixtures("own_secrets")
@pytest.mark.parametrize("other", [{"evaluation": "epochs"}, {"delta": 1e-2}])
def test_a_run_goes_on_with_the_price_that_it_began_with(tmp_path, other):
    """Once, all that had left was charged for as what was to come."""
    server = Server(attacks.a_party(tmp_path, **a_row(Policy())), **STEPS).begin()
    server.party.close()
    with pytest.raises(RecordError, match=rf"Got other 'policy\.{next(iter(other))}'"):
        attacks.a_party(tmp_path, **a_row(Policy(**other)))


@pytest.mark.usefixtures("own_secrets")
def test_nothing_is_spent_before_rows_are_told(tmp_path):
    """A server that only greets, with ever more epochs, uses nobody's budget up."""
    server = Server(attacks.a_party(tmp_path, **a_row(Policy(epsilon=9.0))), **STEPS)
    server.welcome()
    assert not (tmp_path / "ledger-clinic.sqlite3").is_file()
    server.align()
    assert accounts_of(tmp_path) == []
    server.prepare()
    assert price_of(server.party) > 0


@pytest.mark.usefixtures("own_secrets")
def test_two_runs_side_by_side_cannot_both_begin(tmp_path):
    bound = a_row(Policy(epsilon=3.0))
    both = [
        Server(attacks.a_party(tmp_path, run=name, **bound), run=name, **STEPS)
        for name in ("one", "two")
    ]
    for server in both:
        server.aligned()
    both[0].prepare()
    with refused("allows epsilon 3 of every row"):
        both[1].prepare()


@pytest.mark.usefixtures("own_secrets")
def test_two_runs_have_noise_of_their_own(tmp_path):
    one, two = (
        at_first(Server(attacks.a_party(tmp_path, run=n, **a_row()), **STEPS).begin())
        for n in ("one", "two")
    )
    assert not torch.equal(one[0], two[0])


def test_an_epsilon_asks_for_as_much_noise_as_it_needs(tmp_path):
    own = {"embedding_epsilon": 3.0, "policy": Policy(epsilon=3.001)}
    server = Server(attacks.a_party(tmp_path, **own), **STEPS).begin()
    assert epsilon_spent(price_of(server.party), 0.0, 1e-5) == pytest.approx(3.0)


@pytest.mark.parametrize("method", ["iv-filter", "vertical-boost"])
def test_methods_that_ask_for_more_than_embeddings_are_refused(tmp_path, method):
    policy = Policy(methods=(method,), values=10**6, limits={"bins": None})
    party = attacks.a_party(tmp_path, **a_row(policy))
    with pytest.raises(ConfigError, match="Noise on embeddings protects no other"):
        Server(party, method).welcome()


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"policy": Policy(epsilon=8.0)}, "With 'epsilon' in its policy a party must"),
        (
            {"embedding_epsilon": 9.0, "policy": Policy(epsilon=8.0)},
            "must be within 'epsilon' of the policy.* Got 9 and 8",
        ),
        (a_row(seed_private="shared"), "'seed_private' setting must be own"),
        (a_row(embedding_epsilon=3.0), "must be said once: .* Got 20 and 3"),
        ({"embedding_noise": -1.0}, "'embedding_noise' setting must be a float in"),
        ({"embedding_clip": 0.0}, "'embedding_clip' setting must be a float in"),
    ],
)
def test_settings_that_promise_nothing_are_refused(own, sentence):
    with pytest.raises(ConfigError, match=sentence):
        PartyConfig(**own)


def test_a_setting_of_the_policy_is_named_with_it(tmp_path):
    path = tmp_path / "party.yaml"
    path.write_text("policy: {epsilon: -1}")
    with pytest.raises(ConfigError, match=r"The 'policy\.epsilon' setting must be a"):
        read_side(path)


# --------------------------------------------------------------------- bounds of labels


BOUND = LabelPolicy(epsilon=1.5)
LOCAL = {"method": "local-lasso"}


def spent_of_labels(folder):
    """Return the sum of 1 / noise², and epsilon, of the labels of a test's table."""
    (found,) = accounts_of(folder, "labels")
    return found


def test_a_run_beyond_the_bound_of_labels_is_refused_before_anybody_is_waited_for(
    tmp_path, hub
):
    begun(server_of(tmp_path, policy=BOUND), hub)
    with pytest.raises(
        ConfigError, match=r"may spend epsilon 1\.5 of every label.*Got"
    ):
        begun(server_of(tmp_path, own={"label_epsilon": 2.0}, policy=BOUND), hub)


@pytest.mark.parametrize(
    ("own", "more", "got"),
    [
        ({}, {}, "no mechanism with a price"),
        ({"gradient_defence": "marvell"}, {}, "no mechanism with a price"),
        (GAUSSIAN, {}, r"stage 2, .* \(server_rows=0 .* or method=local-lasso"),
        (
            GAUSSIAN | {"split": "stratified"},
            LOCAL,
            r"split=stratified, .* \(random",
        ),
        (
            GAUSSIAN | {"class_weight": "balanced"},
            LOCAL,
            r"class_weight, .* \(none",
        ),
        (
            GAUSSIAN | {"schedule": "watched"},
            LOCAL,
            r"schedule=watched, .* \(cosine",
        ),
        (GAUSSIAN, LOCAL | {"tell_share": True}, r"tell_share, .* \(false"),
    ],
)
def test_what_has_no_price_is_refused_under_a_bound(tmp_path, hub, own, more, got):
    with pytest.raises(ConfigError, match=got):
        begun(server_of(tmp_path, own=own, policy=BOUND, **more), hub)


def test_noise_on_gradients_has_a_price_where_nothing_else_is_of_labels(tmp_path, hub):
    begun(server_of(tmp_path, policy=BOUND, **PRICED), hub)


def whole_run(folder, run="server", own=None, **more):
    """Run to the end with parties of their own run folders."""
    config = server_of(folder, run, own=own, **more)
    with a_hub() as hub:
        process = ServerProcess(config, labels(), hub, a_status())  # or it is refused
        sides = start(hub, *(a_party(n, folder / f"of {run}") for n in HELD))
        try:
            record = process.run()
        finally:
            process.close()
    for side in sides:
        side.join(20)
    return record


def test_the_same_labels_cost_once_and_another_epsilon_adds_up(tmp_path):
    whole_run(tmp_path, "first", policy=BOUND)
    whole_run(tmp_path, "second", policy=BOUND)
    assert spent_of_labels(tmp_path) == (0.0, 1.0)
    other = {"label_epsilon": 0.8}
    with pytest.raises(ConfigError, match=r"would spend 1\.8 with what"):
        whole_run(tmp_path, "third", other, policy=BOUND)
    record = whole_run(tmp_path, "third", other, policy=LabelPolicy(epsilon=2.0))
    assert record.runs[0]["privacy"]["labels"]["epsilon"] == 0.8
    assert record.runs[0]["privacy"]["all_runs"] == pytest.approx(1.8, abs=1e-3)
    assert spent_of_labels(tmp_path) == (0.0, pytest.approx(1.8))


def test_draws_of_other_tables_add_up_under_one_epsilon(tmp_path, hub):
    """Once, two tables at one epsilon cost as much as one of them."""
    bound = LabelPolicy(epsilon=1.5)
    one = begun(server_of(tmp_path, "first", policy=bound), hub)
    one.labels.charge("first", None)
    with pytest.raises(ConfigError, match=r"would spend 2 with what"):
        begun(server_of(tmp_path, "second", policy=bound), hub, changed([0]))


def test_whatever_has_draws_of_its_own_is_paid_for(tmp_path, hub):
    """Once, an epsilon that prints alike was another look for free."""

    def charge(run, **own):
        begun(server_of(tmp_path, run, own), hub).labels.charge(run, None)
        return spent_of_labels(tmp_path)[1]

    assert charge("first", label_epsilon=1.0) == 1
    assert charge("again", label_epsilon=1.0) == 1
    assert charge("near", label_epsilon=1.0 + 1e-9) == pytest.approx(2)


def test_noise_on_gradients_is_paid_for_by_every_run(tmp_path):
    whole_run(tmp_path, "first", policy=BOUND, **PRICED)
    gaussian, pure = spent_of_labels(tmp_path)
    spent = epsilon_spent(gaussian, pure, 1e-5)
    bound = LabelPolicy(epsilon=1.1 * spent)
    with pytest.raises(ConfigError, match="with what earlier runs spent"):
        whole_run(tmp_path, "second", policy=bound, **PRICED)


def test_a_party_that_breaks_off_gets_no_look_that_is_not_paid_for(tmp_path):
    """Other embeddings after a break have other gradients, by the same labels."""
    more = {"tell_share": False, "seed_private": "own"}
    run_all(
        tmp_path,
        **PRICED,
        server=more,
        evaluation="end",
        dies_at={"clinic": 15},
    )
    assert paid_again(tmp_path) >= 2


def paid_again(folder):
    """Return how many releases of noise 250 were charged beside a run's plan."""
    with contextlib.closing(sqlite3.connect(folder / "ledger-labels.sqlite3")) as file:
        ((planned,),) = file.execute("SELECT gaussian FROM run")
    return round((spent_of_labels(folder)[0] - planned) * 250**2)


def test_gradients_that_come_again_have_noise_of_their_own(tmp_path):
    """By the same noise, those that other embeddings leave equal told labels."""
    seen: list[torch.Tensor] = []

    class Returning(PartyProcess):
        def handle(self, message):
            if isinstance(message, Descend):
                seen.append(message.gradient.values)
                if len(seen) == 1:
                    raise Death
            return super().handle(message)

    def make() -> PartyProcess:
        config = party_config("clinic", tmp_path)
        return Returning("clinic", config, a_table("clinic"))

    config = server_of(tmp_path, own=GAUSSIAN, **LOCAL)
    with a_hub() as hub:
        process = ServerProcess(config, labels(), hub, a_status())
        start(hub, a_party("bank", tmp_path))
        life = threading.Thread(target=lives, args=(hub.port, make), daemon=True)
        life.start()
        process.run()
        process.close()
    life.join(20)
    assert (seen[0] != seen[1]).double().mean() > 0.9


@pytest.mark.parametrize("sent", [12, 18])  # some of the way, and further
def test_a_server_that_goes_on_pays_for_the_steps_that_come_again(tmp_path, sent):
    """Once, parties that stayed away until it gave up got as many looks for nothing."""
    config = server_of(tmp_path, save_every=5, **PRICED)
    with a_hub() as hub:
        sides = start(hub, *(a_party(n, tmp_path) for n in HELD))
        original, left = hub.send, [sent]

        def send(requests, greeted=None):
            left[0] -= 1
            if left[0] == 0:
                raise Cut
            return original(requests, greeted)

        hub.send = send
        first = ServerProcess(config, labels(), hub, a_status())
        with pytest.raises(Cut):
            first.run()
        first.close()
        assert paid_again(tmp_path) == 0
        then = ServerProcess(config, labels(), hub, a_status(), resume=True)
        then.run()
        then.close()
    for side in sides:
        side.join(20)
    assert paid_again(tmp_path) >= 2  # a row may end an epoch, and begin another


def test_noise_on_gradients_is_of_a_secret_and_of_what_it_is_on(tmp_path, hub):
    """Once, it came of the common seed, by which each party could take it off."""
    labels_of = Labels(torch.zeros(3), "binary", 0, private=SECRET + 1)
    defence = GradientDefence("gaussian", 1.0, 1.0)
    own, other, flat = (
        replace(labels_of, defence=defence, private=seed).released(slope, "train", 0)
        - slope
        for seed, slope in (
            (SECRET + 1, torch.zeros(3, 1)),
            (SECRET + 2, torch.zeros(3, 1)),
            (SECRET + 1, torch.full((3, 1), 1e-3)),
        )
    )
    assert not torch.isclose(own, other, atol=1e-4).any()
    assert not torch.isclose(own, flat, atol=1e-4).any()
    one, two = (
        begun(server_of(tmp_path, name), hub).private_seed(0)
        for name in ("first", "second")
    )
    assert one != two
    assert min(one, two) >= SECRET


@pytest.fixture
def one_secret(monkeypatch, tmp_path):
    """Give all runs one secret for noise, and both folders one for labels."""
    for side in (PartyProcess, ServerProcess):
        monkeypatch.setattr(side, "private_seed", lambda self, seed: SECRET + seed)
    for name in ("calm", "broken"):
        (tmp_path / name).mkdir()
        known = json.dumps({"secret": "ab" * 32})
        (tmp_path / name / "spent-labels.json").write_text(known)


@pytest.mark.usefixtures("one_secret")
@pytest.mark.parametrize("evaluation", ["end", "epochs"])
def test_parties_and_server_that_die_spend_nothing_more(tmp_path, evaluation):
    """And the run is the same, to the bit, noise and labels too."""
    how = {"own": DP, "evaluation": evaluation, **NOISE}
    calm, kept = run_all(tmp_path / "calm", **how)
    runs = {"clinic": 15, "bank": 40}
    broken, kept_too = run_all(tmp_path / "broken", dies_at=runs, **how)
    assert broken.runs[0]["accuracy"] == calm.runs[0]["accuracy"]
    for name in HELD:
        one, other = kept[name].runs[0], kept_too[name].runs[0]
        assert one["features"] == other["features"]
        assert one["importance"] == other["importance"]
        spent = accounts_of(tmp_path / "broken", name)
        assert spent == accounts_of(tmp_path / "calm", name) != []
    assert spent_of_labels(tmp_path / "broken") == (0.0, 1.0)


@pytest.mark.usefixtures("one_secret")
def test_a_server_that_dies_at_any_exchange_pays_once(tmp_path):
    config = server_of(tmp_path / "broken", policy=BOUND)
    with a_hub() as hub:
        parties = (a_party(n, tmp_path / "broken", **NOISE) for n in HELD)
        sides, original, budget, deaths = start(hub, *parties), hub.send, 9, 0

        def send(requests, greeted=None):
            nonlocal budget
            budget -= 1
            if budget < 0:
                raise Cut
            return original(requests, greeted)

        hub.send = send
        while True:
            process = ServerProcess(config, labels(), hub, a_status(), deaths > 0)
            try:
                process.run()
                break
            except Cut:
                deaths += 1
                budget = 9 + 4 * deaths
            finally:
                process.close()
    for side in sides:
        side.join(20)
    assert deaths >= 2
    assert spent_of_labels(tmp_path / "broken") == (0.0, 1.0)


def test_a_run_goes_on_with_the_labels_that_it_told(tmp_path, hub):
    """Others, of another secret, would be a second release of each."""
    config = server_of(tmp_path)
    process = ServerProcess(config, labels(), hub, a_status())
    process.home.begin()
    process.close()
    (tmp_path / "ledger-labels.sqlite3").unlink()
    with pytest.raises(RecordError, match="Got other randomised labels"):
        begun(config, hub)


# -------------------------------------------------------------------------- predictions


KEEPING = {"embedding_noise": 20.0, "must_keep": "*"}  # whatever noise hides


@pytest.fixture(scope="module")
def noisy_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noisy")
    return predict.train(folder, columns=KEEPING)


@pytest.fixture
def folder(noisy_model, tmp_path):
    return Path(shutil.copytree(noisy_model, tmp_path / "runs"))


def said(folder, seed=0, parties=None):
    """Return what parties say of all rows that they have in common."""
    with predict.a_session(folder, parties=parties, seed=seed) as (predictor, _):
        return predictor.predict(predict.everybody(predictor)).z


def own_policy(**more):
    return {
        "clinic": {"policy": replace(predict.WIDE, **more), "embedding_noise": 20.0}
    }


def clear(folder, seed=0):
    return predict.in_process(folder, predict.common(), seed)


def test_predictions_of_training_rows_have_noise(folder):
    """Once, embeddings of training rows left as they are, at full precision."""
    party = predict.a_party("clinic", folder, embedding_noise=20.0)
    message = SimpleNamespace(seeds=(0,))
    own = party.models.opened(message, party.budget.secret).h
    party.close()
    frame = predict.a_frame("clinic").take(predict.order("clinic"))
    exact = torch.as_tensor(load(folder / "clinic", 0).embed(frame))
    noise = (own - exact).std()
    assert noise == pytest.approx(20.0, rel=0.3)


def opened(folder, seeds=(0,), n_rows=None):
    """Return the embeddings of a party's first rows as they may leave, by seed."""
    rows = predict.order("clinic")[:n_rows]
    party = predict.a_party("clinic", folder, rows=rows, embedding_noise=20.0)
    released = party.models.opened(SimpleNamespace(seeds=seeds), party.budget.secret).h
    party.close()
    return np.asarray(released.numpy())


def test_a_request_with_one_row_more_gives_no_second_noise(folder):
    """Once, it drew noise anew for all rows: 52 requests took 6 of 7 parts of it off.

    Of another table the same embedding may differ in its last bit, and by that be on
    the next step of the grid: such a row has other noise.
    """
    all_rows = opened(folder)
    sizes = range(len(all_rows) - 12, len(all_rows))
    n_least = sizes[0]
    looks = np.stack([opened(folder, n_rows=n)[:n_least] for n in sizes])
    is_same = (looks == all_rows[:n_least]).all(axis=(0, 2))
    assert is_same.mean() > 0.98
    averaged = looks.mean(axis=0) - clear_of(folder)[:n_least]
    assert averaged.std() == pytest.approx(20.0, rel=0.1)


def clear_of(folder, seed=0):
    frame = predict.a_frame("clinic").take(predict.order("clinic"))
    return load(folder / "clinic", seed).embed(frame).numpy().clip(-1, 1)


def test_the_same_prediction_has_the_same_noise_a_hundred_times(folder):
    party = predict.a_party("clinic", folder, embedding_noise=20.0)
    ask = SimpleNamespace(seeds=(0,))
    looks = [party.models.opened(ask, party.budget.secret).h for _ in range(100)]
    party.close()
    assert all(torch.equal(one, looks[0]) for one in looks)


def test_an_ensemble_has_the_noise_of_its_models(tmp_path):
    """Other noise would be another release of the same embeddings."""
    folder = predict.train(tmp_path, columns=KEEPING, ensemble=True)
    alone = [opened(folder, (seed,)) for seed in (0, 4)]
    together = opened(folder, (0, 4))
    is_same = (together == np.concatenate(alone, axis=1)).all(axis=1)
    assert is_same.mean() > 0.98  # but for last bits


def test_predictions_have_keyed_noise(folder, monkeypatch, without_generators):
    party = predict.a_party("clinic", folder, embedding_noise=20.0)
    models = [predict_models._fitted(party.config, 0)]  # draws weights, then loads
    monkeypatch.setattr(predict_models, "_fitted", lambda config, seed: models[0])
    without_generators()
    ask = SimpleNamespace(seeds=(0,))
    assert party.models.opened(ask, party.budget.secret).h.std() > 10
    party.close()


def test_a_row_is_predicted_with_the_same_noise_however_often(folder):
    one = said(folder)
    assert (said(folder) == one).all()
    assert not np.allclose(one, clear(folder))


ONE = 4 / 20**2  # a prediction, of noise 20 by the clip: the sum of 1 / noise²


def released(folder):
    """Return the sum of 1 / noise² of the row of which most was told."""
    return max(gaussian for gaussian, _ in accounts_of(folder))


def test_predictions_are_paid_for_with_the_rows_of_training(folder, caplog):
    before = released(folder)
    said(folder)
    said(folder)
    assert released(folder) == pytest.approx(before + 1 * ONE)
    with caplog.at_level("INFO"):
        said(folder, seed=4)
    assert released(folder) == pytest.approx(before + 2 * ONE)
    assert "these predictions spend epsilon" in caplog.text
    assert "with earlier runs" in caplog.text


def test_rows_beyond_the_policy_spend_no_epsilon(folder):
    """Once, noise was paid for, and the rows then refused."""
    before = released(folder)
    with pytest.raises(PolicyError, match=r"declines: .*policy\.predict_rows"):
        said(folder, parties=own_policy(predict_rows=5))
    assert released(folder) == before


def test_another_table_is_another_release_and_beyond_a_bound_refused(folder):
    bound = epsilon_spent(released(folder) + 1.5 * ONE, 0.0, 1e-5)
    assert said(folder, parties=own_policy(epsilon=10.0)).shape[0]
    with pytest.raises(PolicyError, match=r"declines: .*policy\.epsilon"):
        said(folder, seed=4, parties=own_policy(epsilon=bound))


@pytest.mark.parametrize("bound", [None, 8.0])
def test_a_model_without_noise_is_refused_where_there_should_be_some(tmp_path, bound):
    """Once, without a bound, a config that asked for noise predicted without any."""
    folder = predict.train(tmp_path)
    with pytest.raises(ConfigError, match="must predict with a model that had noise"):
        predict.a_party("clinic", folder, **own_policy(epsilon=bound)["clinic"])


def test_reasons_that_are_told_have_no_noise_and_are_refused(folder):
    own = own_policy(reasons="features")["clinic"]
    with pytest.raises(ConfigError, match="'reasons' must be none or home with noise"):
        predict.a_party("clinic", folder, **own)
