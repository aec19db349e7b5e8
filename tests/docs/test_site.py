"""The documentation's site: built with warnings as errors, whole, and without a network."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from helpers.browser import BROWSER, FLAGS, in_browser
from helpers.pages import DOCS, ROOT, blocks
from typer.main import get_command

import pbsdk
from pbsdk.cli import app

MODULES = [
    "audit.certificate",
    "audit.diff",
    "audit.inclusion",
    "audit.misses",
    "audit.report",
    "audit.signing",
    "backend",
    "connecting",
    "data.loading",
    "data.sampling",
    "data.tickets",
    "distribution",
    "errors",
    "learning.explanation",
    "metering.meter",
    "metering.plan",
    "parity",
    "prompting.causal_writer",
    "prompting.generation",
    "prompting.refinement",
    "reproduce.figures",
    "reproduce.methods",
    "reproduce.results",
    "reproduce.runner",
    "reproduce.settings",
    "testing",
    "testing.recording",
]
"""Modules whose every name stands in the reference."""


class Page(HTMLParser):
    """What a page is made of: its anchors, its links, and what a browser fetches by itself."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attrs):
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in {"canonical", "next", "prev"}:
            self.fetched.append(given["href"])
        if "src" in given:
            self.fetched.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def built_pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_is_built(site):
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert {path for path in pages if not (site / path).is_file()} == set()
    assert not (site / "_hooks").exists()


def test_every_link_leads_somewhere(site, built_pages):
    lost = []
    for path, page in built_pages.items():
        for link in {*page.links, *page.fetched}:
            parts = urlsplit(link)
            if parts.scheme or path.name == "404.html":
                continue
            target = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file() or (
                parts.fragment
                and target.suffix == ".html"
                and unquote(parts.fragment) not in built_pages[target].anchors
            ):
                lost.append((str(path.relative_to(site)), link))
    assert lost == []


def test_nothing_is_fetched_from_elsewhere(site, built_pages):
    assert {link for page in built_pages.values() for link in page.fetched if urlsplit(link).netloc} == set()
    for sheet in site.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", sheet.read_text("utf-8")), sheet
    # The theme would load a diagram library for these.
    assert not any('class="mermaid"' in path.read_text("utf-8") for path in built_pages)


@in_browser
def test_search_works_in_pages_opened_as_files(site, tmp_path):
    flags = [*FLAGS, f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"]
    address = f"file://{site}/reference/errors.html?q=certificate"
    shown = subprocess.run([BROWSER, *flags, address], capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.findall(r'<article class="md-search-result__article[^>]*>.*?<h1>(.*?)</h1>', shown, flags=re.DOTALL)
    assert any("audit" in title.lower() for title in found), shown[-2000:]


def test_every_public_name_stands_in_the_reference(site, built_pages):
    anchors = {
        anchor for path, page in built_pages.items() if path.parent.name == "reference" for anchor in page.anchors
    }
    top = {f"{getattr(pbsdk, name).__module__}.{name}" for name in pbsdk.__all__ if name != "__version__"}
    modules = {
        f"pbsdk.{name}.{thing}" for name in MODULES for thing in importlib.import_module(f"pbsdk.{name}").__all__
    }
    assert top | modules <= anchors


def test_every_command_stands_in_the_reference(site, built_pages):
    def names(command, name):
        yield name
        for inner, below in getattr(command, "commands", {}).items():
            yield from names(below, f"{name}-{inner}")

    page = site / "reference" / "cli.html"
    assert set(names(get_command(app), "pbsdk")) <= built_pages[page].anchors
    text = page.read_text("utf-8")
    assert "--label-column" in text
    assert "<!-- every command -->" not in text


def test_doctests_are_shown_as_code(site):
    shown = (site / "reference" / "loading.html").read_text("utf-8")
    assert 'class="language-pycon highlight"' in shown
    assert "<blockquote>" not in shown


def test_no_line_of_code_on_the_home_page_is_clipped():
    code = [line for block in blocks("index.md") for line in block.code.splitlines() if block.kind != "text"]
    assert len(code) > 10
    assert max(map(len, code)) <= 86, "a window of 1280 pixels shows 88 characters"
