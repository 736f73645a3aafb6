"""Compare the numbers that two commits print, run by run.

Every case is run with both trees, each as a process of its own with one thread, and the
JSON objects are compared field by field; numbers must be equal to the last bit. Names
that differ on purpose are in `RENAMED`, each with its reason.

    python benchmarks/golden.py --before 3bd004d --data-dir DIR --jobs 2
    python benchmarks/golden.py --before HEAD~3 --after HEAD --cases 'run/*/digits*'
    python benchmarks/golden.py --before ../other-clone --out golden.json

A tree is a revision of this repository or a folder with ``src/lessvfl`` in it;
`--after` is the working tree unless given. Without `--data-dir` the cases on Phishing
are skipped. Exit code 1 if a case fails, or differs in a way that is not declared.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import smoke

ROOT = Path(__file__).resolve().parent.parent
AUTO = "less-vfl-auto"


class Renamed(NamedTuple):
    """A name that differs between the two trees on purpose; `after` None: gone."""

    what: str  # method, setting, stage or field
    before: str
    after: str | None
    why: str


_LESS = "no profile used it and no measured table recommended it"
_BY_METHOD = "the method says it: less-vfl or less-vfl-auto"
RENAMED = (
    Renamed("method", "less-vfl", AUTO, "one name is one algorithm"),
    Renamed("setting", "drain", "stepwise_removal", "a name that says what it does"),
    Renamed("setting", "selector", None, _BY_METHOD),
    Renamed("setting", "server_selector", None, _BY_METHOD),
    Renamed("setting", "aim", None, "pretrain_batch_size has the number instead"),
    Renamed("setting", "pretrain_check", None, _LESS),
    Renamed("setting", "server_refit", None, _LESS),
    Renamed("setting", "subsamples", None, _LESS),
    Renamed("setting", "*", None, "config holds only what the method reads"),
    Renamed("stage", "settle", "train_first", "a name that says what it does"),
    Renamed("field", "selection.*.frequency", None, "it was null without subsamples"),
)
# Fields that are not compared, wherever they are.
UNCOMPARED = {
    "seconds": "time is not a result",
    "wire_bytes": "certificates and frames differ in length",
    "frames": "as wire_bytes",
    "socket": "as wire_bytes",
    "resent_bytes": "only a run between machines can send again",
    "threshold": "only the tree after has it; scores say where it moves something",
    "without": "only the tree after has it",
    "tf32": "the option is gone from the benchmark of the paper",
    "lessvfl": "the version",
}
DIGEST = re.compile(r"-[0-9a-f]{10}(?=\.npz)")  # of version and names, in file names
AIMS = {"bytes": 32, "time": 1000}  # what 'aim' said of pretrain_batch_size
# Why `try` of the tree before may refuse columns of categories and feature groups: it
# handed its parties encoded columns. Such a case compares `run` and `try` of one tree.
REFUSED = "needs features of one column each"

MISSING = "(missing)"
LIMIT = 900.0  # seconds after which a process is stopped
SHOWN = 3  # differences of a case that the table shows


# -------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """One command line, in the names of the tree after."""

    name: str
    data: str
    options: tuple[str, ...] = ()
    command: str = "run"
    method: str | None = None
    profile: str = "default"
    sets: Mapping[str, Any] = field(default_factory=dict)
    needs_data_dir: bool = False
    against_run: bool = False  # compare `try` with `run`, both of the tree after

    def arguments(self, tree: Tree, command: str | None = None) -> list[str]:
        """Return the command line as a tree understands it."""
        command = command or self.command
        if command == "bench":
            words = ["bench", "paper", "--data", self.data, *self.options]
            return [*words, "--device", "cpu", "--json", "--quiet"]
        sets = {tree.setting(name): value for name, value in self.sets.items()}
        method = self.method
        if method and not tree.has_auto:
            if method == "less-vfl" and self.profile == "default":
                sets |= {"selector": "network", "server_selector": "network"}
            method = "less-vfl" if method == AUTO else method
        words = [command, self.data, "--profile", self.profile, *self.options]
        words += ["--method", method] if method else []
        words += ["--device", "cpu"] if command == "run" else []
        for name, value in sets.items():
            words += ["--set", f"{name}={value}"]
        return [*words, "--json", "--quiet"]


# Few epochs, by method; what a method reads and nothing else.
SHORT: dict[str, dict[str, Any]] = {
    "default": {"train_epochs": 3},
    AUTO: {"train_epochs": 3},
    "less-vfl": {"train_epochs": 2, "server_epochs": 8, "party_epochs": 8},
    "local-lasso": {"train_epochs": 2, "party_epochs": 8},
    "group-lasso": {"train_epochs": 2, "joint_epochs": 4},
    "plain": {"train_epochs": 3},
}
# Lambdas with which so few epochs remove some features and not all, by profile; on
# Phishing the published ones stay.
PARTLY: dict[tuple[str, str], dict[str, Any]] = {
    ("less-vfl", "paper"): {"lam_party": 6.0},
    ("less-vfl", "official-code"): {"lam_party": 3.3, "lam_server": 0.2},
    ("local-lasso", "paper"): {"lam_party": 6.0},
    ("local-lasso", "official-code"): {"lam_party": 3.3},
    ("group-lasso", "default"): {"lam_party": 6.5},
    ("group-lasso", "paper"): {"lam_party": 6.5},
    ("group-lasso", "official-code"): {"lam_party": 6.5},
}
TABLES = ("mixed", "classes", "numbers")  # files of `write_files`
# Every case: its name (command, method, what), data, settings and options, in the names
# of the tree after. `_words` says what the words in braces stand for.
CASES = """
# Every method with every profile, two classes; and no method named.
run/default/breast-cancer                   breast-cancer {half}
run/less-vfl-auto/breast-cancer             breast-cancer {half}
run/less-vfl/breast-cancer                  breast-cancer {half}
run/less-vfl/breast-cancer-paper            breast-cancer {half} profile=paper
run/less-vfl/breast-cancer-official         breast-cancer {half} {official}
run/local-lasso/breast-cancer               breast-cancer {half}
run/local-lasso/breast-cancer-paper         breast-cancer {half} profile=paper
run/local-lasso/breast-cancer-official      breast-cancer {half} {official}
run/group-lasso/breast-cancer               breast-cancer {half}
run/group-lasso/breast-cancer-paper         breast-cancer {half} profile=paper
run/group-lasso/breast-cancer-official      breast-cancer {half} {official}
run/plain/breast-cancer                     breast-cancer {half}
run/plain/breast-cancer-paper               breast-cancer {half} profile=paper
run/plain/breast-cancer-official            breast-cancer {half} {official}

