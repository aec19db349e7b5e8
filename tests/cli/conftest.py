"""What the tests of several commands start from."""

import pytest
from helpers.commands import write_table

from pbsdk.classifier import PromptBoostingClassifier
from pbsdk.connecting import connect
from pbsdk.data.tickets import load_tickets


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with a classifier, and the run that it was trained in."""
    folder = tmp_path_factory.mktemp("cli")
    tickets = load_tickets()
    with connect("fake", run=folder / "run", budget=10) as lm:
        clf = PromptBoostingClassifier(
            lm, ["<input> So <mask>.", "<input> The <mask>"], head="boosting", rounds=5, random_state=0
        )
        clf.fit(tickets.train.texts, tickets.train.labels).save(folder / "model.json")
    return folder


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A folder with the tickets as tables whose columns have to be named."""
    folder, tickets = tmp_path_factory.mktemp("work"), load_tickets()
    for name, part in (("train", tickets.train), ("dev", tickets.validation), ("test", tickets.test)):
        write_table(folder / f"{name}.csv", part, ("message", "department"))
    return folder
