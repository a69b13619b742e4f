"""The k best tokens of each row, ties by lowest token id on every device (`torch.topk` leaves ties open)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

_BLOCK = 64


def top_tokens(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and token ids [H, k] of the `k` largest entries of each row of `rows` [H, V], best first.

    Equal values come in order of token id, and when they straddle the k-th place the lowest ids are taken. Entries of
    -inf may fill places at the end. Needs 1 <= k <= V.
    """
    h, v = rows.shape
    blocks = (rows if v % _BLOCK == 0 else pad(rows, (0, -v % _BLOCK), value=-torch.inf)).unflatten(-1, (-1, _BLOCK))
    block_max = blocks.amax(-1)
    # The k-th largest block maximum is a floor under the k-th largest entry: few blocks and entries reach it.
    floor = (block_max if k <= block_max.shape[-1] else rows).topk(k, dim=-1).values[:, -1:]
    row, block = (block_max >= floor).nonzero(as_tuple=True)
    entries = blocks[row, block]
    hit, place = ((entries >= floor[row]) & (entries > -torch.inf)).nonzero(as_tuple=True)
    row, token = row[hit], block[hit] * _BLOCK + place  # by row, then by token id

    value, order = entries[hit, place].sort(descending=True, stable=True)
    row, by_row = row[order].sort(stable=True)
    order = order[by_row]
    counts = torch.bincount(row, minlength=h)
    place = torch.arange(len(row), device=rows.device) - (counts.cumsum(0) - counts)[row]
    kept = place < k
    values = rows.new_full((h, k), -torch.inf)
    ids = torch.zeros(h, k, dtype=torch.long, device=rows.device)
    values[row[kept], place[kept]] = value[by_row][kept]
    ids[row[kept], place[kept]] = token[order][kept]
    return values, ids
