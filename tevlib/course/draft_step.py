"""One gradient step on a drafter's rows, and the tree that the builder then makes: training in miniature."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tevlib.course.toy import Toy


def draft_step(toy: Toy, weights: Tensor, step: float) -> Toy:
    """`toy` with its draft rows after one gradient step of size `step` on - sum_v weights(v) log q_depth(v)(x_v).

    That is the sum of Eq. 14 with the toy's tree held fixed; the logits are the free parameters, so the gradient of a
    row is known (Eq. 67): + the weights at their tokens, - q times the row's weight. The root has no incoming token
    and its weight is not used. The others are rescaled to the tree's total exit weight outside the root, as the paper
    does for its prefix-weighted control, so that schemes differ in where they spend and not in how much.

    Raises ValueError for weights that are not one per node, negative, not finite, or all zero outside the root.
    """
    tree = toy.tree
    weights = torch.as_tensor(weights, dtype=torch.float64)
    if weights.shape != (len(tree),):
        raise ValueError(f"weights must be {len(tree)} numbers, one per node; got shape {tuple(weights.shape)}")
    if not bool((weights.isfinite() & (weights >= 0)).all()) or not float(weights[1:].sum()) > 0:
        raise ValueError(f"weights must be >= 0, finite, and not all 0 outside the root; got {weights.tolist()}")
    spent = weights[1:] * (toy.law.w[1:].sum() / weights[1:].sum())
    depth = tree.depths[1:] - 1
    at_tokens = torch.zeros_like(toy.draft).index_put((depth, tree.tokens[1:]), spent, accumulate=True)
    gradient = at_tokens - at_tokens.sum(-1, keepdim=True) * toy.draft
    return replace(toy, draft=(toy.draft.log() + step * gradient).softmax(-1))
