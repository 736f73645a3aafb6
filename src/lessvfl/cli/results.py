"""What a command says at its end: the numbers of a record, in tables or in lines."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from lessvfl.run.record import RunRecord

MOST_NAMES = 8  # of one party that are printed in a line
MOST_ROWS = 20  # of each list of features


def say(text: str, *, err: bool = False, **style: bool) -> None:
    """Print a sentence, on a terminal in lines that break between words.

    Names in it cannot do anything to the terminal. `style` is that of typer.
    """
    from lessvfl.status import terminal, words

    text = terminal.folded(words.printable(text), err=err)
    typer.echo(typer.style(text, **style) if style else text, err=err)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, or a line for each row where words would have to be broken.

    Names cannot do anything to the terminal.
    """
    from rich.box import SQUARE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from lessvfl.status import words

    table = Table(*heads, box=SQUARE)
    cells = [[words.printable(cell) for cell in row] for row in rows]
    for row in cells:
        table.add_row(*map(Text, row))
    console, drawn = Console(), io.StringIO()
    Console(file=drawn, width=console.width, force_terminal=False).print(table)
    needed = {word for row in (heads, *cells) for cell in row for word in cell.split()}
    if console.is_terminal and not needed <= set(drawn.getvalue().split()):
        for row in cells:
            named = zip(heads, row, strict=True)
            say("; ".join(f"{head}: {cell}" for head, cell in named if cell))
    else:
        console.print(table)


def print_summary(records: list[RunRecord]) -> None:
    """Print the key numbers of records, one column each."""
    from lessvfl.report import privacy, sentences, verdicts

    for record in records:
        say(sentences.headline(record))
        for note in record.header["notes"]:
            say(f"Note: {note}", dim=True)
        for sentence in (
            *verdicts.dwarfing(record),
            *sentences.together(record),
            *sentences.remarks(record),
            *privacy.spent(record),
        ):
            say(sentence)
        if predicted := sentences.predicted_words(record):
            say(f"{predicted}.", dim=True)
    _print_numbers(records)


def _print_numbers(
    records: Sequence[RunRecord], titles: Sequence[str] | None = None
) -> None:
    from rich.console import Console
    from rich.table import Table

    from lessvfl.report import intervals, sentences, tables

    heads, rows = tables.summary_rows(records)
    for row, title in zip(rows, titles or (), strict=titles is not None):
        row[0] = title
    table = Table(show_header=False)
    for head, *cells in zip(heads, *rows, strict=True):
        path, _ = tables.SUMMARY.get(head, ("", ""))
        name = path.removesuffix(".final")
        both = zip(records, cells, strict=True)
        words = (intervals.leading_words(record, name, cell) for record, cell in both)
        table.add_row(head, *words)
    Console().print(table)
    if notes := dict.fromkeys(filter(None, map(intervals.note, records))):
        say(" ".join(notes), dim=True)
    if "paper MiB" in heads:
        say(sentences.PAPER_MIB, dim=True)


def print_comparison(records: Mapping[str, RunRecord]) -> None:
    """Print the numbers of runs side by side, by folder, and what they found."""
    from lessvfl.report import pixels
    from lessvfl.report.comparison import titles_of
    from lessvfl.report.finding import finding

    titles = titles_of(records)
    named = {titles[name]: record for name, record in records.items()}
    _print_numbers(list(named.values()), list(named))
    for title, record in named.items():
        if lines := list(pixels.text_lines(record.runs)):
            typer.echo("\n".join([f"Pixels kept by {title}:", *lines]))
    say(f"{finding(named)}.", bold=True)


def print_recommended(record: RunRecord) -> None:
    """Print the answer of all seeds: the features each party should use."""
    from lessvfl.report import verdicts

    recommended = verdicts.recommendations(record)
    if not recommended:
        return
    say(verdicts.recommended_words(len(record.runs)))
    rows = [
        {
            "party": one.party,
            "recommended": f"{len(one.features):,} of {one.n_held:,}",
            **_scores_without(record, one.party),
            "features": one.text(MOST_NAMES),
        }
        for one in recommended
    ]
    print_table(list(rows[0]), [list(row.values()) for row in rows])
    why, gone = verdicts.reasons_by_party(record), dict[tuple[str, str], list[str]]()
    for one in recommended:
        if one.party in why:
            rest = "{} other features" if one.features else "all {} features"
            if one.n_held - len(one.features) == 1:
                rest = "one feature"
            gone.setdefault((rest, why[one.party]), []).append(one.party)
    for (rest, reason), (*others, last) in gone.items():
        who = f"{', '.join(others)} and {last}" if others else last
        each = " each" if others and not reason.startswith("they ") else ""
        what = rest.format("their" if others else "its")
        say(f"{who}{each} removed {what}: {reason}.")


