"""Ensembles: how they vote, what they need to see, and the file they are saved in."""

import json

import numpy as np
import pytest

from pbsdk.backend import MaskDistribution, ModelIdentity
from pbsdk.errors import BadAnswer, InputError, ModelFileError
from pbsdk.learning.ensemble import Ensemble, SavedEnsemble, TrainingFacts, WeakLearner
from pbsdk.learning.matrix import TokenMatrix

FACTS = TrainingFacts(
    n_train=32,
    n_validation=32,
    rounds_run=200,
    rounds_kept=3,
    m=50,
    seed=13,
    draw="cycles",
    on_perfect="vote",
    way_out="rounds",
    validation_accuracy=0.875,
)


def random_ensemble(n_classes=3, n_learners=11, seed=0):
    generator = np.random.default_rng(seed)
    learners = tuple(
        WeakLearner(
            int(generator.choice([1, 4, 6])), tuple(generator.integers(0, 50, n_classes).tolist()), generator.random()
        )
        for _ in range(n_learners)
    )
    return Ensemble(n_classes, learners)


def random_codes(n_examples=9, seed=1):
    return np.random.default_rng(seed).integers(0, 5, (n_examples, 8, 50)).astype(np.uint16)  # many ties


def answers_for(ensemble, codes, narrow=False):
    for example in codes:
        for template in ensemble.templates:
            answer = MaskDistribution(codes=example[template])
            yield answer.narrowed(ensemble.tokens) if narrow else answer


def plain_votes(learners, codes, n_classes):
    votes = np.zeros((len(codes), n_classes))
    for learner in learners:
        for i, example in enumerate(codes):
            row = [int(example[learner.template][token]) for token in learner.tokens]
            votes[i, row.index(min(row))] += learner.alpha
    return votes


@pytest.mark.parametrize("narrow", [False, True])
def test_votes_are_summed_alphas_and_need_only_the_ensembles_tokens(narrow):
    ensemble, codes = random_ensemble(), random_codes()
    votes = ensemble.votes(answers_for(ensemble, codes, narrow), len(codes))
    assert (votes == plain_votes(ensemble.learners, codes, 3)).all()
    assert (ensemble.predict(answers_for(ensemble, codes, narrow), len(codes)) == votes.argmax(axis=1)).all()


def test_stages_add_one_learner_at_a_time():
    ensemble, codes = random_ensemble(), random_codes()
    stages = list(ensemble.staged_votes(answers_for(ensemble, codes), len(codes)))
    assert len(stages) == 11
    for k, votes in enumerate(stages):
        assert (votes == plain_votes(ensemble.learners[: k + 1], codes, 3)).all()
    assert (stages[-1] == ensemble.votes(answers_for(ensemble, codes), len(codes))).all()


def test_stages_from_matrices_are_the_same():
    ensemble, codes = random_ensemble(), random_codes()
    matrices = [TokenMatrix.from_codes(codes[:, template]) for template in range(8)]
    from_answers = ensemble.staged_votes(answers_for(ensemble, codes), len(codes))
    for one, other in zip(ensemble.staged_votes_of(matrices), from_answers, strict=True):
        assert (one == other).all()


def test_equal_votes_go_to_the_lowest_class():
    ensemble = Ensemble(2, (WeakLearner(0, (0, 1), 0.5), WeakLearner(0, (1, 0), 0.5)))
    answer = MaskDistribution(codes=np.array([100, 900], dtype=np.uint16))
    assert ensemble.votes([answer], 1).tolist() == [[0.5, 0.5]]
    assert ensemble.predict([answer], 1).tolist() == [0]


def test_equal_probabilities_go_to_the_lowest_class():
    ensemble = Ensemble(2, (WeakLearner(0, (1, 0), 1.0),))
    assert ensemble.predict([MaskDistribution(codes=np.array([700, 700], dtype=np.uint16))], 1).tolist() == [0]


def test_templates_and_tokens_are_those_in_use_ascending():
    ensemble = Ensemble(2, (WeakLearner(6, (9, 3), 1.0), WeakLearner(1, (3, 40), 1.0), WeakLearner(6, (9, 40), 1.0)))
    assert ensemble.templates == (1, 6)
    assert ensemble.tokens.tolist() == [3, 9, 40]
    assert ensemble.tokens.dtype == np.int64


def test_answers_are_read_as_they_come_and_not_held():
    ensemble, codes = random_ensemble(), random_codes(50)
    read = 0

    def counting():
        nonlocal read
        for answer in answers_for(ensemble, codes):
            read += 1
            yield answer

    opinions = ensemble.opinions(counting(), 50)
    next(opinions)
    assert read == len(ensemble.templates)


def test_censored_tokens_have_the_least_probability_shown():
    ensemble = Ensemble(2, (WeakLearner(0, (7, 5), 1.0),))
    answer = MaskDistribution.from_logprobs([-1, -2], [5, 9], top=True)
    assert ensemble.predict([answer], 1).tolist() == [1]


def test_too_few_answers_are_noticed():
    ensemble, codes = random_ensemble(), random_codes()
    answers = list(answers_for(ensemble, codes))[:-1]
    with pytest.raises(BadAnswer, match="fewer answers"):
        ensemble.votes(answers, len(codes))


