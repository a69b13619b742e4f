"""Training objectives: what each teaches the rows of a batch of blocks. Pure functions; no model, no optimiser.

A row is one (sequence, anchor, depth) of the blocks, numbered in that order; depth d predicts the token at anchor + d.
An objective gives `Entries` (single tokens) or a `Mixture` (whole laws), and the denominator of its mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tevlib.training.head_loss import REVERSE_KL, TWO_OUTCOME_KL, Entries, Mixture
from tevlib.trees.exit_law import ExitLaw
from tevlib.trees.sampling import target_probs

OBJECTIVES = {  # name: what it is, and the losses it adds up, lambda being the guidance's weight
    "base": ("the token loss, from the target's own layers or another drafter", ("token",)),
    "finetune": ("the token loss, from a trained drafter: the control of every other", ("token",)),
    "prefix": ("token loss + lambda * prefix control: P(v) at the exit loss's total weight", ("token", "prefix")),
    "exit": ("token loss + lambda * exit loss (Eqs. 14 and 15): ExitTrain", ("token", "exit")),
    "opd": ("Draft-OPD: divergences on the rounds that the drafter really played", ("opd",)),
    "gain": ("token loss + lambda * gain: our own objective, not the paper's", ("token", "gain")),
}
GAIN_SHARES = ("all", "missing", "present", "root")


def check_objective(name: str) -> str:
    """`name`. Raises `ValueError` with the known ones if it is none of them."""
    if name not in OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}: choose one of {', '.join(OBJECTIVES)}")
    return name


def check_start(objective: str, init: str) -> None:
    """Raises `ValueError` for an unknown objective, and for one that compares with `init` where none is given."""
    if check_objective(objective) != "base" and not init:
        raise ValueError(f"objective {objective} starts from a trained drafter: give its folder or hub id as init")


# --- the token loss ---------------------------------------------------------------------------------------------------


def decay_weights(depths: int, gamma: float | None, device: torch.device | str = "cpu") -> Tensor:
    """Weights `[H]` of depths 1..H: exp(-(k - 1) / gamma); all ones for `gamma=None`."""
    k = torch.arange(depths, device=device, dtype=torch.float32)
    return torch.ones_like(k) if gamma is None else torch.exp(-k / gamma)


def sample_anchors(supervised: Tensor, n: int, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Anchor positions `[B, A]` (sorted, without replacement) and which of them are real `[B, A]` boolean.

    `supervised [B, S]` marks the tokens that the target wrote. An anchor t needs t and t + 1 both supervised; those
    with the smallest of `keys [B, S]` (random, in [0, 1)) are taken. A is `n` or the largest count of valid positions
    in the batch, if that is smaller; short rows are padded with False.
    """
    valid = supervised[:, :-1] & supervised[:, 1:]
    width = min(n, int(valid.sum(dim=1).max()))
    keys = keys[:, :-1].masked_fill(~valid.cpu(), 2.0)
    picked = keys.argsort(dim=1, stable=True)[:, :width]
    kept = torch.gather(valid, 1, picked.to(valid.device))
    order = torch.where(kept, picked.to(valid.device), valid.shape[1]).argsort(dim=1)
    return picked.to(valid.device).gather(1, order), kept.gather(1, order)


def token_targets(
    ids: Tensor, supervised: Tensor, anchors: Tensor, kept: Tensor, depths: int, gamma: float | None
) -> tuple[Tensor, Tensor]:
    """Labels and weights `[B, A, H]` of the token loss: row k of anchor a is scored on the token *at* a + k.

    A row weighs exp(-(k - 1) / gamma), and nothing where a + k is outside the sequence or not written by the target.
    """
    positions = anchors[..., None] + torch.arange(1, depths + 1, device=ids.device)
    inside = positions < ids.shape[1]
    flat = positions.clamp(max=ids.shape[1] - 1).flatten(1)
    labels = ids.gather(1, flat).view_as(positions)
    weighs = supervised.gather(1, flat).view_as(positions) & inside & kept[..., None]
    return labels, weighs * decay_weights(depths, gamma, ids.device)


def token_loss(labels: Tensor, weights: Tensor) -> tuple[Entries, Tensor]:
    """L_tok, the dense token loss of Eq. 15: -sum w log q(label) over sum w, from `token_targets`."""
    rows = torch.arange(labels.numel(), device=labels.device)
    return Entries.of("token", rows, labels.flatten(), weights.flatten()), weights.sum()


# --- losses on draft trees --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guide:
    """Where a tree's rows are: depth d of its block is row `first + d - 1`; the block predicts `depths` tokens."""

    law: ExitLaw
    first: int
    depths: int


def exit_loss(guides: list[Guide], horizon_leaves: bool = True) -> tuple[Entries, Tensor]:
    """L_exit (Eq. 14) in the form of Eqs. 66-67: -sum w(v) log q_depth(v)(token of v) over the sum of |V| - 1.

    One entry per non-root node; all nodes of a depth share a row, so its normaliser is formed once. Without
    `horizon_leaves`, nodes at depth H, whose children no row could draft, weigh nothing (the denominator stays).
    """
    return _tree_entries("exit", guides, [_node_weights(g, horizon_leaves) for g in guides])


def prefix_loss(guides: list[Guide], horizon_leaves: bool = True) -> tuple[Entries, Tensor]:
    """The control of Table 2: weights P(v) in place of w(v), scaled per tree to the same total; same denominator."""
    weights = []
    for guide in guides:
        total, reached = _node_weights(guide, horizon_leaves).sum(), guide.law.P[1:].sum()
        weights.append(guide.law.P[1:] * (total / reached) if reached > 0 else guide.law.P[1:])
    return _tree_entries("prefix", guides, weights)


