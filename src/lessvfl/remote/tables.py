"""The sides' own tables: a party's columns, the label holder's labels."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lessvfl import data, settings
from lessvfl.core.device import resolve_device
from lessvfl.core.lifted import find_factory
from lessvfl.data import Dataset, Encoding, Finding, Places, Problem, Scratch, Table
from lessvfl.errors import ConfigError, DataError
from lessvfl.remote.config import (
    ColumnSettings,
    PartyConfig,
    ServerConfig,
    naming_blanks,
    table_of,
)
from lessvfl.remote.home import facts_of
from lessvfl.run import profiles
from lessvfl.run.numbers import class_share
from lessvfl.run.profiles import Settings
from lessvfl.terms import plural
from lessvfl.wire import control

log = logging.getLogger(__name__)

NOISE = ("embedding_noise", "embedding_epsilon", "embedding_clip", "noise_at")

# What may change on the way in what a party decides for itself.
_PASSING = ("storage", "reason_texts")


def open_table(config: PartyConfig) -> tuple[Table, NDArray[Any] | None]:
    """Open a party's own table, in memory or on disk, with its ids."""
    storage = config.storage
    if resolve_device(config.device).type != "cpu":
        if storage == "disk":
            raise ConfigError(
                "The 'storage' setting must be memory or auto with a GPU: rows on "
                "disk are computed with by the CPU. Got disk."
            )
        storage = "memory"
    with naming_blanks(config):
        return data.open_columns(table_of(config), config.id, storage)


@dataclass(frozen=True)
class OwnTable:
    """All rows of a party, in its own order, and how its columns are encoded."""

    party: str
    config: PartyConfig
    whole: Table
    findings: Sequence[Finding]
    columns: Sequence[str]  # that can be used
    as_is: Sequence[str]
    marks: Mapping[str, Any]  # what stands for missing
    groups: Mapping[str, Any]

    @classmethod
    def of(cls, party: str, config: PartyConfig, table: Table) -> OwnTable:
        """Infer how a table is read, or refuse what cannot be used of it."""
        look, findings = data.infer_columns(table.look)
        where = f"party '{party}'"
        names = data.match_columns(table.names, config.columns, where)
        usable = data.usable(party, names, look)
        as_is = data.match_columns(names, config.as_is, where) if config.as_is else ()
        marks = data.marks_of(look, config.missing_values)
        groups = data.features_of({party: names}, config.groups)
        resolve_device(config.device)
        if config.scale == "global" and config.scale_range is None:
            raise ConfigError(
                "The 'scale' setting must be auto, standardize or none where no "
                "'scale_range' is given. Got global."
            )
        if config.party_net is not None:
            find_factory(config.party_net)
        whole = table.with_look(look)
        return cls(party, config, whole, findings, usable, as_is, marks, groups)

    def encoding(self, train: Table) -> Encoding:
        """Learn from training rows how to encode its columns."""
        config = self.config
        return Encoding.fit(
            self.party,
            train,
            self.columns,
            scale=config.scale,
            bounds=config.scale_range or (0.0, 1.0),
            max_categories=config.max_categories,
            missing=config.missing,
            marks=self.marks,
            groups=self.groups,
            as_is=self.as_is,
        )

    def facts(self, table: Table, ids: NDArray[Any] | None) -> dict[str, str]:
        """Return digests of all that a run depends on, the table's as it came."""
        config, policy = self.config, self.config.policy
        names = [*settings.fields_of([ColumnSettings]), "align"]
        lasting = {key: getattr(config, key) for key in names if key not in _PASSING}
        if config.has_noise:  # by these it is priced
            lasting |= {"policy.evaluation": policy.evaluation}
            lasting |= {"policy.delta": policy.delta}
        return facts_of(table, ids, lasting, config.party_net)

    def changes(self) -> list[Finding]:
        """Return what was changed to read its columns, for this party only."""
        names = data.match_columns(self.whole.names, self.config.columns, self.party)
        most = self.config.max_categories
        return data.changes(self.whole.look, self.findings, names, most)

    def settings(self, agreed: Settings) -> Settings:
        """Return the agreed settings, with those that this party decides for itself."""
        mine = self.config
        config: Any = agreed.config
        net = dataclasses.replace(agreed.net, party_net=mine.party_net)
        noise: dict[str, Any] = {name: getattr(mine, name) for name in NOISE}
        table = dataclasses.replace(agreed.data, **noise)
        if mine.must_keep is not None:
            if "must_keep" not in settings.fields_of([type(config)]):
                raise ConfigError(
                    f"The 'must_keep' setting is not read by method {agreed.method}. "
                    f"Got '{mine.must_keep}'."
                )
            config = dataclasses.replace(config, must_keep=mine.must_keep)
        return dataclasses.replace(agreed, data=table, net=net, config=config)

    def warn_of_copies(self, common: Table) -> None:
        """Log a warning if rows of a table are equal, which the server cannot see.

        `common` has the party's common rows; of one on disk a sample is checked.
        """
        copies = data.equal_rows(common.look.select(self.columns))
        if copies is not None:
            share = float((np.bincount(copies) > 1)[copies].mean())
            log.warning(
                "%.0f %% of the rows here equal another row: where they are of one "
                "person or the like, the label holder should name 'group_column'.",
                100 * share,
            )