# Many classes.
run/less-vfl-auto/digits                    digits {half}
run/less-vfl/digits                         digits {half}

# Text categories, missing cells and booleans; regression, and three classes.
run/less-vfl-auto/mixed                     {mixed} {half}
run/plain/mixed-unscaled                    {mixed} scale=none scale_labels=False
run/less-vfl-auto/classes                   {classes} {named} {half}
run/less-vfl/classes-paper                  {classes} {half} profile=paper lam_party=8

# Modules of the user, for parties and server.
run/less-vfl-auto/modules                   breast-cancer {two} {half} {own}
run/less-vfl/modules-seeds                  breast-cancer {two} --seeds 0,1 {own}
    lam_party=1.5
run/local-lasso/module-paper                {mixed} {half} {party_net} profile=paper
    lam_party=4
run/group-lasso/modules                     digits {two} {own} lam_party=0.6

# Feature groups; several seeds as one batch.
run/less-vfl-auto/groups-seeds              {mixed} {named} {groups} --seeds 0,1
run/less-vfl/groups                         {mixed} {named} {groups} lam_party=0.6
run/group-lasso/groups                      {mixed} {named} {groups} lam_party=12
    optimizer=adam
run/less-vfl-auto/seeds                     breast-cancer {seeds} {half}
run/less-vfl/seeds                          breast-cancer {seeds} {half}
run/plain/seeds                             digits {seeds} bits=4

# Uneven noise, the paper's target.
run/less-vfl-auto/uneven                    breast-cancer {uneven}
run/less-vfl/uneven-float64                 breast-cancer {uneven} profile=paper
    dtype=float64
run/less-vfl/target-official                breast-cancer {half} {seeds} {official}
    --target paper train_epochs=6 lam_party=4

