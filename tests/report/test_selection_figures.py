"""Figures of a selection show what the run says of features, lambdas and parties."""

from typing import Any

import pytest
from matplotlib.axes import Axes

from lessvfl.errors import ConfigError
from lessvfl.report import figures, selection_figures, verdicts
from lessvfl.report.reasons import REASONS

pytestmark = pytest.mark.usefixtures("no_window")


NOTES = {words.note for words in REASONS.values()} - {""}


@pytest.fixture
def by_shadows(shadows):
    """Return a real run by shadows, with every reason that a selection can have."""
    return shadows.runs[0]


def drawn(run, **options):
    """Return party, name, width, verdict, whether hatched and words of every bar."""
    ax = selection_figures.plot_selection(run, figures.new_axes(), **options)
    notes: list[Any] = list(ax.texts)
    words = {round(note.xy[1]): note.get_text() for note in notes}
    blue = (0, 0x72 / 255, 0xB2 / 255)
    all_bars: list[Any] = list(ax.patches)
    bars = {round(bar.get_y() + bar.get_height() / 2): bar for bar in all_bars}
    found, party = [], ""
    for row, tick in enumerate(ax.get_yticklabels()):
        if tick.get_fontweight() == "bold":
            party = tick.get_text()
            assert row not in bars
            continue
        bar = bars[row]
        is_kept = bar.get_facecolor()[:3] == blue
        hatched = bool(bar.get_hatch())
        name = tick.get_text()
        found.append((party, name, bar.get_width(), is_kept, hatched, words[row]))
    return ax, found


def test_no_bar_contradicts_its_verdict(by_shadows):
    """What stays reaches the mark and what goes does not, or the reason is there."""
    ax, bars = drawn(by_shadows)
    mark: list[Any] = list(ax.get_lines())
    assert [set(line.get_xdata()) for line in mark] == [{1}]
    assert len(bars) == selection_figures.MOST_FEATURES
    assert any(not kept for _, _, _, kept, _, _ in bars)
    for _, name, width, kept, _, words in bars:
        assert kept == (width >= 1) or any(note in words for note in NOTES), name
    for note in NOTES:
        assert any(note in words for *_, words in bars)


def test_bars_are_strengths_and_verdicts_by_party(by_shadows):
    _, bars = drawn(by_shadows)
    found = {
        (party, name): (score, name in by_shadows["features"][party]["kept"])
        for party, how in by_shadows["selection"].items()
        for name, score in how["scores"].items()
    }
    order = list(by_shadows["features"])
    ranks = [(order.index(party), -width) for party, _, width, *_ in bars]
    assert ranks == sorted(ranks)
    for party, name, width, kept, in_pair, words in bars:
        score, is_kept = found[party, name]
        assert kept == is_kept
        if not in_pair:
            assert width == min(score, selection_figures.LONGEST)
            assert words.startswith(f"→ {score:.3g}") == (score > width)
    n_kept = sum(is_kept for _, is_kept in found.values())
    assert sum(kept for _, _, _, kept, _, _ in bars) == n_kept  # none is left out


def test_a_feature_kept_in_a_pair_has_the_bar_of_its_pair(by_shadows):
    _, bars = drawn(by_shadows)
    found = {(party, name): rest for party, name, *rest in bars}
    in_pairs = {key for key, (_, _, hatched, _) in found.items() if hatched}
    assert in_pairs == {("bank", "bank_00"), ("bank", "bank_01")}
    ((first, second, together),) = by_shadows["selection"]["bank"]["pairs"]
    width = min(together, selection_figures.LONGEST)
    for one, other in ((first, second), (second, first)):
        assert found["bank", one][:3] == [width, True, True]
        assert found["bank", one][3].endswith(f"with {other}")
    how = by_shadows["selection"]["bank"]
    how["pairs"] = [[first, first, 2.0], [first, second, 1.5]]
    found = {(party, name): rest for party, name, *rest in drawn(by_shadows)[1]}
    assert found["bank", first] == [2.0, True, True, "squared"]
    assert found["bank", second] == [1.5, True, True, f"with {first}"]


