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


class DraftVocabulary:
    """`tokens [K]`, ascending ids of `target`, and its head over them alone.

    Raises `ValueError` for no token, ids that do not ascend and ids that are none of the target's.
    """

    def __init__(self, tokens: Tensor, target: Target):
        ids = tokens.to(target.device)
        if ids.dtype not in (torch.int32, torch.int64) or ids.ndim != 1 or not len(ids):
            raise ValueError(f"a draft vocabulary is a vector of token ids, got {tokens.dtype} {tuple(tokens.shape)}")
        ids = ids.long()
        if (ids.diff() <= 0).any() or ids[0] < 0 or ids[-1] >= target.vocab_size:
            raise ValueError(
                f"a draft vocabulary holds ascending token ids from 0 to {target.vocab_size - 1}, each once; "
                f"got ids from {int(ids.min())} to {int(ids.max())}"
            )
        self.tokens, self.size, self.target = ids, target.vocab_size, target
        head = target.head
        self.head = nn.Linear(head.in_features, len(ids), bias=head.bias is not None, device="meta")
        self.head.weight = nn.Parameter(head.weight.detach()[ids], requires_grad=False)
        if head.bias is not None:
            self.head.bias = nn.Parameter(head.bias.detach()[ids], requires_grad=False)
        if isinstance(head, PackedLinear):
            self.head = PackedLinear(self.head)

    def __len__(self) -> int:
        return len(self.tokens)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Draft log-probabilities `[..., V]` (float32) among `tokens`, of states `[..., H]`; -inf at any other token.

        A row whose states hold NaN is NaN throughout.
        """
        among = torch.log_softmax(self.target.logits(hidden, self.head), dim=-1)
        elsewhere = among[..., :1].clamp(max=-torch.inf)  # NaN stays NaN
        return elsewhere.expand(*among.shape[:-1], self.size).clone().index_copy_(-1, self.tokens, among)


def draft_log_probs(target: Target, drafter: DFlashDraftModel, hidden: Tensor) -> Tensor:
    """Draft log-probabilities `[..., V]` (float32) of the drafter's final states `[..., H]`, one marginal per row."""
    hidden = hidden.to(target.dtype)
    if drafter.vocabulary is not None:
        return drafter.vocabulary.log_probs(hidden)
    return torch.log_softmax(target.logits(hidden), dim=-1)
