"""The draft tree: a bounded, prefix-closed set of continuations that one target pass scores.

Knows nothing of probabilities or models. Node 0 is the root (the last committed token); every other node adds one
draft token to its parent's prefix.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor


class DraftTree:
    """A validated draft tree over token ids; immutable, its derived tensors are computed when first asked for.

    Args:
        tokens: [N] token id of every node; `tokens[0]` is the root's own token.
        parents: [N] index of every node's parent; `parents[0] == -1`, and a parent comes before its children.
        scores: [N] cumulative draft log-probability of every node (0 at the root), or None.

    Tensors keep their device; lists become CPU tensors. Raises ValueError naming the node for: lengths that differ,
    no root, a second root, a parent that does not come before its child (cycles included), duplicate siblings (the
    exit law would count their mass twice), a negative token, a NaN score.
    """

    def __init__(self, tokens: Tensor | Sequence[int], parents: Tensor | Sequence[int], scores=None):
        self.tokens = _long_vector(tokens, "tokens")
        self.parents = _long_vector(parents, "parents").to(self.tokens.device)
        self.scores = scores
        self._tokens: list[int] = self.tokens.tolist()
        self._parents: list[int] = self.parents.tolist()
        _check_structure(self._tokens, self._parents)
        if scores is not None:
            self.scores = torch.as_tensor(scores, device=self.device)
            _check_scores(self.scores, len(self))

    @classmethod
    def below(cls, root_token: int, tokens: list[int], parents: list[int], scores: Tensor | None) -> DraftTree:
        """The CPU tree of a root and of the non-root nodes that a builder made: only the root's token is checked.

        `parents` counts the root as node 0; `scores` [N] includes it. For what is a tree by construction.
        """
        root = operator.index(root_token)
        _check_structure([root], [-1])
        tree = cls.__new__(cls)
        tree._tokens, tree._parents, tree.scores = [root, *tokens], [-1, *parents], scores
        tree.tokens, tree.parents = torch.tensor(tree._tokens), torch.tensor(tree._parents)
        return tree

    def __len__(self) -> int:
        return len(self._tokens)

    def __repr__(self) -> str:
        return f"DraftTree(nodes={len(self)}, height={self.height}, tokens={self._tokens}, parents={self._parents})"

    @property
    def device(self) -> torch.device:
        """Device of the tree's tensors."""
        return self.tokens.device

    @cached_property
    def _depths(self) -> list[int]:
        depths = [0]
        for parent in self._parents[1:]:
            depths.append(depths[parent] + 1)
        return depths

    @property
    def height(self) -> int:
        """Largest depth of a node; 0 for a root-only tree."""
        return max(self._depths)

    @cached_property
    def depths(self) -> Tensor:
        """[N] long: number of draft tokens on the path to each node (0 at the root)."""
        return torch.tensor(self._depths, device=self.device)

    @cached_property
    def levels(self) -> list[Tensor]:
        """Node indices of each depth 0..height, as long tensors in ascending order."""
        nodes = [[] for _ in range(self.height + 1)]
        for node, depth in enumerate(self._depths):
            nodes[depth].append(node)
        return [torch.tensor(level, device=self.device) for level in nodes]

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node as lists of node indices, in node order."""
        children = [[] for _ in range(len(self))]
        for node, parent in enumerate(self._parents[1:], start=1):
            children[parent].append(node)
        return children

    @cached_property
    def internal(self) -> list[int]:
        """Nodes that have children, ascending."""
        return sorted(set(self._parents[1:]))

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor]:
        """The non-root nodes [N - 1] sorted by parent, then by node, and each one's parent's place in `internal`."""
        parents = np.array(self._parents[1:], dtype=np.int64)
        order = parents.argsort(kind="stable")
        owner = np.searchsorted(np.array(self.internal, dtype=np.int64), parents[order])
        return torch.from_numpy(order + 1).to(self.device), torch.from_numpy(owner).to(self.device)

    @cached_property
    def ancestors(self) -> Tensor:
        """[N, N] bool: row i is True at the ancestors of i and at i itself (the tree attention mask)."""
        rows = [1]  # a node's row as the bits of an integer
        for node, parent in enumerate(self._parents[1:], start=1):
            rows.append(rows[parent] | 1 << node)
        size = -(-len(rows) // 8)
        packed = np.frombuffer(b"".join(row.to_bytes(size, "little") for row in rows), dtype=np.uint8)
        bits = np.unpackbits(packed.reshape(-1, size), axis=1, count=len(rows), bitorder="little")
        return torch.from_numpy(bits.view(np.bool_)).to(self.device)

    @cached_property
    def _child_by_token(self) -> dict[tuple[int, int], int]:
        edges = zip(self._parents[1:], self._tokens[1:], strict=True)
        return {edge: node for node, edge in enumerate(edges, start=1)}

    @cached_property
    def largest_token(self) -> tuple[int, int]:
        """The largest draft token and a node that holds it; (-1, 0) for a root-only tree."""
        return max(((token, node) for node, token in enumerate(self._tokens[1:], start=1)), default=(-1, 0))

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that holds `token`, or None when the tree has no such child."""
        return self._child_by_token.get((node, token))

    def token(self, node: int) -> int:
        """Token id of `node` as a Python int."""
        return self._tokens[node]

    def parent(self, node: int) -> int:
        """Parent of `node` as a Python int; -1 for the root."""
        return self._parents[node]

    def node_path(self, node: int) -> list[int]:
        """Node indices from the root (0) to `node`, both included; IndexError for a node the tree does not have."""
        if not 0 <= node < len(self):
            raise IndexError(f"node {node} is not in a tree of {len(self)} nodes")
        path = []
        while node >= 0:
            path.append(node)
            node = self._parents[node]
        return path[::-1]

    def path(self, node: int) -> list[int]:
        """Draft tokens from the root to `node`, the root's own token excluded: pi(node) of the paper."""
        return [self._tokens[step] for step in self.node_path(node)[1:]]

    def prefix(self, n: int) -> DraftTree:
        """The tree of the first `n` nodes, root included; for a best-first tree, the tree of budget `n - 1`.

        Raises ValueError unless 1 <= n <= len(tree).
        """
        if not 1 <= n <= len(self):
            raise ValueError(f"a prefix needs 1 to {len(self)} nodes (the tree's size); got {n}")
        return DraftTree(self.tokens[:n], self.parents[:n], None if self.scores is None else self.scores[:n])

    def to(self, device: torch.device | str) -> DraftTree:
        """The same tree with its tensors on `device`."""
        scores = None if self.scores is None else self.scores.to(device)
        return DraftTree(self.tokens.to(device), self.parents.to(device), scores)


