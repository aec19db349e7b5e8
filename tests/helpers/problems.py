"""Problems for the search of words, and its answer by a plain brute force that shares no code with it."""

import itertools

import numpy as np

from pbsdk.backend import MaskDistribution
from pbsdk.learning.matrix import CHANCES
from pbsdk.learning.verbalizer import (
    TOTAL_WEIGHT,
)


def plain_scores(codes, labels, weights, n_classes):
    """S[c][v], summed one example after another, class by class."""
    total = sum(weights)
    scores = []
    for v in range(len(codes[0])):
        masses = []
        for c in range(n_classes):
            mass = 0.0
            for i, label in enumerate(labels):
                if label == c:
                    mass += weights[i] / total * float(CHANCES[codes[i][v]])
            masses.append(mass)
        every = 0.0
        for mass in masses:
            every += mass
        scores.append([2 * mass - every for mass in masses])
    return [[scores[v][c] for v in range(len(codes[0]))] for c in range(n_classes)]


def plain_shortlists(scores, m):
    n_classes, n_tokens = len(scores), len(scores[0])
    won = [max(range(n_classes), key=lambda c, v=v: (scores[c][v], -c)) for v in range(n_tokens)]
    lists = []
    for c in range(n_classes):
        mine = [v for v in range(n_tokens) if won[v] == c] or list(range(n_tokens))
        lists.append(sorted(mine, key=lambda v, c=c: (-scores[c][v], v))[:m])
    return lists


def plain_error(codes, labels, weights, tokens):
    wrong = 0
    for i, label in enumerate(labels):
        said = min(range(len(tokens)), key=lambda c, i=i: (codes[i][tokens[c]], c))
        wrong += weights[i] * (said != label)
    return wrong


def plain_best(codes, labels, weights, n_classes, m):
    """All combinations, one by one."""
    scores = plain_scores(codes, labels, weights, n_classes)
    lists = plain_shortlists(scores, m)
    pools = [lists, lists[::-1]] if n_classes == 2 else [lists]
    tried = []
    for pool in pools:
        for tokens in itertools.product(*pool):
            summed = 0.0
            for c, token in enumerate(tokens):
                summed += scores[c][token]
            tried.append((plain_error(codes, labels, weights, tokens), -summed, tokens))
    error, _, tokens = min(tried)
    return error, tokens


def random_problem(seed, n_tokens, n_examples, n_classes, kind):
    generator = np.random.default_rng(seed)
    if kind == "peaked":
        logits = 3 * generator.standard_normal((n_examples, n_tokens))
    elif kind == "flat":
        logits = np.log(generator.standard_exponential((n_examples, n_tokens)))
    else:  # spikes over a floor: most of what is seen is one token in one example
        logits = np.where(generator.random((n_examples, n_tokens)) < 0.05, 0.0, -60.0)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    codes = np.clip(np.rint(-1024 * logprobs), 0, 65535).astype(np.uint16)
    labels = np.concatenate([np.arange(n_classes), generator.integers(n_classes, size=n_examples - n_classes)])
    weights = np.maximum(1, TOTAL_WEIGHT * generator.dirichlet(np.full(n_examples, 0.3))).astype(np.int64)
    return codes, labels, weights


def drawn(n_examples, n_templates, n_tokens, seed=0):
    return np.random.default_rng(seed).integers(0, 9000, (n_examples, n_templates, n_tokens)).astype(np.uint16)


def stream(codes):
    for example in codes:
        for row in example:
            yield MaskDistribution(codes=row.copy())
