"""The estimator: from texts to a classifier, through the interface alone."""

import datetime as dt
import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from pbsdk.backend import Abilities, MaskedLMBackend, ModelIdentity, Phase, Vocabulary
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BudgetExceeded, InputError, ModelFileError, TemplateError
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

PROMPTS = [f"<input> {cue} <mask>." for cue in ("It was", "So", "About", "The", "This is", "All in all", "Re:")]
TICKETS = load_tickets()
TRAIN, DEV, TEST = TICKETS.train, TICKETS.validation, TICKETS.test


def small(split=TRAIN, count=24):
    return split.texts[:count], split.labels[:count]


def fitted(backend=None, prompts=PROMPTS, validation=(DEV.texts, DEV.labels), **parameters):
    """Fit the paper's head, which is quick and easy to look into, or another."""
    parameters = {"head": "boosting", "random_state": 13, **parameters}
    clf = PromptBoostingClassifier(backend or FakeBackend(), prompts, **parameters)
    return clf.fit(TRAIN.texts, TRAIN.labels, validation=validation)


def same_ensemble(one, other):
    return one.ensemble_ == other.ensemble_ and [t.source for t in one.templates_] == [
        t.source for t in other.templates_
    ]


def test_training_on_the_fake_means_something():
    real = fitted(rounds=60).score(TEST.texts, TEST.labels)
    noise = fitted(FakeBackend(signal=0), rounds=60).score(TEST.texts, TEST.labels)
    assert real > 0.6
    assert noise < 0.35


def test_more_prompts_do_better_than_one():
    one = fitted(n_prompts=1, rounds=60).score(TEST.texts, TEST.labels)
    all_of_them = fitted(rounds=60).score(TEST.texts, TEST.labels)
    assert all_of_them > one


def test_every_example_is_asked_once_under_every_prompt_and_charged_to_its_phase():
    fake = FakeBackend()
    fitted(fake, rounds=5)
    asked = [(query.phase, query.example, query.prompt) for query in fake.asked]
    assert len(asked) == len(set(asked)) == (len(TRAIN) + len(DEV)) * len(PROMPTS)
    assert sum(phase == Phase.TRAIN for phase, _, _ in asked) == len(TRAIN) * len(PROMPTS)
    # the prompts of one example come together, so that a backend can share its text
    assert len({example for _, example, _ in asked[: len(PROMPTS)]}) == 1


def test_prediction_asks_only_for_the_prompts_and_tokens_in_use():
    fake = FakeBackend(chosen=True)
    seen = []
    original = fake.fill
    fake.fill = lambda queries, tokens=None: seen.append(tokens) or original(queries, tokens)
    clf = fitted(fake, rounds=3)
    fake.asked.clear()
    seen.clear()
    clf.predict(["some new text"])
    assert {query.prompt for query in fake.asked} == {clf.templates_[t].source for t in clf.ensemble_.templates}
    assert {query.phase for query in fake.asked} == {Phase.PREDICT}
    assert (seen[0] == clf.ensemble_.tokens).all()


def test_a_backend_that_shows_nothing_but_the_interface_trains():
    class BlackBox(MaskedLMBackend):
        def __init__(self):
            inner = FakeBackend()
            allowed = {
                "identity": ModelIdentity("black box"),
                "vocabulary": Vocabulary(inner.vocabulary[token] for token in range(1000)),
                "abilities": Abilities(batch_size=16),
                "mask_token": "<mask>",
                "fill": inner.fill,
                "stream": lambda queries, tokens=None: MaskedLMBackend.stream(self, queries, tokens),
            }
            object.__setattr__(self, "_allowed", allowed)

        def __getattribute__(self, name):
            allowed = object.__getattribute__(self, "_allowed")
            if name in allowed:
                return allowed[name]
            if name.startswith("__"):
                return object.__getattribute__(self, name)
            message = f"the trainer looked at {name!r}"
            raise AssertionError(message)

        def fill(self, queries, tokens=None):
            raise AssertionError

    closed = fitted(BlackBox(), rounds=8)
    assert same_ensemble(closed, fitted(rounds=8))
    closed.predict(TEST.texts[:2])
    chosen = fitted(BlackBox(), head="auto")
    assert (chosen.predict(TEST.texts) == fitted(head="auto").predict(TEST.texts)).all()


