"""The model card: it says what is so, and its certificate checks."""

import json
import re

import numpy as np
import pytest
from helpers.commands import called

from pbsdk.audit.certificate import Certificate
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TEXTS, LABELS = TICKETS.train.texts, TICKETS.train.labels
PROMPTS = ["<input> It was <mask>", "<input>\n`So` <mask>"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card")
    lm = MeteredBackend(FakeBackend(signal=0.8), folder / "run", 10)
    clf = PromptBoostingClassifier(lm, PROMPTS, head="soft", random_state=1, class_weight={"account": 2}).fit(
        TEXTS, LABELS
    )
    clf.save(folder / "model.json")
    return clf, folder


def rows(card, header):
    """Return the rows of the table with this header."""
    lines = card.split(header)[1].splitlines()[2:]
    return [line.strip("| ").split(" | ") for line in lines[: next(at for at, line in enumerate(lines) if not line)]]


def test_it_says_what_the_classifier_is_and_how_good(made):
    clf, _ = made
    card = clf.card(title="Tickets <b>", notes="For *routing* only.").to_markdown()
    assert card.startswith("# Model card: Tickets \\<b\\>\n\nFor *routing* only.\n")
    estimate = clf.estimate_
    assert f"{estimate.accuracy:.1%} (of {len(TEXTS)} texts; 95% interval" in card
    assert "Texts counted differently" in card
    assert dict(rows(card, "| class | texts |")) == {label: str(LABELS.count(label)) for label in set(LABELS)}
    assert "1. `<input> It was <mask>`\n2. `` <input>\\n`So` <mask> ``" in card
    assert [row[0] for row in rows(card, "| class | recognised by |")] == clf.classes_.tolist()
    assert f"| train | {len(TEXTS) * 2} | {len(TEXTS) * 2} | 0 |" in card
    assert not any(text[:40] in card for text in TEXTS)


def test_its_confusions_and_thresholds_are_those_of_the_classifier(made):
    clf, _ = made
    card = str(clf.card())
    assert rows(card, "| class | taken for | texts left out |") == [
        [str(a), str(b), str(count)] for a, b, count, _ in clf.confusions().rows
    ]
    found = clf.threshold(precision=0.9)
    assert rows(card, "| promised precision |")[0][3] == f"{found.coverage:.1%}"
    assert f"error {clf.fitted_.confidences.error():.1%} over {len(TEXTS)} texts" in card


def test_the_certificate_on_it_checks_the_run_folder(made):
    clf, folder = made
    certificate = re.search(r"```json\n(.*?)\n```", str(clf.card()), re.DOTALL)[1]
    (folder / "certificate.json").write_text(certificate, encoding="utf-8")
    clf.predict(["one more"])  # it may grow
    done = called("audit", "verify", folder / "run", "--certificate", folder / "certificate.json")
    assert done.returncode == 0, done.stderr
    assert Certificate.load(folder / "certificate.json").passes["fit"] == len(TEXTS) * 2


def test_the_command_writes_what_the_file_and_the_run_say(made, tmp_path):
    clf, folder = made
    alone = called("card", folder / "model.json")
    assert alone.returncode == 0, alone.stderr
    assert "The run folder was not at hand" in alone.stdout
    assert alone.stdout.split("## What it took")[0] == str(clf.card()).split("## What it took")[0]
    (tmp_path / "notes.md").write_text("For *routing*.", encoding="utf-8")
    done = called(
        "card",
        folder / "model.json",
        "--run",
        folder / "run",
        "--notes",
        tmp_path / "notes.md",
        "--output",
        tmp_path / "card.md",
    )
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "card.md").read_text("utf-8")
    assert "\n\nFor *routing*.\n\n" in card
    assert "## What it took\n\n- Budget: at most 10" in card
    assert called("card", folder / "model.json", "--notes", tmp_path / "none.md").returncode == 1


def test_a_head_that_does_not_cross_validate_says_so_and_no_head_is_praised():
    clf = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="voting", random_state=1).fit(TEXTS, LABELS)
    card = str(clf.card())
    assert "Not measured in training" in card
    assert "shares of votes, and not calibrated" in card
    assert "was not at hand" in card  # the fake alone keeps no record


def test_the_digest_of_the_data_depends_on_texts_and_labels_and_not_on_their_order(made):
    clf, _ = made
    order = np.random.default_rng(0).permutation(len(TEXTS))
    fit = PromptBoostingClassifier(FakeBackend(), PROMPTS, head="voting").fit
    same = fit([TEXTS[at] for at in order], [LABELS[at] for at in order]).facts_.data_digest
    assert same == clf.facts_.data_digest
    assert fit(TEXTS, LABELS[::-1]).facts_.data_digest != same
    assert json.loads(clf.facts_.model_dump_json())["data_digest"] == same
