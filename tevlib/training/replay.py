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
from tevlib.training.rollouts import Rollout
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
    target: Target, drafter: DFlashDraftModel, rollout: Rollout, *, start: int | None = None, most: int | None = None
) -> list[PlayedRound]:
    """The rounds from the response's first token on, or from position `start`; at most `most` of them.

    A round that the end of the text cuts short (all its drafts right, nothing behind them) is left out.
    """
    text = rollout.ids.tolist()
    anchor = rollout.prompt_length if start is None else start
    context = drafter.new_cache(len(text) + drafter.block_size)
    rounds: list[PlayedRound] = []
    while anchor < len(text) - 1 and (most is None or len(rounds) < most):
        drafter.append_context(context, rollout.features[context.length : anchor].to(target.device))
        block = block_embeddings(target, drafter, torch.tensor(text[anchor], device=target.device))
        rows = drafter.draft(context, block).to(target.dtype)
        drafted = argmax_lowest(target.logits(rows)).tolist()
        follows = text[anchor + 1 :]
        accepted = next((i for i, (a, b) in enumerate(zip(drafted, follows, strict=False)) if a != b), None)
        if accepted is None:
            accepted = min(len(drafted), len(follows))
            if accepted == len(follows):
                break
        rounds.append(PlayedRound(anchor, text[anchor], drafted, accepted, follows[accepted]))
        anchor += accepted + 1
    return rounds
