"""Time of the best-first builder on the CPU beside the plain heap of public code, interleaved in one process.

    OMP_NUM_THREADS=1 python benchmarks/builder.py [--repeats 60]

Both start from the drafter's log-probabilities and end with tokens, parents, depths, visibility and child maps. Prints
one JSON line per shape: median microseconds of both and the median of the ratios of neighbouring calls (below 1:
ours is faster).
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "trees"))

from tree_reference import ddtree_by_heap

from tevlib.trees.builders import best_first_tree

SHAPES = {"smollm2": (7, 49152), "qwen3": (15, 151936)}  # draft rows and vocabulary of the two drafters
BUDGETS = (32, 64, 256)


def ours(log_probs, budget):
    tree = best_first_tree(log_probs, budget, 0)
    return tree.tokens, tree.parents, tree.depths, tree.ancestors, tree.child(0, 0)


def drafter_like(depths, vocabulary, seed):
    """Log-probabilities [depths, vocabulary] by Zipf's law, flatter with depth: the best token holds 0.38 to 0.19."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.linspace(1.5, 1.25, depths)[:, None]
    ranks = torch.stack([torch.randperm(vocabulary, generator=generator) for _ in range(depths)])
    return (-exponent * (1 + ranks.float()).log()).log_softmax(-1)


def timed(call, *arguments):
    start = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - start) * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    for name, (depths, vocabulary) in SHAPES.items():
        rows = [drafter_like(depths, vocabulary, seed) for seed in range(4)]
        for budget in BUDGETS:
            pairs = []
            for i in range(repeats):
                block = rows[i % len(rows)]
                pair = timed(ours, block, budget), timed(ddtree_by_heap, block, budget, 0)
                pairs.append(pair)
            mine, theirs = (statistics.median(column) for column in zip(*pairs[len(rows) :], strict=True))
            ratio = statistics.median(a / b for a, b in pairs[len(rows) :])
            print(
                json.dumps(
                    {"shape": name, "budget": budget, "ours_us": mine, "heap_us": theirs, "ratio": round(ratio, 3)}
                )
            )


if __name__ == "__main__":
    main()
