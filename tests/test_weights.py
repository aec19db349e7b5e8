"""How much each text counts: for every head, in cross-validation, and in money."""

from collections.abc import Mapping

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.learning.calibration import loss, temperature
from pbsdk.learning.heads import Head
from pbsdk.learning.regression import Space, fit_many, log_softmax
from pbsdk.learning.ridge import Ridges
from pbsdk.learning.verbalizer import uniform_weights, whole_weights
from pbsdk.learning.voting import Voting
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

PROMPTS = [f"<input> {cue} <mask>." for cue in ("It was", "So", "About", "The")]
TICKETS = load_tickets()
HEADS = ("auto", "soft", "knn", "boosting", "voting", "best")
FEW = ["shipping"] * 2


def texts_of(label, count):
    return [text for text, own in zip(TICKETS.train.texts, TICKETS.train.labels, strict=True) if own == label][:count]


def uneven():
    """Return many texts of one class, few of another, and new ones of both."""
    first, second = sorted(set(TICKETS.train.labels))[:2]
    many, few = texts_of(first, 16), texts_of(second, 4)
    new = [text for text, own in zip(TICKETS.test.texts, TICKETS.test.labels, strict=True) if own in {first, second}]
    return many + few, [first] * 16 + [second] * 4, new, second


def classifier(backend=None, **parameters):
    return PromptBoostingClassifier(
        backend or FakeBackend(signal=0.8),
        PROMPTS,
        **{"random_state": 3, "rounds": 12, **parameters},
    )


@pytest.mark.parametrize("head", HEADS)
def test_a_class_that_counts_more_is_said_more_often(head):
    texts, labels, new, rare = uneven()
    shares = [
        (classifier(head=head, class_weight=weight).fit(texts, labels).predict(new) == rare).mean()
        for weight in ({rare: 0.02}, None, {rare: 50})
    ]
    assert shares[0] <= shares[1] <= shares[2]
    assert shares[0] < shares[2]


@pytest.mark.parametrize("head", HEADS[1:])  # auto is made of soft and boosting
def test_equal_weights_change_nothing_and_only_proportions_count(head):
    texts, labels, new, rare = uneven()
    plain = classifier(head=head).fit(texts, labels)
    same = classifier(head=head).fit(texts, labels, sample_weight=np.full(len(texts), 7.0))
    assert np.array_equal(plain.predict_proba(new), same.predict_proba(new))
    weights = np.where(np.array(labels) == rare, 3.0, 1.0)
    once, scaled = (classifier(head=head).fit(texts, labels, by * weights).predict_proba(new) for by in (1, 1000))
    assert np.allclose(once, scaled)
    by_class = classifier(head=head, class_weight={rare: 3}).fit(texts, labels).predict_proba(new)
    assert np.allclose(once, by_class)


def test_in_boosting_a_weight_of_two_is_the_text_twice():
    texts, labels, new, _ = uneven()
    twice = classifier(head="boosting", on_perfect="best").fit(texts + texts[:5], labels + labels[:5])
    weights = [2] * 5 + [1] * (len(texts) - 5)
    weighed = classifier(head="boosting", on_perfect="best").fit(texts, labels, weights)
    assert [one.tokens for one in weighed.ensemble_.learners] == [one.tokens for one in twice.ensemble_.learners]
    assert np.allclose(weighed.predict_proba(new), twice.predict_proba(new))


def test_in_the_regressions_a_weight_of_two_is_the_row_twice():
    generator = np.random.default_rng(0)
    features, labels = generator.standard_normal((30, 4)), np.arange(30) % 3
    features[np.arange(30), labels] += 1
    repeated = np.concatenate([np.arange(30), np.arange(6)])
    space = Space.of(features - features.mean(axis=0))
    weights = np.where(np.arange(30) < 6, 1.0, 0.5)
    solved = fit_many(space.coordinates, labels, 3, [10.0], weights[None])[0]
    own = space.coordinates[repeated]
    centred = Space.of(own - own.mean(axis=0))
    other = fit_many(centred.coordinates, labels[repeated], 3, [5.0])[0]  # half the weight is half the strength
    ours, theirs = (log_softmax(z @ w[:-1] + w[-1]) for z, w in ((own, solved), (centred.coordinates, other)))
    assert np.allclose(ours, theirs, atol=1e-2)
    scores = generator.standard_normal((30, 3))
    doubled = np.where(np.arange(30) < 6, 2.0, 1.0)
    assert loss(scores, labels, doubled) == pytest.approx(loss(scores[repeated], labels[repeated]))
    assert temperature(scores, labels, doubled) == temperature(scores[repeated], labels[repeated])


