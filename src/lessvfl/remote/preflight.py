"""What a side would refuse, change or leave out of its own table, before a run.

Nothing is sent, and nothing is written to a run folder that holds no run.
"""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from lessvfl import data
from lessvfl.data import Dataset, Finding, Table, advice, check, dealing
from lessvfl.remote.accounts import Accounts, Amounts, Charge
from lessvfl.remote.align import Aligner, Ids
from lessvfl.remote.config import HolderColumns, PartyConfig, ServerConfig
from lessvfl.remote.own_columns import giveaways, party_config, roles, without_roles
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.price import LabelBudget
from lessvfl.remote.tables import LabelTable, OwnTable, open_table, resolve_settings
from lessvfl.run.folder import STATE
from lessvfl.wire.flight import parse_address

NOT_NAMED = Finding(None, "not in its 'columns'", "left out", "left out")
AS_SETTINGS = {  # what the command line calls options
    "--missing-values": "in 'missing_values' of its config,",
    "--groups makes": "'groups' in its config makes",
}
NO_LABELS = "Nothing is said about labels: the server has them."
NO_COLUMNS = "Nothing is said about columns: the parties have them."
NO_OTHERS = "Nothing is said about other columns: the other parties have them."


def check_party(config: PartyConfig, name: str) -> check.TableReport:
    """Report what a run would say of a party's own table, and what would stop it."""
    attempt = check.Attempts()
    problems, stem = attempt.problems, Path(config.data).stem
    opened = attempt(lambda: open_table(config))
    if opened is None:
        return check.nothing_read(stem, problems)
    table, ids = opened
    look, findings = data.infer_columns(table.look)
    whose = f"party '{name}'"
    patterns = list(config.columns)
    held = attempt(lambda: data.match_columns(table.names, patterns, whose))
    names = list(table.names) if held is None else held
    if held is not None:
        attempt(lambda: data.usable(name, names, look))
    if config.as_is:
        attempt(lambda: data.match_columns(names, list(config.as_is or ()), whose))
    attempt(lambda: data.features_of({name: names}, config.groups))
    named = None if ids is None else attempt(lambda: Ids(ids, config.id or "id"))
    attempt(lambda: parse_address(config.server, secure=True))
    least = config.policy.min_rows
    if table.n_rows < least:
        problems.append(
            f"The table of party '{name}' must have {least} rows or more, by "
            f"'min_rows' of its policy. Got {table.n_rows}."
        )
    marks = attempt(lambda: data.marks_of(look, config.missing_values)) or {}
    frame = data.blank(look.select(names), marks)
    remarks = data.changes(look, findings, names, config.max_categories)
    if held is not None:
        excluded = dealing.excluded_columns(table.names, {name: patterns})
        remarks += [
            dataclasses.replace(
                check.EXCLUDED if column in excluded else NOT_NAMED, column=column
            )
            for column in table.names
            if column not in held
        ]
    may_begin = not problems  # which says itself what stops it
    flagged = attempt(partial(_begin, config, name, table, ids)) if may_begin else None
    remarks += advice.remarks(frame, None, True, flagged or ())
    remarks += _of_ids(named)
    if not may_begin:
        problems += check.stops(remarks)
    return check.TableReport(
        stem,
        table.n_rows,
        None,
        (),
        None,
        None,
        tuple(problems),
        check.in_order([_by_config(one, name) for one in remarks], table.names),
        check.kinds_of(frame),
        (NO_LABELS,),
        privacy=attempt(lambda: _spent(config, name, ids)),
    )


def _of_ids(ids: Ids | None) -> list[Finding]:
    """Say what the ids of a side look like, which those of the others must match."""
    if ids is None:
        return []
    done = "matched as they are written: those of the other sides must be so, too"
    return [Finding(ids.column, f"ids that are {ids.kind}", done, "kept")]


def _spent(config: PartyConfig, name: str, ids: Any) -> str | None:
    """Say what runs with these rows have spent of each, where noise is added."""
    if not config.has_noise:
        return None
    names = None if ids is None else Ids(ids, config.id or "id").account_names()
    known = Accounts(Path(config.out), name).after(Charge(names, Amounts()))
    spent, most = known.epsilon(config.policy.delta), config.policy.epsilon
    bound = "" if most is None else f" of {most:g}"
    return f"runs with these rows have spent epsilon {spent:.3g}{bound} of a row"


