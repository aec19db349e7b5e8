"""Pictures: what is drawn is what the classifier and the report say, and nothing else is touched."""

import subprocess
import sys

import numpy as np
import pytest
from matplotlib import colors, rcParams, style
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from pbsdk import AuditReport, PromptBoostingClassifier, QueryBudget, connect
from pbsdk.data.tickets import load_tickets
from pbsdk.errors import InputError
from pbsdk.learning.boosting import Outcome
from pbsdk.plotting import BLUE, GREEN, PURPLE, RED, draw_words
from pbsdk.testing import FakeBackend

TICKETS = load_tickets()
TRAIN = (TICKETS.train.texts, TICKETS.train.labels)
VALIDATION = (TICKETS.validation.texts, TICKETS.validation.labels)
TEST = (TICKETS.test.texts[:40], TICKETS.test.labels[:40])


def lines(ax):
    return {line.get_label(): line.get_xydata() for line in ax.get_lines()}


def widths(ax):
    return [bar.get_width() for bar in ax.patches]


def words(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


@pytest.fixture(scope="module")
def clf():
    made = PromptBoostingClassifier(FakeBackend(), "intent", n_prompts=4, head="boosting", rounds=40, random_state=3)
    return made.fit(*TRAIN, validation=VALIDATION)


@pytest.fixture
def ax():
    return Figure().subplots()


def test_staged_draws_the_accuracies_and_weights_of_training_and_of_the_texts_given(clf):
    accuracy, weight = clf.plot_staged(*TEST, name="test").axes
    drawn = lines(accuracy)
    rounds = [record for record in clf.history_ if record.outcome is Outcome.KEPT]
    kept = len(clf.ensemble_.learners)
    assert kept < len(rounds)
    assert drawn["validation"].tolist() == [[at, one.validation_accuracy] for at, one in enumerate(rounds, 1)]
    assert drawn["test"].tolist() == [[at, one] for at, one in enumerate(clf.staged_score(*TEST), 1)]
    assert drawn[f"kept: {kept} of {len(rounds)}"][:, 0].tolist() == [kept, kept]
    assert [bar.get_height() for bar in weight.patches] == [one.alpha for one in rounds]
    assert [bar.get_alpha() is None for bar in weight.patches] == [at < kept for at in range(len(rounds))]
    assert accuracy.get_ylabel() == "accuracy"
    assert weight.get_xlabel() == "learners"


def test_staged_goes_into_axes_that_are_given(clf, ax):
    assert clf.plot_staged(ax=ax) is ax
    assert set(lines(ax)) >= {"validation"}
    assert ax.get_xlabel() == "learners"


def test_a_loaded_classifier_draws_the_texts_given_and_says_that_training_is_gone(clf, tmp_path):
    clf.save(tmp_path / "model.json")
    loaded = PromptBoostingClassifier.load(tmp_path / "model.json", FakeBackend())
    accuracy, weight = loaded.plot_staged(*TEST).axes
    assert lines(accuracy)["these texts"][:, 1].tolist() == list(clf.staged_score(*TEST))
    assert [bar.get_height() for bar in weight.patches] == [one.alpha for one in clf.ensemble_.learners]
    with pytest.raises(InputError, match="give plot_staged texts and labels"):
        loaded.plot_staged()


def test_learners_that_took_the_place_of_perfect_ones_are_not_drawn_with_the_rounds_before():
    texts, labels = ["paid the bill", "a refund", "our team won", "the match"], ["money", "money", "sport", "sport"]
    perfect = PromptBoostingClassifier(FakeBackend(), "intent", head="boosting", n_prompts=3, random_state=0)
    perfect.fit(texts, labels, validation=(texts, labels))
    assert perfect.history_[-1].outcome is Outcome.PERFECT
    with pytest.raises(InputError, match="perfect"):
        perfect.plot_staged()
    accuracy, weight = perfect.plot_staged(texts, labels).axes
    assert len(weight.patches) == len(lines(accuracy)["these texts"]) == 3
    assert "validation" not in lines(accuracy)


def test_words_are_the_explanations_and_their_bars_the_summed_weights(clf):
    learners, vocabulary = clf.ensemble_.learners, clf.backend.vocabulary
    panels = clf.plot_words(5).axes
    assert [panel.get_title("left") for panel in panels] == list(clf.classes_)
    for place, panel in enumerate(panels):
        drawn = dict(zip(words(panel), widths(panel), strict=True))
        assert list(drawn) == clf.explain().words(clf.classes_[place], 5)
        assert len(drawn) == 5
        for word, width in drawn.items():
            assert width == pytest.approx(
                sum(one.alpha for one in learners if vocabulary[one.tokens[place]].strip() == word)
            )
        assert widths(panel) == sorted(widths(panel), reverse=True)


def test_words_of_some_classes_in_the_order_asked_for(clf, ax):
    panels = clf.plot_words(classes=["technical", "account"]).axes
    assert [panel.get_title("left") for panel in panels] == ["technical", "account"]
    assert clf.plot_words(3, classes=["billing"], ax=ax) is ax
    assert words(ax) == clf.explain().words("billing", 3)


@pytest.mark.parametrize("count", [1, 2, 5, 30])
def test_many_classes_and_odd_words_fit_the_picture(count):
    odd = {"internationalisation" * 3: 3.0, "$a$": 2.0, "": 1.5, "tab\there": 1.0}
    figure = draw_words({f"a class with a very long name, number {at}": odd for at in range(count)}, 8)
    figure.draw_without_rendering()
    page = figure.bbox
    for panel in figure.axes[:count]:
        assert words(panel)[1:] == ["$a$", "''", "tab\\there"]
        for text in (*panel.get_yticklabels(), panel._left_title):
            box = text.get_window_extent()
            assert page.x0 <= box.x0 < box.x1 <= page.x1
            assert not text.get_parse_math()
        assert panel.get_window_extent().width > 80
    assert figure.get_figwidth() <= 11.5


def test_a_report_draws_its_limits_phases_and_passes(tmp_path):
    budget = QueryBudget(passes=10, total=4000)
    with connect("fake", run=tmp_path, budget=budget) as lm:
        clf = PromptBoostingClassifier(lm, "intent", n_prompts=4, head="boosting", rounds=5, random_state=3).fit(*TRAIN)
        clf.fit(*TRAIN)
        clf.predict(TEST[0])
        report = lm.audit()
    limits, phases, fitted, predicted = report.plot().axes
    half = len(limits.patches) // 2  # the tracks come first
    assert widths(limits)[half:] == [4 / 10, 4 / 10, (64 * 4 + 40 * 4) / 4000]
    assert [text.get_text() for text in limits.texts] == ["4 of 10", "4 of 10", "416 of 4,000"]
    assert dict(zip(words(phases), widths(phases), strict=True)) == {
        f"{phase.phase}: {kind}": getattr(phase, kind)
        for phase in report.phases
        for kind in ("passes", "hits")
        if getattr(phase, kind)
    }
    for panel, examples in ((fitted, 64), (predicted, 40)):
        counts = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in panel.patches}
        assert counts == {at: examples if at == 4 else 0 for at in range(1, 11)}
        assert lines(panel)["limit: 10"][:, 0].tolist() == [10.5, 10.5]


