"""The numbers of a report: taken from records, averaged over seeds, put into words."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lessvfl import terms
from lessvfl.run.record import RunRecord

RunNumbers = Mapping[str, Any]  # one of RunRecord.runs

MISSING = "–"
METHOD_TITLES = {
    "less-vfl": "LESS-VFL",
    "less-vfl-auto": "less-vfl-auto",
    "local-lasso": "Local lasso",
    "group-lasso": "Group lasso",
    "plain": "Plain VFL",
}
MOMENTS = {
    "pretrained": "after pre-training",
    "selected": "right after selection",
    "final": "final",
    "best": "best",
}


# -- one number ------------------------------------------------------------------------


def at(value: Any, *path: str) -> Any:
    """Walk down nested mappings; None where the path ends early."""
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value


def number(value: Any, *path: str) -> float | None:
    """Return the finite number at a path of nested mappings, or None."""
    value = at(value, *path)
    if isinstance(value, int | float) and math.isfinite(value):
        return value
    return None


class SeedSpread(NamedTuple):
    """Mean and sample standard deviation over the seeds that have the number."""

    mean: float
    std: float | None
    n: int
    n_runs: int


def spread(values: Sequence[float | None]) -> SeedSpread | None:
    """Average over seeds, leaving out those without a number."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return SeedSpread(statistics.fmean(known), std, len(known), len(values))


# -- numbers as text -------------------------------------------------------------------


HUGE = 1e12  # from here on a number is written with its exponent


def _decimals(value: float) -> int:
    """Decimals that show three or four digits of a size."""
    size = abs(value)
    return 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 else 3


def _pair(mean: float, std: float | None, decimals: int) -> str:
    form = f",.{decimals}f" if abs(mean) < HUGE else ".3g"
    return f"{mean:{form}}" if std is None else f"{mean:{form}} ± {std:{form}}"


def _share(mean: float, std: float | None) -> str:
    text = f"{100 * mean:.1f} %"
    return text if std is None else f"{text} ± {100 * std:.1f}"


def _count(mean: float, std: float | None) -> str:
    whole = not std and float(mean).is_integer()
    return _pair(mean, None if whole else std, 0 if whole else 1)


KINDS: dict[str, Callable[[float, float | None], str]] = {
    "score": lambda mean, std: _pair(mean, std, 3),
    "share": _share,
    "size": lambda mean, std: _pair(mean, std, _decimals(mean)),
    "MB": lambda mean, std: KINDS["size"](mean / 1e6, std and std / 1e6),  # of bytes
    "count": _count,
    "flag": lambda mean, std: f"{100 * mean:.0f} %",
}


def spread_text(value: SeedSpread | None, kind: str) -> str:
    """Write a mean with its ±, and say so where only some seeds have the number."""
    if value is None:
        return MISSING
    text = KINDS[kind](value.mean, value.std)
    if value.n < value.n_runs:
        text += f" ({value.n} of {value.n_runs} seeds)"
    return text


def value_text(value: float | None, kind: str) -> str:
    """Write the number of one seed, with one digit more than a mean would carry."""
    if value is None:
        return MISSING
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "score":
        return f"{value:.4f}" if abs(value) < HUGE else f"{value:.4g}"
    return KINDS[kind](value, None)


plural = terms.plural


def capital(words: str) -> str:
    """Begin words with a capital, and leave the others as they are."""
    return words[:1].upper() + words[1:]


# -- features --------------------------------------------------------------------------


def is_planted(party: str, feature: str) -> bool:
    """Tell a planted column by its name, ``spurious_<party>_<i>``."""
    return re.fullmatch(rf"spurious_{re.escape(party)}_\d+", feature) is not None


class FeatureCounts(NamedTuple):
    """Features of one party or of all, real and planted, kept and removed."""

    real_kept: float
    planted_kept: float
    real_removed: float
    planted_removed: float

    @property
    def kept(self) -> float:
        """Features kept."""
        return self.real_kept + self.planted_kept

    @property
    def held(self) -> float:
        """Features held."""
        return sum(self)


