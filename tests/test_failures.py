"""Texts that fail: what `on_error` makes of them, and what they leave alone."""

import numpy as np
import pytest
from helpers.servers import OpenAIScript, json_reply, scripted

from pbsdk.backend import Phase
from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import BackendError, BackendUnavailable, BudgetExceeded, InputError, QueryRefused
from pbsdk.failures import MOST_IN_A_ROW, ask_each
from pbsdk.ledger.budget import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend
from pbsdk_backends.openai import OpenAIBackend

TICKETS = load_tickets()
PROMPTS = ["<input> So <mask>.", "<input> The <mask>", "<input> About <mask>."]
TEXTS = TICKETS.test.texts[:40]
BAD = {3: None, 7: 7.5, 11: "see <mask> there", 19: "the forbidden word", 39: ("a", "pair")}
MIXED = [BAD.get(at, text) for at, text in enumerate(TEXTS)]


def fitted(backend=None, **parameters):
    backend = backend or FakeBackend(refuse="forbidden", batch_size=8)
    clf = PromptBoostingClassifier(backend, PROMPTS, head="voting", random_state=13, **parameters)
    return clf.fit(TICKETS.train.texts, TICKETS.train.labels)


@pytest.fixture(scope="module")
def clf():
    return fitted()


def test_a_bad_text_ends_a_prediction_unless_told_otherwise(clf):
    with pytest.raises(InputError, match=r"texts\[3\] is missing"):
        clf.predict(MIXED)
    with pytest.raises(QueryRefused, match="refuses texts with 'forbidden'"):
        clf.predict([TEXTS[0], BAD[19]])
    with pytest.raises(InputError, match="on_error must be one of 'fail', 'skip', 'record'; not 'ignore'"):
        clf.predict(TEXTS, on_error="ignore")
    with pytest.raises(InputError, match="asks for all texts together"):
        clf.predict(TEXTS, early_exit=True, on_error="skip")


def test_the_others_are_answered_as_if_it_were_not_there(clf):
    expected, shares = clf.predict(TEXTS), clf.predict_proba(TEXTS)
    good = np.array([at not in BAD for at in range(len(TEXTS))])
    found = clf.predict(MIXED, on_error="record", unsure="?")
    assert (found[good] == expected[good]).all()
    assert (found[~good] == "?").all()
    recorded = clf.predict_proba(MIXED, on_error="record")
    assert (recorded[good] == shares[good]).all()
    assert np.isnan(recorded[~good]).all()
    assert (clf.predict(MIXED, on_error="skip") == expected[good]).all()
    assert (clf.predict_proba(MIXED, on_error="skip") == shares[good]).all()
    assert [one.row for one in clf.predict_iter(MIXED, on_error="skip")] == np.flatnonzero(good).tolist()


def test_errors_are_strings_empty_where_all_is_well(clf):
    clf.predict(MIXED, on_error="record")
    said = clf.errors_.tolist()
    assert [at for at, error in enumerate(said) if error] == sorted(BAD)
    assert all(isinstance(error, str) for error in said)
    for at, words in (
        (3, "the text is missing (None)"),
        (7, "the text is a float, not a text"),
        (11, 'let pbsdk write it apart with markers="escape"'),
        (19, "refuses texts with 'forbidden'"),
        (39, "the prompts take one text, not pairs"),
    ):
        assert words in said[at]
    clf.predict(TEXTS, on_error="record")
    assert set(clf.errors_) == {""}


def test_a_threshold_leaves_out_the_unsure_among_those_that_worked():
    clf = PromptBoostingClassifier(FakeBackend(refuse="forbidden"), PROMPTS, head="soft", random_state=13)
    clf.fit(TICKETS.train.texts, TICKETS.train.labels)
    sure = clf.predict(TEXTS, abstain_below=0.8)
    found = clf.predict(MIXED, abstain_below=0.8, on_error="record")
    good = [at for at in range(len(TEXTS)) if at not in BAD]
    assert (found[good] == sure[good]).all()
    assert None in set(sure[good])


