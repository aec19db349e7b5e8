"""What the fake model knows about the world: a few themes, and words that belong to them.

A word of a text belongs to a theme if it begins with one of the theme's stems; the model then finds
the theme's tokens more likely.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = ["THEMES", "themes_of"]

_STEMS = {
    "money": (
        "money pay bill paid charg refund invoic price cost euro dollar card bank subscri fee tax discount cheap "
        "expens credit debit voucher receipt amount checkout"
    ),
    "delivery": (
        "deliver parcel ship courier track packag box post carrier address warehouse customs door driver depot arriv "
        "transit pallet neighbour lorry sent dispatch"
    ),
    "machine": (
        "app crash error screen bug instal updat device phone tablet laptop bluetooth wifi sync button freez browser "
        "printer firmware version android sensor loading page"
    ),
    "account": (
        "account login log password email username sign profil two-factor code delet privacy data permission lock "
        "access verif reset session admin hack invit"
    ),
    "good": "good great nice excellent perfect happy fine love wonder best enjoy thank fun beauti brilliant",
    "bad": "bad terribl awful poor worst hate dull bor waste sad angry broken fail ugly stupid mess",
    "person": "who person man woman author president actor king queen invent player singer wrote name",
    "place": "where city country place island river mountain capital state located street town continent",
    "number": "many much number count year old long far percent million date distance age height speed",
    "sport": "sport team match season coach league game player win won goal cup champion race olymp score",
    "politics": "politic minister elect war govern peace president parliament vote troops leader treaty",
    "business": "business company market stock share profit bank trade oil sale firm invest quarter economy",
    "science": "science research space comput software internet nasa study technolog scientist planet web",
}

THEMES: dict[str, tuple[str, ...]] = {theme: tuple(stems.split()) for theme, stems in _STEMS.items()}


@lru_cache(maxsize=100_000)
def themes_of(word: str) -> tuple[str, ...]:
    """Return the themes that a lower-case word belongs to.

    >>> themes_of("refunded"), themes_of("banks"), themes_of("zebra")
    (('money',), ('money', 'business'), ())
    """
    return tuple(theme for theme, stems in THEMES.items() if word.startswith(stems))
