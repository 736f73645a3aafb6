"""The paper's numbers: all of them, as printed, each found by its settings."""

from collections import Counter

import pytest

from lessvfl_bench.paper.printed import find, rows

DATA = ("MIMIC-III", "Activity", "Phishing", "Gina", "Sylva")
GRIDS = {  # rows of λ by data set: group lasso, local lasso, LESS-VFL
    (6, "Activity"): (28, 28, 28),
    (6, "Phishing"): (14, 14, 14),
    (7, "MIMIC-III"): (28, 30, 30),
    (8, "Gina"): (28, 32, 32),
    (8, "Sylva"): (14, 14, 14),
}
METHODS = ("group-lasso", "local-lasso", "less-vfl")
# Numbers of Table 2 that Table 5 does not have, at any amount of pre-training.
ONLY_IN_TABLE_2 = {("MIMIC-III", "local-lasso"), ("Activity", "less-vfl")}


@pytest.mark.parametrize("table", [2, 3])
def test_cost_tables_have_one_number_a_data_set_and_method(table):
    assert Counter((row.data, row.method) for row in rows(table)) == Counter(
        (data, method) for data in DATA for method in METHODS
    )
    assert {row.measure for row in rows(table)} == {"cost_mib"}
    assert all(row.std is not None and not row.settings for row in rows(table))


def test_table_5_has_five_amounts_of_pretraining():
    counts = Counter((row.data, row.method, row.measure) for row in rows(5))
    assert counts == {
        (data, method, measure): 5
        for data in DATA
        for method in METHODS[1:]
        for measure in ("pretrain_mib", "post_mib", "total_mib")
    }
    assert {row.settings["pretrain_epochs"] for row in rows(5)} == {1, 2, 3, 4, 5}
    assert all(row.std is None for row in rows(5))


def test_grids_have_every_setting_that_was_run():
    counts = Counter(
        (row.table, row.data, row.method, row.measure)
        for table in (6, 7, 8)
        for row in rows(table)
    )
    assert counts == {
        (table, data, method, measure): n
        for (table, data), sizes in GRIDS.items()
        for method, n in zip(METHODS, sizes, strict=True)
        for measure in ("train_accuracy_percent", "removed_percent")
    }
    assert all(row.std is not None for table in (6, 7, 8) for row in rows(table))


def test_tables_together_are_all_rows_and_no_row_comes_twice():
    assert len(rows()) == sum(len(rows(table)) for table in (2, 3, 5, 6, 7, 8)) == 876
    keys = Counter(
        (r.table, r.data, r.method, r.measure, *sorted(r.settings.items()))
        for r in rows()
    )
    assert set(keys.values()) == {1}


@pytest.mark.parametrize(
    ("table", "data", "method", "measure", "settings", "mean", "std"),
    [
        (2, "Phishing", "less-vfl", "cost_mib", {}, 3.99, 0.75),
        (2, "Activity", "group-lasso", "cost_mib", {}, 322.73, 61.32),
        (2, "MIMIC-III", "local-lasso", "cost_mib", {}, 30.47, 1.79),
        (3, "Sylva", "group-lasso", "cost_mib", {}, 21.93, 1.12),
        (3, "Gina", "less-vfl", "cost_mib", {}, 1.35, 0.0),
        (5, "Activity", "less-vfl", "post_mib", {"pretrain_epochs": 4}, 7.70, None),
        (5, "Sylva", "local-lasso", "total_mib", {"pretrain_epochs": 5}, 16.87, None),
        (
            *(6, "Phishing", "less-vfl", "train_accuracy_percent"),
            *({"lam_party": 0.1, "lam_server": 0.005}, 92.45, 0.0),
        ),
        (
            *(6, "Activity", "local-lasso", "train_accuracy_percent"),
            *({"lam_party": 2.0, "lam_server": 0.05}, 74.18, 0.77),
        ),
        (
            *(7, "MIMIC-III", "less-vfl", "removed_percent"),
            *({"lam_party": 32.5, "lam_server": 0.1}, 89.94, 10.14),
        ),
        (
            *(7, "MIMIC-III", "group-lasso", "removed_percent"),
            *({"lam_party": 0.05, "lam_server": 0.05}, 43.99, 7.25),
        ),
        (
            *(8, "Gina", "less-vfl", "removed_percent"),
            *({"lam_party": 0.025, "lam_server": 0.005}, 99.75, 0.15),
        ),
        (
            *(8, "Sylva", "group-lasso", "removed_percent"),
            *({"lam_party": 0.05, "lam_server": 0.01}, 23.89, 4.32),
        ),
    ],
)
def test_samples_read_by_eye(table, data, method, measure, settings, mean, std):
    row = find(table, data, method, measure, **settings)
    assert row is not None
    assert (row.mean, row.std) == (mean, std)
    assert row.settings == settings


def test_what_the_paper_left_out_is_not_found():
    """The paper prints '--' for group lasso at the large λ_m of MIMIC-III."""
    left_out = {"lam_party": 40.0, "lam_server": 0.5}
    assert find(7, "MIMIC-III", "group-lasso", "removed_percent", **left_out) is None
    assert find(7, "MIMIC-III", "less-vfl", "removed_percent", **left_out) is not None
    assert find(7, "MIMIC-III", "less-vfl", "removed_percent", lam_party=40.0) is None


def test_totals_of_table_5_are_sums_within_rounding():
    for total in rows(5):
        if total.measure != "total_mib":
            continue
        parts = [
            find(5, total.data, total.method, measure, **total.settings)
            for measure in ("pretrain_mib", "post_mib")
        ]
        # Three numbers of two decimals: each may be off by half of the last one.
        assert sum(part.mean for part in parts if part) == pytest.approx(
            total.mean, abs=0.015
        )


def test_table_2_is_in_table_5_but_for_two_numbers():
    missing = set()
    for row in rows(2):
        totals = {
            other.mean
            for other in rows(5)
            if (other.data, other.method, other.measure)
            == (row.data, row.method, "total_mib")
        }
        if totals and row.mean not in totals:
            missing.add((row.data, row.method))
    assert missing == ONLY_IN_TABLE_2


def test_baselines_do_not_depend_on_the_servers_lambda():
    """Tables 6 to 8 repeat group lasso and local lasso for every λ_s."""
    seen: dict[tuple[object, ...], set[tuple[float, float | None]]] = {}
    for table in (6, 7, 8):
        for row in rows(table):
            if row.method != "less-vfl":
                key = (row.data, row.method, row.measure, row.settings["lam_party"])
                seen.setdefault(key, set()).add((row.mean, row.std))
    assert all(len(values) == 1 for values in seen.values())
