"""A benchmark as files: the paper's numbers beside ours, misses shown as misses."""

import copy
import csv
import io
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from tests.report.reader import Reader, read_whole

from lessvfl_bench.pages.paper import entries, files, panels
from lessvfl_bench.pages.paper.page import build_bench
from lessvfl_bench.pages.paper.tables import sections

HOSTILE = '<script>alert("x")</script> & 5 % | $y_1$ \\relax{'


def ours(values, **more):
    """Make our side of an entry: values by seed, None for a miss."""
    hits = [value for value in values if value is not None]
    mean = sum(hits) / len(hits) if hits else None
    return {
        "mean": mean,
        "std": 0.25 if len(hits) > 1 else None,
        "hits": len(hits),
        "seeds": len(values),
        "by_seed": list(values),
        "unsupported": 0,
        "degenerate": False,
        "diverged": 0,
        "records": [f"records/run.npz#{i}" for i in range(len(values))],
        **more,
    }


def entry(data, method, measure, paper, ours, **settings):
    paper = paper and {"mean": paper[0], "std": paper[1]}
    return {
        "data": data,
        "method": method,
        "measure": measure,
        "settings": settings,
        "paper": paper,
        "ours": ours,
    }


PUBLISHED = {
    "choice": "published",
    "pretrain_epochs": 1,
    "lam_party": 0.1,
    "lam_server": 0.005,
    "target": "90 % of VFL (Original)",
    "spurious": 0.5,
}
TRIED = {**PUBLISHED, "choice": "training accuracy", "lam_party": 0.25}
GRID = {"lam_party": 32.5, "lam_server": 0.05}
RESULTS: dict[str, Any] = {
    "lessvfl": "9.8.7",
    "profile": "official-code",
    "settings": "grid",
    "seeds": [10, 11, 12],
    "device": "cuda",
    "seconds": {"tables": 61.5, "total": 75.0},
    "data": [
        {
            "name": "phishing",
            "paper_name": "Phishing",
            "same": True,
            "n_train": 8844,
            "n_test": 2211,
            "n_features": 45,
            "n_real": 30,
            "n_parties": 4,
            "majority": 0.557,
            "baseline": {"accuracy": 0.951, "balanced_accuracy": 0.949},
            "note": None,
        },
        {
            "name": "gina",
            "paper_name": "Gina",
            "same": False,
            "n_train": 2775,
            "majority": 0.508,
            "baseline": {"accuracy": 0.9, "balanced_accuracy": 0.9},
            "note": "Other rows than the paper's.",
        },
        {"name": "mimic3", "paper_name": "MIMIC-III", "note": f"Closed {HOSTILE}"},
    ],
    "tables": {
        "2": [
            entry("phishing", "less-vfl", "cost_mib", (3.99, 0.75),
                  ours([4.5, 4.25, 4.0]), **PUBLISHED),
            entry("phishing", "group-lasso", "cost_mib", (95.22, 1.89),
                  ours([100.0, None, 102.0]), **PUBLISHED),
            entry("phishing", "local-lasso", "cost_mib", (8.1, 3.4),
                  ours([None, None, None]), **PUBLISHED),
            entry("gina", "less-vfl", "cost_mib", (1.48, 0.26),
                  ours([1.5, 1.5, 1.5]), **PUBLISHED),
            entry("mimic3", "less-vfl", "cost_mib", (7.17, 0.0), None, **PUBLISHED),
            entry("phishing", "less-vfl", "removed_share", None,
                  ours([0.9, 0.95, 1.0]), **PUBLISHED),
            entry("phishing", "less-vfl", "cost_mib", (3.99, 0.75),
                  ours([12.0, 12.0, 12.0], degenerate=True, unsupported=2, diverged=1),
                  **TRIED),
            entry("phishing", "less-vfl", "surprise", None, ours([1, 2, 3]), **TRIED),
        ],
        "5": [
            entry("phishing", method, measure, (8.0, None), ours([9.0, 9.5, 10.0]),
                  **{**PUBLISHED, "pretrain_epochs": epochs})
            for method in ("less-vfl", "local-lasso")
            for epochs in (2, 1)
            for measure in ("pretrain_mib", "post_mib", "total_mib")
        ],
        "7": [
            entry("mimic3", "less-vfl", "train_accuracy_percent", (82.56, 1.37), None,
                  **GRID),
            entry("mimic3", "less-vfl", "removed_percent", (0.0, 0.0), None, **GRID),
        ],
        "8": [],
    },
    "figures": {
        "3": [
            {
                "data": name,
                "x": "communication epochs",
                "y": "spurious features removed",
                "kind": kind,
                "series": [
                    {"name": "LESS-VFL", "x": [1, 5, 150], "mean": [0.5, None, 0.9],
                     "std": [0.1, None, 0.0], "seeds": 3},
                    {"name": HOSTILE, "x": [5], "mean": [0.25], "std": [0.1],
                     "seeds": 3},
                ],
                "settings": {"LESS-VFL": {"lam_party": 0.1}},
            }
            for name, kind in (("phishing", "bar"), ("gina", "line"))
        ],
        "4": [{"data": "mimic3", "x": "MiB", "y": "test accuracy", "kind": "line",
               "series": [], "settings": {}}],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench") / "new"
    assert build_bench(RESULTS, folder) == folder / "index.html"
    return folder


@pytest.fixture(scope="module")
def text(folder):
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


def read(folder, name):
    return (folder / "tables" / name).read_text(encoding="utf-8")


# -- files -----------------------------------------------------------------------------


def test_every_table_and_panel_has_its_files(folder):
    assert {path.name for path in (folder / "tables").iterdir()} == {
        f"table{table}.{ending}"
        for table in "257"  # table 8 has no entry
        for ending in ("md", "tex", "csv")
    }
    names = ("figure3-phishing", "figure3-gina", "figure4-mimic3")
    assert {path.name for path in (folder / "figures").iterdir()} == {
        f"{name}.{ending}" for name in names for ending in ("png", "svg")
    }
    for name in names:
        png = (folder / "figures" / f"{name}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
        ElementTree.parse(folder / "figures" / f"{name}.svg")


def test_same_results_give_the_same_files(folder, tmp_path):
    build_bench(RESULTS, tmp_path)
    for path in folder.rglob("*.*"):
        again = tmp_path / path.relative_to(folder)
        assert path.read_bytes() == again.read_bytes(), path.name


def test_csv_has_one_line_per_entry_with_the_numbers(folder):
    for table in "257":
        lines = list(csv.DictReader(io.StringIO(read(folder, f"table{table}.csv"))))
        entries = RESULTS["tables"][table]
        assert len(lines) == len(entries)
        for line, made in zip(lines, entries, strict=True):
            assert None not in line
            assert line["table"] == table
            assert (line["data"], line["method"]) == (made["data"], made["method"])
            assert line["measure"] == made["measure"]
            for side in ("paper", "ours"):
                for part in ("mean", "std"):
                    number = made[side] and made[side][part]
                    text = line[f"{side}_{part}"]
                    assert (float(text) if text else None) == number


def test_csv_tells_misses_differences_and_verdicts(folder):
    lines = list(csv.DictReader(io.StringIO(read(folder, "table2.csv"))))
    verdicts = [line["verdict"] for line in lines]
    assert verdicts == [
        *("within", "missed", "missed", "stand-in", "absent", "", "off", "")
    ]
    first, second, third = lines[:3]
    assert float(first["difference"]) == pytest.approx(0.26)
    assert float(first["difference_percent"]) == pytest.approx(100 * 0.26 / 3.99)
    assert (second["hits"], second["seeds"], second["missed"]) == ("2", "3", "1")
    assert second["by_seed"] == "100.0;;102.0"
    assert second["records"] == "records/run.npz#0;records/run.npz#1;records/run.npz#2"
    assert (third["ours_mean"], third["missed"]) == ("", "3")
    assert lines[4]["missed"] == lines[4]["same_data"] == ""
    assert lines[3]["same_data"] == "False"
    assert (lines[6]["degenerate"], lines[6]["unsupported"]) == ("True", "2")
    assert (first["choice"], first["lam_server"]) == ("published", "0.005")


def md_rows(text):
    """Return the rows of every Markdown table, each as head -> cell."""
    rows, head = [], None
    for line in text.splitlines():
        if not line.startswith("|"):
            head = None
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if head is None:
            head = cells
        elif not set(line) <= set("|-: "):
            assert len(cells) == len(head)
            rows.append(dict(zip(head, cells, strict=True)))
    return rows


def test_markdown_puts_the_papers_number_beside_ours(folder):
    rows = md_rows(read(folder, "table2.md"))
    row = rows[0]
    assert row["Data"] == "Phishing"
    assert row["LESS-VFL: paper"] == "3.99 ± 0.75"
    assert row["LESS-VFL: ours"] == "4.25 ± 0.25"
    assert row["LESS-VFL: difference"] == "+0.26 (+6.5 %)"
    assert row["Group lasso: ours"] == "101.00 ± 0.25; 2 of 3 seeds; 1 missed"
    assert row["Local lasso: ours"] == "missed; 0 of 3 seeds; 3 missed"
    assert row["Local lasso: difference"] == "–"
    assert rows[1]["Data"] == "Gina (not the paper's data)"
    assert rows[2]["LESS-VFL: ours"] == "data not available"
    assert rows[3]["Measure"] == "Spurious features removed"
    assert rows[3]["LESS-VFL: ours"].startswith("95.0 %")
    assert "LESS-VFL: paper" not in rows[3]


def test_choices_make_sections_with_their_settings(folder):
    text = read(folder, "table2.md")
    published, tried = text.split("\n## ")[1:]
    assert published.startswith("Settings as published · target 90 % of VFL (Original)")
    assert tried.startswith("Settings chosen by training accuracy")
    assert "1 epoch of pre-training, λ_m 0.1, λ_s 0.005" in published
    assert "1 epoch of pre-training, λ_m 0.25, λ_s 0.005" in tried
    marks = "12.00 ± 0.25; target ≤ majority; no feature kept in 2; 1 diverged"
    assert marks in tried
    assert marks not in published
    assert "Other measures" in tried


def test_table_5_has_a_row_per_amount_of_pretraining(folder):
    rows = md_rows(read(folder, "table5.md"))[:2]
    assert [row["Epochs"] for row in rows] == ["2", "1"]
    assert rows[0]["LESS-VFL, Total (MiB): paper"] == "8.00"
    ours = rows[0]["LESS-VFL, Total (MiB): ours"]
    assert ours == "9.50 ± 0.25; +1.50 (+18.8 %)"


def test_grids_have_a_row_per_pair_of_lambdas(folder):
    row = md_rows(read(folder, "table7.md"))[0]
    assert row["(λ_m, λ_s)"] == "(32.5, 0.05)"
    assert row["LESS-VFL, Accuracy (%): paper"] == "82.56 ± 1.37"
    assert row["LESS-VFL, Removed (%): paper"] == "0.00 ± 0.00"
    assert row["LESS-VFL, Removed (%): ours"] == "data not available"


def balanced(text):
    """Whether braces balance, escaped ones and comments aside."""
    depth = 0
    for brace in re.findall(r"[{}]", re.sub(r"\\[\\{}%]|%[^\n]*", "", text)):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    return depth == 0


def test_latex_is_balanced_and_its_rows_are_whole(folder):
    for table in "257":
        text = read(folder, f"table{table}.tex")
        assert balanced(text)
        assert text.count(r"\begin{") == text.count(r"\end{")
        for spec, body in re.findall(
            r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.S
        ):
            assert [body.count(f"\\{n}rule\n") for n in ("top", "bottom")] == [1, 1]
            for line in body.splitlines():
                if not line.endswith(r"\\"):
                    continue
                spans = [int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                n_cells = len(re.findall(r"(?<!\\)&", line)) + 1
                assert n_cells - len(spans) + sum(spans) == len(spec)


def test_latex_holds_numbers_and_signs(folder):
    text = read(folder, "table2.tex")
    assert r"3.99 $\pm$ 0.75 & 4.25 $\pm$ 0.25 & +0.26 (+6.5 \%)" in text
    assert r"101.00 $\pm$ 0.25\textsuperscript{2/3}" in text
    assert r"12.00 $\pm$ 0.25\textsuperscript{d,u2,x1}" in text
    assert r"$\lambda_m$ 0.25" in text
    assert r"\cmidrule(lr){2-4}\cmidrule(lr){5-7}\cmidrule(lr){8-10}" in text
    assert r"9.50 $\pm$ 0.25 (+18.8 \%)" in read(folder, "table5.tex")


def test_text_of_data_is_escaped_in_every_file(tmp_path):
    results = copy.deepcopy(RESULTS)
    for fact in results["data"]:
        fact["paper_name"] = HOSTILE
    build_bench(results, tmp_path)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert page.count("<script>") == 1
    Reader(page)
    tex = read(tmp_path, "table2.tex")
    assert balanced(tex)
    assert r"\& 5 \% | \$y\_1\$ \textbackslash{}relax\{" in tex
    markdown = read(tmp_path, "table2.md")
    assert "<script" not in markdown
    assert r"&lt;script&gt;alert" in markdown
    assert r"&amp; 5 % \| $y_1$" in markdown
    md_rows(markdown)
    lines = csv.DictReader(io.StringIO(read(tmp_path, "table2.csv")))
    assert {line["paper_name"] for line in lines} == {HOSTILE}


# -- the page --------------------------------------------------------------------------


def test_page_is_whole_and_refers_to_nothing_outside(text):
    read_whole(text)


def by_entry(marked):
    """Return cells or rows by the entry that they show, each shown once."""
    found = [(attrs["data-entry"], (attrs, said)) for attrs, said in marked
             if "data-entry" in attrs]  # fmt: skip
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_entry_stands_on_the_page_with_its_seeds_and_records(reader):
    tables = entries.read(RESULTS)
    everything = [entry for found in tables.values() for entry in found]
    cells, rows = by_entry(reader.cells), by_entry(reader.rows)
    assert set(cells) == set(rows) == {e.path for e in everything}
    for found in everything:
        attrs, said = cells[found.path]
        assert said[0] == entries.ours_text(found)
        row = " ".join(rows[found.path][1])
        if found.ours is None:
            assert "absent" in attrs["class"]
            assert "data not available" in row
            continue
        assert "records/run.npz #0 #1 #2" in row
        for seed, value, record in entries.by_seed(found):
            assert f"seed {seed}: {value} ({record})" in attrs["title"]
            assert value in row


def test_cells_are_marked_by_how_they_compare(reader):
    cells = by_entry(reader.cells)

    def shown(i):
        attrs, said = cells[f"tables.2.{i}"]
        return attrs["class"].split(), "|".join(said)

    assert "within" in shown(0)[0]
    classes, words = shown(1)
    assert "missed" in classes
    assert "within" not in classes
    assert "2 of 3 seeds; 1 missed" in words
    assert "3 missed" in shown(2)[1]
    assert not {"within", "close"} & set(shown(3)[0])  # numbers of other data
    assert "off" in shown(6)[0]
    for mark in ("target ≤ majority", "no feature kept in 2", "1 diverged"):
        assert mark in shown(6)[1]
        assert mark not in shown(0)[1]
    assert "close" in cells["tables.5.0"][0]["class"].split()


def test_page_says_how_it_was_made(reader):
    words = " ".join(reader.words)
    for said in (
        "profile official-code",
        "settings: grid",
        "3 seeds (10, 11, 12)",
        "on cuda",
        "75 seconds",
        "61.5",
        "8,844",
        "0.951",
        "0.557",
        "Gina: Other rows than the paper's.",
        "not the paper's data",
        "9.8.7",
    ):
        assert said in words


def test_agreement_counts_every_printed_number_once(text):
    rows = re.findall(r'<tr><th scope="row">Table (\d).*?</tr>', text, re.S)
    assert rows == ["2", "2", "5", "7"]
    cells = [
        [int(n) for n in re.findall(r"<td[^>]*>(\d+)</td>", row)]
        for row in re.findall(r'<tr><th scope="row">Table \d.*?</tr>', text, re.S)
    ]
    assert cells[0] == [5, 1, 0, 0, 2, 1, 1]
    assert cells[1] == [1, 0, 0, 1, 0, 0, 0]
    for total, *parts in cells:
        assert total == sum(parts)


def test_a_bare_result_gives_a_page(tmp_path):
    path = build_bench({"tables": {}, "figures": {"3": []}}, tmp_path)
    read_whole(path.read_text(encoding="utf-8"))
    assert list((tmp_path / "tables").iterdir()) == []


# -- numbers ---------------------------------------------------------------------------


def one(paper, values, **more):
    results = {
        "tables": {"2": [entry("d", "less-vfl", "cost_mib", paper, ours(values))]},
        "data": [{"name": "d", "same": more.get("same", True)}],
    }
    return entries.read(results)["2"][0]


@pytest.mark.parametrize(
    ("paper", "value", "verdict"),
    [
        ((4.0, 0.75), 5.5, "within"),
        ((4.0, 0.75), 5.51, "off"),
        ((4.0, 0.25), 4.9, "close"),
        ((4.0, 0.0), 4.004, "within"),  # the paper rounds to two decimals
        ((4.0, None), 4.0, "close"),
        ((4.0, None), 3.0, "close"),
        ((4.0, None), 2.9, "off"),
        ((0.0, 0.0), 0.0, "within"),
        ((0.0, None), 0.5, "off"),
        (None, 0.5, None),
    ],
)
def test_verdicts(paper, value, verdict):
    assert one(paper, [value]).verdict == verdict


def test_misses_and_other_data_are_never_said_to_agree():
    assert one((4.0, 1.0), [4.0, None]).verdict == "missed"
    assert one((4.0, 1.0), [4.0], same=False).verdict == "stand-in"


def test_a_number_that_is_not_finite_is_no_number():
    found = one((4.0, 1.0), [float("nan")])
    assert found.mean is found.difference is None
    assert entries.ours_text(found) == "no mean"


def test_difference_from_zero_has_no_per_cent():
    assert entries.difference_text(one((0.0, 0.0), [0.5])) == "+0.50"
    assert entries.difference_text(one((4.0, 0.0), [3.999])) == "+0.00 (+0.0 %)"


def test_numbers_as_text():
    assert entries.value_text(3.987, "mib") == "3.99"
    assert entries.value_text(0.9333, "share") == "93.3 %"
    assert entries.value_text(None, "mib") == "–"
    assert entries.pair_text({"mean": 3.99, "std": 0.75}, "mib") == "3.99 ± 0.75"
    assert files.tex("λ_m 0.1 & 80 %") == r"$\lambda_m$ 0.1 \& 80 \%"


def test_settings_and_records_as_text():
    assert entries.setting_text("pretrain_epochs", 1) == "1 epoch of pre-training"
    assert entries.setting_text("lam_party", 0.1) == "λ_m 0.1"
    by_party = "spurious features by party: 80 %, 25 %"
    assert entries.setting_text("spurious", [0.8, 0.25]) == by_party
    records = ["records/a.npz#1", "records/a.npz#2", "records/b.npz#1"]
    assert entries.pointers(records) == "records/a.npz #1 #2, records/b.npz #1"


def test_panels_are_named_by_figure_and_data():
    two = [{"data": "gina"}, {"data": "../x", "y": "accuracy"}]
    assert panels.file_names("3", two) == ["figure3-gina", "figure3-x"]


def test_two_entries_for_one_cell_are_both_shown():
    twice = [entry("d", "less-vfl", "cost_mib", None, ours([n])) for n in (1.0, 2.0)]
    found = entries.read({"tables": {"2": twice}})["2"]
    (section,) = sections("2", found)
    (block,) = section.blocks
    assert len(block.rows) == 2
    rows = md_rows(files.markdown("2", found))
    assert [row["LESS-VFL: ours"] for row in rows] == ["1.00", "2.00"]


def test_an_unknown_table_and_method_are_shown_as_they_are():
    made = entry("d", "new", "novel_score", None, ours([0.5]), lam_party=1.0)
    found = entries.read({"tables": {"9": [made]}})["9"]
    rows = md_rows(files.markdown("9", found))
    assert rows[0] == {"Data": "d", "Measure": "novel score", "new: ours": "0.500"}
    assert rows[1] == {"Data": "d", "new": "λ_m 1"}


# -- figures ---------------------------------------------------------------------------


def panel_axes(i):
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    return panels.plot_panel(RESULTS["figures"]["3"][i], ax)


def test_lines_are_means_with_their_shade():
    ax = panel_axes(1)
    line = ax.lines[0]
    assert list(line.get_xdata()) == [1, 150]  # the gap is left out
    assert list(line.get_ydata()) == [0.5, 0.9]
    assert len(ax.collections) == 2
    shade = ax.collections[0].get_paths()[0].get_extents()
    assert (shade.ymin, shade.ymax) == pytest.approx((0.4, 0.9))
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "communication epochs",
        "spurious features removed",
    )


def test_bars_stand_in_groups_with_whiskers():
    ax = panel_axes(0)
    assert [bar.get_height() for bar in ax.patches] == [0.5, 0.9, 0.25]
    middles = [bar.get_x() + bar.get_width() / 2 for bar in ax.patches]
    assert middles == pytest.approx([-0.2, 1.8, 1.2])  # two bars about 0, 1 and 2
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "5", "150"]
    legend = ax.get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == "LESS-VFL"
    assert len(ax.containers) == 4  # bars and whiskers of two series


def test_no_two_series_differ_in_the_colour_alone():
    assert "less-vfl-auto" in panels.STYLES
    looks = list(panels.STYLES.values())
    for part in range(3):  # colour, dashes, hatch
        assert len({look[part] for look in looks}) == len(looks)


def test_a_panel_without_series_says_so(reader):
    from matplotlib.figure import Figure

    ax = panels.plot_panel(RESULTS["figures"]["4"][0], Figure().subplots())
    assert [text.get_text() for text in ax.texts] == ["data not available"]
    assert panels.describe(RESULTS["figures"]["4"][0]) == "data not available."


def test_panels_of_one_data_set_are_told_apart():
    two = [{"data": "Gina", "y": y, "x": "MiB"} for y in ("accuracy", "removed")]
    names = ["figure3-gina-accuracy", "figure3-gina-removed"]
    assert panels.file_names("3", two) == names
    assert panels.file_names("3", two[:1] * 2) == [
        "figure3-gina-accuracy-mib-0",
        "figure3-gina-accuracy-mib-1",
    ]
