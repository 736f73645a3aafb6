"""What was selected, as figures: features by name, the path of lambdas, the parties."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from lessvfl.errors import ConfigError
from lessvfl.report import figures, server, tables, verdicts
from lessvfl.report.figures import BLACK, BLUE, CYCLE, VERMILION
from lessvfl.report.tables import RunNumbers
from lessvfl.report.verdicts import Strength
from lessvfl.run.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = (1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)  # of lambdas
MOST_FEATURES = 30  # that fit into a figure
LONGEST = 3.0  # strength in marks; a longer bar is cut and says how long it is
VERDICTS: dict[tuple[bool, bool], dict[str, Any]] = {  # kept, by its pair alone
    (True, False): {"facecolor": BLUE, "label": "kept"},
    (True, True): {"facecolor": BLUE, "hatch": "////", "label": "kept in a pair"},
    (False, False): {"facecolor": "#BFD9EA", "label": "removed"},
}


def plot_selection(
    run: RunNumbers, ax: Axes | None = None, *, most: int = MOST_FEATURES
) -> Axes:
    """Draw by party how strong its features are, and which of them were kept.

    The line is the mark that the party's shadows set. Where the verdict, the colour, is
    not what the bar says, the reason stands beside it. Without shadows the bars are the
    norms of the features' weights.

    Parameters
    ----------
    run : mapping
        One run, as in ``RunRecord.runs``.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    most : int, default=30
        The most features to draw: kept ones first, the strongest first.

    Returns
    -------
    matplotlib Axes
    """
    measured = verdicts.strengths(run)
    features = measured or [  # a feature that went has no norm
        Strength(party, feature, norm or 0.0, bool(n_kept), "group lasso", None)
        for party, feature, n_kept, _, norm in tables.feature_rows([run])
    ]
    first = sorted(features, key=lambda one: (not one.is_kept, -one.value))[:most]
    places = {party: place for place, party in enumerate(run["features"] or ())}
    first.sort(key=lambda one: (places[one.party], -one.value))
    rows: list[str | Strength] = []  # the name of a party stands above its features
    for party, strengths in itertools.groupby(first, key=lambda one: one.party):
        rows += [party, *strengths]
    ax = figures.own_axes(ax, figures.bars_height(len(rows)))
    if not rows:
        return figures.say(ax, "no party revealed its features")
    names = [row if isinstance(row, str) else row.feature for row in rows]
    figures.prepare_bars(ax, names, whole=False)
    right, in_legend = 1.25 if measured else 0.0, set()
    for y, one in enumerate(rows):
        if isinstance(one, str):
            ax.get_yticklabels()[y].set_fontweight("bold")
            continue
        width = min(one.value, LONGEST) if measured else one.value
        kind = (one.is_kept, one.why == "pair")
        style = VERDICTS[kind] | ({"label": None} if kind in in_legend else {})
        in_legend.add(kind)
        ax.barh(y, width, height=0.6, edgecolor="white", lw=0, **style)
        long = f"→ {one.value:.3g}" if one.value > width else ""
        note = ", ".join(filter(None, (long, figures.label(one.note, 20))))
        end = max(width, 1.0) if one.note else width
        figures.beside(ax, end, y, note)
        right = max(right, end / (1 - 0.022 * len(note)))
    ax.set_xlim(0, 1.03 * right or 1)
    words = "norm of the weights"
    if measured:
        ax.axvline(1, color=VERMILION, lw=1.6, label="mark")
        words = "strength; left of the mark could be chance"
    ax.set_xlabel(f"{words}, {figures.mean_of(run)}")
    figures.legend(ax)
    return ax


def plot_path(
    run: RunNumbers, ax: Axes | None = None, *, party: str | None = None
) -> Axes:
    """Draw the features and the share of shadows kept, along the path of lambdas.

    Parameters
    ----------
    run : mapping
        One run, as in ``RunRecord.runs``.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.
    party : str, optional
        The only one to draw; all by default.

    Returns
    -------
    matplotlib Axes
        That of the features; the shadows have one of their own on the right.
    """
    selection = run.get("selection") or {}
    if party is not None and party not in run["features"]:
        raise ConfigError(
            f"The 'party' to draw must be one of {', '.join(run['features'])}. "
            f"Got {party!r}."
        )
    ax = figures.own_axes(ax)
    if not selection:
        return figures.say(ax, "the method follows no path of lambdas")
    selection = {party: selection[party]} if party else selection
    shadows_ax = ax.twinx()
    for number, (party, how) in enumerate(selection.items()):
        lams, kept, shadows = zip(*how["path"], strict=True)
        look: Any = {"color": CYCLE[number % len(CYCLE)]}
        place = lams.index(how["lam"])
        ax.plot(lams, kept, label=figures.label(party), **look)
        ax.plot(lams[place], kept[place], "o", **look)
        shadows_ax.plot(lams, [100 * share for share in shadows], ls="--", **look)
    ax.plot([], [], color=BLACK, ls="--", label="shadows (right)")
    smallest = min(lam for how in selection.values() for lam, _, _ in how["path"])
    ticks = [lam for lam in TICKS if lam >= smallest]
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xticks(ticks, [f"{lam:g}" for lam in ticks])
    ax.invert_xaxis()
    ax.set_ylim(bottom=0)
    shadows_ax.set_ylim(bottom=0)
    ax.locator_params(axis="y", integer=True)
    ax.set_xlabel(
        f"lambda; 1 keeps nothing, the dot is the choice, {figures.mean_of(run)}"
    )
    ax.set_ylabel("features kept")
    shadows_ax.set_ylabel("shadows kept, %")
    figures.legend(ax)
    return ax


def plot_parties(record: RunRecord, ax: Axes | None = None) -> Axes:
    """Draw by party the features kept, with its bytes and the score without it.

    Parameters
    ----------
    record : RunRecord
        Its runs are averaged; bytes are those of their ``bill``.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
    """
    counts, missed = tables.mean_counts(record.runs), tables.missed(record)
    ax = figures.own_axes(ax, figures.bars_height(2 * len(counts)))
    _, score = tables.first_score(record)
    texts = {}
    for row in server.party_rows(record):
        party = row["party"]
        text = f"{row['features']} kept; {row['sent']} sent, {row['received']} received"
        if party in missed:
            without, whole = missed[party]
            text += f"\n{score} {without:.3f} without it (loss overstated), "
            text += f"{whole:.3f} with all"
        texts[party] = text
    figures.stack_features(ax, counts, texts, room=2.6)
    longest = max(one.held for one in counts.values())
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= longest])
    ax.set_xlabel(f"features, {figures.mean_of(record.runs)}")
    return ax