# Settings of `lessvfl run` that a party decides on for itself.
NOT_THE_SERVERS = (
    *("scale", "max_categories", "missing", "missing_values"),
    *("must_keep", "party_net", *NOISE),
)


@dataclass(frozen=True)
class LabelTable:
    """The label holder's table: labels, and perhaps which rows are for testing."""

    dataset: Dataset  # without columns
    ids: NDArray[Any] | None = None  # whom its rows are about

    @classmethod
    def load(cls, config: ServerConfig) -> LabelTable:
        """Load the label holder's own table; many rows stay on disk."""
        if config.test_ids is not None and config.id is None:
            raise ConfigError(
                "The 'test_ids' setting needs the column of ids, 'id'. Got none."
            )
        path = table_of(config)
        with naming_blanks(config):
            roles = data.load_roles(
                config.sample_weight,
                config.group_column,
                config.time_column,
                config.test_ids,
                config.id,
            )
            dataset, ids = data.load_labels(
                path, config.label, config.id, roles, config.task
            )
        log.info("%s", data.task_sentence(dataset.task, dataset.task_reason))
        Path(config.out).mkdir(mode=0o700, parents=True, exist_ok=True)
        return cls(dataset, ids).kept(Scratch(Path(config.out)))

    def kept(self, on: Scratch) -> LabelTable:
        """Return the same table with its large parts mapped from disk."""
        large = ("y", "randomised", "weight", "units", "times", "is_test")
        kept = {name: on.keep(getattr(self.dataset, name)) for name in large}
        return LabelTable(dataclasses.replace(self.dataset, **kept), on.keep(self.ids))

    def take(self, rows: NDArray[np.int64]) -> LabelTable:
        """Return the table of these rows, in this order, without ids."""
        return LabelTable(self.dataset.take(rows))

    def settled(self, settings: Settings, align: str) -> LabelTable:
        """Return the table with its test rows marked, and without those of no side.

        They are left out before rows are aligned, so that no party hears of them: each
        trains and tests with all common rows.
        """
        dataset, rows = data.settle_test_rows(self.dataset, settings.data)
        if rows is None:
            return LabelTable(dataset, self.ids)
        if align == "none":
            n_left_out = plural(self.n_rows - len(rows), "row")
            raise ConfigError(
                "With align none every row must be for training or for testing, as all "
                f"sides have the same ones. Got {n_left_out} in a gap or of people on "
                "both sides: leave them out of all tables, or align by ids."
            )
        return LabelTable(dataset, None if self.ids is None else self.ids[rows])

    def split(
        self, settings: Settings, seed: int, secret: data.SecretSeed
    ) -> tuple[Places, Places]:
        """Return its rows to train and to test with, as places, both sorted."""
        dataset = self.dataset
        if dataset.is_test is not None and dataset.is_test.all():
            raise DataError(
                "The rows that are marked for testing must leave a common row to train "
                f"on. Got {plural(self.n_rows, 'common row')}, all of them marked."
            )
        blocks = data.find_blocks(dataset, settings.data)
        return data.split_rows(
            dataset,
            settings.data,
            settings.data.row_seed(seed),
            in_order=True,
            blocks=None if blocks is None else blocks.of_row,
            secret=secret,
        )

    def facts(self, config: ServerConfig, code: str | None) -> dict[str, str]:
        """Return digests of all that a run depends on; `code` is of its network."""
        dataset, names = self.dataset, ("label", "id", "seed_private")
        arrays = {
            "labels": dataset.y,
            "weights": dataset.weight,
            "groups": dataset.units,
            "test rows": dataset.is_test,
        }
        if dataset.randomised is not None:
            arrays["randomised labels"] = dataset.randomised
        lasting = {name: getattr(config, name) for name in names}
        return facts_of(dataset.X, self.ids, lasting, code, **arrays)

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return len(self.dataset.y)


