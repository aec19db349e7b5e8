"""Run folders, models and recordings written at 335475b, before modules moved into packages, serve as they did."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pbsdk.audit.certificate import Certificate
from pbsdk.audit.report import AuditReport
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.learning.model_file import SavedClassifier
from pbsdk.ledger.verifier import verify_run
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend
from pbsdk.testing.recording import Recording

FILES = Path(__file__).parent / "fixtures" / "before_rooms"
EXPECTED = json.loads((FILES / "expected.json").read_text("utf-8"))
TEXTS = EXPECTED["texts"]


@pytest.fixture
def run(tmp_path):
    with zipfile.ZipFile(FILES / "run.zip") as archive:
        archive.extractall(tmp_path / "run")
    return tmp_path / "run"


def counted(report):
    return {str(phase.phase): [phase.passes, phase.attempts] for phase in report.phases}


def trained(lm):
    clf = PromptBoostingClassifier(lm, EXPECTED["prompts"], head="boosting", **EXPECTED["fit"])
    held_out = (EXPECTED["validation"], EXPECTED["validation_labels"])
    return clf.fit(EXPECTED["train"], EXPECTED["labels"], validation=held_out)


@pytest.mark.parametrize("name", ["model", "vote", "best"])
def test_a_model_predicts_what_it_predicted(name):
    clf = PromptBoostingClassifier.load(FILES / f"{name}.json", FakeBackend(**EXPECTED["fake"]))
    assert clf.predict(TEXTS).tolist() == EXPECTED["predicted"][name]
    assert SavedClassifier.load(FILES / f"{name}.json").explain().to_dict() == clf.explain().to_dict()


def test_a_model_gives_each_class_the_share_it_gave():
    clf = PromptBoostingClassifier.load(FILES / "model.json", FakeBackend(**EXPECTED["fake"]))
    np.testing.assert_allclose(clf.predict_proba(TEXTS), EXPECTED["shares"], rtol=0, atol=1e-12)


def test_a_run_folder_verifies_and_its_certificate_fits(run):
    certificate = Certificate.load(FILES / "certificate.json")
    assert certificate.check(run) == verify_run(run)
    assert Certificate.of(run).counts() == certificate.counts()
    assert (certificate.format, certificate.checkpoint) == (1, "")  # from before there were checkpoints


def test_a_run_folder_is_audited_with_the_same_counts(run):
    report = AuditReport.read(run)
    assert counted(report) == EXPECTED["phases"]
    assert report.within_budget


def test_a_run_folder_answers_without_a_new_pass(run):
    fake = FakeBackend(**EXPECTED["fake"])
    with MeteredBackend(fake, run, 10) as lm:
        for name in ("model", "vote", "best"):
            loaded = PromptBoostingClassifier.load(FILES / f"{name}.json", lm)
            assert loaded.predict(TEXTS).tolist() == EXPECTED["predicted"][name]
        assert trained(lm).predict(TEXTS).tolist() == EXPECTED["predicted"]["model"]
        assert counted(lm.audit()) == EXPECTED["phases"]
    assert fake.asked == []
    Certificate.load(FILES / "certificate.json").check(run)


def test_a_run_folder_goes_on_where_it_was(run):
    with connect("fake", run=run, **EXPECTED["fake"]) as lm:
        PromptBoostingClassifier.load(FILES / "model.json", lm).predict(["a text that is new"])
        passes, _ = counted(lm.audit())["predict"]
    assert passes == EXPECTED["phases"]["predict"][0] + len(EXPECTED["prompts"])
    Certificate.load(FILES / "certificate.json").check(run)


def test_a_recording_is_replayed(tmp_path):
    with connect("replay", file=FILES / "answers.pbrec", run=tmp_path / "replayed") as lm:
        assert trained(lm).predict(TEXTS).tolist() == EXPECTED["predicted"]["model"]


def test_a_run_folder_gives_the_same_recording(run):
    made = Recording.of_run(run, FakeBackend(**EXPECTED["fake"]))
    kept = Recording.load(FILES / "answers.pbrec")
    assert made.answers == kept.answers
    assert (made.identity, made.abilities, made.mask_token) == (kept.identity, kept.abilities, kept.mask_token)
