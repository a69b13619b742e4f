"""Training objectives as pure functions on final hidden states; nothing here knows an optimiser.

A row is one (anchor, depth) position of a block. The head is large (vocabulary x hidden), so rows go through it in
chunks and their gradient is formed at once: no logits are ever kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_PER_CHUNK = 64  # 64 rows of 49,152 logits stay in a processor's cache

OBJECTIVES = ("base",)  # token loss alone, a drafter from the target's own layers or from another drafter


def check_objective(name: str) -> str:
    """`name`. Raises `ValueError` with the known ones if it is none of them."""
    if name not in OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}: choose one of {', '.join(OBJECTIVES)}")
    return name


def decay_weights(depths: int, gamma: float | None, device: torch.device | str = "cpu") -> Tensor:
    """Weights `[H]` of depths 1..H: exp(-(k - 1) / gamma); all ones for `gamma=None`."""
    k = torch.arange(depths, device=device, dtype=torch.float32)
    return torch.ones_like(k) if gamma is None else torch.exp(-k / gamma)


def sample_anchors(supervised: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Anchor positions `[B, A]` (sorted, without replacement) and which of them are real `[B, A]` boolean.

    `supervised [B, S]` marks the tokens that the target wrote. An anchor t needs t and t + 1 both supervised. A is
    `n` or the largest count of valid positions in the batch, if that is smaller; short rows are padded with False.
    """
    valid = supervised[:, :-1] & supervised[:, 1:]
    width = min(n, int(valid.sum(dim=1).max()))
    keys = torch.rand(valid.shape, generator=generator).masked_fill(~valid.cpu(), 2.0)
    picked = keys.argsort(dim=1)[:, :width]
    kept = torch.gather(valid, 1, picked.to(valid.device))
    order = torch.where(kept, picked.to(valid.device), valid.shape[1]).argsort(dim=1)
    return picked.to(valid.device).gather(1, order), kept.gather(1, order)


def token_targets(
    ids: Tensor, supervised: Tensor, anchors: Tensor, kept: Tensor, depths: int, gamma: float | None
) -> tuple[Tensor, Tensor]:
    """Labels and weights `[B, A, H]` of the token loss: row k of anchor a is scored on the token *at* a + k.

    A row weighs exp(-(k - 1) / gamma), and nothing where a + k is outside the sequence or not written by the target.
    """
    positions = anchors[..., None] + torch.arange(1, depths + 1, device=ids.device)
    inside = positions < ids.shape[1]
    flat = positions.clamp(max=ids.shape[1] - 1).flatten(1)
    labels = ids.gather(1, flat).view_as(positions)
    weighs = supervised.gather(1, flat).view_as(positions) & inside & kept[..., None]
    return labels, weighs * decay_weights(depths, gamma, ids.device)


def token_loss(hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Numerator sum(w * CE) and denominator sum(w) of L_tok, the dense token loss of Eq. 15.

    `hidden [..., H]` are final states of rows, `head [V, H]`, `labels [...]` and `weights [...]` per row. They are
    returned apart because the mean is over all ranks and accumulation steps together. Gradient: hidden only.
    """
    rows = weights.flatten() > 0
    flat = hidden.flatten(0, -2)[rows]
    return HeadNLL.apply(flat, head, labels.flatten()[rows], weights.flatten()[rows]), weights.sum()


class HeadNLL(torch.autograd.Function):
    """sum_r w_r * (logsumexp(h_r W^T) - h_r . W[label_r]), chunked; softmax in float32, the head frozen."""

    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        gradient = torch.empty_like(hidden)
        total = hidden.new_zeros((), dtype=torch.promote_types(torch.float32, hidden.dtype))
        for start in range(0, len(hidden), ROWS_PER_CHUNK):
            part = slice(start, start + ROWS_PER_CHUNK)
            logits = F.linear(hidden[part].to(head.dtype), head)
            label, weight = labels[part, None], weights[part, None].to(total.dtype)
            slope = torch.softmax(logits, dim=1, dtype=total.dtype)
            smallest = torch.finfo(total.dtype).tiny  # a label of no probability costs 87 nats, not infinity
            total -= (weight * slope.gather(1, label).clamp_min(smallest).log()).sum()
            slope.scatter_add_(1, label, -torch.ones_like(weight))
            gradient[part] = (slope.to(head.dtype) @ head) * weight.to(gradient.dtype)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx, upstream: Tensor):
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None, None, None
