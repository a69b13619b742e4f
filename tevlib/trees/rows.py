"""The target's rows of a tree, handed out when a verifier asks: a tensor at hand, or hidden states whose head waits.

A leaf's row is needed only if the walk ends there, and an internal node's only if an exit law or a walk looks at it.
Projecting hidden states to the vocabulary is a large part of a pass, so what nobody asks for is not projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.sampling import at_least_float32

WAVE = 6  # rows that one product makes at the price of one: its time is that of reading the weights


class TensorRows:
    """Rows [N, V] that are all there."""

    def __init__(self, logits: Tensor):
        self.logits = at_least_float32(logits)

    @property
    def shape(self) -> torch.Size:
        return self.logits.shape

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def __getitem__(self, node: int) -> Tensor:
        """The row [V] of `node`, float32 or better."""
        return self.logits[node]

    def take(self, nodes: Sequence[int]) -> Tensor:
        """The rows [k, V] of `nodes`, float32 or better."""
        return self.logits[torch.tensor(nodes, dtype=torch.long, device=self.device)]

    def within(self, nodes: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        """`take(nodes)` without a copy: a matrix [M, V] and the places of the rows in it."""
        return self.logits, nodes

    def all(self) -> Tensor:
        """Every row [N, V], float32 or better."""
        return self.logits


class DeferredRows:
    """Rows [N, V] of `tree`, made by `project` from final hidden states [N, H] when they are asked for, each once.

    `project` takes hidden states [k, H] and their nodes [k] to logits [k, V] in float32 or better. A single internal
    node that is asked for brings along the best nodes below it: a walk is likely to ask for one of them next.
    """

    def __init__(self, tree: DraftTree, hidden: Tensor, vocabulary: int, project: Callable[[Tensor, Tensor], Tensor]):
        self.tree, self.hidden, self.project = tree, hidden, project
        self.shape = torch.Size((len(tree), vocabulary))
        self.made: dict[int, Tensor] = {}

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    def __getitem__(self, node: int) -> Tensor:
        """The row [V] of `node`, float32 or better."""
        if node not in self.made:
            self._make([node, *self._likely_below(node)])
        return self.made[node]

    def take(self, nodes: Sequence[int]) -> Tensor:
        """The rows [k, V] of `nodes`, float32 or better; those that are missing come from one product."""
        missing = [node for node in nodes if node not in self.made]
        if missing or not nodes:
            fresh = self._make(missing)
            if len(missing) == len(nodes):
                return fresh
        return torch.stack([self.made[node] for node in nodes])

    def within(self, nodes: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        """A matrix [M, V] and the places of the rows of `nodes` in it."""
        return self.take(nodes), range(len(nodes))

    def all(self) -> Tensor:
        """Every row [N, V], float32 or better."""
        return self.take(range(len(self.tree)))

    def _make(self, nodes: list[int]) -> Tensor:
        whole = len(nodes) == len(self.tree)
        places = torch.tensor(nodes, dtype=torch.long, device=self.device)
        rows = self.project(self.hidden if whole else self.hidden[places], places)
        self.made.update(zip(nodes, rows, strict=True))
        return rows

    def _likely_below(self, node: int) -> list[int]:
        """The first nodes below `node` (the best, in builder order) whose rows are missing, to fill a product."""
        below, found = {node}, []
        if not self.tree.children[node]:
            return found
        for other in range(node + 1, len(self.tree)):
            if self.tree.parent(other) in below:
                below.add(other)
                if other not in self.made:
                    found.append(other)
                    if len(found) == WAVE - 1:
                        break
        return found


Rows = TensorRows | DeferredRows


def as_rows(rows: Tensor | Rows) -> Rows:
    """`rows`, a tensor [N, V] of logits wrapped."""
    return TensorRows(rows) if isinstance(rows, Tensor) else rows
