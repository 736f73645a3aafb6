"""What was told of each id so far, in a file that all run folders of a side share.

``ledger-WHOSE.sqlite3`` stands beside the run folders. It knows an id by a hash keyed
with a secret of its own, and holds no id. Every run charges the account of each id that
it is about, whatever the table or the order of its rows; and what may still be told of
some rows is decided by the one of which most was told.

Rows without ids may be of anybody: they have one account together, which counts with
that of every id, as every other one counts with theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from lessvfl.errors import ConfigError, RecordError
from lessvfl.privacy.accounting import epsilon_spent, spent_by
from lessvfl.privacy.mechanisms import Releases
from lessvfl.remote.align.keys import SECRET_BYTES
from lessvfl.run.record import check_private, read_json

FORMAT = 1
DAYS = 30  # for which alignments count
KEY_BYTES = 16  # of an id or a release: no two of them will collide
WAIT = 600.0  # seconds that another process may take
ANYBODY = b""  # the account of rows without ids
BITS = 32  # of a value that an earlier release of this package counted


class Amounts(NamedTuple):
    """How much was told, or will be, of a row."""

    values: float = 0.0
    bits: float = 0.0  # of these values
    gaussian: float = 0.0  # the sum of 1 / noise² of Gaussian releases
    epsilon: float = 0.0  # of randomised labels
    predictions: float = 0.0

    def plus(self, other: Amounts) -> Amounts:
        """Return both together."""
        return Amounts(*(a + b for a, b in zip(self, other, strict=True)))

    def beyond(self, other: Amounts) -> Amounts:
        """Return by how much each goes beyond that of another."""
        pairs = zip(self, other, strict=True)
        return Amounts(*(max(0.0, a - b) for a, b in pairs))


@dataclass(frozen=True)
class Most:
    """What was told of those rows of which most was told.

    `noise` has the largest `gaussian` beside each `epsilon` there is.
    """

    values: float
    noise: tuple[tuple[float, float], ...]

    def epsilon(self, delta: float) -> float:
        """Return the largest epsilon of a row."""
        return max(
            epsilon_spent(gaussian, pure, delta) for gaussian, pure in self.noise
        )


@dataclass(frozen=True)
class Charge:
    """Amounts for each of some rows.

    `whom` has the names of the rows' accounts; None: they have no ids. `answers` says
    for each row, or for all without ids, what is told: the same answer about the same
    id is charged once. The plan of a `run` is charged as far as it goes beyond what
    that run was charged before.
    """

    whom: Iterable[str] | None
    more: Amounts
    answers: Iterable[bytes] | None = None
    run: str | None = None


_NAMES = Amounts._fields
_COLUMNS = ", ".join(f'"{name}"' for name in _NAMES)
_TYPED = ", ".join(f'"{name}" REAL NOT NULL' for name in _NAMES)
SCHEMA = (
    "CREATE TABLE secret (key BLOB NOT NULL)",
    f"CREATE TABLE account (id BLOB PRIMARY KEY, {_TYPED}) WITHOUT ROWID",
    "CREATE TABLE answered (id BLOB PRIMARY KEY) WITHOUT ROWID",
    f"CREATE TABLE run (name TEXT PRIMARY KEY, {_TYPED}) WITHOUT ROWID",
    "CREATE TABLE alignment (time REAL NOT NULL, n_ids INTEGER NOT NULL)",
    f"PRAGMA user_version = {FORMAT}",
)
TEMPORARY = (
    "PRAGMA cache_size = -65536",  # KiB, for a million ids in seconds
    "CREATE TEMP TABLE asked (place INTEGER PRIMARY KEY, id BLOB, answer BLOB)",
    "CREATE TEMP TABLE due (id BLOB PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID",
)

# By account how many rows, or answers that are new, are charged for.
DUE = "INSERT INTO due SELECT id, %s FROM asked GROUP BY id"
EACH_ROW = DUE % "count(*)"
EACH_ANSWER = (
    DUE
    % """