def revealed(run: RunNumbers) -> dict[str, Mapping[str, Sequence[str]]]:
    """Return kept and removed features of the parties whose choice is in the record."""
    features = at(run, "features") or {}
    return {party: names for party, names in features.items() if names is not None}


def feature_counts(run: RunNumbers) -> dict[str, FeatureCounts]:
    """Count each party's features in one run."""
    by_party = {}
    for party, names in revealed(run).items():
        counts: list[int] = []
        for state in ("kept", "removed"):
            n_planted = sum(is_planted(party, name) for name in names[state])
            counts += [len(names[state]) - n_planted, n_planted]
        by_party[party] = FeatureCounts(*counts)
    return by_party


def emptied(run: RunNumbers) -> list[str]:
    """Return the parties that kept nothing, as a server knows it of any party."""
    counts = feature_counts(run)
    silent = (party for party in at(run, "silent") or () if party not in counts)
    return [*(p for p, c in counts.items() if c.held and not c.kept), *silent]


Counts = Sequence[float]


def _mean_by_party(runs: Iterable[Mapping[str, Counts]]) -> dict[str, list[float]]:
    by_party: dict[str, list[Counts]] = {}
    for run in runs:
        for party, counts in run.items():
            by_party.setdefault(party, []).append(counts)
    return {
        party: [statistics.fmean(column) for column in zip(*counts, strict=True)]
        for party, counts in by_party.items()
    }


def mean_counts(runs: Iterable[RunNumbers]) -> dict[str, FeatureCounts]:
    """Average each party's counts over the runs that have the party."""
    means = _mean_by_party(map(feature_counts, runs))
    return {party: FeatureCounts(*mean) for party, mean in means.items()}


def with_planted(counts: Iterable[FeatureCounts]) -> bool:
    """Tell whether any of these features were planted."""
    return any(one.planted_kept + one.planted_removed for one in counts)


def mean_total(runs: Iterable[RunNumbers]) -> FeatureCounts | None:
    """Average the counts of all parties over runs; None where none is revealed."""
    by_run = [counts for run in runs if (counts := feature_counts(run).values())]
    totals = [[sum(column) for column in zip(*one, strict=True)] for one in by_run]
    if not totals:
        return None
    return FeatureCounts(*map(statistics.fmean, zip(*totals, strict=True)))


class FeatureRow(NamedTuple):
    """One feature of one party: kept in how many of how many seeds."""

    party: str
    feature: str
    n_kept: int
    n_runs: int
    importance: float | None

    @property
    def state(self) -> str:
        """``kept`` in every seed, ``removed`` in every seed, or kept in ``some``."""
        if self.n_kept == self.n_runs:
            return "kept"
        return "some" if self.n_kept else "removed"


def feature_rows(runs: Sequence[RunNumbers]) -> list[FeatureRow]:
    """List every feature of every party, in the order of the record."""
    by_feature: dict[tuple[str, str], list[tuple[bool, float | None]]] = {}
    for run in runs:
        for party, names in revealed(run).items():
            for state in ("kept", "removed"):
                for feature in names[state]:
                    norm = number(run, "importance", party, feature)
                    seeds = by_feature.setdefault((party, feature), [])
                    seeds.append((state == "kept", norm))
    rows = []
    for (party, feature), seeds in by_feature.items():
        n_kept, norms = sum(kept for kept, _ in seeds), spread([n for _, n in seeds])
        mean = norms.mean if norms else None
        rows.append(FeatureRow(party, feature, n_kept, len(seeds), mean))
    parties = list(dict.fromkeys(row.party for row in rows))
    return sorted(rows, key=lambda row: (parties.index(row.party), -row.n_kept))


# -- components and communication ------------------------------------------------------


def are_trees(runs: Sequence[RunNumbers]) -> bool:
    """Tell whether runs have trees in the place of networks, whose components split."""
    return any(value_at(run, "trees.count") is not None for run in runs)


def components(run: RunNumbers) -> dict[str, Counts]:
    """Return (kept, of) of each party's embedding components, or splits, in a run."""
    if splits := at(run, "trees", "splits"):
        return {party: (n, n) for party, n in splits.items()}
    by_party = (at(run, "components") or {}).items()
    return {p: (n["kept"], n["of"]) for p, n in by_party if _is_known(n)}


