"""Features that are pixels are drawn where they are."""

from typing import Any

import pytest
from matplotlib.patches import Rectangle

from lessvfl.report import figures, pixels


def run_of(removed, *, seed=0, n_planted=2):
    """Return a run over 4 x 4 pixels at two parties, which removed these features."""
    features = {}
    for number, party in enumerate(("left", "right")):
        rows = (2 * number, 2 * number + 1)
        names = [f"pixel_{y}_{x}" for y in rows for x in range(4)]
        names += [f"spurious_{party}_{i}" for i in range(n_planted)]
        gone = [name for name in names if name in removed]
        kept = [name for name in names if name not in removed]
        features[party] = {"kept": kept, "removed": gone}
    return {"seed": seed, "features": features, "curve": []}


@pytest.fixture
def runs():
    gone = {"pixel_0_3", "spurious_left_0", "spurious_right_0", "spurious_right_1"}
    return [run_of(gone), run_of(gone - {"pixel_0_3"} | {"pixel_2_0"}, seed=1)]


def legend_of(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def cells(ax):
    """Return the cells of a picture by their column and row."""
    found = {}
    for patch in ax.patches:
        if isinstance(patch, Rectangle):
            x, y = patch.get_xy()
            found[round(x - 0.05, 2), round(y - 0.05, 2)] = patch
    return found


def test_every_pixel_stands_at_its_place_and_planted_ones_beside(runs):
    ax = pixels.plot_pixels(runs[:1], figures.new_axes())
    drawn = cells(ax)
    assert len(drawn) == 16 + 4
    hatched = {place for place, patch in drawn.items() if patch.get_hatch()}
    assert (3, 0) in hatched  # pixel_0_3: column 3 of row 0
    assert len(hatched) == 4
    assert all(x > 4 for x, _ in hatched - {(3, 0)})
    names = [text.get_text() for text in ax.texts]
    assert names == ["left", "right", "pixels", "planted noise"]
    said = legend_of(ax)
    assert said == [
        "pixel, kept",
        "planted, kept",
        "pixel, removed",
        "planted, removed",
    ]


def test_what_only_some_seeds_kept_says_how_many(runs):
    ax = pixels.plot_pixels(runs, figures.new_axes())
    assert [t.get_text() for t in ax.texts].count("1/2") == 2
    colors = {place: patch.get_facecolor() for place, patch in cells(ax).items()}
    assert colors[3, 0] == colors[0, 2] != colors[1, 1]
    assert "kept in that many of 2 seeds" in pixels.drawn(runs, "pixels")[0].caption
    assert pixels.drawn(runs[1:], "pixels")[0].caption.endswith("Seed 1.")


def test_planted_features_are_spoken_of_only_where_there_are_some():
    runs = [run_of({"pixel_0_3"}, n_planted=0)]
    ax = pixels.plot_pixels(runs, figures.new_axes())
    said = legend_of(ax)
    assert said == ["kept", "removed"]
    (drawing,) = pixels.drawn(runs, "pixels")
    text = "".join([*drawing, *pixels.text_lines(runs)])
    assert "planted" not in text
    assert "noise" not in text
    assert "left kept 7 of 8 pixels; right kept 8 of 8 pixels" in text


def test_the_words_are_the_counts(runs):
    assert pixels.drawn(runs, "pixels")[0].alt == (
        "left kept 7.5 of 8 pixels and removed 1 of 2 planted features; "
        "right kept 7.5 of 8 pixels and removed 2 of 2 planted features"
    )


def test_in_a_terminal_it_is_lines_of_blocks(runs):
    full, some, gone = (pixels.BLOCKS[state] for state in ("kept", "some", "removed"))
    assert list(pixels.text_lines(runs)) == [
        f"left   {3 * full}{some}  1 of 2 planted removed",
        f"       {4 * full}",
        f"right  {some}{3 * full}  2 of 2 planted removed",
        f"       {4 * full}",
        f"{full} kept   {some} kept by some seeds   {gone} removed",
    ]


def test_parties_with_pixels_all_over_the_image_are_named_apart(runs):
    for run in runs:
        left, right = run["features"].values()
        for state in ("kept", "removed"):
            swap = [n for n in left[state] if n.startswith("pixel_0")]
            back = [n for n in right[state] if n.startswith("pixel_3")]
            left[state] = [n for n in left[state] if n not in swap] + back
            right[state] = [n for n in right[state] if n not in back] + swap
    ax = pixels.plot_pixels(runs[:1], figures.new_axes())
    heights = [text.get_position()[1] for text in ax.texts]
    assert heights[:2] == [1, 3]


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [run_of(())],  # nothing removed
        [{"seed": 0, "features": {"a": {"kept": ["age"], "removed": ["pixel_0_1"]}}}],
        [{"seed": 0, "features": {"a": {"kept": [], "removed": ["pixel_0_65"]}}}],
        [{"seed": 0, "features": {"a": None}}],  # not revealed
    ],
)
def test_there_is_no_picture_of_anything_else(runs):
    assert pixels.picture(runs) is None
    assert pixels.drawn(runs, "pixels") == []
    assert not list(pixels.text_lines(runs))
