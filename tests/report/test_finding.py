"""The sentence of a comparison says what the records say."""

import pytest

from lessvfl.report import sentences, tables
from lessvfl.report.finding import BYTES, finding


def two(make_record, first=None, second=None, **more):
    """Return a run that selects and one that does not, with these final accuracies."""
    records = [make_record(method="less-vfl", **more)]
    records.append(make_record(method="plain", **more))
    for record, scores in zip(records, (first, second), strict=True):
        for run, score in zip(record.runs, scores or (), strict=bool(scores)):
            run["accuracy"] = run["accuracy"] | {"final": score}
    return {tables.method_title(r.header["method"]): r for r in records}


def mean_of(record, path):
    found = tables.over_seeds(record.runs, path)
    assert found is not None
    return found.mean


def send(record, factor):
    for run in record.runs:
        sent = run["communication"]["payload_bytes"]
        sent.update({way: int(factor * n) for way, n in sent.items()})


def test_it_tells_the_one_that_selected_against_the_other(make_record):
    records = two(make_record, (0.96, 0.98, 0.97), (0.96, 0.97, 0.98))
    said = finding(dict(reversed(records.items())))  # in whatever order
    share = mean_of(records["LESS-VFL"], "spurious.removed_share")
    assert said.startswith(f"LESS-VFL found {100 * share:.0f} % of the planted noise")
    same = "at the same accuracy within two standard errors (0.970 against 0.970, "
    assert said.endswith(f"than plain VFL, {same}3 seeds)")


@pytest.mark.parametrize(
    ("ours", "words"),
    [
        ((0.88, 0.89, 0.91), "at a lower accuracy (0.893 against 0.970, 3 seeds, "),
        ((0.970, 0.981, 0.990), "at a higher accuracy (0.980 against 0.970, 3 seeds, "),
        ((0.97, 0.96, 0.99), "at the same accuracy within two standard errors (0.973"),
    ],
)
def test_accuracy_differs_only_beyond_two_paired_errors(make_record, ours, words):
    """Seeds spread more than the second pair differs, which each seed shows."""
    assert words in finding(two(make_record, ours, (0.96, 0.97, 0.98)))


def test_settings_of_the_transport_that_differ_are_said_with_the_bytes(make_record):
    records = two(make_record)
    for record, own in zip(
        records.values(), ((4, 8, 21.0, 256), (32, 16, 100, 1000)), strict=True
    ):
        names = ("bits", "embedding_size", "train_epochs", "batch_size")
        record.header["config"] = dict(zip(names, own, strict=True))
    differ = (
        "(4 bits a value instead of 32, 8 components instead of 16, 21 epochs instead "
        "of 100, other steps)"
    )
    assert f"bytes than plain VFL {differ}, at " in finding(records)
    same = make_record(method="plain")
    same.header["config"] = dict(records["LESS-VFL"].header["config"])
    for one in (records["Plain VFL"], same):
        for run in one.runs:
            run["features"] = {
                name: {"kept": party["kept"] + party["removed"], "removed": []}
                for name, party in run["features"].items()
            }
    said = finding(records | {"Plain VFL, alike": same})
    first, second = said.split("; it sent ")
    assert "plain VFL, alike" in first
    assert "(" not in first.split("plain VFL, alike")[0]
    assert second.endswith(f"bytes than plain VFL {differ}")


def test_one_seed_has_no_spread_to_judge_by(make_record):
    said = finding(two(make_record, (0.97,), (0.97,), n_seeds=1))
    assert said.endswith(", with accuracy 0.970 against 0.970 (1 seed)")


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (20, "sent 20 times fewer bytes than"),
        (2.5, "sent 2.5 times fewer bytes than"),
        (1.25, "sent 20 % fewer bytes than"),
        (1.01, "sent about as many bytes as"),
        (0.8, "sent 25 % more bytes than"),
        (0.1, "sent 10 times more bytes than"),
    ],
)
def test_bytes_are_those_of_the_records(make_record, factor, words):
    records = two(make_record)
    ours, theirs = (mean_of(record, BYTES) for record in records.values())
    send(records["Plain VFL"], factor * ours / theirs)
    assert f" and {words} plain VFL" in finding(records)


def test_noise_is_spoken_of_only_where_some_was_planted(make_record):
    records = two(make_record, n_planted=0)
    kept = mean_of(records["LESS-VFL"], "features.*.kept")
    assert finding(records).startswith(f"LESS-VFL kept {kept:.3g} of 24 features")
    assert "noise" not in finding(records)


@pytest.mark.parametrize(
    ("share", "words"), [(0.996, "99.6 %"), (1.0, "100 %"), (0.96, "96 %")]
)
def test_almost_all_is_not_rounded_to_all(make_record, share, words):
    records = two(make_record)
    for run in records["LESS-VFL"].runs:
        run["spurious"]["removed_share"] = share
    assert f"found {words} of the planted noise" in finding(records)


def test_of_many_runs_the_best_are_named(make_record):
    records = two(make_record) | {"Mine": make_record(method="local-lasso")}
    for run in records["Mine"].runs:
        run["accuracy"] = run["accuracy"] | {"final": 1.0}
    send(records["LESS-VFL"], 0.01)
    said = finding(records)
    assert said.startswith("Mine has the highest accuracy (1.000); LESS-VFL sent the")


def test_of_one_run_its_headline_and_of_none_nothing(make_record):
    records = two(make_record, n_seeds=0)
    assert finding(records) == ""
    done = make_record()
    assert finding(records | {"LESS-VFL": done}) == sentences.headline(done)
