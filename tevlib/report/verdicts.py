"""Verdicts: is our number the paper's?

    match               our number, or its 95% interval over prompts, lies within the tolerance of the paper's
    outside             neither does
    not run             the cell has no record yet
    failed              the cell ended in an error, or in answers without a single round: there is no number
    different hardware  not the paper's setting: no GPU, or another target, budget, precision, length or number of
                        prompts, or, for times, another GPU; the numbers stand side by side and are not judged
    rehearsal           of a rehearsed profile: tiny random models, of which a number says nothing
    not in the paper    a row of our own

Tolerances and the paper's setting are in `paper_numbers.yaml`.
"""

import math
from collections.abc import Sequence

MATCH, OUTSIDE, NOT_RUN, FAILED = "match", "outside", "not run", "failed"
DIFFERENT, REHEARSED, NOT_IN_PAPER = "different hardware", "rehearsal", "not in the paper"
SYMBOLS = {
    MATCH: "✓", OUTSIDE: "✗", NOT_RUN: "○", FAILED: "!", DIFFERENT: "≠", REHEARSED: "…", NOT_IN_PAPER: "—",
}  # fmt: skip
MEANINGS = {
    MATCH: "our number, or its 95% interval over prompts, lies within the tolerance of the paper's",
    OUTSIDE: "neither our number nor its 95% interval lies within the tolerance of the paper's",
    NOT_RUN: "no record yet",
    FAILED: "the cell ended in an error; `python -m tevlib plan` lists it",
    DIFFERENT: "not the paper's setting, so not judged",
    REHEARSED: "tiny random models, to see that everything runs; the number says nothing",
    NOT_IN_PAPER: "a row of our own",
}


def judge(
    status: str,
    ours: float | None,
    paper: float | None,
    tolerance: float | None,
    comparable: bool,
    interval: tuple[float, float] | None = None,
    rehearsed: bool = False,
) -> str:
    """The verdict on one number; None or NaN is no number.

    status: the cell's (finished, failed, not run). tolerance: largest difference from `paper` that is a match, in the
    metric's own unit. interval: the ends of ours, if known. rehearsed: the cell's profile is a rehearsal.
    """
    if status != "finished":
        return status
    if _missing(paper):
        return NOT_IN_PAPER
    if rehearsed:
        return REHEARSED
    if not comparable:
        return DIFFERENT
    if _missing(ours):
        return FAILED
    low, high = (ours, ours) if interval is None or _missing(interval[0]) else interval
    near = low <= paper + tolerance and high >= paper - tolerance
    return MATCH if near or abs(ours - paper) <= tolerance else OUTSIDE


def row_verdict(verdicts: Sequence[str]) -> str:
    """The verdict on a row of numbers, as printed: the gravest of its cells, with its symbol."""
    for word in (FAILED, NOT_RUN, OUTSIDE, DIFFERENT, REHEARSED, MATCH):
        if word in verdicts:
            judged = [verdict for verdict in verdicts if verdict != NOT_IN_PAPER]
            where = f" in {judged.count(OUTSIDE)} of {len(judged)}" if word == OUTSIDE else ""
            return f"{SYMBOLS[word]} {word}{where}"
    return f"{SYMBOLS[NOT_IN_PAPER]} {NOT_IN_PAPER}"


def legend(verdicts: Sequence[str], unlike: Sequence[str] = ()) -> list[str]:
    """One line for each of the verdicts that occurs; `unlike` says in what the setting is not the paper's."""
    lines = []
    for word, meaning in MEANINGS.items():
        if word in set(verdicts):
            why = f" (other: {', '.join(unlike)})" if word == DIFFERENT and unlike else ""
            lines.append(f"{SYMBOLS[word]} {word}: {meaning}{why}.")
    return lines


def _missing(value: float | None) -> bool:
    return value is None or math.isnan(value)
