"""The page of a party's operator: what the model does without, and what was sent.

A party's record has its own columns alone and no score. What was revealed is derived
from it: the settings, the bill, and what ``reveal`` and ``align`` allowed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lessvfl import terms
from lessvfl.report import page, parts, privacy, sentences, tables
from lessvfl.report.effects import effect_card
from lessvfl.report.ratings import rating_card
from lessvfl.report.tables import at, number, plural
from lessvfl.report.verdicts import (
    FEATURES_NAME,
    NEEDED,
    NOT_NEEDED,
    NOT_NEEDED_SCOPE,
    REMOVED,
    UNDECIDED,
    dwarfing,
    power_words,
    reasons,
    verdicts,
)
from lessvfl.run.record import RunRecord, alike_words

BITS = {"float32": 32, "float64": 64}  # of a value that is not rounded
ALIGNED = {  # what the server learnt from the alignment of rows
    "psi": "which of its own ids you hold, and your number of rows, rounded up to a "
    "multiple of 256",
    "plain": "a digest of each of your ids, which of its own ids you hold, and your "
    "number of rows, rounded up to a multiple of 256",
    "none": "your number of rows, and whether your ids are its own",
}


def headline(record: RunRecord) -> str:
    """Say in one sentence how many columns can go, and why."""
    features = verdicts(record)
    if not features:
        return sentences.headline(record)
    n_held, counts = len(features), Counter(one.verdict for one in features)
    gone = [one for one in features if one.verdict in (NOT_NEEDED, REMOVED)]
    if record.header.get("method") == "plain":
        title = tables.method_title("plain")
        return f"{title} removes nothing: it used {_of_yours(n_held, n_held)}"
    if counts[NEEDED] == n_held:
        return f"Go on collecting {_of_yours(n_held, n_held)}: nothing was removed"
    n_open = counts[UNDECIDED]
    if n_open == n_held:
        return f"Undecided: {_of_yours(n_held, n_held)}"
    open_ = f"{n_open:,} {'is' if n_open == 1 else 'are'} undecided"
    if not gone:
        return f"The model needs {_of_yours(counts[NEEDED], n_held)}; {open_}"
    some, why = _of_yours(len(gone), n_held), reasons(gone)
    rest = f"; {open_}" if n_open else ""
    if gone[0].verdict == REMOVED:
        some += " (nothing bounds their effects)"
        return f"Removed from this model: {some}: {why}{rest}"
    return f"Not needed by this model: {some} ({NOT_NEEDED_SCOPE}): {why}{rest}"


def _of_yours(n: int, n_held: int) -> str:
    """Write how many of a party's features are meant."""
    if n < n_held:
        return f"{n:,} of your {n_held:,} features"
    few = {1: "your only feature", 2: "both of your features"}
    return few.get(n, f"all your {n:,} features")


def cautions(record: RunRecord) -> list[str]:
    """Say what to bear in mind before a column is given up."""
    party, n_runs = str(record.header.get("party")), len(record.runs)
    features = verdicts(record)
    n_kept = sum(one.is_kept for one in features)
    cautions = []
    if not n_kept:
        cautions.append("Nothing was kept, so the model does without your columns.")
    if power := power_words(record, party):
        cautions.append(power)
    if any(one.verdict == UNDECIDED for one in features):
        cautions.append(
            "Undecided is what may well have more than that effect, or has signs of a "
            "curve or a pair, though it was removed, and what some runs keep and "
            "others do not: go on collecting it until there are more rows."
        )
    if any(one.why == "most" for one in features):
        cautions.append(
            "What is stronger than chance was left out where no more features were "
            "allowed: a larger 'most' keeps more."
        )
    shares = [number(run, "selection", party, "false_share") for run in record.runs]
    if (false := tables.spread(shares)) and n_kept:
        cautions.append(
            f"About {100 * false.mean:.0f} % of what was kept may be useless "
            f"({false.mean * n_kept:.1f} of {plural(n_kept, 'feature')}). In this "
            "estimate scrambled copies of your columns stand for useless ones; columns "
            f"that matter only through others are not counted. {sentences.UNNAMED}"
        )
    of_runs = [at(run, "selection", party) for run in record.runs]
    if words := alike_words("yours", of_runs):
        cautions.append(words)
    if any(0 < one.n_kept < one.n_runs for one in features):
        cautions.append(
            "A feature counts as kept if at least half of the runs kept it. The "
            "network of each seed needs the features that its own run kept."
        )
    if n_runs == 1:
        cautions.append(
            "This comes from one run; run more seeds to see how stable the choice is."
        )
    cautions.append(
        "This holds for these labels and these parties. Columns that matter only "
        "together with another party's cannot be seen by either."
    )
    return cautions