def test_the_head_chooses_for_itself_unless_it_is_named(tmp_path):
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, random_state=13).fit(*small())
    assert clf.head_name_ == "auto"
    assert clf.selection_.n_examples == 24
    clf.save(tmp_path / "model.json")
    assert PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend()).head == "auto"


def test_the_same_seed_gives_the_same_classifier_and_another_seed_another():
    first, second = (
        PromptBoostingClassifier(FakeBackend(), PROMPTS, head="boosting", rounds=9, random_state=s) for s in (1, 2)
    )
    again = clone(first)
    for clf in (first, second, again):
        clf.fit(*small())
    assert same_ensemble(first, again)
    assert not same_ensemble(first, second)


def test_a_replay_is_bit_identical_and_asks_nothing(tmp_path):
    first = fitted(MeteredBackend(FakeBackend(), tmp_path / "run", 10), rounds=20)
    silent = FakeBackend()
    second = fitted(MeteredBackend(silent, tmp_path / "run", 10), rounds=20)
    assert silent.asked == []
    assert same_ensemble(first, second)


def test_labels_keep_their_type():
    texts, labels = small()
    numbers = [sorted(set(labels)).index(label) * 10 for label in labels]
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="boosting", rounds=5, random_state=0).fit(
        texts, numbers
    )
    assert clf.predict(texts).dtype.kind == "i"
    assert set(clf.predict(texts)) <= {0, 10, 20, 30}
    words = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="boosting", rounds=5, random_state=0).fit(
        texts, labels
    )
    assert [sorted(set(labels))[n // 10] for n in clf.predict(texts)] == words.predict(texts).tolist()


def test_columns_arrays_and_pairs_are_taken():
    frame = pd.DataFrame({"text": TRAIN.texts, "label": TRAIN.labels}, index=range(100, 164))
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="boosting", rounds=5, random_state=0)
    from_frame = clone(clf).fit(frame["text"], frame["label"])
    from_array = clone(clf).fit(np.array(TRAIN.texts), np.array(TRAIN.labels))
    assert same_ensemble(from_frame, from_array)
    pairs = list(zip(TRAIN.texts, reversed(TRAIN.texts), strict=True))
    paired = PromptBoostingClassifier(
        FakeBackend(), ["<input>? <mask>, <input2>"], head="boosting", rounds=5, random_state=0
    )
    assert len(paired.fit(pairs, TRAIN.labels).predict(pairs[:3])) == 3


def test_probabilities_are_shares_of_the_vote():
    clf = fitted(rounds=20)
    shares = clf.predict_proba(TEST.texts[:20])
    assert shares.shape == (20, 4)
    assert np.allclose(shares.sum(axis=1), 1)
    assert (clf.classes_[shares.argmax(axis=1)] == clf.predict(TEST.texts[:20])).all()


def test_staged_scores_end_with_the_score():
    clf = fitted(rounds=20)
    stages = list(clf.staged_score(TEST.texts, TEST.labels))
    assert len(stages) == len(clf.ensemble_.learners)
    assert stages[-1] == clf.score(TEST.texts, TEST.labels)


def test_texts_that_can_be_read_once_only_are_read_once():
    clf = fitted(rounds=5)
    assert clf.score(iter(TEST.texts), iter(TEST.labels)) == clf.score(TEST.texts, TEST.labels)
    staged = list(clf.staged_score(iter(TEST.texts), iter(TEST.labels)))
    assert staged == list(clf.staged_score(TEST.texts, TEST.labels))


def test_verdicts_come_one_by_one_as_their_answers_do():
    fake = FakeBackend()
    clf = fitted(fake, rounds=5)
    before = len(fake.asked)
    verdicts = clf.predict_iter(iter(TEST.texts))
    first = next(verdicts)
    assert 0 < len(fake.asked) - before < len(TEST.texts) * len(clf.fitted_.prompts)
    every = [first, *verdicts]
    assert [verdict.label for verdict in every] == clf.predict(TEST.texts).tolist()
    assert (np.array([verdict.probabilities for verdict in every]) == clf.predict_proba(TEST.texts)).all()


def test_another_model_runs_beside_from_the_same_answers():
    fake = FakeBackend()
    clf, other = fitted(fake, rounds=5), fitted(rounds=9, head="voting")
    before = len(fake.asked)
    verdicts = list(clf.predict_iter(TEST.texts, beside=[other.fitted_]))
    prompts = set(clf.fitted_.prompts) | set(other.fitted_.prompts)
    assert len(fake.asked) - before == len(TEST.texts) * len(prompts)
    said = clf.classes_[[int(verdict.beside[0].argmax()) for verdict in verdicts]]
    assert (said == other.predict(TEST.texts)).all()
    assert [verdict.label for verdict in verdicts] == clf.predict(TEST.texts).tolist()


def test_rounds_are_shown_where_progress_is(capsys):
    fitted(rounds=30, progress=True)
    assert "training" in capsys.readouterr().err
    fitted(rounds=30, progress=False)
    assert not capsys.readouterr().err


def test_every_documented_attribute_exists_after_fit_and_after_load(tmp_path):
    clf = fitted(rounds=5)
    clf.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    chooses = fitted(head="auto")
    chooses.save(tmp_path / "auto.json")
    documented = re.findall(r"^        (\w+_):", PromptBoostingClassifier.__doc__, flags=re.MULTILINE)
    assert set(documented) >= {"classes_", "templates_", "ensemble_", "history_", "n_train_"}
    by_head = {"selection_": chooses, "ensemble_": clf}
    for one in (clf, loaded):
        one.predict(TEST.texts[:2], early_exit=True)  # which sets passes_saved_
        one.predict(TEST.texts[:2], on_error="record")  # which sets errors_
        assert all(hasattr(by_head.get(name, one), name) for name in documented)
        assert {name for name in vars(one) if name.endswith("_")} <= set(documented)
    assert loaded.facts_ == clf.facts_


def test_without_validation_all_rounds_are_kept_and_merging_trains_on_both():
    assert len(fitted(rounds=7, validation=None).ensemble_.learners) == 7
    merged = fitted(rounds=7, merge_validation=True)
    both = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="boosting", rounds=7, random_state=13)
    both.fit(TRAIN.texts + DEV.texts, TRAIN.labels + DEV.labels)
    assert same_ensemble(merged, both)
    assert merged.n_train_ == 128


