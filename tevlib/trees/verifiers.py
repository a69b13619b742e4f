"""Exact path verifiers on a fixed draft tree: greedy, predraw-and-follow, sequential residual, and TEV.

All share the signature `(tree, rows, temperature, generator) -> Verdict`; `rows` are the target's logits [N, V], or
`Rows` that are made when they are asked for. On one tree all but `greedy` realise the same law of (exit node, bonus
token), w(v) p_res(a) (Theorem 1, Corollaries 1 and 2). They use different numbers of draws, so equal seeds give equal
laws, not equal texts. At a greedy temperature all are the longest argmax match.

That token equality is enough, whatever proposed the tree: an emitted token is always a draw from the target's own row,
and the tree only decides which rows are at hand. No draft probability enters; a tree that was *sampled* and is to be
judged by its draft probabilities belongs to `tevlib.trees.sampled_chain`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import ExitLaw, check_shape
from tevlib.trees.fixed_shape import exit_draw
from tevlib.trees.predraw import predraw, predraw_lazy, predraw_reference
from tevlib.trees.row_masses import edges_and_outside_on_cpu
from tevlib.trees.rows import Rows, as_rows
from tevlib.trees.sampling import (
    categorical,
    check_rows,
    is_greedy,
    relative_weights,
    row_weights,
    target_probs,
    uniform,
)
from tevlib.trees.verdict import Verdict, greedy

Verifier = Callable[[DraftTree, Tensor | Rows, float, torch.Generator], Verdict]
ALMOST_1 = math.nextafter(1, 0)


def sequential_residual(
    tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator
) -> Verdict:
    """The `Verdict` of child-by-child tests with residual renormalisation (A.4.2, Eqs. 45-53), in node order.

    Draft probabilities play no part (q = 1): child u is followed with its mass under the current residual, and a
    rejected child's token is removed before the next test. Reads the rows of visited nodes only; raises ValueError
    naming a visited node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, rows, temperature)
    rows = as_rows(rows)
    check_shape(tree, rows)
    node = 0
    while True:
        residual = target_probs(rows[node].detach(), temperature, label=f"node {node}")
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


