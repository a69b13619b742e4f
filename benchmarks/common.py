"""What the sections of the suite share: the models, prompts, ratios with intervals, lines of the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.load import load_target
from tevlib.decoding.target import Target
from tevlib.sources.prompts import SUITES, chat_ids, load_prompts
from tevlib.suite.paths import from_repository

DRAFTER = "data/drafters/smollm2-135m-exit"  # the best of those shipped: see the laptop profile's Table 5
RESAMPLES = 2000


@cache
def models() -> tuple[Target, DFlashDraftModel]:
    """The offline target in bfloat16 and the shipped drafter, loaded once."""
    target = load_target()
    return target, load_drafter(from_repository(DRAFTER), target)


def prompt_ids(target: Target, n: int, suites: Sequence[str] = SUITES) -> list[tuple[str, str, torch.Tensor]]:
    """Suite, id and token ids of the first turns of `n` prompts of each suite, suites in turns."""
    chosen = [load_prompts(suite, n, seed=0) for suite in suites]
    return [
        (prompt.suite, prompt.id, torch.tensor(chat_ids(target.tokenizer, [{"role": "user", "content": text}])))
        for together in zip(*chosen, strict=True)
        for prompt in together
        for text in prompt.turns[:1]
    ]


def rotated(items: Sequence, place: int) -> list:
    """`items` beginning with another one each time, every second time backwards: no method is always after the same."""
    turn = place // 2 % len(items)
    order = [*items[turn:], *items[:turn]]
    return order[::-1] if place % 2 else order


def with_interval(
    metric: Callable[[Sequence[dict]], float], rows: Sequence[dict], by: str = "prompt", within: str | None = None
) -> dict:
    """`value` of `metric(rows)` and its 95% bootstrap `interval` when the groups `by` are drawn again.

    within: a field that groups are drawn again inside of, so that each of its values keeps its number of groups.
    The interval is None where there is nothing to draw: one group in each.
    """
    strata: dict[object, dict[object, list[dict]]] = {}
    for row in rows:
        strata.setdefault(row[within] if within else None, {}).setdefault(row[by], []).append(row)
    if all(len(groups) == 1 for groups in strata.values()):
        return {"value": float(metric(rows)), "interval": None}
    generator = np.random.default_rng(0)
    values = []
    for _ in range(RESAMPLES):
        again = []
        for groups in strata.values():
            listed = list(groups.values())
            again += [row for g in generator.integers(len(listed), size=len(listed)) for row in listed[g]]
        values.append(metric(again))
    return {"value": float(metric(rows)), "interval": [float(q) for q in np.quantile(values, [0.025, 0.975])]}


def bar(what: str, got: dict, *, at_least: float | None = None, at_most: float | None = None) -> dict:
    """A line of the summary: what was asked for, what came out, and whether the value itself meets it."""
    met = got["value"] >= at_least if at_least is not None else got["value"] <= at_most
    asked = f">= {at_least:g}" if at_least is not None else f"<= {at_most:g}"
    return {"what": what, "asked": asked, **got, "met": bool(met)}


def told(what: str, got: dict) -> dict:
    """A line of the summary that is stated and has nothing to meet."""
    return {"what": what, "asked": None, **got, "met": None}