# -- what was sent and revealed --------------------------------------------------------


class Sent(NamedTuple):
    """Payload bytes of one stage, all runs together."""

    title: str
    up: float
    down: float
    rounds: float


def sent(record: RunRecord) -> list[Sent]:
    """List the bytes to and from the server by stage, and all of them last."""
    rows = []
    for stage in tables.stages_billed(record.runs):
        bills = [at(run, "communication", "by_stage", stage) for run in record.runs]
        sums = (sum(number(b, key) or 0 for b in bills) for key in Sent._fields[1:])
        rows.append(Sent(tables.stage_title(stage), *sums))
    total = (sum(column) for column in zip(*(row[1:] for row in rows), strict=True))
    return [*rows, Sent("all stages", *total)] if rows else []


def revealed(
    record: RunRecord, since: Mapping[str, Any] | None = None
) -> list[tuple[str, str]]:
    """List who learnt what of this party: to whom, what.

    `since` is what its journal says of predictions (``run.record.read_journal``).
    """
    if not record.runs:
        return []
    to_server = list(_of_run(record))
    if since and since.get("requests"):
        requests, rows = (plural(since[k], k[:-1]) for k in ("requests", "rows"))
        to_server.append(
            f"to predict: embeddings of {rows} in {requests}, the last on "
            f"{str(since['last'])[:10]}"
        )
    if since and (n_explained := since.get("told")):
        to_server.append(
            "to explain: the features that added most to the prediction of "
            f"{plural(n_explained, 'row')}, and what they added"
        )
    return [
        *(("the server", what) for what in to_server),
        ("other parties", "nothing from you; the server tells them your name"),
    ]


def _of_run(record: RunRecord) -> Iterator[str]:
    """Yield what the server learnt, in the order of a run."""
    header, party = record.header, str(record.header.get("party"))
    if (how := ALIGNED.get(str(header.get("align")))) is not None:
        yield f"by the alignment: {how}"
    yield from _embeddings(record, party)
    answers = _paid(record, "answer")
    if n_bytes := sum(answers.values()):
        what = f"answers in its own protocol, {terms.bytes_text(n_bytes)}"
        yield f"to the method's selection: {what} (docs/rivals.md)"
    empty = [not tables.revealed(run)[party]["kept"] for run in record.runs]
    if any(empty):
        n_empty = f" in {sum(empty)} of {len(empty)} runs" if len(empty) > 1 else ""
        yield f"that none of your features was kept{n_empty}"
    match header.get("reveal"):
        case "features":
            yield "the names of the features kept and removed in every run"
        case "counts":
            yield "how many features were kept and removed in every run"
        case _:
            yield "of the selection: nothing" + " else" * (any(empty) or any(answers))
    yield "your name, versions, kind of device, and a digest of your network"


