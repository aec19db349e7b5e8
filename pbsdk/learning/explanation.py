"""What a classifier learned, in words: its prompts, a word for each class, and how much each counts."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import wrap
from typing import Any

from pbsdk.errors import InputError
from pbsdk.formatting import aligned, html_table, one_line

__all__ = ["Explanation", "LearnerRow"]


@dataclass(frozen=True)
class LearnerRow:
    """One weak learner: a prompt, the word that stands for each class, and its weight."""

    prompt: str
    words: tuple[str, ...]
    weight: float
    answered: bool = True
    """Whether the words are the model's; otherwise they are the text's own."""


@dataclass(frozen=True)
class Explanation:
    """A table of weak learners, in the order they were trained."""

    classes: tuple[Any, ...]
    rows: tuple[LearnerRow, ...]
    note: str = ""
    """What the head has to say besides: how it was chosen, for example."""

    def weights(self, label: Any) -> dict[str, float]:
        """Return the words of the model by which a class is recognised, weightiest first, with their summed weights.

        Pieces of words, single letters and punctuation are left out, unless there is nothing else.
        """
        place = self.classes.index(label)
        weights: Counter[str] = Counter()
        for row in self.rows:
            if row.answered:
                weights[row.words[place]] += row.weight  # type: ignore[assignment] # Counters take floats too
        kept = {said: weight for said, weight in weights.items() if self._is_word(said)} or weights
        found: Counter[str] = Counter()
        for said, weight in kept.items():
            found[said.strip() or repr(said)] += weight
        return dict(found.most_common())

    def _is_word(self, said: str) -> bool:
        bare = said.strip()
        letters = bare.replace("'", "").replace("-", "")
        return letters.isalpha() and (len(letters) > 1 or not letters.isascii()) and not self._is_piece(said)

    def _is_piece(self, said: str) -> bool:
        """Return whether a token goes on with a word: it lacks the space that others bring, and no word here is the same with one."""
        words = self._beginnings
        return bool(words) and said[:1].islower() and said.lower() not in words

    @cached_property
    def _beginnings(self) -> frozenset[str]:
        """The words that bring the space before them, as words within a text do; none unless most do."""
        said = [word for row in self.rows if row.answered for word in row.words if word.strip().isalpha()]
        spaced = [word.strip().lower() for word in said if word.startswith(" ")]
        return frozenset(spaced) if 2 * len(spaced) > len(said) else frozenset()

    def _cell(self, row: LearnerRow, word: str) -> str:
        # repr shows the space that belongs to a word, and hides no control character
        return repr(f"…{word}" if row.answered and self._is_piece(word) else word)

    def words(self, label: Any, count: int = 8) -> list[str]:
        """Return the words of the model by which a class is recognised, weightiest first, each in its weightiest spelling."""
        spellings: dict[str, str] = {}
        for word in self.weights(label):
            spellings.setdefault(word.casefold(), word)
        return list(spellings.values())[:count]

    def only(self, labels: Sequence[str]) -> Explanation:
        """Return the table for these classes alone, which are named as they are printed."""
        names = [str(label) for label in self.classes]
        for label in labels:
            if label not in names:
                raise InputError(f"there is no class {label!r}; choose from {', '.join(names)}")
        places = [names.index(label) for label in dict.fromkeys(labels)]
        rows = tuple(replace(row, words=tuple(row.words[place] for place in places)) for row in self.rows)
        return replace(self, classes=tuple(self.classes[place] for place in places), rows=rows)

    def fitted_to(self, width: int) -> str:
        """Return the table where it fits on lines so wide; otherwise the words of each class, then each prompt with its words."""
        table = aligned([self._header(), *self._cells()])
        if max(map(len, table.splitlines())) > width:
            blocks = (self._block(at, row, width) for at, row in enumerate(self.rows, 1))
            table = "\n\n".join([*self._summary(width), *blocks])
        note = "\n".join(line for said in self.note.splitlines() for line in wrap(said, width) or [""])
        return f"{table}\n\n{note}" if note else table

    def _summary(self, width: int) -> list[str]:
        """Return the words of each class, if any are the model's."""
        if not any(row.answered for row in self.rows):
            return []
        names = self._names(width // 2)
        lines = wrap("Words by which a class is recognised", width)
        for name, label in zip(names, self.classes, strict=True):
            indent = " " * (len(name) + 4)
            said = one_line(", ".join(self.words(label)))
            lines += wrap(said, width, initial_indent=f"  {name}  ", subsequent_indent=indent)
        return ["\n".join(lines)]

    def _block(self, at: int, row: LearnerRow, width: int) -> str:
        lines = wrap(one_line(f"{at}. {row.prompt} (weight {row.weight:.3f})"), width)
        for name, word in zip(self._names(width - 24), row.words, strict=True):
            lines.append(f"  {name}  {one_line(self._cell(row, word))}")
        return "\n".join(lines)

    def _names(self, most: int) -> list[str]:
        """Return the labels in a column, shortened in the middle where they are longer than `most`: numbers tend to come last."""
        names = [one_line(str(label)) for label in self.classes]
        column = min(max(map(len, names)), max(9, most))
        return [f"{name if len(name) <= column else f'{name[: column - 6]}…{name[-5:]}':<{column}}" for name in names]

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data."""
        return {
            "classes": list(self.classes),
            "learners": [
                {
                    "prompt": row.prompt,
                    "words": dict(zip(map(str, self.classes), row.words, strict=True)),
                    "weight": row.weight,
                }
                for row in self.rows
            ],
            **({"note": self.note} if self.note else {}),
        }

    def __str__(self) -> str:
        table = aligned([self._header(), *self._cells()])
        return f"{table}\n\n{self.note}" if self.note else table

    def _repr_html_(self) -> str:
        note = f"<pre>{html.escape(self.note)}</pre>" if self.note else ""
        return html_table(self._header(), self._cells()) + note

    def _header(self) -> tuple[str, ...]:
        return ("#", "weight", "prompt", *map(str, self.classes))

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                str(at),
                f"{row.weight:.3f}",
                row.prompt.replace("\n", "\\n"),
                *(self._cell(row, word) for word in row.words),
            )
            for at, row in enumerate(self.rows, 1)
        ]
