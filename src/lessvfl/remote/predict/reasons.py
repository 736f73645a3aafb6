"""Reasons between machines: what a party does at home with a request, and tells.

The server knows what a party adds to a prediction, since it has all embeddings. What
the party's features add up to that from, the party computes from its own cells, and its
policy says whether that stays at home or is told, and for how many rows
(``policy.reasons``, ``policy.reason_rows``).
"""

from __future__ import annotations

import csv
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lessvfl.data import Frame
from lessvfl.errors import ConfigError, PartyLostError, PolicyError, ProtocolError
from lessvfl.explanation.effects import effect_curves
from lessvfl.explanation.reasons import FeatureShares
from lessvfl.explanation.shapley import Background
from lessvfl.remote.align.entries import Positions
from lessvfl.remote.background import read_background
from lessvfl.remote.predict.journal import open_private
from lessvfl.run.ensemble import merge_parties
from lessvfl.run.fitted import FittedParty
from lessvfl.run.reasons import ServerReasons, features_of
from lessvfl.run.record import EFFECTS, read_json, write_json
from lessvfl.terms import PartyId
from lessvfl.wire import codec, control
from lessvfl.wire.due import Bound

ROWS_AT_ONCE = 100  # of one request: each goes through a network thousands of times
MOST_AT_ONCE = 1000  # of one request, that a party takes the memory for
REASON_BYTES = 8  # a feature's place and what it adds
LONGEST_SEEDS = 200  # letters of them in the name of a file
FORMULA = "=+-@ "  # a cell of a table must not begin with

log = logging.getLogger(__name__)

Send = Callable[[Mapping[PartyId, Any]], Mapping[PartyId, Any]]


def check_texts(texts: Mapping[str, str], models: Sequence[FittedParty]) -> None:
    """Refuse texts for features that a party does not have."""
    known = {name for one in models for name in (*one.kept, *one.removed)}
    for name in texts:
        if name not in known:
            raise ConfigError(
                "The 'reason_texts' setting must name features of the party. Got "
                f"{name!r}."
            )


# A seed's model and the rows that others are compared with, which training left.
Part = tuple[FittedParty, Background | None]


def read_parts(parts: Sequence[tuple[FittedParty, Path]]) -> list[Part]:
    """Take up what training left in the folder of each seed, or refuse reasons."""
    read = [(party, read_background(folder)) for party, folder in parts]
    for party, background in read:
        if background is None and party.constant is None:
            raise PolicyError(
                f"Party '{party.name}' gives reasons for what networks predict that "
                "were evaluated in training. Got another model."
            )
    if all(party.constant is not None for party, _ in read):
        raise PolicyError(
            f"Party '{read[0][0].name}' gives no reasons: it kept no feature. Got a "
            "request for some."
        )
    return read


def split(
    parts: Sequence[Part], rows: Frame, slopes: NDArray[np.float32]
) -> FeatureShares:
    """Return what every feature adds to these rows, in the sum over seeds.

    `slopes` of a row are those of all components, which stand side by side.
    """
    sizes = [party.n_components for party, _ in parts]
    if slopes.shape[1] != sum(sizes):
        sentence = (
            f"Party '{parts[0][0].name}' must be sent {sum(sizes)} slopes a "
            f"row. Got {slopes.shape[1]}."
        )
        raise ProtocolError.told(sentence)
    added: dict[str, NDArray[np.float64]] = {}
    every = torch.split(torch.from_numpy(slopes).double(), sizes, dim=1)
    for (party, background), of_seed in zip(parts, every, strict=True):
        if background is not None:  # else it kept nothing, and adds nothing
            one = features_of(party, party.encoded(rows), background, of_seed)
            for name, values in zip(one.names, one.values.T, strict=True):
                added[name] = added.get(name, 0.0) + values
    return FeatureShares(tuple(added), np.stack([*added.values()], axis=1))


def largest(
    shares: FeatureShares, most: int, texts: Mapping[str, str]
) -> control.Explained:
    """Name the features that added most to each row, in each direction."""
    n_features = len(shares.names)
    most = min(most, n_features)
    order = np.argsort(shares.values, axis=1, kind="stable")
    places = np.concatenate([order[:, ::-1][:, :most], order[:, :most]], axis=1)
    values = np.take_along_axis(shares.values, places, axis=1)
    up = np.arange(2 * most) < most
    fits = np.where(up, values > 0, values < 0)
    used = np.unique(places[fits])
    number = np.full(n_features + 1, -1, dtype=np.int32)
    number[used] = np.arange(len(used))
    names = tuple(shares.names[place] for place in used.tolist())
    return control.Explained(
        names,
        tuple(texts.get(name, "") for name in names),
        np.where(fits, number[places], -1).astype(np.int32),
        np.where(fits, values, 0.0).astype(np.float32),
    )


