"""The files that say how a server and a party take part in a run.

Paths in them are relative to the file. What they may say is in the annotations below;
each line is explained in ``docs/machines.md``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from lessvfl import settings
from lessvfl.data import TASKS, marks_by_column, read_yaml
from lessvfl.errors import ConfigError, LessVFLError
from lessvfl.remote.align.messages import Mode
from lessvfl.remote.policy import LabelPolicy, Policy
from lessvfl.settings import (
    AboveZero,
    Finite,
    Kind,
    PartyName,
    PartyNames,
    Positive,
    Schema,
)
from lessvfl.terms import Evaluation

MOST_LETTERS = 300  # of a reason
MOST = sys.float_info.max
BLANKS = {"label": "LABEL_COLUMN", "id": "ID_COLUMN"}  # what a kit's config has there
PATHS = ("certificate", "key", "ca", "data", "out", "test_ids")  # relative to the file


def _differ(values: Sequence[Any]) -> bool:
    return len(set(values)) == len(values)


def _are_columns(groups: dict[str, str | list[str]]) -> bool:
    return all(isinstance(v, str) or (v and _differ(v)) for v in groups.values())


Name = Annotated[str, Meta(min_length=1)]
DistinctNames = Annotated[
    tuple[Name, ...], Meta(min_length=1), Kind("a list of different names", _differ)
]
Seeds = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**63 - 1)], ...],
    Meta(min_length=1),
    Kind("a whole number >= 0, or a list of different ones", _differ),
]
FeatureGroups = Annotated[
    dict[Name, str | list[Name]], Kind("feature names with their columns", _are_columns)
]
NotNegative = Annotated[float, Meta(ge=0, le=MOST, description="a float in [0, inf)")]
Range = Annotated[
    tuple[Finite, Finite], Kind("two numbers, the lower first", lambda v: v[0] < v[1])
]
ReasonTexts = Annotated[
    dict[Name, Annotated[str, Meta(min_length=1, max_length=MOST_LETTERS)]],
    Meta(
        description=f"feature names, each with a text of up to {MOST_LETTERS} letters"
    ),
]
MissingMarks = Annotated[dict[str, Any] | None, marks_by_column()]
AnyTask = Annotated[str, Kind(f"one of {', '.join(TASKS)}", TASKS.__contains__)]


@dataclass(frozen=True)
class Common(Schema):
    """What both sides say: who they are, their file, and where results go."""

    certificate: str | None = None  # none: without encryption
    key: str | None = None
    ca: str | None = None  # the CA's certificate
    data: str = ""  # the table: a file, or a folder of Parquet or Arrow files
    id: str | None = None  # the column of ids
    threads: Positive = 1  # to compute with, the same for all
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    out: str = "run"  # the run folder
    wait: AboveZero = 600.0  # seconds that the other side may stay away


@dataclass(frozen=True)
class ColumnSettings(Schema):
    """What a side with columns decides for itself."""

    columns: DistinctNames = ("*",)  # names or globs, "!" for all but
    groups: FeatureGroups | None = None  # feature name -> columns that are one feature
    as_is: DistinctNames | None = None  # columns of numbers that are not scaled
    storage: Literal["auto", "memory", "disk"] = "auto"  # auto: disk from 1 GiB on
    scale_range: Range | None = None  # low and high that all numbers are scaled by
    scale: Literal["auto", "standardize", "global", "none"] = "auto"
    max_categories: Annotated[int, Meta(ge=2)] = 64  # different texts in a column
    missing: Literal["flag", "fill"] = "flag"  # fill: without a flag that says where
    missing_values: MissingMarks = None  # what stands for missing, by column
    must_keep: str | None = None  # features (names or globs) that must stay
    party_net: str | None = None  # FILE.py:FUNCTION or MODULE:FUNCTION; none: as agreed
    # By feature, what a letter quotes as a reason.
    reason_texts: ReasonTexts = field(default_factory=dict)
    seed_private: Literal["own", "shared"] = "own"  # shared: as 'lessvfl run' has it
    embedding_noise: NotNegative = 0.0  # on all that leaves, as a multiple of the clip
    embedding_epsilon: AboveZero | None = None  # that a run may spend, in its place
    embedding_clip: AboveZero = 1.0  # the largest norm of a row's embedding, with noise
    noise_at: Literal["embedding", "first-layer"] = "embedding"  # what it is on

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, and noise that a server could draw."""
        super().__post_init__()
        if self.has_noise and self.seed_private == "shared":
            raise ConfigError(
                "The 'seed_private' setting must be own with noise on embeddings, "
                "which nobody else may know. Got shared."
            )
        if self.embedding_noise > 0 and self.embedding_epsilon is not None:
            raise ConfigError(
                "How much noise there is must be said once: by 'embedding_noise' or by "
                f"'embedding_epsilon'. Got {self.embedding_noise:g} and "
                f"{self.embedding_epsilon:g}."
            )

    @property
    def has_noise(self) -> bool:
        """Tell whether noise is added to the embeddings that leave."""
        return self.embedding_noise > 0 or self.embedding_epsilon is not None


