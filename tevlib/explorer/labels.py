"""Token text for the eye: nothing invisible, nothing that reorders its neighbours, nothing that breaks a box."""

import unicodedata

LONGEST = 14  # columns of a label inside a box


def visible(text: str, keep: str = "") -> str:
    """`text` with every unprintable character escaped (newline as `\\n`, U+202E as `\\u202e`), `keep` excepted.

    Direction marks, control characters and lone surrogates are unprintable to Python, so that no token can turn round
    or hide the text beside it. Characters that HTML or SVG must escape are left to whoever writes HTML or SVG.
    """
    return "".join(c if c in keep or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def columns(text: str) -> int:
    """Columns that `text` takes in a fixed-width font: 2 for wide East Asian characters and emoji, 0 for marks."""
    wide = {"W": 2, "F": 2}
    return sum(0 if unicodedata.combining(c) else wide.get(unicodedata.east_asian_width(c), 1) for c in text)


def short(text: str, longest: int = LONGEST) -> str:
    """`text`, cut with an ellipsis to at most `longest` columns."""
    if columns(text) <= longest:
        return text
    cut = text
    while columns(cut) > longest - 1:
        cut = cut[:-1]
    return cut + "…"
