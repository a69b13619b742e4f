"""Target flow through a recorded tree, pruned or edited, at a recorded temperature: P, rho, w (Eqs. 2, 4, 6).

`flow.js` is the same in JavaScript, and the tests hold both against `tevlib.trees.exit_law`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Edit = tuple[str, int, int]  # ("add", node, token) or ("drop", node, -1)


@dataclass(frozen=True)
class Flow:
    """P, rho, w of every node, None where the node is not in the tree; nodes that were added come last.

    `gone` holds the draft tokens that a node lost (pruned or dropped) with their probabilities there.
    """

    tokens: list[int]
    parents: list[int]
    P: list[float | None]
    rho: list[float | None]
    w: list[float | None]
    gone: list[list[tuple[int, float]]]
    depth: list[int]

    @property
    def alive(self) -> list[int]:
        """Nodes that are in the tree."""
        return [node for node, mass in enumerate(self.P) if mass is not None]

    @property
    def coverage(self) -> float:
        """C_p as the sum of P over non-root nodes (Eq. 6, first form)."""
        return sum(self.P[node] for node in self.alive if node)

    @property
    def exit_depth(self) -> float:
        """C_p as the expected depth of the exit, the sum of w times depth (Eq. 6, second form)."""
        return sum(self.w[node] * self.depth[node] for node in self.alive)


def flow(tree: Mapping, temperature: float, stop: int, budget: int | None = None, edits: Sequence[Edit] = ()) -> Flow:
    """The `Flow` of the first `budget` draft tokens of a recorded `tree` (`recording.tree_columns`), then edited.

    `stop` is the place of `temperature` among the recorded ones. Raises ValueError for a budget below 0 and for an
    edit that does not fit: a node that is not there, a token that is there already or has no recorded probability.
    """
    n = len(tree["tokens"])
    kept = n if budget is None else budget + 1
    if kept < 1:
        raise ValueError(f"budget must be >= 0; got {budget}")
    tokens, parents, edge = list(tree["tokens"]), list(tree["parents"]), _edges(tree, temperature, stop)
    alive = [node < kept for node in range(n)]
    for kind, node, token in edits:
        if not 0 <= node < len(tokens) or not alive[node]:
            raise ValueError(f"node {node} is not in the tree")
        if kind == "drop":
            if node == 0:
                raise ValueError("the root cannot be dropped: it is the last token of the text")
            alive[node] = False
            for other in range(node + 1, len(tokens)):
                alive[other] = alive[other] and alive[parents[other]]
        elif kind == "add":
            edge.append(_probability_of_missing(tree, node, token, temperature, stop, tokens, parents, alive, edge))
            tokens.append(token)
            parents.append(node)
            alive.append(True)
        else:
            raise ValueError(f"an edit adds or drops; got {kind!r}")
    return _flow(tree, stop, tokens, parents, alive, edge)


def missing_tokens(tree: Mapping, found: Flow, node: int, temperature: float, stop: int) -> list[tuple[int, float]]:
    """Tokens that `node` has no child for, with their one-step gains P(v) p_v(a) (Eq. 12), best first.

    Those are the recorded ones and what pruning and dropping took away; all others together are `w - sum of gains`.
    """
    here = {token for token, parent in zip(found.tokens, found.parents, strict=True) if parent == node}
    listed = dict(found.gone[node])
    if node < len(tree["tokens"]):
        for token in tree["missing"][node]:
            if token not in here:
                listed[token] = _missing(tree, node, token, temperature, stop)
    gains = [(token, found.P[node] * p) for token, p in listed.items()]
    return sorted(gains, key=lambda pair: (-pair[1], pair[0]))


def _flow(tree, stop, tokens, parents, alive, edge) -> Flow:
    count = len(tokens)
    kids: list[list[int]] = [[] for _ in range(count)]
    depth = [0] * count
    for node in range(1, count):
        kids[parents[node]].append(node)
        depth[node] = depth[parents[node]] + 1
    recorded = len(tree["tokens"])
    P: list[float | None] = [None] * count
    rho: list[float | None] = [None] * count
    gone: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    P[0] = 1.0
    for node in range(count):
        if not alive[node]:
            continue
        mine = [kid for kid in kids[node] if alive[kid]]
        lost = {tokens[kid]: edge[kid] for kid in kids[node] if not alive[kid] and kid < recorded}
        for kid in mine:
            lost.pop(tokens[kid], None)  # dropped, then added again
        gone[node] = list(lost.items())
        for kid in mine:
            P[kid] = P[node] * edge[kid]
        if not mine:
            rho[node] = 1.0
        else:
            original = tree["rho"][stop][node] if node < recorded else 1.0
            moved = sum(edge[kid] for kid in kids[node] if kid < recorded) - sum(edge[kid] for kid in mine)
            rho[node] = max(0.0, original + moved)  # below 0 by rounding only: the children's mass is at most 1
    w = [None if P[node] is None else P[node] * rho[node] for node in range(count)]
    return Flow(tokens, parents, P, rho, w, gone, depth)


def _edges(tree: Mapping, temperature: float, stop: int) -> list[float]:
    """Probability of every node's own token at its parent; with the recorded rho they sum to exactly 1."""
    tokens, parents = tree["tokens"], tree["parents"]
    if temperature == 0:
        return [1.0, *(float(tree["argmax"][parents[u]] == tokens[u]) for u in range(1, len(tokens)))]
    log_z, rho = tree["log_z"][stop], tree["rho"][stop]
    edge = [1.0, *(math.exp(tree["log_p"][u] / temperature - log_z[parents[u]]) for u in range(1, len(tokens)))]
    total = [0.0] * len(tokens)
    for u in range(1, len(tokens)):
        total[parents[u]] += edge[u]
    scale = [(1 - r) / t if t > 0 else 0.0 for r, t in zip(rho, total, strict=True)]
    return [1.0, *(edge[u] * scale[parents[u]] for u in range(1, len(tokens)))]


def _missing(tree: Mapping, node: int, token: int, temperature: float, stop: int) -> float:
    """p_v(a) of a recorded token that has no node."""
    if temperature == 0:
        return float(tree["argmax"][node] == token)
    log_p = tree["missing_log_p"][node][tree["missing"][node].index(token)]
    return math.exp(log_p / temperature - tree["log_z"][stop][node])


def _probability_of_missing(tree, node, token, temperature, stop, tokens, parents, alive, edge) -> float:
    for kid in range(len(tokens)):
        if parents[kid] == node and tokens[kid] == token:
            if alive[kid]:
                raise ValueError(f"node {node} already has a child with token {token}")
            return edge[kid]
    if node >= len(tree["tokens"]) or token not in tree["missing"][node]:
        raise ValueError(f"token {token} has no recorded probability at node {node}")
    return _missing(tree, node, token, temperature, stop)
