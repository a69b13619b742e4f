"""The best prefixes of a block's rows by a heap, in plain Python: on a CPU faster than any use of small tensors.

The heap holds one sibling and one first child at most for every prefix that was taken, so `budget` prefixes cost
budget * log(budget), whatever the vocabulary. The rows are read once, for the maxima of their blocks.
"""

from __future__ import annotations

import math
from ctypes import c_float
from heapq import heappop, heappush, heapreplace

import torch
from torch import Tensor

from tevlib.trees.top_tokens import entries_above

Row = tuple[list[float], list[int]]
"""Negated entries, smallest first, and their token ids."""


def best_rows(rows: Tensor, maxima: Tensor, budget: int) -> list[Row]:
    """The entries of `rows` [H, V] that the best `budget` prefixes may be made of; `maxima` is `block_maxima(rows)`."""
    best = maxima.topk(min(budget, maxima.shape[-1]), dim=-1).values
    floor = _row_floors(best, budget)
    if budget <= best.shape[-1]:
        floor = torch.maximum(floor, best[:, -1])
    value, token, counts = entries_above(rows, maxima, floor)
    return split_rows(-value, token, counts.tolist())


def split_rows(costs: Tensor, tokens: Tensor, counts: list[int]) -> list[Row]:
    """Rows of `counts` entries each, as lists, from rows that lie one after the other."""
    costs, tokens = costs.tolist(), tokens.tolist()
    rows, first = [], 0
    for count in counts:
        rows.append((costs[first : first + count], tokens[first : first + count]))
        first += count
    return rows


def _row_floors(best: Tensor, budget: int) -> Tensor:
    """[H] floors under the entries of each row that the best `budget` prefixes can use; -inf where none is known.

    `best [H, n]` are entries of each row, the largest first. The paths that leave the rows' largest entries in one
    place at most are prefixes too: there are `budget` of them, all no worse than some score, and a prefix of that
    score needs, after the largest entries of the rows above, an entry of at least the difference.
    """
    depths = len(best)
    best = best[:, : 1 + -(-budget // depths)]
    reach = best[:, 0].cumsum(0)
    ends = reach.expand(depths, depths).masked_fill(torch.ones(depths, depths, dtype=torch.bool).tril(-1), -torch.inf)
    scores = torch.cat([reach, (ends.unsqueeze(-1) + (best[:, 1:] - best[:, :1]).unsqueeze(1)).flatten()])
    if len(scores) < budget:
        return torch.full_like(reach, -torch.inf)
    least = scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).topk(budget).values[-1]
    least = least - 1e-5 * (1 - least)  # the scores themselves are summed in another order
    return (least - (reach - best[:, 0])).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


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
