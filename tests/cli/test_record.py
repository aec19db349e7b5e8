"""`pbsdk record`, and `pbsdk predict` from the recording."""

import json
import shutil

from helpers.commands import called

from pbsdk.data.tickets import load_tickets


def test_the_command_records_and_the_backend_replays(trained, tmp_path):
    run, file, new = shutil.copytree(trained / "run", tmp_path / "run"), tmp_path / "x.pbrec", tmp_path / "new.jsonl"
    new.write_text("\n".join(json.dumps({"text": text}) for text in load_tickets().test.texts[:12]))
    predict = ("predict", trained / "model.json", new)
    first = called(*predict, "--backend", "fake", "--run", run)
    assert len(first.stdout.splitlines()) == 12
    shown = called("record", run, file, "--phase", "predict", "--backend", "fake", "--json")
    assert json.loads(shown.stdout) == {
        "saved": str(file),
        "model": "fake",
        "answers": 24,
        "bytes": file.stat().st_size,
    }
    replayed = called(*predict, "--backend", "replay", "-o", f"file={file}", "--run", tmp_path / "replayed")
    assert replayed.stdout == first.stdout
    assert "warning" not in replayed.stderr
    wrong = called("record", run, tmp_path / "y.pbrec", "--backend", "fake", "-o", "seed=1")
    assert wrong.returncode == 1
    assert "another model" in wrong.stderr
    assert not (tmp_path / "y.pbrec").exists()
