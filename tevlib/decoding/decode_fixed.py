"""`decode_fixed`: what `speculate` does with the best-first builder and TEV, by rounds of fixed shape.

On a GPU every stage is a CUDA graph and the host reads one small report a round; on a CPU the same code runs as it is,
which is how it is tested.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tevlib.decoding.clock import Marks
from tevlib.decoding.cycle import Cycle
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.generation import Generation, Round
from tevlib.decoding.request import begin, choose, new_generator, unusable_logits
from tevlib.decoding.target import Target
from tevlib.trees.sampling import check_rows


@torch.inference_mode()
def decode_fixed(
    target: Target,
    drafter: DFlashDraftModel,
    input_ids: Tensor | list[int],
    *,
    budget: int = 32,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 128,
    stop: Iterable[int] | None = None,
    seed: int | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    cycle: Cycle | None = None,
) -> Generation:
    """The `Generation` of `speculate(..., builder="best_first", verifier="tev")`, by rounds of fixed shape.

    `cycle` is one made for this target, drafter, budget and law that has room for the request; by default one is made,
    which on a GPU captures its graphs: make it once, for the longest request, and hand it to all. Stage times are the
    device's own. Errors and warnings as in `speculate`; ValueError for a budget below 1.
    """
    ids, out = begin(target, input_ids, temperature, top_p, top_k, max_new_tokens, stop, on_tokens)
    generator = new_generator(target, seed)
    if out.full:
        return out.generation([], 0.0, 0.0)
    law = (temperature, top_p, top_k)
    if cycle is None:
        cycle = Cycle(target, drafter, budget, len(ids) + out.limit, out.limit, *law)
    elif (cycle.target, cycle.drafter, cycle.budget, cycle.law) != (target, drafter, budget, law):
        raise ValueError(f"this cycle was made for budget {cycle.budget} and law {cycle.law}, not {budget} and {law}")
    start = time.perf_counter()
    root = choose(cycle.begin(ids), *law, generator)
    prefill_s = time.perf_counter() - start
    out.emit([root])
    start = time.perf_counter()
    cycle.start(root, out.limit - 1, out.stop, generator)
    marks, rounds = Marks(target.device), 0
    while not out.full:
        marks.mark()
        cycle.round(marks.mark)
        report = cycle.read()
        if not report.usable:
            warnings.warn(f"round {rounds}: the drafter's logits hold NaN; this round drafts nothing", stacklevel=2)
        if not report.finite:
            with unusable_logits(f"round {rounds}"):
                check_rows(cycle.logits[: report.size].amax(-1), "node")
        out.emit(report.emitted)
        rounds += 1
    decode_s = time.perf_counter() - start
    return out.generation(_rounds(cycle, rounds, marks.seconds()), prefill_s, decode_s)


def _rounds(cycle: Cycle, rounds: int, seconds: list[float]) -> list[Round]:
    """The records of `rounds`, from the marks before a round's first stage and behind each stage."""
    step = len(Cycle.STAGES) + 1
    made = []
    for i, record in enumerate(cycle.records(rounds)):
        times = dict(zip(Cycle.STAGES, seconds[i * step : i * step + step - 1], strict=True))
        coverage = float(record.P[1:].sum())
        made.append(Round(record.tree, record.P, record.w, coverage, record.path, record.bonus, record.emitted, times))
    return made
