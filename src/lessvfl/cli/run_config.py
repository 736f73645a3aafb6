"""A run's options as a YAML file: read by ``--config``, written into run folders.

A file may say whatever the options of its command can: by their names, `settings` for
``--set`` and lists or mappings where an option has a text. What is given on the command
line wins. Paths in a file are relative to it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from lessvfl import __version__
from lessvfl.cli import start
from lessvfl.cli.options import give_options, read_parties
from lessvfl.errors import ConfigError

if TYPE_CHECKING:
    from lessvfl.cli.job import JobOptions

FILE_NAME = "run.yaml"
NAMES = {"set_": "settings", "as_json": "json"}  # where a key is not its option's name
PATHS = ("data", "data_dir", "out", "parties", "groups", "test_ids")
ConfigOfRun = Annotated[
    Path | None,
    typer.Option("--config", help="A YAML file of options; those given here win."),
]

TrustFile = Annotated[
    bool, typer.Option("--trust-code", help="Run the network code that --config names.")
]
CODE = ("party_net", "fusion_net")  # settings that name code: maybe somebody else's


def from_file(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the option ``--config``, a file of its other options."""
    options = inspect.signature(command, eval_str=True).parameters

    @functools.wraps(command)
    def call(
        ctx: typer.Context, config: Path | None, trust_code: bool, **given: Any
    ) -> None:
        if not given["quiet"] and (config or given["data"]):
            start.say(str(config or f"{given['method']} on {given['data']}"))
        for name, value in {} if config is None else _read(config, options).items():
            source = ctx.get_parameter_source(name)
            if source is None or source.name != "COMMANDLINE":
                for pair in value if name == "set_" and not trust_code else ():
                    setting = pair.partition("=")[0].strip()
                    if setting in CODE:
                        raise ConfigError(
                            f"The config file '{config}' must be trusted to name code "
                            f"to run ('{setting}'), by '--trust-code'. Got no such "
                            "word."
                        )
                given[name] = value
        command(**given)

    of = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    added = (
        of("ctx", annotation=typer.Context),
        of("config", annotation=ConfigOfRun, default=None),
        of("trust_code", annotation=TrustFile, default=False),
    )
    give_options(call, (*options.values(), *added))
    return call


def _read(path: Path, known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return what a file says, by the command's names of options."""
    from lessvfl import settings
    from lessvfl.data import read_yaml

    names = {NAMES.get(name, name): name for name in known}
    values = {}
    for key, value in read_yaml(path).items():
        if key not in names:
            raise settings.unknown("option", str(key), names, f" in '{path}'")
        if value is not None:
            kind, option = get_args(known[names[key]].annotation)
            values[names[key]] = _as_given(path, str(key), value, kind, option)
    return values


def _as_given(path: Path, key: str, value: Any, kind: Any, option: Any) -> Any:
    """Return a value of a file as the command line would give it."""
    from lessvfl.data import columns_by_name

    kinds = get_args(kind) or (kind,)
    if bool in kinds:
        if isinstance(value, bool):
            return value
        raise _wrong(path, key, "true or false", value)
    if int in kinds:
        low, high = option.min or 0, option.max or sys.maxsize
        if type(value) is int and low <= value <= high:
            return value
        raise _wrong(path, key, f"a whole number from {low} to {high}", value)
    if key in ("settings", "missing_values"):
        return _pairs(path, key, value)
    if isinstance(value, Mapping) and key in ("parties", "groups"):
        of = "feature" if key == "groups" else "party"
        return columns_by_name(value, path, of)
    if isinstance(value, list) and value and key in ("seeds", "spurious", "parties"):
        value = ",".join(map(str, value))
    if isinstance(value, bool | Mapping | list):
        raise _wrong(path, key, "a text or a number", value)
    text = str(value)
    if key in PATHS and (Path in kinds or Path(text).suffix or "/" in text):
        whole = path.parent.absolute() / Path(text).expanduser()
        return whole if Path in kinds else str(whole)
    return text


def _pairs(path: Path, key: str, value: Any) -> list[str]:
    """Return names and values as KEY=VALUE, once for each value of a missing cell."""
    if not isinstance(value, Mapping):
        raise _wrong(path, key, "names and values", value)
    pairs = []
    for name, given in value.items():
        is_several = isinstance(given, list) and key == "missing_values"
        for one in given if is_several else [given]:
            texts = one if isinstance(one, list) else [one]
            text = ",".join("none" if t is None else str(t) for t in texts)
            pairs.append(f"{name}={text}")
    return pairs


def _wrong(path: Path, key: str, allowed: str, value: Any) -> ConfigError:
    return ConfigError(f"The '{key}' in '{path}' must be {allowed}. Got {value!r}.")


def write(folder: Path, asked: JobOptions, **others: Any) -> None:
    """Write what was asked for into a run folder, so that it can be asked again.

    The files of parties and groups are in it as they are now; `others` are options of
    the command that are not of its job.
    """
    from lessvfl.data import write_yaml

    values = asdict(asked) | others
    settings = dict(pair.split("=", 1) for pair in values.pop("set_") or [])
    parties = read_parties(asked.parties)
    values |= {
        "data": _absolute(asked.data) if Path(asked.data).suffix else asked.data,
        "data_dir": asked.data_dir and _absolute(asked.data_dir),
        "test_ids": asked.test_ids and _absolute(asked.test_ids),
        "parties": asked.parties if not isinstance(parties, Mapping) else parties,
        "groups": asked.read_groups(),
        "missing_values": asked.read_missing_values(),
        "settings": {name.strip(): text.strip() for name, text in settings.items()},
    }
    given = {name: value for name, value in values.items() if value not in (None, {})}
    about = (
        f"What was run by lessvfl {__version__}; to run it again:\n"
        f"lessvfl run --config {FILE_NAME} --out ANOTHER_FOLDER"
    )
    write_yaml(folder / FILE_NAME, given, about)


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())
