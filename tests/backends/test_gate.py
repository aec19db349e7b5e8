"""A gate behind a real server: who may ask, what is refused, what every answer says is left."""

import math
from dataclasses import replace

import pytest
from helpers.servers import query

from pbsdk.errors import BackendUnavailable, BudgetExceeded, InputError, ModelUnusable
from pbsdk.metering.gate import Gate
from pbsdk.metering.members import MembersFile
from pbsdk.metering.meter import MeteredBackend
from pbsdk.testing import FakeBackend

pytest.importorskip("fastapi", reason="the server's packages are not installed (pbsdk[serve])")
requests = pytest.importorskip("requests", reason="the remote adapters' packages are not installed (pbsdk[remote])")

from pbsdk_backends.http import HttpBackend  # noqa: E402
from pbsdk_backends.serve import create_app, serving  # noqa: E402


@pytest.fixture
def members(tmp_path):
    return MembersFile(tmp_path / "team.json")


@pytest.fixture
def gate(tmp_path, members):
    members.add("nobody")
    gate = Gate(FakeBackend(batch_size=4), tmp_path / "run", members.path)
    yield gate
    gate.close()


def bearing(token):
    return {"Authorization": f"Bearer {token}"}


def test_only_members_may_ask(gate, members):
    token = members.add("ana")
    with serving(gate._backend, gate=gate) as url:
        for headers in ({}, bearing("pbsdk_wrong"), {"Authorization": token}, bearing("")):
            refused = requests.get(f"{url}/v1/model", headers=headers, timeout=30)
            assert (refused.status_code, refused.json()) == (401, {"error": "this gate requires a member's token"})
        assert requests.get(f"{url}/v1/model", headers=bearing(token), timeout=30).status_code == 200
        members.revoke("ana")
        assert requests.get(f"{url}/v1/model", headers=bearing(token), timeout=30).status_code == 401
        assert requests.get(f"{url}/v2/health/live", timeout=30).status_code == 200


def test_what_is_left_is_in_every_answer_and_in_the_clients_report(gate, members, tmp_path):
    token = members.add("ana", passes=6, per_minute=100)
    with (
        serving(gate._backend, gate=gate) as url,
        MeteredBackend(HttpBackend(url, api_key=token), tmp_path / "mine") as lm,
    ):
        lm.fill([query(text) for text in "abcd"])
        assert lm.audit().remaining.left == {"passes": 2, "requests": 99}
        assert "left at the server, as of " in str(lm.audit())
        assert "2 passes, 99 requests" in str(lm.audit())
        lm.ledger.verify()
        answer = requests.get(f"{url}/v1/model", headers=bearing(token), timeout=30)
        assert answer.headers["Pbsdk-Remaining"] == "passes=2, requests=99"


def test_what_is_spent_is_402_and_costs_the_client_nothing(gate, members, tmp_path):
    token = members.add("ana", passes=5)
    with (
        serving(gate._backend, gate=gate) as url,
        MeteredBackend(HttpBackend(url, api_key=token), tmp_path / "mine") as lm,
    ):
        lm.fill([query(text) for text in "abcd"])
        with pytest.raises(BudgetExceeded, match=r"402: the allowance of ana: .* 2 more asked, 1 left.*whoever runs"):
            lm.fill([query(text) for text in "ef"])
        report = lm.audit()
        assert sum(phase.passes for phase in report.phases) == 4
        assert sum(phase.failed for phase in report.phases) == 2
        raw = requests.post(url, headers=bearing(token), json={"inputs": ["e <mask>", "f <mask>"]}, timeout=30)
        assert raw.status_code == 402
        assert {key: raw.json()[key] for key in ("limit", "allowed", "asked", "left")} == {
            "limit": "total",
            "allowed": 5,
            "asked": 2,
            "left": 1,
        }
    assert len(gate._backend.asked) == 4


def test_too_many_requests_are_429_with_the_time_to_come_again(gate, members):
    token = members.add("ana", per_minute=2)
    with serving(gate._backend, gate=gate) as url, HttpBackend(url, api_key=token) as backend:
        backend.fill([query("a")])
        backend.fill([query("a")])
        with pytest.raises(BackendUnavailable, match="ana has asked as often as it may in a minute") as refused:
            backend.fill([query("b")])
        assert 0 < refused.value.retry_after <= 60
        assert math.isfinite(refused.value.retry_after)
        assert not refused.value.may_have_run
    assert [asked.example for asked in gate._backend.asked] == ["a"]


