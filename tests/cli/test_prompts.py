"""`pbsdk prompts`: list, show, check, generate, refine."""

import json

import pytest
from helpers.commands import called, write_table

from pbsdk.audit.report import AuditReport
from pbsdk.data.tickets import load_tickets
from pbsdk.queries.pools import load_pool, pool_names


def test_list_names_every_pool():
    lines = called("prompts", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == pool_names()
    kinds = {row["name"]: row["texts"] for row in json.loads(called("prompts", "list", "--json").stdout)}
    assert (kinds["topic"], kinds["nli"]) == ("single", "pairs")


def test_show_prints_a_prompt_a_line():
    assert called("prompts", "show", "topic").stdout.splitlines() == load_pool("topic").prompts
    causal = called("prompts", "show", "topic", "--causal").stdout.splitlines()
    assert [line.replace("\\n", "\n") for line in causal] == load_pool("topic").prompts_mask_last
    assert json.loads(called("prompts", "show", "topic", "--json").stdout)["name"] == "topic"
    missing = called("prompts", "show", "topik")
    assert missing.returncode == 1
    assert missing.stderr.startswith("error: no pool and no file")


@pytest.mark.parametrize("name", pool_names())
@pytest.mark.parametrize("extra", [(), ("--causal",)])
def test_the_pools_that_ship_pass_the_check(name, extra):
    shown = called("prompts", "check", name, *extra)
    assert shown.returncode == 0
    assert "10 prompts can be used" in shown.stdout


def test_check_names_everything_that_is_wrong_at_once(tmp_path):
    file = tmp_path / "pool.json"
    prompts = [
        "<input> It was <mask>.",
        "<input> it was <mask>!",
        "<input> No mask.",
        "<input> It was <mask>.",
        "<input> or <input2>? <mask>",
        "A <mask> text: <input>",
    ]
    file.write_text(json.dumps(prompts))
    shown = called("prompts", "check", file, "--json")
    assert shown.returncode == 1
    found = json.loads(shown.stdout)
    assert found["usable"] == 3
    assert [error.split("'")[1] for error in found["errors"]] == prompts[2:5]
    assert len(found["notes"]) == 1
    assert "nearly the same" in found["notes"][0]
    causal = json.loads(called("prompts", "check", file, "--causal", "--json").stdout)
    assert causal["usable"] == 2
    assert any("after the mask" in error for error in causal["errors"])


def test_check_notes_prompts_that_are_one_to_a_causal_model(tmp_path):
    file = tmp_path / "pool.json"
    file.write_text(json.dumps(["<input> So <mask>.", "<input> So <mask> again."]))
    shown = called("prompts", "check", file, "--causal")
    assert shown.returncode == 0
    assert "of 2 prompts 1 are different" in shown.stdout
    assert "1 prompts can be used" in shown.stdout
    file.write_text("[]")
    assert called("prompts", "check", file).returncode == 1


def test_generate_writes_a_pool_that_fit_can_use_and_counts_its_passes(tmp_path):
    data = tmp_path / "data.jsonl"
    rows = [("the bank pays", 0), ("money and loans", 0), ("our team won", 1), ("a match was lost", 1)]
    data.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    common = ("--backend", "fake", "-o", "mask=last", "--run", tmp_path / "run")
    pool, model = tmp_path / "pool.json", tmp_path / "m.json"
    search = ("--beam", "4", "--max-tokens", "2", "--count", "3", "--output", pool)
    words = load_words()
    shown = called("prompts", "generate", data, *common, *search, "--label-words", f"0={words[0]},1={words[1]}")
    assert shown.returncode == 0, shown.stderr
    made = load_pool(pool)
    assert 1 <= len(made.prompts_mask_last) <= 3
    assert made.made.label_words == {"0": words[0], "1": words[1]}
    (phase,) = AuditReport.read(tmp_path / "run").phases
    assert (phase.phase, phase.passes) == ("generate", made.made.forwards)
    assert f"{made.made.forwards} forward passes" in shown.stdout
    fitted = called("fit", data, *common, "--prompts", pool, "--validation-share", "0", "--output", model, "--json")
    assert fitted.returncode == 0, fitted.stderr


def load_words():
    from pbsdk.testing import FakeBackend

    vocabulary = FakeBackend().vocabulary
    return [vocabulary[0].strip(), vocabulary[7].strip()]


def test_generate_refuses_words_that_do_not_fit(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    common = ("--backend", "fake", "-o", "mask=last", "--run", tmp_path / "run", "--output", tmp_path / "p.json")
    for arguments, said in (
        (common, "--label-words LABEL=WORD"),
        ((*common, "--label-words", "0=bad,2=good"), "'2=good' doesn't fit"),
        ((*common, "--method", "t5"), "-o model="),
    ):
        shown = called("prompts", "generate", data, *arguments)
        assert shown.returncode == 1
        assert said in shown.stderr


def test_refine_shows_the_passes_first_and_fit_warns_when_the_same_texts_choose_all(tmp_path):
    tickets = load_tickets()
    files = [
        write_table(tmp_path / f"{name}.jsonl", part)
        for name, part in (("train", tickets.train), ("dev", tickets.validation))
    ]
    (tmp_path / "all.json").write_text(json.dumps([f"<input> {word} <mask>." for word in "ABCDEFGHIJKL"]))
    common = ("--validation", files[1], "--backend", "fake", "--run", tmp_path / "run")
    chosen = (
        "prompts",
        "refine",
        tmp_path / "all.json",
        files[0],
        *common,
        "--keep",
        "3",
        "--output",
        tmp_path / "p.json",
    )
    refused = called(*chosen)
    assert refused.returncode == 3
    assert refused.stderr.splitlines()[:2] == [
        "paper: 1536 passes, 12 per example; at most 12 for one",
        "halving: 1152 passes, 9 per example; at most 12 for one",
    ]
    assert "--budget 12" in refused.stderr
    assert AuditReport.read(tmp_path / "run").phases == []
    shown = called(*chosen, "--budget", "12")
    assert shown.returncode == 0, shown.stderr
    (phase,) = AuditReport.read(tmp_path / "run").phases
    assert (phase.phase, phase.passes) == ("refine", 1152)
    pool = load_pool(tmp_path / "p.json")
    assert [line.split("  ")[-1] for line in shown.stdout.splitlines()[:3]] == pool.prompts
    fit = (
        "fit",
        files[0],
        *common,
        "--prompts",
        tmp_path / "p.json",
        "--budget",
        "12",
        "--output",
        tmp_path / "m.json",
    )
    fitted = called(*fit, "--rounds", "5", "--json")
    assert fitted.returncode == 0
    assert json.loads(fitted.stdout)["sent_now"] == 0
    (warning,) = fitted.stderr.splitlines()
    assert warning.startswith("warning: 64 of 64 scored examples chose the prompts and the number of rounds")