def test_the_first_prompts_alone_are_used():
    fake = FakeBackend()
    clf = fitted(fake, n_prompts=2, rounds=5)
    assert {query.prompt for query in fake.asked} == set(PROMPTS[:2])
    assert len(clf.templates_) == 2


def test_top_k_and_causal_models_train_too():
    partial = fitted(FakeBackend(top=20), rounds=40)
    assert partial.score(TEST.texts, TEST.labels) > 0.35
    causal = FakeBackend(mask="last")
    with pytest.warns(UserWarning, match="of 3 prompts 2 are different"):
        fitted(causal, ["<input> A <mask> movie.", "<input> A <mask> film.", "<input> So <mask>"], rounds=4)
    assert len(causal.asked) == len({q.content for q in causal.asked}) == 2 * (len(TRAIN) + len(DEV))


def test_a_perfect_learner_gives_the_vote_or_the_best():
    texts, labels = ["sun sun sun", "rain rain"] * 3, ["a", "b"] * 3
    texts = [f"{text} {at}" for at, text in enumerate(texts)]
    vote = PromptBoostingClassifier(FakeBackend(signal=9), PROMPTS[:3], head="boosting", random_state=0).fit(
        texts, labels
    )
    assert [learner.alpha for learner in vote.ensemble_.learners] == [1.0] * 3
    best = clone(vote).set_params(on_perfect="best")
    assert len(best.fit(texts, labels).ensemble_.learners) == 1


def test_explain_shows_prompts_words_and_weights():
    clf = fitted(rounds=6)
    table = clf.explain()
    assert table.classes == ("account", "billing", "shipping", "technical")
    assert [row.weight for row in table.rows] == [learner.alpha for learner in clf.ensemble_.learners]
    first = clf.ensemble_.learners[0]
    assert table.rows[0].words == tuple(clf.backend.vocabulary[token] for token in first.tokens)
    assert table.rows[0].prompt in str(table)
    assert repr(table.rows[0].words[0]) in str(table)
    assert "&lt;input&gt;" in table._repr_html_()
    assert "<input>" not in table._repr_html_()
    assert "<input>" not in clf._repr_html_()
    assert table.words("billing", 3)[0] in {word.strip() for row in table.rows for word in [row.words[1]]}


