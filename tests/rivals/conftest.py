"""Tiny models, one masked and one causal, taught the planted signal under its prompt; and contests in which rivals meet it."""

import pytest
import torch
from helpers.planted import CLASSES, write_planted
from helpers.tiny_models import build

from pbsdk import QueryBudget
from pbsdk.metering.meter import MeteredBackend
from pbsdk.metering.passes import PassMeter
from pbsdk.queries.pools import load_pool
from pbsdk.reproduce.draws import DataSet
from pbsdk.reproduce.rivals import Contest
from pbsdk_backends.local import LocalBackend


@pytest.fixture(scope="session")
def planted(tmp_path_factory):
    return write_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture(autouse=True)
def data(planted, monkeypatch):
    """The planted data set is the one that is found."""
    monkeypatch.setenv("PBSDK_DATA", str(planted))
    return planted


def taught(folder, family, *, causal, planted):
    """Build a tiny model, and train it on the planted signal until it says most of the classes' words by itself."""
    build(folder, family, causal=causal, hidden_dropout_prob=0.0) if not causal else build(
        folder, family, causal=causal
    )
    backend = LocalBackend(str(folder))
    opened = backend.inside()
    (template, *_) = load_pool(str(planted / "planted-pool.json")).templates(backend.abilities)
    words = [backend.vocabulary.find(name) for name in CLASSES]
    data_set = DataSet("planted", backend.mask_token, None)
    examples = data_set._read(data_set._train)
    read = [opened.read(template.query(example), 0) for example in examples.examples]
    width = max(len(reading.ids) for reading in read)
    ids = torch.tensor([[*reading.ids, *[reading.ids[0]] * (width - len(reading.ids))] for reading in read])
    seen = torch.tensor([[1] * len(reading.ids) + [0] * (width - len(reading.ids)) for reading in read])
    at, labels = torch.tensor([reading.at for reading in read]), torch.as_tensor(examples.labels)
    with torch.no_grad():
        for weight in opened.model.parameters():
            weight.mul_(0.3 if weight.dim() > 1 else 1.0)  # one that is built to show mistakes is hard to teach
    optimizer = torch.optim.AdamW(opened.model.parameters(), lr=1e-2)
    for _ in range(25):
        logits = opened.model(input_ids=ids, attention_mask=seen).logits[torch.arange(len(read)), at]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits[:, words], labels).backward()
        optimizer.step()
    opened.model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def models(planted, tmp_path_factory):
    """The folders of the taught models, by family."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PBSDK_DATA", str(planted))
        return {
            family: taught(tmp_path_factory.mktemp(family), family, causal=causal, planted=planted)
            for family, causal in (("roberta", False), ("llama", True))
        }


@pytest.fixture(params=["roberta", "llama"])
def model(request, models):
    return LocalBackend(str(models[request.param]))


@pytest.fixture
def enter(tmp_path, planted):
    """Return a function that makes a contest, with a ledger of its own or that of the contest before."""
    opened = {}

    def make(model, *, seed=13, run="run", budget=None):
        data_set = DataSet("planted", model.mask_token, None)
        draw = data_set.draw(16, 13)
        if run not in opened:
            opened[run] = MeteredBackend(model, tmp_path / run, budget or QueryBudget())
        return Contest(
            dataset="planted",
            classes=data_set.classes,
            words=data_set.classes,
            train=draw.train,
            validation=draw.validation,
            test=tuple(data_set.test.examples),
            templates=load_pool(str(planted / "planted-pool.json")).templates(model.abilities),
            style="plain",
            seed=seed,
            backend=model,
            meter=PassMeter(opened[run].ledger, "a rival"),
            checkpoint=tmp_path / f"{run}.pt",
            progress=False,
        )

    make.ledgers = opened
    yield make
    for metered in opened.values():
        metered.ledger.close()


@pytest.fixture
def accuracy(enter, model):
    """Return a function that says how often scores of the test rows are right."""
    labels = DataSet("planted", model.mask_token, None).test.labels
    return lambda point: float((point.scores.argmax(axis=1) == labels).mean())
