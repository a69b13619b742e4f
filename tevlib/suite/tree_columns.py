"""A scored tree as the columns that a recording keeps of it: `tevlib.explorer.recording` reads them."""

import math
from collections.abc import Sequence

from torch import Tensor, inf

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.sampling import is_greedy
from tevlib.trees.top_tokens import top_tokens

NEVER = -1e9  # log-probability of what cannot be: JSON has no infinity


def tree_columns(
    tree: DraftTree, logits: Tensor, temperatures: Sequence[float], top: int = 6, draft_log_probs: Tensor | None = None
) -> dict:
    """A tree and the target's flow through it as JSON-ready columns, one entry per node.

    `log_p`: log-probability (at temperature 1) of the node's own token at its parent; `missing`, `missing_log_p`: the
    `top` most likely tokens without a child there, best first; `missing_log_q`: what the drafter gave them
    (`draft_log_probs` [H, V], one row per depth; None beyond the horizon and without it); `argmax`: the greedy token.
    Per temperature: `log_z`, so that p_T(a) = exp(log_p(a) / T - log_z), and `rho` of `exit_law`. Logits are [N, V].
    """
    log_p = logits.double().log_softmax(-1)
    laws = [exit_law(tree, log_p, temperature) for temperature in temperatures]
    absent = log_p.clone()
    parents = tree.parents[1:]
    own = log_p[parents, tree.tokens[1:]]
    absent[parents, tree.tokens[1:]] = -inf
    values, ids = top_tokens(absent, min(top, absent.shape[-1]))
    missing = [_finite(row, value) for row, value in zip(ids.tolist(), values.tolist(), strict=True)]
    depths = tree.depths.tolist()
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "scores": None if tree.scores is None else _rounded(tree.scores.tolist(), 4),
        "log_p": [0.0, *_rounded(own.tolist(), 5)],
        "argmax": log_p.argmax(-1).tolist(),
        "missing": [[token for token, _ in row] for row in missing],
        "missing_log_p": [_rounded([value for _, value in row], 5) for row in missing],
        "missing_log_q": [
            _draft_log_probs(draft_log_probs, depth, [token for token, _ in row])
            for depth, row in zip(depths, missing, strict=True)
        ],
        "log_z": [_log_z(log_p, temperature) for temperature in temperatures],
        "rho": [[float(f"{rho:.6g}") for rho in law.rho.tolist()] for law in laws],
    }


def _log_z(log_p: Tensor, temperature: float) -> list[float]:
    if is_greedy(temperature):
        return [0.0] * len(log_p)  # not used: the law is one-hot
    return _rounded((log_p / temperature).logsumexp(-1).tolist(), 5)


def _finite(ids: list[int], values: list[float]) -> list[tuple[int, float]]:
    return [(token, value) for token, value in zip(ids, values, strict=True) if math.isfinite(value)]


def _draft_log_probs(rows: Tensor | None, depth: int, tokens: list[int]) -> list[float | None]:
    if rows is None or depth >= len(rows):
        return [None] * len(tokens)
    return [round(value, 3) if math.isfinite(value) else None for value in rows[depth, tokens].tolist()]


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) if math.isfinite(value) else NEVER for value in values]
