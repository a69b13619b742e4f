"""The best-first tree as tensors of fixed shape, made where the rows are: what a CUDA graph can hold.

The tree of `best_first_tree`, node for node, from a fixed number of tensor operations: nothing waits for the device,
and no shape depends on a value. Levels grow one after the other, each from the best `budget` prefixes of the one above.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tevlib.trees.builders import check_count
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.top_tokens import BLOCK


class FixedTree(NamedTuple):
    """A draft tree of at most N = budget + 1 nodes, in builder order, padding behind.

    tokens, parents, depths [N] long; scores [N] float32; ancestors [N, N] bool; size [] long, the nodes that are none
    of the padding; usable [] bool, False where a row had no finite entry and the tree is therefore the root alone.
    Padding holds the root's token, parent -1, depth 0, score -inf, and has itself as only ancestor.
    """

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    ancestors: Tensor
    size: Tensor
    usable: Tensor

    def tree(self) -> DraftTree:
        """The `DraftTree` on the CPU, padding left out. Waits for the device."""
        n = int(self.size)
        return DraftTree(*(x[:n].cpu() for x in (self.tokens, self.parents, self.scores)))


class FixedBuilder:
    """Builds the `FixedTree` of rows [`depths`, `vocabulary`] for one `budget`; holds what depends on these alone.

    Raises ValueError for a budget or a number of rows below 1.
    """

    def __init__(self, depths: int, vocabulary: int, budget: int, device: torch.device | str):
        if check_count(budget, "budget") == 0 or depths < 1:
            raise ValueError(
                f"a tree of fixed shape needs a row and a node to draft; got {depths} rows, {budget} nodes"
            )
        self.depths, self.vocabulary, self.budget = depths, vocabulary, budget
        self.k = min(budget, vocabulary)
        # The child of the i-th prefix with the j-th token ranks behind (i + 1)(j + 1) - 1 children of its level.
        pairs = [(i, j) for i in range(budget) for j in range(min(budget // (i + 1), self.k))]
        self.above, self.below = torch.tensor(pairs, device=device).T.contiguous()
        self.start = torch.full((budget,), -torch.inf, device=device)
        self.start[0] = 0.0  # the root, as the level above the first
        self.rows = torch.arange(depths, device=device).unsqueeze(-1)
        self.itself = torch.eye(budget + 1, dtype=torch.bool, device=device)
        self.order = torch.arange(budget + 1, device=device)

    def __call__(self, log_probs: Tensor, root_token: Tensor, depth_limit: Tensor | None = None) -> FixedTree:
        """The tree of `log_probs` [H, V] (float32, <= 0) under `root_token` [], no deeper than `depth_limit` []."""
        log_probs = log_probs.detach()
        if log_probs.shape != (self.depths, self.vocabulary) or log_probs.dtype != torch.float32:
            raise ValueError(
                f"log_probs must be float32 [{self.depths}, {self.vocabulary}]; "
                f"got {log_probs.dtype} {list(log_probs.shape)}"
            )
        values, ids = fixed_top_tokens(log_probs, self.k)
        finite = values[:, :1].isfinite()  # a NaN comes out on top
        if depth_limit is not None:
            values = values.masked_fill(self.rows >= depth_limit, -torch.inf)
            finite = finite | (self.rows >= depth_limit)
        usable = finite.all()
        values = torch.where(usable, values, -torch.inf)
        scores, parents, ranks = self._levels(values)
        return self._assemble(scores, parents, ids.gather(1, ranks), root_token, usable)

    def _levels(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, parents (places in the level above) and ranks in the row [H, B] of each level's best prefixes."""
        gains = values.index_select(1, self.below)
        above, levels, orders = self.start, [], []
        for gain in gains:
            above, order = (above.index_select(0, self.above) + gain).sort(descending=True, stable=True)
            above, order = above[: self.budget], order[: self.budget]
            levels.append(above)
            orders.append(order)
        order = torch.stack(orders)
        return torch.stack(levels), self.above[order], self.below[order]

    def _assemble(self, scores: Tensor, parents: Tensor, tokens: Tensor, root_token: Tensor, usable: Tensor):
        """The tree of the best prefixes of all levels."""
        best, place = scores.flatten().sort(descending=True, stable=True)
        best, place = best[: self.budget], place[: self.budget]
        real = best.isfinite()
        level = place // self.budget
        node = torch.zeros_like(scores, dtype=torch.long).flatten().scatter_(0, place, self.order[1:])
        parent = parents.flatten().index_select(0, place) + (level - 1) * self.budget
        parent = torch.where(level == 0, 0, node.index_select(0, parent.clamp(min=0)))
        token = torch.where(real, tokens.flatten().index_select(0, place), root_token)
        root = root_token.reshape(1)
        climb = torch.cat([self.order[:1], torch.where(real, parent, self.order[1:])])
        return FixedTree(
            tokens=torch.cat([root, token]),
            parents=torch.cat([self.order[:1] - 1, torch.where(real, parent, -1)]),
            depths=torch.cat([self.order[:1], torch.where(real, level + 1, 0)]),
            scores=torch.cat([self.start[:1], best]),
            ancestors=self._ancestors(climb),
            size=real.sum() + 1,
            usable=usable,
        )

    def _ancestors(self, climb: Tensor) -> Tensor:
        """[N, N] bool from each node's parent (its own index at the root and at padding), by pointer doubling."""
        ancestors, reach = self.itself, 1
        while reach <= self.depths:
            ancestors = ancestors | ancestors.index_select(0, climb)
            climb = climb.index_select(0, climb)
            reach *= 2
        return ancestors


def fixed_top_tokens(rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Values and token ids [H, k] of `top_tokens`, without looking at a value; `rows` [H, V] float32, 1 <= k <= V.

    A row's NaN comes first. The best k entries lie in the k blocks of largest maxima, of equal ones the first.
    """
    h, v = rows.shape
    blocks = -(-v // BLOCK)
    ids = torch.arange(v, device=rows.device).expand(h, v)
    if k < blocks:
        padded = rows if v % BLOCK == 0 else torch.nn.functional.pad(rows, (0, -v % BLOCK), value=-torch.inf)
        padded = padded.view(h, blocks, BLOCK)
        chosen = _sort_keys(padded.amax(-1)).topk(k, dim=-1).indices
        rows = padded.gather(1, chosen.unsqueeze(-1).expand(-1, -1, BLOCK)).flatten(1)
        ids = (chosen.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=rows.device)).flatten(1)
    place = _sort_keys(rows, ids).topk(k, dim=-1).indices
    return rows.gather(1, place), ids.gather(1, place)


def _sort_keys(values: Tensor, ids: Tensor | None = None) -> Tensor:
    """Integers in the order of (value, then lower id first), NaN as +inf: no two are equal, so no tie is left open."""
    ids = torch.arange(values.shape[-1], device=values.device) if ids is None else ids
    values = values.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf) + 0.0  # -0.0 + 0.0 is 0.0
    bits = values.view(torch.int32)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # of two negative numbers the smaller has the larger bits
    return (ordered.long() << 32) + (0x7FFFFFFF - ids)
