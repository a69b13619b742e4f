"""Next-token laws and draws: the one temperature threshold, the filters, and the categorical draw.

The autoregressive baseline and every verifier go through this module, so that they mean the same by a temperature, a
filter and a tie. Probability work is in float32, or in float64 when the logits are.
"""

from __future__ import annotations

import math
import numbers

import numpy as np
import torch
from torch import Tensor

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy decoding: the one-hot law of the lowest-id argmax."""

NO_WEIGHT = "a categorical draw needs at least one positive weight in every row, and no NaN"
LOG2_E = math.log2(math.e)
BLOCK = 256  # a draw looks at the totals of blocks first, so that it reads a row once


def check_temperature(temperature: float) -> float:
    """`temperature` as a float; ValueError unless it is a finite number >= 0."""
    if not isinstance(temperature, numbers.Real):
        raise ValueError(f"temperature must be a finite number >= 0; got {temperature!r}")
    value = float(temperature)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"temperature must be a finite number >= 0; got {temperature}")
    return value


def is_greedy(temperature: float) -> bool:
    """Whether `temperature` means greedy decoding (below `GREEDY_BELOW`); ValueError for an invalid one."""
    return check_temperature(temperature) < GREEDY_BELOW


def argmax_lowest(logits: Tensor, dim: int = -1) -> Tensor:
    """Index of the largest entry along `dim`; ties go to the lowest index, on every device."""
    if logits.ndim == 1 and logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.tensor(int(logits.detach().numpy().argmax()))  # 4 microseconds for 49,152 entries, torch's 42
    return logits.argmax(dim)  # torch documents the first maximal index, as NumPy does


def target_probs(logits: Tensor, temperature: float, *, label: str = "row") -> Tensor:
    """p(. | temperature) of each row of `logits` [..., V], in float32 or better; one-hot when greedy.

    A -inf logit is a token of probability 0. Raises ValueError naming the row (as `label`) that holds NaN, +inf or
    no finite logit at all.
    """
    if is_greedy(temperature):
        return _one_hot_argmax(logits, label)
    probs = unchecked_probs(logits, temperature)
    check_probs(probs, logits, label)
    return probs


def unchecked_probs(logits: Tensor, temperature: float) -> Tensor:
    """`target_probs` at a sampling temperature with nothing checked and nothing sent to the host.

    Where `target_probs` would raise, every entry of that row is NaN.
    """
    logits = at_least_float32(logits)
    if temperature == 1:
        return logits.softmax(-1)
    weights = relative_weights(logits, logits.amax(-1, keepdim=True), temperature)
    return weights.div_(weights.sum(-1, keepdim=True))


def relative_weights(
    logits: Tensor, reference: Tensor | float, temperature: float, out: Tensor | None = None
) -> Tensor:
    """exp((logits - reference) / temperature), what the law of a row is proportional to; `out` [as logits] is filled.

    The reference should be near the row's largest logit. One multiply-add rounds once where it is vectorised, so that a
    large logit over a small temperature loses no digits; what the reference's own product loses is one factor of the
    row. A power of two takes a third of the time of exp.
    """
    scale = LOG2_E / temperature
    shift = torch.as_tensor(reference * -scale, dtype=logits.dtype, device=logits.device)
    return torch.add(shift, logits, alpha=scale, out=out).exp2_()


def row_weights(row: Tensor, temperature: float, label: str) -> Tensor:
    """`relative_weights` [V] of one `row` to its largest entry; ValueError naming it (as `label`) when it is no law."""
    largest = row.amax()
    check_rows(largest, label)
    return relative_weights(row, largest, temperature)


def check_probs(probs: Tensor, logits: Tensor, label: str) -> None:
    """None; ValueError naming the first row (as `label` and its index) of `logits` whose `unchecked_probs` are NaN."""
    if probs[..., 0].isnan().any():
        check_rows(logits.amax(-1), label)


def target_log_probs(logits: Tensor, temperature: float, *, label: str = "row") -> Tensor:
    """log p(. | temperature) of each row of `logits` [..., V], in float32 or better; see `target_probs`."""
    if is_greedy(temperature):
        return _one_hot_argmax(logits, label).log()
    return _scaled(logits, temperature, label).log_softmax(-1)


def filter_logits(logits: Tensor, temperature: float, top_p: float = 1.0, top_k: int = 0) -> Tensor:
    """`logits` [..., V] in float32 or better with the tokens outside top-k and top-p at -inf; unchanged when greedy.

    Top-k keeps the `top_k` largest logits (0: all); top-p then keeps the smallest set of most likely tokens whose mass
    reaches `top_p` under what top-k left, at `temperature`. Tokens that tie with the last one kept stay, so that the
    filtered law depends on no sorting order. Raises ValueError for `top_p` outside (0, 1] and for a negative `top_k`.
    """
    if not isinstance(top_p, numbers.Real) or not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1]; got {top_p!r}")
    if top_k < 0:
        raise ValueError(f"top_k must be >= 0 (0 keeps every token); got {top_k}")
    logits = at_least_float32(logits)
    if is_greedy(temperature):
        return logits
    if 0 < top_k < logits.shape[-1]:
        threshold = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    if top_p < 1:
        probs = target_probs(logits, temperature)
        logits = logits.masked_fill(probs < _nucleus_threshold(probs, top_p), -torch.inf)
    return logits


def sample(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Token ids drawn from p(. | temperature): `logits` [V] -> a scalar, [n, V] -> [n]; the argmax when greedy."""
    if is_greedy(temperature):
        check_rows(logits.amax(-1), "row")
        return argmax_lowest(logits)
    return categorical(target_probs(logits, temperature), generator)


