"""What every verifier returns, what it must be, and the greedy walk that all of them are at a greedy temperature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import check_shape
from tevlib.trees.rows import Rows, as_rows
from tevlib.trees.sampling import argmax_lowest, check_rows, is_greedy


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided: the exit `node`, the node indices of its `path` from the root, and the `bonus` token."""

    node: int
    path: list[int]
    bonus: int

    @property
    def length(self) -> int:
        """L = D + 1: accepted draft tokens plus the bonus token."""
        return len(self.path)


def check_verdict(verdict: Verdict, tree: DraftTree, vocabulary: int) -> None:
    """None; ValueError where `verdict` names no node of `tree`, another path than that node's, or no token."""
    if not isinstance(verdict, Verdict) or not 0 <= verdict.node < len(tree):
        raise ValueError(f"a verifier returns the Verdict of one of the tree's {len(tree)} nodes, got {verdict!r}")
    if verdict.path != tree.node_path(verdict.node):
        raise ValueError(f"the path to node {verdict.node} is {tree.node_path(verdict.node)}, got {verdict!r}")
    if not 0 <= verdict.bonus < vocabulary:
        raise ValueError(f"the bonus is a token in 0..{vocabulary - 1}, got {verdict!r}")


def greedy(
    tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator | None = None
) -> Verdict:
    """The `Verdict` of the longest argmax match: follow the child that holds the row's lowest-id argmax.

    Exact for temperature 0 only; raises ValueError at a sampling temperature, where it would emit another law.
    """
    if not is_greedy(temperature):
        raise ValueError(f"greedy verification is exact at temperature 0 only; got {temperature}")
    rows = as_rows(rows)
    check_shape(tree, rows)
    node = 0
    while True:
        row = rows[node]
        token = argmax_lowest(row)
        check_rows(row[token], f"node {node}")
        child = tree.child(node, int(token))
        if child is None:
            return Verdict(node, tree.node_path(node), int(token))
        node = child