def keep(path: Path, ids: Sequence[str], shares: FeatureShares) -> None:
    """Add what every feature adds to a file of the party's own."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    with open(path, "a", newline="", encoding="utf-8", opener=open_private) as file:
        lines = csv.writer(file)
        if not file.tell():
            lines.writerow(["time", "id", *shares.names])
        for id_, values in zip(ids, shares.values.tolist(), strict=True):
            lines.writerow([now, id_, *(f"{value:.6g}" for value in values)])


def draw(
    parts: Sequence[Part],
    folder: Path,
    seeds: Sequence[int],
    table: Frame,
    slopes: NDArray[np.float32],
) -> None:
    """Draw the curves of effects anew, by the mean slopes of all rows so far."""
    path, n_rows = folder / EFFECTS, len(slopes)
    mean = slopes.mean(axis=0, dtype=np.float64)
    known = read_json(path) if path.is_file() else {}
    if known.get("seeds") == [*seeds] and len(known["slopes"]) == len(mean):
        n_rows += known["rows"]
        mean += (np.array(known["slopes"]) - mean) * (known["rows"] / n_rows)
    models = [party for party, _ in parts]
    whole = merge_parties(models) if len(models) > 1 else models[0]
    curves = effect_curves(whole.encoding, whole.embed, table, torch.from_numpy(mean))
    about = {"seeds": [*seeds], "rows": n_rows, "slopes": mean.tolist()}
    write_json(path, about | {"curves": curves}, mode=0o600)


def home_file(seeds: Sequence[int]) -> str:
    """Return the name of the party's own file of what features add, for these seeds.

    It has the seeds in it, or a digest where they are many.
    """
    whole = "-".join(map(str, seeds))
    if len(whole) > LONGEST_SEEDS:
        whole = hashlib.sha256(whole.encode()).hexdigest()
    return f"reasons-seed-{whole}.csv"


# ------------------------------------------------------------------------ at the server


def parts_of(whole: ServerReasons) -> list[ServerReasons]:
    """Return what is predicted for rows in the parts that parties are asked about."""
    starts = range(0, len(whole.z), ROWS_AT_ONCE)
    return [whole.take(slice(start, start + ROWS_AT_ONCE)) for start in starts]


def reasons_due(asked: control.Explain) -> Bound:
    """Return the bound of reasons: of the rows asked for, as many as asked for."""
    n_rows, most = len(asked.rows), 2 * asked.most

    def complaint(fields: codec.Fields, specs: codec.Specs) -> str | None:
        shape: tuple[int, ...] = specs[0][1] if specs else ()
        if len(shape) != 2 or shape[0] != n_rows or shape[1] > most:
            return f"Reasons must be for {n_rows} rows, {most} at most. Got {shape}."
        n_names = len(fields.names)
        if n_names > math.prod(shape):
            return (
                f"Reasons for {n_rows} rows must name {math.prod(shape)} features at "
                f"most. Got {n_names}."
            )
        return None

    return Bound(REASON_BYTES * n_rows * most, complaint)


def shares_of(reply: control.Explained, unit: float = 1.0) -> FeatureShares:
    """Return what an answer says about its rows, in the unit of labels.

    It stays with the server: parties are asked in that of the network.
    """
    texts: dict[str, str] = {}
    for name, text in zip(reply.names, reply.texts, strict=True):
        texts.setdefault(_clean(name), _clean(text))
    place = {name: at for at, name in enumerate(texts)}
    values = np.full((len(reply.places), len(place)), np.nan)
    column = np.array([place[_clean(name)] for name in reply.names], dtype=np.int64)
    row, at = np.nonzero(reply.places >= 0)
    values[row, column[reply.places[row, at]]] = unit * reply.values[row, at]
    quoted = {name: text for name, text in texts.items() if text}
    return FeatureShares(tuple(texts), values, quoted)


def _clean(text: str) -> str:
    """Return a text of another side as it may stand in a table."""
    return control.printable(text, 300).lstrip(FORMULA)


def ask_why(
    send: Send,
    parties: Sequence[PartyId],
    asked: Sequence[ServerReasons],
    places: Positions,
    most: int,
) -> list[dict[PartyId, FeatureShares]]:
    """Return what features add to each seed's model, by party, of parties that answer.

    Up to `most` features a row. A party that fails counts as one reason without
    features; nobody is asked again, since those that answered would be charged twice.
    """
    shares: list[dict[PartyId, FeatureShares]] = [{} for _ in asked]
    for party in parties:
        try:
            replies = _replies_of(send, party, asked, places, most)
        except (PartyLostError, PolicyError, ProtocolError) as error:
            log.warning("party '%s' gives no reasons: %s", party, error)
            continue
        for part, by_party, reply in zip(asked, shares, replies, strict=False):
            if isinstance(reply, control.Explained):
                by_party[party] = shares_of(reply, part.unit)
        if replies and not any(party in by_party for by_party in shares):
            log.info("party '%s' keeps its reasons at home", party)
    return shares


def _replies_of(
    send: Send,
    party: PartyId,
    asked: Sequence[ServerReasons],
    places: Positions,
    most: int,
) -> list[Any]:
    """Return the answers of a party, one for each part; none of trees."""
    replies, start = [], 0
    for part in asked:
        slopes = part.slopes(party)
        if slopes is None:
            return []
        rows = places[start : start + len(slopes)]
        in_net = (slopes / part.unit).float().contiguous().numpy()
        reply = send({party: control.Explain(rows, in_net, most)})[party]
        if isinstance(reply, control.Declined):
            raise PolicyError(control.printable(reply.reason))
        replies.append(reply)
        start += len(rows)
    return replies
