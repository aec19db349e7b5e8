"""Extension points: declared in one module, found by name, and answered with a cure where something is missing."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from pbsdk import plugins
from pbsdk.errors import InputError, MissingExtra
from pbsdk.plugins import BACKENDS, HEADS, SERVERS, WRITERS, PluginGroup

ROOT = Path(__file__).parents[1]
GROUPS = [value for value in vars(plugins).values() if isinstance(value, PluginGroup)]


def test_every_group_of_the_project_is_declared_and_nowhere_else():
    declared = {group.group for group in GROUPS}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {name for name in project["entry-points"] if name.startswith("pbsdk.")} <= declared
    elsewhere = [
        path.name
        for folder in ("pbsdk", "backends")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "plugins.py" and re.search(r"PluginGroup\(|entry_points\(", path.read_text("utf-8"))
    ]
    assert elsewhere == []


@pytest.mark.parametrize("group", [BACKENDS, SERVERS, WRITERS])
def test_an_extra_is_one_that_the_project_has_for_a_name_that_is_registered(group):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(group.extras) <= set(project["entry-points"][group.group])
    assert set(group.extras.values()) <= set(project["optional-dependencies"])


def test_anybody_may_register_a_head(monkeypatch):
    entries = [metadata.EntryPoint("tree", "collections:Counter", "pbsdk.heads")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == "pbsdk.heads" else [])
    assert HEADS.names() == ["tree"]
    assert HEADS.load("tree").__name__ == "Counter"
    with pytest.raises(InputError, match=r"no head is called 'tre'\. Did you mean 'tree'\? Available: tree"):
        HEADS.load("tre")


def test_what_anybody_registered_and_cannot_be_imported_says_what_it_needs(monkeypatch):
    entries = [metadata.EntryPoint("tree", "nowhere:Nothing", "pbsdk.heads")]
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)
    with pytest.raises(MissingExtra, match=r"the head 'tree' can't be imported .*; install what nowhere:Nothing needs"):
        HEADS.load("tree")


def test_an_unknown_writer_is_an_input_error():
    with pytest.raises(InputError, match="no prompt writer is called 't6'"):
        WRITERS.load("t6")