def test_every_protocol_is_charged(gate, members):
    token = members.add("ana", passes=2)
    with serving(gate._backend, gate=gate) as url:
        inputs = [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["one <mask>"]}]
        oip = requests.post(f"{url}/v2/models/fake/infer", headers=bearing(token), json={"inputs": inputs}, timeout=30)
        assert (oip.status_code, oip.headers["Pbsdk-Remaining"]) == (200, "passes=1")
        fill = requests.post(url, headers=bearing(token), json={"inputs": "two <mask>"}, timeout=30)
        assert (fill.status_code, fill.headers["Pbsdk-Remaining"]) == (200, "passes=0")
        again = requests.post(url, headers=bearing(token), json={"inputs": "two <mask>"}, timeout=30)
        assert (again.status_code, again.json()) == (200, fill.json())  # recalled, and free
        other = requests.post(url, headers=bearing(token), json={"inputs": "three <mask>"}, timeout=30)
        assert other.status_code == 402


def test_a_gate_and_a_token_for_all_exclude_each_other(gate):
    with pytest.raises(InputError, match="leave out token"):
        create_app(gate._backend, token="x", gate=gate)


def test_a_wrong_token_is_an_error_that_says_so(gate):
    with serving(gate._backend, gate=gate) as url, pytest.raises(ModelUnusable, match="member's token"):
        HttpBackend(url, api_key="pbsdk_wrong")


def states(lm):
    with lm.ledger.reader() as reader:
        return [state for (state,) in reader.select("SELECT state FROM records WHERE query <> '' ORDER BY seq")]


def test_a_gate_that_cannot_read_its_members_lets_nobody_in_and_says_that_nothing_ran(gate, members, tmp_path):
    token = members.add("ana", passes=6)
    with (
        serving(gate._backend, gate=gate) as url,
        MeteredBackend(HttpBackend(url, api_key=token), tmp_path / "mine", retries=0) as lm,
    ):
        good = members.path.read_text()
        for broken in ("", "[" * 1000, good.replace('"passes": 6', '"passes": 60')):
            members.path.write_text(broken)
            refused = requests.post(f"{url}/v1/fill", headers=bearing(token), data=b"", timeout=30)
            assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
            assert "did not run" in refused.text
            assert str(tmp_path) not in refused.text
        with pytest.raises(BackendUnavailable, match="can't tell who is asking"):
            lm.fill([query("a")])
        assert states(lm) == ["reserved", "sent", "failed"]
        members.path.write_text(good)
        lm.fill([query("a")])


def test_a_gate_whose_record_fails_says_that_the_request_may_have_run(gate, members, tmp_path, monkeypatch):
    token = members.add("ana", passes=6)

    def full(*_):
        raise OSError("no space left on device")

    with (
        serving(gate._backend, gate=gate) as url,
        MeteredBackend(HttpBackend(url, api_key=token), tmp_path / "mine", retries=0) as lm,
    ):
        monkeypatch.setattr(gate.admit(token)._meter.ledger._run, "set", full)
        with pytest.raises(BackendUnavailable, match="can't keep its record, and this request may have run") as heard:
            lm.fill([query("a")])
        assert str(tmp_path) not in str(heard.value)
        assert states(lm) == ["reserved", "sent", "unknown"]


class Greedy(FakeBackend):
    """Reads more than it said it would at most."""

    def most_tokens(self, query):
        return 1

    def fill(self, queries, tokens=None):
        return [replace(answer, read_tokens=50) for answer in super().fill(queries, tokens)]


def test_what_a_gate_sent_before_it_refused_the_rest_counts_as_spent_at_the_client(tmp_path, members):
    token = members.add("ana", tokens=80)
    backend = Greedy(batch_size=1)
    gate = Gate(backend, tmp_path / "run", members.path)
    with serving(backend, gate=gate) as url:
        client = HttpBackend(url, api_key=token)
        client._card = client._card.model_copy(update={"max_batch": 4})  # as another client may have it
        client.abilities = replace(client.abilities, batch_size=4)
        with MeteredBackend(client, tmp_path / "mine") as lm:
            with pytest.raises(BudgetExceeded, match="2 queries were sent before that"):
                lm.fill([query(text) for text in "abcd"])
            assert (states(lm).count("unknown"), states(lm).count("failed"), len(backend.asked)) == (4, 0, 2)
            with pytest.raises(BudgetExceeded, match="None of it was sent"):
                lm.fill([query(text) for text in "efgh"])
            assert states(lm).count("failed") == 4
    gate.close()