def _embeddings(record: RunRecord, party: str) -> Iterator[str]:
    """Yield which embeddings were sent what for, in how many bits, and their bytes."""
    first, config = record.runs[0], record.header.get("config") or {}
    paid = Counter[str]()
    for stage, n_bytes in _paid(record, "embedding").items():
        paid[stage if stage in ("embed", "evaluate") else "train"] += n_bytes
    n_train, n_test = (int(number(first, "rows", r) or 0) for r in ("train", "test"))
    exact = BITS.get(str(config.get("dtype")), 32)
    bits = exact if config.get("bits", 32) >= 32 else config["bits"]
    components = [tables.components(run)[party] for run in record.runs]
    n_first, last = int(components[0][1]), sorted({int(kept) for kept, _ in components})
    width = f"{plural(n_first, 'number')} a row"
    if last != [n_first]:
        most = f" to {last[-1]}" if len(last) > 1 else ""
        width += f" at first and {last[0]}{most} in the end"
    n_chosen = min(config.get("server_rows") or n_train, n_train)
    scored = at(first, "shown", "scored") or {"train": 32, "test": 32}
    counts = {"train": (n_train, "training row"), "test": (n_test, "test row")}
    to_score = " and ".join(
        plural(*counts[rows]) for rows in counts if rows in scored and counts[rows][0]
    )
    score_bits = exact if max(scored.values()) >= 32 else max(scored.values())
    together = f" in {len(record.runs)} runs" if len(record.runs) > 1 else ""
    to_train = f"{plural(n_train, 'training row')}, {width}"
    to_choose = plural(n_chosen, "training row")
    for stage, title, rows, n_bits in (
        ("train", "to train", to_train, bits),
        ("embed", "to choose components", to_choose, bits),
        ("evaluate", "to score the model", to_score, score_bits),
    ):
        if n_bytes := paid[stage]:
            size = f"{n_bits} bits a number, {terms.bytes_text(n_bytes)}{together}"
            yield f"{title}: embeddings of {rows}, {size}"
    shown = [number(run, "shown", "values") for run in record.runs]
    n_columns = at(first, "shown", "columns")
    if (values := tables.spread(shown)) and n_columns:
        n_values = len(shown) * values.mean
        yield f"in all {n_values:.0f} values about a row of {n_columns} encoded columns"
    noise = at(first, "privacy", "columns", party) or {}
    if (epsilon := noise.get("epsilon")) is not None:
        yield (
            f"all of these with noise: epsilon {epsilon:.3g} of a row in this run "
            f"(delta {noise['delta']:g})"
        )


def _paid(record: RunRecord, kind: str) -> Counter[str]:
    """Return the bytes of one kind of message in all runs, by stage."""
    paid = Counter[str]()
    for run in record.runs:
        for line in run.get("bill") or []:
            if line["kind"] == kind:
                paid[line["stage"]] += line["payload_bytes"]
    return paid


# -- the page --------------------------------------------------------------------------


def operator_page(
    record: RunRecord,
    since: Mapping[str, Any] | None = None,
    effects: Mapping[str, Any] | None = None,
) -> str:
    """Return the page of a party's record, and predictions since, as one document."""
    header, features = record.header, verdicts(record)
    names = (NOT_NEEDED, NEEDED, UNDECIDED, REMOVED)
    lists = {name: [one for one in features if one.verdict == name] for name in names}
    line = [str(header.get("party")), tables.method_title(header.get("method"))]
    if (n_others := len(header.get("parties") or []) - 1) > 0:
        line.append(f"with {plural(n_others, 'other party', 'other parties')}")
    if (n_rows := (header.get("data") or {}).get("n_train")) is not None:
        line.append(plural(n_rows, "training row"))
    line.append(plural(len(record.runs), "seed"))
    if started := header.get("started"):
        line.append(str(started)[:10])
    return parts.page(
        "operator.html.j2",
        title=headline(record),
        line=line,
        banner=page.banner(record),
        lists=lists if features else {},
        scope=NOT_NEEDED_SCOPE,
        cautions=[*dwarfing(record), *cautions(record)] if features else [],
        rating=rating_card(record),
        effects=effect_card(effects or {}),
        revealed=revealed(record, since),
        privacy=privacy.section(record),
        sent=[
            {
                "stage": row.title,
                "to the server": terms.bytes_text(row.up),
                "from the server": terms.bytes_text(row.down),
                "rounds": f"{row.rounds:,.0f}",
            }
            for row in sent(record)
        ],
        n_runs=len(record.runs),
        notes=header.get("notes") or [],
        settings=page.settings(record),
        footer=f"{page.made_by(record)}, for the eyes of this party. The lists are in "
        f"{FEATURES_NAME}, too.",
    )
