"""Which of its rows a server has in common with every party, and those of a seed."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from lessvfl.data import Places, Scratch
from lessvfl.errors import ConfigError, ProtocolError
from lessvfl.remote.align import Aligner, Ids
from lessvfl.remote.checkpoint import State, named_rows, read_state, write_state
from lessvfl.remote.config import ServerConfig
from lessvfl.remote.home import Home
from lessvfl.remote.server_folder import note_offers
from lessvfl.remote.session import find_common_rows
from lessvfl.remote.tables import LabelTable, SeedLabels
from lessvfl.run.profiles import Settings
from lessvfl.status import Status
from lessvfl.terms import PartyId, plural
from lessvfl.wire.hub import Hub


class ServerRows:
    """The common rows of a run, found once and kept in its run folder."""

    def __init__(
        self,
        config: ServerConfig,
        settings: Settings,
        table: LabelTable,
        home: Home,
        status: Status,
    ) -> None:
        self._config, self._settings = config, settings
        self._table, self._home, self._status = table, home, status
        self._ids = None if table.ids is None else Ids(table.ids, config.id or "id")
        self._scratch = Scratch(home.folder)
        self._of_seeds: dict[int, SeedLabels] = {}  # one, which may come again
        self._is_offering, self._n_offers = False, 0  # in an alignment

    @property
    def _path(self) -> Path:
        return self._home.folder / "rows.safetensors"

    @property
    def are_known(self) -> bool:
        """Tell whether they were found."""
        return self._path.is_file()

    @property
    def common(self) -> Places | None:
        """Return the common rows, which are known; None: all, as they stand."""
        rows = read_state(self._path).tensors.get("rows")
        return None if rows is None else rows.numpy()

    def find(self, hub: Hub, known: Mapping[PartyId, bool], has_begun: bool) -> None:
        """Find them with every party, unless all parties know them already."""
        if self.are_known:
            strangers = [party for party, knows in known.items() if not knows]
            if not strangers:
                return
            if has_begun:
                raise ConfigError(
                    f"Party '{strangers[0]}' must use its run folder of this run. Got "
                    "one without the common rows."
                )
        aligner, parties = self.new_aligner(), self._config.everyone
        n_rows, who = self._table.n_rows, plural(len(parties), "party", "parties")
        self._status.do(f"alignment: {plural(n_rows, 'row')} here, {who} asked")
        self._n_offers, self._is_offering = 0, True

        def offered(offers: Mapping[PartyId, bytes]) -> None:
            self._is_offering = False
            note_offers(self._home.folder, offers, hub.cut_off)

        def take(party: PartyId, message: bytes) -> bytes | None:
            try:
                return aligner.take(party, message)
            except ProtocolError as error:
                hub.cut_off(party, str(error))

        rows = find_common_rows(
            aligner,
            parties,
            send=hub.send,
            cut_off=hub.cut_off,
            take=take,
            offered=offered,
        )
        n_common = plural(len(rows), "common row")
        self._status.do(f"alignment: {n_common} of your {n_rows:,}")
        self._home.begin()
        write_state(self._path, State(named_rows(rows, n_rows), {}))
        self._of_seeds.clear()

    def answered(self) -> None:
        """Show that one more party has made its offer, while they make them."""
        if self._is_offering:
            self._n_offers += 1
            asked = f"{self._n_offers} of {len(self._config.everyone)} parties"
            self._status.do(f"alignment: {asked} have answered")

    def new_aligner(self) -> Aligner:
        """Return the server's side of alignment, the same after a restart."""
        return Aligner(
            self._config.align,
            self._ids,
            self._table.n_rows,
            secret=self._home.key("align"),
            tell=functools.partial(self._status.do, note=False),
        )

    def check(self, seeds: Sequence[int]) -> None:
        """Refuse common rows that cannot be split with every seed of the run."""
        table = self._common()
        for seed in seeds:
            table.split(self._settings, seed, self._home.seed)

    def of_seed(self, seed: int) -> SeedLabels:
        """Return the rows of a seed, once the common ones are known."""
        if seed not in self._of_seeds:
            self._of_seeds.clear()  # free those of another seed first
            self._of_seeds[seed] = SeedLabels.of(
                self._common(), self._settings, seed, self._scratch, self._home.seed
            )
        return self._of_seeds[seed]

    def _common(self) -> LabelTable:
        """Return the table of the common rows, mapped from disk."""
        rows = self.common
        if rows is None:
            return self._table
        return self._table.take(rows).kept(self._scratch)
