"""Recordings without a model: random trees on random logits, hostile labels among them."""

import random

import torch

from tevlib.suite.tree_columns import tree_columns
from tevlib.trees.draft_tree import DraftTree

TEMPERATURES = (0.0, 0.6, 1.0)
VOCABULARY = 40
HOSTILE = {
    3: "</script><script>window.hacked=1</script>",
    4: '"><img src=x onerror="window.hacked=1">',
    5: "\n",
    6: "\u202edesrever",
    7: "&amp;'",
    8: "␣internationalisation-of-everything",
    9: "世界",
    10: "\x00\x1b",
}


def random_tree(nodes: int, seed: int, wide: int = 6, vocabulary: int = VOCABULARY) -> DraftTree:
    """A random tree of `nodes` nodes with distinct siblings and draft scores that fall along paths."""
    rng = random.Random(seed)
    tokens, parents, scores, taken = [rng.randrange(vocabulary)], [-1], [0.0], set()
    while len(tokens) < nodes:
        parent, token = rng.randrange(max(0, len(tokens) - wide), len(tokens)), rng.randrange(vocabulary)
        if (parent, token) not in taken:
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
            scores.append(scores[parent] - rng.uniform(0.05, 2))
    return DraftTree(tokens, parents, torch.tensor(scores))


def random_logits(nodes: int, seed: int, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Peaked random logits `[nodes, vocabulary]` in float64."""
    return 2.5 * torch.randn(nodes, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made_recording(
    nodes=(12, 17), seed: int = 0, temperature: float = 1.0, trees: int = 2, labels=None, wide: int = 6
) -> dict:
    """A recording of one answer with a round for each of `nodes`; every round has `trees` trees on one context."""
    rounds, pieces, start = [], ["start"], 1
    for index, size in enumerate(nodes):
        made = []
        for which in range(trees):
            tree = random_tree(size, seed + 10 * index + which, wide)
            logits = random_logits(size, seed + 100 * index + which)
            logits[tree.parents[1:], tree.tokens[1:]] += 5.5  # a drafter that often is right
            draft = random_logits(12, seed).log_softmax(-1)
            made.append({"name": f"tree {'ABCD'[which]}", **tree_columns(tree, logits, TEMPERATURES, 6, draft)})
        path, parents = [size // 2], made[0]["parents"]
        while path[0]:
            path.insert(0, parents[path[0]])
        bonus = made[0]["missing"][path[-1]][0]
        rounds.append({"start": start, "path": path, "bonus": bonus, "trees": made})
        pieces += [f" word{start + i}" for i in range(len(path))]
        start += len(path)
    answer = {
        "name": "made/0", "prompt": "A prompt\nwith <b>two</b> lines", "temperature": temperature, "verifier": "tev",
        "pieces": pieces, "rounds": rounds,
    }  # fmt: skip
    names = {str(token): f"t{token}" for token in range(VOCABULARY)} | {str(k): v for k, v in (labels or {}).items()}
    return {"format": 1, "target": "made", "temperatures": list(TEMPERATURES), "labels": names, "answers": [answer]}