def test_a_ridge_regression_follows_the_heavier_of_two_labels():
    from scipy.sparse import csr_matrix

    features = csr_matrix(np.array([[1.0, 0], [1.0, 0], [0, 1.0], [0, 1.0]]))
    labels, every = np.array([0, 1, 1, 0]), np.ones(4, dtype=bool)
    scores, _, _ = Ridges(features, labels, 2, np.array([9.0, 1.0, 9.0, 1.0])).solve(every)
    assert scores.argmax(axis=1).tolist() == [0, 0, 1, 1]
    scores, _, _ = Ridges(features, labels, 2, np.array([1.0, 9.0, 1.0, 9.0])).solve(every)
    assert scores.argmax(axis=1).tolist() == [1, 1, 0, 0]


def test_whole_number_weights_are_exact_multiples():
    assert (whole_weights(np.full(7, 0.3), 7) == uniform_weights(7)).all()
    found = whole_weights(np.array([1, 2, 3]) / 2, 3)
    assert (found == found[0] * np.array([1, 2, 3])).all()
    assert (whole_weights(np.array([1e-30, 1.0]), 2) >= 1).all()


def test_balanced_classes_count_the_same_in_all():
    texts, labels, new, rare = uneven()
    balanced = classifier(head="soft", class_weight="balanced").fit(texts, labels)
    by_hand = classifier(head="soft", class_weight={rare: 4}).fit(texts, labels)
    assert np.allclose(balanced.predict_proba(new), by_hand.predict_proba(new))
    assert balanced.facts_.weighted is True


def test_a_text_of_weight_0_is_as_if_it_were_absent_and_costs_nothing():
    texts, labels, new, _ = uneven()
    fake = FakeBackend()
    weights = [0 if at in {2, 5} else 1 for at in range(len(texts))]
    weighed = classifier(fake, head="soft").fit(texts, labels, weights)
    assert len(fake.asked) == (len(texts) - 2) * len(PROMPTS)
    kept = [at for at, weight in enumerate(weights) if weight]
    absent = classifier(FakeBackend(), head="soft").fit([texts[at] for at in kept], [labels[at] for at in kept])
    assert np.array_equal(weighed.predict_proba(new), absent.predict_proba(new))


@pytest.mark.parametrize("head", ["soft", "knn", "boosting"])
def test_a_weighed_classifier_is_saved_and_loaded(head, tmp_path):
    texts, labels, new, rare = uneven()
    clf = classifier(head=head, class_weight={rare: 5}).fit(texts, labels)
    clf.save(tmp_path / "model.json")
    again = PromptBoostingClassifier.load(tmp_path / "model.json", clf.backend)
    assert np.allclose(again.predict_proba(new), clf.predict_proba(new), atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([1.0], r"shape \(1,\), and there are 20 texts"),
        ([[1.0]] * 20, "one number per text"),
        ([-1.0] + [1.0] * 19, r"sample_weight\[0\] is -1"),
        ([1.0] * 19 + [np.nan], r"sample_weight\[19\] is nan"),
        (["much"] * 20, "must be numbers"),
        ([1.0] * 16 + [0.0] * 4, "0 for every text of the class"),
    ],
)
def test_weights_that_mean_nothing_are_refused_before_anything_is_asked(weights, said):
    texts, labels, *_ = uneven()
    fake = FakeBackend()
    with pytest.raises(InputError, match=said):
        classifier(fake).fit(texts, labels, weights)
    assert fake.asked == []


@pytest.mark.parametrize(
    ("weight", "said"),
    [("even", 'must be "balanced" or a mapping'), ({"nonsense": 2}, "names 'nonsense'; the classes are")],
)
def test_class_weights_that_mean_nothing_are_refused(weight, said):
    texts, labels, *_ = uneven()
    assert isinstance(weight, str | Mapping)
    with pytest.raises(InputError, match=said):
        classifier(class_weight=weight).fit(texts, labels)


