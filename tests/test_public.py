"""What users import, and what the README and other pages promise, as written."""

import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import pbsdk
from pbsdk import errors
from pbsdk.data.tickets import load_tickets

ROOT = Path(__file__).parent.parent


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_everything_promised_is_there():
    for name in pbsdk.__all__:
        assert getattr(pbsdk, name).__doc__


def test_what_is_imported_late_is_listed_and_what_is_not_there_is_an_error():
    assert set(pbsdk.__all__) <= set(dir(pbsdk))
    assert set(pbsdk._HOMES) | {"PbsdkError", "__version__"} == set(pbsdk.__all__)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        pbsdk.conect  # noqa: B018


@pytest.mark.parametrize("name", [module.name for module in pkgutil.walk_packages(pbsdk.__path__, "pbsdk.")])
def test_every_module_says_its_idea_and_lists_what_it_offers(name):
    module = importlib.import_module(name)
    assert module.__doc__
    rooms_without_front = hasattr(module, "__path__") and not hasattr(module, "__all__")
    if name != "pbsdk.version" and not rooms_without_front:
        assert module.__all__ == sorted(module.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
        for offered in module.__all__:
            assert hasattr(module, offered)


def test_every_error_stands_in_the_tree_that_the_docstring_draws():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.PbsdkError)
        assert name in errors.__doc__
    defined = {
        name
        for name, thing in vars(errors).items()
        if isinstance(thing, type) and issubclass(thing, Exception) and thing.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


def test_the_readmes_code_runs_as_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tickets = load_tickets()
    names = {
        "texts": tickets.train.texts,
        "labels": tickets.train.labels,
        "dev_texts": tickets.validation.texts,
        "dev_labels": tickets.validation.labels,
        "test_texts": tickets.test.texts[:20],
        "test_labels": tickets.test.labels[:20],
    }
    blocks = [block for block in python_blocks("README.md") if 'connect("fake"' in block]
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert (tmp_path / "trec.json").is_file()


def test_the_adapter_of_the_guide_holds_to_the_contract(tmp_path, monkeypatch):
    page = tmp_path / "test_guide.py"
    page.write_text("\n".join(python_blocks("backends/README.md")))
    assert len([line for line in python_blocks("backends/README.md")[0].splitlines() if line.strip()]) <= 30
    names = runpy.run_path(str(page))
    contract, backend = names["TestLetterBackend"](), names["LetterBackend"]()
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert len(tests) >= 8
    for name in tests:
        getattr(contract, name)(backend)
