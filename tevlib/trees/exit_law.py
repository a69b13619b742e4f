"""The canonical exit law of a fixed draft tree: where target continuations leave it (Eqs. 1-13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.row_masses import edges_and_outside
from tevlib.trees.rows import Rows, TensorRows
from tevlib.trees.sampling import (
    at_least_float32,
    check_rows,
    check_temperature,
    is_greedy,
    row_weights,
    target_probs,
)

_ROW_SUM_TOLERANCE = 1e-4


@dataclass(frozen=True, eq=False)
class ExitLaw:
    """Target flow through `tree`: all [N], in the dtype of the logits (float32 or better).

    P: target probability of reaching each node (Eq. 2); rho: local exit probability (Eq. 4), exactly 1 at leaves and
    exactly 0 where the children hold all mass; w = P * rho: exit law, sums to 1 (Lemma 1); log_P: P where it would
    underflow; edge_log_probs: log p of each node's own token at its parent, 0 at the root.
    """

    tree: DraftTree
    P: Tensor
    rho: Tensor
    w: Tensor
    log_P: Tensor
    edge_log_probs: Tensor
    _rows: Rows = field(repr=False)  # [N, V] the logits (temperature given) or the probabilities (None)
    _temperature: float | None = field(repr=False)

    @property
    def coverage(self) -> Tensor:
        """C_p: expected number of accepted draft tokens at saturation, the sum of P over non-root nodes (Eq. 6)."""
        return self.P[1:].sum()

    @property
    def ceiling(self) -> Tensor:
        """1 + C_p: the largest expected block length, bonus included, of any exact path verifier (Eq. 9)."""
        return 1 + self.coverage

    def residual(self, node: int) -> Tensor:
        """p_res [V] of `node`: the bonus-token law after an exit there (Eq. 7); at a leaf, p itself.

        Raises ValueError where rho is 0: no continuation exits there, so there is no law.
        """
        self._check_node(node)
        if self.rho[node] == 0:
            raise ValueError(f"node {node}: its children hold all target mass (rho = 0), so it has no residual law")
        weights = self.residual_weights(node)
        return weights / weights.sum()

    def residual_weights(self, node: int) -> Tensor:
        """[V] what p_res of `node` is proportional to; all 0 where rho is 0.

        Raises ValueError naming `node` when its row has a NaN or +inf or nothing else than -inf.
        """
        self._check_node(node)
        row = self._rows[node].detach()
        if self._temperature is None:
            weights = row.clone()
        elif is_greedy(self._temperature):
            weights = target_probs(row, self._temperature, label=f"node {node}")
        else:
            weights = row_weights(row, self._temperature, f"node {node}")
        if children := self.tree.children[node]:
            weights[[self.tree.token(child) for child in children]] = 0
        return weights

    def one_step_gain(self, node: int, token: int) -> Tensor:
        """Coverage gained by adding the missing child `token` to `node`: P(v) p_v(a), a scalar (Eq. 12).

        Raises ValueError when that child is already in the tree or the token is not in the vocabulary.
        """
        self._check_node(node)
        if not 0 <= token < self._rows.shape[-1]:
            raise ValueError(f"token {token} is outside the vocabulary of {self._rows.shape[-1]}")
        if self.tree.child(node, token) is not None:
            raise ValueError(f"node {node} already has a child with token {token}; nothing is gained by adding it")
        if self.rho[node] == 0:
            return self.w[node]
        return self.w[node] * self.residual(node)[token]

    def missing_mass(self, node: int) -> Tensor:
        """Coverage missing one step below `node`, summed over absent children: w(v), a scalar (Eq. 13)."""
        self._check_node(node)
        return self.w[node]

    def _check_node(self, node: int) -> None:
        if not 0 <= node < len(self.tree):
            raise IndexError(f"node {node} is not in a tree of {len(self.tree)} nodes")


def exit_law(
    tree: DraftTree, logits: Tensor | Rows | None = None, temperature: float = 1.0, *, probs: Tensor | None = None
) -> ExitLaw:
    """The `ExitLaw` of `tree` under the target rows p_v, from `logits` [N, V] at `temperature` or from `probs` [N, V].

    Row i belongs to node i; -inf logits are tokens of probability 0. A greedy temperature gives the law of the one-hot
    lowest-id argmax. The rows of leaves are not normalised: every continuation that reaches a leaf exits there. Of
    `Rows`, which may be deferred, those of leaves are not even asked for. The mass outside the children is summed
    itself, never taken as 1 - (their mass), so that it cannot be negative and keeps its digits when the children hold
    nearly all. Results are detached from the autograd graph.

    Raises ValueError for shapes that do not fit the tree, NaN or infinite rows (naming the node; a tensor's leaves are
    looked at too), a draft token outside the vocabulary, rows of `probs` that are no laws, and a temperature other than
    1 with `probs`.
    """
    if (logits is None) == (probs is None):
        raise ValueError("exit_law needs either logits or probs, and not both")
    temperature = check_temperature(temperature)
    if probs is not None:
        if temperature != 1:
            raise ValueError(f"probs are a law already; give logits to use temperature {temperature}")
        rows = TensorRows(probs.detach())
        check_shape(tree, rows)
        _check_laws(rows.logits)
        return _laws_of([tree], [rows], rows.logits, None, tree.internal)[0]
    rows = TensorRows(logits.detach()) if isinstance(logits, Tensor) else logits
    check_shape(tree, rows)
    if isinstance(logits, Tensor):
        check_rows(rows.logits.amax(-1), "node")
    chosen, places = rows.within(tree.internal)
    return _laws_of([tree], [rows], chosen, temperature, places)[0]


def exit_laws(trees: list[DraftTree], rows: Tensor, temperature: float = 1.0) -> list[ExitLaw]:
    """`exit_law` of many `trees` at once, from `rows` [sum of their N, V]: their logits one after the other.

    Trees on the CPU keep their laws there, wherever the rows are: only a few numbers per node are then copied.
    """
    temperature = check_temperature(temperature)
    rows = at_least_float32(rows.detach())
    sizes = [len(tree) for tree in trees]
    if rows.ndim != 2 or len(rows) != sum(sizes):
        raise ValueError(f"one row per node: expected [{sum(sizes)}, V]; got {tuple(rows.shape)}")
    parts = rows.split(sizes) if sizes else ()
    for tree, own in zip(trees, parts, strict=True):
        check_shape(tree, own)
    check_rows(rows.amax(-1), "row")
    places, start = [], 0
    for tree in trees:
        places += [start + node for node in tree.internal]
        start += len(tree)
    return _laws_of(trees, [TensorRows(own) for own in parts], rows, temperature, places)


def _laws_of(
    trees: list[DraftTree], rows: list[Rows], chosen: Tensor, temperature: float | None, places: Sequence[int]
) -> list[ExitLaw]:
    """The laws of `trees` with their `rows`; `places` of the internal nodes' rows, tree by tree, in `chosen` [M, V].

    `temperature` None: the rows are laws already.
    """
    names = [node for tree in trees for node in tree.internal]
    owners, tokens, start = [], [], 0
    for tree in trees:
        child, owner = tree.edges
        owners.append(owner + start)
        tokens.append(tree.tokens[child])
        start += len(tree.internal)
    device = trees[0].device if trees else chosen.device
    owners, tokens = (torch.cat(x).to(chosen.device) if x else chosen.new_empty(0).long() for x in (owners, tokens))
    edges, outsides = (x.to(device) for x in edges_and_outside(chosen, temperature, places, owners, tokens, names))
    laws, first, start = [], 0, 0
    for tree, own in zip(trees, rows, strict=True):
        child, owner = tree.edges
        edge, outside = edges[first : first + len(child)], outsides[start : start + len(tree.internal)]
        # From here on a few float64 numbers per node: P and rho of one node come from the same total, so the exit law
        # sums to 1 whatever was rounded in the rows.
        total = outside.index_add(0, owner, edge.exp())
        edge_log_probs = edge.new_zeros(len(tree)).index_copy_(0, child, edge - total.log()[owner])
        rho = torch.ones_like(edge_log_probs)
        rho[tree.internal] = outside / total
        log_P = _sum_over_ancestors(tree, edge_log_probs)
        P = log_P.exp()
        fields = torch.stack([P, rho, P * rho, log_P, edge_log_probs]).to(chosen.dtype)
        laws.append(ExitLaw(tree, *fields, _rows=own, _temperature=temperature))
        first, start = first + len(edge), start + len(outside)
    return laws


def check_shape(tree: DraftTree, rows: Tensor | Rows) -> None:
    """None; ValueError unless `rows` is [N, V] with one row per node and every draft token inside the vocabulary."""
    if len(rows.shape) != 2 or rows.shape[0] != len(tree):
        raise ValueError(f"one row per node: expected [{len(tree)}, V]; got {tuple(rows.shape)}")
    token, node = tree.largest_token
    if token >= rows.shape[-1]:
        raise ValueError(f"node {node}: token {token} is outside the vocabulary of {rows.shape[-1]}")


def _sum_over_ancestors(tree: DraftTree, values: Tensor) -> Tensor:
    """[N] sum of `values` (0 at the root) over each node's path, by pointer doubling: log2(height) steps."""
    ancestor = tree.parents.clamp(min=0)
    reach = 1
    while reach <= tree.height:
        values = values + values[ancestor]
        ancestor = ancestor[ancestor]
        reach *= 2
    return values


def _check_laws(probs: Tensor) -> None:
    negative = ~(probs >= 0)
    if negative.any():
        node, token = negative.nonzero()[0].tolist()
        raise ValueError(f"node {node}: probability {float(probs[node, token])} of token {token} is not >= 0")
    off = (probs.sum(-1) - 1).abs()
    if not (off <= _ROW_SUM_TOLERANCE).all():
        node = int(off.argmax())
        raise ValueError(f"node {node}: probabilities sum to {float(probs[node].sum())}, not to 1")
