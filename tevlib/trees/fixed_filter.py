"""The top-k and top-p filters without a look at a value on the host, for rounds of fixed shape."""

from __future__ import annotations

import torch
from torch import Tensor

from tevlib.trees.sampling import at_least_float32, filter_logits, is_greedy, unchecked_probs


def fixed_filter(logits: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """`filter_logits` of `logits` [n, V]: the same tokens at -inf. A row with NaN stays as it is, and is not refused.

    The nucleus is found by sorting whole rows, since how many tokens it needs is known on the device only.
    """
    logits = filter_logits(at_least_float32(logits), temperature, 1.0, top_k)
    if top_p == 1 or is_greedy(temperature):
        return logits
    probs = unchecked_probs(logits, temperature)
    ranked = probs.sort(dim=-1, descending=True).values
    needed = (ranked.cumsum(-1, dtype=torch.float64) < top_p).sum(-1, keepdim=True).clamp(max=probs.shape[-1] - 1)
    return logits.masked_fill(probs < ranked.gather(-1, needed), -torch.inf)
