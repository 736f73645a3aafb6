"""Several runs on one page."""

import dataclasses

import pytest

from lessvfl import report
from lessvfl.errors import ConfigError, RecordError
from lessvfl.report import tables
from lessvfl.report.finding import finding
from lessvfl.run import verdicts


@pytest.fixture
def folders(tmp_path, make_record):
    made = []
    for method in ("less-vfl", "plain"):
        made.append(tmp_path / method)
        make_record(method=method, notes=["Read me."]).write(made[-1])
    return made


def test_every_run_has_a_row_with_the_numbers_of_the_summary(
    folders, tmp_path, make_record
):
    out = tmp_path / "new" / "compare.html"
    assert report.compare(folders, out) == out
    text = out.read_text(encoding="utf-8")
    for method in ("less-vfl", "plain"):
        header, rows = tables.summary_rows([make_record(method=method)])
        for name, value in zip(header, rows[0], strict=True):
            if name not in ("data", "features kept"):
                assert f">{value}</td>" in text
    assert text.count("<figure") == 2
    assert text.count("<li>Read me.</li>") == 1
    assert "2 runs on activity" in text
    records = {
        tables.method_title(method): make_record(method=method)
        for method in ("less-vfl", "plain")
    }
    assert f"<h1>{finding(records)}</h1>" in text
    assert "different data sets" not in text
    assert "http" not in text.replace("http-equiv", "")
    assert str(tmp_path) not in text


def test_folders_lead_to_the_pages_that_are_there(folders, tmp_path):
    report.build(folders[0])
    out = tmp_path / "a b" / "compare.html"
    text = report.compare(folders, out).read_text(encoding="utf-8")
    assert '<a href="../less-vfl/report.html">less-vfl</a>' in text
    assert ">plain</td>" in text  # it has no page
    assert text.count("<a ") == 1


def test_many_runs_stand_in_lines_and_few_in_columns(tmp_path, make_record):
    folders = [tmp_path / f"run{i}" for i in range(4)]
    for folder in folders:
        make_record().write(folder)
    few = report.compare(folders[:3], tmp_path / "few.html").read_text("utf-8")
    many = report.compare(folders, tmp_path / "many.html").read_text("utf-8")
    assert '<td class="word">test accuracy</td>' in few
    assert '<th scope="col">test accuracy</th>' in many


def test_pixels_are_drawn_of_the_run_that_removed_some(tmp_path, make_record):
    folders = [tmp_path / "less-vfl", tmp_path / "plain"]
    for folder in folders:
        record = make_record(method=folder.name)
        for run in record.runs:
            for y, names in enumerate(run["features"].values()):
                for state in ("kept", "removed"):
                    names[state] = [
                        f"pixel_{y}_{int(name[-2:])}" if name[4] == "_" else name
                        for name in names[state]
                    ]
        agreed = verdicts.agreed(record.runs)
        dataclasses.replace(record, consensus=agreed).write(folder)
    text = report.compare(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "Pixels kept and removed by LESS-VFL" in text
    assert "Pixels kept and removed by Plain VFL" not in text
    page = report.build(folders[0]).read_text(encoding="utf-8")
    assert ">Pixels kept and removed</h2>" in page


def test_captions_speak_of_what_is_drawn(tmp_path, make_record):
    make_record(method="plain", n_seeds=1, n_planted=0).write(tmp_path / "a")
    make_record(method="plain", n_seeds=1, n_planted=0).write(tmp_path / "b")
    folders = [tmp_path / "a", tmp_path / "b"]
    text = report.compare(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "features, all parties, seed 0" in text
    for word in ("mean of", "Means over", "Diamond", "Thin:", "lanted", "spurious"):
        assert word not in text.partition("</style>")[2]


def test_different_data_are_grouped_and_said_so(folders, tmp_path, make_record):
    folders.append(tmp_path / "prices")
    make_record(name="prices", task="regression").write(folders[-1])
    text = report.compare(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "3 runs on 2 data sets" in text
    assert "over different data sets" in text
    assert text.count("<table") == 2


def test_like_methods_are_told_apart_by_profile_then_by_folder(tmp_path, make_record):
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    make_record(profile="paper").write(folders[0])
    make_record(profile="default").write(folders[1])
    text = report.compare(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "LESS-VFL, paper" in text
    assert ">a/run</td>" in text
    make_record(profile="paper").write(folders[1])
    text = report.compare(folders, tmp_path / "out.html").read_text(encoding="utf-8")
    assert "LESS-VFL, b/run" in text


def test_runs_without_scores_or_seeds_are_shown(tmp_path, make_record):
    make_record(n_seeds=0, status="failed").write(tmp_path / "failed")
    text = report.compare([tmp_path / "failed"], tmp_path / "one.html").read_text(
        encoding="utf-8"
    )
    assert "The run in failed is not complete" in text
    assert "1 run on activity" in text
    assert "no score was recorded" in text


@pytest.mark.parametrize("folders", [[], (), "runs"])
def test_no_folder_is_refused(folders, tmp_path):
    with pytest.raises(ConfigError, match="one or more run folders"):
        report.compare(folders, tmp_path / "out.html")


def test_a_folder_named_twice_is_refused(folders, tmp_path):
    twice = [*folders, folders[0].parent / "plain" / ".." / "less-vfl"]
    with pytest.raises(ConfigError, match="more than once"):
        report.compare(twice, tmp_path / "out.html")


def test_out_must_be_a_file(folders, tmp_path):
    with pytest.raises(ConfigError, match="must be a file"):
        report.compare(folders, tmp_path)


def test_a_folder_without_record_is_refused_before_writing(folders, tmp_path):
    out = tmp_path / "out.html"
    with pytest.raises(RecordError):
        report.compare([*folders, tmp_path / "nowhere"], out)
    assert not out.exists()