@pytest.mark.parametrize("batch_size", [1, 8, 64])
def test_a_refused_text_is_asked_about_once_and_its_other_prompts_not_at_all_where_that_can_be_known(
    tmp_path, batch_size
):
    fake = FakeBackend(refuse="forbidden", batch_size=batch_size)
    clf = fitted(MeteredBackend(fake, tmp_path))
    before = len(fake.asked)
    texts = [*TEXTS[:5], "one forbidden text", *TEXTS[5:10], "a forbidden one", *TEXTS[10:15]]
    labels = clf.predict(texts, on_error="skip").tolist()
    asked = fake.asked[before:]
    assert labels == fitted(FakeBackend()).predict(TEXTS[:15]).tolist()
    assert len({query.content for query in asked}) == len(asked)  # nothing twice
    refused = [query for query in asked if "forbidden" in query.text()]
    assert len(asked) - len(refused) == 15 * len(PROMPTS)
    assert len(refused) <= (2 if batch_size == 1 else 2 * len(PROMPTS))
    report = clf.backend.audit()
    (predicting,) = [phase for phase in report.phases if phase.phase == Phase.PREDICT]
    assert (predicting.passes, predicting.failed) == (45, len(refused))
    clf.backend.ledger.verify()


def test_a_model_that_fails_for_every_text_ends_it_all_the_same(tmp_path):
    fake = FakeBackend(refuse="", batch_size=4)
    clf = fitted(MeteredBackend(fake, tmp_path, retries=0))
    fake._failures = iter([None, *[BackendUnavailable("gone")] * 1000])
    found = clf.predict_iter(TICKETS.test.texts, on_error="record")
    assert [bool(next(found).error) for _ in range(MOST_IN_A_ROW)] == [False] + [True] * (MOST_IN_A_ROW - 1)
    with pytest.raises(BackendError, match=f"{MOST_IN_A_ROW} texts in a row failed, so it isn't the texts: gone"):
        next(found)


def test_texts_that_cannot_be_read_say_nothing_of_the_model(clf):
    found = clf.predict([None] * (2 * MOST_IN_A_ROW) + TEXTS[:1], on_error="record").tolist()
    assert found == [None] * (2 * MOST_IN_A_ROW) + clf.predict(TEXTS[:1]).tolist()


def test_a_budget_that_is_used_up_is_no_fault_of_a_text(tmp_path):
    clf = fitted(MeteredBackend(FakeBackend(), tmp_path, QueryBudget(passes=3, predict=2)))
    with pytest.raises(BudgetExceeded):
        clf.predict(TEXTS, on_error="record")


def test_an_error_that_names_no_query_is_not_put_down_to_a_text():
    def gone(queries):
        raise BackendUnavailable("gone")
        yield

    queries, _ = fitted(FakeBackend()).predict_queries(TEXTS[:1])
    with pytest.raises(BackendUnavailable):
        next(ask_each([queries], gone))


def test_a_bare_backend_says_which_queries_failed():
    fake = FakeBackend(refuse="forbidden", batch_size=2)
    clf = fitted(FakeBackend())
    queries, _ = clf.predict_queries([TEXTS[0], "forbidden", TEXTS[1]])
    with pytest.raises(QueryRefused) as raised:
        list(fake.stream(queries))
    assert list(raised.value.failures) == [3]  # the second of the second batch, whose first was answered


def test_a_servers_filter_is_recorded_beside_what_it_answered(tmp_path):
    script = OpenAIScript(completions=5)

    def filtered(asked):
        if "forbidden" in asked.json["prompt"]:
            return json_reply({"error": {"message": "flagged by the content filter"}}, 400)
        return script(asked)

    with scripted(filtered) as server:
        remote = OpenAIBackend("tiny", url=f"{server.url}/v1", api="completions", top=5, workers=2)
        with MeteredBackend(remote, tmp_path, retries=0) as lm:
            clf = PromptBoostingClassifier(lm, PROMPTS[:2], head="voting", random_state=1)
            clf.fit(TICKETS.train.texts[:16], TICKETS.train.labels[:16])
            found = clf.predict([TEXTS[0], "a forbidden text", TEXTS[1]], on_error="record").tolist()
            assert found[1] is None
            assert None not in (found[0], found[2])
            assert [bool(error) for error in clf.errors_] == [False, True, False]
            assert "flagged by the content filter" in clf.errors_[1]
            lm.ledger.verify()
