"""The tokens that a drafter proposes: the target's whole vocabulary, or the ones that its text is made of.

A drafter proposes likely tokens, and few of a vocabulary are ever likely: a rare one that is not proposed costs an
acceptance now and then, while the head over all of them is a large part of a draft. What is proposed decides how much
is accepted and never what comes out: verification knows nothing of it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.prepacked import PackedLinear
from tevlib.decoding.target import Target
from tevlib.trees.draft_tree import DraftTree


class WholeVocabulary:
    """Every token of `target`."""

    def __init__(self, target: Target):
        self.target = target

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Draft log-probabilities `[..., K]` (float32) of the tokens proposed, from final states `[..., H]`."""
        return torch.log_softmax(self.target.logits(hidden.to(self.target.dtype)), dim=-1)

    def widened(self, log_probs: Tensor) -> Tensor:
        """`log_probs [..., K]` of the tokens proposed over the whole vocabulary, `[..., V]`."""
        return log_probs

    def named(self, tree: DraftTree) -> DraftTree:
        """A tree that was built on the `log_probs`, with the tokens' ids."""
        return tree


class DraftVocabulary(WholeVocabulary):
    """`tokens [K]`, ascending ids of `target`, and its head over them alone.

    Raises `ValueError` for no token, ids that do not ascend and ids that are none of the target's.
    """

    def __init__(self, tokens: Tensor, target: Target):
        super().__init__(target)
        ids = tokens.to(target.device)
        if ids.dtype not in (torch.int32, torch.int64) or ids.ndim != 1 or not len(ids):
            raise ValueError(f"a draft vocabulary is a vector of token ids, got {tokens.dtype} {tuple(tokens.shape)}")
        self.tokens = ids = ids.long()
        if (ids.diff() <= 0).any() or ids[0] < 0 or ids[-1] >= target.vocab_size:
            raise ValueError(
                f"a draft vocabulary holds ascending token ids from 0 to {target.vocab_size - 1}, each once; "
                f"got ids from {int(ids.min())} to {int(ids.max())}"
            )
        whole = target.head
        self.head = nn.Linear(whole.in_features, len(ids), bias=whole.bias is not None, device="meta")
        for name, values in whole.named_parameters():
            setattr(self.head, name, nn.Parameter(values.detach()[ids], requires_grad=False))
        if isinstance(whole, PackedLinear):
            self.head = PackedLinear(self.head)

    def __len__(self) -> int:
        return len(self.tokens)

    def log_probs(self, hidden: Tensor) -> Tensor:
        return torch.log_softmax(self.target.logits(hidden.to(self.target.dtype), self.head), dim=-1)

    def widened(self, log_probs: Tensor) -> Tensor:
        elsewhere = log_probs[..., :1].clamp(max=-torch.inf)  # NaN stays NaN
        wide = elsewhere.expand(*log_probs.shape[:-1], self.target.vocab_size).clone()
        return wide.index_copy_(-1, self.tokens, log_probs)

    def named(self, tree: DraftTree) -> DraftTree:
        drafts = self.tokens[tree.tokens[1:].to(self.tokens.device)].to(tree.device)
        return DraftTree(torch.cat([tree.tokens[:1], drafts]), tree.parents, tree.scores)


def proposed_by(drafter: DFlashDraftModel, target: Target) -> WholeVocabulary:
    """What `drafter` proposes: its own vocabulary, or all of the target's."""
    return drafter.vocabulary or WholeVocabulary(target)


def draft_log_probs(target: Target, drafter: DFlashDraftModel, hidden: Tensor) -> Tensor:
    """Draft log-probabilities `[..., V]` (float32) of the drafter's final states `[..., H]`, one marginal per row.

    -inf at tokens that it does not propose.
    """
    vocabulary = proposed_by(drafter, target)
    return vocabulary.widened(vocabulary.log_probs(hidden))
