import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from helpers.tiny_models import ask, build, tokenizer_of
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from pbsdk.errors import MissingExtra, ModelUnusable
from pbsdk_backends._local import files
from pbsdk_backends._local import weights as _loading
from pbsdk_backends.local import LocalBackend


@pytest.fixture
def copy_of(folder_of, tmp_path):
    def make(family):
        return Path(shutil.copytree(folder_of(family), tmp_path / "model"))

    return make


def refused(folder, match):
    with pytest.raises(ModelUnusable, match=match) as caught:
        LocalBackend(str(folder), device="cpu")
    return str(caught.value)


def test_a_truncated_weight_file_is_refused(copy_of):
    weights = copy_of("roberta") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused(weights.parent, "is broken .*download the model again")


def test_weights_that_can_run_code_are_refused(copy_of):
    folder = copy_of("roberta")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    refused(folder, "has only pytorch_model.bin.*convert it once where you trust it")


def test_a_folder_without_weights_is_refused(copy_of):
    folder = copy_of("roberta")
    (folder / "model.safetensors").unlink()
    refused(folder, "has no model.safetensors; download the model again")


def test_a_model_saved_without_its_head_is_refused(tmp_path, folder_of):
    config = transformers.AutoConfig.from_pretrained(folder_of("bert"))
    with _loading.quiet():
        transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path / "judge")
        tokenizer_of("pieces", causal=False).save_pretrained(tmp_path / "judge")
    refused(tmp_path / "judge", "lack 'cls.*without its language-model head.*choose the pre-trained model")


def test_a_model_of_another_kind_is_refused(tmp_path):
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    with _loading.quiet():
        transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
        tokenizer_of("pieces", causal=False).save_pretrained(tmp_path / "vit")
    refused(tmp_path / "vit", "no language-model head.*choose a masked language model")


def test_a_masked_model_whose_tokenizer_has_no_mask_is_refused(tmp_path):
    folder = build(tmp_path / "roberta", "roberta")
    tokenizer_of("bytes", causal=True).save_pretrained(folder)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).exists():
            stored = json.loads((folder / name).read_text())
            stored.pop("mask_token", None)
            (folder / name).write_text(json.dumps(stored))
    refused(folder, "has no mask token; choose")


@pytest.mark.parametrize("content", ["{", '{"model_type": "no-such-thing"}', "{}"])
def test_a_config_that_can_not_be_read_is_refused(copy_of, content):
    folder = copy_of("roberta")
    (folder / "config.json").write_text(content)
    assert str(folder) not in refused(folder, "can't be loaded.*complete language model")


def test_code_that_comes_with_a_model_is_not_run(copy_of):
    folder = copy_of("roberta")
    config = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "evil.C", "AutoModelForMaskedLM": "evil.M"}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "evil", "auto_map": names}))
    (folder / "evil.py").write_text("raise SystemExit('the code ran')")
    refused(folder, "bring their own code are not run")


def test_cuda_that_is_absent_is_refused(folder_of, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelUnusable, match="'cuda' is not available; use device='cpu' or 'auto', or install a torch"):
        LocalBackend(str(folder_of("roberta")), device="cuda")


@pytest.mark.parametrize(("cuda", "mps", "chosen"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_the_best_device_is_chosen(monkeypatch, cuda, mps, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert _loading.choose_device("auto").type == chosen


def test_a_hub_that_can_not_be_reached_is_said_with_the_cures(monkeypatch, tmp_path):
    def unreachable(*_args, **_options):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr(files, "snapshot_download", unreachable)
    with pytest.raises(ModelUnusable, match=r"'roberta-large' is not in the local cache and the hub can't be reached"):
        LocalBackend(device="cpu")


def test_nothing_cached_and_no_hub_allowed_is_said_for_real(tmp_path):
    script = (
        "from pbsdk_backends.local import LocalBackend\n"
        "try: LocalBackend('owner/no-such-model', device='cpu', local_files_only=True)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    env = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ModelUnusable 'owner/no-such-model' is not in the local cache")
    assert 'model="path/to/folder"' in done.stdout


@pytest.mark.parametrize("name", ["./no/such/folder", "a/b/c", "what is this?"])
def test_a_name_that_is_neither_folder_nor_hub_name_is_refused(name):
    refused(name, "neither a folder here nor a hub model's name; check the path")


def test_a_hub_model_is_named_by_its_name_and_commit(monkeypatch, folder_of, tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = Path(shutil.copytree(folder_of("roberta"), tmp_path / commit))
    wanted = []

    def download(model, *, revision, allow_patterns, **_options):
        wanted.append((model, revision, tuple(allow_patterns)))
        return str(snapshot)

    monkeypatch.setattr(files, "snapshot_download", download)
    backend = LocalBackend("owner/tiny", revision="v2", device="cpu")
    assert backend.identity.name == "owner/tiny"
    assert backend.identity.details["revision"] == commit
    assert all(not pattern.endswith(".bin") for _, _, patterns in wanted for pattern in patterns)
    assert wanted[-1][:2] == ("owner/tiny", "v2")


def test_weights_in_several_files_work_and_a_missing_one_is_named(copy_of, folder_of):
    folder = copy_of("bert")
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    one, other = LocalBackend(str(folder), device="cpu"), LocalBackend(str(folder_of("bert")), device="cpu")
    (ours,), (theirs,) = one.fill([ask("Rain.")]), other.fill([ask("Rain.")])
    # Where weights lie in memory decides in which order they are summed, and so the last bit of a logit.
    assert np.abs(ours.codes.astype(int) - theirs.codes).max() <= 1
    (folder / "model-2.safetensors").unlink()
    refused(folder, "has no model-2.safetensors")
    (folder / "model.safetensors.index.json").write_text("{")
    refused(folder, "can't be read; download the model again")


def test_changed_weights_change_the_identity(copy_of, folder_of):
    folder = copy_of("bert")
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] += 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    changed = folder.rename(folder.parent / "tiny-bert")
    plain = LocalBackend(str(folder_of("bert")), device="cpu").identity
    assert LocalBackend(str(changed), device="cpu").identity.differences(plain).startswith("weights: ")


def test_loading_is_quiet_and_leaves_the_settings_alone(folder_of, capfd):
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalBackend(str(folder_of("gpt2")), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert before == (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled())


@pytest.mark.parametrize(
    ("module", "blocked", "cure"),
    [
        ("local", "torch", 'pip install "pbsdk[local]"'),
        ("local", "transformers", 'pip install "pbsdk[local]"'),
        ("local", "safetensors", 'pip install "pbsdk[local]"'),
        ("smollm2", "torch", 'pip install "pbsdk[demo]"'),
        ("smollm2", "gguf", 'pip install "pbsdk[demo]"'),
    ],
)
def test_without_its_packages_an_adapter_names_the_extra(module, blocked, cure):
    script = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {blocked!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Blocker())
from pbsdk.errors import MissingExtra
try:
    import pbsdk_backends.{module}
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert cure in done.stdout
    assert issubclass(MissingExtra, ImportError)
