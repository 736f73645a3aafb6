"""Figures return axes and show what the run says."""

import io
import sys
from typing import Any

import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessvfl.report import figures, parts, selection_figures

pytestmark = pytest.mark.usefixtures("no_window")


@pytest.fixture
def run(make_record):
    return make_record(n_seeds=1).runs[0]


@pytest.mark.parametrize(
    "plot", [figures.plot_features, figures.plot_components, figures.plot_bytes]
)
def test_bars_return_axes_for_one_run_and_for_several(plot, make_record):
    runs = make_record().runs
    assert isinstance(plot(runs[0]), Axes)
    ax = Figure().subplots()
    assert plot(runs, ax) is ax
    assert "mean of 3 seeds" in ax.get_xlabel()


def test_a_notebook_figure_is_known_to_pyplot_and_the_page_is_not(run):
    figures.plot_features(run)
    assert len(pyplot.get_fignums()) == 1
    figures.plot_features(run, figures.new_axes())
    assert len(pyplot.get_fignums()) == 1


def test_every_odd_record_can_be_drawn(odd_records):
    for record in odd_records.values():
        for plot in (
            figures.plot_curve,
            figures.plot_features,
            figures.plot_components,
            figures.plot_bytes,
        ):
            ax = figures.new_axes()
            assert plot(record.runs, ax) is ax


def bars(ax: Any) -> Any:
    """Return the bars of axes, in the order they were drawn."""
    return list(ax.patches)


def lines(ax: Any) -> Any:
    """Return the lines of axes, in the order they were drawn."""
    return list(ax.get_lines())


def lines_of(ax: Any) -> Any:
    """Return the lines of axes by their label."""
    return {line.get_label(): line for line in ax.get_lines()}


def test_feature_bars_add_up_to_the_features_of_a_party(run):
    ax = figures.plot_features(run, figures.new_axes())
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert names == ["bank", "insurer", "hospital"]
    widths = dict.fromkeys(range(3), 0.0)
    for bar in bars(ax):
        widths[round(bar.get_y() + bar.get_height() / 2)] += bar.get_width()
    assert widths == {0: 15, 1: 15, 2: 15}
    kept = run["features"]["bank"]["kept"]
    assert f"{len(kept)} kept" in [text.get_text() for text in ax.texts]


def test_byte_bars_are_the_bill(run):
    ax = figures.plot_bytes(run, figures.new_axes())
    bill = run["communication"]["by_stage"]
    expected = [bill[stage][way] / 1e6 for way in ("up", "down") for stage in bill]
    assert [bar.get_width() for bar in bars(ax)] == pytest.approx(expected)
    assert "not in the cost" in ax.get_xlabel()


def test_evaluation_does_not_set_the_scale_of_the_bytes(run):
    """It is not in the cost, and may be many times more than that."""
    bill = run["communication"]["by_stage"]
    bill = {**bill, "evaluate": {"up": 10**9, "down": 0, "rounds": 1}}
    run = {**run, "communication": {"by_stage": bill}}
    ax = figures.plot_bytes(run, figures.new_axes())
    dearest = max(bill["train"]["up"], bill["pretrain"]["up"]) / 1e6
    assert max(bar.get_width() for bar in bars(ax)) == pytest.approx(dearest)
    assert "1.0 GB (bar cut)" in [text.get_text() for text in ax.texts]


@pytest.mark.parametrize(
    "plot", [selection_figures.plot_selection, selection_figures.plot_path]
)
def test_a_figure_of_one_seed_names_it_as_it_was_given(shadows, plot):
    run = shadows.runs[0] | {"seed": 7}
    assert plot(run, figures.new_axes()).get_xlabel().endswith(", seed 7")


@pytest.mark.parametrize(
    "plot", [figures.plot_features, figures.plot_components, figures.plot_bytes]
)
def test_bars_of_one_seed_name_it_as_it_was_given(run, plot):
    assert ", seed 7" in plot({**run, "seed": 7}, figures.new_axes()).get_xlabel()


def test_component_bars_are_kept_and_removed(run):
    ax = figures.plot_components(run, figures.new_axes())
    kept = [c["kept"] for c in run["components"].values()]
    assert [bar.get_width() for bar in bars(ax)[:3]] == kept


@pytest.mark.parametrize(("times", "scale"), [(2, "linear"), (1000, "log")])
def test_costs_that_differ_much_are_drawn_in_powers_of_ten(make_record, times, scale):
    ax, dear = figures.new_axes(), make_record(method="plain")
    for run in dear.runs:
        for point in run["curve"]:
            point["payload_bytes"] *= times
    figures.plot_curve(make_record().runs, ax, name="LESS-VFL")
    figures.plot_curve(dear.runs, ax, name="Plain VFL")
    assert ax.get_xscale() == scale
    parts.to_svg(ax, "curve")
    shown = [text.get_text() for text in ax.get_xticklabels()]
    assert ("10" in shown) == (scale == "log")
    assert not any("$" in text for text in shown)