def _is_known(value: Any) -> bool:
    """Tell whether there is a value, and nothing missing in it."""
    return None not in (value.values() if isinstance(value, Mapping) else [value])


def component_counts(runs: Iterable[RunNumbers]) -> dict[str, list[float]]:
    """Average [kept, of] of each party's embedding components over runs."""
    return _mean_by_party(map(components, runs))


def value_at(value: Any, path: str) -> float | None:
    """Return the finite number at a dotted path of a run.

    ``*`` adds up what is known below it, and a list counts for its length.
    """
    if not path:
        return len(value) if isinstance(value, list) else number(value)
    first, _, rest = path.partition(".")
    if first != "*":
        return value_at(at(value, first), rest)
    below = (value_at(one, rest) for one in (value or {}).values() if _is_known(one))
    known = [one for one in below if one is not None]
    return sum(known) if known else None


def over_seeds(runs: Sequence[RunNumbers], path: str) -> SeedSpread | None:
    """Average the number at a dotted path over runs."""
    return spread([value_at(run, path) for run in runs])


def in_order(stages: set[str]) -> list[str]:
    """Put stages into the order of a run."""
    known = [stage for stage in terms.STAGE_TEXTS if stage in stages]
    return known + sorted(stages - set(known))


def stages_billed(runs: Sequence[RunNumbers]) -> list[str]:
    """List the stages of the bills of these runs, in the order of a run."""
    bills = (at(run, "communication", "by_stage") or {} for run in runs)
    return in_order({stage for bill in bills for stage in bill})


def stage_title(stage: str, *, billed: bool = False) -> str:
    """Name a stage in words; in a bill, evaluation says that it is not in the cost."""
    title = terms.stage_text(stage)
    return f"{title} (not in the cost)" if billed and stage == "evaluate" else title


# -- whole records ---------------------------------------------------------------------


def is_regression(record: RunRecord) -> bool:
    """Tell whether the score of a record is R² rather than accuracy."""
    n_classes = at(record.header, "data", "n_classes")
    return is_scored(record, "r2") or n_classes is None or n_classes < 2


def is_scored(record: RunRecord, *scores: str) -> bool:
    """Tell whether any seed has one of these scores."""
    paths = [(score, moment) for score in scores for moment in MOMENTS]
    return any(number(run, *p) is not None for run in record.runs for p in paths)


def first_score(record: RunRecord) -> tuple[str, str]:
    """Return the name of the score that leads, and its word."""
    usual = "r2" if is_regression(record) else "accuracy"
    name = at(record.header, "data", "score") or leading(record.runs) or usual
    return name, score_word(name)


def leading(runs: Sequence[RunNumbers]) -> str | None:
    """Return the score that leads runs, where they say it."""
    return next((run["score"] for run in runs if run.get("score")), None)


def score_word(name: str) -> str:
    """Return what a reader calls a score."""
    return terms.SCORE_TEXTS.get(name, name)


def shared_score(records: Sequence[RunRecord]) -> tuple[str, str] | None:
    """Return one score that all records have, as leading as can be."""
    leads = [first_score(record)[0] for record in records]
    order = sorted(leads, key=lambda name: name == "accuracy")  # the usual one last
    for name in dict.fromkeys([*order, *terms.SCORE_TEXTS]):
        if all(over_seeds(record.runs, f"{name}.final") for record in records):
            return name, score_word(name)
    return None


def missed(record: RunRecord) -> dict[str, list[float]]:
    """Return by party the mean score without it and of all, the most missed first.

    Both are of test rows, or of training rows where there are no others.
    """
    name, _ = first_score(record)
    by_run = []
    for run in record.runs:
        whole = number(run, name, "final")
        if whole is None:  # no test rows
            whole = number((at(run, "curve") or [{}])[-1], f"train_{name}")
        scores = {p: number(run, "without", p, name) for p in at(run, "without") or {}}
        by_run.append(
            {
                party: (score, whole)
                for party, score in scores.items()
                if score is not None and whole is not None
            }
        )
    means = _mean_by_party(by_run)
    return dict(sorted(means.items(), key=lambda item: item[1][0] - item[1][1]))


