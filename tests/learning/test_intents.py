"""Many classes that share their words, as intents do: `auto` is as good as what a user would try first, or better."""

import numpy as np
import pytest
from helpers.intents import INTENTS, requests
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline, make_union

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.learning import ridge
from pbsdk.learning.regression import MOST_COORDINATES, Space
from pbsdk.learning.texts import TextView, text_accuracy
from pbsdk.queries.examples import read_examples
from pbsdk.testing import FakeBackend

PROMPTS = ["<input> The <mask>.", "<input> My <mask>."]


def test_seventy_seven_intents_are_told_apart_as_well_as_by_tf_idf():
    train, test = requests(8, 1), requests(3, 2)
    views = make_union(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True),
    )
    simple = make_pipeline(views, LogisticRegression(C=30)).fit(*train).score(*test)
    auto = PromptBoostingClassifier(FakeBackend(signal=6), PROMPTS, random_state=1).fit(*train)
    assert auto.score(*test) > simple - 0.03 > 0.6
    assert {one.settings.get("ridge") for one in auto.selection_.tried} == {None, ridge.PENALTY}
    baseline = text_accuracy(read_examples(train[0]), np.searchsorted(auto.classes_, train[1]), 1)
    assert baseline == pytest.approx(auto.selection_.text_accuracy, abs=0.1)


def test_coordinates_of_many_texts_are_those_of_all_comparisons(monkeypatch):
    texts, labels = requests(3, 1)
    classes = np.unique(labels, return_inverse=True)[1]
    features = TextView.of(read_examples(texts)).features(read_examples(texts))
    compared = ridge.Ridges(features, classes, len(INTENTS))
    exact = compared.gram
    monkeypatch.setattr(ridge, "MOST_COMPARED", 10)
    coordinates = ridge.Ridges(features, classes, len(INTENTS)).space.coordinates
    assert np.allclose(coordinates @ coordinates.T, exact, atol=1e-6)  # fewer texts than coordinates: nothing is lost
    monkeypatch.setattr("pbsdk.learning.regression.MOST_COORDINATES", 60)
    few, best = ridge.Ridges(features, classes, len(INTENTS)).space.coordinates, Space.of_gram(exact).coordinates
    assert few.shape == best.shape == (len(texts), 60)
    assert len(texts) < MOST_COORDINATES
    assert np.square(few).sum() > 0.99 * np.square(best).sum()
    assert np.allclose(few.mean(axis=0), 0, atol=1e-9)