@dataclass(frozen=True)
class HolderColumns(ColumnSettings):
    """The ``columns`` section of the label holder's file, a party in its process."""

    name: PartyName = "label-holder"  # of that party
    data: str | None = None  # its table; none: that of the labels


@dataclass(frozen=True)
class ServerConfig(Common):
    """What the label holder's file says."""

    listen: str = "127.0.0.1:8815"
    parties: PartyNames = ("party0",)
    columns: HolderColumns | None = None  # its own; none: it has labels alone
    label: str | None = None  # the column of labels
    sample_weight: str | None = None  # the column of row weights; none: all alike
    group_column: str | None = None  # whom a row is of; none: every row is alone
    time_column: str | None = None  # when a row is of: the latest are the test rows
    test_ids: str | None = None  # a file of ids of test rows, in a column as 'id' says
    task: AnyTask | None = None  # what the labels are; none or auto: as they look
    tell_share: bool = False  # tell parties the share of the rarer of two classes
    align: Mode = "none"  # how common rows are found
    most_ids: Positive = 4_000_000  # that a party may offer for it; memory for more
    method: str = "less-vfl-auto"
    profile: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)  # any, by name
    seeds: Seeds = (0,)  # one run each
    ensemble: bool = False  # seeds share their rows and predict together
    folds: Positive = 1  # parts of the rows, each the test of a run of every seed
    evaluation: Evaluation = "end"  # at the end, by test rows alone; after all epochs
    silence: AboveZero = 60.0  # seconds without a sign of life from a connected party
    save_every: Positive = 50  # steps between two checkpoints
    status: str | None = None  # HOST:PORT of the status page
    seed_private: Literal["own", "shared"] = "own"  # shared: as 'lessvfl run' has it
    policy: LabelPolicy = field(default_factory=LabelPolicy)  # what labels may cost

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, and two parties of the same name."""
        super().__post_init__()
        if self.columns is not None and self.columns.name in self.parties:
            raise ConfigError(
                "The 'name' in 'columns' must be another than those of 'parties', who "
                f"dial the server. Got '{self.columns.name}'."
            )

    @property
    def everyone(self) -> tuple[str, ...]:
        """Return the names of all parties, that of its own columns last."""
        holder = () if self.columns is None else (self.columns.name,)
        return (*self.parties, *holder)


@dataclass(frozen=True)
class PartyConfig(Common, ColumnSettings):
    """What a party's file says."""

    server: str = "127.0.0.1:8815"
    server_name: str = "localhost"  # the name in its certificate
    name: PartyName | None = None  # who this is, where no certificate says it
    reveal: Literal["nothing", "counts", "features"] = "nothing"  # of its selection
    align: Mode = "none"  # how it lets rows be aligned
    policy: Policy = field(default_factory=Policy)  # what it lets a server ask of it

    def __post_init__(self) -> None:
        """Refuse values that are not allowed, and a bound of what has no price."""
        super().__post_init__()
        if self.policy.epsilon is not None and not self.has_noise:
            raise ConfigError(
                "With 'epsilon' in its policy a party must add noise to what leaves: "
                "'embedding_epsilon' or 'embedding_noise' says how much. Got neither."
            )
        if self.policy.withhold_exhausted and self.align == "none":
            raise ConfigError(
                "With 'withhold_exhausted' in its policy a party must align by ids, "
                "psi or plain. Got none."
            )
        most, asked = self.policy.epsilon, self.embedding_epsilon
        if most is not None and asked is not None and asked > most:
            raise ConfigError(
                "A run's 'embedding_epsilon' must be within 'epsilon' of the policy, "
                f"which bounds all runs together. Got {asked:g} and {most:g}."
            )