def test_no_examples_have_no_votes():
    assert random_ensemble().votes([], 0).shape == (0, 3)


def test_ensembles_that_cannot_vote_are_refused():
    with pytest.raises(InputError, match="at least one"):
        Ensemble(2, ())
    with pytest.raises(InputError, match="one token for each of the 3"):
        Ensemble(3, (WeakLearner(0, (1, 2), 1.0),))


def saved(classes=("no", "yes"), **change):
    ensemble = Ensemble(2, (WeakLearner(0, (5, 9), 1.25), WeakLearner(1, (9, 7), 0.1 + 0.2)))
    return SavedEnsemble.of(
        ensemble,
        **{
            "classes": classes,
            "templates": ["<input> So <mask>.", "<input>\nÜber <mask>"],
            "style": "plain",
            "word": lambda token: f" w{token}",
            "identity": ModelIdentity("fake", {"dtype": "float32", "a": "b"}),
            "facts": FACTS,
            **change,
        },
    )


@pytest.mark.parametrize("classes", [("no", "yes"), (0, 1), (-1.5, 2.0), (False, True), ("1", 1)])
def test_a_saved_ensemble_comes_back_the_same_labels_and_their_types_included(tmp_path, classes):
    path = tmp_path / "model.json"
    one = saved(classes)
    one.save(path)
    other = SavedEnsemble.load(path)
    assert other == one
    assert [type(label) for label in other.classes] == [type(label) for label in classes]
    assert other.ensemble == Ensemble(2, (WeakLearner(0, (5, 9), 1.25), WeakLearner(1, (9, 7), 0.1 + 0.2)))
    assert other.identity == ModelIdentity("fake", {"dtype": "float32", "a": "b"})
    assert other.facts == FACTS


def test_the_file_can_be_read_by_people(tmp_path):
    path = tmp_path / "model.json"
    saved().save(path)
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    assert data["schema"] == "pbsdk.ensemble"
    assert data["version"] == 1
    assert data["learners"][0] == {"prompt": 0, "tokens": [5, 9], "words": [" w5", " w9"], "alpha": 1.25}
    assert data["templates"][1] == "<input>\nÜber <mask>"
    assert "Über" in text
    assert text.count("\n") > 40


def test_it_explains_itself():
    explanation = saved().explain()
    assert explanation.classes == ("no", "yes")
    assert explanation.rows[1].words == (" w9", " w7")
    assert explanation.rows[1].prompt == "<input>\nÜber <mask>"


def test_saving_again_replaces_the_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "model.json"
    saved().save(path)
    saved(classes=(0, 1)).save(path)
    assert SavedEnsemble.load(path).classes == (0, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_a_save_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    saved().save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pbsdk.learning.ensemble.os.fsync", full)
    with pytest.raises(ModelFileError, match="No space left"):
        saved(classes=(0, 1)).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"missing.*choose a folder"):
        saved().save(tmp_path / "missing" / "model.json")
    with pytest.raises(ModelFileError, match="check the path"):
        SavedEnsemble.load(tmp_path / "missing.json")


def changed(path, **change):
    saved().save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    data.update(change)
    path.write_text(json.dumps(data), encoding="utf-8")


LEARNER = {"prompt": 0, "tokens": [5, 9], "words": ["a", "b"], "alpha": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "not a saved classifier"),
        ({"version": 2}, "reads up to 1; update it"),
        ({"version": 0}, "no version that exists"),
        ({"version": "1"}, "no version that exists"),
        ({"classes": ["no"]}, "at least two classes"),
        ({"classes": ["no", "no"]}, "each once"),
        ({"classes": ["a", "b", "c"]}, "each of 3 classes"),
        ({"learners": []}, "no learners"),
        ({"learners": [{**LEARNER, "tokens": [5]}]}, "learner 0"),
        ({"learners": [{**LEARNER, "words": ["a"]}]}, "learner 0"),
        ({"learners": [{**LEARNER, "prompt": 2}]}, "prompt 2 of 2"),
        ({"learners": [{**LEARNER, "prompt": -1}]}, "learners.0.prompt"),
        ({"learners": [{**LEARNER, "tokens": [5, -9]}]}, "learners.0.tokens"),
        ({"learners": [{**LEARNER, "alpha": "much"}]}, "learners.0.alpha"),
        ({"learners": [{**LEARNER, "alpha": float("nan")}]}, "learners.0.alpha"),
        ({"facts": {}}, "facts"),
        ({"surprise": 1}, "surprise"),
        ({"model": {"name": 1}}, "model"),
    ],
)
def test_a_file_that_was_changed_is_refused_with_the_reason(tmp_path, change, message):
    path = tmp_path / "model.json"
    changed(path, **change)
    with pytest.raises(ModelFileError, match=message):
        SavedEnsemble.load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not JSON"):
        SavedEnsemble.load(path)


@pytest.mark.parametrize("content", ["[]", "3", "{}", '"pbsdk.ensemble"'])
def test_json_that_is_something_else_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(ModelFileError, match="not a saved classifier"):
        SavedEnsemble.load(path)
