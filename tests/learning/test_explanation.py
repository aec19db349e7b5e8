"""An explanation shows words, and marks what is only a piece of one."""

from __future__ import annotations

from pbsdk.learning.explanation import Explanation, LearnerRow


def table(*pairs):
    rows = tuple(LearnerRow("<input> <mask>.", pair, 1.0 + at) for at, pair in enumerate(pairs))
    return Explanation(("south", "north"), rows)


def test_pieces_of_words_single_letters_and_punctuation_are_no_words():
    found = table(
        (" South", " north"), ("outheastern", " Arctic"), (" P", " ["), (" Anna's", ' "'), ("south", " re-opened")
    )
    assert found.weights("south") == {"south": 5.0, "Anna's": 4.0, "South": 1.0}
    assert found.words("south") == ["south", "Anna's"]  # one spelling does
    assert found.words("north") == ["re-opened", "Arctic", "north"]
    assert "'…outheastern'" in str(found)
    assert "'…outheastern'" in found.fitted_to(30)
    assert "'south'" in str(found)  # a word, since ' South' is one


def test_words_without_spaces_are_words_where_the_model_has_none():
    found = table(("great", "bad"), ("fine", "dull"), ("好", "坏"))
    assert found.words("south") == ["好", "fine", "great"]
    assert "…" not in str(found)


def test_where_there_is_nothing_else_everything_is_shown():
    assert table((" !", " ?")).words("south") == ["!"]
