"""One optimiser step's worth of teaching: what a batch's rows are to learn, and the loss that says so.

First everything without a gradient is planned: anchors, labels, trees, what the target says of them, and the
denominators of the means, which are pooled over processes and accumulated batches. Then one pass over the drafter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.packed import Keys, KeyStore, read_sequences
from tevlib.decoding.target import Target
from tevlib.training.batch import Batch
from tevlib.training.config import TrainConfig
from tevlib.training.forest import grow, score
from tevlib.training.head_loss import PARTS, Entries, Mixture, head_loss
from tevlib.training.objectives import (
    Guide,
    Played,
    exit_loss,
    gain_loss,
    opd_loss,
    prefix_loss,
    sample_anchors,
    token_loss,
    token_targets,
)
from tevlib.training.replay import replay
from tevlib.training.rollouts import Rollout
from tevlib.trees.seeds import stream_seed


@dataclass(frozen=True)
class Plan:
    """What a batch teaches: the blocks at `anchors [B, A]` (of them `kept`), and what their rows are to give.

    `denominators [len(PARTS)]` are this batch's own. `trees`, `coverage` and `root_exit` are the number of draft trees
    and the sums of C_p and w(root) over them.
    """

    anchors: Tensor
    kept: Tensor
    entries: Entries
    mixture: Mixture | None
    denominators: Tensor
    trees: int = 0
    coverage: float = 0.0
    root_exit: float = 0.0


def read(
    target: Target, drafter: DFlashDraftModel, batch: Batch, config: TrainConfig, store: KeyStore | None
) -> tuple[Batch, Keys | None]:
    """The batch with its features, and the sequences' keys and values where they are known or needed.

    With `config.online` both come from one target pass now; else features are those of the rollouts, and keys are
    what `store` keeps, if there is one.
    """
    if config.online:
        _, features, keys = read_sequences(target, batch.ids, batch.lengths, drafter.taps)
        inside = torch.arange(features.shape[1], device=features.device) < torch.tensor(
            batch.lengths, device=features.device
        ).sub(1).unsqueeze(1)  # the last token's is never read: it is zero in rollouts too
        return replace(batch, features=features.clone() * inside[..., None]), keys
    if store is None or config.losses().keys() <= {"token"}:
        return batch, None
    return batch, store.keys(target, batch.ids, batch.lengths, batch.names)


def draw_uniforms(lengths: list[int], seeds: list[int]) -> Tensor:
    """Uniform random numbers `[B, S]`, row i a function of `seeds[i]` alone, so that no batch or process changes it."""
    draws = torch.full((len(lengths), max(lengths)), 2.0)
    for row, (length, seed) in enumerate(zip(lengths, seeds, strict=True)):
        draws[row, :length] = torch.rand(length, generator=torch.Generator().manual_seed(stream_seed(seed, 0)))
    return draws


def plan(
    target: Target,
    drafter: DFlashDraftModel,
    batch: Batch,
    rollouts: list[Rollout],
    config: TrainConfig,
    draws: Tensor,
    prefix: Keys | None = None,
) -> Plan:
    """The `Plan` of a batch of `rollouts` on the target's device, all randomness from `draws [B, S]`. No gradient.

    `prefix`: the sequences' keys and values, where they are known.
    """
    if config.objective == "opd":
        return _plan_opd(target, drafter, batch, rollouts, config, draws, prefix)
    anchors, kept = sample_anchors(batch.supervised, config.anchors, draws)
    labels, weights = token_targets(batch.ids, batch.supervised, anchors, kept, drafter.depth, config.gamma)
    entries: list[Entries] = []
    denominators = torch.zeros(len(PARTS))
    losses = config.losses()
    if "token" in losses:
        taught, denominators[PARTS.index("token")] = token_loss(labels, weights)
        entries.append(taught)
    mixture, grown = None, []
    if guidance := losses.keys() & {"exit", "prefix", "gain"}:
        columns = _smallest(draws.to(anchors.device).gather(1, anchors), kept, config.trees)
        with torch.autocast(target.device.type, torch.bfloat16, enabled=config.autocast):
            grown = grow(
                target,
                drafter,
                batch,
                anchors.gather(1, columns),
                kept.gather(1, columns),
                budget=config.tree_budget,
                temperature=config.tree_temperature,
                every_row="gain" in guidance,
                keys=prefix,
            )
        width, depths, places = anchors.shape[1], drafter.depth, columns.tolist()
        guides = [Guide(g.law, (g.row * width + places[g.row][g.column]) * depths, depths) for g in grown]
        for part, on_nodes in (("exit", exit_loss), ("prefix", prefix_loss)):
            if part in guidance:
                taught, denominators[PARTS.index(part)] = on_nodes(guides, config.horizon_leaves)
                entries.append(taught.to(target.device))
        if "gain" in guidance:
            mixture, denominators[PARTS.index("gain")] = gain_loss(
                guides, [g.logits for g in grown], config.tree_temperature, config.gain_share, config.gain_floor
            )
    return Plan(
        anchors,
        kept,
        Entries.join(entries or [token_loss(labels, torch.zeros_like(weights))[0]]),
        mixture if mixture is not None and len(mixture.rows) else None,
        denominators,
        len(grown),
        sum(float(g.law.coverage) for g in grown),
        sum(float(g.law.w[0]) for g in grown),
    )


def _plan_opd(target, drafter, batch: Batch, rollouts, config: TrainConfig, draws: Tensor, prefix) -> Plan:
    """Rounds that the drafter, as it is now, plays from a random place of each response; the first is not used."""
    starts = [
        r.prompt_length + int(key * max(0, len(r.ids) - r.prompt_length - 2))
        for r, key in zip(rollouts, draws[:, 0].tolist(), strict=True)
    ]
    with torch.autocast(target.device.type, torch.bfloat16, enabled=config.autocast):
        rounds = [played[1:] for played in replay(target, drafter, batch, starts, most=config.anchors + 1)]
    width = max(1, *(len(r) for r in rounds))
    anchors = torch.zeros(len(rounds), width, dtype=torch.long, device=target.device)
    kept = torch.zeros(len(rounds), width, dtype=torch.bool, device=target.device)
    chains = {}
    for b, played in enumerate(rounds):
        for a, one in enumerate(played):
            anchors[b, a], kept[b, a] = one.anchor, True
            chains[b, a] = one.anchor, one.chain
    scored = score(target, batch, chains, temperature=1.0, every_row=True, keys=prefix) if chains else []
    depths = drafter.depth
    played = [
        Played(Guide(g.law, (g.row * width + g.column) * depths, depths), g.logits, one.accepted, one.correction)
        for g in scored
        for one in [rounds[g.row][g.column]]
    ]
    denominators = torch.zeros(len(PARTS))
    entries, denominators[PARTS.index("opd")] = opd_loss(played, config.opd_decay)
    return Plan(anchors, kept, entries.to(target.device), None, denominators)


def loss(
    target: Target, drafter: DFlashDraftModel, batch: Batch, planned: Plan, config: TrainConfig, pooled: Tensor
) -> tuple[Tensor, Tensor]:
    """This batch's share of the step's loss, with its gradient, and of each of its parts `[len(PARTS)]`.

    `pooled [len(PARTS)]` are the denominators over all processes and accumulated batches. A part is the mean that
    its objective defines; the loss is their sum with the weights of `config.losses()`.
    """
    weights = torch.tensor([config.losses().get(part, 0.0) for part in PARTS])
    factors = torch.where(pooled > 0, weights / pooled.clamp_min(1e-9), torch.zeros(len(PARTS)))
    blocks = block_embeddings(target, drafter, batch.ids.gather(1, planned.anchors))
    with torch.autocast(target.device.type, torch.bfloat16, enabled=config.autocast):
        hidden = drafter(batch.features, blocks, planned.anchors)
    mixture = planned.mixture
    if mixture is not None:
        mixture = mixture.scaled(float(factors[PARTS.index("gain")]))
    entries = planned.entries.scaled(factors.to(target.device))
    rows = hidden[:, :, 1:].flatten(0, 2)
    total, parts = head_loss(rows, target.head.weight, entries, mixture, target.softcap)
    return total, parts.cpu() / weights.clamp_min(1e-12) * (weights > 0)


def _smallest(keys: Tensor, kept: Tensor, n: int) -> Tensor:
    """Columns `[B, n']` of the `n` smallest keys of each row, in ascending order of the column, kept ones first."""
    order = keys.masked_fill(~kept, 3.0).argsort(dim=1)[:, :n]
    return order.sort(dim=1).values
