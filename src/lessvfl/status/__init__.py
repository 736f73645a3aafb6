"""What a run is doing: a value its server updates, and views that show it.

`Status` is written by the run and read by everybody else: the terminal view, the page,
``/status.json`` and ``/metrics`` of `lessvfl.web.status.StatusServer`. It knows names,
counts, bytes and times; it has no place for data, labels, masks or embeddings.
"""

from lessvfl.status.snapshot import Snapshot
from lessvfl.status.value import Status

__all__ = ["Snapshot", "Status"]
