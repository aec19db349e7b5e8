"""Text made safe to print, and errors that quote it."""

import io
import json
import pickle

import pytest

from pbsdk.errors import BudgetExceeded, InputError, MissingExtra, PbsdkError, QueryRefused
from pbsdk.visible import for_spreadsheet, visible, visible_json

STEERING = "a\x1b[2J\x9b1m\r\x07\u202eb\u2028\ud800"
SHOWN = "a\\x1b[2J\\x9b1m\\x0d\\x07\\u202eb\\u2028\\ud800"


def test_what_steers_a_terminal_is_shown_and_the_rest_is_left_alone():
    assert visible(STEERING) == SHOWN
    for text in ("plain\ttext\nof lines", "Übung 漢字 עברית 👩\u200d👧", ""):
        assert visible(text) == text
    assert visible(visible(STEERING)) == SHOWN


def test_json_for_a_terminal_means_the_same():
    text = visible_json({STEERING: [STEERING, 1.5]}, indent=1)
    assert json.loads(text) == {STEERING: [STEERING, 1.5]}
    assert visible(text) == text
    text.encode()


@pytest.mark.parametrize("kind", [PbsdkError, InputError, MissingExtra, QueryRefused, BudgetExceeded])
def test_every_error_shows_what_its_message_quotes(kind):
    error = kind(f"the server said {STEERING}")
    assert SHOWN in str(error)
    assert SHOWN in str(pickle.loads(pickle.dumps(error)))
    io.TextIOWrapper(io.BytesIO(), "utf-8").write(str(error))  # half a character couldn't be written


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1"])
def test_a_formula_is_quoted_for_spreadsheets(text):
    assert for_spreadsheet(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "fine", "1=1", "'=1"])
def test_what_is_no_formula_is_left_alone(text):
    assert for_spreadsheet(text) == text
