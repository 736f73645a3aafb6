"""What a certified server tries with a party, and what the party makes of it.

Each test is an attack that once worked. The server here is the attacker: it sends
whatever messages it likes, straight into the party's own ``handle``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import secrets
import shutil
import sqlite3
import stat
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lessvfl import data, methods, settings
from lessvfl.core import ending, plans
from lessvfl.core.network import MLP, NetConfig
from lessvfl.core.plans import SECRET, TrainPlan, sample_rows, stream
from lessvfl.errors import (
    ConfigError,
    LessVFLError,
    PolicyError,
    ProtocolError,
    RecordError,
)
from lessvfl.remote.align import Aligner, Ids, psi
from lessvfl.remote.align import messages as wire
from lessvfl.remote.align.entries import Entries
from lessvfl.remote.checkpoint import State, read_state, write_state
from lessvfl.remote.config import PartyConfig
from lessvfl.remote.party import PartyProcess, Serving
from lessvfl.remote.policy import LEAST, LIMITS, REFUSED, Policy, PolicyChecker
from lessvfl.remote.seed import SeedRun
from lessvfl.remote.session import Aligned
from lessvfl.remote.spent import _Seed
from lessvfl.run import profiles
from lessvfl.wire import codec, coding
from lessvfl.wire.control import Align, Finish, Prepare, Restore, Save, Welcome
from lessvfl.wire.messages import (
    Begin,
    Block,
    Descend,
    Describe,
    Done,
    Embed,
    Query,
    Select,
)

pytestmark = pytest.mark.filterwarnings("ignore:The rows of the label holder")

N, D = 200, 16
NAMES = "abcdefghijklmnop"
TABLE = np.random.default_rng(3).normal(size=(N, D))
IDS = np.arange(N) + 5000
TRAIN, TEST = np.arange(0, 160), np.arange(160, 200)
KEY = bytes(32)


@pytest.fixture(autouse=True, scope="module")
def known_points():
    """Give all parties one secret, and keep points; each takes a third of a ms."""
    real = psi.Key

    @functools.cache
    def product(scalar, point):
        return real(scalar).multiply([point])[0]

    class Key(psi.Key):
        def __init__(self, scalar):
            self.scalar = scalar

        def multiply(self, points, count=None):
            some = (product(self.scalar, bytes(point)) for point in points)
            return Entries.of(some, psi.POINT_BYTES)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi, "hash_to_curve", functools.cache(psi.hash_to_curve))
        patch.setattr(psi, "Key", Key)
        patch.setattr(secrets, "token_bytes", lambda n: bytes([n]) * n)
        yield


@pytest.fixture
def own_secrets(monkeypatch):
    """Give every run folder another secret."""
    monkeypatch.setattr(secrets, "token_bytes", os.urandom)


def a_party(
    out, table=TABLE, ids=IDS, names=NAMES, policy=None, run="run", **own
) -> PartyProcess:
    config = PartyConfig(
        out=str(out / run), align="psi", id="who", policy=policy or Policy(), **own
    )
    return PartyProcess("clinic", config, data.frame_of(table, list(names)), ids)


def asked(method="less-vfl-auto", profile="default", **values) -> dict[str, Any]:
    """Return the settings that an honest server sends, and what is put on top."""
    dataset = data.from_arrays([[0.0], [1.0]], [0, 1])
    return profiles.resolve(method, profile, dataset).shared() | values


def training(party: PartyProcess) -> SeedRun:
    """Return the seed at hand of a party."""
    assert isinstance(party.state, Serving)
    return party.state.run


class Server:
    """A server that may do anything; by default it does what an honest one does."""

    def __init__(self, party: PartyProcess, method="less-vfl-auto", run="r", **values):
        self.party, self.method, self.run = party, method, run
        self.settings = asked(method, **values)

    def welcome(self, **more) -> bool:
        message = Welcome(
            self.run, (0, 1), self.method, self.settings, ("clinic",), "psi"
        )
        reply = self.party.handle(dataclasses.replace(message, **more))
        return bool(reply.revealed["aligned"])

    def ask(self, ids=IDS, secret=KEY) -> tuple[Aligner, list[bytes]]:
        """Find out which of some ids the party has; return what it said."""
        own: dict[str, Any] = {"min_common": 1, "min_share": 0.0}
        aligner = Aligner("psi", Ids(ids, "who"), len(ids), secret=secret, **own)
        said: list[bytes] = []
        more: bytes | None = aligner.hello()
        while more is not None:
            reply: Any = self.party.handle(Align(more))
            said.append(bytes(reply.data))
            more = aligner.take("clinic", said[-1])
        return aligner, said

    def align(self, ids=IDS, secret=KEY) -> list[bytes]:
        aligner, said = self.ask(ids, secret)
        self.party.handle(Align(aligner.finish()["clinic"]))
        return said

    def prepare(self, train=TRAIN, test=TEST, seed=0) -> None:
        self.party.handle(listed(train, test, seed))
        self.party.handle(Restore(None))

    def aligned(self, ids=IDS) -> Server:
        self.welcome()
        self.align(ids)
        return self

    def begin(self) -> Server:
        self.aligned().prepare()
        return self

    def descend(self, number: int) -> None:
        """Look at all training rows, and move the network by some gradient."""
        plan = self.plans[0]
        reply: Any = self.party.handle(Begin(plan, 0))
        values = torch.full_like(reply.block.values, float(number))
        self.party.handle(Descend(plan.stage, Block(values)))

    @property
    def plans(self):
        return training(self.party).prepared.plans


def skip_to(server: Server, stage: str) -> Any:
    """Have the stages before one behind the party, and return its plan."""
    names = [plan.stage for plan in server.plans]
    training(server.party).progress.behind = names.index(stage)
    return server.plans[names.index(stage)]


def listed(train, test, seed=0) -> Prepare:
    """Name rows for testing, whatever the others are."""
    return Prepare.of(seed, train, test)


def refused(*sentences):
    return pytest.raises(PolicyError, match=".*".join(sentences))


# -------------------------------------------------------------------- code and settings


@pytest.mark.parametrize("code", ["os:getcwd", "ctypes:CDLL", "antigravity.py:f"])
def test_a_server_cannot_name_code_to_load(tmp_path, code):
    server = Server(a_party(tmp_path), party_net=code)
    with refused("decides for itself", "'party_net'"):
        server.welcome()


@pytest.mark.parametrize(
    "name",
    ["scale", "max_categories", "missing", "must_keep", "fusion_net", "anything"],
)
def test_preparation_is_the_partys_own_choice(tmp_path, name):
    server = Server(a_party(tmp_path), **{name: "none"})
    with refused("decides for itself", f"'{name}'"):
        server.welcome()


def test_its_own_scale_acts_whatever_the_server_wants(tmp_path):
    party = a_party(tmp_path, scale="standardize")
    Server(party).begin()
    assert training(party).party.model.X_train.mean(dim=0).abs().max() < 1e-5


def test_a_party_brings_its_own_network(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(
        "from torch import nn\n"
        "def own(n, m):\n"
        "    return nn.Sequential(nn.Linear(n, 7), nn.Tanh(), nn.Linear(7, m))\n"
    )
    party = a_party(tmp_path, party_net=f"{path}:own")
    Server(party).begin()
    assert training(party).party.net.input_weights.shape == (7, D)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"hidden": 40_000}, "'hidden' up to 512"),
        ({"hidden": [64, 40_000]}, "'hidden' up to 512"),
        ({"depth": 500}, "'depth' up to 6"),
        ({"depth": 10**9}, "'depth' up to 6"),  # at once: its widths are not listed
        ({"hidden": [64] * 6}, "'depth' up to 6"),
        ({"weight_decay": 1e9}, "'weight_decay' up to 10"),
        ({"train_epochs": 10**6}, "'train_epochs' up to 40"),
        ({"shadows": 10**7}, "'shadows' up to 1000"),
        (
            {"embedding_size": 13, "components_per_column": None},
            "0.75 components for each of its encoded columns",
        ),
        ({"embedding_size": 16, "components_per_column": 1.0}, "0.75 components"),
        ({"depth": 1}, "'depth' from 2 on"),
        ({"activation": "none"}, "any 'activation' but none"),
        ({"optimizer": "sgd"}, "any 'optimizer' but sgd"),
        ({"input_scale": 1e-6}, "'input_scale' from 0.01 on"),
        ({"pretrain_epochs": 10}, "'pretrain_epochs' up to 1"),
        ({"pretrain_batch_size": 1}, "'pretrain_batch_size' from 32 on"),
        ({"batch_size": 31}, "'batch_size' from 32 on"),
    ],
)
def test_settings_have_bounds(tmp_path, values, sentence):
    with refused("policy of party 'clinic' allows", sentence, "Got"):
        Server(a_party(tmp_path), **values).welcome()


UNBOUNDED = {  # settings whose largest value a party can bear, and why
    "components_per_column": "it can but lower 'embedding_size'",
    "batch_size": "a batch has all rows at most",
    "pretrain_batch_size": "a batch has all rows at most",
    "gate_batch_size": "a batch has all rows at most",
    "search_rows": "a sample has all rows at most",
    "second_look": "'train_epochs' bounds it",
    "plateau_patience": "'party_epochs' bounds it",
    "most": "a party has no more features",
    "keep": "a party has no more features",
    "least_rows": "a tree stays smaller",
    "l2": "a leaf says less",
    **dict.fromkeys(("fusion_depth", "fusion_hidden"), "the network is the server's"),
    **dict.fromkeys(
        ("lam_server", "server_epochs", "server_step_size"), "the stage is the server's"
    ),
    **dict.fromkeys(("server_rows", "server_errors"), "the stage is the server's"),
    **dict.fromkeys(("patience", "tolerance", "eta"), "the server alone reads it"),
}


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_number_that_a_server_sets_has_a_bound_or_a_reason(method):
    """Depths of 10**9 took all of a party's memory before a bound was looked at."""
    fields = settings.fields_of([NetConfig, methods.get(method).config])
    for name, field in fields.items():
        accepts = settings.kind_of(field).accepts
        assert not accepts(10**400)
        if name in profiles.OWN or not accepts(10**12):
            continue
        others = dict.fromkeys({**LIMITS, **LEAST, **REFUSED}.keys() - {name})
        policy = Policy(methods=(method,), components_per_column=1e12, limits=others)
        values = asked(method, **{name: 10**12})
        welcome = Welcome("r", (0,), method, values, ("clinic",), "psi")
        sentence = ""
        try:
            PolicyChecker("clinic", policy).settings(welcome, D)
        except PolicyError as error:
            sentence = str(error)
        if name in UNBOUNDED:
            assert not sentence
        else:
            assert f"(policy.limits.{name}). Got 1e+12." in sentence, name


