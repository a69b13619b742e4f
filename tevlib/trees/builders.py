"""Tree builders: which B prefixes a draft tree holds, in builder order (best first).

A drafter of the DFlash kind gives one row of log-probabilities per future position; a prefix scores the sum of its
tokens' log-probabilities. Order, and so the choice under exact ties: higher score, then shallower, then the child of
the better-ranked parent, then higher log-probability in its row, then lower token id. This order puts a parent before
its children and does not depend on the budget, so the tree of a smaller budget is a prefix of the tree of a larger one.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.heap import Row, best_prefixes, best_rows, split_rows
from tevlib.trees.sampling import argmax_lowest, at_least_float32, check_rows
from tevlib.trees.top_tokens import block_maxima, entries_above, top_tokens

Level = tuple[Tensor, Tensor, Tensor]
"""Prefixes of one depth, best first: scores, parents (positions in the level above), tokens."""


def best_first_tree(log_probs: Tensor, budget: int, root_token: int, depth_limit: int | None = None) -> DraftTree:
    """The `DraftTree` of the `budget` best non-root prefixes by cumulative draft log-probability (DDTree's builder).

    Args:
        log_probs: [H, V] log-probabilities, row d for depth d + 1; -inf excludes a token.
        budget: most non-root nodes; 0 gives the root alone, more than the full tree gives the full tree.
        root_token: token id of the root.
        depth_limit: largest depth, H when None.

    Prefixes of score -inf are never added; a tree that stays smaller for that reason says so in a warning. Raises
    ValueError for a negative budget or depth limit, and for NaN or positive log-probabilities (naming the row).
    """
    budget = check_count(budget, "budget")
    rows, maxima = _checked(log_probs)
    if depth_limit is not None:
        rows, maxima = (x[: check_count(depth_limit, "depth_limit")] for x in (rows, maxima))
    if budget == 0 or len(rows) == 0:
        return root_only(root_token, rows)
    if rows.device.type == "cpu":
        tree = _by_heap(best_rows(rows, maxima, budget), budget, root_token, rows.dtype)
    else:
        tree = _assemble(_levels(rows, budget), budget, root_token, rows)
    _warn_if_short(tree, budget, rows)
    return tree


def best_first_trees(log_probs: Tensor, budget: int, root_tokens: list[int]) -> list[DraftTree]:
    """The trees of `best_first_tree` for many blocks, `log_probs [n, H, V]`, on the CPU.

    On a device one search over all rows and one copy of their best entries replace dozens of small steps per tree.
    """
    n, depths, vocabulary = log_probs.shape
    budget = check_count(budget, "budget")
    rows, maxima = _checked(log_probs.reshape(n * depths, vocabulary))
    if budget == 0 or n * depths == 0:
        return [root_only(root, rows.new_zeros(0, device="cpu")) for root in root_tokens]
    floor = (maxima if budget <= maxima.shape[-1] else rows).topk(min(budget, vocabulary), dim=-1).values[:, -1]
    value, token, counts = entries_above(rows, maxima, floor)
    best = split_rows(-value, token, counts.tolist())
    trees = []
    for i, (root, block) in enumerate(zip(root_tokens, log_probs, strict=True)):
        trees.append(_by_heap(best[i * depths : (i + 1) * depths], budget, root, rows.dtype))
        _warn_if_short(trees[-1], budget, block)
    return trees


def chain_tree(log_probs: Tensor, budget: int, root_token: int) -> DraftTree:
    """The `DraftTree` that is one path: the lowest-id argmax of each of the first `budget` rows (DFlash's block).

    `log_probs` as in `best_first_tree`; the chain ends, with a warning, before a row without a finite entry.
    """
    budget, log_probs = check_log_probs(log_probs, budget)
    rows = log_probs[:budget]
    tokens = argmax_lowest(rows)
    gains = rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    n = int(gains.isfinite().cumprod(0).sum())
    if n < len(rows):
        warnings.warn(f"row {n} of log_probs is all -inf: the chain has {n} of {budget} draft tokens", stacklevel=2)
    scores = torch.cat([gains.new_zeros(1), gains[:n].cumsum(0)])
    tokens = torch.cat([tokens.new_tensor([root_token]), tokens[:n]])
    return DraftTree(tokens, torch.arange(-1, n, device=tokens.device), scores)


def opt_tree(log_probs: Tensor, budget: int, root_token: int, threshold: float = 0.5) -> DraftTree:
    """The `DraftTree` of OPT-Tree's rule: levels are added while they pay, then the best `budget` prefixes are kept.

    After each level the expected acceptance is the draft mass of the best `budget` prefixes so far; the first level
    that raises it by less than `threshold` (in tokens) is dropped together with all deeper ones. The first level
    always stays. Other arguments and errors as in `best_first_tree`; ValueError for a negative or NaN threshold.
    """
    budget, log_probs = check_log_probs(log_probs, budget)
    if not threshold >= 0:
        raise ValueError(f"threshold must be >= 0 expected tokens; got {threshold}")
    levels = _levels(log_probs, budget)
    expected = [_best(levels[: d + 1], budget)[0].exp().sum() for d in range(len(levels))]
    gains = torch.stack(expected).diff().tolist() if levels else []
    depth = next((d for d, gain in enumerate(gains, start=1) if gain < threshold), len(levels))
    tree = _assemble(levels[:depth], budget, root_token, log_probs)
    _warn_if_short(tree, budget, log_probs[:depth])
    return tree


def oracle_tree(score: Callable[[DraftTree], Tensor], budget: int, root_token: int, depth_limit: int) -> DraftTree:
    """The `DraftTree` of the `budget` prefixes most likely under the target: the largest C_p any builder can reach.

    `score(tree)` returns the target's log-probabilities or logits [N, V] at the tree's nodes; it is called at most
    `depth_limit` times, on trees of at most `budget` non-root nodes. Level by level this is exact, because a prefix is
    never less likely than its extension. `scores` of the result are target log P. Prefixes of probability 0 are never
    added. Ties as in the other builders. Raises ValueError for a negative budget or depth limit, and for NaN rows.
    """
    budget = check_count(budget, "budget")
    depth_limit = check_count(depth_limit, "depth_limit")
    tree = DraftTree([root_token], [-1], [0.0])
    if budget == 0:
        return tree
    levels: list[Level] = []
    for depth in range(depth_limit):
        rows = at_least_float32(score(tree))
        check_rows(rows.amax(-1), "node")
        frontier = tree.levels[depth].tolist() if depth <= tree.height else []
        if not frontier:
            break
        # Kept prefixes of the last level are the first of that level, in the same order.
        gains, ids = top_tokens(rows[frontier].log_softmax(-1), min(budget, rows.shape[-1]))
        reach = levels[-1][0][: len(frontier)] if levels else rows.new_zeros(1)
        scores, order = (reach.unsqueeze(-1) + gains).flatten().sort(descending=True, stable=True)
        order = order[:budget]
        levels.append((scores[:budget], order // ids.shape[-1], ids.flatten()[order]))
        tree = _assemble(levels, budget, root_token, rows)
    return tree


def root_only(root_token: int, like: Tensor) -> DraftTree:
    """The `DraftTree` of the root alone, its score in the dtype and on the device of `like`."""
    return DraftTree([root_token], [-1], like.new_zeros(1, device="cpu")).to(like.device)


def _by_heap(rows: list[Row], budget: int, root_token: int, dtype: torch.dtype) -> DraftTree:
    """The CPU tree of the best `budget` prefixes of sorted rows."""
    tokens, parents, scores = best_prefixes(rows, budget, dtype)
    return DraftTree.below(root_token, tokens, parents, torch.tensor([0.0, *scores], dtype=dtype))


def _levels(log_probs: Tensor, budget: int) -> list[Level]:
    """The best `budget` prefixes of each depth, from the best `budget` of the depth above."""
    budget = min(budget, _full_size(log_probs, budget))
    if budget == 0:
        return []
    return _grow_levels(*top_tokens(log_probs, min(budget, log_probs.shape[-1])), budget)


def _grow_levels(values: Tensor, ids: Tensor, budget: int) -> list[Level]:
    """The same, from the best entries of each row (`top_tokens`)."""
    above, below = _staircase(budget, values.shape[-1], values.device)
    scores = values.new_zeros(1)
    levels = []
    for gains, tokens in zip(values, ids, strict=True):
        width = int((above < len(scores)).sum()) if len(scores) < budget else len(above)
        parents, ranks = above[:width], below[:width]
        scores, order = (scores[parents] + gains[ranks]).sort(descending=True, stable=True)
        scores, order = scores[:budget], order[:budget]
        levels.append((scores, parents[order], tokens[ranks[order]]))
    return levels


def _staircase(budget: int, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pairs (i, j) with (i + 1)(j + 1) <= budget and j < k, by i then j.

    Only these can be among the best `budget` of a level: the child of the i-th prefix with the j-th token ranks behind
    all (i + 1)(j + 1) children made of a prefix and a token no worse. There are about budget * log(budget) of them.
    """
    i = torch.arange(budget, device=device)
    counts = (budget // (i + 1)).clamp(max=k)
    above = i.repeat_interleave(counts)
    starts = counts.cumsum(0) - counts
    return above, torch.arange(len(above), device=device) - starts[above]


def _best(levels: list[Level], budget: int) -> tuple[Tensor, Tensor]:
    """Scores and positions (in the levels laid end to end) of the best `budget` prefixes of finite score."""
    scores, order = torch.cat([level[0] for level in levels]).sort(descending=True, stable=True)
    n = int(scores[:budget].isfinite().sum())
    return scores[:n], order[:n]


def _assemble(levels: list[Level], budget: int, root_token: int, like: Tensor) -> DraftTree:
    """The tree of the best `budget` prefixes of `levels`."""
    if not levels:
        return root_only(root_token, like)
    root = torch.tensor([root_token], device=like.device)
    scores, order = _best(levels, budget)
    offsets = [1]  # position 0 is the root
    for level in levels:
        offsets.append(offsets[-1] + len(level[0]))
    above = [0, *offsets[:-2]]  # where each level's parents start
    parents = torch.cat([level[1] + start for level, start in zip(levels, above, strict=True)])[order]
    tokens = torch.cat([level[2] for level in levels])[order]
    index = torch.zeros(offsets[-1], dtype=torch.long, device=like.device)
    index[order + 1] = torch.arange(1, len(order) + 1, device=like.device)
    return DraftTree(
        torch.cat([root, tokens]),
        torch.cat([root.new_tensor([-1]), index[parents]]),
        torch.cat([scores.new_zeros(1), scores]),
    )


def check_log_probs(log_probs: Tensor, budget: int, depth_limit: int | None = None) -> tuple[int, Tensor]:
    """`budget` as an int and the first `depth_limit` rows of `log_probs` in float32 or better; errors as above."""
    budget = check_count(budget, "budget")
    rows, _ = _checked(log_probs)
    return budget, rows if depth_limit is None else rows[: check_count(depth_limit, "depth_limit")]


def _checked(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """`log_probs` in float32 or better and its `block_maxima`; errors as above."""
    if log_probs.ndim != 2:
        raise ValueError(f"log_probs must be [H, V]; got shape {tuple(log_probs.shape)}")
    rows = at_least_float32(log_probs.detach())
    maxima = block_maxima(rows)
    for row, largest in enumerate(maxima.amax(-1).tolist()):
        if not largest <= 0:
            fault = "NaN" if math.isnan(largest) else f"{largest} > 0 (rows must be log_softmax)"
            raise ValueError(f"row {row}: log_probs holds {fault}")
    return rows, maxima


def check_count(value: int, name: str) -> int:
    """`value` as an int; ValueError unless it is an integer >= 0 (True and 2.0 are none)."""
    if isinstance(value, bool):
        raise ValueError(f"{name} must be an integer >= 0; got {value}")
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be an integer >= 0; got {value!r}") from None
    if count < 0:
        raise ValueError(f"{name} must be >= 0; got {count}")
    return count


def _warn_if_short(tree: DraftTree, budget: int, log_probs: Tensor) -> None:
    """Warn when -inf log-probabilities, not the size of the full tree, kept the tree below its budget."""
    nodes = len(tree) - 1
    possible = min(budget, _full_size(log_probs, budget))
    if nodes < possible:
        warnings.warn(
            f"only {nodes} prefixes have a finite draft score: the tree has {nodes} of {possible} nodes", stacklevel=3
        )


def _full_size(log_probs: Tensor, enough: int) -> int:
    """Non-root nodes of the full tree over the rows of `log_probs`; counting stops once there are `enough`."""
    depths, vocabulary = log_probs.shape
    size = 0
    for depth in range(1, depths + 1):
        size += vocabulary**depth
        if size >= enough:
            break
    return size


BUILDERS = {"best_first": best_first_tree, "chain": chain_tree, "opt_tree": opt_tree}
