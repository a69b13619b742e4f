"""Tree Exit Verification in tensors of fixed shapes: what a GPU runs, and what a CUDA graph can hold.

Nothing here waits for the device, loops over nodes or looks at a value on the host. The shapes depend on the number of
nodes alone, so a round of fewer nodes is padded: a padding node has parent -1 (only node 0 is the root), any token,
and any finite or NaN row. A temperature is a number of the caller's, fixed when a graph is captured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tevlib.trees.sampling import at_least_float32, inverse_cdf, is_greedy, unchecked_probs


class ExitDraw(NamedTuple):
    """What a round decided, as tensors on the device of the rows.

    node [] long: the exit; bonus [] long: the token after it; path [height + 1] long: nodes from the root to the exit,
    then the exit again; length [] long: L = D + 1, the path's nodes without that padding; P and w [n] float64: target
    probability of reaching each node, and the exit law, 0 at padding; finite [] bool: False when a row that mattered
    was NaN, +inf or -inf throughout, and then the rest means nothing.
    """

    node: Tensor
    bonus: Tensor
    path: Tensor
    length: Tensor
    P: Tensor
    w: Tensor
    finite: Tensor


def exit_draw(
    tokens: Tensor,
    parents: Tensor,
    ancestors: Tensor,
    logits: Tensor,
    temperature: float,
    uniforms: Tensor,
    height: int,
    inner: Tensor | None = None,
) -> ExitDraw:
    """The `ExitDraw` of Algorithm 1: one node drawn from w, then one token from the residual law of its row.

    tokens, parents [n] long; ancestors [n, n] bool, row i True at the ancestors of i and at i (the tree's attention
    mask; a padding node's row at itself alone); logits [n, V], row i that of node i; uniforms [2] float64 in [0, 1),
    drawn by the caller, one for each draw; height: depth of the deepest node that any round may have; inner [m] long,
    m > 0: the nodes whose rows are normalised, all that have children and any others (repeated ones do no harm), or
    None for all n. At a greedy temperature it is the longest argmax match, the law of one-hot rows, and the uniforms
    play no part.
    """
    logits = at_least_float32(logits)
    if is_greedy(temperature):
        return _greedy_draw(tokens, parents, ancestors, logits, height)
    is_edge = parents >= 0
    parent, token = parents.clamp(min=0), torch.where(is_edge, tokens, 0)
    if inner is None:
        laws, owner = unchecked_probs(logits, temperature), parent
    else:
        laws = unchecked_probs(logits.index_select(0, inner), temperature)
        places = torch.arange(len(inner), device=inner.device)
        owner = torch.zeros_like(parent).index_copy_(0, inner, places).index_select(0, parent)
    edge = take_out(laws, owner, token, is_edge)
    P, w = exit_weights(parent, owner, is_edge, ancestors, edge, laws.sum(-1).double())
    node = inverse_cdf(w[None], uniforms[:1, None])
    residual = laws.index_select(0, node) if inner is None else _residual(logits, node, parents, token, temperature)
    bonus = inverse_cdf(residual, uniforms[1:, None])
    finite = (w.sum() + residual.sum()).isfinite()
    path, length = path_to(node, ancestors, height)
    return ExitDraw(node[0], bonus[0], path, length, P, w, finite)


def take_out(laws: Tensor, row: Tensor, token: Tensor, is_edge: Tensor) -> Tensor:
    """[n] float64 entries of `laws` [m, V] at (`row`, `token`), removed from `laws` in place; 0 where not `is_edge`."""
    place = row * laws.shape[-1] + token
    flat = laws.view(-1)
    mass = torch.where(is_edge, flat.index_select(0, place), 0)
    flat.index_add_(0, place, mass, alpha=-1)  # x - x is 0 exactly; a place that is no edge's loses nothing
    return mass.double()


def exit_weights(
    parent: Tensor, owner: Tensor, is_edge: Tensor, ancestors: Tensor, edge: Tensor, outside: Tensor
) -> tuple[Tensor, Tensor]:
    """P and w [n] float64 (Eqs. 2 and 4) from the mass [n] of each node's `edge` and that `outside` children [m].

    `owner` [n] is the place of each node's `parent` among the m rows. The two parts of a row are divided by their own
    sum, so w sums to 1 whatever was rounded in the rows.
    """
    total = outside.index_add(0, owner, edge).index_select(0, owner)
    step = torch.where(is_edge, edge / total, 0)
    exits = torch.where(is_edge, outside.index_select(0, owner) / total, 1)  # the parent's rho, at each child
    rho = torch.ones_like(step).scatter_reduce_(0, parent, exits, "amin")
    step[0] = 1  # the root is reached; padding is not
    P = torch.where(ancestors, step, 1).prod(-1)
    return P, torch.where(P > 0, P * rho, P)  # a row that is never reached may hold anything


def _residual(logits: Tensor, node: Tensor, parents: Tensor, token: Tensor, temperature: float) -> Tensor:
    """[1, V] the law of the row of `node` [1] without the tokens of its children."""
    law = unchecked_probs(logits.index_select(0, node), temperature)
    take_out(law, torch.zeros_like(token), token, parents == node)
    return law


def path_to(node: Tensor, ancestors: Tensor, height: int) -> tuple[Tensor, Tensor]:
    """Nodes [height + 1] from the root to `node` [1], padded with `node`, and their number [] without the padding."""
    on_path = ancestors.index_select(0, node)[0]
    depth = ancestors.sum(-1) - 1
    slot = torch.where(on_path, depth, height + 1)
    path = node.repeat(height + 2).scatter_(0, slot, torch.arange(len(depth), device=node.device))
    return path[: height + 1], on_path.sum()


def _greedy_draw(tokens: Tensor, parents: Tensor, ancestors: Tensor, logits: Tensor, height: int) -> ExitDraw:
    top, best = logits.max(-1)
    follows = (parents >= 0) & (tokens == best.index_select(0, parents.clamp(min=0)))
    follows[0] = True
    reached = torch.where(ancestors, follows, True).all(-1)
    node = torch.where(reached, ancestors.sum(-1), 0).argmax()[None]
    path, length = path_to(node, ancestors, height)
    P = reached.double()
    w = torch.zeros_like(P).index_fill_(0, node, 1)
    finite = torch.where(reached, top, 0).isfinite().all()
    return ExitDraw(node[0], best.index_select(0, node)[0], path, length, P, w, finite)
