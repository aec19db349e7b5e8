"""`pbsdk serve`, in a process of its own and over a real socket."""

import pytest
from helpers.commands import called, served

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import load_tickets

pytest.importorskip("fastapi", reason="the server's packages are not installed (pbsdk[serve])")
requests = pytest.importorskip("requests", reason="the remote adapters' packages are not installed (pbsdk[remote])")


def test_a_served_model_trains_the_same_classifier(tmp_path):
    train = load_tickets().train
    with (
        served("fake", "-o", "seed=3") as url,
        connect("http", url=url, run=tmp_path / "there") as there,
        connect("fake", seed=3, run=tmp_path / "here") as here,
    ):
        prompts = ["<input> So <mask>.", "<input> The <mask>"]
        far, near = (
            PromptBoostingClassifier(lm, prompts, head="boosting", rounds=10, random_state=0).fit(
                train.texts, train.labels
            )
            for lm in (there, here)
        )
        assert far.ensemble_ == near.ensemble_


def test_a_name_can_be_allowed():
    with served("fake", "--allow-host", "models.example", "--grace", "5", "--max-connections", "9") as url:
        for host, status in (("models.example", 200), ("evil.example", 403)):
            assert requests.get(f"{url}/v2/health/live", headers={"Host": host}, timeout=30).status_code == status


def test_the_token_comes_from_the_environment_and_from_nowhere_else(monkeypatch):
    monkeypatch.setenv("PBSDK_SERVE_TOKEN", "secret")
    with served("fake") as url:
        statuses = [
            requests.get(f"{url}/v1/model", headers=headers, timeout=30).status_code
            for headers in ({}, {"Authorization": "Bearer secret"})
        ]
    assert statuses == [401, 200]
    shown = called("serve", "fake", "--token", "sk-secret")  # every user of the machine could read it there
    assert shown.returncode == 2
    assert "sk-secret" not in shown.stdout + shown.stderr


def test_options_and_addresses_that_cannot_work_are_one_line():
    for arguments in (
        ("serve", "fake", "-o", "seed"),
        ("serve", "fake", "--host", "0.0.0.0"),
        ("serve", "nonesuch"),
        ("serve", "fake", "--port", "99999"),
        ("serve", "fake", "--port", "-1"),
        ("serve", "openai", "-o", "model=gpt", "-o", "api_key=sk-secret"),
    ):
        shown = called(*arguments)
        assert shown.returncode == 1
        assert shown.stderr.startswith("error: ")
        assert len(shown.stderr.splitlines()) == 1
        assert "sk-secret" not in shown.stderr
