"""Keeps prompts that overlap with an evaluation suite out of the training prompts."""

import re
from collections.abc import Iterable, Iterator

from tevlib.sources.suites import CODE_INSTRUCTION, MATH_INSTRUCTION, Prompt

N_GRAM = 13  # words; the usual choice since GPT-3's report
SHORTEST = 6  # words; an evaluation turn of SHORTEST to N_GRAM - 1 words counts as one gram of its own length


def words(text: str) -> list[str]:
    """The lower-case words and numbers of `text`, without the suites' fixed instructions, which are format."""
    bare = text.replace(MATH_INSTRUCTION, " ").replace(CODE_INSTRUCTION, " ")
    return re.findall(r"\w+", bare.lower())


def decontaminate(prompts: Iterable[Prompt], evaluation: Iterable[Prompt]) -> tuple[list[Prompt], list[Prompt]]:
    """(kept, dropped): a prompt is dropped if it equals, or shares N_GRAM consecutive words with, an evaluation turn.

    Words are compared after lower-casing and without punctuation. Evaluation turns shorter than N_GRAM words count when
    the prompt contains them whole, from SHORTEST words on.
    """
    equal: set[tuple[str, ...]] = set()
    grams: dict[tuple[str, ...], set[tuple[str, ...]]] = {}  # by their first SHORTEST words
    for row in (words(turn) for prompt in evaluation for turn in prompt.turns):
        equal.add(tuple(row))
        if len(row) >= SHORTEST:
            for gram in _windows(row, min(N_GRAM, len(row))):
                grams.setdefault(gram[:SHORTEST], set()).add(gram)

    def overlaps(turn: str) -> bool:
        row = words(turn)
        return tuple(row) in equal or any(
            tuple(row[start : start + len(gram)]) == gram
            for start, head in enumerate(_windows(row, SHORTEST))
            for gram in grams.get(head, ())
        )

    kept: list[Prompt] = []
    dropped: list[Prompt] = []
    for prompt in prompts:
        (dropped if any(map(overlaps, prompt.turns)) else kept).append(prompt)
    return kept, dropped


def _windows(row: list[str], size: int) -> Iterator[tuple[str, ...]]:
    return (tuple(row[start : start + size]) for start in range(len(row) - size + 1))
