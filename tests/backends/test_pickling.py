"""Models in this process can be pickled: as how to open them again, so that other processes share the ledger."""

import pickle

import joblib
import numpy as np
from sklearn.model_selection import cross_val_score

from pbsdk import PromptBoostingClassifier, connect
from pbsdk.data.tickets import load_tickets

TICKETS = load_tickets()
TEXTS, LABELS = TICKETS.train.texts[:12], ["a", "b"] * 6
PROMPTS = ["<input> So <mask>", "<input> The <mask>"]


def classifier(lm):
    return PromptBoostingClassifier(lm, PROMPTS, head="soft", random_state=1, progress=False)


def bill(lm):
    """Return how many passes were paid for, and how many answers were recalled or asked, in all phases."""
    phases = lm.audit().phases
    return sum(phase.passes for phase in phases), sum(phase.attempts for phase in phases)


def check_that_copies_share_the_ledger(lm, path):
    clf = classifier(lm).fit(TEXTS, LABELS)
    said = clf.predict_proba(TICKETS.test.texts[:3])
    paid = bill(lm)
    joblib.dump(clf, path)
    for again in (pickle.loads(pickle.dumps(clf)), joblib.load(path)):
        with again.backend as copied:
            assert np.array_equal(again.predict_proba(TICKETS.test.texts[:3]), said)
            assert copied.ledger.folder == lm.ledger.folder.resolve()
            assert copied.budget == lm.budget
    assert bill(lm) == paid


def check_that_workers_pay_as_one_does(options, folder):
    scores, bills = [], []
    for jobs in (1, 2):
        with connect(run=folder / f"jobs{jobs}", **options) as lm:
            scores.append(cross_val_score(classifier(lm), TEXTS, LABELS, cv=2, n_jobs=jobs).tolist())
            bills.append(bill(lm))
    assert scores[0] == scores[1]
    assert bills == [(len(TEXTS) * len(PROMPTS),) * 2] * 2


def test_a_pickled_local_model_is_opened_again_and_shares_the_ledger(folder_of, tmp_path, monkeypatch):
    model = folder_of("gpt2")
    monkeypatch.chdir(model.parent)
    with connect("local", model=model.name, device="cpu", max_length=40, run=tmp_path / "run") as lm:
        monkeypatch.chdir(tmp_path)  # a relative path is another one elsewhere
        assert len(pickle.dumps(lm)) < 3_000
        check_that_copies_share_the_ledger(lm, tmp_path / "clf.joblib")


def test_workers_pay_for_a_local_model_as_one_process_does(folder_of, tmp_path):
    check_that_workers_pay_as_one_does({"name": "local", "model": str(folder_of("gpt2")), "device": "cpu"}, tmp_path)
