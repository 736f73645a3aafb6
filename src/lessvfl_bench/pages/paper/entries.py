"""The entries of a benchmark: our numbers beside the paper's, judged, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lessvfl.report.tables import MISSING, at, number, plural

CLOSE_PERCENT = 25.0
HALF_DIGIT = 0.005  # the paper prints two decimals

NumberKind = Literal["mib", "percent", "share", "score"]
DECIMALS: dict[NumberKind, int] = {"mib": 2, "percent": 2, "share": 1, "score": 3}
MEASURES: dict[str, tuple[str, NumberKind]] = {
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
    "train_accuracy_percent": ("Accuracy (%)", "percent"),
    "removed_percent": ("Removed (%)", "percent"),
    "train_balanced_accuracy_percent": ("Balanced accuracy (%)", "percent"),
}
PARTS = ("pretrain_mib", "post_mib", "total_mib")
MEASURES |= {f"{part}_balanced": MEASURES[part] for part in PARTS}

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
    "unsupported": ("u", "No feature kept: the number of hits without any feature"),
    "diverged": ("x", "Diverged: the number of seeds whose training diverged"),
}
CHOICES = {
    "published": "Settings as published",
    "training accuracy": "Settings chosen by training accuracy",
    "validation accuracy": "Settings chosen by validation accuracy",
}


@dataclass(frozen=True)
class ComparedNumber:
    """One number of ours with the paper's beside it; both may be missing."""

    path: str  # its place in the results, as in tables.2.0
    data: str
    title: str  # the paper's name of the data
    same: bool | None  # the paper's data, a stand-in, or none at all
    origin: str | None  # the file or the catalogue that our data came from
    method: str
    measure: str
    kind: NumberKind  # how it is written
    settings: Mapping[str, Any]
    paper: Mapping[str, Any] | None
    printed: float | None  # the paper's mean
    ours: Mapping[str, Any] | None
    mean: float | None  # ours, over the hits
    seeds: Sequence[Any]  # of the benchmark

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
        std = number(self.paper, "std")
        if std is not None and abs(self.difference) <= 2 * std + HALF_DIGIT:
            return "within"
        most = CLOSE_PERCENT / 100 * abs(self.printed) + HALF_DIGIT
        return "close" if abs(self.difference) <= most else "off"

    @property
    def marks(self) -> dict[str, tuple[str, str]]:
        """What to know about our number by the names in MARKS: a sign, and words."""
        hits, seeds = self.count("hits"), self.count("seeds")
        found = {}
        if self.missed:
            words = f"{hits} of {plural(seeds, 'seed')}; {self.missed} missed"
            found["missed"] = (f"{hits}/{seeds}", words)
        if self.count("degenerate"):
            found["degenerate"] = ("d", "target ≤ majority")
        if n := self.count("unsupported"):
            found["unsupported"] = (f"u{n}", f"no feature kept in {n}")
        if n := self.count("diverged"):
            found["diverged"] = (f"x{n}", f"{n} diverged")
        return found


def read(results: Mapping[str, Any]) -> dict[str, list[ComparedNumber]]:
    """Return the entries of every table, in the order of the tables' numbers."""
    facts = {fact["name"]: fact for fact in results.get("data") or []}
    tables, seeds = results.get("tables") or {}, results.get("seeds") or []
    return {
        table: [
            ComparedNumber(
                path=f"tables.{table}.{i}",
                data=entry["data"],
                title=data_title(facts.get(entry["data"]), entry["data"]),
                same=at(facts.get(entry["data"]), "same"),
                origin=at(facts.get(entry["data"]), "origin"),
                method=entry["method"],
                measure=entry["measure"],
                kind=MEASURES.get(entry["measure"], ("", "score"))[1],
                settings=entry.get("settings") or {},
                paper=entry.get("paper"),
                printed=number(entry, "paper", "mean"),
                ours=entry.get("ours"),
                mean=number(entry, "ours", "mean"),
                seeds=seeds,
            )
            for i, entry in enumerate(tables[table])
        ]
        for table in sorted(tables, key=lambda name: (len(name), name))
    }


def data_title(fact: Mapping[str, Any] | None, name: str) -> str:
    """Return the paper's name of a data set, or ours."""
    return str(at(fact, "paper_name") or name)


def stand_in_title(title: str, same: bool | None) -> str:
    """Return the name of a data set; a stand-in for the paper's says so."""
    return f"{title} ({STAND_IN})" if same is False else title


def origins_text(numbers: Iterable[ComparedNumber]) -> str:
    """Say which file or catalogue the data of a table came from; all in one line."""
    found = {one.data: one for one in numbers if one.origin and one.ours is not None}
    parts = (
        f"{stand_in_title(one.title, one.same)}: {one.origin}" for one in found.values()
    )
    return f"Data: {'; '.join(parts)}." if found else ""


def value_text(value: float | None, kind: NumberKind, sign: str = "") -> str:
    """Write a number without its ±, never as a negative zero."""
    if value is None:
        return MISSING
    scale, unit = (100, " %") if kind == "share" else (1, "")
    decimals = DECIMALS[kind]
    return f"{round(scale * value, decimals) + 0.0:{sign},.{decimals}f}{unit}"


def pair_text(pair: Mapping[str, Any] | None, kind: NumberKind) -> str:
    """Write a mean with its ±, with the decimals of the paper."""
    mean, std = number(pair, "mean"), number(pair, "std")
    text = value_text(mean, kind)
    if mean is None or std is None:
        return text
    return f"{text} ± {value_text(std, kind).removesuffix(' %')}"


def ours_text(entry: ComparedNumber) -> str:
    """Write our number, or why there is none."""
    if entry.ours is None:
        return NOT_AVAILABLE
    if entry.mean is None:
        return "no mean" if entry.count("hits") else "missed"
    return pair_text(entry.ours, entry.kind)


def difference_text(entry: ComparedNumber) -> str:
    """Write the difference, and what it is in per cent of the paper's number."""
    text = value_text(entry.difference, entry.kind, "+")
    if entry.percent is None:
        return text
    return f"{text} ({round(entry.percent, 1) + 0.0:+,.1f} %)"


def measure_title(measure: str) -> str:
    """Name a measure with its unit."""
    return MEASURES.get(measure, (measure.replace("_", " "),))[0]


def setting_text(name: str, value: Any) -> str:
    """Write one setting in words."""
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


def settings_text(
    entry: ComparedNumber, names: Iterable[str], joint: str = ", "
) -> str:
    """Write those of these settings that an entry has."""
    known = (name for name in names if entry.settings.get(name) is not None)
    return joint.join(setting_text(name, entry.settings[name]) for name in known)


def by_seed(entry: ComparedNumber) -> list[tuple[str, str, str]]:
    """Return (seed, number, record) of every seed."""
    values = at(entry.ours, "by_seed") or []
    records = at(entry.ours, "records") or []
    names = entry.seeds if len(entry.seeds) == len(values) else range(len(values))
    rows = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        finite = number(value)
        text = "missed" if finite is None else value_text(finite, entry.kind)
        rows.append((str(name), text, str(records[i]) if i < len(records) else MISSING))
    return rows


def pointers(records: Sequence[Any]) -> str:
    """Write the records of an entry, each file once."""
    files: dict[str, list[str]] = {}
    for record in records:
        name, mark, place = str(record).partition("#")
        files.setdefault(name, []).append(mark + place)
    return ", ".join(" ".join([name, *marks]).strip() for name, marks in files.items())