# Settings of training: optimisers, schedule, bits, number format, order of rows.
run/less-vfl-auto/sgd-bits-4                breast-cancer {half} optimizer=sgd bits=4
run/less-vfl/adamw-bits-16                  breast-cancer {half} optimizer=adamw
    bits=16 columns=random split=first
run/local-lasso/nadam-unshuffled            breast-cancer {half} optimizer=nadam
    row_order=file empty_party=constant lam_party=10
run/group-lasso/rmsprop-bits-8              breast-cancer {half} optimizer=rmsprop
    bits=8 lam_party=9
run/plain/adagrad-cosine                    breast-cancer optimizer=adagrad
    schedule=cosine
run/less-vfl-auto/float64                   breast-cancer {half} dtype=float64 bits=32

# Settings of selection.
run/less-vfl/frozen                         breast-cancer {half} empty_party=frozen
    lam_party=20
run/less-vfl/plateau                        breast-cancer {half} server_epochs=40
    party_epochs=40 plateau_tolerance=0.05 plateau_patience=2
run/less-vfl/stepwise                       breast-cancer {half} stepwise_removal=True
    lam_server=1 lam_party=0.2 lam_scale=2 reduction=mean
run/less-vfl-auto/must-keep-most            breast-cancer {half} must_keep=worst* most=4
run/less-vfl-auto/one-look                  breast-cancer {half} second_look=0
    pretrain_batch_size=50 server_rows=64 server_errors=1 shadows=20
run/less-vfl-auto/no-pairs                  digits {two} pairs=False refit_epochs=0

# Networks of another shape; a data set that knows the truth.
run/less-vfl-auto/deep                      breast-cancer {two} hidden=32,16
    activation=gelu fusion_depth=2
run/less-vfl-auto/synthetic                 synthetic data.n_samples=400 data.n_test=100
    data.n_parties=2 data.n_noise=6

run/default/phishing                        phishing {half}
run/less-vfl/phishing-paper                 phishing {half} profile=paper
run/local-lasso/phishing-official           phishing {half} {official}

# Over Flight.
try/less-vfl-auto/target                    breast-cancer {two} {half} --target paper
try/less-vfl/breast-cancer                  breast-cancer {two} {half}
try/less-vfl/official                       breast-cancer {two} {half} {official}
try/local-lasso/paper                       breast-cancer {two} {half} profile=paper
try/group-lasso/bits-8                      breast-cancer {two} {half} bits=8
try/plain/digits-bits-4                     digits {two} bits=4
try/less-vfl/modules                        breast-cancer {two} {own} lam_party=1.5
try/less-vfl-auto/numbers                   {numbers} {two} {half}

# Over Flight against in process, since the tree before may refuse these.
try=run/less-vfl-auto/mixed                 {mixed} {named} {half}
try=run/less-vfl/groups                     {classes} {named} {groups} lam_party=0.6

# The benchmarks.
bench/paper/phishing                        phishing --tables 2 --seeds 0
bench/paper/breast-cancer                   breast-cancer --tables 2 --seeds 0
    --profile paper
"""


def all_cases(scratch: Path, data_dir: Path | None) -> list[Case]:
    """Return every case; the files of some are in the scratch folder."""
    lines = [line for line in CASES.splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\n    ", " ")
    return [
        _read_case(line.format(**_words(scratch)).split(), data_dir)
        for line in text.splitlines()
        if line
    ]


def _words(scratch: Path) -> dict[str, str]:
    """Return what the words in braces stand for."""
    party_net = f"party_net={scratch / 'nets.py'}:party"
    return {
        "half": "--spurious 0.5",
        "uneven": "--spurious 0.8,0.25,0.1,0",
        "two": "--parties 2",
        "seeds": "--seeds 0,1,2",
        "official": "profile=official-code",
        "named": f"--parties {scratch / 'parties.yaml'}",
        "groups": f"--groups {scratch / 'groups.yaml'}",
        "party_net": party_net,
        "own": f"{party_net} fusion_net={scratch / 'nets.py'}:fusion",
        **{name: str(scratch / f"{name}.csv") for name in TABLES},
    }


def _read_case(words: Sequence[str], data_dir: Path | None) -> Case:
    name, data, *others = words
    command, method, _ = name.split("/")
    options = [word for word in others if "=" not in word]
    own: dict[str, Any] = dict(word.split("=", 1) for word in others if "=" in word)
    is_local = data == "phishing"
    if is_local and data_dir is not None:
        options += ["--data-dir", str(data_dir)]
    if command == "bench":
        return Case(name, data, (*options,), command, needs_data_dir=is_local)
    profile = own.pop("profile", "default")
    partly = {} if is_local else PARTLY.get((method, profile), {})
    return Case(
        name,
        data,
        (*options,),
        command.partition("=")[0],
        None if method == "default" else method,
        profile,
        {"batch_size": 100} | SHORT[method] | partly | own,
        needs_data_dir=is_local,
        against_run=command == "try=run",
    )


NETS = '''"""Networks of a user."""

from torch import nn


def party(n_inputs, n_outputs):
    """Return a party's network."""
    return nn.Sequential(
        nn.Linear(n_inputs, 12), nn.Tanh(), nn.Linear(12, 8), nn.SiLU(),
        nn.Linear(8, n_outputs),
    )