count(DISTINCT CASE WHEN answer NOT IN (SELECT id FROM answered) THEN answer END)
"""
)
CHARGE = f"""
INSERT INTO account (id, {_COLUMNS})
SELECT id, {", ".join(f"n * :{name}" for name in _NAMES)} FROM due WHERE n > 0
ON CONFLICT (id) DO UPDATE
SET {", ".join(f'"{name}" = "{name}" + excluded."{name}"' for name in _NAMES)}
"""
_AFTER = {name: f'coalesce("{name}", 0) + n * :{name}' for name in _NAMES}
MOST = f"""
SELECT {_AFTER["epsilon"]} AS pure, max({_AFTER["gaussian"]}), max({_AFTER["values"]})
FROM %s WHERE id != x'' GROUP BY pure
"""
OF_DUE = MOST % "due LEFT JOIN account USING (id)"
OF_ALL = MOST % "(SELECT *, 0 AS n FROM account)"
OF_EACH = f"""
SELECT place, {_AFTER["values"]}, {_AFTER["gaussian"]}, {_AFTER["epsilon"]}
FROM asked JOIN due USING (id) LEFT JOIN account USING (id)
"""


class Accounts:
    """The accounts of a side, in the parent folder of its run folder."""

    def __init__(self, out: Path, whose: str) -> None:
        self._folder = out.resolve().parent
        self._path = self._folder / f"ledger-{whose}.sqlite3"
        self._before = self._folder / f"spent-{whose}.json"  # of earlier releases

    def secret(self, make: bool = True) -> bytes:
        """Return the secret that ids are known by, saved where it is new."""
        with self._open(to_write=make) as file:
            return _secret(file)

    def of_run(self, run: str) -> Amounts | None:
        """Return what a run was charged of each row; None: it was not charged."""
        with self._open() as file:
            return _amounts(file, "run", run)

    def after(self, charge: Charge) -> Most:
        """Return what will have been told of these rows after a charge."""
        with self._open() as file:
            return _charged(file, charge)[1]

    def charge(self, charge: Charge, check: Callable[[Most], object]) -> Most:
        """Charge for what will be told, unless `check` of what it comes to raises."""
        with self._open(to_write=True) as file:
            more, most = _charged(file, charge)
            check(most)
            file.execute(CHARGE, more._asdict())
            if charge.answers is not None:
                answers = "SELECT answer FROM asked"
                file.execute(f"INSERT OR IGNORE INTO answered {answers}")
            if charge.run is not None:
                before = _amounts(file, "run", charge.run) or Amounts()
                _write(file, "run", charge.run, before.plus(more))
        return most

    def settle(self, whom: Iterable[str] | None, run: str, shown: Amounts) -> None:
        """Give values back that a run, which is over, was charged and did not tell."""
        with self._open(to_write=True) as file:
            charged = _amounts(file, "run", run) or Amounts()
            back = charged.beyond(shown)
            less = Amounts(values=-back.values, bits=-back.bits)
            if any(less):
                _ask(file, Charge(whom, less))
                file.execute(CHARGE, less._asdict())
                _write(file, "run", run, charged.plus(less))

    def too_much(
        self, charge: Charge, is_too_much: Callable[[float, float, float], bool]
    ) -> Sequence[int]:
        """Return the places of the rows that a charge would be too much for.

        That is said of values, `gaussian` and `epsilon` of a row after it.
        """
        with self._open() as file:
            more = _ask(file, charge)
            anybody = _amounts(file, "account", ANYBODY) or Amounts()
            return [
                place
                for place, values, gaussian, epsilon in file.execute(
                    OF_EACH, more._asdict()
                )
                if is_too_much(
                    anybody.values + values,
                    anybody.gaussian + gaussian,
                    anybody.epsilon + epsilon,
                )
            ]

    def align(self, n_ids: int, check: Callable[[Sequence[int]], object]) -> None:
        """Count an alignment of so many ids, unless `check` of all lately raises."""
        now = time.time()
        with self._open(to_write=True) as file:
            old = "DELETE FROM alignment WHERE time <= ?"
            file.execute(old, (now - DAYS * 24 * 3600,))
            file.execute("INSERT INTO alignment VALUES (?, ?)", (now, n_ids))
            check([n for (n,) in file.execute("SELECT n_ids FROM alignment")])

    # ------------------------------------------------------------------------- the file

    @contextlib.contextmanager
    def _open(self, to_write: bool = False) -> Iterator[sqlite3.Connection]:
        """Yield the file in a transaction; to read without one, one in memory."""
        if to_write:
            try:  # where there is no file, an empty one that its owner alone can read
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            except OSError as error:
                raise ConfigError(
                    f"The folder '{self._folder}' must be writable, to count over runs "
                    f"what was told in them. Got this: {error.strerror}."
                ) from None
        is_there = self._path.is_file() and self._path.stat().st_size > 0
        if is_there:
            check_private(self._path.stat().st_mode, self._path, "ledger")
        where = self._path if to_write or is_there else ":memory:"
        try:
            with contextlib.closing(
                sqlite3.connect(where, timeout=WAIT, isolation_level=None)
            ) as file:
                file.execute("BEGIN IMMEDIATE" if to_write else "BEGIN")
                is_new = self._begin(file)
                yield file
                if to_write:
                    file.execute("COMMIT")
        except sqlite3.Error as error:
            raise RecordError(
                f"The file '{self._path}' must count what was told of each id. Got "
                f"this: {error}."
            ) from None
        if to_write and is_new and self._before.is_file():
            self._before.rename(self._before.with_suffix(".json.charged"))

    def _begin(self, file: sqlite3.Connection) -> bool:
        """Make tables in a file that has none; tell whether it was new."""
        ((version,),) = file.execute("PRAGMA user_version")
        if version == FORMAT:
            return False
        if version:
            raise RecordError(
                f"The file '{self._path}' must be of format {FORMAT}. Got {version}, "
                "of another release of lessvfl."
            )
        for statement in SCHEMA:
            file.execute(statement)
        known = read_json(self._before) if self._before.is_file() else {}
        secret = bytes.fromhex(known.get("secret", ""))
        file.execute(
            "INSERT INTO secret VALUES (?)",
            (secret or secrets.token_bytes(SECRET_BYTES),),
        )
        alignments = known.get("alignments", [])
        file.executemany("INSERT INTO alignment VALUES (?, ?)", alignments)
        most = Amounts()
        for runs in _earlier_runs(known):
            together = Amounts(*map(sum, zip(*runs.values(), strict=True)))
            most = Amounts(*map(max, zip(most, together, strict=True)))
            for name, amounts in runs.items():
                _write(file, "run", name, amounts)
        _write(file, "account", ANYBODY, most)
        return True


def _earlier_runs(known: Mapping[str, Any]) -> Iterator[dict[str, Amounts]]:
    """Yield the runs of each table, or column of labels, as earlier releases counted.

    They knew no ids: what the most spent table has is charged to everybody.
    """
    values = known.get("values", {})
    releases = known.get("releases", known.get("labels", {}))
    for table in {*values, *releases}:
        runs: dict[str, Amounts] = defaultdict(Amounts)
        for name, n in values.get(table, {}).items():
            runs[name] = Amounts(values=n, bits=BITS * n)
        for name, of_run in releases.get(table, {}).items():
            gaussian, epsilon = spent_by([Releases(**one) for one in of_run])
            runs[name] = runs[name]._replace(gaussian=gaussian, epsilon=epsilon)
        yield runs


def _secret(file: sqlite3.Connection) -> bytes:
    ((key,),) = file.execute("SELECT key FROM secret")
    return bytes(key)


def _hashed(secret: bytes, *parts: bytes) -> bytes:
    """Return a keyed hash, of an id, or of an id's hash and an answer."""
    whole = b"%d/" % len(parts) + b"/".join(parts)
    return hashlib.blake2b(whole, key=secret, digest_size=KEY_BYTES).digest()