def test_a_saved_classifier_predicts_the_same_and_is_readable(tmp_path):
    clf = fitted(rounds=12)
    clf.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    assert loaded.ensemble_ == clf.ensemble_
    assert (loaded.predict_proba(TEST.texts[:30]) == clf.predict_proba(TEST.texts[:30])).all()
    content = json.loads((tmp_path / "model.json").read_text())
    assert content["classes"] == ["account", "billing", "shipping", "technical"]
    assert content["templates"] == PROMPTS
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "model.json").read_text()


@pytest.mark.parametrize(
    "labels",
    [
        [np.uint64(2**64 - 1), np.uint64(1)],
        [np.int8(-3), np.int8(3)],
        [np.str_("x"), np.str_("y")],
        [np.True_, np.False_],
    ],
)
def test_labels_come_back_from_a_file_as_they_went(labels, tmp_path):
    texts, _ = small()
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS[:2], head="boosting", rounds=2, random_state=0)
    clf.fit(texts, labels * 12).save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    given = {label.item() for label in labels}
    for one in (clf, loaded):
        assert set(one.classes_.tolist()) == given
        assert set(map(type, one.predict(texts).tolist())) == set(map(type, given))
        assert set(one.predict(texts).tolist()) <= given


def test_a_file_whose_labels_are_mixed_is_refused(tmp_path):
    fitted(rounds=2).save(tmp_path / "model.json")
    content = json.loads((tmp_path / "model.json").read_text())
    del content["digest"]
    (tmp_path / "model.json").write_text(json.dumps({**content, "classes": ["1", 1, "b", "c"]}))
    with pytest.raises(ModelFileError, match="mixes types"):
        PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())


def test_a_saved_classifier_with_another_model_warns_and_follows_its_words(tmp_path):
    clf = fitted(rounds=4)
    clf.save(tmp_path / "model.json")
    with pytest.warns(UserWarning, match=r"another model than this one \(seed: 1 here, 0 there\)"):
        PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend(seed=1))
    shifted = FakeBackend()
    shifted.vocabulary = Vocabulary(["<pad>", *(FakeBackend().vocabulary[token] for token in range(1000))])
    moved = PromptBoostingClassifier.load(tmp_path / "model.json", shifted)
    assert moved.explain().rows == clf.explain().rows
    assert moved.ensemble_.learners[0].tokens == tuple(token + 1 for token in clf.ensemble_.learners[0].tokens)
    shifted.vocabulary = Vocabulary(["<pad>"] * 1001)
    with pytest.raises(ModelFileError, match="is not a token of"):
        PromptBoostingClassifier.load(tmp_path / "model.json", shifted)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"y": ["a"] * 24}, "two classes or more"),
        ({"y": ["a"] * 23}, "24 texts and 23 labels"),
        ({"y": ["a", float("nan")] * 12}, r"labels\[1\] is missing"),
        ({"y": ["1", 1] * 12}, "mixes types"),
        ({"y": ["a", b"b"] * 12}, r"labels\[1\] is a bytes"),
        ({"y": ["a", dt.date(2026, 1, 1)] * 12}, r"labels\[1\] is a date"),
        ({"y": [1.0, float("inf")] * 12}, r"labels\[1\] is inf"),
        ({"y": ["a", "\ud800"] * 12}, "half of a character"),
        ({"X": [], "y": []}, "no texts to train on"),
        ({"X": ["x", None] * 12}, r"texts\[1\] is missing"),
        ({"X": ["x", float("nan")] * 12}, r"texts\[1\] is missing"),
        ({"X": ["x", "a <mask>"] * 12}, "markers="),
        ({"validation": (["x"], ["unheard of"])}, "labels that the training set lacks: 'unheard of'"),
        ({"validation": (["x", "y"], ["billing"])}, "2 texts and 1 validation labels"),
        ({"validation": ([], [])}, "validation set is empty"),
        ({"validation": ["x"]}, "must be"),
        ({"validation": ([("x", "y")], ["billing"])}, "both"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"rounds": 2.5}, "rounds must be"),
        ({"m": 0}, "m must be"),
        ({"n_prompts": 0}, "n_prompts must be"),
        ({"prompts": []}, "pool is empty"),
        ({"prompts": ["<input> no mask"]}, "no <mask>"),
        ({"prompts": ["<input> <mask> <input2>"]}, "takes two texts"),
        ({"prompts": ["<input> <mask>"] * 2}, "twice"),
        ({"draw": "none"}, "draw must be one of"),
        ({"on_perfect": "cry"}, "on_perfect must be one of"),
        ({"style": "baroque"}, "style must be one of"),
        ({"markers": "eat"}, "markers must be one of"),
        ({"keep": "calm"}, "keep must be one of"),
        ({"merge_validation": True}, "needs fit"),
    ],
    ids=str,
)
def test_bad_input_is_refused_before_anything_is_sent(change, complaint):
    fake = FakeBackend()
    texts, labels = small()
    data = {"X": texts, "y": labels, "validation": None}
    data.update({key: value for key, value in change.items() if key in data})
    parameters = {key: value for key, value in change.items() if key not in data}
    clf = PromptBoostingClassifier(fake, **{"prompts": PROMPTS, **parameters})
    with pytest.raises(InputError, match=complaint):
        clf.fit(data["X"], data["y"], validation=data["validation"])
    assert fake.asked == []
    with pytest.raises(NotFittedError):
        clf.predict(["x"])


