"""The three verifiers as one would do them with pencil and dice: plain Python, all randomness from `draw`."""

from __future__ import annotations

from torch import Tensor

from tevlib.course.enumeration import Draw
from tevlib.trees.draft_tree import DraftTree


def predraw(tree: DraftTree, probs: Tensor, draw: Draw) -> tuple[int, int]:
    """Exit node and bonus token: one token drawn at every node beforehand, children followed while they match."""
    drawn = [draw(row) for row in probs.tolist()]
    node = 0
    while (child := tree.child(node, drawn[node])) is not None:
        node = child
    return node, drawn[node]


def sequential_residual(tree: DraftTree, probs: Tensor, draw: Draw) -> tuple[int, int]:
    """Exit node and bonus token: children tested one by one, a rejected one's token taken out before the next test."""
    node, residual = 0, probs[0].tolist()
    untested = list(tree.children[0])
    while untested:
        child = untested.pop(0)
        accept, residual[tree.token(child)] = residual[tree.token(child)], 0.0
        if draw([sum(residual), accept]):  # 1: accepted, with probability p_j / (1 - M_{j-1}), Eq. 49
            node, residual = child, probs[child].tolist()
            untested = list(tree.children[child])
    return node, draw(residual)


def tev(tree: DraftTree, probs: Tensor, draw: Draw) -> tuple[int, int]:
    """Exit node and bonus token: one draw from the exit law w, one from the residual there (Algorithm 1)."""
    residuals = probs.tolist()
    P, w = [1.0], []
    for node in range(len(tree)):  # parents come first
        if node > 0:
            P.append(P[tree.parent(node)] * float(probs[tree.parent(node), tree.token(node)]))
        for child in tree.children[node]:
            residuals[node][tree.token(child)] = 0.0
        w.append(P[node] * sum(residuals[node]))  # P(v) rho(v)
    node = draw(w)
    return node, draw(residuals[node])


BY_HAND = {"predraw": predraw, "sequential_residual": sequential_residual, "tev": tev}