def categorical(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Indices drawn with probability proportional to `weights`: [K] -> a scalar, [n, K] -> [n].

    One independent float64 uniform per row (drawn on the generator's device), inverted through the cumulative weights,
    first over blocks and then inside one block, so K has no limit and zero weights are never drawn. `weights` must be
    finite and non-negative; raises ValueError when a row has no weight at all.
    """
    if weights.ndim == 1 and weights.device.type == "cpu":
        return torch.tensor(_draw_index(weights, generator))
    rows = weights.reshape(-1, weights.shape[-1])
    draw = torch.rand(len(rows), 1, dtype=torch.float64, generator=generator, device=generator.device).to(rows.device)
    totals = block_totals(rows)
    if not (totals.sum(-1) > 0).all():
        raise ValueError(NO_WEIGHT)
    return inverse_cdf(rows, draw, totals).reshape(weights.shape[:-1])


def uniform(generator: torch.Generator) -> float:
    """One draw from [0, 1), float64, on the generator's device."""
    return float(torch.rand(1, dtype=torch.float64, generator=generator, device=generator.device))


def inverse_cdf(weights: Tensor, draw: Tensor, totals: Tensor | None = None) -> Tensor:
    """The index [n] of the entry of each row of `weights` [n, K] where `draw` [n, 1] in [0, 1) of its mass lies.

    `draw` is float64; `totals` are the `block_totals` of `weights`, if at hand. An entry of weight 0 is never the
    answer. Nothing is checked and nothing is sent to the host: a row without mass gives some index.
    """
    totals = block_totals(weights) if totals is None else totals
    if weights.shape[-1] <= BLOCK:
        return _invert(weights, draw)[0].squeeze(-1)
    block, draw = _invert(totals, draw)
    columns = block * BLOCK + torch.arange(BLOCK, device=weights.device)
    inside = weights.gather(-1, columns.clamp(max=weights.shape[-1] - 1)).masked_fill(columns >= weights.shape[-1], 0)
    index, _ = _invert(inside, draw)
    return (block * BLOCK + index).squeeze(-1)


def block_totals(weights: Tensor) -> Tensor:
    """[n, K / BLOCK] sums of `BLOCK` neighbouring entries of `weights` [n, K]; the weights themselves if K <= BLOCK."""
    k = weights.shape[-1]
    if k <= BLOCK:
        return weights
    whole = k - k % BLOCK
    totals = weights[:, :whole].view(len(weights), -1, BLOCK).sum(-1)
    return torch.cat([totals, weights[:, whole:].sum(-1, keepdim=True)], dim=-1) if whole < k else totals


def at_least_float32(x: Tensor) -> Tensor:
    """`x` itself when float32 or float64, otherwise a float32 copy."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def check_rows(row_max: Tensor, label: str) -> None:
    """None; ValueError naming the first row (as `label` and its index) whose largest logit is NaN, +inf or -inf."""
    if row_max.ndim == 0 and math.isfinite(row_max.item()):
        return
    bad = ~row_max.isfinite()
    if bad.any():
        where = " ".join([label, *map(str, bad.nonzero()[0].tolist())])
        value = float(row_max[bad][0])
        fault = "no finite logit" if value == -math.inf else f"a {'NaN' if math.isnan(value) else '+inf'} logit"
        raise ValueError(f"{where} has {fault}; a law needs finite logits (or -inf for excluded tokens)")


def _invert(weights: Tensor, draw: Tensor) -> tuple[Tensor, Tensor]:
    """Index [n, 1] of the entry of `weights` [n, K] that holds `draw` in [0, 1), and where in that entry it fell."""
    cdf = weights.cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:].contiguous()
    target = draw * total
    last = torch.searchsorted(cdf, total)  # last entry with weight: `draw * total` may round up to `total`
    index = torch.minimum(torch.searchsorted(cdf, target, right=True), last).clamp(max=weights.shape[-1] - 1)  # NaN
    weight = weights.gather(-1, index).double()
    left = cdf.gather(-1, index) - weight
    return index, ((target - left) / weight).clamp(0, 1)


def _draw_index(weights: Tensor, generator: torch.Generator) -> int:
    """`categorical` of one row [K] on the CPU, where many small operations would cost more than the row."""
    draw = uniform(generator)
    if len(weights) <= BLOCK:
        return _find(weights, draw)[0]
    block, draw = _find(block_totals(weights[None])[0], draw)
    return block * BLOCK + _find(weights[block * BLOCK : (block + 1) * BLOCK], draw)[0]


def _find(weights: Tensor, draw: float) -> tuple[int, float]:
    """`_invert` of one row [K], in NumPy."""
    cdf = weights.detach().numpy().cumsum(dtype=np.float64)
    total = cdf[-1]
    if not total > 0:
        raise ValueError(NO_WEIGHT)
    target = draw * total
    index = int(cdf.searchsorted(target, side="right"))
    if index == len(cdf):  # rounded up to the total: the last entry with weight
        index = int(cdf.searchsorted(total))
    left = cdf[index - 1] if index else 0.0
    return index, min((target - left) / (cdf[index] - left), 1.0)


def _nucleus_threshold(probs: Tensor, top_p: float) -> Tensor:
    """[..., 1] probability of the last token that the nucleus of mass `top_p` needs."""
    vocabulary = probs.shape[-1]
    k = min(BLOCK, vocabulary)
    while True:
        top = probs.topk(k, dim=-1).values
        mass = top.cumsum(-1, dtype=torch.float64)
        if k == vocabulary or bool((mass[..., -1] >= top_p).all()):
            needed = (mass < top_p).sum(-1, keepdim=True).clamp(max=k - 1)
            return top.gather(-1, needed)
        k = min(8 * k, vocabulary)


def _scaled(logits: Tensor, temperature: float, label: str) -> Tensor:
    logits = at_least_float32(logits)
    row_max = logits.amax(-1, keepdim=True)
    check_rows(row_max.squeeze(-1), label)
    # The maximum goes first: dividing large logits by a small temperature would cost digits.
    return logits if temperature == 1 else logits.sub(row_max).div_(temperature)


def _one_hot_argmax(logits: Tensor, label: str) -> Tensor:
    logits = at_least_float32(logits)
    check_rows(logits.amax(-1), label)
    return torch.zeros_like(logits).scatter_(-1, argmax_lowest(logits).unsqueeze(-1), 1.0)
