"""The pages in a real browser, at the widths of a laptop and of a phone."""

import dataclasses
import html
import json
import re
import shutil
import subprocess

import pytest
from tests.report.evaluations import evaluations
from tests.report.sides import party_record, rated_record, server_record

from lessvfl import report
from lessvfl.report.evaluation import evaluation_page

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome here"
)
WIDTHS = (1280, 390)
CASES = (
    "ordinary",
    "one seed",
    "no seed",
    "regression",
    "plain",
    "many parties",
    "nothing kept",
    "odd names",
)
# Each page is loaded into frames as wide as a laptop and as a phone; what the frames
# tell is written into the outer page, which the browser prints.
OUTER = """<!doctype html><body><pre id="told"></pre><script>
const pages = PAGES, widths = WIDTHS, told = {};
const look = (frame) => {
  const doc = frame.contentDocument, view = frame.contentWindow;
  const found = {
    width: view.innerWidth,
    scroll: doc.documentElement.scrollWidth,
    scripts: doc.scripts.length,
    loose: Array.from(doc.querySelectorAll("table"))
                .filter((table) => !table.closest(".scroll")).length,
    bins: Array.from(doc.querySelectorAll(".bins[open] .scroll"),
                     (part) => part.scrollWidth - part.clientWidth),
    drawings: Array.from(doc.querySelectorAll("svg"),
                         (svg) => svg.getBoundingClientRect().width),
  };
  const list = doc.getElementById("features");
  if (list) {
    const rows = () => Array.from(list.tBodies[0].rows);
    const shown = () => rows().filter((row) => !row.hidden).length;
    const choose = (id, value) => {
      const field = doc.getElementById(id);
      field.value = value;
      field.dispatchEvent(new view.Event(id === "search" ? "input" : "change"));
      return shown();
    };
    found.all = shown();
    found.controls = !doc.getElementById("controls").hidden;
    found.search = choose("search", "SPURIOUS_ _3");
    found.kinds = choose("by-kind", "real");
    choose("search", "");
    found.real = shown();
    choose("by-kind", "");
    found.removed = choose("by-state", "removed");
    choose("by-state", "");
    const second = doc.getElementById("by-party").options[1].value;
    found.party = choose("by-party", second);
    found.said = doc.getElementById("shown").textContent;
    choose("by-party", "");
    const heads = list.tHead.rows[0].cells;
    const column = (i) => rows().map((row) => row.cells[i].textContent);
    heads[1].firstChild.click();
    found.byName = column(1);
    heads[2].firstChild.click();
    heads[2].firstChild.click();
    found.byKept = column(2).map((text) => parseInt(text));
  }
  return found;
};
(async () => {
  for (const [name, text] of Object.entries(pages)) {
    told[name] = {};
    for (const width of widths) {
      const frame = document.createElement("iframe");
      frame.style = `width:${width}px;height:844px;border:0`;
      const loaded = new Promise((done) => frame.addEventListener("load", done));
      frame.srcdoc = text;
      document.body.append(frame);
      await loaded;
      told[name][width] = look(frame);
      frame.remove();
    }
  }
  document.getElementById("told").textContent = JSON.stringify(told);
})();
</script></body>"""


def an_ensemble(whole):
    """Return what a server knows of seeds that predict together, of long names."""
    text = json.dumps(server_record(whole).runs)
    long = "a_supplier_with_a_name_that_is_wider_than_a_telephone_and_has_no_blank"
    found = dataclasses.replace(
        server_record(whole), runs=json.loads(text.replace("bank", long))
    )
    found.header["parties"] = list(found.runs[0]["features"])
    scores = {"accuracy": 0.875, "balanced_accuracy": 0.75}
    around = {"accuracy": {"low": 0.825, "high": 0.925}}
    found.ensemble = {"seeds": [0, 1], "scores": scores, "intervals": around}
    return found


@pytest.fixture(scope="module")
def told(tmp_path_factory, pages, make_record, odd_records):
    assert BROWSER is not None
    folder = tmp_path_factory.mktemp("browser")
    runs = []
    for method in ("less-vfl", "local-lasso", "plain"):
        runs.append(folder / f"a-run-with-a-rather-long-name-{method}")
        make_record(method=method).write(runs[-1])
    compared = report.compare(runs, folder / "compare.html").read_text("utf-8")
    texts = {
        name: text.encode("utf-8", "replace").decode()
        for name, text in [
            *((case, pages[case]) for case in CASES),
            ("compare", compared),
            ("party", report.page(party_record(odd_records["shadows"]))),
            ("rated", report.page(rated_record(odd_records["shadows"]))),
            ("server", report.page(server_record(odd_records["shadows"]))),
            ("ensemble", report.page(an_ensemble(odd_records["shadows"]))),
            *(
                (f"evaluation, {name}", evaluation_page(found))
                for name, found in evaluations().items()
            ),
        ]
    }
    script = OUTER.replace("PAGES", json.dumps(texts).replace("<", "\\u003c"))
    outer = folder / "outer.html"
    outer.write_text(script.replace("WIDTHS", str(list(WIDTHS))), encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1400,900",
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=60000",
            "--dump-dom",
            outer.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    match = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match
    return json.loads(html.unescape(match[1]))


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways(told, width):
    assert {*CASES, "compare", "party", "rated", "server", "ensemble"} < told.keys()
    assert len([name for name in told if name.startswith("evaluation")]) == 6
    for name, found in told.items():
        seen = found[str(width)]
        assert seen["width"] == width
        assert seen["scroll"] <= width, name


def test_every_table_scrolls_in_a_box_of_its_own(told):
    for name, found in told.items():
        assert found["390"]["loose"] == 0, name


@pytest.mark.parametrize("width", WIDTHS)
def test_bins_of_two_classes_fit_the_page(told, width):
    assert told["rated"][str(width)]["bins"] == [0]


@pytest.mark.parametrize("width", WIDTHS)
def test_figures_are_drawn_within_the_page(told, width):
    for found in told.values():
        assert all(100 < drawn < width for drawn in found[str(width)]["drawings"])
    assert len(told["ordinary"][str(width)]["drawings"]) == 4
    assert len(told["compare"][str(width)]["drawings"]) == 2


@pytest.mark.parametrize("width", WIDTHS)
def test_list_of_features_can_be_searched_and_filtered(told, odd_records, width):
    seen, runs = told["ordinary"][str(width)], odd_records["ordinary"].runs
    assert seen["all"] == 45
    assert seen["controls"]
    assert seen["search"] == 3  # spurious_<party>_3, whatever the case
    assert seen["kinds"] == 0
    assert seen["real"] == 24
    gone = [
        {(p, n) for p, names in r["features"].items() for n in names["removed"]}
        for r in runs
    ]
    assert seen["removed"] == len(set.intersection(*gone))
    assert seen["party"] == 15
    assert seen["said"] == "15 of 45 features shown"


def test_list_of_features_can_be_sorted(told):
    seen = told["ordinary"]["1280"]
    assert seen["byName"][:2] == ["bank_00", "bank_01"]
    assert seen["byKept"] == sorted(seen["byKept"], reverse=True)


def test_two_thousand_features_work(told):
    seen = told["many parties"]["390"]
    assert seen["all"] == 1984
    assert seen["party"] == 62


def test_hostile_names_add_no_script(told):
    assert told["odd names"]["1280"]["scripts"] == 1
