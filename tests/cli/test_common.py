"""What commands share: errors of the library in the command line's words."""

import pytest

from pbsdk.cli._common import plainly
from pbsdk.cli._opening import read_options
from pbsdk.errors import BudgetExceeded, InputError


@pytest.mark.parametrize(
    ("limit", "cure"),
    [
        ("passes", "--budget 12, or use fewer prompts"),
        ("predict", "--budget 12, or use fewer prompts"),
        *((name, f"--{name} 12") for name in ("total", "attempts", "tokens", "money")),
    ],
)
def test_every_limit_is_cured_by_its_option(limit, cure):
    with pytest.raises(BudgetExceeded) as said, plainly():
        raise BudgetExceeded("too much", limit=limit, allowed=10, asked=12, left=10, needed=12)
    assert str(said.value) == f"too much. None of it was sent. To allow it: {cure}"


def test_python_cures_become_options():
    with (
        pytest.raises(InputError, match=r"leave such rows out with --missing drop, which fit and plan have$"),
        plainly(),
    ):
        raise InputError("leave such rows out with", setting="missing", value='"drop"')


@pytest.mark.parametrize(
    ("setting", "value", "typed"),
    [
        ("encoding", "cp1252", "--encoding cp1252"),
        ("delimiter", ";", "--delimiter ';'"),
        ("delimiter", "\t", r"--delimiter $'\t'"),
        ("label", "who does it", "--label-column 'who does it'"),
        ("text", "request", "--text-column request"),
    ],
)
def test_a_value_is_written_as_a_shell_takes_it(setting, value, typed):
    with pytest.raises(InputError) as said, plainly():
        raise InputError("name it with", setting=setting, value=repr(value))
    assert str(said.value) == f"name it with {typed}"


@pytest.mark.parametrize("name", ["api_key", "api-key", "token", "hf_token", "password", "client_secret"])
def test_secrets_are_refused_where_everybody_can_read_them(name):
    with pytest.raises(InputError, match="set PBSDK_API_KEY") as said:
        read_options([f"{name}=sk-1"])
    assert "sk-1" not in str(said.value)
    assert read_options(["max_tokens=5", "keyring=no"]) == {"max_tokens": 5, "keyring": "no"}
