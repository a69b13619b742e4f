"""Time of the best-first builder on the CPU beside the plain heap of public code, interleaved in one process.

    python -m benchmarks.builder [--repeats 60]

Both start from the drafter's log-probabilities and end with tokens, parents, depths, visibility and child maps. Prints
one JSON line per shape: median microseconds of both and the median of the ratios of neighbouring calls (below 1:
ours is faster).
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence

import torch

from benchmarks.common import told
from tests.trees.tree_reference import ddtree_by_heap
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


def measure(quick: bool = False) -> dict:
    """Median microseconds of both builders by drafter's shape and budget, the median ratio and its quartiles."""
    return compare(SHAPES if not quick else {"smollm2": SHAPES["smollm2"]}, repeats=12 if quick else 60)


def compare(shapes: dict[str, tuple[int, int]], repeats: int, budgets: Sequence[int] = BUDGETS) -> dict:
    """What `measure` returns, on one thread, for `shapes` of (draft rows, vocabulary)."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    lines = []
    for name, (depths, vocabulary) in shapes.items():
        rows = [drafter_like(depths, vocabulary, seed) for seed in range(4)]
        for budget in budgets:
            pairs = []
            for i in range(repeats):
                pair = [0.0, 0.0]
                for side in (0, 1) if i % 2 else (1, 0):
                    block = rows[i // 2 % len(rows)].clone()  # as in decoding: the rows have just been written
                    pair[side] = timed(ddtree_by_heap, block, budget, 0) if side else timed(ours, block, budget)
                pairs.append(pair)
            pairs = pairs[len(rows) :]
            mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
            low, ratio, high = statistics.quantiles((a / b for a, b in pairs), n=4)
            lines.append({"shape": name, "budget": budget, "ours_us": mine, "heap_us": theirs,
                          "ratio": {"value": ratio, "interval": [low, high]}})  # fmt: skip
    torch.set_num_threads(threads)
    bars = [
        told(f"time of the builder over public code's heap, {x['shape']}, B = {x['budget']} (quartiles)", x["ratio"])
        for x in lines
    ]
    return {"shapes": lines, "bars": bars}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60)
    for line in compare(SHAPES, parser.parse_args().repeats)["shapes"]:
        print(json.dumps(line))


if __name__ == "__main__":
    main()
