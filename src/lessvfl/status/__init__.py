"""What a run is doing: a value its server updates, and a local page that shows it.

`Status` is written by the run and read by everybody else: the terminal view, the page,
``/status.json`` and ``/metrics`` of `StatusServer`. It knows names, counts, bytes and
times; it has no place for data, labels, masks or embeddings.
"""

from lessvfl.status.snapshot import Snapshot
from lessvfl.status.value import Status
from lessvfl.status.web import StatusServer, local_address

__all__ = ["Snapshot", "Status", "StatusServer", "local_address"]