def test_a_method_must_be_allowed(tmp_path):
    server = Server(a_party(tmp_path), method="plain", embedding_size=4)
    with refused("the methods less-vfl-auto", "policy.methods", "Got 'plain'"):
        server.welcome()


def test_memory_is_bounded_before_it_is_taken(tmp_path):
    policy = Policy(limits={"hidden": None}, memory=100)
    server = Server(a_party(tmp_path, policy=policy), hidden=40_000).aligned()
    with refused("networks of 100 MiB", "policy.memory", "a larger one"):
        server.prepare()


def test_what_cannot_come_in_a_seed_is_not_unpacked(tmp_path):
    """Once, queries of 8 KiB for every row were, and offers of 1000 ids for each."""
    due = Server(a_party(tmp_path), **STEPS).begin().party.due()
    assert due.kinds[Query].n_bytes == 0
    assert Align not in due.kinds
    assert due.most_bytes < 1.1 * codec.MAX_FIELDS


def test_the_default_profile_passes_the_default_policy(tmp_path):
    """And a policy that names a limit of its own is read from its file."""
    server = Server(a_party(tmp_path)).begin()
    assert server.party.handle(Describe()).embedding_size == 4


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"limits": {"hiden": 3}}, "Unknown setting 'hiden' in 'limits'.*'hidden'"),
        (
            {"limits": {"hidden": "x"}},
            "'policy.limits' setting must be names",
        ),
        ({"methods": ["magic"]}, "'policy.methods' setting must be a list of methods"),
        ({"rounds": 0}, "'policy.rounds' setting must be a whole number >= 1"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(policy, sentence):
    with pytest.raises(ConfigError, match=sentence):
        Policy(**policy)


# --------------------------------------------------------------------------- which rows


def test_alignment_cannot_be_skipped(tmp_path):
    """Once: depth=1, scale=none, as many components as columns, and all rows came."""
    server = Server(a_party(tmp_path))
    server.welcome()
    with refused("aligns its rows before anything else"):
        server.prepare(np.arange(N), np.arange(0))


def test_only_common_rows_leave(tmp_path):
    server = Server(a_party(tmp_path)).aligned(IDS[:100])
    with refused("trains and tests with all 100 common rows"):
        server.prepare(np.arange(80), np.arange(80, 160))
    server.prepare(np.arange(80), np.arange(80, 100))


def test_rows_are_all_common_rows(tmp_path):
    server = Server(a_party(tmp_path)).aligned()
    for n_train, n_test, n_bits in (
        *((1, 1, 1), (160, 40, 39), (160, 40, 41)),
        *((150, 40, 40), (159, 40, 40), (161, 40, 40)),
    ):
        bits = np.packbits(np.arange(n_train + n_test) >= n_train + n_test - n_bits)
        with refused("trains and tests with all 200 common rows"):
            server.party.handle(Prepare(0, n_train, n_test, bits))


def test_not_all_rows_belong_together(tmp_path):
    server = Server(a_party(tmp_path)).aligned()
    message = listed(TRAIN, TEST)
    blocks = np.zeros(len(TRAIN), dtype=np.int32)
    with refused("where not all of them do", "Got one block"):
        server.party.handle(dataclasses.replace(message, blocks=blocks))


def test_a_seed_has_one_set_of_blocks(tmp_path):
    server = Server(a_party(tmp_path)).begin()
    blocks = np.arange(len(TRAIN), dtype=np.int32) // 2
    with refused("one set of training and test rows a seed"):
        server.party.handle(dataclasses.replace(listed(TRAIN, TEST), blocks=blocks))


def test_blocks_do_not_have_one_person_looked_at_alone(tmp_path, monkeypatch):
    """Rows held out leave at every look: of one row all values are ends, and exact."""
    monkeypatch.setattr(plans, "FEWEST_HELD_OUT", 5)
    monkeypatch.setattr(ending, "LOOK_EVERY", 2)
    server = Server(a_party(tmp_path), schedule="watched", bits=8).aligned()
    blocks = (np.arange(len(TRAIN)) == 7).astype(np.int32)
    with refused(
        "8 rows or more that are looked at together", "limits.batch_size", "Got 1"
    ):
        server.party.handle(dataclasses.replace(listed(TRAIN, TEST), blocks=blocks))


def test_one_person_is_not_trained_on_alone(tmp_path):
    """Once, the embedding of one person left 5,000 times within 500 passes."""
    server = Server(a_party(tmp_path)).aligned()
    with refused("training with 50 rows or more", "policy.min_rows", "Got 1"):
        server.prepare(np.array([7]), np.delete(np.arange(N), 7))


def test_a_seed_has_one_set_of_rows(tmp_path):
    server = Server(a_party(tmp_path)).begin()
    server.prepare()  # again, after a break
    with refused("one set of training and test rows a seed"):
        server.prepare(TRAIN[:100], np.arange(100, N))


def test_one_alignment_a_run(tmp_path):
    """Once, four different queries were answered; each tells which ids it has."""
    server = Server(a_party(tmp_path))
    server.welcome()
    first = server.align(IDS[:100])
    server.welcome()  # a new session: after a break the same hello gets the same answer
    assert server.align(IDS[:100]) == first
    server.welcome()
    with refused("aligns its rows once a run"):
        server.align(IDS[100:])
    with refused("aligns its rows once a run"):
        server.align(IDS[:100], secret=bytes([1] * 32))


def test_not_even_after_a_restart(tmp_path):
    server = Server(a_party(tmp_path))
    server.welcome()
    first = server.align(IDS[:100])
    server.party.close()
    server.party = a_party(tmp_path)
    server.welcome()
    assert server.align(IDS[:100]) == first
    server.welcome()
    with refused("aligns its rows once a run"):
        server.align(IDS)


def test_a_run_folder_is_for_one_run(tmp_path):
    server = Server(a_party(tmp_path)).aligned()
    server.run = "another"
    with refused("takes part in one run"):
        server.welcome()


def test_few_common_rows_are_refused_and_not_counted(tmp_path):
    server = Server(a_party(tmp_path, policy=Policy(min_rows=60)))
    server.welcome()
    with refused("at least 60 common rows") as caught:
        server.ask(IDS[:59])
    assert "59" not in str(caught.value)


# ------------------------------------------------------------------ how often, and what

STEPS = {"pretrain_epochs": 1.0, "pretrain_batch_size": 40}  # four


def test_rounds_are_counted_whatever_is_restored(tmp_path):
    """Once, `Restore(None)` set the counter back, and 41 exchanges passed for 3."""
    server = Server(
        a_party(tmp_path, policy=Policy(rounds=12, evaluation="epochs"))
    ).begin()
    for _ in range(3):  # after a welcome, three of the alignment, and two of a seed
        server.party.handle(Embed("evaluate", "train"))
        server.party.handle(Restore(None))
    with refused("allows 12 rounds", "policy.rounds"):
        server.party.handle(Embed("evaluate", "train"))


def test_rounds_are_counted_across_restarts(tmp_path):
    server = Server(
        a_party(tmp_path, policy=Policy(rounds=100, evaluation="epochs"))
    ).begin()
    server.party.handle(Save("pretrain-1"))
    n_asked = 0
    with refused("allows 100 rounds"):
        for _ in range(30):
            for _ in range(5):
                server.party.handle(Embed("evaluate", "train"))
                n_asked += 1
            server.party.close()  # as after kill -9: nothing more is written
            server.party = a_party(
                tmp_path, policy=Policy(rounds=100, evaluation="epochs")
            )
            server.welcome()
            server.prepare()
    assert n_asked <= 100


def test_values_about_a_row_are_counted(tmp_path):
    """Once, `Restore(None)` and other gradients gave 750 looks at every row."""
    server = Server(a_party(tmp_path), **STEPS).begin()
    for number in range(2):
        server.descend(number)
        server.party.handle(Restore(None))
    with refused("values about a row for one seed", "a step goes 2 ways at most"):
        server.descend(2)
    server.party.close()  # as after kill -9
    server.party = a_party(tmp_path)
    server.welcome()
    server.prepare()
    server.descend(1)  # what went before may come again
    server.party.handle(Restore(None))
    with refused("a step goes 2 ways at most"):
        server.descend(3)


def test_few_steps_go_another_way(tmp_path):
    """After a break, on another machine; all that a seed plans is not for that."""
    server = Server(a_party(tmp_path), **STEPS, train_epochs=1.0).begin()
    plan = server.plans[0]
    place = tmp_path / "run" / "seed-0"

    def go(number):
        reply: Any = server.party.handle(Begin(plan, 0))
        while not isinstance(reply, Done):
            values = torch.full_like(reply.block.values, float(number))
            reply = server.party.handle(Descend(plan.stage, Block(values)))
        server.party.handle(Embed("embed", "train", 160, 8))
        server.party.handle(Restore(None))

    go(0)
    before = server.party.budget.values(place)
    with refused("values about a row for one seed"):
        go(1)
    planned = server.party.budget._plan.values
    assert before < server.party.budget.values(place) <= before + 0.25 * planned


def test_the_same_look_again_is_not_counted(tmp_path):
    server = Server(a_party(tmp_path), **STEPS).begin()
    for _ in range(20):
        server.descend(0)
        server.party.handle(Restore(None))
    place = tmp_path / "run" / "seed-0"
    before = server.party.budget.values(place)
    assert 0 < before < 10
    server.party.close()  # as after kill -9
    server.party = a_party(tmp_path)
    server.welcome()
    server.prepare()
    server.descend(0)
    assert server.party.budget.values(place) == before


@pytest.mark.usefixtures("own_secrets")
def test_values_about_a_row_are_counted_over_runs_with_the_same_rows(tmp_path):
    policy = Policy(values=193)  # two seeds plan 192
    server = Server(a_party(tmp_path, policy=policy), **STEPS).begin()
    server.descend(0)
    server.party.handle(Save("pretrain-1"))
    server.party.close()
    again = Server(a_party(tmp_path, policy=policy, run="again"), **STEPS)
    with refused("allows 193 values about a row in all", "policy.values"):
        again.begin()
    again.party.close()
    shutil.rmtree(tmp_path / "run")  # once, a folder of the same name was the same run
    with refused("allows 193 values about a row in all", "policy.values"):
        Server(a_party(tmp_path, policy=policy), **STEPS).begin()


@pytest.mark.usefixtures("own_secrets")
def test_runs_side_by_side_share_what_goes_beyond_their_plans(tmp_path):
    """Once, each knew what had left before it began."""
    policy = Policy(values=420)  # two plan 384, and a part of a seed ahead is 24
    runs = [
        Server(a_party(tmp_path, policy=policy, run=name), run=name, **STEPS).begin()
        for name in ("one", "two")
    ]
    for server in runs:
        server.party.budget._seeds["seed-9"] = shown = _Seed(tmp_path / "none")
        shown.values = 192.0
    runs[0].descend(0)
    with refused("allows 420 values about a row in all", "with what earlier ones told"):
        runs[1].descend(0)


def test_a_look_that_was_not_written_whole_did_not_leave(tmp_path):
    server = Server(a_party(tmp_path), **STEPS).begin()
    server.descend(0)
    path = tmp_path / "run" / "seed-0" / "looks.bin"
    before, found = server.party.budget.values(path.parent), path.read_bytes()
    path.write_bytes(found + found[:7])
    server.party.close()
    party = a_party(tmp_path)
    assert party.budget.values(path.parent) == before
    assert path.read_bytes() == found


def test_training_rows_do_not_make_a_party_narrower_than_its_policy(tmp_path):
    """Once, 16 components left for the 5 columns that few categories encode to."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"x{i}": rng.normal(size=N) for i in range(2)})
    places = np.where(np.arange(N) < 160, np.arange(N) % 3, np.arange(N) % 20)
    frame["city"] = [f"c{place:02d}" for place in places]
    config = PartyConfig(out=str(tmp_path / "run"), align="psi", id="who")
    party = PartyProcess("clinic", config, data.frame_of(frame), IDS)
    server = Server(party, embedding_size=16, components_per_column=None).aligned()
    assert isinstance(party.state, Aligned)  # in the common order
    few = np.isin(party.state.rows.texts(2), ["c00", "c01", "c02"])
    with refused("0.75 components for each of its encoded columns", "Got 16"):
        server.prepare(np.flatnonzero(few), np.flatnonzero(~few))


def test_what_was_spent_is_known_exactly_at_a_checkpoint(tmp_path):
    server = Server(a_party(tmp_path, policy=Policy(evaluation="epochs"))).begin()
    server.party.handle(Embed("evaluate", "train"))
    path = tmp_path / "run" / "spent.safetensors"
    assert read_state(path).values["rounds"] > 1  # ahead of what was spent
    server.party.handle(Save("pretrain-1"))
    found = read_state(path).values
    assert found["rounds"] == 8  # with those around the run


def test_plans_are_those_of_the_agreed_settings(tmp_path):
    server = Server(a_party(tmp_path)).begin()
    train = next(p for p in server.plans if isinstance(p, TrainPlan))
    longer = dataclasses.replace(train, n_epochs=10**6)
    with refused("follows the plans", "stage 'pretrain'"):
        server.party.handle(Begin(longer))
    other = dataclasses.replace(train, lam=5.0)
    with refused("follows the plans"):
        server.party.handle(Begin(other))
    look = next(p for p in server.plans if p.stage == "select_features")
    with refused("follows the plans"):
        server.party.handle(Select(None, dataclasses.replace(look, n_copies=10**9)))
    rounded = math.nextafter(train.learning_rate, 1)  # by another kind of processor
    server.party.handle(Begin(dataclasses.replace(train, learning_rate=rounded)))


def test_what_was_agreed_stays(tmp_path):
    """Once, other settings with the same secret gave more of the same columns."""
    server = Server(a_party(tmp_path)).aligned()
    for change in ({"input_scale": 1.0}, {"depth": 2}, {"learning_rate": 0.02}):
        before, server.settings = server.settings, server.settings | change
        with refused("with the settings that it began with"):
            server.welcome()
        server.settings = before
    for more in ({"seeds": (0, 1, 2)}, {"parties": ("clinic", "spy")}):
        with refused("with the settings that it began with"):
            server.welcome(**more)
    assert server.welcome()


def test_a_claim_on_rows_that_fails_was_the_only_one(tmp_path):
    """The last message names places in the party's offer, and proves them."""
    server = Server(a_party(tmp_path))
    server.welcome()
    aligner, said = server.ask(IDS[:60])
    reader = wire.open_message(said[0], wire.OFFER, "clinic")

    def claim(*places):
        parts = [wire.positions(np.array(places))] * 2
        parts.append(wire.block([bytes(32)] * len(places)))
        return Align(wire.seal(wire.FINAL, "psi", reader.run, parts))

    with pytest.raises(LessVFLError, match="names rows that are not common"):
        server.party.handle(claim(*range(60)))
    server.welcome()
    server.ask(IDS[:60])
    with refused("aligns its rows once a run"):
        server.party.handle(Align(aligner.finish()["clinic"]))


def test_ids_that_nobody_has_give_no_rows(tmp_path):
    """Once, made-up ids and guessed places of the offer had as many rows leave."""
    n = 512  # no padding
    table, ids = np.random.default_rng(0).normal(size=(n, D)), np.arange(n) + 10**6
    party = a_party(tmp_path, table=table, ids=ids, policy=Policy(min_rows=1))
    server = Server(party)
    server.welcome()
    with refused("at least 1 common rows"):
        server.ask(np.arange(256))


def test_one_target_among_made_up_ids(tmp_path):
    """Once, it was learnt: the offer left before the party counted."""
    server = Server(a_party(tmp_path))
    server.welcome()
    with refused("at least 50 common rows and 0.001 of the ids offered", "Got fewer"):
        server.ask(np.r_[IDS[7], np.arange(99)])
    server.welcome()
    with refused("aligns its rows once a run"):
        server.ask(IDS)


def test_a_count_is_made_once(tmp_path):
    """Points under several keys in one hello would have as many counts."""
    server = Server(a_party(tmp_path))
    server.welcome()
    aligner, said = server.ask(IDS[:60])
    reader = wire.open_message(said[0], wire.OFFER, "clinic")
    other = [sorted(psi.Key(KEY).multiply(reader.block(32))) for _ in range(2)]
    server.welcome()
    server.party.handle(Align(aligner.hello()))
    with refused("aligns its rows once a run"):
        echo = wire.seal(wire.ECHO, "psi", reader.run, map(wire.block, other))
        server.party.handle(Align(echo))


def test_who_knows_enough_ids_learns_of_others(tmp_path):
    """Documented: 50 known ids that it has let a server try 49,950 others a run."""
    server = Server(a_party(tmp_path))
    server.welcome()
    strangers = np.arange(1000)
    aligner, _ = server.ask(np.r_[IDS[:50], IDS[150:153], strangers])
    assert np.flatnonzero(aligner._places["clinic"] >= 0).tolist() == [*range(53)]
    party = a_party(tmp_path / "other", policy=Policy(min_share=0.06))
    server = Server(party)
    server.welcome()
    with refused("50 common rows and 0.06 of the ids offered"):
        server.ask(np.r_[IDS[:53], strangers])


@pytest.mark.parametrize("is_there", [True, False])
def test_a_refusal_tells_one_bit(tmp_path, is_there):
    """Documented: with 49 known ids, whether the run goes on tells of one more."""
    server = Server(a_party(tmp_path))
    server.welcome()
    offered = np.r_[IDS[:49], IDS[100] if is_there else 7]
    if is_there:
        server.ask(offered)
        return
    with refused("at least 50 common rows"):
        server.ask(offered)


def test_alignments_are_counted_over_runs(tmp_path):
    """One a run says little where a server may begin another run."""
    policy = Policy(align_rate=2)

    def server(name):
        party = a_party(tmp_path, policy=policy, run=name)
        found = Server(party, run=name)
        found.welcome()
        return found

    one = server("one")
    one.align()
    one.welcome()
    one.align()  # the same again: no news
    server("two").align()
    with refused("allows 2 alignments in 30 days", "policy.align_rate"):
        server("three").align()
    path = tmp_path / "ledger-clinic.sqlite3"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("UPDATE alignment SET time = time - 2678400 WHERE rowid = 1")
    server("four").align()


def test_offered_ids_are_counted_over_runs(tmp_path):
    policy = Policy(align_ids=3)  # 600, of 200 rows; 256 points are offered
    for name in ("one", "two", "three"):
        party = a_party(tmp_path, policy=policy, run=name)
        server = Server(party, run=name)
        server.welcome()
        if name != "three":
            server.align()
            continue
        with refused("3 ids for each of its rows in 30 days", "policy.align_ids"):
            server.align()


def test_the_end_of_training_cannot_be_feigned(tmp_path):
    """Once, a run without training made evaluations before the end pass."""
    party = a_party(tmp_path, policy=Policy(evaluation="end"))
    for n_epochs in (0, 1e-9):
        with refused("Got a run with less"):
            Server(party, train_epochs=n_epochs).welcome()
    server = Server(party).begin()
    training(party).progress.behind = len(server.plans)  # as after seed 0
    server.party.handle(listed(TRAIN, TEST, seed=1))
    with refused("at the end alone"):
        server.party.handle(Embed("evaluate", "test"))
    with pytest.raises(ProtocolError, match="train to the end"):
        server.party.handle(Finish("0" * 64))


def in_two_stages(tmp_path, **own) -> Server:
    """Begin a run whose stages are joint_lasso and train, of two steps each."""
    policy = Policy(methods=("group-lasso",), limits={"bits": None, "optimizer": None})
    values = {"joint_epochs": 1, "train_epochs": 1, "batch_size": 80, "lam_party": 0.0}
    values["embedding_size"] = 4
    party = a_party(tmp_path, policy=policy)
    return Server(party, "group-lasso", **values, **own).begin()


def run_stage(server: Server, plan: TrainPlan, n_steps=2) -> Any:
    """Run steps of a stage with gradients of nothing; return the last reply."""
    reply = server.party.handle(Begin(plan))
    for _ in range(n_steps):
        nothing = Block(torch.zeros_like(reply.block.values))
        reply = server.party.handle(Descend(plan.stage, nothing))
    return reply


def test_the_last_stage_does_not_come_first(tmp_path):
    """Once, it did, at a rate of 1e-12, and evaluations before the end passed."""
    server = in_two_stages(tmp_path, learning_rate=1e-12)
    _, train = server.plans
    with refused("in their order, each once", "Got 'train' where 'joint_lasso' is due"):
        run_stage(server, train)
    with refused("at the end alone"):
        server.party.handle(Embed("evaluate", "test"))


def test_stages_come_once_with_all_their_steps(tmp_path):
    server = in_two_stages(tmp_path)
    lasso, train = server.plans
    run_stage(server, lasso, 1)
    with refused("Got 'train' where 'joint_lasso' is due"):
        server.party.handle(Begin(train))
    with pytest.raises(ProtocolError, match="the next step of a stage that has begun"):
        server.party.handle(Begin(lasso))
    server.party.handle(Restore(None))
    run_stage(server, lasso)
    with refused("Got 'joint_lasso' where 'train' is due"):
        server.party.handle(Begin(lasso))
    with refused("at the end alone"):
        server.party.handle(Embed("evaluate", "test"))
    run_stage(server, train)
    with refused("Got 'train' where none is due"):
        server.party.handle(Begin(train))
    with refused("evaluation by test rows"):
        server.party.handle(Embed("evaluate", "train"))
    with refused("evaluation at the run's 32 bits a value"):
        server.party.handle(Embed("evaluate", "test", bits=8))
    server.party.handle(Embed("evaluate", "test"))
    server.party.handle(Finish("0" * 64))


def test_a_party_that_was_killed_knows_its_stages(tmp_path):
    server = in_two_stages(tmp_path)
    lasso, train = server.plans
    run_stage(server, lasso)
    server.party.handle(Save("joint_lasso-2"))
    run_stage(server, train, 1)
    server.party.handle(Save("train-1"))
    server.party.close()
    server.party = a_party(tmp_path, policy=server.party.config.policy)
    server.welcome()
    server.party.handle(listed(TRAIN, TEST))
    server.party.handle(Restore("train-1"))
    with refused("Got 'joint_lasso' where 'train' is due"):
        server.party.handle(Begin(lasso))
    with refused("at the end alone"):
        server.party.handle(Embed("evaluate", "test"))
    reply = server.party.handle(Begin(train, 1))
    nothing = Block(torch.zeros_like(reply.block.values))
    server.party.handle(Descend("train", nothing))
    server.party.handle(Embed("evaluate", "test"))


def test_rows_scored_again_after_a_kill_are_not_counted(tmp_path):
    """Once, they were: a party that came back had forgotten at which step it was."""
    server = in_two_stages(tmp_path)
    for plan in server.plans:
        run_stage(server, plan)
    server.party.handle(Save("train-2"))
    server.party.handle(Embed("evaluate", "test"))
    place = tmp_path / "run" / "seed-0"
    before = server.party.budget.values(place)
    server.party.close()
    server.party = a_party(tmp_path, policy=server.party.config.policy)
    server.welcome()
    server.party.handle(listed(TRAIN, TEST))
    server.party.handle(Restore("train-2"))
    server.party.handle(Embed("evaluate", "test"))
    assert server.party.budget.values(place) == before > 0


def test_rows_for_stage_two_leave_once_and_as_agreed(tmp_path):
    """Once, all rows left at any time in full precision, evaluation or not."""
    server = Server(a_party(tmp_path), pretrain_epochs=0, server_rows=60, bits=8)
    server.begin()
    for odd in (
        Embed("embed", "train"),
        Embed("embed", "train", 60, 32),
        Embed("embed", "train", 61, 8),
    ):
        with pytest.raises(ProtocolError, match="the rows of stage 2, once and when"):
            server.party.handle(odd)
    due = Embed("embed", "train", 60, 8)
    assert len(server.party.handle(due).block.values) == 60
    with pytest.raises(ProtocolError, match="the rows of stage 2, once and when"):
        server.party.handle(due)
    server.party.handle(Restore(None))
    server.party.handle(due)


@pytest.mark.parametrize("method", ["less-vfl-auto", "less-vfl", "plain"])
def test_rows_for_stage_two_leave_after_stage_one(tmp_path, method):
    policy = Policy(methods=(method,), limits={"train_epochs": None})
    party = a_party(tmp_path, policy=policy)
    server = Server(party, method, embedding_size=4, bits=8).begin()
    n_rows = len(TRAIN) if method == "less-vfl-auto" else None
    bits = server.settings["bits"]
    with pytest.raises(ProtocolError, match="the rows of stage 2, once and when"):
        server.party.handle(Embed("embed", "train", n_rows, bits))


@pytest.mark.parametrize("schedule", ["constant", "cosine", "watched"])
def test_rate_and_end_are_those_of_the_plan(tmp_path, schedule):
    """Once, one step with `last` was the end of training, and a rate of 0 none."""
    server = Server(a_party(tmp_path), schedule=schedule, train_epochs=20).begin()
    plan = skip_to(server, "train")
    reply = server.party.handle(Begin(plan))
    nothing = Block(torch.zeros_like(reply.block.values))
    odds = [(0.0, False), (1.0, True), (0.5, True)]
    for odd in (
        *(Descend("train", nothing, *o) for o in odds),
        Descend("pretrain", nothing),
    ):
        with pytest.raises(ProtocolError, match="the rate of its plan, and its end"):
            server.party.handle(odd)
    server.party.handle(Descend("train", nothing))


def test_a_selection_in_the_middle_of_training_is_refused(tmp_path):
    """Once, whether it went through told the server whether a feature was removed."""
    server = Server(a_party(tmp_path)).begin()
    server.party.handle(Begin(server.plans[0]))
    look = next(p for p in server.plans if p.stage == "select_features")
    with refused("Got 'select_features' where 'pretrain' is due"):
        server.party.handle(Select((0, 1), look))


def test_looks_come_when_they_are_due_and_in_the_bits_of_the_plan(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(plans, "FEWEST_HELD_OUT", 5)
    monkeypatch.setattr(ending, "LOOK_EVERY", 2)
    server = Server(a_party(tmp_path), schedule="watched", bits=8).begin()
    plan = skip_to(server, "train")
    n_rows = plan.n_held_out(len(TRAIN))
    assert n_rows >= 5
    look = Embed("train", "train", n_rows, 8)
    reply = server.party.handle(Begin(plan))
    with pytest.raises(ProtocolError, match="when due"):
        server.party.handle(look)
    nothing = Block(torch.zeros_like(reply.block.values))
    server.party.handle(Descend("train", nothing))
    for odd in (Embed("train", "train", n_rows, 32), Embed("train", "train", 1, 8)):
        with pytest.raises(ProtocolError, match="when due"):
            server.party.handle(odd)
    assert len(server.party.handle(look).block.values) == n_rows


def test_every_message_is_a_round_and_seeds_have_a_bound(tmp_path):
    server = Server(a_party(tmp_path, policy=Policy(rounds=50)))
    with refused("5 seeds", "policy.seeds", "Got 300"):
        server.welcome(seeds=tuple(range(300)))
    server.welcome()
    server.align()
    with refused("allows 50 rounds"):
        for _ in range(50):
            server.party.handle(listed(TRAIN, TEST))
            server.party.handle(Save("train-1"))


@pytest.mark.parametrize(
    "values",
    [
        {"hidden": []},
        {"hidden": "abc"},
        {"hidden": [[1]]},
        {"hidden": {}},
        {"hidden": None},
        {"hidden": [1] * 20_000},
        {"shadows": None},
        {"train_epochs": 10**400},
        {"learning_rate": 10**400},
        {"learning_rate": float("nan")},
        {"input_scale": 1e9},
        {"batch_size": True},
    ],
)
def test_settings_that_are_no_settings(tmp_path, values):
    with pytest.raises(LessVFLError) as caught:
        Server(a_party(tmp_path), **values).welcome()
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "more", [{"parties": ()}, {"seeds": (-1,)}, {"seeds": (2**64,)}, {"method": "x"}]
)
def test_welcomes_that_are_none(tmp_path, more):
    with pytest.raises(PolicyError):
        Server(a_party(tmp_path)).welcome(**more)


def test_whatever_cannot_be_done_is_a_sentence(tmp_path):
    """Plans that are equal to the agreed ones but for the kind of their numbers."""
    server = Server(a_party(tmp_path)).begin()
    plan = server.plans[0]
    odd = dataclasses.replace(plan, batch_size=float(plan.batch_size))
    server.party.handle(Begin(odd))  # the party follows its own
    broken: Any = dataclasses.replace(server.plans[1], stage="select_features")
    with pytest.raises(LessVFLError):
        server.party.handle(Select((), broken))


def test_requests_that_no_run_has(tmp_path):
    server = Server(a_party(tmp_path, policy=Policy(evaluation="epochs"))).begin()
    for message in (
        Embed("embed", "test"),
        Embed("train", "train"),
        Embed("train", "train", 50),
        Embed("embed", "train", 0),
        Embed("embed", "train", N),
        Embed("embed", "train", 5, 0),
        Embed("evaluate", "test", 150),
        Embed("evaluate", "test", bits=5),
        Embed("evaluate", "test", part=1),
        Embed("evaluate", "test", part=-1),
        Embed("embed", "train", part=1),
        Embed("embed", "train", 50, part=1),
    ):
        with pytest.raises(ProtocolError, match="must be asked for"):
            server.party.handle(message)


def test_components_that_it_does_not_have(tmp_path):
    server = Server(a_party(tmp_path), pretrain_epochs=0).begin()
    look = next(p for p in server.plans if p.stage == "select_features")
    for places in ((0, 0), (4,), (-1,)):
        with pytest.raises(ProtocolError, match="components that it has"):
            server.party.handle(Select(places, look))


def test_a_gradient_of_another_shape(tmp_path):
    server = Server(a_party(tmp_path)).begin()
    server.party.handle(Begin(server.plans[0]))
    with pytest.raises(ProtocolError, match="a gradient as large as its embedding"):
        server.party.handle(Descend("pretrain", Block(torch.zeros(3, 4))))


@pytest.mark.parametrize(
    ("allowed", "sentence"), [("nothing", "no evaluation"), ("end", "at the end alone")]
)
def test_evaluation_must_be_allowed(tmp_path, allowed, sentence):
    server = Server(a_party(tmp_path, policy=Policy(evaluation=allowed))).begin()
    with refused(sentence, "policy.evaluation"):
        server.party.handle(Embed("evaluate", "test"))


def test_a_run_cannot_be_declared_over(tmp_path):
    server = Server(a_party(tmp_path)).begin()
    with pytest.raises(ProtocolError, match="train to the end"):
        server.party.handle(Finish("0" * 64))
    assert not server.party.has_finished


@pytest.mark.parametrize(
    "message",
    [Save("train-1"), Restore(None), Finish("0"), Align(b""), Describe()],
)
def test_nothing_comes_before_its_time(tmp_path, message):
    with pytest.raises(ProtocolError, match=r"first\. Got"):
        a_party(tmp_path).handle(message)


# ------------------------------------------------------------------------------ secrets


AS_MANY = {"components_per_column": None}  # components as columns


def first_embedding(party: PartyProcess) -> torch.Tensor:
    """Return what a passive server sees of all training rows before any training."""
    server = Server(party, **AS_MANY).begin()
    values: torch.Tensor = server.party.handle(Embed("evaluate", "train")).block.values
    return values


def inverted(h: torch.Tensor) -> torch.Tensor:
    """Return the columns that explain embeddings of the network of the shared seed."""
    net = profiles.from_flat("less-vfl-auto", "default", asked(**AS_MANY)).net
    where = (0, "clinic", torch.float64, torch.device("cpu"))
    known = MLP.create(net.party_widths(4), net.activation, *where, net.input_scale)
    x = torch.zeros(len(h), 4, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([x], max_iter=500, tolerance_grad=1e-14, history_size=20)

    def miss():
        search.zero_grad()
        loss = (1e3 * (known(x) - h.double())).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        search.step(miss)
    return x.detach()


def resemblance(party: PartyProcess) -> float:
    """Return how much the inverted columns are like the true ones, in the mean."""
    found = inverted(first_embedding(party)).numpy()
    inside: Any = training(party).party
    true = inside.model.X_train.numpy()
    each = [np.corrcoef(found[:, i], true[:, i])[0, 1] for i in range(4)]
    return float(np.mean(np.abs(each)))


def test_a_passive_server_cannot_invert_the_first_embeddings(tmp_path):
    """With weights of the shared seed it read 4 columns with a correlation of 0.98."""
    (tmp_path / "own").mkdir()
    policy = Policy(evaluation="epochs", components_per_column=1)
    narrow: Any = {"table": TABLE[:, :4], "names": "abcd", "policy": policy}
    shared = a_party(tmp_path, seed_private="shared", **narrow)
    assert resemblance(shared) > 0.95
    assert resemblance(a_party(tmp_path / "own", **narrow)) < 0.7


def test_a_secret_seed_is_no_number_to_try_out():
    """Torch uses 32 bits of a seed; a secret one fills the generator's whole state."""

    def draw(seed):
        return torch.rand(5, generator=stream(seed, "init")).tolist()

    assert draw(SECRET + 7) == draw(SECRET + 7)
    assert draw(SECRET + 7) != draw(SECRET + 7 + 2**32)
    state = stream(SECRET + 7, "init").get_state()
    low = {
        torch.Generator().manual_seed(seed).get_state()[24:].numpy().tobytes()
        for seed in (0, 7, stream(SECRET + 7, "init").initial_seed() % 2**32)
    }
    assert state[24:].numpy().tobytes() not in low


def test_rounding_and_shadows_are_private_too(tmp_path):
    """The server knows the seed and the party's name, and not these streams."""
    party = a_party(tmp_path)
    server = Server(party, pretrain_epochs=0, server_rows=60, bits=8).begin()
    sent = server.party.handle(Embed("embed", "train", 60, 8)).block
    inside: Any = training(party).party
    h = inside.model.embed("train", sample_rows(len(TRAIN), 60, 0), None)
    name = ("up", "clinic", "embed", "train")

    def levels(seed):
        return coding.encode(h, 8, seed, *name)[0].levels

    own = party.private_seed(0)
    assert torch.equal(levels(own), sent.coded.levels)
    assert not torch.equal(levels(0), sent.coded.levels)
    look = next(p for p in server.plans if p.stage == "select_features")
    seen = (torch.arange(60), h, torch.randn_like(h))
    assert inside._shadows.over(inside.model.X_train, seen, look).name[0] == own


@pytest.mark.usefixtures("own_secrets")
def test_the_secret_is_there_before_the_first_message_and_stays(tmp_path):
    party = a_party(tmp_path)
    party.hello()
    path = tmp_path / "run" / "side.safetensors"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    secret = party.home.secret
    seeds = [party.private_seed(seed) for seed in (0, 1)]
    assert seeds[0] != seeds[1]
    party.close()
    again = a_party(tmp_path)
    assert again.home.secret == secret
    assert [again.private_seed(seed) for seed in (0, 1)] == seeds
    again.close()
    path.chmod(0o644)  # as a copy of it may be
    with pytest.raises(ConfigError, match=r"The state .* by its owner alone"):
        a_party(tmp_path)
    (tmp_path / "other").mkdir()
    assert a_party(tmp_path / "other").home.secret != secret


@pytest.mark.parametrize(
    "left", ["spent.safetensors", "rows.safetensors", "seed-0/a.safetensors"]
)
def test_a_run_does_not_go_on_with_another_secret(tmp_path, left):
    """Another network on the same rows would be one more look at them."""
    party = a_party(tmp_path)
    party.close()
    path = tmp_path / "run" / left
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    (tmp_path / "run" / "side.safetensors").unlink()
    with pytest.raises(RecordError, match=r"must hold 'side.safetensors', which its"):
        a_party(tmp_path)
    assert not (tmp_path / "run" / "side.safetensors").exists()


# ----------------------------------------------------------------- exact, or not at all


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"table": TABLE[::-1], "ids": IDS[::-1]}, "ids"),
    ({"table": TABLE[::-1]}, "cells"),
    ({"table": TABLE[:-1], "ids": IDS[:-1]}, "ids"),
    ({"table": np.c_[TABLE, TABLE[:, 0]], "names": NAMES + "q"}, "columns"),
    ({"names": NAMES[::-1]}, "columns"),
    ({"scale": "none"}, "'scale' in the config"),
    ({"seed_private": "shared"}, "'seed_private' in the config"),
]


