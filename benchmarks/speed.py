"""Tokens a second: plain decoding beside transformers' `generate`, trees of fixed budgets, and the automatic one.

    python -m benchmarks --only speed

Every prompt is answered by plain decoding and then, in an order that rotates from prompt to prompt, by all other
methods, trees on plain decoding's own text (`benchmarks.same_text`): the texts that two methods draw for themselves
differ in how easily they are drafted by more than the methods do. A speed-up is seconds per token of our plain decoding
over seconds per token of the method, clocks as in `tevlib.decoding.decode`; against `generate`, which has one clock for
all, the prefill is counted on both sides. Budgets are held against each other by what their trees are expected to give,
the sum of 1 + C_p.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from tqdm.auto import tqdm

from benchmarks.common import bar, models, prompt_ids, rotated, told, with_interval
from benchmarks.same_text import SameText
from tevlib.decoding.budget import AutoBudget
from tevlib.decoding.decode import auto_budget, autoregressive, speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.generation import Generation
from tevlib.decoding.target import Target

FIXED = (4, 6, 8, 12, 16, 32)
FULL = {"temperatures": {0.0: 4, 0.6: 2, 1.0: 2}, "tokens": 128, "budgets": FIXED}  # temperature: prompts a suite
QUICK = {"temperatures": {0.0: 1}, "tokens": 32, "budgets": (8, 16)}
PLAIN, GENERATE, AUTO = "plain", "generate", "auto"


def measure(quick: bool = False) -> dict:
    """Rows of every answer, speed-ups by temperature, suite and method with intervals, and the bars."""
    return compare(*models(), **(QUICK if quick else FULL))


def compare(
    target: Target,
    drafter: DFlashDraftModel,
    temperatures: dict[float, int],
    tokens: int,
    budgets: Sequence[int],
    stop=None,
) -> dict:
    """What `measure` returns, for `temperatures` (each with its prompts a suite) and fixed `budgets`."""
    rows = []
    with tqdm(total=4 * sum(temperatures.values()), desc="speed", unit="prompt") as progress:
        for temperature, n in temperatures.items():
            others = [*map(str, budgets), AUTO] + ([GENERATE] if temperature == 0 else [])
            prompts = prompt_ids(target, n)
            _answers(others, target, drafter, prompts[0][2], temperature, 12, 0)
            for place, (suite, name, ids) in enumerate(prompts):
                answers = _answers(rotated(others, place), target, drafter, ids, temperature, tokens, place)
                where = {"temperature": temperature, "suite": suite, "prompt": name}
                rows += [where | {"method": method} | answer for method, answer in answers.items()]
                progress.update()
    by_temperature = {t: [row for row in rows if row["temperature"] == t] for t in temperatures}
    methods = [*map(str, budgets), AUTO]
    speedups = {
        t: {
            method: with_interval(lambda some, m=method: mean_ratio(some, PLAIN, m), own, within="suite")
            | {"suites": by_suite(own, PLAIN, method), "tokens_per_s": tokens_a_second(own, method)}
            | {"nodes": _mean(row["nodes"] for row in own if row["method"] == method)}
            for method in methods
        }
        for t, own in by_temperature.items()
    }
    return {
        "rows": rows,
        "plain_tokens_per_s": {t: tokens_a_second(own, PLAIN) for t, own in by_temperature.items()},
        "speedups": speedups,
        "bars": _bars(by_temperature, speedups, list(map(str, budgets))),
    }


def _bars(by_temperature: dict[float, list[dict]], speedups: dict, fixed: list[str]) -> list[dict]:
    lines = []
    for t, own in by_temperature.items():
        best = max([*fixed, AUTO], key=lambda method: speedups[t][method]["value"])
        got = {key: speedups[t][best][key] for key in ("value", "interval")}
        what = f"speed-up over plain decoding, T = {t:g}, mean of four suites ({_named(best)})"
        lines.append(bar(what, got, at_least=1.6) if t == 0 else told(what, got))
        rival = min(fixed, key=lambda method: mean_ratio(own, method, AUTO, "expected"))
        got = with_interval(lambda some, r=rival: mean_ratio(some, r, AUTO, "expected"), own, within="suite")
        lines.append(bar(f"auto over the best fixed budget ({_named(rival)}), T = {t:g}", got, at_least=0.97))
        if any(row["method"] == GENERATE for row in own):
            got = with_interval(lambda some: mean_ratio(some, GENERATE, PLAIN, "whole"), own, within="suite")
            lines.append(bar("plain decoding over transformers' generate, prefill included", got, at_least=1))
    return lines


def _named(method: str) -> str:
    return method if method == AUTO else f"B = {method}"


def _answers(
    others: Sequence[str], target, drafter, ids: torch.Tensor, temperature: float, tokens: int, seed: int
) -> dict[str, dict]:
    """By method, plain decoding and then `others`: tokens and seconds of an answer, `whole_s` with the prefill.

    Of trees also `nodes` a round and the `expected` tokens of all.
    """
    how = {"temperature": temperature, "max_new_tokens": tokens, "seed": seed}
    plain = autoregressive(target, ids, **how)
    answers = {PLAIN: _timed(plain)}
    for method in others:
        if method == GENERATE:
            answers[method] = _generate(target, ids, tokens)
            continue
        budget = _automatic(target, drafter, ids, temperature) if method == AUTO else int(method)
        tree = speculate(target, drafter, ids, budget=budget, verifier=SameText(plain.tokens), **how)
        answers[method] = _timed(tree)
    return answers


def _automatic(target, drafter, ids: torch.Tensor, temperature: float) -> AutoBudget:
    """What `speculate` makes of "auto" where TEV alone is the verifier."""
    how = {"builder": "best_first", "verifier": "tev", "temperature": temperature, "top_p": 1.0, "top_k": 0}
    return auto_budget(target, drafter, ids, **how)


def _timed(answer: Generation) -> dict:
    return {
        "tokens": len(answer.tokens),
        "decode_s": answer.decode_s,
        "whole_s": answer.prefill_s + answer.decode_s,
        "rounds": len(answer.rounds),
        "nodes": _mean(len(r.tree) - 1 for r in answer.rounds),
        "expected": sum(r.ceiling for r in answer.rounds),
    }


def _generate(target: Target, ids: torch.Tensor, tokens: int) -> dict:
    """The same answer by `generate` of the same model object, its own cache, greedy."""
    batch = ids[None].to(target.device)
    start = time.perf_counter()
    with torch.inference_mode():
        out = target.model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            do_sample=False,
            max_new_tokens=tokens,
            eos_token_id=sorted(target.stop_ids),
            pad_token_id=min(target.stop_ids),
        )
    new = out[0, len(ids) :].tolist()
    return {"tokens": len(new), "decode_s": None, "whole_s": time.perf_counter() - start, "rounds": 0, "nodes": None}


def mean_ratio(rows: Sequence[dict], slow: str, fast: str, of: str = "decode") -> float:
    """Mean over suites of seconds per token of the method `slow` over those of `fast`; `of` as in `per_token`."""
    return _mean(by_suite(rows, slow, fast, of).values())


def by_suite(rows: Sequence[dict], slow: str, fast: str, of: str = "decode") -> dict[str, float]:
    """That ratio suite by suite."""
    suites = dict.fromkeys(row["suite"] for row in rows)
    return {
        suite: per_token([row for row in rows if row["suite"] == suite], slow, of)
        / per_token([row for row in rows if row["suite"] == suite], fast, of)
        for suite in suites
    }


def per_token(rows: Sequence[dict], method: str, of: str = "decode") -> float:
    """Seconds per token of a method over all its answers in `rows`.

    of: "decode" leaves out the prefill and the first token, "whole" leaves out nothing, "expected" is decoding per
    token that the rounds' trees were expected to give.
    """
    own = [row for row in rows if row["method"] == method]
    seconds = sum(row["whole_s" if of == "whole" else "decode_s"] for row in own)
    if of == "expected":
        return seconds / sum(row["expected"] for row in own)
    return seconds / sum(row["tokens"] - (0 if of == "whole" else 1) for row in own)


def tokens_a_second(rows: Sequence[dict], method: str) -> float:
    return 1 / per_token(rows, method)


def _mean(values) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None
