"""The model file: read by people, whole or not at all, and refused with a reason where it doesn't fit."""

import json

import pytest

from pbsdk.backend import ModelIdentity
from pbsdk.errors import ModelFileError
from pbsdk.learning.ensemble import Ensemble, FittedEnsemble, WeakLearner
from pbsdk.learning.model_file import SavedClassifier, TrainingFacts
from pbsdk.queries.examples import Example
from pbsdk.queries.templates import Demonstration, Template

ENSEMBLE = Ensemble(2, (WeakLearner(0, (5, 9), 1.25), WeakLearner(1, (9, 7), 0.1 + 0.2)))
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


def saved(classes=("no", "yes"), **change):
    return SavedClassifier.of(
        FittedEnsemble(ENSEMBLE),
        **{
            "head": "boosting",
            "classes": classes,
            "templates": [Template("<input> So <mask>."), Template("<input>\nÜber <mask>")],
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
    other = SavedClassifier.load(path)
    assert other == one
    assert [type(label) for label in other.classes] == [type(label) for label in classes]
    assert other.fitted().ensemble == ENSEMBLE
    assert other.identity == ModelIdentity("fake", {"dtype": "float32", "a": "b"})
    assert other.facts == FACTS


def test_the_file_can_be_read_by_people(tmp_path):
    path = tmp_path / "model.json"
    saved().save(path)
    text = path.read_text(encoding="utf-8")
    data = json.loads(text)
    assert data["schema"] == "pbsdk.ensemble"
    assert data["version"] == 3
    assert data["head"] == "boosting"
    assert data["learned"]["learners"][0] == {"prompt": 0, "tokens": [5, 9], "words": [" w5", " w9"], "alpha": 1.25}
    assert data["templates"][1] == "<input>\nÜber <mask>"
    assert "Über" in text
    assert text.count("\n") > 40


def test_words_that_are_half_a_character_or_steer_a_terminal_are_kept_and_shown(tmp_path):
    path = tmp_path / "model.json"
    one = saved(word=lambda token: f"\ud800\x9b{token}")
    one.save(path)
    assert "\\ud800\\u009b5" in path.read_text("utf-8")
    assert SavedClassifier.load(path) == one


def test_it_explains_itself():
    explanation = saved().explain()
    assert explanation.classes == ("no", "yes")
    assert explanation.rows[1].words == (" w9", " w7")
    assert explanation.rows[1].prompt == "<input>\nÜber <mask>"


def test_saving_again_replaces_the_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "model.json"
    saved().save(path)
    saved(classes=(0, 1)).save(path)
    assert SavedClassifier.load(path).classes == (0, 1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_a_save_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    saved().save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pbsdk.learning.model_file.os.fsync", full)
    with pytest.raises(ModelFileError, match="No space left"):
        saved(classes=(0, 1)).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_a_folder_that_is_missing_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"missing.*choose a folder"):
        saved().save(tmp_path / "missing" / "model.json")
    with pytest.raises(ModelFileError, match="check the path"):
        SavedClassifier.load(tmp_path / "missing.json")


def unsealed(path):
    """Return the content of a saved file without its digest, as an editor leaves it who stands by the change."""
    saved().save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    del data["digest"]
    return data


def changed(path, **change):
    data = {**unsealed(path), **change}
    path.write_text(json.dumps(data), encoding="utf-8")


SHOWN = {"texts": ["fine"], "label": 0, "example": "digest"}
LEARNER = {"prompt": 0, "tokens": [5, 9], "words": ["a", "b"], "alpha": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "not a saved classifier"),
        ({"version": 4}, "reads up to 3; update it"),
        ({"version": 0}, "no version that exists"),
        ({"version": "1"}, "no version that exists"),
        ({"classes": ["no"]}, "at least two classes"),
        ({"classes": ["no", "no"]}, "each once"),
        ({"classes": ["a", "b", "c"]}, "each of 3 classes"),
        ({"learned": {"learners": []}}, "no learners"),
        ({"learned": {"learners": [{**LEARNER, "tokens": [5]}]}}, "learner 0"),
        ({"learned": {"learners": [{**LEARNER, "words": ["a"]}]}}, "learner 0"),
        ({"learned": {"learners": [{**LEARNER, "prompt": 2}]}}, "prompt 2 of 2"),
        ({"learned": {"learners": [{**LEARNER, "prompt": -1}]}}, "learners.0.prompt"),
        ({"learned": {"learners": [{**LEARNER, "tokens": [5, -9]}]}}, "learners.0.tokens"),
        ({"learned": {"learners": [{**LEARNER, "alpha": "much"}]}}, "learners.0.alpha"),
        ({"learned": {"learners": [{**LEARNER, "alpha": float("nan")}]}}, "NaN is not a number"),
        ({"learned": {"learners": [{**LEARNER, "alpha": 0.0}]}}, "learners.0.alpha"),
        ({"learned": {"learners": [{**LEARNER, "alpha": 1e308}] * 2}}, "learners.0.alpha"),
        ({"learned": {"learners": [{**LEARNER, "tokens": [5, 2**63]}]}}, "learners.0.tokens"),
        ({"facts": {}}, "facts"),
        ({"surprise": 1}, "surprise"),
        ({"learned": {}}, "learners"),
        ({"learned": {"learners": [LEARNER], "more": 1}}, "more"),
        ({"model": {"name": 1}}, "model"),
        ({"templates": ["<labels> <input> <mask>", "<input> <mask>"]}, "label_names: it needs a name for each of 2"),
        ({"templates": ["<input>", "<input> <mask>"]}, "no <mask>"),
        ({"demonstrations": [[]]}, "demonstrations: it needs those of each of 2 prompts"),
        ({"demonstrations": [[SHOWN], []]}, "demonstrations: one doesn't fit"),
        ({"demonstrations": [[{**SHOWN, "label": 2}], []]}, "demonstrations: one doesn't fit"),
        ({"demonstrations": [[{**SHOWN, "texts": ["a", "b"]}], []]}, "demonstrations: one doesn't fit"),
        ({"demonstrations": [[{**SHOWN, "texts": []}], []]}, "demonstrations.0.0.texts"),
    ],
)
def test_a_file_that_was_changed_is_refused_with_the_reason(tmp_path, change, message):
    path = tmp_path / "model.json"
    changed(path, **change)
    with pytest.raises(ModelFileError, match=message):
        SavedClassifier.load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}"])