def test_a_table_that_changed_does_not_go_on(tmp_path):
    """Once, rows sorted anew made 0.5125 of an accuracy of 0.9250, without a word."""
    server = Server(a_party(tmp_path)).begin()
    server.party.handle(Save("pretrain-1"))
    server.party.close()
    for change, what in CHANGES:
        a_party(tmp_path).close()
        with pytest.raises(LessVFLError, match=f"must go on with .* Got other {what}"):
            a_party(tmp_path, **change)


def test_code_that_changed_does_not_go_on(tmp_path):
    path = tmp_path / "nets.py"
    body = "from torch import nn\ndef own(n, m):\n    return nn.Sequential("
    body += "nn.Linear(n, 7), nn.{}(), nn.Linear(7, m))\n"
    path.write_text(body.format("Tanh"))
    server = Server(a_party(tmp_path, party_net=f"{path}:own")).begin()
    server.party.close()
    path.write_text(body.format("ReLU"))
    with pytest.raises(LessVFLError, match="Got other code of the network"):
        a_party(tmp_path, party_net=f"{path}:own")


def test_before_a_run_began_anything_may_change(tmp_path):
    a_party(tmp_path).close()
    a_party(tmp_path, table=TABLE[::-1]).close()


def test_a_run_folder_is_for_one_process(tmp_path):
    first = a_party(tmp_path)
    with pytest.raises(ConfigError, match="must be of one process at a time"):
        a_party(tmp_path)
    first.close()
    a_party(tmp_path).close()


def test_altered_words_of_a_checkpoint_are_found(tmp_path):
    path = tmp_path / "state.safetensors"
    write_state(path, State({"net": torch.ones(100)}, {"step": 3}))
    whole = path.read_bytes()
    read_state(path)
    for place in (len(whole) - 7, whole.index(b"step") + 1):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(altered)
        with pytest.raises(LessVFLError, match="must be a checkpoint of lessvfl"):
            read_state(path)
