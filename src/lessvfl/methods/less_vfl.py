"""LESS-VFL: Castiglia et al., ICML 2023, Algorithm 1."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass

from lessvfl import algorithm, settings
from lessvfl.algorithm import Stages
from lessvfl.core.head_path import PathPlan
from lessvfl.core.keeper import Keeper
from lessvfl.core.network import MLP, Network
from lessvfl.core.plans import Labels, SelectPlan, ShadowPlan, TrainPlan
from lessvfl.errors import LessVFLWarning
from lessvfl.methods.base import Lambda, Method, PartySelection, a_lambda, spread
from lessvfl.terms import Observer
from lessvfl.wire.parties import Parties

AIMS = {"bytes": 32, "time": 1000}  # rows of one step of pre-training


@dataclass(frozen=True)
class Config(PartySelection):
    """Settings of LESS-VFL."""

    lam_party: Lambda = settings.setting(
        a_lambda(), 4.0, "weight of the parties' group lasso"
    )
    lam_server: Lambda = settings.setting(
        a_lambda(), 0.05, "weight of the server's group lasso"
    )
    server_epochs: int = settings.setting(
        settings.an_int(), 150, "epochs of the published stage 2"
    )
    server_step_size: float = settings.setting(
        settings.a_float(open_low=True), 0.01, "step size of the published stage 2"
    )
    selector: str = settings.setting(
        settings.one_of("network", "shadows"),
        "network",
        "stage 3: the paper's, with lam_party; or by shadows, without a lambda",
    )
    server_selector: str = settings.setting(
        settings.one_of("network", "path", "none"),
        "network",
        "stage 2: the paper's, with lam_server; along a path of lambdas; or left out",
    )
    aim: str = settings.setting(
        settings.one_of("none", *AIMS),
        "none",
        "what pre-training saves most: time (steps of 1000 rows) or bytes (of 32 rows)",
    )
    pretrain_batch_size: int | None = settings.setting(
        settings.or_none(settings.an_int(1)),
        None,
        "rows of one step of pre-training; none: what aim says, else batch_size",
    )
    pretrain_check: int = settings.setting(
        settings.an_int(),
        0,
        "steps after which parties tell whether their selection still changes, and "
        "pre-training ends if none does; 0: never",
    )
    shadows: int = settings.setting(
        settings.an_int(1), 60, "the fewest shadow features a party plants"
    )
    shadow_share: float = settings.setting(
        settings.a_float(0.0, 1.0), 0.03, "the largest share of shadows kept (q)"
    )
    false_share: float = settings.setting(
        settings.a_float(0.0, 1.0),
        0.2,
        "the largest estimated share of useless features among those kept",
    )
    adaptive: float = settings.setting(
        settings.a_float(), 0.0, "adaptive weights 1 / norm^this; 0: none"
    )
    pairs: bool = settings.setting(
        settings.a_flag(), True, "keep features, too, that act only together"
    )
    second_look: int = settings.setting(
        settings.an_int(),
        0,
        "parties look again after so many of train_epochs, if there are more; 0: never",
    )
    second_loss: float = settings.setting(
        settings.a_float(0.0, 1.0),
        0.02,
        "share of what is explained that the second look may lose for simplicity",
    )
    subsamples: int = settings.setting(
        settings.an_int(),
        0,
        "halves of the rows that vote on every feature (stability selection); 0: none",
    )
    must_keep: str | None = settings.setting(
        settings.or_none(settings.a_text()),
        None,
        "features (names or globs, separated by commas) that shadows may not remove",
    )
    most: int | None = settings.setting(
        settings.or_none(settings.an_int(1)), None, "the most features a party keeps"
    )
    refit_epochs: int = settings.setting(
        settings.an_int(), 30, "most epochs of a party's own fit after selection"
    )
    server_rows: int = settings.setting(
        settings.an_int(8), 512, "rows whose embeddings the server asks for in stage 2"
    )
    server_errors: float = settings.setting(
        settings.a_float(), 0.25, "standard errors that stage 2 may lose for simplicity"
    )

    server_refit: int = settings.setting(
        settings.an_int(), 0, "most epochs of the server's own fit to these rows"
    )

    def pretrain_plan(self) -> TrainPlan:
        """Return the plan of stage 1."""
        size = self.pretrain_batch_size or AIMS.get(self.aim, self.batch_size)
        own = dataclasses.replace(self, batch_size=size)
        plan = own.plan("pretrain", self.pretrain_epochs)
        by_shadows = self.selector == "shadows"
        if not by_shadows:
            return plan
        return dataclasses.replace(
            plan, record=self.pretrain_epochs, check=self.pretrain_check
        )

    def server_plan(self) -> SelectPlan | PathPlan | None:
        """Return the plan of stage 2."""
        if self.server_selector == "none":
            return None
        if self.server_selector == "path":
            return PathPlan(
                self.server_rows, self.bits, self.server_errors, self.server_refit
            )
        return SelectPlan(
            "select_components",
            self.server_epochs,
            self.batch_size,
            self.shuffle,
            self.server_step_size,
            spread(self.lam_server),
            tolerance=self.plateau_tolerance,
            patience=self.plateau_patience,
        )

    def stages(self, server: SelectPlan | PathPlan | None) -> Stages:
        """Return the plans of Algorithm 1."""
        published = super().stages(server)
        stages = dataclasses.replace(published, pretrain=self.pretrain_plan())
        if self.selector != "shadows":
            return stages
        look = ShadowPlan(
            "select_features",
            self.shadow_share,
            self.adaptive,
            self.most,
            self.false_share,
            self.subsamples,
            self.pairs,
            0 < self.second_look < self.train_epochs,
            self.second_loss,
            refit_epochs=self.refit_epochs,
        )
        stages = dataclasses.replace(stages, party=look)
        if not look.again:
            return stages
        settle = self.plan("settle", self.second_look)
        return dataclasses.replace(
            stages,
            settle=dataclasses.replace(settle, record=1),
            again=dataclasses.replace(
                look,
                stage="select_again",
                q=self.shadow_share / 2,  # what two looks let pass adds up
                again=False,
            ),
            train=self.plan("train", self.train_epochs - self.second_look),
        )


def run(
    parties: Parties,
    fusion: Network,
    labels: Labels,
    config: Config,
    observe: Observer,
    keeper: Keeper,
) -> Network:
    """Pre-train, select components, select features, train on."""
    if config.server_selector == "path" and not _is_linear(fusion):
        warnings.warn(
            "The path of lambdas of stage 2 needs a linear fusion network: with this "
            "one all components stay (server_selector=none).",
            LessVFLWarning,
            stacklevel=2,
        )
        config = dataclasses.replace(config, server_selector="none")
    stages = config.stages(config.server_plan())
    return algorithm.less_vfl(parties, fusion, labels, stages, observe, keeper)


def _is_linear(fusion: Network) -> bool:
    return isinstance(fusion, MLP) and len(fusion.weights) == 1


METHOD = Method(
    "less-vfl",
    "pre-train; the server selects components, each party its features; train on",
    "Castiglia et al., ICML 2023, Algorithm 1",
    Config,
    run,
)
