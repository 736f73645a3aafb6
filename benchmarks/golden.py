"""Compare the numbers that two commits print, run by run.

Every case is run with both trees, each as a process of its own with one thread, and the
JSON objects are compared field by field; numbers must be equal to the last bit. With
``--within 1e-3`` fractions may be that far apart; whole numbers (bytes, rounds) and
names (features kept) must be equal. Fields that only the second tree has are new, and
named; one that it lost is a difference.

    python benchmarks/golden.py --before 2b5a400 --jobs 2
    python benchmarks/golden.py --before HEAD~3 --after HEAD --cases 'run/*/digits*'
    python benchmarks/golden.py --before ../other-clone

A tree is a revision of this repository or a folder with ``src/lessvfl`` in it;
`--after` is the working tree unless given. A case that both refuse alike, as those on
Phishing where LESSVFL_DATA names no folder that has it, is skipped. Exit code 1 if a
case fails or differs.
"""

from __future__ import annotations

import argparse
import contextlib
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
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
AUTO = "less-vfl-auto"
# Fields that are not compared, wherever they are.
UNCOMPARED = {
    "seconds": "time is not a result",
    "wire_bytes": "certificates and frames differ in length",
    "frames": "as wire_bytes",
    "socket": "as wire_bytes",
    "resent_bytes": "only a run between machines can send again",
    "lessvfl": "the version",
}
DIGEST = re.compile(r"-[0-9a-f]{10}(?=\.npz)")  # of version and names, in file names
MISSING = "(missing)"
LIMIT = 900.0  # seconds after which a process is stopped
SHOWN = 3  # differences of a case that the table shows


# -------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """One command line."""

    name: str
    data: str
    options: tuple[str, ...] = ()
    command: str = "run"
    method: str | None = None
    profile: str = "default"
    sets: Mapping[str, Any] = field(default_factory=dict)
    against_run: bool = False  # compare `try` with `run`, both of the tree after

    def arguments(self, command: str) -> list[str]:
        """Return the command line."""
        if command == "bench":
            words = ["bench", "paper", "--data", self.data, *self.options]
            return [*words, "--device", "cpu", "--json", "--quiet"]
        words = [command, self.data, "--profile", self.profile, *self.options]
        words += ["--method", self.method] if self.method else []
        words += ["--device", "cpu"] if command == "run" else []
        for name, value in self.sets.items():
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
# Every case: its name (command, method, what), data, settings and options. `_words`
# says what the words in braces stand for.
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

# Feature groups; several seeds.
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

# Over Flight against in process.
try=run/less-vfl-auto/mixed                 {mixed} {named} {half}
try=run/less-vfl/groups                     {classes} {named} {groups} lam_party=0.6

# The benchmarks.
bench/paper/phishing                        phishing --tables 2 --seeds 0
bench/paper/breast-cancer                   breast-cancer --tables 2 --seeds 0
    --profile paper
"""


def all_cases(scratch: Path) -> list[Case]:
    """Return every case; the files of some are in the scratch folder."""
    lines = [line for line in CASES.splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\n    ", " ")
    return [
        _read_case(line.format(**_words(scratch)).split())
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


def _read_case(words: Sequence[str]) -> Case:
    name, data, *others = words
    command, method, _ = name.split("/")
    options = [word for word in others if "=" not in word]
    own: dict[str, Any] = dict(word.split("=", 1) for word in others if "=" in word)
    if command == "bench":
        return Case(name, data, (*options,), command)
    profile = own.pop("profile", "default")
    partly = {} if data == "phishing" else PARTLY.get((method, profile), {})
    return Case(
        name,
        data,
        (*options,),
        command.partition("=")[0],
        None if method == "default" else method,
        profile,
        {"batch_size": 100} | SHORT[method] | partly | own,
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
        "job": [("baker", "nurse", "pilot", "clerk", "checker")[k] for k in job],
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


class Tree(NamedTuple):
    """One side: its name, and a folder with the source."""

    name: str
    folder: Path


class Answer(NamedTuple):
    """What a process printed, and what it took."""

    code: int
    output: str
    errors: str
    seconds: float

    def last_words(self) -> str:
        """Return the last line that it said."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


