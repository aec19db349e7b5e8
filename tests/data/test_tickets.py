"""The tickets that ship: counts, variety, and no leaks between splits."""

import re
from collections import Counter
from itertools import combinations

from pbsdk.data.tickets import load_tickets


def test_the_splits_are_balanced():
    tickets = load_tickets()
    for split, count in ((tickets.train, 16), (tickets.validation, 16), (tickets.test, 40)):
        assert Counter(split.labels) == dict.fromkeys(("account", "billing", "shipping", "technical"), count)
        assert len(split) == 4 * count


def test_no_two_tickets_are_near_duplicates():
    tickets = load_tickets()
    texts = tickets.train.texts + tickets.validation.texts + tickets.test.texts
    words = [set(re.findall(r"[a-z0-9']+", text.lower())) for text in texts]
    closest = max(len(one & other) / len(one | other) for one, other in combinations(words, 2))
    assert closest < 0.35


def test_the_tickets_vary_in_length_and_seldom_name_their_class():
    tickets = load_tickets()
    lengths = [len(text.split()) for text in tickets.test.texts]
    assert min(lengths) < 12
    assert max(lengths) > 50
    named = sum(label in text.lower() for text, label in zip(tickets.test.texts, tickets.test.labels, strict=True))
    assert named < 0.1 * len(tickets.test)