def _scores_without(record: RunRecord, party: str) -> dict[str, str]:
    """Return table cells by title: the score without a party, and what it adds.

    The latter only where it is known of any party.
    """
    from lessvfl.report import intervals, tables

    missed, (_, score) = tables.missed(record), tables.first_score(record)
    without = f"{missed[party][0]:.3f}" if party in missed else tables.MISSING
    cells = {f"{score} without it (loss overstated)": without}
    if any(intervals.of_loss(record, other) for other in missed):
        cells["it adds"] = intervals.loss_words(record, party)
    return cells


def tell_bill(record: RunRecord) -> None:
    """Say what went over the socket of a run between machines."""
    from lessvfl.report import bill

    if words := bill.words(record):
        say(f"{words}.")


def build_report(folder: Path) -> None:
    """Make the page of a run folder and its list of features, and say where."""
    from lessvfl import report

    page = report.build(folder)
    if (features := folder / report.FEATURES_NAME).is_file():
        say(f"Features: {features}")
    say(f"Report: {page}")


def tell_server(record: RunRecord) -> None:
    """Say how a run ended for the server: tables, or lines where nobody looks on."""
    from rich.console import Console

    from lessvfl import terms
    from lessvfl.report import intervals, privacy, sentences, server, tables

    if rows_said := sentences.label_words(record):
        say(f"{rows_said}.")
    if Console().is_terminal:
        print_summary([record])
        rows = server.party_rows(record)
        for row in rows:
            row.update(_scores_without(record, row["party"]))
        print_table(list(rows[0]), [list(row.values()) for row in rows])
        tell_bill(record)
        return
    say(sentences.headline(record))
    for sentence in (*sentences.together(record), *privacy.spent(record)):
        say(sentence)
    for run in record.runs:
        finals = (
            f"{tables.score_word(score)} {value:.4f}{_ends(run, score)}"
            for score in terms.SCORES
            if (value := tables.number(run, score, "final")) is not None
        )
        if scores := ", ".join(finals):
            say(f"seed {run['seed']}: {scores}")
    for sentence in (
        *sentences.chance(record),
        *sentences.emptied(record),
        *sentences.undefined(record),
    ):
        say(sentence)
    _, word = tables.first_score(record)
    for party, (without, whole) in tables.missed(record).items():
        line = f"without {party}: {word} {without:.3f} instead of {whole:.3f}"
        say(f"{line}{intervals.bias(record, party)}: {intervals.RUN_WITHOUT}")
        if intervals.of_loss(record, party):
            say(f"{party} adds {intervals.loss_words(record, party)}")
    if note := intervals.note(record):
        say(note)
    tell_bill(record)


def _ends(run: Mapping[str, Any], score: str) -> str:
    """Say the interval of one run's score, nothing where it has none."""
    from lessvfl.report import tables

    ends = [tables.number(run, "intervals", score, end) for end in ("low", "high")]
    return "" if None in ends else f" ({ends[0]:.4f} to {ends[1]:.4f})"


def tell_party(record: RunRecord) -> None:
    """Say how a run ended for a party: what it does without, and what was sent."""
    from rich.console import Console

    from lessvfl.report import operator, privacy, verdicts
    from lessvfl.terms import bytes_text, listed

    is_terminal, judged = Console().is_terminal, verdicts.verdicts(record)
    say(f"{operator.headline(record)}.")
    for sentence in (*verdicts.dwarfing(record), *privacy.spent(record)):
        say(sentence)
    for verdict, more in {
        verdicts.NOT_NEEDED: f" ({verdicts.NOT_NEEDED_SCOPE})",
        verdicts.REMOVED: " (nothing bounds their effects)",
        verdicts.UNDECIDED: "",
        verdicts.NEEDED: "",
    }.items():
        some = [one for one in judged if one.verdict == verdict]
        title = f"{verdict.capitalize()}{more}"
        if some and is_terminal:
            say(f"{title}:")
            rows = [
                (
                    one.feature,
                    one.words,
                    "" if one.decisive is None else f"{one.decisive:.2f}",
                    f"{one.n_kept} of {one.n_runs}",
                )
                for one in some[:MOST_ROWS]
            ]
            if (n_more := len(some) - MOST_ROWS) > 0:
                rows.append((f"and {n_more:,} more", "", "", ""))
            print_table(("feature", "why", "strength", "runs that kept it"), rows)
        elif some:
            names = listed([one.feature for one in some], MOST_NAMES)
            say(f"{title}: {names}")
    if is_terminal:
        for caution in operator.cautions(record):
            say(caution)
        print_table(("revealed to", "what"), operator.revealed(record))
    if sent := operator.sent(record):
        *stages, total = sent
        each = ", ".join(f"{s.title} {bytes_text(s.up)}" for s in stages if s.up)
        say(f"Sent to the server: {bytes_text(total.up)} ({each or 'nothing'})")
