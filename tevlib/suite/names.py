"""The names of the tables, and look-ups by name that fail with a suggestion."""

import difflib
from collections.abc import Iterable

TABLES = ("table1", "table2", "table3", "table4", "table5")  # as profiles and records call them


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the known name nearest to `name`, or an empty string where none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_name(kind: str, name: object, known: Iterable[str]) -> str:
    """`name` itself if it is one of `known`; raises `ValueError` that lists them otherwise."""
    known = list(known)
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"unknown {kind} {name!r}; known: {', '.join(known)}{did_you_mean(str(name), known)}")
    return name
