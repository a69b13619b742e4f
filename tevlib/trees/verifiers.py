"""Exact path verifiers on a fixed draft tree: greedy, predraw-and-follow, sequential residual, and TEV.

All share the signature `(tree, logits, temperature, generator) -> Verdict`. On one tree the last three realise the same
law of (exit node, bonus token), w(v) p_res(a) (Theorem 1, Corollaries 1 and 2). They use different numbers of draws, so
equal seeds give equal laws, not equal texts. At a greedy temperature all are the longest argmax match.

That token equality is enough, whatever proposed the tree: an emitted token is always a draw from the target's own row,
and the tree only decides which rows are at hand. No draft probability enters; a tree that was *sampled* and is to be
judged by its draft probabilities belongs to `tevlib.trees.sampled_chain`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import ExitLaw, check_shape, exit_law
from tevlib.trees.sampling import argmax_lowest, categorical, check_rows, is_greedy, target_probs


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


def greedy(tree: DraftTree, logits: Tensor, temperature: float, generator: torch.Generator | None = None) -> Verdict:
    """The `Verdict` of the longest argmax match: follow the child that holds the row's lowest-id argmax.

    Exact for temperature 0 only; raises ValueError at a sampling temperature, where it would emit another law.
    """
    if not is_greedy(temperature):
        raise ValueError(f"greedy verification is exact at temperature 0 only; got {temperature}")
    check_shape(tree, logits)
    node = 0
    while True:
        row = logits[node]
        token = argmax_lowest(row)
        check_rows(row[token], f"node {node}")
        child = tree.child(node, int(token))
        if child is None:
            return Verdict(node, tree.node_path(node), int(token))
        node = child


def predraw(tree: DraftTree, logits: Tensor, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of predraw-and-follow (A.4.1): one token drawn at every node, children followed while they match.

    Raises ValueError naming the node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, logits, temperature)
    check_shape(tree, logits)
    drawn = categorical(target_probs(logits, temperature, label="node"), generator).tolist()
    node = 0
    while (child := tree.child(node, drawn[node])) is not None:
        node = child
    return Verdict(node, tree.node_path(node), drawn[node])


def sequential_residual(tree: DraftTree, logits: Tensor, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of child-by-child tests with residual renormalisation (A.4.2, Eqs. 45-53), in node order.

    Draft probabilities play no part (q = 1): child u is followed with its mass under the current residual, and a
    rejected child's token is removed before the next test. Reads the rows of visited nodes only; raises ValueError
    naming a visited node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, logits, temperature)
    check_shape(tree, logits)
    node = 0
    while True:
        residual = target_probs(logits[node], temperature, label=f"node {node}")
        follow = None
        for child in tree.children[node]:
            token = tree.token(child)
            accept = residual[token].clone()
            residual[token] = 0
            reject = residual.sum()  # 0 when the children tested so far hold all mass: then the test cannot fail
            if int(categorical(torch.stack([reject, accept]), generator)):
                follow = child
                break
            residual = residual / reject
        if follow is None:
            return Verdict(node, tree.node_path(node), int(categorical(residual, generator)))
        node = follow


def tev(tree: DraftTree, logits: Tensor, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of Tree Exit Verification (Algorithm 1): one exit draw from w, one bonus draw from its residual.

    Raises ValueError naming the node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, logits, temperature)
    return draw_exit(exit_law(tree, logits, temperature), generator)


def draw_exit(law: ExitLaw, generator: torch.Generator) -> Verdict:
    """The `Verdict` drawn from an exit law at hand: two independent draws, never over nodes x vocabulary."""
    node = int(categorical(law.w, generator))
    bonus = int(categorical(law.residual(node), generator))
    return Verdict(node, law.tree.node_path(node), bonus)


VERIFIERS = {"greedy": greedy, "predraw": predraw, "sequential_residual": sequential_residual, "tev": tev}
