"""The screen keeps what may be read, and says how far the rest is from it."""

from __future__ import annotations

import numpy as np
import pytest

from pbsdk.backend import Abilities, MaskDistribution
from pbsdk.errors import BadAnswer, InputError
from pbsdk.learning import screen as screening
from pbsdk.learning.matrix import collect
from pbsdk.learning.screen import LARGE, PILOT, Pilot, pilot_size
from pbsdk.learning.views import view_of

WHOLE = Abilities()


def answers(n_texts, vocabulary, seed=0):
    """Return answers in which tokens differ much in how likely they are, as words do."""
    generator = np.random.default_rng(seed)
    base = -1.2 * np.log(np.arange(1, vocabulary + 1))
    logits = base + 0.5 * generator.normal(size=(n_texts, vocabulary))
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [MaskDistribution.from_logprobs(row) for row in logprobs]


def piloted(found):
    pilot = Pilot(1)
    for answer in found:
        pilot.add(0, answer)
    return pilot


def test_what_a_regression_reads_of_all_texts_is_kept_though_only_a_tenth_of_them_chose_it():
    every = answers(400, 3000)
    screen = piloted(every[:40]).screen()
    assert len(screen.tokens) == 1000
    with collect(every, 400, 1) as (whole,):
        wanted = view_of(whole)
    with collect([answer.narrowed(screen.tokens) for answer in every], 400, 1) as (kept,):
        found = view_of(kept)
        assert (found.tokens == wanted.tokens).all()
        assert (found.features(kept) == wanted.features(whole)).all()


def test_its_share_and_margin_are_those_of_the_pilot():
    screen = piloted(answers(50, 3000)).screen()
    chances = np.exp([answer.logprobs for answer in answers(50, 3000)])
    means = chances.mean(axis=0)
    assert screen.share == pytest.approx(means[screen.tokens].sum() / means.sum(), rel=1e-3)
    dropped = np.setdiff1d(np.arange(3000), screen.tokens)
    last = np.argsort(-means)[299]
    errors = chances.std(axis=0) / np.sqrt(50)
    expected = ((means[last] - means[dropped]) / np.hypot(errors[last], errors[dropped])).min()
    assert screen.margin == pytest.approx(expected, rel=1e-2)
    assert f"{screen.margin:.1f} standard errors" in str(screen)


def test_a_screen_that_keeps_all_drops_nothing_that_could_matter():
    assert piloted(answers(5, 400)).screen().to_dict() == {"tokens": 400, "texts": 5, "share": 1.0, "margin": None}


def test_a_known_screen_is_used_again_if_it_has_all_that_is_needed():
    pilot = piloted(answers(50, 3000))
    other = piloted(answers(50, 3000, seed=1)).screen().tokens  # of other texts of the same kind
    assert (pilot.screen([other]).tokens == other).all()
    needed = pilot.needed()
    assert (pilot.screen([needed, other]).tokens == other).all()  # the larger one: the other may be a prediction's
    lacking = other[other != needed[0]]
    assert (pilot.screen([lacking]).tokens == pilot.screen().tokens).all()


def test_only_whole_answers_are_screened():
    with pytest.raises(BadAnswer, match="whole"):
        Pilot(1).add(0, answers(1, 400)[0].likeliest(5))


@pytest.mark.parametrize(
    ("screen", "texts", "size"),
    [
        (0, 10**6, 0),
        (200, 1000, 200),
        (200, 200, 0),  # all of them would be asked in full
        (None, 10_000, PILOT),  # 10.05 GB
        (None, 9_900, 0),
    ],
)
def test_screening_is_the_default_from_ten_gigabytes_on(screen, texts, size):
    assert pilot_size(screen, WHOLE, 50_265, texts, 10) == size
    assert LARGE == 10 * 10**9


def test_what_shows_its_top_alone_has_nothing_to_screen():
    top = Abilities(whole=False, top=20)
    assert pilot_size(None, top, 50_265, 10**6, 10) == 0
    with pytest.raises(InputError, match="leave screen out"):
        pilot_size(100, top, 50_265, 10**6, 10)


def test_with_more_than_half_of_the_vocabulary_nothing_is_dropped():
    assert screening.most_kept(50_265) == 25_132
