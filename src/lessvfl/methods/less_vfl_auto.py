"""Selection with nothing to choose, in the frame of LESS-VFL; not Algorithm 1.

The frame is that of Castiglia et al., ICML 2023: pre-train, the server selects
components alone, every party its features alone, train on. Inside it differs. Stage 2
takes its lambda from rows held out (``core/head_path.py``). Stage 3 does not match the
pre-trained embedding: a party regresses responses, made of the gradients that it was
sent, on its columns by a group lasso, and keeps what scrambled copies of these columns
do not reach (``select/evidence.py``). A second pass after an epoch of training selects
once more. docs/selection.md says how, docs/derivation.md why, and what that controls.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from torch import Tensor

from lessvfl import settings
from lessvfl.algorithm import select_at_parties, train_jointly
from lessvfl.core.head_path import choose_components
from lessvfl.core.keeper import Keeper
from lessvfl.core.losses import Labels
from lessvfl.core.network import MLP, Network
from lessvfl.core.plans import (
    PartyPlan,
    PathPlan,
    ShadowPlan,
    TrainPlan,
    sample_rows,
)
from lessvfl.core.stage import narrow_to_kept, run_once
from lessvfl.errors import ConfigError, warn
from lessvfl.methods.base import Joint, Method
from lessvfl.settings import a_flag, a_float, a_text, an_int, or_none, setting
from lessvfl.terms import Event, Observer
from lessvfl.wire.parties import Parties, concatenate

FEWEST_ROWS = 8  # of stage 2
NOISE = 0.025  # how often a whole run may keep anything where labels are pure noise


def _some_rows() -> settings.Kind:
    """Return a setting's check: 0 rows, or as many as a path of lambdas needs."""
    several = an_int(FEWEST_ROWS)
    return settings.Kind(
        f"0 or {several.allowed}",
        lambda rows: an_int(0, 0).accepts(rows) or several.accepts(rows),
        several.read,
    )