def test_curve_marks_selection_and_target(make_record):
    record = make_record(target=0.9)
    ax = figures.plot_curve(record.runs, figures.new_axes())
    named = lines_of(ax)
    assert list(named["target 0.9"].get_ydata()) == [0.9, 0.9]
    when = [
        max(p["payload_bytes"] for p in run["curve"] if p["stage"] != "train") / 1e6
        for run in record.runs
    ]
    assert named["features selected"].get_xdata()[0] == pytest.approx(sum(when) / 3)
    assert len(named["mean of 3 seeds"].get_xdata()) == len(record.runs[0]["curve"])


def test_plain_and_group_lasso_have_no_moment_of_selection(make_record):
    for method in ("plain", "group-lasso"):
        assert figures.selection_megabytes(make_record(method=method).runs[0]) is None


def test_selection_before_any_byte_is_at_zero(run):
    curve = [point for point in run["curve"] if point["stage"] == "train"]
    assert figures.selection_megabytes({**run, "curve": curve}) == 0


def test_mean_curve_uses_shared_epochs_only(make_record):
    runs = make_record(n_seeds=2).runs
    short = {**runs[1], "curve": runs[1]["curve"][:4]}
    assert len(figures.mean_curve([runs[0], short], "accuracy")) == 4
    no_overlap = {**runs[1], "curve": runs[1]["curve"][-1:]}
    lonely = [{**runs[0], "curve": runs[0]["curve"][:1]}, no_overlap]
    assert figures.mean_curve(lonely, "accuracy") == []
    figures.plot_curve(lonely, figures.new_axes(), name="apart")


def test_one_point_is_drawn_as_a_dot(run):
    ax = figures.plot_curve([{**run, "curve": run["curve"][:1]}], figures.new_axes())
    assert ax.get_lines()[0].get_marker() == "o"


def test_selection_ends_before_training_goes_on(shadows):
    run = shadows.runs[0]
    sent = [p["payload_bytes"] for p in run["curve"] if p["stage"] == "select_features"]
    assert figures.selection_megabytes(run) == sent[0] / 1e6


def test_empty_figures_say_why(run):
    said = []
    nothing = {**run, "features": None, "components": {}, "curve": []}
    nothing["communication"] = {"by_stage": None}
    for plot in (figures.plot_features, figures.plot_components, figures.plot_bytes):
        said.append(plot(nothing, figures.new_axes()).texts[0].get_text())
    said.append(figures.plot_curve([nothing], figures.new_axes()).texts[0].get_text())
    said.append(figures.plot_kept({}, figures.new_axes()).texts[0].get_text())
    assert len(set(said)) == 5
    assert all(said)
    named = figures.plot_curve([nothing], figures.new_axes(), name="x")
    assert not named.texts


def test_a_bill_with_gaps_counts_as_zero(run):
    run = {**run, "communication": {"by_stage": {"odd_stage": {"up": None, "down": 0}}}}
    ax = figures.plot_bytes(run, figures.new_axes())
    assert ax.get_yticklabels()[0].get_text() == "odd stage"
    assert [bar.get_width() for bar in bars(ax)] == [0, 0]


def test_kept_by_method_averages_over_seeds(make_record):
    plain = make_record(method="plain").runs
    ax = figures.plot_kept({"plain": plain, "none": []}, figures.new_axes())
    assert [text.get_text() for text in ax.texts] == ["45 kept"]


def test_svg_is_the_same_twice_and_stands_alone(run):
    texts = []
    for _ in range(2):
        with figures.page_style():
            ax = figures.plot_features(run, figures.new_axes())
            texts.append(parts.to_svg(ax, "one"))
    assert texts[0] == texts[1]
    assert texts[0].startswith("<svg")
    assert "http" not in texts[0]
    assert 'id="figure_1"' not in texts[0]
    assert "url(#one-" in texts[0]
    assert ">bank</text>" in texts[0]


def test_a_figure_is_laid_out_once_for_all_its_formats(monkeypatch):
    ax = figures.new_axes()
    engine: Any = type(ax.figure.get_layout_engine())
    execute, calls = engine.execute, []

    def count(*args):
        calls.append(args)
        return execute(*args)

    monkeypatch.setattr(engine, "execute", count)
    figures.save(ax, io.BytesIO(), "png")
    n_calls, place = len(calls), ax.get_position().bounds
    assert n_calls > 0
    parts.to_svg(ax, "one")
    assert (len(calls), ax.get_position().bounds) == (n_calls, place)


def test_page_style_leaves_the_callers_alone():
    before = pyplot.rcParams["font.size"]
    with figures.page_style():
        assert pyplot.rcParams["font.size"] == 9
    assert pyplot.rcParams["font.size"] == before


def test_names_are_drawn_as_they_are():
    assert figures.label("a$b$\n") == "a\\$b\\$\ufffd"
    assert figures.label("a" * 40) == "a" * 27 + "…"


def test_figures_need_no_pyplot_to_be_imported():
    assert "pyplot" not in vars(sys.modules["lessvfl.report.figures"])