def _node_weights(guide: Guide, horizon_leaves: bool) -> Tensor:
    """w(v) of the non-root nodes `[N - 1]`; they sum to 1 - w(root) when the leaves at the horizon count."""
    w = guide.law.w[1:]
    return w if horizon_leaves else w * (guide.law.tree.depths[1:] < guide.depths)


def _tree_entries(part: str, guides: list[Guide], weights: list[Tensor]) -> tuple[Entries, Tensor]:
    if not guides:
        nothing = torch.zeros(0, dtype=torch.long)
        return Entries.of(part, nothing, nothing, nothing.float()), torch.tensor(0.0)
    rows = torch.cat([g.first + g.law.tree.depths[1:] - 1 for g in guides])
    tokens = torch.cat([g.law.tree.tokens[1:] for g in guides])
    return Entries.of(part, rows, tokens, torch.cat(weights)), torch.tensor(float(len(tokens)), device=rows.device)


def gain_loss(
    guides: list[Guide], logits: list[Tensor], temperature: float, share: str = "all", floor: float = 1e-3
) -> tuple[Mixture, Tensor]:
    """Our own objective, not the paper's: each draft row towards the target's mixture over the tree.

    Row d should give r_d(a) = sum over nodes v of depth d - 1 of P(v) p_v(a): by Eq. 12 what the child (v, a) is worth,
    present or missing. The denominator is the sum of r. Nodes with P(v) < `floor` are skipped. `share` restricts it:
    "missing" or "present" children only, or the "root" row only. `logits[i] [N, V]` are the target's at all nodes.
    """
    if share not in GAIN_SHARES:
        raise ValueError(f"unknown gain share {share!r}: choose one of {', '.join(GAIN_SHARES)}")
    rows, masses = [], []
    for guide, node_logits in zip(guides, logits, strict=True):
        tree, reach = guide.law.tree, guide.law.P.tolist()
        last = 1 if share == "root" else guide.depths
        nodes = [
            (depth, node)
            for node, depth in enumerate(tree.depths.tolist())
            if depth < last and reach[node] >= floor and (share != "present" or tree.children[node])
        ]
        if not nodes:
            continue
        nodes.sort()
        depths = sorted({depth for depth, _ in nodes})
        device = node_logits.device
        at = torch.tensor([node for _, node in nodes], device=device)
        worth = target_probs(node_logits[at], temperature)
        worth = worth * torch.tensor([reach[node] for _, node in nodes], dtype=worth.dtype, device=device)[:, None]
        if share in ("missing", "present"):
            edges = [(i, tree.token(kid)) for i, (_, node) in enumerate(nodes) for kid in tree.children[node]]
            edges = tuple(torch.tensor(edges, dtype=torch.long, device=device).view(-1, 2).T)
            present = torch.zeros_like(worth)
            present[edges] = worth[edges]
            worth = present if share == "present" else worth - present
        owners = torch.tensor([depths.index(depth) for depth, _ in nodes], device=device)
        masses.append(worth.new_zeros(len(depths), worth.shape[1]).index_add_(0, owners, worth))
        rows += [guide.first + depth for depth in depths]
    if not rows:
        return Mixture(torch.zeros(0, dtype=torch.long), torch.zeros(0, 1)), torch.tensor(0.0)
    laws = torch.cat(masses)
    return Mixture(torch.tensor(rows, device=laws.device), laws), laws.sum()


# --- Draft-OPD --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """One round that the drafter played: its chain of draft tokens, scored by the target, and where it ended.

    `guide.law.tree` is the chain (node i at depth i); `accepted` draft tokens were right, `correction` is the token
    that the target put behind them. `logits [N, V]` are the target's at the chain's nodes.
    """

    guide: Guide
    logits: Tensor
    accepted: int
    correction: int


def opd_loss(played: list[Played], decay: float = 0.8) -> tuple[Entries, Tensor]:
    """Draft-OPD's loss with its published weights, on replayed rounds.

    What was accepted, and the correcting token: the two-outcome KL of the target's probability from the drafter's.
    What was rejected, the chain behind the first miss: p/q - log(p/q) - 1, weighing decay^(depth - 1). The denominator
    is the sum of all weights.
    """
    rows: list[int] = []
    tokens: list[int] = []
    weights: list[float] = []
    kinds: list[int] = []
    teacher: list[Tensor] = []
    for one in played:
        tree, first = one.guide.law.tree, one.guide.first
        log_p = torch.log_softmax(one.logits.float(), dim=-1)
        kept = [(d, tree.token(d)) for d in range(1, one.accepted + 1)]
        if one.accepted < one.guide.depths:  # else the block has no row for it
            kept.append((one.accepted + 1, one.correction))
        missed = [(d, tree.token(d)) for d in range(one.accepted + 1, len(tree))]
        for kind, pairs in ((TWO_OUTCOME_KL, kept), (REVERSE_KL, missed)):
            for depth, token in pairs:
                rows.append(first + depth - 1)
                tokens.append(token)
                weights.append(1.0 if kind == TWO_OUTCOME_KL else decay ** (depth - 1))
                kinds.append(kind)
        at = torch.tensor([(depth - 1, token) for depth, token in [*kept, *missed]], device=log_p.device)
        teacher.append(log_p[at[:, 0], at[:, 1]].exp())
    device = played[0].logits.device if played else "cpu"
    long = dict(dtype=torch.long, device=device)
    weight = torch.tensor(weights, device=device)
    taught = Entries.of("opd", torch.tensor(rows, **long), torch.tensor(tokens, **long), weight)
    teachers = torch.cat(teacher) if teacher else weight
    return replace(taught, kinds=torch.tensor(kinds, **long), teacher=teachers), weight.sum()
