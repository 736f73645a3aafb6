"""What a run or a fit of a table ends in, and whether that is right.

Right is a finite record, a page that renders, predictions that are numbers, and the
planted features found within 10 points of the clean twin; or, where the table may be
refused, one sentence about what is wrong with it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from tests.corpus.tables import KINDS, LABEL, TASKS, WEIGHT, Spec, Table, Way

from lessvfl import LessVFLClassifier, LessVFLRegressor
from lessvfl.cli import app
from lessvfl.errors import LessVFLError, LessVFLWarning

Verdict = Literal["right", "sentence", "traceback", "nan", "nonsense"]

# As short as the question allows; weak penalties, so that planted features stay.
METHODS: dict[str, dict[str, Any]] = {
    "less-vfl-auto": {"train_epochs": 2},
    "plain": {"train_epochs": 3},
    "less-vfl": {
        "train_epochs": 2,
        "pretrain_epochs": 3,
        "server_epochs": 5,
        "party_epochs": 8,
        "batch_size": 64,
        "lam_party": 1.0,
        "hidden": 16,
    },
    "local-lasso": {
        "train_epochs": 2,
        "pretrain_epochs": 3,
        "party_epochs": 8,
        "batch_size": 64,
        "lam_party": 1.0,
        "hidden": 16,
    },
    "group-lasso": {
        "train_epochs": 2,
        "joint_epochs": 5,
        "batch_size": 64,
        "lam_party": 0.1,
        "hidden": 16,
    },
}
OTHERS = [method for method in METHODS if method != "less-vfl-auto"]
POINTS = 0.1  # by how much less may be found than in the clean twin
LOWEST_R2 = -1.0  # below it, a prediction is none


@dataclass(frozen=True)
class Case:
    """A table, the method, and how it is run."""

    spec: Spec
    method: str
    way: Way

    @property
    def name(self) -> str:
        return f"{self.spec.name} {self.method} {self.way}"


@dataclass
class Outcome:
    """What a case ended in."""

    verdict: Verdict
    why: str = ""
    kept: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()  # of all features

    @property
    def is_wrong(self) -> bool:
        return self.verdict not in ("right", "sentence")


class Wrong(Exception):
    """A legal end whose result is not right."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict: Verdict = verdict


