"""The command ``lessvfl check``, and the lines of ``lessvfl run`` about columns."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lessvfl.cli import results, start
from lessvfl.cli.options import AsJson, TableOptions, read_parties, taking
from lessvfl.terms import listed, plural

if TYPE_CHECKING:
    from lessvfl.data import Dataset, Finding
    from lessvfl.data.check import TableReport
    from lessvfl.run.simulate import Job

MOST_LINES = 20  # that a run prints about columns
LONGEST = 40  # characters of a column's name
NO_CERTIFICATE = (
    "Nothing is said about certificates: none is named; a run needs them, or "
    "--insecure."
)


@taking(TableOptions)
def check(
    table: TableOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A table of your own.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="Instead: the YAML file of a party or server."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say all that a run would refuse, change or leave out in a table."""
    if not as_json:
        start.say(f"a look at {config or file or 'nothing'}")
    from lessvfl import __version__, data
    from lessvfl.data.check import check_table
    from lessvfl.errors import ConfigError

    if (file is None) == (config is None):
        got = "neither" if file is None else "both"
        raise ConfigError(f"A table or a --config must be named. Got {got}.")
    if config is not None:
        default = TableOptions()
        for name, value in dataclasses.asdict(table).items():
            if value and value != getattr(default, name):
                raise ConfigError(
                    f"The option '--{name.replace('_', '-')}' goes with a table; a "
                    "config says it itself. Got it with --config."
                )
        report = _check_config(config.expanduser())
    else:
        assert file is not None
        report = check_table(
            file.expanduser(),
            parties=read_parties(table.parties),
            groups=table.read_groups(),
            config=data.DataConfig(missing_values=table.read_missing_values()),
            **table.columns,
        )
    if as_json:
        about = {"lessvfl": __version__} | report.to_json()
        typer.echo(json.dumps(about, allow_nan=False))
    else:
        _print(report)
    if report.problems:
        raise typer.Exit(2)


def _check_config(path: Path) -> TableReport:
    """Check what a party or a server has, by its config."""
    from lessvfl.data.check import Attempts
    from lessvfl.remote import preflight
    from lessvfl.remote.config import PartyConfig, read_side
    from lessvfl.remote.identity import party_identity, server_credentials

    side = read_side(path)
    attempt = Attempts()
    insecure = (side.certificate, side.key, side.ca) == (None, None, None)
    if isinstance(side, PartyConfig):
        # Without a certificate the name may be said elsewhere, as that of a site is.
        known = None if insecure else attempt(lambda: party_identity(side, insecure))
        name = side.name or "party" if known is None else known[0]
        report = preflight.check_party(side, name)
    else:
        attempt(lambda: server_credentials(side, insecure))
        report = preflight.check_server(side)
    unsaid = (*report.unsaid, NO_CERTIFICATE) if insecure else report.unsaid
    problems = (*attempt.problems, *report.problems)
    return dataclasses.replace(report, problems=problems, unsaid=unsaid)


def _print(report: TableReport) -> None:
    """Print what is done about columns, then what stops a run, the verdict last."""
    from lessvfl.data import task_sentence
    from lessvfl.report.sentences import seen_words

    rows = [
        (_short(finding.column), finding.party or "", finding.what, finding.done)
        for finding in report.findings
    ]
    if rows and sys.stdout.isatty():
        results.print_table(("column", "party", "what it is", "what is done"), rows)
    else:
        for line in lines(report.findings):
            results.say(line)
    used = ", ".join(f"{n:,} of {kind}" for kind, n in report.kinds.items() if n)
    if report.kinds or report.problems:
        used = f"; columns in use: {used or 'none'}"
    label = "no label" if report.label is None else f"label '{report.label}'"
    if report.task is not None:
        classes = listed(report.label_names, results.MOST_NAMES)
        label += f" ({report.task}{': ' * bool(classes)}{classes})"
    if report.n_rows or not report.problems:  # otherwise nothing could be read
        results.say(f"{plural(report.n_rows, 'row')}; {label}{used}.")
    if report.task is not None:
        results.say(task_sentence(report.task, report.task_reason or ""))
    if report.test_rows_seen is not None:
        results.say(f"Split by seed 0: {seen_words(report.test_rows_seen)}")
    if report.privacy is not None:
        results.say(f"Privacy: {report.privacy}.")
    for problem in report.problems:
        results.say(f"Stops a run: {problem}")
    for sentence in report.unsaid:
        results.say(sentence)
    if report.problems:
        results.say("A run would stop.")
    else:
        results.say(
            "Nothing else stops a run." if report.unsaid else "A run would begin."
        )


def _short(name: str | None) -> str:
    """Return a column's name as it fits in a line."""
    if name is None:
        return "the file"
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 3]}..."


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return findings in words, one line each."""
    from lessvfl.status import words

    sentences = []
    for finding in findings:
        name, party = finding.column, finding.party
        where = "The file" if name is None else f"Column '{_short(name)}'"
        if name == "":
            where = "The column without a name"
        whose = f" of {party}" if party else ""
        sentence = f"{where}{whose}: {finding.what}; {finding.done}"
        sentences.append(words.printable(sentence))
    return sentences


def tell_changes(job: Job, seed: int, source: str) -> None:
    """Say on standard error what a run does to the columns of a table."""
    from lessvfl.data import is_file, task_sentence, usable
    from lessvfl.data.check import giveaways, held_columns, run_changes

    dataset: Dataset = job.dataset
    if not is_file(source):
        return
    held = held_columns(dataset, job.parties, job.settings.data, seed)
    for party, names in held.items():
        usable(party, names, dataset.X)  # or nothing is said but this
    findings = run_changes(dataset, held, job.parties, job.settings.data)
    findings += giveaways(dataset, held)
    results.say(task_sentence(dataset.task, dataset.task_reason), err=True)
    for line in first_lines(findings, source):
        results.say(line, err=True)


def first_lines(findings: Iterable[Finding], source: str) -> list[str]:
    """Return findings in words, the first ones of very many."""
    whole = lines(findings)
    if (more := len(whole) - MOST_LINES) > 0:
        return [*whole[:MOST_LINES], f"and {more} more: lessvfl check {source}"]
    return whole
