"""The shapes of real draft trees: parents, and the target's probability of every edge, without tokens or rows.

    python -m benchmarks.tree_shapes    # makes benchmarks/tree_shapes.json anew with the laptop target

The trees are those of the shipped base drafter at B = 128, three rounds of one prompt of each suite, decoded and judged
at T = 0.6. In builder order, so the first n + 1 nodes are the tree of budget n.
"""

import json
import math
from pathlib import Path

import torch

FILE = Path(__file__).with_suffix(".json")


def shapes(budget: int) -> list[tuple[list[int], list[float]]]:
    """Parents [n + 1] and edge probabilities (1 at the root) of each recorded tree's first `budget` non-root nodes."""
    trees = json.loads(FILE.read_text(encoding="utf-8"))
    return [(tree["parents"][: budget + 1], tree["edges"][: budget + 1]) for tree in trees]


def rows_of(parents: list[int], edges: list[float], vocabulary: int, seed: int) -> tuple[list[int], torch.Tensor]:
    """Tokens and float32 logits [N, vocabulary] that at temperature 1 give a tree of this shape its edges' chances."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randperm(vocabulary, generator=generator)[: len(parents)].tolist()
    logits = torch.randn(len(parents), vocabulary, generator=generator) * 2
    for node in range(len(parents)):
        below = [child for child, parent in enumerate(parents) if parent == node]
        names = torch.tensor([tokens[child] for child in below], dtype=torch.long)
        logits[node, names] = -math.inf
        rest = max(1 - sum(edges[child] for child in below), 1e-4)
        shares = torch.tensor([max(edges[child], 1e-9) / rest for child in below])
        logits[node, names] = logits[node].logsumexp(-1) + shares.log()
    return tokens, logits


def record() -> None:
    from tevlib.decoding.checkpoint import load_drafter
    from tevlib.decoding.decode import speculate
    from tevlib.decoding.load import load_target
    from tevlib.sources.prompts import SUITES, chat_ids, load_prompts

    target = load_target()
    drafter = load_drafter("data/drafters/smollm2-135m-base", target)
    trees = []
    for suite in SUITES:
        ids = chat_ids(target.tokenizer, [{"role": "user", "content": load_prompts(suite, 1)[0].turns[0]}])
        found = speculate(target, drafter, ids, budget=128, temperature=0.6, max_new_tokens=24, seed=0, stop=()).rounds
        for r in found[1:4]:
            parents = [r.tree.parent(node) for node in range(len(r.tree))]
            edges = [1.0] + [float(r.P[v] / max(float(r.P[parents[v]]), 1e-30)) for v in range(1, len(parents))]
            trees.append({"parents": parents, "edges": [float(f"{min(edge, 1.0):.3g}") for edge in edges]})
    lines = ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in trees)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    record()