def _ask(file: sqlite3.Connection, charge: Charge) -> Amounts:
    """Note which accounts are due, and by how often what is returned."""
    for statement in TEMPORARY:
        file.execute(statement)
    secret, accounts = _secret(file), [ANYBODY]
    if charge.whom is not None:
        names = (name.encode(errors="surrogatepass") for name in charge.whom)
        accounts = [_hashed(secret, name) for name in names]
    answers = [b""] * len(accounts)
    if charge.answers is not None:
        both = zip(accounts, charge.answers, strict=True)
        answers = [_hashed(secret, account, answer) for account, answer in both]
    rows = zip(range(len(accounts)), accounts, answers, strict=True)
    file.executemany("INSERT INTO asked VALUES (?, ?, ?)", rows)
    file.execute(EACH_ROW if charge.answers is None else EACH_ANSWER)
    if charge.run is None:
        return charge.more
    return charge.more.beyond(_amounts(file, "run", charge.run) or Amounts())


def _charged(file: sqlite3.Connection, charge: Charge) -> tuple[Amounts, Most]:
    """Return what each row is charged, and what was told of them after that."""
    more = _ask(file, charge)
    anybody = _amounts(file, "account", ANYBODY) or Amounts()
    if charge.whom is None:
        ((n,),) = file.execute("SELECT n FROM due")
        anybody = anybody.plus(Amounts(*(n * amount for amount in more)))
    query = OF_ALL if charge.whom is None else OF_DUE
    rows = file.execute(query, more._asdict()).fetchall() or [(0.0, 0.0, 0.0)]
    noise = {
        (anybody.gaussian + noisy, anybody.epsilon + pure) for pure, noisy, _ in rows
    }
    return more, Most(anybody.values + max(n for *_, n in rows), tuple(sorted(noise)))


def _amounts(
    file: sqlite3.Connection, table: Literal["account", "run"], key: str | bytes
) -> Amounts | None:
    """Return the row of a table that has a key; None: there is none."""
    name = "id" if table == "account" else "name"
    query = f"SELECT {_COLUMNS} FROM {table} WHERE {name} = ?"
    row = file.execute(query, (key,)).fetchone()
    return None if row is None else Amounts(*row)


def _write(
    file: sqlite3.Connection, table: str, key: str | bytes, amounts: Amounts
) -> None:
    query = f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?)"
    file.execute(query, (key, *amounts))