def ask(tree: Tree, words: Sequence[str], folder: Path) -> Answer:
    """Run ``python WORDS`` with a tree's source, one thread, and wait for it."""
    own = {"PYTHONPATH": str(tree.folder / "src"), "OMP_NUM_THREADS": "1"}
    own |= {"COLUMNS": "200"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        # An interrupt and not a kill: `try` then ends its own processes.
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    return Answer(process.returncode, output, errors, time.perf_counter() - start)


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
    return tree


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

    def is_within(self, bound: float) -> bool:
        """Tell whether these are two fractions no further apart than a bound."""
        if not (isinstance(self.before, float) and isinstance(self.after, float)):
            return False
        apart = abs(self.before - self.after)
        return apart <= bound * max(1.0, abs(self.before), abs(self.after))


def compare(
    before: Mapping[str, Any], after: Mapping[str, Any], within: float = 0.0
) -> list[Difference]:
    """Compare two JSON objects, but for what `UNCOMPARED` declares.

    Fractions differ where they are further apart than `within`, absolutely and
    relatively.
    """
    return [
        one
        for one in differences(_compared(before), _compared(after))
        if not one.is_within(within)
    ]


def _compared(value: Any, key: str = "") -> Any:
    """Return a value without what is not compared."""
    if isinstance(value, Mapping):
        own = {name: one for name, one in value.items() if name not in UNCOMPARED}
        return {name: _compared(one, name) for name, one in own.items()}
    if isinstance(value, list):
        return [_compared(one, key) for one in value]
    return DIGEST.sub("", value) if key == "records" else value


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
    differences: Sequence[Difference] = ()
    answers: tuple[Answer, ...] = ()
    new: Sequence[str] = ()  # fields

    @property
    def largest(self) -> float:
        """Return the largest relative difference of two numbers."""
        return max((one.relative or 0.0 for one in self.differences), default=0.0)


def run_case(
    case: Case, before: Tree, after: Tree, scratch: Path, within: float = 0.0
) -> Result:
    """Run a case with both trees and compare."""
    sides = [(before, case.command), (after, case.command)]
    if case.against_run:
        sides = [(after, "run"), (after, "try")]
    answers = tuple(
        ask(tree, ["-m", "lessvfl.cli", *case.arguments(command)], scratch)
        for tree, command in sides
    )
    words = [answer.last_words() for answer in answers if answer.code]
    if words:
        same = words[0] == words[-1] and len(words) == len(answers)
        verdict = "skipped" if same else "failed"
        return Result(case, verdict, words[0], answers=answers)
    found = compare(*(json.loads(answer.output) for answer in answers), within)
    new = [one.path for one in found if one.before == MISSING]
    found = [one for one in found if one.before != MISSING]
    return Result(case, "differs" if found else "equal", "", found, answers, new)


def show(result: Result, width: int) -> None:
    """Print the rows of one case."""
    first, second = (answer.seconds for answer in result.answers)
    times = f"{first:7.1f} {second:7.1f} {second / first:6.2f}"
    row = f"{result.case.name:<{width}}  {result.verdict:<8} {times:<22}"
    print(f"{row}  {result.reason}".rstrip(), flush=True)
    for one in result.differences[:SHOWN]:
        print(f"    {one.path}: {one.before!r} -> {one.after!r}")
    if result.differences:
        largest = f"largest relative difference {result.largest:.3g}"
        print(f"    {len(result.differences)} fields differ, {largest}", flush=True)


def show_end(results: Sequence[Result]) -> None:
    """Print the counts, the largest difference and the seconds."""
    tally = Counter(result.verdict for result in results)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in sorted(tally.items()))
    print(f"\n{len(results)} cases: {counts}")
    new = dict.fromkeys(path for result in results for path in result.new)
    if new:
        print(f"New fields: {', '.join(new)}")
    worst = max(results, key=lambda result: result.largest)
    where = f" ({worst.case.name})" if worst.largest else ""
    print(f"Largest relative difference: {worst.largest:.3g}{where}")
    sums = [sum(result.answers[side].seconds for result in results) for side in (0, 1)]
    print(f"Seconds: {sums[0]:.1f} before, {sums[1]:.1f} after")


def main() -> None:
    """Run the cases, print the table, say by the exit code whether all are equal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="HEAD", help="revision or folder")
    parser.add_argument("--after", help="revision or folder; else the working tree")
    parser.add_argument("--cases", default="*", help="globs over names of cases: a,b")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--within", type=float, default=0.0, help="for fractions")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        cases = [
            case
            for case in all_cases(scratch)
            if any(fnmatch.fnmatch(case.name, one) for one in given.cases.split(","))
        ]
        width = max((len(case.name) for case in cases), default=0)
        if not cases:
            raise SystemExit(f"No case is named like {given.cases!r}.")
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
            lambda case: run_case(case, before, after, scratch, given.within), cases
        ):
            show(result, width)
            results.append(result)
    show_end(results)
    if any(result.verdict in ("differs", "failed") for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
