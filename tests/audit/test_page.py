"""The page, in a real browser: readable, sound, equal to the JSON form, and without a complaint on the console."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import time
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from helpers.browser import BROWSER, FLAGS, in_browser
from helpers.meter import grid, metered, query

from pbsdk.audit.tables import tables
from pbsdk.errors import BackendTimeout, BackendUnavailable
from pbsdk.ledger.budget import QueryBudget


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    failures = [None, None, BackendUnavailable("busy"), BackendTimeout("late")]
    budget = QueryBudget(total=500, money=2.5, price_per_1k_tokens=0.02)
    run = tmp_path_factory.mktemp("page") / "a <run> & more"
    lm = metered(run, batch_size=8, failures=failures, top=10, budget=budget, latency=0.002)
    lm.backend._sleep = time.sleep
    lm.fill(grid(12, 6))
    lm.fill([query(i, j, "validate") for i in range(10, 18) for j in range(4)])
    lm.fill(grid(5, 6))
    lm.fill([query(i, j, "predict") for i in range(40, 52) for j in range(i % 4 + 1)], np.array([1, 2]))
    lm.check_canaries()
    return lm.audit()


@pytest.fixture(scope="module")
def page(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("html") / "report.html"
    report.save_html(path)
    return path


class Elements(HTMLParser):
    """Every element of a page: its tag, its attributes and the text inside it."""

    def __init__(self, html):
        super().__init__()
        self.all, self._open = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "attrs": dict(attrs), "text": "", "inside": [other["tag"] for other in self._open]}
        self.all.append(element)
        if tag not in {"meta", "link", "rect", "line", "br"}:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.all.append({"tag": tag, "attrs": dict(attrs), "text": "", "inside": []})

    def handle_endtag(self, tag):
        while self._open and self._open.pop()["tag"] != tag:
            pass

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def of(self, tag):
        return [element for element in self.all if element["tag"] == tag]


def browse(page, tmp_path, *flags):
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def at(data, path):
    for name in path.split("."):
        data = data[int(name)] if isinstance(data, list) else data[name]
    return data


def assert_numbers_equal(elements, report):
    data = report.to_dict()
    (script,) = [element for element in elements.of("script") if element["attrs"].get("id") == "report"]
    assert json.loads(script["text"]) == data
    shown = elements.of("data")
    assert len(shown) > 100
    for element in shown:
        assert str(at(data, element["attrs"]["data-path"])) == element["attrs"]["value"]
    texts = [element["text"] for element in elements.of("td")]
    assert texts == [cell.text for table in tables(report) for row in table.rows for cell in row[1:]]


def test_the_page_needs_nothing_else(page):
    html = page.read_text("utf-8")
    assert "default-src 'none'" in html
    links = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", html)
    assert links == ["data:,"]
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"\son\w+=", html)


def test_the_page_says_the_json_forms_numbers(page, report):
    assert_numbers_equal(Elements(page.read_text("utf-8")), report)


def test_the_page_is_sane_for_keyboards_and_screen_readers(page, report):
    elements = Elements(page.read_text("utf-8"))
    assert elements.of("html")[0]["attrs"]["lang"] == "en"
    assert elements.of("title")[0]["text"].endswith("within budget")
    assert len(elements.of("h1")) == len(elements.of("main")) == 1
    levels = [int(element["tag"][1]) for element in elements.all if re.fullmatch(r"h[1-6]", element["tag"])]
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    ids = [element["attrs"]["id"] for element in elements.all if "id" in element["attrs"]]
    assert len(ids) == len(set(ids))
    for heading in elements.of("th"):
        assert heading["attrs"]["scope"] in {"row", "col"}
    for region in [element for element in elements.all if element["attrs"].get("role") == "region"]:
        assert region["attrs"]["tabindex"] == "0"
        assert region["attrs"]["aria-label"]
    assert sum(element["attrs"].get("role") == "region" for element in elements.all) == len(elements.of("table"))


def test_every_chart_is_titled_described_and_has_labelled_axes(page, report):
    elements = Elements(page.read_text("utf-8"))
    charts = elements.of("svg")
    assert len(charts) == 6
    for chart in charts:
        assert chart["attrs"]["role"] == "img"
        for name in chart["attrs"]["aria-labelledby"].split():
            (named,) = [element for element in elements.all if element["attrs"].get("id") == name]
            assert named["text"].strip()
    axes = [element["text"] for element in elements.of("text") if element["attrs"].get("class") == "axis"]
    assert len(axes) == 3 + 2 * 3  # bars have one axis, columns two
    assert {"examples", "queries per step", "number of queries"} <= set(axes)
    assert any("milliseconds" in axis for axis in axes)
    (spread,) = [chart for chart in charts if chart["attrs"]["aria-labelledby"].startswith("spread-fit")]
    assert f"{report.scopes[0].examples} in all" in spread["text"]


def test_a_run_without_queries_has_a_page(tmp_path):
    metered(tmp_path).close()
    from pbsdk.audit.report import AuditReport

    html = AuditReport.read(tmp_path).to_html()
    assert "within budget" in html
    assert html.count("<table") == 1


def test_a_run_over_its_budget_says_so_at_the_top(report, tmp_path):
    from pbsdk.audit.report import AuditReport

    html = AuditReport.read(report.run, QueryBudget(passes=2)).to_html()
    assert "over budget</title>" in html
    assert html.index('class="verdict over"') < html.index("<h2>")


def test_what_matters_first_comes_first(report):
    from pbsdk.learning.estimates import Estimate

    told = report.with_accuracy(Estimate("cross-validated", 0.9, 200, 0.25))
    html = told.to_html()
    glance = re.search(r'<dl class="glance">(.*?)</dl>', html).group(1)
    assert html.index('class="verdict"') < html.index(glance) < html.index("<table")
    assert re.findall(r"<dt>(\w+)</dt>", glance) == ["Passes", "Money", "Time", "Accuracy"]
    shown = " ".join(re.findall(r">([^<]+)<", glance))
    assert "90.0% 85.1% to 93.4% with 95% confidence; cross-validated, 200 texts" in shown
    assert "of 2.50" in shown
    assert "Accuracy" not in re.search(r'<dl class="glance">(.*?)</dl>', report.to_html()).group(1)
    assert told.to_dict()["accuracy"]["texts"] == 200
    assert re.search(r"[\d.]+ KB</data> on disk", html)


def test_what_a_chart_of_one_bar_would_show_is_said(tmp_path):
    lm = metered(tmp_path, batch_size=40, budget=QueryBudget(passes=4, total=24))
    lm.fill(grid(6, 4))
    page = Elements(lm.audit().to_html())
    assert {element["attrs"]["aria-labelledby"].partition("-")[0] for element in page.of("svg")} == {"latency"}
    said = [element["text"] for element in page.of("p")]
    for sentence in (
        "The limit on passes in all, 24, is used up.",
        "There were 24 passes in the phase train, and no hits or failures.",
        "Passes per example (fit): each of the 6 examples had 4, as many as it may have.",
    ):
        assert sentence in said
    assert any(sentence.startswith("Everything was asked within") for sentence in said)
    assert not any("passes per example (fit), 4" in sentence for sentence in said)  # said once


@in_browser
@pytest.mark.parametrize("width", [1100, 390])
def test_no_card_has_an_empty_half(page, tmp_path, width):
    script = (
        "Math.max(...[...document.querySelectorAll('figure')].map(card => Math.max(card.clientWidth / "
        "card.querySelector('svg').clientWidth, card.clientHeight / (card.querySelector('svg').clientHeight + 60))))"
    )
    assert float(measured(page, tmp_path, script, f"--window-size={width},1600")) < 1.25


@in_browser
def test_the_browser_shows_the_same_numbers_and_complains_of_nothing(page, report, tmp_path):
    shown = browse(page, tmp_path, "--dump-dom")
    assert_numbers_equal(Elements(shown.stdout), report)
    assert "CONSOLE" not in shown.stderr


@in_browser
def test_a_complaint_would_be_seen(page, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text("utf-8").replace("</main>", "<script>boom()</script></main>"), "utf-8")
    assert "CONSOLE" in browse(broken, tmp_path, "--dump-dom").stderr


def measured(page, tmp_path, script, *flags):
    """Return what a script says of the page; without its policy, which forbids scripts."""
    file = tmp_path / "measured.html"
    html = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text("utf-8"))
    file.write_text(html.replace("</body>", f"<script>document.title = {script}</script></body>"), "utf-8")
    return re.search(r"<title>(.*?)</title>", browse(file, tmp_path, *flags, "--dump-dom").stdout).group(1)


@in_browser
@pytest.mark.parametrize(("scheme", "background"), [(1, (255, 255, 255)), (0, (20, 23, 28))], ids=["light", "dark"])
def test_text_stands_out_in_light_and_in_dark(page, tmp_path, scheme, background):
    style = "getComputedStyle(document.body)"
    flag = f"--blink-settings=preferredColorScheme={scheme}"
    said = measured(page, tmp_path, f"{style}.backgroundColor + {style}.color", flag)
    numbers = list(map(int, re.findall(r"\d+", said)))
    assert tuple(numbers[:3]) == background
    assert contrast(numbers[:3], numbers[3:]) > 7
    for colour in set(re.findall(r"fill:#(\w{6})", page.read_text("utf-8"))):
        assert contrast(numbers[:3], bytes.fromhex(colour)) > 3


def contrast(one, other):
    """Return the ratio of luminance by which WCAG judges."""

    def luminance(colour):
        parts = [part / 255 for part in colour]
        parts = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2] + 0.05

    return max(luminance(one), luminance(other)) / min(luminance(one), luminance(other))


@in_browser
def test_light_and_dark_desk_and_phone_are_drawn(page, tmp_path):
    pictures = set()
    for width, height, scheme in ((1100, 2400, 1), (1100, 2400, 0), (390, 1200, 1)):
        file = tmp_path / "picture.png"
        colours = f"--blink-settings=preferredColorScheme={scheme}"
        browse(page, tmp_path, f"--window-size={width},{height}", colours, f"--screenshot={file}")
        data = file.read_bytes()
        assert struct.unpack(">II", data[16:24]) == (width, height)
        assert len(data) > 20_000
        pictures.add(data)
    assert len(pictures) == 3


@in_browser
def test_a_phone_needs_no_sideways_scrolling(page, tmp_path):
    script = "document.documentElement.scrollWidth + '/' + innerWidth"
    needed, there = map(int, measured(page, tmp_path, script, "--window-size=390,1200").split("/"))
    assert needed <= there


@in_browser
def test_every_table_can_be_reached_by_keyboard(page, tmp_path):
    script = (
        "[...document.querySelectorAll('[tabindex],summary')]"
        ".filter(one => (one.focus(), document.activeElement === one)).length"
    )
    tables_and_evidence = len(Elements(page.read_text("utf-8")).of("table")) + 1
    assert int(measured(page, tmp_path, script)) == tables_and_evidence


@in_browser
def test_it_prints_on_a_few_sheets(page, tmp_path):
    browse(page, tmp_path, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer")
    sheets = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "report.pdf").read_bytes()))
    assert 1 <= sheets <= 6


@in_browser
def test_charts_stand_in_rows_in_print_so_that_each_row_may_begin_a_sheet(page, tmp_path):
    on_paper = tmp_path / "paper.html"
    on_paper.write_text(page.read_text("utf-8").replace("@media print", "@media screen"), "utf-8")
    tops = "[...document.querySelectorAll('figure')].map(one => Math.round(one.getBoundingClientRect().top)).join()"
    found = measured(on_paper, tmp_path, tops, "--window-size=720,1000").split(",")
    assert [found.count(top) for top in dict.fromkeys(found)] == [2] * (len(found) // 2) + [1] * (len(found) % 2)
    assert found == sorted(found, key=int)