def test_no_backend_is_refused():
    with pytest.raises(InputError, match=r"pbsdk.connect\(\)"):
        PromptBoostingClassifier("roberta-large", PROMPTS).fit(*small())


def test_masks_in_texts_can_be_escaped():
    fake = FakeBackend()
    texts, labels = small()
    PromptBoostingClassifier(fake, PROMPTS[:1], head="boosting", rounds=2, markers="escape").fit(
        [*texts[:-1], "a <mask> b"], labels
    )
    assert fake.asked[-1].text() == "a < mask> b It was <mask>."


def test_a_causal_model_refuses_prompts_it_cannot_read_to_the_end():
    fake = FakeBackend(mask="last")
    with pytest.raises(TemplateError, match="put the mask last"):
        PromptBoostingClassifier(fake, ["<mask> News: <input>"]).fit(*small())
    assert fake.asked == []


def test_a_budget_that_does_not_suffice_stops_fit_before_anything_is_sent(tmp_path):
    fake = FakeBackend()
    lm = MeteredBackend(fake, tmp_path / "run", 6)
    with pytest.raises(BudgetExceeded):
        fitted(lm)
    assert fake.asked == []
    fitted(lm, n_prompts=6, rounds=3)


def test_a_pipeline_takes_it():
    pipeline = Pipeline(
        [
            ("shorten", FunctionTransformer(lambda texts: [text[:60] for text in texts])),
            ("boost", PromptBoostingClassifier(FakeBackend(), PROMPTS[:3], head="boosting", rounds=4, random_state=0)),
        ]
    )
    pipeline.fit(TRAIN.texts, TRAIN.labels)
    assert len(pipeline.predict(TEST.texts[:5])) == 5


@pytest.mark.parametrize("scoring", [None, "f1_macro"])
def test_a_grid_search_costs_the_union_of_its_prompts_and_no_more(tmp_path, scoring):
    fake = FakeBackend(chosen=True)
    lm = MeteredBackend(fake, tmp_path / "run", 10)
    clf = PromptBoostingClassifier(
        lm, PROMPTS[:3], head="boosting", random_state=0, keep="auto" if scoring is None else "whole"
    )
    search = GridSearchCV(clf, {"rounds": [2, 5], "m": [2, 5], "n_prompts": [2, 3]}, cv=3, scoring=scoring)
    search.fit(TRAIN.texts, TRAIN.labels)
    assert search.best_estimator_.backend is lm
    assert len(fake.asked) == len(TRAIN) * 3
    assert search.cv_results_["mean_test_score"].max() > 0.25


def test_keep_needed_stores_only_what_the_ensemble_needs(tmp_path):
    fake = FakeBackend(chosen=False)
    with MeteredBackend(fake, tmp_path / "run", 10) as lm:
        clf = fitted(lm, rounds=2)
        (answer, *_) = lm.fill(
            [clf.templates_[clf.ensemble_.templates[0]].query(_new_example(), Phase.PREDICT)], clf.ensemble_.tokens
        )
        assert (answer.tokens == clf.ensemble_.tokens).all()


def _new_example():
    from pbsdk.queries.examples import Example

    return Example("a text that was never trained on")


def test_cross_validation_works():
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="boosting", rounds=10, random_state=0)
    assert cross_val_score(clf, TRAIN.texts, TRAIN.labels, cv=2).mean() > 0.3