@dataclass(frozen=True)
class Config(Joint):
    """Settings of selection without a lambda."""

    pretrain_epochs: float = setting(
        a_float(), 0.5, "epochs of pre-training (stage 1); also a fraction"
    )
    pretrain_batch_size: int = setting(
        an_int(1),
        1000,
        "rows of one step of pre-training; 1000: few rounds, 32: few bytes",
    )
    pretrain_rate: float = setting(
        a_float(open_low=True), 0.005, "learning rate of pre-training"
    )
    server_rows: int = setting(
        _some_rows(),
        512,
        "rows whose embeddings the server asks for in stage 2; 0: no such stage, and "
        "all components stay",
    )
    server_errors: float = setting(
        a_float(), 0.25, "standard errors that stage 2 may lose for simplicity"
    )
    shadows: int = setting(
        an_int(20), 100, "scrambled copies of a party's columns (shadows)"
    )
    shadow_share: float = setting(
        a_float(0.0, 1.0), 0.03, "the largest share of shadows that may pass (q)"
    )
    false_share: float = setting(
        a_float(0.0, 1.0),
        0.2,
        "the largest estimated share of useless features among those kept",
    )
    pairs: bool = setting(a_flag(), True, "keep features, too, that act only together")
    must_keep: str | None = setting(
        or_none(a_text()),
        None,
        "features (names or globs, separated by commas) that selection may not remove",
    )
    most: int | None = setting(
        or_none(an_int(1)), None, "the most features a party keeps"
    )
    refit_epochs: int = setting(
        an_int(), 20, "most epochs of a party's own fit after each look"
    )
    second_look: int = setting(
        an_int(),
        1,
        "of train_epochs, those after which parties look again, if more follow; "
        "0: never",
    )
    second_loss: float = setting(
        a_float(0.0, 1.0),
        0.02,
        "share of what is explained that the second look may lose for simplicity",
    )

    def pinned(self) -> str | None:
        """Return patterns of the features that must stay."""
        return self.must_keep

    def stored(self) -> tuple[int | None, int] | None:
        """Return how many rows stage 2 asks for, and in how many bits, if it is on."""
        return (self.server_rows, self.bits) if self.server_rows else None

    def plans(self, n_parties: int) -> tuple[PartyPlan, ...]:
        """Return every plan that a party is sent in a run."""
        pretrain, select, again, train = self.stages(n_parties)
        return (pretrain, select, *again, train)

    def stages(
        self, n_parties: int
    ) -> tuple[
        TrainPlan, ShadowPlan, tuple[TrainPlan, ShadowPlan] | tuple[()], TrainPlan
    ]:
        """Return the plans of pre-training, selection, both once more, and training.

        There is no second time where training would not go on after it.
        """
        looks_again = 0 < self.second_look < self.train_epochs
        pretrain = dataclasses.replace(
            self.plan("pretrain", self.pretrain_epochs),
            batch_size=self.pretrain_batch_size,
            learning_rate=self.pretrain_rate,
            record=self.pretrain_epochs,  # gradients are remembered
        )
        select = ShadowPlan(
            "select_features",
            q=self.shadow_share,
            most=self.most,
            fdr=self.false_share,
            pairs=self.pairs,
            again=looks_again,
            loss=self.second_loss,
            noise=NOISE / n_parties,
            n_copies=self.shadows,
            refit_epochs=self.refit_epochs,
            refit_share=n_parties**-0.5,  # all parties go at once
        )
        if not looks_again:
            return pretrain, select, (), self.plan("train", self.train_epochs)
        train_first = dataclasses.replace(  # smaller steps, and more of them
            self.plan("train_first", self.second_look),
            batch_size=-(-self.batch_size // 2),
            learning_rate=self.learning_rate / 2,
            record=1,
        )
        select_again = dataclasses.replace(  # more careful
            select,
            stage="select_again",
            again=False,
            q=select.q / 3,
            noise=select.noise / 2,  # the clearer of two passes counts
            refit_share=1 / n_parties,  # most of the way is behind them
        )
        train = self.plan("train", self.train_epochs - self.second_look)
        return pretrain, select, (train_first, select_again), train


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Select, then train on."""
    fusion = select(parties, fusion, labels, config, observe, keeper)
    *_, train = config.stages(len(parties.names))
    train_jointly(parties, fusion, labels, train, observe, keeper)
    return fusion


def select(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Pre-train, select components, select features, train, select again."""
    if config.empty_party != "constant":
        raise ConfigError(
            "The 'empty_party' setting must be constant with method less-vfl-auto. "
            f"Got '{config.empty_party}'; less-vfl has both."
        )
    pretrain, first, again, _ = config.stages(len(parties.names))
    train_jointly(parties, fusion, labels, pretrain, observe, keeper)  # stage 1

    kept = None
    is_linear = isinstance(fusion, MLP) and len(fusion.weights) == 1
    if config.server_rows and is_linear:  # stage 2
        plan = PathPlan(config.server_rows, config.bits, config.server_errors)
        find = functools.partial(_components, parties, labels, plan, observe)
        kept, fusion = narrow_to_kept(fusion, find, keeper)
    elif config.server_rows:
        warn(
            "The path of lambdas of stage 2 needs a linear fusion network: with this "
            "one all components stay."
        )

    look = functools.partial(select_at_parties, parties, kept, first)
    run_once(first.stage, 1, look, fusion, observe, keeper)  # stage 3

    if again:  # stages 1 and 3 once more, with what is left
        train_first, second = again
        train_jointly(parties, fusion, labels, train_first, observe, keeper)
        look = functools.partial(parties.select_features, None, second)
        run_once(second.stage, 1, look, fusion, observe, keeper)
    return fusion


def _components(
    parties: Parties, labels: Labels, plan: PathPlan, observe: Observer
) -> Tensor:
    """Ask for the embeddings of some rows; return the components to keep, (E,)."""
    n_rows = min(plan.n_rows, len(labels.y))
    observe(Event("embed", 0, 1))
    H = concatenate(parties.embed("embed", "train", n_rows, plan.bits))
    observe(Event("embed", 1, 1))
    observe(Event("select_components", 0, 1))
    rows = sample_rows(len(labels.y), n_rows, labels.seed).to(H.device)
    sizes = [parties.sizes[name] for name in parties.names]
    kept = choose_components(H, labels, rows, plan, sizes)
    observe(Event("select_components", 1, 1))
    return kept


METHOD = Method(
    "less-vfl-auto",
    "selection against scrambled copies of columns, with nothing to choose",
    "of this project; stages as in Castiglia et al., ICML 2023, stage 3 another",
    Config,
    run,
    # 2: a part of the way after the first pass; 3: narrow parties; 4: rounding by a
    # key; 5: pieces for curves, squares of values cut at three deviations;
    # 6: a file sorted by many classes is no file of rows that are alike
    behaviour=6,
)
