"""Rounds that the drafter plays along a text of the target's: where it drafts, what is right, what corrects it.

A text that the target wrote decides each round: a chain of drafts is accepted up to the first token that differs, and
the text's own token corrects it. At temperature 0 these are exactly the rounds of greedy chain decoding; for a sampled
text, those of predraw. So no target pass is needed to find them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.target import Target
from tevlib.training.batch import Batch
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.sampling import argmax_lowest


@dataclass(frozen=True)
class PlayedRound:
    """A round whose root is the token at `anchor`: its `drafted` chain, how many were `accepted`, the `correction`."""

    anchor: int
    root: int
    drafted: list[int]
    accepted: int
    correction: int

    @property
    def chain(self) -> DraftTree:
        return DraftTree([self.root, *self.drafted], list(range(-1, len(self.drafted))))


@torch.no_grad()
def replay(
    target: Target, drafter: DFlashDraftModel, batch: Batch, starts: list[int], most: int | None = None
) -> list[list[PlayedRound]]:
    """The rounds of each text of `batch` from position `starts[b]` on; at most `most` of each.

    A round that the end of the text cuts short (all its drafts right, nothing behind them) is left out.
    """
    texts = [ids[:length] for ids, length in zip(batch.ids.tolist(), batch.lengths, strict=True)]
    context = drafter.read_context(batch.features)
    rounds: list[list[PlayedRound]] = [[] for _ in texts]
    anchors = list(starts)
    going = [b for b, text in enumerate(texts) if anchors[b] < len(text) - 1 and most != 0]
    while going:
        at = torch.tensor([[anchors[b]] for b in going], device=target.device)
        tokens = torch.tensor([[texts[b][anchors[b]]] for b in going], device=target.device)
        known = context if len(going) == len(texts) else [(k[going], v[going]) for k, v in context]
        rows = drafter.draft_blocks(known, block_embeddings(target, drafter, tokens), at)[:, 0, 1:].to(target.dtype)
        for b, drafted in zip(list(going), argmax_lowest(target.logits(rows)).tolist(), strict=True):
            follows = texts[b][anchors[b] + 1 :]
            accepted = next((i for i, (x, y) in enumerate(zip(drafted, follows, strict=False)) if x != y), None)
            if accepted is None:
                accepted = min(len(drafted), len(follows))
            if accepted < len(follows):
                rounds[b].append(PlayedRound(anchors[b], texts[b][anchors[b]], drafted, accepted, follows[accepted]))
            anchors[b] += accepted + 1
            if anchors[b] >= len(texts[b]) - 1 or len(rounds[b]) == most:
                going.remove(b)
    return rounds
