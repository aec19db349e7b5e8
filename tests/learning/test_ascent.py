"""The search for many classes: what it finds can't be improved by one word, and is the same everywhere."""

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution
from pbsdk.errors import InputError
from pbsdk.learning.ascent import AscentSearch
from pbsdk.learning.boosting import Boosting, reweigh
from pbsdk.learning.heads import Trial
from pbsdk.learning.matrix import TokenMatrix, collect
from pbsdk.learning.verbalizer import EXACT_CLASSES, VerbalizerSearch, checked_m, default_m, says, uniform_weights
from pbsdk.learning.voting import Best, Searches, Voting


def intents(n_classes, per_class=4, n_tokens=300, seed=0, lift=3500):
    """Answers in which each class lifts three tokens, over tokens of very different levels; few steps make many ties."""
    generator = np.random.default_rng(7)
    lifted = np.argsort(generator.random((n_classes, n_tokens)), axis=1)[:, :3]
    levels = generator.integers(6000, 12_000, n_tokens)
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(n_classes), per_class))
    codes = levels + generator.normal(0, 700, (len(labels), n_tokens)).astype(int)
    codes[np.arange(len(labels))[:, None], lifted[labels]] -= lift
    return codes // 200 * 200, labels


def error_of(codes, labels, weights, tokens):
    return int(weights[says(codes[:, tokens]) != labels].sum())


@pytest.mark.parametrize("n_classes", [3, 23, 60])
def test_its_error_is_that_of_its_words_and_no_other_word_of_a_class_has_less(n_classes):
    codes, labels = intents(n_classes, per_class=6, lift=400)
    search = AscentSearch(TokenMatrix.from_codes(codes), labels, n_classes, 6)
    weights = uniform_weights(len(labels))
    for _ in range(4):
        found = search.best(weights)
        assert (found.wrong == (says(codes[:, found.tokens]) != labels)).all()
        assert found.error == error_of(codes, labels, weights, found.tokens) > 0
        for c, listed in enumerate(search._columns):
            for token in listed:
                other = (*found.tokens[:c], token, *found.tokens[c + 1 :])
                assert error_of(codes, labels, weights, other) >= found.error
        weights = reweigh(weights, found.wrong, n_classes)


def test_it_improves_on_the_best_scored_words():
    codes, labels = intents(30)
    search = AscentSearch(TokenMatrix.from_codes(codes), labels, 30)
    weights = uniform_weights(len(labels))
    assert search.best(weights).error < error_of(codes, labels, weights, search._columns[:, 0]) / 2


def test_candidates_stand_above_their_mean_by_most_deviations_the_lower_token_first():
    codes, labels = intents(25)
    codes[:, 40] = codes[:, 90]  # equal tokens have equal scores
    columns = AscentSearch(TokenMatrix.from_codes(codes), labels, 25, 8)._columns
    for c in range(25):
        scores = (codes.mean(axis=0) - codes[labels == c].mean(axis=0)) / (codes.std(axis=0) + 102.4)
        assert np.allclose(scores[columns[c]], np.sort(scores)[::-1][:8])
        listed = columns[c].tolist()
        assert 90 not in listed or (40 in listed and listed.index(40) < listed.index(90))


def test_answers_on_disk_give_the_same(tmp_path):
    codes, labels = intents(25)
    answers = (MaskDistribution(codes=row.astype(np.uint16)) for row in codes)
    (spilled,) = collect(answers, len(labels), 1, max_memory=5000, folder=tmp_path)
    assert spilled.spilled
    weights = np.random.default_rng(1).integers(1, 2**40, len(labels))
    one, other = (AscentSearch(matrix, labels, 25).best(weights) for matrix in (TokenMatrix.from_codes(codes), spilled))
    assert (one.tokens, one.error) == (other.tokens, other.error)
    spilled.close()


def test_columns_are_named_by_their_tokens_and_fewer_than_m_will_do():
    codes, labels = intents(21, n_tokens=9)
    matrix = TokenMatrix.from_codes(codes, tokens=np.arange(9) * 3 + 1)
    tokens = AscentSearch(matrix, labels, 21, 50).best(uniform_weights(len(labels))).tokens
    assert set(tokens) <= set(range(1, 28, 3))


@pytest.mark.parametrize(("n_classes", "kind"), [(EXACT_CLASSES, VerbalizerSearch), (EXACT_CLASSES + 1, AscentSearch)])
def test_it_is_used_only_where_not_all_combinations_can_be_tried(n_classes, kind):
    codes, labels = intents(n_classes)
    with Searches([TokenMatrix.from_codes(codes)], labels, n_classes, None) as searches:
        searches.unweighted(0)
        assert type(searches._searches[0]) is kind


@pytest.mark.parametrize("head", [Boosting(rounds=40), Voting(), Best()])
@pytest.mark.parametrize("n_classes", [20, 77, 150])
def test_the_papers_heads_learn_many_classes_and_say_how_they_searched(head, n_classes):
    codes, labels = intents(n_classes, n_tokens=1000)
    more, _ = intents(n_classes, n_tokens=1000)
    held_out, right = intents(n_classes, n_tokens=1000, seed=3)
    fitted = head.fit(Trial([TokenMatrix.from_codes(one) for one in (codes, more)], labels, n_classes, 1))
    assert fitted.facts["search"] == ("exact" if n_classes == 20 else "not exact")
    if n_classes > EXACT_CLASSES:
        said = fitted.scores_of([TokenMatrix.from_codes(held_out)] * 2, [None] * len(right)).argmax(axis=1)
        assert (said == right).mean() > 0.5


def test_many_classes_have_ten_candidates_unless_told_and_a_hundred_at_most():
    assert default_m(21) == checked_m(None, 150) == 10
    assert checked_m(100, 21) == 100
    with pytest.raises(InputError, match="use m=100 or less"):
        checked_m(101, 77)
