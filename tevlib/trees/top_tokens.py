"""The k best tokens of each row, ties by lowest token id on every device (`torch.topk` leaves ties open)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64


def block_maxima(rows: Tensor) -> Tensor:
    """[H, ceil(V / 64)]: the largest entry of every 64 neighbours of `rows` [H, V]; NaN where a block holds NaN."""
    return blocks_of(rows).amax(-1)


def top_tokens(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and token ids [H, k] of the `k` largest entries of each row of `rows` [H, V], best first.

    Equal values come in order of token id, and when they straddle the k-th place the lowest ids are taken. Entries of
    -inf may fill places at the end. Needs 1 <= k <= V.
    """
    maxima = block_maxima(rows)
    # The k-th largest block maximum is a floor under the k-th largest entry: few blocks and entries reach it.
    floor = (maxima if k <= maxima.shape[-1] else rows).topk(k, dim=-1).values[:, -1]
    value, token, counts = entries_above(rows, maxima, floor)
    row = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)
    place = torch.arange(len(row), device=rows.device) - (counts.cumsum(0) - counts)[row]
    kept = place < k
    values = rows.new_full((len(rows), k), -torch.inf)
    ids = torch.zeros(len(rows), k, dtype=torch.long, device=rows.device)
    values[row[kept], place[kept]] = value[kept]
    ids[row[kept], place[kept]] = token[kept]
    return values, ids


def entries_above(rows: Tensor, maxima: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values and token ids of the entries of `rows` that are at least `floor [H]`, -inf excluded, and their counts [H].

    Row by row, each row's best first, equal values in order of token id. `maxima` is `block_maxima(rows)`: only blocks
    that hold such an entry are read.
    """
    floor = floor.clamp(min=torch.finfo(rows.dtype).min)
    per_row = maxima.shape[-1]
    block = (maxima >= floor.unsqueeze(-1)).flatten().nonzero().squeeze(-1)
    row = block // per_row
    entries = blocks_of(rows).reshape(-1, BLOCK).index_select(0, block)
    hit = (entries >= floor.index_select(0, row).unsqueeze(-1)).flatten().nonzero().squeeze(-1)
    value, order = entries.flatten().index_select(0, hit).sort(descending=True, stable=True)
    hit = hit.index_select(0, order)
    place = block.index_select(0, hit // BLOCK) * BLOCK + hit % BLOCK
    row, order = (place // (per_row * BLOCK)).sort(stable=True)
    token = place.index_select(0, order) - row * (per_row * BLOCK)
    return value.index_select(0, order), token, torch.bincount(row, minlength=len(rows))


def blocks_of(rows: Tensor) -> Tensor:
    """[H, ceil(V / 64), 64]: `rows` [H, V] cut into blocks, the last filled with -inf."""
    v = rows.shape[-1]
    return (rows if v % BLOCK == 0 else pad(rows, (0, -v % BLOCK), value=-torch.inf)).unflatten(-1, (-1, BLOCK))