def _by_config(finding: Finding, name: str) -> Finding:
    """Return a finding of a party with settings of its config in place of options."""
    done = finding.done
    for option, setting in AS_SETTINGS.items():
        done = done.replace(option, setting)
    return dataclasses.replace(finding, done=done, party=finding.column and name)


def _begin(config: PartyConfig, name: str, table: Table, ids: Any) -> tuple[str, ...]:
    """Begin as a run does, in its run folder where that holds one already.

    Return the columns that get a flag of missing cells.
    """
    with tempfile.TemporaryDirectory(prefix="lessvfl-check-") as scratch:
        out = config.out if (Path(config.out) / STATE).is_file() else scratch
        begun = PartyProcess(name, dataclasses.replace(config, out=out), table, ids)
        begun.close()
        return begun.flagged


def check_server(config: ServerConfig) -> check.TableReport:
    """Report what a run would say of the label holder's table, or what stops it."""
    attempt = check.Attempts()
    problems = attempt.problems
    with tempfile.TemporaryDirectory(prefix="lessvfl-check-") as scratch:
        here = dataclasses.replace(config, out=scratch)
        table = attempt(lambda: LabelTable.load(here))
        if table is None:
            return _without_roles(here, problems)
        attempt(lambda: parse_address(config.listen, secure=True))
        settings = attempt(lambda: resolve_settings(config, table))
        cells = table.ids
        ids = None if cells is None else attempt(lambda: Ids(cells, config.id or "id"))
        if cells is None or ids is not None:  # what a run lacks for alignment
            attempt(lambda: Aligner(config.align, ids, table.n_rows, secret=bytes(32)))
        rows = price = None
        if settings is not None:
            rows = attempt(lambda: table.settled(settings, config.align))
        if settings is not None and rows is not None:
            seeds = data.fold_seeds(config.seeds, settings.data.folds)
            attempt(  # as if all rows were common
                lambda: [rows.split(settings, seed, lambda _, s: s) for seed in seeds]
            )
            price = attempt(lambda: LabelBudget(config, settings, rows).price(""))
        report = _of_labels(table.dataset, config, problems)
        report = dataclasses.replace(
            report,
            privacy=None if price is None else price.words("label"),
            findings=(*_of_ids(ids), *report.findings),
        )
        if config.columns is None:
            return report
        return _with_columns(report, config, config.columns, table)


def _without_roles(config: ServerConfig, problems: list[str]) -> check.TableReport:
    """Return what is said of labels alone where a table cannot be read as asked."""
    nothing: dict[str, Any] = dict.fromkeys((*data.ROW_ROLES, "test_ids"))
    plain = dataclasses.replace(config, **nothing)
    table = check.Attempts()(lambda: LabelTable.load(plain))
    if table is None:
        return check.nothing_read(Path(config.data).stem, problems, config.label)
    return _of_labels(table.dataset, config, problems)


def _with_columns(
    report: check.TableReport,
    config: ServerConfig,
    held: HolderColumns,
    labels: LabelTable,
) -> check.TableReport:
    """Return what is said of labels, and of the label holder's own columns."""
    attempt = check.Attempts()
    party = attempt(lambda: party_config(config, held))
    opened = None if party is None else attempt(lambda: open_table(party))
    if party is None or opened is None:
        problems = (*report.problems, *attempt.problems)
        return dataclasses.replace(report, problems=problems)
    table, ids = opened
    holder = without_roles(party, config, table.names)
    of_columns = check_party(holder, held.name)
    others = [f for f in of_columns.findings if f.column not in roles(config)]
    if not of_columns.problems:
        known = None if ids is None else Ids(ids, holder.id or "id")
        others += giveaways(OwnTable.of(held.name, holder, table), known, labels)
    return dataclasses.replace(
        report,
        problems=(*report.problems, *of_columns.problems),
        findings=(*report.findings, *others),
        kinds=of_columns.kinds,
        unsaid=(NO_OTHERS,),
    )


def _of_labels(
    dataset: Dataset, config: ServerConfig, problems: list[str]
) -> check.TableReport:
    """Return what is said of labels alone."""
    label = config.label or "the label"
    rare = None
    if dataset.task != "regression":
        rare = advice.rare_classes(dataset.y, dataset.label_names, label)
    return check.TableReport(
        dataset.name,
        len(dataset.y),
        label,
        dataset.label_names,
        dataset.task,
        dataset.task_reason,
        tuple(problems),
        () if rare is None else (rare,),
        {},
        (NO_COLUMNS,),
    )
