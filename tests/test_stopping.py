"""Early exit, end to end: same verdicts, fewer passes."""

import numpy as np
import pytest

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TRAIN, TEST = ((part.texts, part.labels) for part in (TICKETS.train, TICKETS.test))
PLAIN = ["<input> So <mask>.", "<input> The <mask>", "<input> It is <mask>", "<mask>: <input>", "<input> <mask>!"]
SHOWN = [*PLAIN[:2], *("<examples>" + prompt for prompt in PLAIN[2:])]


def classifier(backend, prompts=PLAIN, **parameters):
    return PromptBoostingClassifier(
        backend, prompts, **{"head": "boosting", "rounds": 30, "random_state": 13, **parameters}
    )


@pytest.mark.parametrize("head", ["boosting", "voting", "best"])
@pytest.mark.parametrize("prompts", [PLAIN, SHOWN])
def test_votes_say_the_same_and_ask_less(head, prompts):
    fake = FakeBackend()
    clf = classifier(fake, prompts, head=head).fit(*TRAIN)
    texts = [*TEST[0], *TRAIN[0]]  # some of them are demonstrations
    fake.asked.clear()
    full = clf.predict(texts)
    before = len(fake.asked)
    fake.asked.clear()
    assert (clf.predict(texts, early_exit=True) == full).all()
    assert clf.passes_saved_.asked == len(fake.asked)
    assert clf.passes_saved_.asked + clf.passes_saved_.saved == before
    assert clf.passes_saved_.saved > 0 or head == "best"
    assert (clf.predict(texts, max_changed=0.01) == full).all()


def test_the_ledger_has_fewer_passes_and_a_full_prediction_asks_for_the_rest(tmp_path):
    with connect("fake", run=tmp_path / "run", budget=10) as lm:
        clf = classifier(lm, head="voting").fit(*TRAIN)
        before = lm.audit().totals[0].used
        found = clf.predict_early(TEST[0])
        assert lm.audit().totals[0].used - before == found.saved.asked == found.passes.sum()
        assert f"{found.saved.per_example:.1f} passes per example instead of 5.0" in str(found.saved)
        full = clf.predict(TEST[0])
        assert lm.audit().totals[0].used - before == found.saved.asked + found.saved.saved
    assert (found.labels == full).all()
    assert np.allclose(found.probabilities.sum(axis=1), 1)


def test_what_has_no_early_exit_is_refused_before_anything_is_sent():
    fake = FakeBackend()
    voting, near = (classifier(fake, head=head).fit(*TRAIN) for head in ("voting", "knn"))
    fake.asked.clear()
    with pytest.raises(InputError, match="needs every answer"):
        near.predict(TEST[0], early_exit=True)
    with pytest.raises(InputError, match="max_changed must be a share"):
        voting.predict(TEST[0], max_changed=1.5)
    with pytest.raises(InputError, match="abstaining needs every answer"):
        voting.predict(TEST[0], early_exit=True, abstain_below=0.5)
    assert not fake.asked


def test_no_texts_are_no_passes():
    clf = classifier(FakeBackend(), head="voting").fit(*TRAIN)
    assert clf.predict(TEST[0][:0], early_exit=True).tolist() == []


@pytest.mark.parametrize(
    ("head", "prompts", "top"), [("soft", PLAIN, None), ("soft", SHOWN, 20), ("auto", PLAIN, None)]
)
def test_regressions_change_few_verdicts_and_stay_the_same_in_a_file(head, prompts, top, tmp_path):
    fake = FakeBackend(top=top)
    clf = classifier(fake, prompts, head=head, early_exit=True).fit(*TRAIN)
    texts = [*TEST[0], *TRAIN[0]]
    full = clf.predict(texts)
    fake.asked.clear()
    found = clf.predict_early(texts, max_changed=0.1)
    assert len(fake.asked) == found.saved.asked
    assert found.saved.saved > 0
    assert (found.labels != full).mean() <= 0.1
    every = found.passes == len(clf.fitted_.prompts)
    assert (found.labels[every] == full[every]).all()
    clf.save(tmp_path / "model.json")
    again = PromptBoostingClassifier.load(tmp_path / "model.json", fake).predict_early(texts, max_changed=0.1)
    assert (again.labels == found.labels).all()
    assert (again.passes == found.passes).all()
    assert np.allclose(again.probabilities, found.probabilities)


def test_a_regression_says_what_its_early_exit_needs():
    fake = FakeBackend()
    clf = classifier(fake, head="soft").fit(*TRAIN)
    fake.asked.clear()
    with pytest.raises(InputError, match="no exact early exit"):
        clf.predict(TEST[0], early_exit=True)
    with pytest.raises(InputError, match="fitted with early_exit=True"):
        clf.predict(TEST[0], max_changed=0.01)
    assert not fake.asked