@dataclass(frozen=True)
class SeedLabels:
    """Training and test rows of a seed, as places in the common order; their labels."""

    seed: int
    train: Places
    test: Places
    problem: Problem

    def message(self, tell_share: bool) -> control.Prepare:
        """Return the message that tells every party its rows."""
        share = class_share(self.problem) if tell_share else None
        return control.Prepare.of(
            self.seed, self.train, self.test, self.problem.blocks, share
        )

    @classmethod
    def of(
        cls,
        table: LabelTable,
        settings: Settings,
        seed: int,
        on: Scratch,
        secret: data.SecretSeed,
    ) -> SeedLabels:
        """Split the common rows; large arrays are mapped from disk.

        A draw by class is made by the label holder's `secret`.
        """
        dataset = table.dataset
        train, test = map(on.keep, table.split(settings, seed, secret))
        blocks = data.find_blocks(dataset, settings.data)
        problem = data.labels_alone(
            dataset, train, test, blocks, settings.data, settings.labels
        )
        y_train, y_test = on.keep(problem.y_train), on.keep(problem.y_test)
        problem = dataclasses.replace(
            problem, y_train=y_train, y_test=y_test, notes=dataset.notes
        )
        return cls(seed, train, test, problem)


def resolve_settings(config: ServerConfig, table: LabelTable) -> Settings:
    """Return the settings of a run with these labels, or refuse what is not its own."""
    dataset = table.dataset
    for name in NOT_THE_SERVERS:
        if name in config.settings:
            raise ConfigError(
                f"The '{name}' setting is every party's own and stands in its "
                "config. Got it in the server's."
            )
    given = dict(config.settings)
    defence = given.get("gradient_defence", "none")
    if config.seed_private == "shared" and defence != "none":
        raise ConfigError(
            "The 'seed_private' setting of the server must be own with "
            "'gradient_defence', whose noise nobody else may know. Got shared."
        )
    if config.folds > 1:
        given["folds"] = config.folds
    if config.ensemble:
        given |= data.ensemble_rows(config.seeds, given)
    run = profiles.resolve(config.method, config.profile, dataset, given)
    settled, _ = data.settle_test_rows(dataset, run.data)
    if settled.X.n_rows < dataset.X.n_rows:  # parties hear of those that stay alone
        offered = dataclasses.replace(dataset, X=settled.X)
        run = profiles.resolve(config.method, config.profile, offered, given)
    if config.ensemble:
        run.check_ensemble(config.seeds)
    refuse_whole_rows(run)
    is_named = dataset.is_test is not None or dataset.times is not None
    is_last = run.data.split == "first" and not is_named and run.data.folds == 1
    if is_last and config.align != "none":
        raise ConfigError(
            f"With align {config.align} the 'split' setting must be random or "
            "stratified: common rows come in a secret order, in which the last are no "
            "later than others. Got 'first'."
        )
    if run.flat().get("secret") == "sharing" and tells_labels(dataset, run):
        raise ConfigError(
            "Under sharing the 'split' setting must be random, or test rows be named "
            "by 'test_ids': a draw by class tells every party how many rows each "
            "class has. Got 'stratified'."
        )
    data.check_labels(dataset, run.labels)
    return run


def tells_labels(dataset: Dataset, settings: Settings) -> bool:
    """Tell whether a draw by class tells parties of labels that are not randomised."""
    is_randomised = settings.labels.label_epsilon is not None
    return not is_randomised and data.is_drawn_by_class(dataset, settings.data)


def refuse_whole_rows(settings: Settings) -> None:
    """Raise a ConfigError for a setting that needs whole rows, which no side sees."""
    if settings.data.overlap < 1:
        raise ConfigError(
            "Between machines the 'overlap' setting must be 1: the rows that all "
            f"parties have are found by their ids. Got {settings.data.overlap:g}."
        )
    if settings.data.equal_rows == "distinct":
        raise ConfigError(
            "Between machines the 'equal_rows' setting must be together or apart: no "
            "side sees whole rows, to tell which are equal. Got 'distinct'."
        )