def cases_of(spec: Spec) -> list[Case]:
    """Return the cases of a table: `less-vfl-auto` in all its ways, another in one.

    The other methods take turns, so that the tables of a kind see all of them.
    """
    ways = KINDS[spec.kind].ways
    turn = spec.seed + list(KINDS).index(spec.kind) + 2 * TASKS.index(spec.task)
    other = Case(spec, OTHERS[turn % len(OTHERS)], ways[turn // 4 % len(ways)])
    return [*(Case(spec, "less-vfl-auto", way) for way in ways), other]


def judge(case: Case) -> Outcome:
    """Run a case, and say what it ended in."""
    table = case.spec.make()
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found = _run(table, case) if case.way == "run" else _fit(table, case)
        if table.must_refuse:
            raise Wrong("nonsense", "it must be refused")
        foreign = [w for w in given if not issubclass(w.category, LessVFLWarning)]
        if foreign and case.way == "estimator":
            raise Wrong("nonsense", f"a warning not of ours: {foreign[0].message}")
        _compare(table, found, case)
        return found
    except Wrong as wrong:
        return Outcome(wrong.verdict, str(wrong))
    except LessVFLError as error:
        return _refusal(table, str(error))
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        line = str(error).split("\n")[0]
        return Outcome("traceback", f"{type(error).__name__} at {where}: {line}")


def _refusal(table: Table, sentence: str) -> Outcome:
    """Judge an error: it must be allowed, of one line, and about the right thing."""
    if table.refusal is None:
        return Outcome("nonsense", f"it need not be refused: {sentence}")
    if "\n" in sentence.strip() or not sentence.strip().endswith((".", "?")):
        return Outcome("nonsense", f"no sentence: {sentence}")
    if not re.search(table.refusal, sentence):
        return Outcome("nonsense", f"says nothing of {table.refusal}: {sentence}")
    return Outcome("sentence", sentence)


# ---------------------------------------------------------------------------- both ways


def _run(table: Table, case: Case) -> Outcome:
    """Have the command line run a table to a folder with its page."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        path = write(table, folder)
        options = [f"{key}={value}" for key, value in METHODS[case.method].items()]
        args = ["run", str(path), "--label", LABEL, "--method", case.method]
        sizes = table.parties if isinstance(table.parties, list) else [table.parties]
        args += ["--parties", ",".join(map(str, sizes)), "--out", str(folder / "out")]
        args += ["--device", "cpu", "--json", "--quiet"]
        args += [] if table.weight is None else ["--sample-weight", WEIGHT]
        args += [word for option in options for word in ("--set", option)]
        code, out, err = command(args)
        if code == 2:
            notes = ("warning:", "The labels are ")
            lines = [
                one for one in err.splitlines() if not any(n in one for n in notes)
            ]
            said = lines[-1].removeprefix("lessvfl: ") if lines else ""
            if len(lines) != 1 or not lines[0].startswith("lessvfl: "):
                raise Wrong("nonsense", f"not one line: {err[-300:]}")
            return _raise(said)
        if code != 0:
            raise Wrong("traceback", f"exit code {code}: {err[-300:]}")
        record = strict(out)
        for line in (folder / "out" / "record.jsonl").read_text().splitlines():
            strict(line)
        check_page((folder / "out" / "report.html").read_text())
    (numbers,) = record["runs"]
    found = outcome_of(numbers)
    r2 = (numbers.get("r2") or {}).get("final")
    if r2 is not None and r2 < LOWEST_R2 and table.twin is not None:
        raise Wrong("nonsense", f"an R2 of {r2:.3g}")
    return found


def _raise(sentence: str) -> Outcome:
    raise LessVFLError(sentence)


def _fit(table: Table, case: Case) -> Outcome:
    """Fit an estimator, and use all that a fit gives."""
    kind = LessVFLClassifier if table.task == "classes" else LessVFLRegressor
    settings = METHODS[case.method]
    model = kind(method=case.method, parties=table.parties, random_state=0, **settings)
    model.fit(table.X, table.y, sample_weight=table.weight)
    strict_dump(model.run_)
    n_rows = len(table.y)
    predicted = np.asarray(model.predict(table.X))
    if predicted.shape != (n_rows,):
        raise Wrong("nonsense", f"predictions of shape {predicted.shape}")
    shown = predicted if table.task == "numbers" else model.predict_proba(table.X)
    if not np.isfinite(np.asarray(shown, dtype=float)).all():
        raise Wrong("nan", "predictions that are no numbers")
    if not np.isfinite(model.feature_importances_).all():
        raise Wrong("nan", "importances that are no numbers")
    with warnings.catch_warnings():
        if not model.support_.any():  # scikit-learn says so of every selector
            warnings.simplefilter("ignore", UserWarning)
        left = model.transform(table.X)
    if left.shape != (n_rows, int(model.support_.sum())):
        raise Wrong("nonsense", f"transformed to shape {left.shape}")
    check_page(model._repr_html_(), whole=False)
    strict_dump(model.selection_)
    return outcome_of(model.run_)


def write(table: Table, folder: Path) -> Path:
    """Write a table with its labels, and weights, to a file."""
    X = table.X.reset_index(drop=True)
    parts = [X, pd.Series(np.asarray(table.y), name=LABEL)]
    if table.weight is not None:
        parts.append(pd.Series(table.weight, name=WEIGHT))
    whole = pd.concat(parts, axis=1)
    path = folder / f"table.{table.file}"
    if table.file == "csv":
        whole.to_csv(path, index=False)
    else:
        whole.to_parquet(path, index=False)
    return path


def command(args: list[str]) -> tuple[int, str, str]:
    """Run one command in this process; return its exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["lessvfl", *args]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            app.main()
        code: Any = 0
    except SystemExit as ending:
        code = ending.code
    finally:
        sys.argv = before
    return code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()


# ------------------------------------------------------------------------ what is right


def strict(text: str) -> Any:
    """Read JSON; what is no number there is wrong."""

    def refuse(constant: str) -> None:
        raise Wrong("nan", f"{constant} in the record")

    return json.loads(text, parse_constant=refuse)


def strict_dump(values: Any) -> None:
    try:
        json.dumps(values, allow_nan=False)
    except ValueError as error:
        raise Wrong("nan", f"the record of a fit: {error}") from None


def check_page(text: str, *, whole: bool = True) -> None:
    """Refuse a page that is not whole, or shows what is no number."""
    if whole and not text.rstrip().endswith("</html>"):
        raise Wrong("nonsense", "the page is not whole")
    text = re.sub(r"(?s)<(script|style|svg).*?</\1>|base64,[\w+/=]+", "", text)
    shown = re.sub(r"<[^>]*>", " ", text)
    if re.search(r"(?<![\w'\"])(nan|inf|infinity)(?![\w'\"])", shown):
        raise Wrong("nan", "the page shows nan or inf")


def outcome_of(numbers: dict[str, Any]) -> Outcome:
    """Return what was kept."""
    features = numbers["features"].values()
    kept = frozenset(name for party in features for name in party["kept"])
    removed = [name for party in features for name in party["removed"]]
    return Outcome("right", kept=kept, names=(*kept, *removed))


def found_share(table: Table, found: Outcome) -> float:
    """Return the share of the planted features that were found."""
    hits = [bool(some & found.kept) for some in table.planted]
    return sum(hits) / len(hits)


def useless_share(table: Table, found: Outcome) -> float:
    """Return the share of the other features that were kept."""
    planted = frozenset().union(*table.planted)
    others = set(found.names) - planted
    return len(others & found.kept) / max(1, len(others))


@functools.cache
def twin_of(name: str, method: str, way: Way) -> tuple[Table, Outcome]:
    """Return a clean table, and what becomes of it."""
    spec = Spec.named(name)
    table = spec.make()
    case = Case(spec, method, way)
    run = _run if way == "run" else _fit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return table, run(table, case)


def _compare(table: Table, found: Outcome, case: Case) -> None:
    """Refuse a result in which less is found than in that of the clean twin."""
    if table.twin is None or table.twin == table.name:
        return
    clean, right = twin_of(table.twin, case.method, case.way)
    share, due = found_share(table, found), found_share(clean, right)
    if share < due - POINTS:
        kept = ", ".join(sorted(found.kept)) or "nothing"
        raise Wrong(
            "nonsense", f"found {share:.2f}, {due:.2f} of its twin; kept {kept}"
        )
    if table.honest and case.method == "less-vfl-auto":
        share, due = useless_share(table, found), useless_share(clean, right)
        if share > due + 2 * POINTS:
            raise Wrong("nonsense", f"kept {share:.2f} of the useless, not {due:.2f}")
