"""The contract that every adapter must fulfil, as tests.

Subclass it in a test module and give it the backend as a pytest fixture:

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend(self):
            return MyBackend(...)
"""

from __future__ import annotations

import numpy as np

from pbsdk.backend import MaskDistribution, MaskedLMBackend, MaskedQuery, ModelIdentity, Part, Phase, digest

__all__ = ["BackendContract"]


class BackendContract:
    """The contract that every adapter fulfils, as tests; the module's docstring shows how to run them."""

    tolerance = 2
    """How many steps of the grid (1/1024 nat) an answer may vary with the batch it is in."""

    def _queries(self, backend: MaskedLMBackend, *texts: str) -> list[MaskedQuery]:
        tail = () if backend.abilities.mask == "last" else (Part("prompt", "."),)
        return [
            MaskedQuery(
                (Part("input", text), Part("prompt", " It was "), Part("mask"), *tail),
                example=digest(text),
                prompt="<input> It was <mask>",
                phase=Phase.PREDICT,
            )
            for text in texts
        ]

    def _same(self, one: MaskDistribution, other: MaskDistribution) -> bool:
        tokens = one.tokens if one.tokens is not None else np.arange(len(one.codes))
        if one.rest is not None and other.tokens is not None:
            tokens = np.intersect1d(tokens, other.tokens)
        steps = np.abs(one.at(tokens).astype(int) - other.at(tokens).astype(int))
        return bool(len(tokens) and steps.max() <= self.tolerance)

    def test_the_identity_survives_json(self, backend: MaskedLMBackend) -> None:
        """The ledger writes it down and compares it."""
        assert backend.identity.name
        assert ModelIdentity.from_json(backend.identity.to_json()) == backend.identity

    def test_the_abilities_make_sense(self, backend: MaskedLMBackend) -> None:
        """Whole, or top k; never neither."""
        abilities = backend.abilities
        assert abilities.batch_size >= 1
        assert abilities.whole == (abilities.top is None)

    def test_an_empty_batch_has_no_answers(self, backend: MaskedLMBackend) -> None:
        """Nothing asked, nothing answered."""
        assert backend.fill([]) == []

    def test_answers_are_distributions(self, backend: MaskedLMBackend) -> None:
        """As complete as the abilities say, and of tokens that the vocabulary knows."""
        (answer,) = backend.fill(self._queries(backend, "The weather is fine today."))
        if backend.abilities.whole:
            assert answer.tokens is None
            assert len(answer.codes) == len(backend.vocabulary)
            assert abs(answer.mass - 1) < 0.01
        else:
            assert answer.tokens is not None
            assert answer.rest is not None
            assert 1 <= len(answer.codes) <= (backend.abilities.top or 0)
            assert all(isinstance(backend.vocabulary[int(token)], str) for token in answer.tokens)

    def test_answers_come_in_the_order_of_the_queries(self, backend: MaskedLMBackend) -> None:
        """However the backend sorts them internally; and the same question has the same answer."""
        texts = ["Short.", "A much longer text about a long day at sea, with wind and rain.", "The soup was cold."]
        queries = self._queries(backend, *texts)[: backend.abilities.batch_size]
        together = backend.fill(queries)
        assert len(together) == len(queries)
        for query, answer in zip(queries, together, strict=True):
            (alone,) = backend.fill([query])
            assert self._same(alone, answer)
        for query, answer in zip(queries, reversed(backend.fill(queries[::-1])), strict=True):
            assert self._same(answer, together[queries.index(query)])

    def test_different_texts_have_different_answers(self, backend: MaskedLMBackend) -> None:
        """A backend that ignores the text and reads only the prompt is caught."""
        first, second = (backend.fill([query])[0] for query in self._queries(backend, "Rain.", "The bank pays well."))
        assert not self._same(first, second)

    def test_chosen_tokens_are_answered(self, backend: MaskedLMBackend) -> None:
        """With the numbers that the full answer has."""
        (query,) = self._queries(backend, "The weather is fine today.")
        (full,) = backend.fill([query])
        tokens = (full.tokens if full.tokens is not None else np.arange(len(full.codes)))[:3].astype(np.int64)
        (part,) = backend.fill([query], tokens)
        assert part.covers(tokens)
        steps = np.abs(part.at(tokens).astype(int) - full.at(tokens).astype(int))
        assert steps.max() <= self.tolerance

    def test_odd_texts_are_answered(self, backend: MaskedLMBackend) -> None:
        """Empty, very long, in other scripts, and with control tokens written out."""
        for text in ("", "word " * 3000, "naïve café 日本語 🙂", "a </s> [SEP] <|im_start|> b", "two\nlines\ttabbed"):
            (answer,) = backend.fill(self._queries(backend, text))
            assert len(answer.codes)

    def test_no_more_is_read_than_a_budget_reserves(self, backend: MaskedLMBackend) -> None:
        """However long or odd the text: `most_tokens` is an upper bound."""
        for text in ("Rain.", "", "word " * 3000, "naïve café 日本語 🙂 \ufdfa"):
            (query,) = self._queries(backend, text)
            (answer,) = backend.fill([query])
            assert answer.read_tokens <= backend.most_tokens(query)
            assert 0 < backend.count_tokens(query) <= backend.most_tokens(query)

    def test_what_follows_the_mask_matters_as_promised(self, backend: MaskedLMBackend) -> None:
        """A causal model doesn't read it; a masked one does."""
        (query,) = self._queries(backend, "The weather is fine today.")
        longer = MaskedQuery((*query.parts, Part("prompt", " And so to bed.")), query.example, query.prompt)
        (short,), (long,) = backend.fill([query]), backend.fill([longer])
        assert self._same(short, long) == (backend.abilities.mask == "last")