def test_a_file_that_is_not_json_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="not JSON"):
        SavedClassifier.load(path)


@pytest.mark.parametrize("content", ["[]", "3", "{}", '"pbsdk.ensemble"'])
def test_json_that_is_something_else_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_text(content)
    with pytest.raises(ModelFileError, match="not a saved classifier"):
        SavedClassifier.load(path)


def test_a_file_of_version_1_is_read_as_the_papers_head(tmp_path):
    path = tmp_path / "model.json"
    data = unsealed(path)
    learned = data.pop("learned")
    del data["head"]
    path.write_text(json.dumps({**data, "version": 1, **learned}), encoding="utf-8")
    assert SavedClassifier.load(path) == saved()


def test_a_file_of_version_2_is_read_as_one_without_demonstrations(tmp_path):
    path = tmp_path / "model.json"
    data = unsealed(path)
    assert (data.pop("label_names"), data.pop("demonstrations")) == ([], [])
    path.write_text(json.dumps({**data, "version": 2}), encoding="utf-8")
    assert SavedClassifier.load(path) == saved()
    assert SavedClassifier.load(path).filled_templates() == [
        Template("<input> So <mask>."),
        Template("<input>\nÜber <mask>"),
    ]


def test_demonstrations_and_names_come_back_the_same(tmp_path):
    shown = [Demonstration.of(Example("Fine, indeed. " * 40), 1), Demonstration.of(Example("Dull."), 0)]
    templates = [
        Template("<input> So <mask>."),
        Template("<labels>: <examples><input> <mask>").filled(("no way", "yes"), shown),
    ]
    path = tmp_path / "model.json"
    saved(templates=templates).save(path)
    found = SavedClassifier.load(path)
    assert found.filled_templates() == templates
    assert found.label_names == ("no way", "yes")
    assert found.filled_templates()[1].shows(Example("Fine, indeed. " * 40))


def test_an_edited_file_is_refused_until_its_digest_is_deleted(tmp_path):
    path = tmp_path / "model.json"
    saved().save(path)
    text = path.read_text("utf-8").replace('"alpha": 1.25', '"alpha": 2.5')
    path.write_text(text, "utf-8")
    with pytest.raises(ModelFileError, match=r'edited, or damaged.*delete the line "digest"'):
        SavedClassifier.load(path)
    path.write_text("".join(line for line in text.splitlines(keepends=True) if '"digest"' not in line), "utf-8")
    assert SavedClassifier.load(path).fitted().ensemble.learners[0].alpha == 2.5


def test_the_layout_of_a_file_may_change(tmp_path):
    path = tmp_path / "model.json"
    saved().save(path)
    data = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps(dict(sorted(data.items()))), "utf-8")
    assert SavedClassifier.load(path) == saved()


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "model.json"
    saved().save(path)
    monkeypatch.setattr("pbsdk.learning.model_file.MODEL_BYTES", 1000)
    with pytest.raises(ModelFileError, match="more than 1,000 bytes"):
        SavedClassifier.load(path)


def test_a_head_that_is_not_installed_is_named_with_a_near_one(tmp_path):
    path = tmp_path / "model.json"
    changed(path, head="bosting")
    with pytest.raises(
        ModelFileError, match=r"can't be used here: no head is called 'bosting'. Did you mean 'boosting'"
    ):
        SavedClassifier.load(path)
