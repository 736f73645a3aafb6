"""The grid as one program: the numbers of `lessvfl run`, for many settings at once."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from lessvfl import data, settings
from lessvfl.core import linear
from lessvfl.errors import ConfigError
from lessvfl.run import profiles, simulate
from lessvfl_bench.paper import curves, grid, stages
from lessvfl_bench.paper.chunks import Bench
from lessvfl_bench.paper.model import Model
from lessvfl_bench.paper.nets import ALIGNED, side_by_side
from lessvfl_bench.paper.scene import Scene, Spec
from lessvfl_bench.paper.store import Place, Store

SHORT: dict[str, Any] = {
    "train_epochs": 2,
    "party_epochs": 12,
    "server_epochs": 10,
    "joint_epochs": 6,
    "hidden": 12,
    "embedding_size": 5,
    "batch_size": 60,
}
SEEDS = (0, 1)


@functools.cache
def a_dataset(n_classes: int = 2):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 24))
    y = np.digitize(X[:, 0] + X[:, 7] - X[:, 13], [0.0, 1.0][: n_classes - 1])
    return data.from_arrays(X, y, name=f"classes{n_classes}")


def a_scene(profile="official-code", spurious=0.5, n_classes=2, **overrides):
    return Scene(
        a_dataset(n_classes), profile, SEEDS, spurious, overrides=SHORT | overrides
    )


SPECS = (
    Spec("less-vfl", 3.0, 0.02, 1),
    Spec("less-vfl", 3.5, 0.7, 2),
    Spec("less-vfl", 12.0, 0.02, 2),
    Spec("local-lasso", 3.0, 0.0, 1),
)
GROUP_SPECS = (Spec("group-lasso", 6.5), Spec("group-lasso", 20.0))


def run_all(scene: Scene, specs=(*SPECS, *GROUP_SPECS), memory=None):
    bench = Bench(
        scene.profile,
        scene.seeds,
        "cpu",
        Store(None),
        memory=memory,
        overrides=scene.overrides,
    )
    return bench.selections(scene, specs)


def simulated(scene: Scene, spec: Spec):
    """Run a setting the ordinary way."""
    known = settings.fields_of(profiles.sections(spec.method))
    own = {k: v for k, v in scene.overrides.items() if k in known}
    own["lam_party"] = spec.lam_party
    if spec.method != "group-lasso":
        own["pretrain_epochs"] = spec.pretrain_epochs
    if spec.method == "less-vfl":
        own["lam_server"] = spec.lam_server
    resolved = profiles.resolve(spec.method, scene.profile, scene.dataset, own)
    job = simulate.Job(scene.dataset, resolved, spurious=scene.spurious)
    return simulate.simulate(job, list(scene.seeds))


each_kind = pytest.mark.parametrize(
    "kind",
    [
        {"profile": "official-code", "n_classes": 3, "dtype": "float32"},
        {"profile": "official-code", "activation": "tanh", "row_order": "shuffle"},
        {
            "profile": "official-code",
            "batch_size": 40,
            "spurious": (0.8, 0.25, 0.1, 0.0),
        },
        {"profile": "paper"},
        {"profile": "paper", "activation": "none", "n_classes": 3},
    ],
    ids=lambda kind: "-".join(str(value) for value in kind.values()),
)


@each_kind
def test_the_numbers_are_those_of_a_run(kind):
    """Support, curves and costs of every setting and seed, both directions."""
    scene = a_scene(**{"dtype": "float64"} | kind)
    for spec, place in run_all(scene).items():
        for s, one in enumerate(simulated(scene, spec)):
            mine = curves.selection_curve(scene, spec, place, s)
            points = one.numbers["curve"]
            assert list(mine.stages) == [point["stage"] for point in points]
            for name in ("accuracy", "balanced_accuracy", "train_accuracy"):
                theirs = [point[name] for point in points]
                np.testing.assert_allclose(getattr(mine, name), theirs, atol=1e-12)
            removed = [point["removed_share"] for point in points]
            np.testing.assert_allclose(mine.removed, removed, atol=1e-12)
            cost = [point["paper_mib"] for point in points]
            np.testing.assert_allclose(mine.paper_mib, cost, rtol=1e-12)
            paid = [point["payload_bytes"] / 2**20 for point in points]
            np.testing.assert_allclose(mine.payload_mib, paid, rtol=1e-12)
            assert mine.real_kept == one.numbers["spurious"]["real_kept_share"]
            kept = one.numbers["features"].values()
            assert mine.n_kept == sum(len(party["kept"]) for party in kept)
            assert not mine.diverged


def test_settings_differ_where_they_should():
    """The comparison above would pass if every run kept everything, or nothing."""
    scene = a_scene()
    shares = {
        spec: place.arrays["features"][:, :, place.index].mean()
        for spec, place in run_all(scene).items()
    }
    assert len(set(shares.values())) >= 4
    assert min(shares.values()) == 0
    components = {
        int(place.arrays["components"][:, :, place.index].sum())
        for place in run_all(scene).values()
    }
    assert len(components) >= 2


def test_plain_training_is_that_of_a_run():
    scene = a_scene(spurious=0.0)
    place = Place(grid.run_plain(scene), 0, "")
    known = settings.fields_of(profiles.sections("plain"))
    own = {k: v for k, v in SHORT.items() if k in known}
    resolved = profiles.resolve("plain", "official-code", scene.dataset, own)
    runs = simulate.simulate(simulate.Job(scene.dataset, resolved), list(SEEDS))
    for s, one in enumerate(runs):
        mine = curves.selection_curve(scene, Spec("plain"), place, s)
        points = one.numbers["curve"]
        theirs = [point["accuracy"] for point in points]
        np.testing.assert_allclose(mine.accuracy, theirs, atol=1e-12)
        cost = [point["paper_mib"] for point in points]
        np.testing.assert_allclose(mine.paper_mib, cost, rtol=1e-12)
        paid = [point["payload_bytes"] / 2**20 for point in points]
        np.testing.assert_allclose(mine.payload_mib, paid, rtol=1e-12)


def test_equal_tasks_are_run_once(monkeypatch):
    """lambda_s = 0 keeps every component: stage 3 has nothing new to do."""
    scene = a_scene()
    widths = []
    original = stages.select_features

    def spy(scene, nets, components, lam):
        widths.append(components.shape[2])
        return original(scene, nets, components, lam)

    monkeypatch.setattr(grid, "select_features", spy)
    twins = (Spec("less-vfl", 0.3, 0.0, 1), Spec("local-lasso", 0.3, 0.0, 1))
    places = run_all(scene, twins)
    assert widths == [1]
    first, second = (places[spec] for spec in twins)
    features = first.arrays["features"]
    assert (features[:, :, first.index] == features[:, :, second.index]).all()


def test_chunks_change_nothing():
    scene = a_scene("paper")
    whole = run_all(scene)
    cut = run_all(scene, memory=1)  # a setting a chunk
    assert len({place.file for place in cut.values()}) == len(whole)
    for spec, place in whole.items():
        other = cut[spec]
        assert other.index == 0
        for name, values in place.arrays.items():
            axis = 1 if name == "diverged" else 2
            mine = values.take(place.index, axis=axis)
            theirs = other.arrays[name].take(0, axis=axis)
            np.testing.assert_allclose(mine, theirs, atol=0.01, err_msg=name)


def test_models_of_other_widths_are_trained_apart(monkeypatch):
    scene = a_scene(dtype="float64")
    together = run_all(scene)
    monkeypatch.setattr(grid, "WORTHWHILE", 1)
    widths = []
    original = grid._train_on

    def spy(scene, model, *others):
        widths.append(model.nets.weights[0].shape[4])
        return original(scene, model, *others)

    monkeypatch.setattr(grid, "_train_on", spy)
    apart = run_all(scene, SPECS)
    assert len(widths) == 2  # those with a few columns, those with more
    for spec, place in apart.items():
        for name, values in place.arrays.items():
            axis = 1 if name == "diverged" else 2
            theirs = together[spec].arrays[name].take(together[spec].index, axis=axis)
            mine = values.take(place.index, axis=axis)
            np.testing.assert_allclose(mine, theirs, atol=1e-12, err_msg=name)


def test_chunks_fit_the_limit():
    scene = a_scene()
    one = grid.bytes_per_setting(scene)
    bench = Bench("official-code", SEEDS, "cpu", Store(None), memory=2 * one)
    chunks = bench._chunks(scene, bench.key(scene), SPECS)
    assert [len(chunk) for chunk in chunks] == [2, 2]
    bench.memory = None  # as much as the machine has
    assert len(bench._chunks(scene, bench.key(scene), SPECS)) == 1


def test_a_setting_that_diverges_does_not_disturb_the_others():
    scene = a_scene(party_step_size=1e6)
    specs = (Spec("local-lasso", 0.3, 0.0, 1), Spec("group-lasso", 0.3))
    places = run_all(scene, specs)
    sick, well = (places[spec] for spec in specs)
    assert sick.arrays["diverged"][:, sick.index].all()
    assert not well.arrays["diverged"][:, well.index].any()


def test_rows_held_out_come_from_training_alone():
    scene = a_scene()
    held = scene.held_out()
    for problem, source in zip(held.problems, scene.problems, strict=True):
        n_rows = len(source.y_train)
        assert len(problem.y_test) == int(0.2 * n_rows)
        assert len(problem.y_train) + len(problem.y_test) == n_rows
        rows = {row.tobytes() for row in source.parties[0].X_train}
        for table in (problem.parties[0].X_train, problem.parties[0].X_test):
            assert {row.tobytes() for row in table} <= rows
    labels = [problem.y_test.tolist() for problem in held.problems]
    assert labels[0] != labels[1]  # each seed holds out its own


def test_without_a_curve_only_the_end_is_seen():
    scene = a_scene()
    bench = Bench("official-code", SEEDS, "cpu", Store(None), overrides=SHORT)
    short = bench.selections(scene, (*SPECS, *GROUP_SPECS), curve=False)
    for spec, place in run_all(scene).items():
        one = short[spec]
        assert len(one.arrays["right_test"]) == 1
        for s in range(len(SEEDS)):
            whole = curves.selection_curve(scene, spec, place, s)
            end = curves.ending(scene, one, s)
            assert end.score == whole.accuracy[-1]
            assert end.removed == whole.removed[-1]


# Of every setting that the program reads in part: a value it refuses, what it takes.
def test_the_scale_of_first_weights_is_honoured():
    """The networks come from where those of a run come from."""
    scene = a_scene(input_scale=0.5, dtype="float64")
    spec = Spec("local-lasso", 0.3, pretrain_epochs=1)
    (place,) = run_all(scene, (spec,)).values()
    for s, one in enumerate(simulated(scene, spec)):
        mine = curves.selection_curve(scene, spec, place, s)
        theirs = [point["train_accuracy"] for point in one.numbers["curve"]]
        np.testing.assert_allclose(mine.train_accuracy, theirs, atol=1e-12)
    (whole,) = run_all(a_scene(dtype="float64"), (spec,)).values()
    assert not np.array_equal(place.arrays["right_train"], whole.arrays["right_train"])


def test_data_that_do_not_fit_are_refused():
    amounts = data.load("synthetic", options={"n_samples": 50, "n_test": 5})
    with pytest.raises(ConfigError, match=r"a data set with classes\. Got 'synth"):
        Scene(amounts, "official-code", (0,), 0.5)
    words = np.array([["a"], ["b"], ["c"], ["a"]] * 5, dtype=object)
    table = np.hstack([np.arange(60.0).reshape(20, 3), words])
    frame = data.from_arrays(table, [0, 1] * 10, name="words")
    with pytest.raises(ConfigError, match="features of one column each"):
        Scene(frame, "official-code", (0,), 0.0)


def test_a_collapsed_stack_maps_rows_as_its_layers_do():
    """Rows with a one meet one map, whose last layer may be another."""
    nets = Model.create(a_scene(dtype="float64")).nets
    P, S, G, _, D = nets.weights[0].shape
    X = torch.randn(P, S, 7, D + ALIGNED, dtype=torch.float64)
    X[..., D] = 1
    whole = side_by_side(*nets.collapse())
    torch.testing.assert_close(X.unsqueeze(2) @ whole.mT, nets.embed(X))
    head = torch.randn(P, S, G, 2, SHORT["embedding_size"], dtype=torch.float64)
    last, added = nets.last
    other = side_by_side(*nets.collapse((head @ last, head @ added)))
    torch.testing.assert_close(other, head @ whole)


def test_a_quadratic_form_has_the_gradient_of_its_formula():
    rows = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    M = torch.randn(2, 4, 4, dtype=torch.float64)
    M = M @ M.mT
    values: Any = linear.Quadratic.apply(rows, M)
    torch.testing.assert_close(values, (rows * (rows @ M)).sum(dim=-1))
    assert torch.autograd.gradcheck(lambda v: linear.Quadratic.apply(v, M), rows)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("profile", ["official-code", "paper"])
def test_a_device_gives_the_same_support(profile):
    host = a_scene(profile)
    device = Scene(a_dataset(), profile, SEEDS, 0.5, "cuda", SHORT)
    start = stages.pretrain(device, 2)
    tasks = [(1, 0.02), (2, 0.7), (2, 0.02)]
    fusion, kept = stages.select_components(device, start, tasks)
    found = grid.run_selection(device, start, fusion, kept, SPECS)["features"]
    places = run_all(host)
    for g, spec in enumerate(SPECS):
        place = places[spec]
        mine = place.arrays["features"][:, :, place.index]
        assert (found[:, :, g] == mine).mean() >= 0.99
