"""The entries of a benchmark: our numbers beside the paper's, judged and put in words.

Nothing here computes a result: a number is one of the benchmark, the paper's, or the
difference of the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lessvfl.report.tables import METHOD_TITLES, MISSING, at, number, plural

CLOSE_PERCENT = 25.0
HALF_DIGIT = 0.005  # the paper prints two decimals

Kind = Literal["mib", "percent", "share", "score"]
MEASURES: dict[str, tuple[str, Kind]] = {
    "cost_mib": ("Cost (MiB)", "mib"),
    "cost_mib_balanced": ("Cost (MiB), target by balanced accuracy", "mib"),
    "payload_mib": ("Payload both ways (MiB)", "mib"),
    "payload_mib_balanced": (
        "Payload both ways (MiB), target by balanced accuracy",
        "mib",
    ),
    "removed_share": ("Spurious features removed", "share"),
    "real_kept_share": ("Real features kept", "share"),
    "accuracy": ("Test accuracy", "score"),
    "balanced_accuracy": ("Balanced test accuracy", "score"),
    "pretrain_mib": ("Pre-train (MiB)", "mib"),
    "post_mib": ("Post-FS (MiB)", "mib"),
    "total_mib": ("Total (MiB)", "mib"),
    "pretrain_mib_balanced": ("Pre-train (MiB)", "mib"),
    "post_mib_balanced": ("Post-FS (MiB)", "mib"),
    "total_mib_balanced": ("Total (MiB)", "mib"),
    "train_accuracy_percent": ("Accuracy (%)", "percent"),
    "removed_percent": ("Removed (%)", "percent"),
    "train_balanced_accuracy_percent": ("Balanced accuracy (%)", "percent"),
}

Verdict = Literal["within", "close", "off", "missed", "stand-in", "absent"]
VERDICTS: dict[Verdict, str] = {
    "within": "within 2 std",
    "close": "within 25 %",
    "off": "further off",
    "missed": "some seed missed",
    "stand-in": "other data",
    "absent": "data not available",
}
NOT_AVAILABLE = VERDICTS["absent"]
STAND_IN = "not the paper's data"
MARKS = {  # its sign where room is short, and the sentence that explains it
    "missed": (
        "h/n",
        "Missed: only h of n seeds reached the target; the mean is theirs",
    ),
    "degenerate": (
        "d",
        "Target ≤ majority: always guessing the majority class reaches it",
    ),
    "unsupported": ("u", "No feature kept: so many hits were made without any feature"),
    "diverged": ("x", "Diverged: in so many seeds the training did"),
}
CHOICES = {
    "published": "Settings as published",
    "training accuracy": "Settings chosen by training accuracy",
    "validation accuracy": "Settings chosen by validation accuracy",
}


# -- one entry -------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One number of ours with the paper's beside it; both may be missing."""

    path: str  # its place in the results, as in tables.2.0
    data: str
    title: str  # the paper's name of the data
    same: bool | None  # the paper's data, a stand-in, or none at all
    method: str
    measure: str
    settings: Mapping[str, Any]
    paper: Mapping[str, Any] | None
    ours: Mapping[str, Any] | None

    @property
    def kind(self) -> Kind:
        """How the number is written."""
        return MEASURES[self.measure][1] if self.measure in MEASURES else "score"

    @property
    def mean(self) -> float | None:
        """Our mean over the hits."""
        return number({"ours": self.ours}, "ours", "mean")

    @property
    def printed(self) -> float | None:
        """The paper's mean."""
        return number({"paper": self.paper}, "paper", "mean")

    def count(self, name: str) -> int:
        """Return one of our counts of seeds; 0 where it is missing."""
        return int(at(self.ours, name) or 0)

    @property
    def missed(self) -> int:
        """Seeds that did not reach the target."""
        return self.count("seeds") - self.count("hits")

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.mean is None or self.printed is None:
            return None
        return self.mean - self.printed

    @property
    def percent(self) -> float | None:
        """The difference in per cent of the paper's number."""
        if self.difference is None or not self.printed:
            return None
        return 100 * self.difference / self.printed

    @property
    def verdict(self) -> Verdict | None:
        """How ours compares with the paper's; None where it prints no number.

        A number over some of the seeds, or over other data, is compared with nothing.
        """
        if self.printed is None:
            return None
        if self.ours is None:
            return "absent"
        if self.same is False:
            return "stand-in"
        if self.difference is None or self.missed:
            return "missed"
        std = number({"paper": self.paper}, "paper", "std")
        if std is not None and abs(self.difference) <= 2 * std + HALF_DIGIT:
            return "within"
        most = CLOSE_PERCENT / 100 * abs(self.printed) + HALF_DIGIT
        return "close" if abs(self.difference) <= most else "off"

    @property
    def marks(self) -> dict[str, str]:
        """What to know about our number, by the names in MARKS."""
        if self.ours is None:
            return {}
        found = {}
        if self.missed:
            seeds = plural(self.count("seeds"), "seed")
            found["missed"] = f"{self.count('hits')} of {seeds}; {self.missed} missed"
        if at(self.ours, "degenerate"):
            found["degenerate"] = "target ≤ majority"
        if n := self.count("unsupported"):
            found["unsupported"] = f"no feature kept in {n}"
        if n := self.count("diverged"):
            found["diverged"] = f"{n} diverged"
        return found

    @property
    def signs(self) -> str:
        """The same where room is short."""
        full = {
            "missed": f"{self.count('hits')}/{self.count('seeds')}",
            "degenerate": "d",
            "unsupported": f"u{self.count('unsupported')}",
            "diverged": f"x{self.count('diverged')}",
        }
        return ",".join(full[mark] for mark in self.marks)


