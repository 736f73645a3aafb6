"""What ``lessvfl run`` and ``try`` are asked to run: their options, read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path  # noqa: F401  the annotations that are inherited name it
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lessvfl.cli.options import (
    DataDir,
    MethodName,
    Profile,
    SeedsText,
    TableOptions,
    read_parties,
    whole_numbers,
)
from lessvfl.errors import ConfigError, warn

if TYPE_CHECKING:
    from lessvfl.run.profiles import Settings
    from lessvfl.run.simulate import Job

DEFAULT_METHOD = "less-vfl-auto"  # methods.DEFAULT, without loading it for --help


def _read_seeds(text: str) -> list[int]:
    seeds = whole_numbers(text)
    if seeds is None:
        raise ConfigError(
            f"The '--seeds' option must be whole numbers as in 0,1,2. Got {text!r}."
        )
    return seeds


def _read_spurious(text: str) -> Any:
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            "The '--spurious' option must be a share as in 0.5, or one for each party "
            f"as in 0.8,0.25,0.1,0. Got {text!r}."
        ) from None
    return shares[0] if len(shares) == 1 else shares


def _read_settings(pairs: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split KEY=VALUE pairs into settings and (``data.KEY``) options of a data set."""
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"'--set' must be given as KEY=VALUE. Got {pair!r}.")
        given[name.strip()] = value.strip()
    if "task" in given:
        raise ConfigError(
            "What labels are is said by '--task', as in --task regression. Got it as "
            f"a setting: --set task={given['task']}."
        )
    options = {k[5:]: v for k, v in given.items() if k.startswith("data.")}
    return {k: v for k, v in given.items() if not k.startswith("data.")}, options


def _warn_of_idle(settings: Settings, given: Mapping[str, Any]) -> None:
    """Say which given settings change nothing.

    Trees, unless networks select for them, have no learning rate; settings of noise are
    idle where there is no such noise.
    """
    values = settings.flat()
    of_trees = "trees" in values and "pretrain_epochs" not in values
    if "learning_rate" in given and of_trees:
        other = "; 'shrinkage' is that of its trees" if "shrinkage" in values else ""
        warn(
            f"The 'learning_rate' setting is of networks and changes nothing with "
            f"method {settings.method}{other}."
        )
    noisy = values["embedding_noise"] > 0 or values["embedding_epsilon"] is not None
    defence = values.get("gradient_defence")
    wanted = {
        "embedding_clip": (noisy, "'embedding_noise' or 'embedding_epsilon'"),
        "noise_at": (noisy, "'embedding_noise' or 'embedding_epsilon'"),
        "embedding_noise": (
            values["embedding_epsilon"] is None,
            "'embedding_epsilon' at none: that says how much noise there is",
        ),
        "gradient_noise": (
            defence in ("marvell", "gaussian"),
            "'gradient_defence' at marvell or gaussian",
        ),
        "gradient_clip": (defence == "gaussian", "'gradient_defence' at gaussian"),
    }
    for name, (used, by) in wanted.items():
        if name in given and not used:
            warn(f"The {name!r} setting changes nothing without {by}.")


class LoadedJob(NamedTuple):
    """A job and what goes with it."""

    job: Job
    seeds: list[int]
    options: dict[str, str]  # of its data set
    target: bool = False  # whether the cost to the paper's target is asked


@dataclass(frozen=True, kw_only=True)
class JobOptions(TableOptions):
    """What is to be run, and on which data."""

    data: Annotated[str, typer.Argument(help="A data set's name, or a file.")] = ""
    method: MethodName = DEFAULT_METHOD
    profile: Profile = "default"
    spurious: Annotated[
        str, typer.Option(help="Planted noise: 0.5, or by party 0.8,0.25,0.1,0.")
    ] = "0"
    seeds: SeedsText = "0"
    folds: Annotated[
        int | None,
        typer.Option(help="Cross-validate: parts of the rows, each the test of a run."),
    ] = None
    ensemble: Annotated[
        bool,
        typer.Option("--ensemble", help="Seeds share their rows and predict together."),
    ] = False
    data_dir: DataDir = None
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting: KEY=VALUE; 'data.KEY' for synthetic."),
    ] = None
    privacy: Annotated[
        str | None,
        typer.Option(
            help="Defences: label-bound or strict; --set overrides single ones."
        ),
    ] = None
    target: Annotated[
        str | None, typer.Option(help="'paper': also give the cost to its target.")
    ] = None

    def read(self, device: str) -> LoadedJob:
        """Read what the options say, and load the data."""
        from lessvfl import data
        from lessvfl.run import profiles
        from lessvfl.run.bundles import bundle_of
        from lessvfl.run.simulate import Job

        if not self.data:
            raise ConfigError(
                "Missing argument 'data': a data set's name or a file must be given, "
                "here or in the file of '--config'. Got neither."
            )
        if self.target not in (None, "paper"):
            raise ConfigError(
                f"The '--target' option must be paper. Got {self.target!r}."
            )
        given, options = _read_settings(self.set_ or [])
        chosen = {} if self.privacy is None else bundle_of(self.privacy).settings
        overrides: dict[str, Any] = {**chosen, **given}
        if self.missing_values:
            if "missing_values" in overrides:
                raise ConfigError(
                    "Values that stand for a missing cell must be given by "
                    "'--missing-values' or by '--set missing_values=...'. Got both."
                )
            overrides["missing_values"] = self.read_missing_values()
        if self.folds is not None:
            if "folds" in overrides:
                raise ConfigError(
                    "Folds must be given by '--folds' or by '--set folds=...'. Got "
                    "both."
                )
            overrides["folds"] = self.folds
        seeds = _read_seeds(self.seeds)
        if self.ensemble:
            overrides |= data.ensemble_rows(seeds, overrides)
        dataset = data.load(
            self.data, data_dir=self.data_dir, options=options or None, **self.columns
        )
        settings = profiles.resolve(self.method, self.profile, dataset, overrides)
        if self.ensemble:
            settings.check_ensemble(seeds)
        _warn_of_idle(settings, given)
        job = Job(
            dataset,
            settings,
            parties=read_parties(self.parties),
            spurious=_read_spurious(self.spurious),
            groups=self.read_groups(),
            device=device,
            bundle=self.privacy,
        )
        seeds = data.fold_seeds(seeds, settings.data.folds)
        return LoadedJob(job, seeds, options, self.target is not None)