def test_a_report_of_nothing_and_one_over_its_limit_are_drawn(tmp_path):
    with connect("fake", run=tmp_path / "nothing", budget=None) as lm:
        limits, phases = lm.audit().plot().axes
        assert [ax.texts[0].get_text() for ax in (limits, phases)] == ["no limit is set", "nothing was asked"]
    with connect("fake", run=tmp_path / "over", budget=None) as lm:
        PromptBoostingClassifier(lm, "intent", n_prompts=4, head="boosting", rounds=2).fit(*TRAIN)
    limits = AuditReport.read(tmp_path / "over", QueryBudget(passes=2, total=0)).plot().axes[0]
    over = [bar.get_facecolor() for bar in limits.patches[3:]]
    assert over == [colors.to_rgba(RED), colors.to_rgba(BLUE), colors.to_rgba(RED)]
    assert max(widths(limits)) == 1


def contrast(one, other):
    def light(colour):
        parts = np.array(colors.to_rgb(colour))
        return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    dark, bright = sorted([light(one), light(other)])
    return (bright + 0.05) / (dark + 0.05)


def test_colours_stand_out_and_the_rest_follows_the_style_in_force(clf):
    for colour in (BLUE, RED, GREEN, PURPLE):
        assert contrast(colour, "white") >= 3
        assert contrast(colour, "black") >= 3
    with style.context("dark_background"):
        figure = clf.plot_words()
        assert colors.to_rgb(figure.get_facecolor()) == (0, 0, 0)
        assert figure.axes[0].get_yticklabels()[0].get_color() == "white"
    assert colors.to_rgb(clf.plot_words().get_facecolor()) == (1, 1, 1)


def test_pyplot_is_left_alone_and_a_notebook_gets_one_png(clf):
    before = dict(rcParams)
    picture = clf.plot_words()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert dict(rcParams) == before
    alone = "import sys, pbsdk.plotting; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", alone], check=True, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": 0}, "count must be"),
        ({"classes": ["nonesuch"]}, "classes must be some of 'account'"),
        ({"classes": []}, "classes must be some of"),
        ({"ax": object()}, "ax takes one class, and there are 4"),
    ],
)
def test_words_that_cannot_be_drawn_are_refused(clf, arguments, message):
    with pytest.raises(InputError, match=message):
        clf.plot_words(**arguments)


def test_texts_without_labels_and_an_unfitted_classifier_are_refused(clf):
    with pytest.raises(InputError, match="both texts and labels, or neither"):
        clf.plot_staged(TEST[0])
    unfitted = PromptBoostingClassifier(FakeBackend())
    for plot in (unfitted.plot_staged, unfitted.plot_words):
        with pytest.raises(NotFittedError):
            plot()


def test_without_matplotlib_everything_else_works_and_the_error_names_the_extra(tmp_path):
    code = f"""
import sys
sys.modules["matplotlib"] = None
from pbsdk import PromptBoostingClassifier, connect
from pbsdk.errors import MissingExtra
lm = connect("fake", run={str(tmp_path)!r})
clf = PromptBoostingClassifier(lm, ["<input> The <mask>"], head="boosting", rounds=2).fit(["paid", "bill", "goal", "match"], [0, 0, 1, 1])
for plot in (clf.plot_staged, clf.plot_words, lm.audit().plot):
    try:
        plot()
    except MissingExtra as error:
        print(error)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert len(ran.stdout.splitlines()) == 3
    assert all(line.endswith('pip install "pbsdk[plot]"') for line in ran.stdout.splitlines())