def read(results: Mapping[str, Any]) -> dict[str, list[Entry]]:
    """Return the entries of every table, in the order of the tables' numbers."""
    facts = {fact["name"]: fact for fact in results.get("data") or []}
    tables = results.get("tables") or {}
    return {
        table: [
            Entry(
                path=f"tables.{table}.{i}",
                data=entry["data"],
                title=data_title(facts.get(entry["data"]), entry["data"]),
                same=at(facts.get(entry["data"]), "same"),
                method=entry["method"],
                measure=entry["measure"],
                settings=entry.get("settings") or {},
                paper=entry.get("paper"),
                ours=entry.get("ours"),
            )
            for i, entry in enumerate(tables[table])
        ]
        for table in sorted(tables, key=lambda name: (len(name), name))
    }


def data_title(fact: Mapping[str, Any] | None, name: str) -> str:
    """Return the paper's name of a data set, or ours."""
    return str(at(fact, "paper_name") or name)


# -- numbers as text -------------------------------------------------------------------


def _plain(value: float, decimals: int, sign: str = "") -> str:
    """Write a number, never as a negative zero."""
    return f"{round(value, decimals) + 0.0:{sign},.{decimals}f}"


def value_text(value: float | None, kind: Kind) -> str:
    """Write a number without its ±.

    >>> value_text(3.987, "mib"), value_text(0.9333, "share"), value_text(None, "mib")
    ('3.99', '93.3 %', '–')
    """
    if value is None:
        return MISSING
    if kind == "share":
        return f"{_plain(100 * value, 1)} %"
    return _plain(value, 3 if kind == "score" else 2)


def pair_text(pair: Mapping[str, Any] | None, kind: Kind) -> str:
    """Write a mean with its ±, with the decimals of the paper.

    >>> pair_text({"mean": 3.99, "std": 0.75}, "mib")
    '3.99 ± 0.75'
    """
    mean = number({"pair": pair}, "pair", "mean")
    std = number({"pair": pair}, "pair", "std")
    text = value_text(mean, kind)
    if mean is None or std is None:
        return text
    return f"{text} ± {value_text(std, kind).removesuffix(' %')}"


def ours_text(entry: Entry) -> str:
    """Write our number, or why there is none."""
    if entry.ours is None:
        return NOT_AVAILABLE
    if entry.mean is None:
        return "no mean" if entry.count("hits") else "missed"
    return pair_text(entry.ours, entry.kind)


def difference_text(entry: Entry) -> str:
    """Write the difference, and what it is in per cent of the paper's number."""
    if entry.difference is None:
        return MISSING
    if entry.kind == "share":
        text = f"{_plain(100 * entry.difference, 1, '+')} %"
    else:
        decimals = 3 if entry.kind == "score" else 2
        text = _plain(entry.difference, decimals, "+")
    if entry.percent is None:
        return text
    return f"{text} ({_plain(entry.percent, 1, '+')} %)"


def method_title(method: str) -> str:
    """Name a method as the paper does."""
    return METHOD_TITLES.get(method, method)


def measure_title(measure: str) -> str:
    """Name a measure with its unit."""
    known = MEASURES.get(measure)
    return known[0] if known else measure.replace("_", " ")


def setting_text(name: str, value: Any) -> str:
    """Write one setting in words.

    >>> setting_text("pretrain_epochs", 1), setting_text("lam_party", 0.1)
    ('1 epoch of pre-training', 'λ_m 0.1')
    >>> setting_text("spurious", [0.8, 0.25])
    'spurious features by party: 80 %, 25 %'
    """
    if name == "choice":
        return CHOICES.get(value, f"Settings: {value}")
    if name == "pretrain_epochs" and isinstance(value, int | float):
        return f"{plural(value, 'epoch')} of pre-training"
    if name == "spurious" and isinstance(value, list | tuple):
        shares = ", ".join(f"{100 * share:g} %" for share in value)
        return f"spurious features by party: {shares}"
    if name == "spurious" and isinstance(value, int | float):
        return f"{100 * value:g} % spurious features"
    names = {"lam_party": "λ_m", "lam_server": "λ_s"}
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{names.get(name, name.replace('_', ' '))} {text}"


def by_seed(entry: Entry, seeds: Sequence[Any]) -> list[tuple[str, str, str]]:
    """Return (seed, number, record) of every seed."""
    values = at(entry.ours, "by_seed") or []
    records = at(entry.ours, "records") or []
    names = seeds if len(seeds) == len(values) else range(len(values))
    rows = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        finite = number({"value": value}, "value")
        text = "missed" if finite is None else value_text(finite, entry.kind)
        rows.append((str(name), text, str(records[i]) if i < len(records) else MISSING))
    return rows


def pointers(records: Sequence[Any]) -> str:
    """Write the records of an entry, each file once.

    >>> pointers(["records/a.npz#1", "records/a.npz#2", "records/b.npz#1"])
    'records/a.npz #1 #2, records/b.npz #1'
    """
    files: dict[str, list[str]] = {}
    for record in records:
        name, mark, place = str(record).partition("#")
        files.setdefault(name, []).append(mark + place)
    return ", ".join(" ".join([name, *marks]).strip() for name, marks in files.items())
