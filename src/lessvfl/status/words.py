"""A snapshot in words, the same on the page and in the terminal."""

from __future__ import annotations

from lessvfl.status.value import Snapshot


def bytes_text(n_bytes: float) -> str:
    """Write a number of bytes in the unit that fits, 1 MB = 1,000,000 bytes.

    >>> bytes_text(3_400_000), bytes_text(512), bytes_text(999_960)
    ('3.4 MB', '512 bytes', '1.0 MB')
    """
    if n_bytes < 1000:
        return f"{n_bytes:.0f} bytes"
    size, units = n_bytes / 1000, iter(("kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 999.95 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:,.1f} {unit}"


def time_text(seconds: float | None) -> str:
    """Write a length of time in its two largest units.

    >>> time_text(7.2), time_text(125), time_text(7260), time_text(None)
    ('7 s', '2 min 5 s', '2 h 1 min', '–')
    """
    if seconds is None:
        return "–"
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes == 0:
        return f"{whole} s"
    if hours == 0:
        return f"{minutes} min {whole % 60} s"
    if days == 0:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def rate_text(steps_per_second: float | None) -> str:
    """Write a rate to three digits.

    >>> rate_text(1234.5), rate_text(0.5), rate_text(None)
    ('1,234', '0.5', '–')
    """
    if steps_per_second is None:
        return "–"
    if steps_per_second >= 100:
        return f"{steps_per_second:,.0f}"
    return f"{steps_per_second:.3g}"


def stage_text(stage: str) -> str:
    """Write the name of a stage with spaces."""
    return stage.replace("_", " ")


def place_text(snapshot: Snapshot) -> str:
    """Say where in its stage a run is."""
    stage = snapshot["stage"]
    if stage is None:
        return "starting"
    if snapshot["step"] is not None:
        return (
            f"{stage_text(stage)}: step {snapshot['step']:,} of {snapshot['n_steps']:,}"
        )
    return (
        f"{stage_text(stage)}: epoch {snapshot['epoch']:g} of {snapshot['n_epochs']:g}"
    )


def headline(snapshot: Snapshot) -> str:
    """Say in one line what a run is doing."""
    state, message = snapshot["state"], snapshot["message"]
    if state == "running":
        return place_text(snapshot)
    if state == "done":
        return f"done in {time_text(snapshot['seconds'])}"
    return message if state == "waiting" else f"{state}: {message}"


def progress(snapshot: Snapshot) -> tuple[float, float] | None:
    """Return how much of the stage is done, and how much there is."""
    for done, goal in (("step", "n_steps"), ("epoch", "n_epochs")):
        have, want = snapshot.get(done), snapshot.get(goal)
        if isinstance(have, int | float) and isinstance(want, int | float) and want:
            return min(have, want), want
    return None


def printable(text: str) -> str:
    r"""Replace what a terminal would obey rather than show.

    >>> printable("a\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
