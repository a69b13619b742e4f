"""Draft trees in training: grown from the current drafter at some anchors, scored by the frozen target.

The builder is the one of inference, the law is the exit law of inference; neither gets a gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tevlib.decoding.draft_vocabulary import draft_log_probs
from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.packed import Keys, packed_pass
from tevlib.decoding.target import Target
from tevlib.training.batch import Batch
from tevlib.trees.builders import best_first_trees
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import ExitLaw, exit_laws


@dataclass(frozen=True)
class Grown:
    """A draft tree whose root is anchor `column` of sequence `row`, and the target's flow through it, on the CPU.

    `logits [N, V]` are the target's at the nodes. Rows that no one reads are zeros: those of leaves, unless every row
    was asked for.
    """

    row: int
    column: int
    law: ExitLaw
    logits: Tensor

    @property
    def tree(self) -> DraftTree:
        return self.law.tree


@torch.no_grad()
def grow(
    target: Target,
    drafter: DFlashDraftModel,
    batch: Batch,
    anchors: Tensor,
    kept: Tensor,
    *,
    budget: int,
    temperature: float,
    every_row: bool = False,
    keys: Keys | None = None,
) -> list[Grown]:
    """A best-first tree of `budget` nodes at each of `anchors [B, A]` that is `kept [B, A]`, all scored in one pass.

    `keys`: the sequences' own, from `packed.read_sequences`, so that only nodes are passed.
    """
    blocks = block_embeddings(target, drafter, batch.ids.gather(1, anchors))
    states = drafter(batch.features, blocks, anchors)[:, :, 1:][kept]
    log_probs = draft_log_probs(target, drafter, states)
    roots = batch.ids.gather(1, anchors)[kept].tolist()
    grown = zip(anchors[kept].tolist(), best_first_trees(log_probs, budget, roots), strict=True)
    trees = {(b, a): pair for (b, a), pair in zip(kept.nonzero().tolist(), grown, strict=True)}
    return score(target, batch, trees, temperature=temperature, every_row=every_row, keys=keys)


@torch.no_grad()
def score(
    target: Target,
    batch: Batch,
    trees: dict[tuple[int, int], tuple[int, DraftTree]],
    *,
    temperature: float,
    every_row: bool = False,
    keys: Keys | None = None,
) -> list[Grown]:
    """`Grown` trees from `(row, column): (anchor, tree)`, in order of their places."""
    places = sorted(trees)
    by_row: list[list[tuple[int, DraftTree]]] = [[] for _ in range(len(batch.ids))]
    for place in places:
        by_row[place[0]].append(trees[place])
    states = packed_pass(target, batch.ids, batch.lengths, by_row, keys)
    if not states:
        return []
    ordered = [trees[place][1] for place in places]
    sizes = [len(tree) for tree in ordered]
    starts = list(accumulate(sizes, initial=0))
    inner = [start + v for start, t in zip(starts, ordered, strict=False) for v in t.internal]
    read = torch.tensor(range(starts[-1]) if every_row else inner, dtype=torch.long).to(target.device)
    logits = torch.zeros(starts[-1], target.vocab_size, device=target.device)
    logits[read] = target.logits(torch.cat(states)[read])
    laws = exit_laws(ordered, logits, temperature)
    return [Grown(*place, law, own) for place, law, own in zip(places, laws, logits.split(sizes), strict=True)]