def fusion(n_inputs, n_outputs):
    """Return the server's network."""
    return nn.Sequential(nn.Linear(n_inputs, 6), nn.Tanh(), nn.Linear(6, n_outputs))
'''
PARTIES = """clinic: [age, weight, smoker, blood]
bank: ["region_*", income, loans, job]
"""
GROUPS = """region: ["region_*"]
body: [age, weight]
"""


def write_files(folder: Path) -> None:
    """Write the tables, networks and party files that cases name."""
    rng = np.random.default_rng(11)
    n_rows = 360
    age, weight, income, loans = rng.normal(size=(4, n_rows)).round(3)
    smoker = rng.random(n_rows) < 0.4
    blood, job = rng.choice(["A", "B", "AB", "O"], n_rows), rng.integers(0, 5, n_rows)
    region = rng.integers(0, 3, n_rows)
    y = age * 1.5 + smoker - np.tanh(income) + 0.8 * (blood == "O") + 0.5 * (job == 2)
    y = (y + (region == 1) + 0.2 * rng.normal(size=n_rows)).round(4)
    columns: dict[str, list[str]] = {
        "age": [str(value) for value in age],
        "weight": [str(value) for value in weight],
        "smoker": ["true" if value else "false" for value in smoker],
        "blood": [str(value) for value in blood],
        **{f"region_{k}": [str(int(r == k)) for r in region] for k in range(3)},
        "income": [str(value) for value in income],
        "loans": [str(value) for value in loans],
        "job": [("baker", "nurse", "pilot", "clerk", "judge")[k] for k in job],
    }
    for name in ("weight", "smoker", "blood", "loans", "job"):
        for row in rng.choice(n_rows, 18, replace=False):
            columns[name][row] = ""
    values = [str(value) for value in y]
    terciles = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    classes = [("low", "middle", "high")[k] for k in terciles]
    numeric = {name: columns[name] for name in ("age", "income", "region_0")}
    numeric |= {f"noise_{k}": [str(v) for v in rng.normal(size=n_rows)] for k in "abc"}
    _write_csv(folder / "mixed.csv", columns | {"y": values})
    _write_csv(folder / "classes.csv", columns | {"y": classes})
    _write_csv(folder / "numbers.csv", numeric | {"y": values})
    (folder / "nets.py").write_text(NETS)
    (folder / "parties.yaml").write_text(PARTIES)
    (folder / "groups.yaml").write_text(GROUPS)


def _write_csv(path: Path, columns: Mapping[str, Sequence[str]]) -> None:
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    path.write_text("".join(",".join(row) + "\n" for row in rows))


# ---------------------------------------------------------------------------- processes


@dataclass(frozen=True)
class Tree:
    """One side: a folder with the source, and the names that it knows."""

    name: str
    folder: Path
    names: str = ""  # all that `lessvfl methods` prints

    @property
    def has_auto(self) -> bool:
        """Tell whether selection without a lambda is a method of its own."""
        return AUTO in self.names

    def setting(self, name: str) -> str:
        """Return the tree's own name of a setting."""
        for one in RENAMED:
            if one.what == "setting" and one.after == name and name not in self.names:
                return one.before
        return name


class Answer(NamedTuple):
    """What a process printed, and what it took."""

    code: int
    output: str
    errors: str
    seconds: float
    cpu_seconds: float

    def last_words(self) -> str:
        """Return the last line that it said."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


def ask(tree: Tree, words: Sequence[str], folder: Path) -> Answer:
    """Run ``python WORDS`` with a tree's source, one thread, and wait for it."""
    own = {"PYTHONPATH": str(tree.folder / "src"), "OMP_NUM_THREADS": "1"}
    own |= {"COLUMNS": "200"}
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
        )
        # An interrupt and not a kill: `try` then ends its own processes.
        timer = threading.Timer(LIMIT, process.send_signal, [signal.SIGINT])
        timer.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        output.seek(0)
        errors.seek(0)
        return Answer(
            process.returncode,
            output.read().decode(errors="replace"),
            errors.read().decode(errors="replace"),
            seconds,
            used.ru_utime + used.ru_stime,
        )


def lessvfl(tree: Tree, words: Sequence[str], folder: Path) -> Answer:
    """Run one command of a tree."""
    return ask(tree, ["-m", "lessvfl.cli", *words], folder)


def open_tree(text: str | None, scratch: Path, side: str) -> Tree:
    """Return the tree of a revision or folder; the working tree where none is given."""
    if text is None:
        tree = Tree("working tree", ROOT)
    elif (Path(text) / "src" / "lessvfl").is_dir():
        tree = Tree(text, Path(text).resolve())
    else:
        tree = Tree(text, _extract(text, scratch / side))
    where = ask(tree, ["-c", "import lessvfl; print(lessvfl.__file__)"], scratch)
    if not where.output.startswith(str(tree.folder)):
        said = where.output.strip() or where.last_words()
        raise SystemExit(f"{tree.name} is not what is imported: {said}")
    names = lessvfl(tree, ["methods"], scratch).output
    names += lessvfl(tree, ["methods", "less-vfl"], scratch).output
    return dataclasses.replace(tree, names=names)


def _extract(revision: str, folder: Path) -> Path:
    """Put the source of a revision into a folder; the repository is only read."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "src"],
        capture_output=True,
        check=False,
    )
    if archive.returncode:
        said = archive.stderr.decode(errors="replace").strip()
        raise SystemExit(f"'{revision}' is neither a folder nor a revision: {said}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


# --------------------------------------------------------------------------- comparison


class Difference(NamedTuple):
    """A field that is not the same, and by how much where both are numbers."""

    path: str
    before: Any
    after: Any

    @property
    def relative(self) -> float | None:
        """Return the relative difference of two numbers."""
        if not (_is_number(self.before) and _is_number(self.after)):
            return None
        largest = max(abs(self.before), abs(self.after))
        return float(abs(self.before - self.after) / largest) if largest else 0.0


class Comparison(NamedTuple):
    """All that differs, and the settings that only one side has, with their values."""

    differences: list[Difference]
    before_alone: dict[str, Any]
    after_alone: dict[str, Any]


def compare(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    method: str | None = None,
    given: Sequence[str] = (),
) -> Comparison:
    """Compare two JSON objects, but for what `RENAMED` declares.

    Parameters
    ----------
    before, after : mapping
        What ``--json`` printed.
    method : str, optional
        The method's name in the tree after.
    given : sequence of str
        Settings that the command line gave: both must have these.
    """
    first, second = (_with_new_names(one, method) for one in (before, after))
    old, new = first.get("config", {}), second.get("config", {})
    _fill_pretrain_batch_size(old, new)
    shared = (old.keys() & new.keys()) | set(given)
    alone = [
        {name: own[name] for name in own if name not in shared} for own in (old, new)
    ]
    for one, config in ((first, old), (second, new)):
        if "config" in one:
            one["config"] = {k: v for k, v in config.items() if k in shared}
    return Comparison(list(differences(first, second)), alone[0], alone[1])


def _with_new_names(found: Mapping[str, Any], method: str | None) -> dict[str, Any]:
    """Return an object with the names of the tree after."""
    stages, settings = (
        {one.before: one.after for one in RENAMED if one.what == what and one.after}
        for what in ("stage", "setting")
    )

    def renamed(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {
                stages.get(name, name): renamed(one, name)
                for name, one in value.items()
                if name not in UNCOMPARED
            }
        if isinstance(value, list):
            return [renamed(one, key) for one in value]
        if key == "stage":
            return stages.get(value, value)
        return DIGEST.sub("", value) if key == "records" else value

    new: dict[str, Any] = renamed(dict(found))
    if "config" in new:
        new["config"] = {settings.get(k, k): v for k, v in new["config"].items()}
    for one in RENAMED:
        if one.what == "method" and (new.get("method"), method) == one[1:3]:
            new["method"] = one.after
    for run in new.get("runs", ()):
        for own in (run.get("selection") or {}).values():
            if own.get("frequency", MISSING) is None:  # a value would be a result
                del own["frequency"]
    return new


def _fill_pretrain_batch_size(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Put the number that was meant where one side says null and the other does not."""
    name = "pretrain_batch_size"
    for own, other in ((before, after), (after, before)):
        if own.get(name, MISSING) is None and other.get(name) is not None:
            own[name] = AIMS.get(own.get("aim", "none"), own.get("batch_size"))


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Yield every path at which two JSON values differ.

    >>> [one.path for one in differences({"a": [1, 2]}, {"a": [1, 3], "b": None})]
    ['a.1', 'b']
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            pair = before.get(name, MISSING), after.get(name, MISSING)
            yield from differences(*pair, f"{path}.{name}".lstrip("."))
    elif isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            yield Difference(f"{path}.length", len(before), len(after))
        for place, pair in enumerate(zip(before, after, strict=False)):
            yield from differences(*pair, f"{path}.{place}".lstrip("."))
    elif _is_number(before) and _is_number(after):
        if before != after:
            yield Difference(path, before, after)
    elif type(before) is not type(after) or before != after:
        yield Difference(path, before, after)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ------------------------------------------------------------------------------ running


@dataclass(frozen=True)
class Result:
    """How a case came out."""

    case: Case
    verdict: str  # equal, differs, failed or skipped
    reason: str = ""
    comparison: Comparison = Comparison([], {}, {})
    answers: tuple[Answer, ...] = ()

    @property
    def largest(self) -> float:
        """Return the largest relative difference of two numbers."""
        found = [one.relative or 0.0 for one in self.comparison.differences]
        return max(found, default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return everything about it."""
        return {
            "case": self.case.name,
            "verdict": self.verdict,
            "reason": self.reason,
            "largest_relative_difference": self.largest,
            "differences": [
                {**one._asdict(), "relative": one.relative}
                for one in self.comparison.differences
            ],
            "settings_before_alone": self.comparison.before_alone,
            "settings_after_alone": self.comparison.after_alone,
            "seconds": [one.seconds for one in self.answers],
            "cpu_seconds": [one.cpu_seconds for one in self.answers],
            "errors": [one.errors for one in self.answers],
        }


def run_case(
    case: Case, before: Tree, after: Tree, scratch: Path, has_data: bool
) -> Result:
    """Run a case with both trees and compare."""
    if case.needs_data_dir and not has_data:
        return Result(case, "skipped", "needs --data-dir")
    if case.against_run:
        before = after
    commands = ("run", "try") if case.against_run else (case.command, case.command)
    answers = tuple(
        lessvfl(tree, case.arguments(tree, command), scratch)
        for tree, command in zip((before, after), commands, strict=True)
    )
    if case.against_run and REFUSED in answers[1].errors:
        return Result(case, "skipped", f"'try' of {after.name} {REFUSED}")
    for side, answer in zip(("before", "after"), answers, strict=True):
        if answer.code:
            reason = f"{side}: {answer.last_words()}"
            return Result(case, "failed", reason, answers=answers)
    method = AUTO if case.method is None else case.method
    objects = [json.loads(answer.output) for answer in answers]
    found = compare(objects[0], objects[1], method, tuple(case.sets))
    verdict = "differs" if found.differences else "equal"
    return Result(case, verdict, comparison=found, answers=answers)


# ----------------------------------------------------------------------------- printing


def show(result: Result, width: int) -> None:
    """Print the rows of one case."""
    times = ""
    if len(result.answers) == 2:
        first, second = (answer.seconds for answer in result.answers)
        times = f"{first:7.1f} {second:7.1f} {second / first:6.2f}"
    row = f"{result.case.name:<{width}}  {result.verdict:<8} {times:<22}"
    print(f"{row}  {result.reason}".rstrip(), flush=True)
    found = result.comparison.differences
    for one in found[:SHOWN]:
        print(f"    {one.path}: {one.before!r} -> {one.after!r}")
    if found:
        largest = f"largest relative difference {result.largest:.3g}"
        print(f"    {len(found)} fields differ, {largest}", flush=True)


def show_alone(results: Sequence[Result]) -> None:
    """Print the settings that only one side has, and in how many cases."""
    gone = {one.before: one.why for one in RENAMED if one.what == "setting"}
    for side, title in (("before_alone", "before"), ("after_alone", "after")):
        values: defaultdict[str, list[str]] = defaultdict(list)
        for result in results:
            for name, value in getattr(result.comparison, side).items():
                values[name].append(json.dumps(value))
        if values:
            print(f"\nSettings that only the tree {title} has:")
        for name, seen in sorted(values.items()):
            told = ", ".join(sorted(set(seen)))
            why = gone.get(name, gone["*"]) if title == "before" else "not declared"
            print(f"    {name} = {told} in {len(seen)} cases ({why})")


def show_end(results: Sequence[Result]) -> None:
    """Print the counts, the largest difference and the seconds."""
    tally = Counter(result.verdict for result in results)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(tally.items()))
    print(f"\n{len(results)} cases: {counts}")
    worst = max(results, key=lambda result: result.largest)
    where = f" ({worst.case.name})" if worst.largest else ""
    print(f"Largest relative difference: {worst.largest:.3g}{where}")
    both = [result.answers for result in results if len(result.answers) == 2]
    for kind, title in (("seconds", "Seconds"), ("cpu_seconds", "CPU seconds")):
        sums = [sum(getattr(pair[side], kind) for pair in both) for side in (0, 1)]
        ratio = f", ratio {sums[1] / sums[0]:.3f}" if sums[0] else ""
        print(f"{title}: {sums[0]:.1f} before, {sums[1]:.1f} after{ratio}")


def main() -> None:
    """Run the cases, print the table, say by the exit code whether all are equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="HEAD", help="revision or folder")
    parser.add_argument("--after", help="revision or folder; else the working tree")
    parser.add_argument("--cases", default="*", help="globs over names of cases: a,b")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("LESSVFL_DATA"))
    parser.add_argument("--out", type=Path, help="file for everything, as JSON")
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    here = str(Path(__file__).parent.parent)
    small = "run/plain/breast-cancer"
    given = smoke.parse(parser, before=here, after=here, cases=small, data_dir=None)
    start = time.perf_counter()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        data_dir = Path(given.data_dir).resolve() if given.data_dir else None
        cases = [
            case
            for case in all_cases(scratch, data_dir)
            if any(fnmatch.fnmatch(case.name, one) for one in given.cases.split(","))
        ]
        width = max((len(case.name) for case in cases), default=0)
        if given.list:
            print(*(case.name for case in cases), sep="\n")
            return
        if not cases:
            raise SystemExit(f"No case is named like {given.cases!r}; see --list.")
        write_files(scratch)
        before = open_tree(given.before, scratch, "before")
        after = open_tree(given.after, scratch, "after")
        print(f"before: {before.name}, after: {after.name}\n")
        print(
            f"{'case':<{width}}  {'verdict':<8} {'before':>7} {'after':>7} {'ratio':>6}"
        )
        results = []
        pool = stack.enter_context(ThreadPoolExecutor(given.jobs))
        # Whoever interrupts waits for the cases under way and not for all others.
        stack.callback(pool.shutdown, cancel_futures=True)
        for result in pool.map(
            lambda case: run_case(case, before, after, scratch, bool(data_dir)), cases
        ):
            show(result, width)
            results.append(result)
    show_alone(results)
    show_end(results)
    print(f"This took {time.perf_counter() - start:.0f} s with {given.jobs} jobs.")
    if given.out is not None:
        told = {
            "before": before.name,
            "after": after.name,
            "renamed": [one._asdict() for one in RENAMED],
            "uncompared": UNCOMPARED,
            "cases": [result.to_json() for result in results],
        }
        given.out.write_text(json.dumps(told, indent=1))
    if any(result.verdict in ("differs", "failed") for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
