"""What a deferred head saves: the target's rows of visited nodes against the rows of all nodes, on the same rounds.

    python -m benchmarks --only head

Rounds of real decoding are replayed: the same tree on the same context, the pass and the verdict timed with all rows
made at once and with rows made when the verifier asks, in turns. Only the head differs; the saving is of pass and head
together, verdict included.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import torch
from tqdm.auto import tqdm

from benchmarks.common import models, prompt_ids, rotated, told
from tevlib.decoding.decode import speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.rows import DeferredRows
from tevlib.trees.verifiers import VERIFIERS

WAYS = ("all rows", "deferred")
VERIFIED = ("tev", "sequential_residual")
FULL = {
    "prompts": 1,
    "tokens": 24,
    "budgets": (16, 32, 64),
    "temperatures": (0.0, 1.0),
    "verifiers": VERIFIED,
    "repeats": 3,
}
QUICK = {"prompts": 1, "tokens": 12, "budgets": (16,), "temperatures": (0.0,), "verifiers": VERIFIED, "repeats": 1}


def measure(quick: bool = False) -> dict:
    """Milliseconds of pass, head and verdict both ways by setting, rows made, and what is saved with its interval."""
    return compare(*models(), **(QUICK if quick else FULL))


@torch.inference_mode()
def compare(
    target: Target,
    drafter: DFlashDraftModel,
    prompts: int,
    tokens: int,
    budgets: Sequence[int],
    temperatures: Sequence[float],
    verifiers: Sequence[str],
    repeats: int,
    stop=None,
) -> dict:
    """What `measure` returns, from the rounds of `prompts` prompts a suite."""
    settings = [  # at T = 0 all verifiers walk along the argmax
        (budget, temperature, verifier)
        for budget in budgets
        for temperature in temperatures
        for verifier in (verifiers if temperature > 0 else verifiers[:1])
    ]
    todo = prompt_ids(target, prompts)
    result: dict = {"settings": {}, "bars": []}
    with tqdm(total=len(settings) * len(todo), desc="head", unit="answer") as bars:
        for budget, temperature, verifier in settings:
            rounds = []
            for seed, (_, _, ids) in enumerate(todo):
                how = {"budget": budget, "temperature": temperature, "verifier": verifier, "seed": seed}
                answer = speculate(target, drafter, ids, max_new_tokens=tokens, stop=stop, **how)
                rounds += replay(target, ids, answer, temperature, verifier, repeats)
                bars.update()
            own = summary(rounds)
            name = f"B = {budget}, T = {temperature:g}" + (f", {verifier}" if temperature > 0 else "")
            result["settings"][name] = own
            result["bars"].append(told(f"share of pass and verdict saved by the deferred head, {name}", own["saved"]))
    return result


def replay(target: Target, ids: torch.Tensor, answer, temperature: float, verifier: str, repeats: int) -> list[dict]:
    """Of every round of `answer`: median seconds both ways, the rows that were made, the tree's nodes."""
    longest = max((len(r.tree) for r in answer.rounds), default=0)
    cache = target.new_cache(len(ids) + len(answer.tokens) + sum(r.length for r in answer.rounds) + longest)
    target.prefill(cache, ids)
    kept = []
    for place, round_ in enumerate(answer.rounds):
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        made = 0
        for repeat in range(repeats + (place == 0)):
            for way in rotated(WAYS, repeat + place):
                start = time.perf_counter()
                rows = judged(target, cache, round_.tree, temperature, verifier, way)
                seconds[way].append(time.perf_counter() - start)
                made = len(rows.made) if way == "deferred" else made
        if place:  # the first round warms up
            times = {way: median(some) for way, some in seconds.items()}
            kept.append({"seconds": times, "made": made, "nodes": len(round_.tree)})
        cache.commit(round_.path)
    return kept


def judged(target: Target, cache, tree: DraftTree, temperature: float, verifier: str, way: str) -> DeferredRows:
    """The rows of `tree` after one pass and one verdict: all made at once, or those that were asked for."""
    generator = torch.Generator(device=target.device).manual_seed(0)
    hidden, _ = target.pass_tree(cache, tree)
    rows = DeferredRows(tree, hidden, target.vocab_size, lambda states, _: target.logits(states))
    VERIFIERS[verifier](tree, rows.all() if way == "all rows" else rows, temperature, generator)
    return rows


def summary(rounds: Sequence[dict]) -> dict:
    """Mean milliseconds both ways, mean rows made and nodes; the share saved, its bootstrap interval over rounds."""
    seconds = {way: np.array([r["seconds"][way] for r in rounds]) for way in WAYS}
    draws = np.random.default_rng(0).integers(len(rounds), size=(2000, len(rounds)))
    shares = 1 - seconds["deferred"][draws].sum(1) / seconds["all rows"][draws].sum(1)
    return {
        "rounds": len(rounds),
        "ms": {way: 1e3 * float(values.mean()) for way, values in seconds.items()},
        "rows_made": float(np.mean([r["made"] for r in rounds])),
        "nodes": float(np.mean([r["nodes"] for r in rounds])),
        "saved": {
            "value": float(1 - seconds["deferred"].sum() / seconds["all rows"].sum()),
            "interval": [float(q) for q in np.quantile(shares, [0.025, 0.975])],
        },
    }