def tev(tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of Tree Exit Verification (Algorithm 1) in the form that suits the device of the rows.

    `tev_descent` on a CPU, `tev_parallel` elsewhere. Raises ValueError naming a node whose logits mattered and are NaN
    or infinite.
    """
    form = tev_descent if as_rows(rows).device.type == "cpu" else tev_parallel
    return form(tree, rows, temperature, generator)


def tev_parallel(tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of TEV with all of w at hand: one exit draw from w, one bonus draw from the exit's residual.

    Asks for the rows of internal nodes, all at once, and then for the exit's. Off the CPU it is `exit_draw`, and one
    copy to the host. Raises ValueError naming an internal node, or an exit, whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, rows, temperature)
    rows = as_rows(rows)
    check_shape(tree, rows)
    if rows.device.type != "cpu":
        return tev_on_device(tree, rows, temperature, generator)
    node = int(categorical(torch.from_numpy(exit_weights_of(tree, rows, temperature)), generator))
    residual = row_weights(rows[node].detach(), temperature, f"node {node}")
    if children := tree.children[node]:
        residual.index_fill_(0, torch.tensor([tree.token(child) for child in children]), 0)
    return Verdict(node, tree.node_path(node), int(categorical(residual, generator)))


def exit_weights_of(tree: DraftTree, rows: Rows, temperature: float) -> np.ndarray:
    """w [N] float64, that of `exit_law` without what a draw does not need; rows on the CPU, internal ones only."""
    child, owner = (x.numpy() for x in tree.edges)
    chosen, places = rows.within(tree.internal)
    tokens = tree.tokens.numpy()[child]
    edge, outside = edges_and_outside_on_cpu(chosen.detach(), temperature, places, owner, tokens, tree.internal)
    edge = np.exp(edge)
    total = outside + np.bincount(owner, edge, len(outside))
    P, rho = np.ones(len(tree)), np.ones(len(tree))
    P[child] = edge / total[owner]
    rho[tree.internal] = outside / total
    above, reach = tree.parents.clamp(min=0).numpy(), 1
    while reach <= tree.height:  # pointer doubling: products over 1, 2, 4, ... ancestors
        P, above, reach = P * P[above], above[above], 2 * reach
    return P * rho


def draw_exit(law: ExitLaw, generator: torch.Generator) -> Verdict:
    """The `Verdict` drawn from an exit law at hand: two independent draws, never over nodes x vocabulary."""
    node = int(categorical(law.w, generator))
    bonus = int(categorical(law.residual_weights(node), generator))
    return Verdict(node, law.tree.node_path(node), bonus)


def tev_on_device(tree: DraftTree, rows: Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """`tev_parallel` by `exit_draw`, whose two numbers and flag come to the host together."""
    logits = rows.all().detach()
    uniforms = torch.rand(2, dtype=torch.float64, generator=generator, device=generator.device).to(logits.device)
    inner = torch.tensor(tree.internal or [0]).to(logits.device, non_blocking=True)
    on = tree.to(logits.device) if tree.device != logits.device else tree
    drawn = exit_draw(on.tokens, on.parents, on.ancestors, logits, temperature, uniforms, tree.height, inner)
    node, bonus, finite = torch.stack([drawn.node, drawn.bonus, drawn.finite.long()]).tolist()
    if not finite:
        check_rows(logits.amax(-1), "node")
    return Verdict(node, tree.node_path(node), bonus)


def tev_descent(tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of TEV by an inverse CDF in depth-first order, which visits only the nodes of the path it takes.

    Raises ValueError naming a visited node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, rows, temperature)
    rows = as_rows(rows)
    check_shape(tree, rows)
    node, residual = descend(tree, rows, temperature, uniform(generator))
    return Verdict(node, tree.node_path(node), int(categorical(residual, generator)))


def descend(tree: DraftTree, rows: Rows, temperature: float, u: float) -> tuple[int, Tensor]:
    """The exit node where `u` in [0, 1) falls, and what its residual law is proportional to [V]; no greedy temperature.

    The subtree of a node divides the interval that reaches the node among its children, in node order, and the exit at
    the node itself comes last: the measure of u that exits at v is w(v). Each step looks at one row; inside the chosen
    child's interval u is uniform again.
    """
    node = 0
    while True:
        row = rows[node].detach()
        children = tree.children[node]
        if not children:
            return node, row_weights(row, temperature, f"node {node}")
        tokens = torch.tensor([tree.token(child) for child in children], device=row.device)
        below, weights, outside = _split_row(row, tokens, temperature, node)
        target = u * (math.fsum(below) + outside)
        for child, mass in zip(children, below, strict=True):
            if target < mass:
                node, u = child, target / mass
                break
            target -= mass
        else:
            if outside > 0:
                return node, weights
            node, u = [(c, ALMOST_1) for c, mass in zip(children, below, strict=True) if mass > 0][-1]  # rounded up


def _split_row(row: Tensor, tokens: Tensor, temperature: float, node: int) -> tuple[list[float], Tensor, float]:
    """Mass of each of `tokens`, the weights of `row` [V] without them, and their sum; all relative to one factor."""
    reference = row.index_select(0, tokens).amax()
    below, weights, outside = _apart(row, tokens, temperature, reference)
    if not math.isfinite(outside * reference.item()):  # no child near the row's largest entry, or no law
        reference = row.amax()
        check_rows(reference, f"node {node}")
        below, weights, outside = _apart(row, tokens, temperature, reference)
    return below, weights, outside


def _apart(row: Tensor, tokens: Tensor, temperature: float, reference: Tensor) -> tuple[list[float], Tensor, float]:
    weights = relative_weights(row, reference, temperature)
    below = weights.index_select(0, tokens).tolist()
    return below, weights, weights.index_fill_(0, tokens, 0).sum().item()


VERIFIERS = {
    "greedy": greedy,
    "predraw": predraw,
    "predraw_reference": predraw_reference,
    "predraw_lazy": predraw_lazy,
    "sequential_residual": sequential_residual,
    "tev": tev,
    "tev_parallel": tev_parallel,
    "tev_descent": tev_descent,
}
