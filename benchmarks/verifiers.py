"""Time of every verifier form, decision and commit, on the same replayed rounds of real decoding, in turns.

    python -m benchmarks.verifiers [--quick] [--json PATH]

Rounds of the offline target on prompts of the four suites, at budget 128; a smaller budget's tree is the prefix, as
the builder would have made it. Rows as they are (49,152 tokens) and widened to 151,936, with a cache of each size.
Ratios are of total times, with 95% intervals over rounds, and the 10% to 90% range of single rounds beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import DRAFTER, bar, models, told, with_interval
from tevlib.sources.assets import OFFLINE_TARGET
from tevlib.sources.prompts import SUITES
from tevlib.suite.cells import VerifierCell
from tevlib.suite.verifier_cell import QWEN3_4B, SLOW, TIMED, collect_rounds, stage_cache, time_rounds, widened
from tevlib.trees.draft_tree import DraftTree

FULL = {"suites": SUITES, "rounds": 2, "tokens": 16, "repeats": 3, "budgets": (32, 64, 128)}
QUICK = {"suites": SUITES[2:3], "rounds": 2, "tokens": 12, "repeats": 1, "budgets": (32,)}
SHAPES = ("own", "qwen3_4b")
TEMPERATURES = (0.6, 1.0)
MOST = {32: 0.5, 64: 0.4, 128: 0.3}  # of batched predraw's time, for TEV's parallel form
PAIRS = (("tev_parallel", "predraw"), ("tev_descent", "predraw_lazy"), ("tev_descent", "predraw"),
         ("tev_descent", "sequential_residual"), ("predraw_lazy", "predraw"), ("tev_parallel", SLOW))  # fmt: skip


def measure(quick: bool = False) -> dict:
    """Median milliseconds of every form by shape, temperature and budget, ratios with their spread, and the bars."""
    form = QUICK if quick else FULL
    target, drafter = models()
    settings = []
    for temperature in TEMPERATURES:
        cell = VerifierCell(
            profile="bench", table="verifiers", target=OFFLINE_TARGET, drafter=DRAFTER, budget=max(form["budgets"]),
            temperature=temperature, suite="gsm8k", prompts=1, rounds=form["rounds"], repeats=form["repeats"],
            max_new_tokens=form["tokens"], dtype="bfloat16", seed=0,
        )  # fmt: skip
        rounds = [
            kept for suite in form["suites"] for kept in collect_rounds(replace(cell, suite=suite), target, drafter)
        ]
        for shape in SHAPES:
            for budget in form["budgets"]:
                here = replace(cell, shape=shape, budget=budget)
                rows = time_rounds([cut(*kept, budget, shape) for kept in rounds], stage_cache(here, target), here)
                settings.append({"shape": shape, "temperature": temperature, "budget": budget} | summary(rows))
    return {"settings": settings, "bars": [line for setting in settings for line in bars(setting)]}


def cut(tree: DraftTree, rows: Tensor, budget: int, shape: str) -> tuple[DraftTree, Tensor]:
    """The round as a budget of `budget` nodes would have had it, with the rows of `shape`."""
    n = min(budget + 1, len(tree))
    kept = rows[:n]
    return tree.prefix(n), widened(kept, QWEN3_4B["vocab_size"], 0) if shape == "qwen3_4b" else kept.clone()


def summary(rows: Sequence[dict]) -> dict:
    """Medians over rounds, and for each of `PAIRS` the ratio of total times with its interval and its range."""
    by_name = {name: {row["round"]: row["ms"] for row in rows if row["verifier"] == name} for name in TIMED}
    ratios = {}
    for one, other in PAIRS:
        both = [row for row in rows if row["round"] in by_name[other] and row["verifier"] in (one, other)]
        single = [by_name[one][i] / by_name[other][i] for i in by_name[other]]
        ratios[f"{one} / {other}"] = with_interval(ratio_of(one, other), both, by="round") | {
            "range": [float(q) for q in np.quantile(single, [0.1, 0.9])]
        }
    trees = {row["round"]: (row["nodes"], row["internal"]) for row in rows}
    return {
        "rounds": len(trees),
        "nodes": float(np.mean([nodes for nodes, _ in trees.values()])),
        "internal": float(np.mean([internal for _, internal in trees.values()])),
        "median_ms": {name: float(np.median(list(times.values()))) for name, times in by_name.items()},
        "ratios": ratios,
    }


def ratio_of(one: str, other: str):
    """The metric: total time of `one` over that of `other`."""

    def metric(rows: Sequence[dict]) -> float:
        total = {name: sum(row["ms"] for row in rows if row["verifier"] == name) for name in (one, other)}
        return total[one] / total[other]

    return metric


def bars(setting: dict) -> list[dict]:
    """The lines of the summary for one shape, temperature and budget."""
    where = f"V = {'49,152' if setting['shape'] == 'own' else '151,936'}, T = {setting['temperature']:g}"
    where += f", B = {setting['budget']}"
    got = {name: {key: ratio[key] for key in ("value", "interval")} for name, ratio in setting["ratios"].items()}
    lines = [
        bar(f"TEV parallel / predraw, {where}", got["tev_parallel / predraw"], at_most=MOST[setting["budget"]]),
        bar(f"TEV descent / lazy predraw, {where}", got["tev_descent / predraw_lazy"], at_most=0.8),
        told(f"TEV descent / sequential residual, {where}", got["tev_descent / sequential_residual"]),
    ]
    if setting["budget"] == 64:
        lines.append(bar(f"TEV parallel / reference predraw, {where}", got[f"tev_parallel / {SLOW}"], at_most=0.25))
    return lines


def table(settings: Sequence[dict]) -> str:
    """Medians and ratios as lines of text."""
    lines = []
    for setting in settings:
        lines.append(
            f"{setting['shape']}, T = {setting['temperature']:g}, B = {setting['budget']}: {setting['rounds']} rounds, "
            f"{setting['internal']:.1f} of {setting['nodes']:.1f} nodes with children"
        )
        lines.append("  ms " + ", ".join(f"{name} {ms:.3f}" for name, ms in setting["median_ms"].items()))
        for name, ratio in setting["ratios"].items():
            interval = "one round" if ratio["interval"] is None else "{:.2f} to {:.2f}".format(*ratio["interval"])
            spread = "{:.2f} to {:.2f}".format(*ratio["range"])
            lines.append(f"  {name:36} {ratio['value']:.3f} (95% {interval}; rounds {spread})")
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, write the numbers where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifiers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one budget, two rounds: does it run?")
    parser.add_argument("--json", type=Path, help="where to write all numbers")
    chosen = parser.parse_args()
    result = measure(chosen.quick)
    print(f"{torch.get_num_threads()} threads\n{table(result['settings'])}")
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
