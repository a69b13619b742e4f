"""The best prefixes of a block's rows by a heap, in plain Python: on a CPU faster than any use of small tensors.

The heap holds one sibling and one first child at most for every prefix that was taken, so `budget` prefixes cost
budget * log(budget), whatever the vocabulary. The rows are read once, for the maxima of their blocks.
"""

from __future__ import annotations

import math
from ctypes import c_float
from heapq import heappop, heappush, heapreplace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from tevlib.trees.top_tokens import BLOCK, blocks_of

Row = tuple[list[float], list[int]]
"""Negated entries, smallest first, and their token ids."""


def best_rows(rows: Tensor, maxima: Tensor, budget: int) -> list[Row]:
    """The entries of CPU `rows` [H, V] that the best `budget` prefixes may be made of; `maxima` are its block maxima.

    A few dozen entries decide, so this is NumPy's work: its calls cost less than torch's.
    """
    best, per_row = maxima.numpy(), maxima.shape[1]
    floor = _row_floors(best, budget)
    if budget <= per_row:  # the `budget`-th largest block maximum is a floor under as many entries
        floor = np.maximum(floor, np.partition(best, per_row - budget, axis=1)[:, per_row - budget])
    floor = np.maximum(floor, np.finfo(best.dtype).min)
    block = np.flatnonzero(best >= floor[:, None])
    entries = blocks_of(rows).reshape(-1, BLOCK).numpy().take(block, axis=0)
    hit = np.flatnonzero(entries >= floor.take(block // per_row)[:, None])
    costs, place = -entries.ravel().take(hit), block.take(hit // BLOCK) * BLOCK + hit % BLOCK
    row = place // (per_row * BLOCK)
    order = np.lexsort((costs, row))  # stable, so equal entries of a row stay in order of token id
    tokens = (place - row * (per_row * BLOCK)).take(order)
    return split_rows(costs.take(order), tokens, np.bincount(row, minlength=len(best)).tolist())


def split_rows(costs: Tensor | np.ndarray, tokens: Tensor | np.ndarray, counts: list[int]) -> list[Row]:
    """Rows of `counts` entries each, as lists, from rows that lie one after the other."""
    costs, tokens = costs.tolist(), tokens.tolist()
    rows, first = [], 0
    for count in counts:
        rows.append((costs[first : first + count], tokens[first : first + count]))
        first += count
    return rows


def _row_floors(maxima: np.ndarray, budget: int) -> np.ndarray:
    """[H] floors under the entries of each row that the best `budget` prefixes can use; -inf where none is known.

    `maxima [H, n]` are entries of each row, its largest among them. The paths that leave the rows' largest entries in
    one place are prefixes too: the `budget` best of them are all no worse than some score, and a prefix of that score
    needs, after the largest entries of the rows above, an entry of at least the difference.
    """
    depths, n = maxima.shape
    some = min(n, 1 + -(-budget // depths))
    best = np.sort(np.partition(maxima, n - some, axis=1)[:, n - some :], axis=1)
    largest, best = best[:, -1].tolist(), best[:, :-1]
    reach = list(accumulate(largest))
    if budget > depths * (depths + 1) // 2 * (some - 1) or reach[-1] == -math.inf:
        return np.full(depths, -math.inf, dtype=maxima.dtype)
    # Leaving row d for an entry and ending behind row e >= d: the entry, and the largest ones of the other rows.
    others = [reach[e] - largest[d] if e >= d else -math.inf for d in range(depths) for e in range(depths)]
    scores = np.array(others, dtype=maxima.dtype).reshape(depths, depths, 1) + best[:, None]
    least = float(np.partition(scores.ravel(), scores.size - budget)[scores.size - budget])
    least -= 1e-5 * (1 - least)  # the scores themselves are summed in another order
    return np.array([least - score + own for score, own in zip(reach, largest, strict=True)], dtype=maxima.dtype)


def best_prefixes(rows: list[Row], budget: int, dtype: torch.dtype) -> tuple[list[int], list[int], list[float]]:
    """Tokens, parents (0 is the root) and scores of the best `budget` prefixes, best first, the root not among them.

    Scores are summed in `dtype`, float32 or float64. Order as in `tevlib.trees.builders`.
    """
    sum_of = _float32_sum if dtype == torch.float32 else float.__add__
    tokens, parents, costs = [], [], [0.0]  # a cost is a negated score: a heap hands out its smallest entry
    heap = [(rows[0][0][0] + 0.0, 0, 0, 0)] if budget and rows and rows[0][0] else []
    node = 0
    while heap and node < budget:
        cost, depth, parent, place = heap[0]  # depth of the parent, place in the row
        node += 1
        entries, names = rows[depth]
        tokens.append(names[place])
        parents.append(parent)
        costs.append(cost)
        place += 1
        sibling = sum_of(costs[parent], entries[place]) if place < len(entries) else math.inf
        if sibling < math.inf:
            heapreplace(heap, (sibling, depth, parent, place))
        else:
            heappop(heap)
        depth += 1
        if depth < len(rows) and rows[depth][0]:
            child = sum_of(cost, rows[depth][0][0])
            if child < math.inf:
                heappush(heap, (child, depth, node, 0))
    return tokens, parents, [0.0 - cost for cost in costs[1:]]


def _float32_sum(a: float, b: float) -> float:
    """a + b as float32 arithmetic gives it, for float32 `a` and `b`: their float64 sum, rounded once more, is that."""
    return c_float(a + b).value
