"""Speculative sampling on a sampled chain: accept with min(1, p/q), resample from max(p - q, 0) (Appendix A.5).

Kept apart from the fixed-tree verifiers because it needs q, the law the chain was drawn from: its acceptance is an
expectation over the chain too, so the fixed-tree ceiling does not apply before the chain is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tevlib.trees.builders import check_log_probs
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import check_shape
from tevlib.trees.sampling import argmax_lowest, categorical, is_greedy, target_probs
from tevlib.trees.verifiers import Verdict


def draw_chain(
    log_probs: Tensor, budget: int, root_token: int, temperature: float, generator: torch.Generator
) -> tuple[DraftTree, Tensor]:
    """A sampled chain of n = min(budget, H) draft tokens and the law of each of them: a `DraftTree` and q [n, V].

    Token d is drawn from row d of `log_probs` [H, V] at `temperature`, independently of the others (q is a product of
    marginals); a greedy temperature gives the argmax chain with one-hot q. `scores` are cumulative log q. Raises
    ValueError for a negative budget and for rows that hold NaN or no finite entry.
    """
    budget, log_probs = check_log_probs(log_probs, budget)
    q = target_probs(log_probs[:budget], temperature)
    tokens = argmax_lowest(q) if is_greedy(temperature) else categorical(q, generator)
    scores = q.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).log().cumsum(0)
    tree = DraftTree(
        torch.cat([tokens.new_tensor([root_token]), tokens]),
        torch.arange(-1, len(tokens), device=tokens.device),
        torch.cat([scores.new_zeros(1), scores]),
    )
    return tree, q


def verify_sampled_chain(
    tree: DraftTree, q: Tensor, logits: Tensor, temperature: float, generator: torch.Generator
) -> Verdict:
    """The `Verdict` of token-wise speculative sampling on a chain from `draw_chain`, exact averaged over the chain.

    `q` [n, V] must be the law that drew the tokens; `logits` [n + 1, V] are the target's rows. Raises ValueError when
    the tree is no chain, when shapes do not fit, when a drafted token has q = 0, and for NaN rows (naming the node).
    """
    n = len(tree) - 1
    if tree.height != n:
        raise ValueError(f"a sampled chain has one node per depth; got {n} draft tokens of height {tree.height}")
    check_shape(tree, logits)
    if q.shape != (n, logits.shape[-1]):
        raise ValueError(f"q must be [{n}, {logits.shape[-1]}], one law per draft token; got {tuple(q.shape)}")
    for node in range(n):
        p = target_probs(logits[node], temperature, label=f"node {node}").double()
        law, token = q[node].double(), tree.token(node + 1)
        if not law[token] > 0:
            raise ValueError(f"node {node + 1}: token {token} has q = {float(law[token])}; it cannot have been drawn")
        accept = (p[token] / law[token]).clamp(max=1)
        residual = (p - law).clamp(min=0)
        # No residual mass means p = q up to rounding: then nothing is ever rejected.
        if residual.sum() > 0 and not int(categorical(torch.stack([1 - accept, accept]), generator)):
            return Verdict(node, tree.node_path(node), int(categorical(residual, generator)))
    bonus = categorical(target_probs(logits[n], temperature, label=f"node {n}"), generator)
    return Verdict(n, tree.node_path(n), int(bonus))