def test_a_head_that_cannot_weigh_refuses_weights_and_works_without():
    class Plain(Voting):
        name = "plain"
        weighs = False

    texts, labels, *_ = uneven()
    assert Head.weighs is False
    fake = FakeBackend()
    with pytest.raises(InputError, match="head 'plain' doesn't weigh texts"):
        classifier(fake, head=Plain(), class_weight="balanced").fit(texts, labels)
    assert fake.asked == []
    classifier(fake, head=Plain()).fit(texts, labels, np.full(len(texts), 2.0))


def test_added_texts_are_the_only_ones_that_are_asked_about(tmp_path):
    texts, labels, new, rare = uneven()
    fake = FakeBackend()
    lm = MeteredBackend(fake, tmp_path / "run", 10)
    clf = classifier(lm, head="soft").fit(
        texts[:12] + texts[16:], labels[:12] + labels[16:], validation=(new[:2], labels[15:17])
    )
    fake.asked.clear()
    clf.add(texts[12:16], labels[12:16])
    assert sorted({query.example for query in fake.asked}) == sorted(
        {q.example for q in clf.fit_queries(texts[12:16], [rare, *labels[13:16]])}
    )
    assert clf.n_train_ == 20
    whole = classifier(lm, head="soft").fit(
        texts[:12] + texts[16:] + texts[12:16],
        labels[:12] + labels[16:] + labels[12:16],
        validation=(new[:2], labels[15:17]),
    )
    assert np.array_equal(clf.predict_proba(new), whole.predict_proba(new))


def test_a_text_that_is_added_again_takes_the_new_label_and_costs_nothing(tmp_path):
    texts, labels, new, rare = uneven()
    fake = FakeBackend()
    lm = MeteredBackend(fake, tmp_path / "run", 10)
    clf = classifier(lm, head="soft").fit(texts, labels)
    fake.asked.clear()
    clf.add(texts[:3], [rare] * 3, [2, 2, 2])
    assert fake.asked == []
    assert clf.n_train_ == len(texts)
    right = classifier(lm, head="soft").fit(texts, [rare] * 3 + labels[3:], [2] * 3 + [1] * (len(texts) - 3))
    assert np.array_equal(clf.predict_proba(new), right.predict_proba(new))


def test_a_new_class_may_be_added_unless_the_prompts_name_the_classes():
    texts, labels, *_ = uneven()
    clf = classifier(head="soft").fit(texts, labels)
    assert clf.add(["one more", "and another"], ["third"] * 2).classes_.tolist() == sorted({*labels, "third"})
    named = PromptBoostingClassifier(FakeBackend(), ["<labels>: <input> <mask>"], head="soft").fit(texts, labels)
    with pytest.raises(InputError, match="a new class changes them all"):
        named.add(["one more"], ["third"])


def test_what_a_prompt_shows_keeps_its_label():
    texts, labels, *_ = uneven()
    clf = PromptBoostingClassifier(
        FakeBackend(), ["<examples> <input> It was <mask>"], head="soft", demonstrations=1, random_state=0
    ).fit(texts, labels)
    clf.add(["something else"], labels[:1])
    asked = {query.example for query in clf.fit_queries(texts, labels)}
    shown = next(at for at, text in enumerate(texts) if clf._readable([text])[0].id not in asked)
    with pytest.raises(InputError, match="under its old label"):
        clf.add([texts[shown]], [next(label for label in labels if label != labels[shown])])


def test_a_loaded_classifier_says_that_it_has_no_texts_to_add_to(tmp_path):
    texts, labels, *_ = uneven()
    clf = classifier(head="soft").fit(texts, labels)
    clf.save(tmp_path / "model.json")
    with pytest.raises(InputError, match="doesn't keep its texts"):
        PromptBoostingClassifier.load(tmp_path / "model.json", clf.backend).add(["x"], labels[:1])


def test_cross_validation_hands_weights_on():
    texts, labels, *_ = uneven()
    scores = cross_val_score(
        classifier(head="soft"), texts, labels, cv=2, params={"sample_weight": np.linspace(0.1, 1, len(texts))}
    )
    assert len(scores) == 2