def _long_vector(values: Tensor | Sequence[int], name: str) -> Tensor:
    vector = torch.as_tensor(values)
    if vector.ndim != 1 or vector.numel() == 0:
        raise ValueError(f"{name} must be a vector with at least the root; got shape {tuple(vector.shape)}")
    if vector.dtype.is_floating_point or vector.dtype in (torch.bool, torch.complex64, torch.complex128):
        raise ValueError(f"{name} must be integers; got {vector.dtype}")
    return vector.long()


def _check_structure(tokens: list[int], parents: list[int]) -> None:
    if len(tokens) != len(parents):
        raise ValueError(f"tokens and parents differ in length: {len(tokens)} and {len(parents)}")
    if parents[0] != -1:
        raise ValueError(f"node 0 is the root and must have parent -1; got {parents[0]}")
    seen = {}
    for node, (parent, token) in enumerate(zip(parents, tokens, strict=True)):
        if token < 0:
            raise ValueError(f"node {node}: token {token} is negative; token ids start at 0")
        if node == 0:
            continue
        if parent == -1:
            raise ValueError(f"node {node}: a second root (parent -1); only node 0 may be a root")
        if not 0 <= parent < node:
            raise ValueError(f"node {node}: {_order_fault(node, parents)}")
        twin = seen.setdefault((parent, token), node)
        if twin != node:
            raise ValueError(f"node {node}: duplicate sibling of node {twin} (parent {parent}, token {token})")


def _order_fault(node: int, parents: list[int]) -> str:
    """Why the parent of `node` is wrong, in words: outside the tree, on a cycle, or listed too late."""
    parent = parents[node]
    if not 0 <= parent < len(parents):
        return f"parent {parent} is not a node; the tree has nodes 0 to {len(parents) - 1}"
    walk = [node]
    while 0 <= parent < len(parents) and parent not in walk:
        walk.append(parent)
        parent = parents[parent]
    if parent == node:
        return "its ancestors form a cycle " + " -> ".join(str(step) for step in [*walk, node])
    return f"parent {parents[node]} does not come before it; parents must precede their children"


def _check_scores(scores: Tensor, n: int) -> None:
    if scores.shape != (n,) or not scores.dtype.is_floating_point:
        raise ValueError(f"scores must be {n} floats, one per node; got {scores.dtype} of shape {tuple(scores.shape)}")
    nan = scores.isnan()
    if nan.any():
        raise ValueError(f"node {int(nan.nonzero()[0])}: score is NaN")
