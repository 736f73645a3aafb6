"""The label holder's own columns: a party in the server's process.

It does as any party does, with a run folder of its own in the server's, and the server
asks it as it asks the others. What it sends is billed; it goes over no wire. It shares
with itself, so its policy allows everything that a run needs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lessvfl.core.hidden_paths import INFERENCES
from lessvfl.data import ROW_ROLES, Finding, blank, leaks
from lessvfl.errors import ConfigError
from lessvfl.remote.align import Ids
from lessvfl.remote.config import (
    ColumnSettings,
    HolderColumns,
    PartyConfig,
    ServerConfig,
)
from lessvfl.remote.party import PartyProcess
from lessvfl.remote.policy import Policy, needed
from lessvfl.remote.tables import LabelTable, OwnTable, open_table
from lessvfl.run.profiles import Settings
from lessvfl.run.record import OWN
from lessvfl.settings import fields_of

MANY = 10**12  # more than is ever asked

WIDE = {
    "rounds": MANY,
    "values": MANY,
    "seeds": MANY,
    "min_rows": 1,
    "min_share": 0.0,
    "align_rate": MANY,
    "align_ids": float(MANY),
    "memory": MANY,
    "predict_rows": MANY,
    "predict_rate": MANY,
    "predict_alignments": MANY,
    "predict_inference": INFERENCES,
    "reasons": "features",
    "reason_rows": MANY,
}
ANY_USE = Policy.of(WIDE, "policy")


def roles(config: ServerConfig) -> dict[str, str]:
    """Return the columns of the label holder that are no features, with their roles."""
    named = {
        config.id: "ids",
        config.label: "labels",
        **{getattr(config, setting): words for setting, words in ROW_ROLES.items()},
    }
    return {name: role for name, role in named.items() if name is not None}


def party_config(
    config: ServerConfig, holder: HolderColumns, policy: Policy = ANY_USE
) -> PartyConfig:
    """Return the config of the party that its own columns are."""
    is_npz = Path(config.data).suffix == ".npz"  # labels and columns are apart
    if holder.data is None and config.label is None and not is_npz:
        raise ConfigError(
            "The 'label' setting must name the column of labels where 'columns' are of "
            "the same table. Got none."
        )
    for pattern in holder.columns:
        if (role := roles(config).get(pattern)) is not None:
            raise ConfigError(
                f"The server's 'columns' must be features. Got '{pattern}', its column "
                f"of {role}."
            )
    decided = {name: getattr(holder, name) for name in fields_of([ColumnSettings])}
    return PartyConfig(
        name=holder.name,
        data=holder.data or config.data,
        id=config.id,
        threads=config.threads,
        device=config.device,
        out=str(Path(config.out) / OWN),
        reveal="features",
        align=config.align,
        policy=policy,
        **decided,
    )


def without_roles(
    party: PartyConfig, server: ServerConfig, names: Iterable[str]
) -> PartyConfig:
    """Return a config whose globs leave out the columns of a table that have a role."""
    known = set(names)
    left_out = [f"!{name}" for name in roles(server) if name in known]
    columns = (*party.columns, *left_out)
    return dataclasses.replace(party, columns=tuple(dict.fromkeys(columns)))


def training_party(
    config: ServerConfig,
    holder: HolderColumns,
    settings: Settings,
    seeds: Sequence[int],
) -> PartyProcess:
    """Return the party that its own columns are in a run."""
    columns = dict.fromkeys(config.everyone, 1)
    allowed = needed(settings, columns, len(seeds), config.evaluation) | WIDE
    party = party_config(config, holder, Policy.of(allowed, "policy"))
    table, ids = open_table(party)
    party = without_roles(party, config, table.names)
    return PartyProcess(holder.name, party, table, ids)


def giveaways(table: OwnTable, ids: Ids | None, labels: LabelTable) -> list[Finding]:
    """Return its own columns that tell the labels on their own.

    Rows are matched by `ids`, or stand in the order of the labels.
    """
    y, is_class = labels.dataset.y, labels.dataset.task != "regression"
    of_labels = leaks.rows_to_see(y, is_class)
    rows = of_labels
    if ids is not None and labels.ids is not None:
        items = Ids(labels.ids[of_labels], ids.column).items
        row_of = dict(zip(items, of_labels.tolist(), strict=True))
        every = enumerate(itertools.chain.from_iterable(ids.parts()))
        both = [(row, row_of[item]) for row, item in every if item in row_of]
        rows, of_labels = np.array(both, dtype=np.int64).reshape(-1, 2).T
    elif table.whole.n_rows != labels.n_rows:
        return []
    if not len(rows):
        return []
    ((_, frame),) = table.whole.take(rows).batches(table.columns, len(rows))
    findings = leaks.giveaways(blank(frame, table.marks), y[of_labels], is_class)
    return [dataclasses.replace(finding, party=table.party) for finding in findings]