def test_a_few_features_are_the_strongest_that_were_kept(by_shadows):
    _, bars = drawn(by_shadows, most=4)
    kept = [one.value for one in verdicts.strengths(by_shadows) if one.is_kept]
    longest = [min(value, selection_figures.LONGEST) for value in sorted(kept)[-4:]]
    assert sorted(width for _, _, width, *_ in bars) == longest


def test_without_shadows_bars_are_norms_and_there_is_no_mark(make_record):
    run = make_record(method="group-lasso", n_seeds=1, importance=True).runs[0]
    ax, bars = drawn(run)
    assert any(kept for _, _, _, kept, _, _ in bars)
    for party, name, width, *_ in bars:
        assert width == run["importance"][party].get(name, 0.0)
    assert not ax.get_lines()
    assert "norm" in ax.get_xlabel()


def test_removed_features_say_why_they_went(by_shadows):
    went = {
        "says nothing beside the others": "adds nothing",
        "most": "more than allowed",
        "weak": "",
        "chance": "",
    }
    notes = {}
    for one in verdicts.strengths(by_shadows):
        if not one.is_kept:
            why = by_shadows["selection"][one.party]["why"][one.feature]
            assert one.note == went[why]
            notes[why] = one.note
    assert notes == went


def test_path_has_features_and_shadows_along_the_lambdas(by_shadows):
    ax = selection_figures.plot_path(by_shadows, figures.new_axes())
    others = ax.figure.axes
    lines: list[Any] = list(ax.get_lines())
    points = by_shadows["selection"]["bank"]["path"]
    path, choice = lines[:2]
    assert path.get_label() == "bank"
    assert list(path.get_xdata()) == [lam for lam, _, _ in points]
    assert list(path.get_ydata()) == [n for _, n, _ in points]
    lam = by_shadows["selection"]["bank"]["lam"]
    assert [[*choice.get_xdata()], [*choice.get_ydata()]] in [
        [[share], [n]] for share, n, _ in points if share == lam
    ]
    right: list[Any] = list(others[1].get_lines())
    assert list(right[0].get_ydata()) == [100 * share for _, _, share in points]
    assert len(right) == 3
    left, last = ax.get_xlim()
    assert left > last  # the largest lambda first


def test_path_of_one_party(by_shadows):
    ax = selection_figures.plot_path(by_shadows, party="insurer")
    labels = [line.get_label() for line in ax.get_lines()]
    assert "insurer" in labels
    assert "bank" not in labels
    with pytest.raises(ConfigError, match=r"one of bank, insurer, hospital. Got 'x'"):
        selection_figures.plot_path(by_shadows, party="x")


def test_parties_have_features_bytes_and_the_score_without(make_record):
    record = make_record(n_seeds=1, n_planted=0)
    (run,) = record.runs
    run["without"] = {"bank": {"accuracy": 0.5}}
    run["bill"] = [
        {"party": "bank", "direction": way, "stage": stage, "payload_bytes": n}
        for way, stage, n in (
            ("up", "train", 5000),
            ("down", "train", 3000),
            ("up", "evaluate", 9000),
        )
    ]
    ax = selection_figures.plot_parties(record)
    assert isinstance(ax, Axes)
    n_kept = len(run["features"]["bank"]["kept"])
    texts = [text.get_text() for text in ax.texts]
    final = run["accuracy"]["final"]
    assert texts[0] == (
        f"{n_kept} of 8 kept; 5.0 kB sent, 3.0 kB received\n"
        f"accuracy 0.500 without it (loss overstated), {final:.3f} with all"
    )
    assert "\n" not in texts[1]
    assert max(ax.get_xticks()) <= 8


def test_empty_figures_say_why(make_record):
    run = make_record(n_seeds=1).runs[0]
    nothing = {**run, "features": None, "selection": None}
    plots = (selection_figures.plot_selection, selection_figures.plot_path)
    said = [plot(nothing, figures.new_axes()).texts[0].get_text() for plot in plots]
    assert len(set(said)) == 2
    assert all(said)
