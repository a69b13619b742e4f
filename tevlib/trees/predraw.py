"""Predraw-and-follow (A.4.1) in three forms of one law: a target token at a node, and the child that holds it.

`predraw` draws at all nodes at once, as the paper's baseline does, in as few passes over the rows as we know how;
`predraw_reference` does what public code does; `predraw_lazy` draws at a node when the walk gets there, so that it pays
for D + 1 rows whatever the budget, one after the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import check_shape
from tevlib.trees.row_masses import rows_at_a_time
from tevlib.trees.rows import Rows, as_rows
from tevlib.trees.sampling import BLOCK, block_totals, categorical, check_rows, is_greedy, relative_weights, row_weights
from tevlib.trees.verdict import Verdict, greedy


def predraw(tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of predraw-and-follow: one token drawn at every node, children followed while they match.

    A block of the vocabulary is drawn at every node, by totals from one pass over the rows, and a token in it. Raises
    ValueError naming the node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, rows, temperature)
    rows = as_rows(rows)
    check_shape(tree, rows)
    logits = rows.all().detach()
    reference, totals = _block_totals(logits, temperature)
    block = categorical(totals, generator).unsqueeze(-1)
    columns = block * BLOCK + torch.arange(min(BLOCK, logits.shape[-1]), device=logits.device)
    beyond = columns >= logits.shape[-1]
    inside = relative_weights(logits.gather(-1, columns.masked_fill(beyond, 0)), reference, temperature)
    place = categorical(inside.masked_fill_(beyond, 0), generator)
    return follow(tree, (block.squeeze(-1) * BLOCK + place).tolist())


def predraw_reference(tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of predraw-and-follow as public code has it: softmax and `torch.multinomial` of all rows.

    Raises ValueError naming the node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, rows, temperature)
    rows = as_rows(rows)
    check_shape(tree, rows)
    logits = rows.all().detach()
    probs = (logits / temperature).softmax(-1)
    if probs[:, 0].isnan().any():
        check_rows(logits.amax(-1), "node")
    return follow(tree, multinomial(probs, generator).tolist())


def predraw_lazy(tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
    """The `Verdict` of predraw-and-follow that draws at visited nodes only: the same law, since no other draw counts.

    Raises ValueError naming a visited node whose logits are NaN or infinite.
    """
    if is_greedy(temperature):
        return greedy(tree, rows, temperature)
    rows = as_rows(rows)
    check_shape(tree, rows)
    node = 0
    while True:
        token = int(categorical(row_weights(rows[node].detach(), temperature, f"node {node}"), generator))
        child = tree.child(node, token)
        if child is None:
            return Verdict(node, tree.node_path(node), token)
        node = child


def follow(tree: DraftTree, drawn: list[int]) -> Verdict:
    """The `Verdict` of one token `drawn` at every node: children are followed while they hold it."""
    node = 0
    while (child := tree.child(node, drawn[node])) is not None:
        node = child
    return Verdict(node, tree.node_path(node), drawn[node])


def multinomial(probs: Tensor, generator: torch.Generator) -> Tensor:
    """Indices [n] that `torch.multinomial` draws from `probs` [n, K]."""
    return torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def _block_totals(logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The largest entry [n, 1] of each row of `logits` [n, V], and `block_totals` of the weights relative to it.

    Raises ValueError naming the node whose logits are NaN or infinite.
    """
    step = rows_at_a_time(logits)
    buffer = torch.empty_like(logits[:step])
    references, totals = [], []
    for chosen in logits.split(step):
        references.append(chosen.amax(-1, keepdim=True))
        weights = relative_weights(chosen, references[-1], temperature, out=buffer[: len(chosen)])
        totals.append(block_totals(weights) if logits.shape[-1] > BLOCK else weights.sum(-1, keepdim=True))
    reference = torch.cat(references)
    check_rows(reference.squeeze(-1), "node")
    return reference, torch.cat(totals)