def table_of(config: Common) -> Path:
    """Return where a side's own table is, or refuse a config that names none."""
    if config.data:
        return Path(config.data)
    file, what = "party.yaml", "its columns"
    if isinstance(config, ServerConfig):
        file, what = "server.yaml", "labels and ids"
    raise ConfigError(
        f"The 'data' setting of {file} must name the table of {what}, a file or a "
        "folder of Parquet or Arrow files. Got none: 'data' is missing."
    )


@contextlib.contextmanager
def naming_blanks(config: Common) -> Iterator[None]:
    """Name all that a kit's config still leaves open, where a table cannot be read."""
    try:
        yield
    except LessVFLError as error:
        values = {name: getattr(config, name, None) for name in BLANKS}
        left = [f"'{v}' as '{n}'" for n, v in values.items() if v == BLANKS[n]]
        if left and not Path(config.data).exists():
            left = [f"no file '{config.data}' as 'data'", *left]
        if not left:
            raise
        if len(left) == 1:  # and a table, whose columns the error may name
            sentence = f"The config must be filled in where it says FILL IN. {error}"
            raise ConfigError(sentence) from None
        raise ConfigError(
            "The config must be filled in where it says FILL IN. Got "
            f"{', '.join(left[:-1])} and {left[-1]}."
        ) from None


AnyConfig = TypeVar("AnyConfig", bound=Common)


def read_side(path: Path) -> PartyConfig | ServerConfig:
    """Read the YAML file of whichever side it is, which its settings tell."""
    names = read_yaml(path).keys()
    of_server = len(names - settings.types_of(PartyConfig).keys())
    of_party = len(names - settings.types_of(ServerConfig).keys())
    if of_server > of_party:
        return read(ServerConfig, path)
    return read(PartyConfig, path)


def read(cls: type[AnyConfig], path: Path) -> AnyConfig:
    """Read a side's YAML file, or refuse it; paths in it become absolute."""
    values, known = read_yaml(path), settings.types_of(cls)
    sides = {ServerConfig: "the server", PartyConfig: "a party"}
    for name in values:
        for other in sides if name not in known else ():
            if name in settings.types_of(other):
                raise ConfigError(
                    f"The config file '{path}' must be that of {sides[cls]}. Got one "
                    f"with '{name}', which is a setting of {sides[other]}."
                )
    values = {k: v for k, v in values.items() if (k, v) != ("data", "")}  # as none
    values = absolute(values, path.parent)
    values |= _read_marks(values)
    if type(values.get("seeds")) is int:
        values["seeds"] = [values["seeds"]]
    policy, columns = values.get("policy"), values.get("columns")
    if isinstance(policy, dict):
        kind = LabelPolicy if cls is ServerConfig else Policy
        values["policy"] = kind.of(policy, "policy")
    if isinstance(columns, list):
        columns = {"columns": columns}
    if cls is ServerConfig and isinstance(columns, dict):
        values["columns"] = HolderColumns.of(columns | _read_marks(columns), "columns")
    return cls.of(values, str(path))


def _read_marks(values: dict[str, Any]) -> dict[str, Any]:
    """Return what stands for missing cells, where a file says it: YAML has dates."""
    if not isinstance(marks := values.get("missing_values"), dict):
        return {}
    field = settings.fields_of([ColumnSettings])["missing_values"]
    return {"missing_values": settings.value_of(marks, field)}


def absolute(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a file's values with paths relative to its folder made absolute."""

    def whole(some: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        texts = {name: some[name] for name in names if isinstance(some.get(name), str)}
        return some | {k: str((folder / v).resolve()) for k, v in texts.items()}

    values = whole(values, PATHS)
    if isinstance(values.get("policy"), dict):
        values["policy"] = whole(values["policy"], ["predict_ids"])
    if isinstance(values.get("columns"), dict):
        values["columns"] = whole(values["columns"], ["data"])
    return values