def n_folds(record: RunRecord) -> int:
    """Return into how many folds the rows of a record were divided, 1 for none."""
    return int(number(record.header, "config", "folds") or 1)


def runs_words(record: RunRecord) -> str:
    """Say how many runs a record has: seeds, or folds of seeds."""
    n_runs, folds = len(record.runs), n_folds(record)
    if folds == 1:
        return plural(n_runs, "seed")
    seeds = {run["seed"] // folds for run in record.runs}
    of_seeds = f" of {len(seeds)} seeds" if len(seeds) > 1 else ""
    return plural(n_runs, "fold") + of_seeds


def settings_in_use(record: RunRecord) -> dict[str, Any]:
    """Return the settings of a record, and as `split` what really split the rows.

    Nobody tells a party.
    """
    settings = dict(record.header.get("config") or {})
    if "split" in settings:
        settings["split"] = at(record.header, "data", "split") or settings["split"]
    if record.side == "party":
        settings.pop("split", None)
    return settings


def method_title(method: Any) -> str:
    """Name a method as a reader knows it."""
    return METHOD_TITLES.get(str(method), str(method))


SUMMARY = {  # label: where in a run, and the kind of number
    "features kept": ("features.*.kept", "count"),
    **{
        words.column: (f"{name}.final", "score") for name, words in terms.SCORES.items()
    },
    "accuracy of always the most frequent": ("baseline.accuracy", "score"),
    "spurious removed": ("spurious.removed_share", "share"),
    "real kept": ("spurious.real_kept_share", "share"),
    "trees": ("trees.count", "count"),
    "splits": ("trees.splits.*", "count"),
    "MB both ways": ("communication.payload_bytes.*", "MB"),
    "paper MiB": ("communication.paper_mib", "size"),
    "paper MiB to target": ("target.paper_mib", "size"),
    "rounds": ("communication.rounds", "count"),
    "seconds": ("seconds.total", "size"),
}


def summary(record: RunRecord) -> dict[str, str]:
    """Return the key numbers of a record by label; what no seed has is left out.

    The leading score is the first of them.
    """
    texts = {}
    lead, _ = first_score(record)
    rows = sorted(SUMMARY.items(), key=lambda row: row[1][0] != f"{lead}.final")
    has_trees = are_trees(record.runs)
    for label, (path, kind) in rows:
        if has_trees and path == "communication.paper_mib":
            continue  # it counts embeddings of training
        if mean := over_seeds(record.runs, path):
            texts[label] = spread_text(mean, kind)
    if held := over_seeds(record.runs, "features.*.*"):
        texts["features kept"] += f" of {_count(held.mean, None)}"
    return texts


def summary_rows(records: Sequence[RunRecord]) -> tuple[list[str], list[list[str]]]:
    """Put records into one table: its columns, as far as any has numbers, and rows."""
    summaries = [summary(record) for record in records]
    known = {label for texts in summaries for label in texts}
    if any("target" in run for record in records for run in record.runs):
        known.add("paper MiB to target")
    features, *others = SUMMARY  # beside the bytes that they saved
    place = others.index("MB both ways")
    order = [*others[:place], features, *others[place:]]
    if lead := shared_score(records):
        order.sort(key=lambda label: SUMMARY[label][0] != f"{lead[0]}.final")
    labels = [label for label in order if label in known]
    rows = []
    for record, texts in zip(records, summaries, strict=True):
        header, n_runs = record.header, str(len(record.runs))
        broken = "" if record.status == "complete" else f" ({record.status})"
        rows.append(
            [
                f"{header.get('method')}{broken}",
                str(at(header, "data", "name")),
                str(header.get("profile") or MISSING),
                n_runs if n_folds(record) == 1 else runs_words(record),
                *(texts.get(label, MISSING) for label in labels),
            ]
        )
    return ["method", "data", "profile", "seeds", *labels], rows
