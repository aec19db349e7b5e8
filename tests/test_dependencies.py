"""What pbsdk depends on: licences that are allowed, and a look-up of vulnerabilities that says when it could not look."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).parents[1] / ".ci"


def ran(script, *arguments):
    return subprocess.run(
        [sys.executable, CI / script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def licences():
    spec = importlib.util.spec_from_file_location("licences", CI / "licences.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_licence_of_everything_that_pbsdk_needs_is_allowed():
    listed = ran("licences.py")
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert "diskcache" in listed.stdout


@pytest.mark.parametrize(
    ("expression", "fine"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("none found", False),
        ("", False),
        ("GPL-2.0-or-later OR (MIT AND BSD-3-Clause)", True),
        ("MIT AND (GPL-3.0-only OR LGPL-3.0-only)", False),
        ("(MIT AND GPL-3.0-only) OR AGPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
    ],
)
def test_an_expression_must_offer_a_choice_that_is_allowed(licences, expression, fine):
    assert licences.allowed(expression) is fine


def test_a_licence_outside_the_list_fails_and_is_named(licences, monkeypatch, capsys):
    monkeypatch.setattr(licences, "ALLOWED", licences.ALLOWED - {"BSD-3-Clause"})
    monkeypatch.setattr(sys, "argv", ["licences.py"])
    with pytest.raises(SystemExit, match=r"not on the list: .*numpy"):
        licences.main()
    assert "NOT ALLOWED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "error", "code", "shown"),
    [
        ("", "ConnectionError: no route to pypi.org", 2, "nothing was checked: pip-audit could not ask its service"),
        (
            {"dependencies": [{"name": "a", "skip_reason": "not found on PyPI"}]},
            "",
            2,
            "nothing was checked: none of 1 packages",
        ),
        ({"dependencies": []}, "", 2, "nothing was checked: none of 0 packages"),
        ({"dependencies": [{"name": "a", "version": "1", "vulns": []}]}, "", 0, "1 packages checked, 0 known"),
        (
            {
                "dependencies": [
                    {"name": "torch", "skip_reason": "not on PyPI"},
                    {
                        "name": "a",
                        "version": "1",
                        "vulns": [{"id": "X-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}],
                    },
                ]
            },
            "found",
            1,
            "not checked: torch: not on PyPI\na 1: X-1 (CVE-1); fixed in 2\n1 packages checked, 1 known",
        ),
    ],
)
def test_a_look_up_of_vulnerabilities_says_what_it_found_or_that_it_could_not_look(tmp_path, said, error, code, shown):
    program = tmp_path / "pip-audit"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint({json.dumps(said) if said else ''!r})\nsys.exit({error!r})\n"
    )
    program.chmod(0o755)
    done = ran("audit_deps.py", program)
    assert done.returncode == code
    assert shown in done.stdout
