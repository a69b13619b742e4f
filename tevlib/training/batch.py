"""A batch of rollouts, and which of them a step takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tevlib.training.rollouts import Rollout
from tevlib.trees.seeds import stream_seed


@dataclass
class Batch:
    """Rollouts padded to one length: `ids [B, S]`, `features [B, S, K * H]`, `supervised [B, S]` (target's own).

    `lengths` are their own lengths, `names` the places of the rollouts in the training set.
    """

    ids: Tensor
    features: Tensor
    supervised: Tensor
    lengths: list[int]
    names: list[int]

    def to(self, device: torch.device) -> Batch:
        moved = (self.ids.to(device), self.features.to(device), self.supervised.to(device))
        return Batch(*moved, self.lengths, self.names)


def collate(rollouts: list[Rollout], names: list[int] | None = None) -> Batch:
    """The `Batch` of some rollouts; only what the target wrote is supervised."""
    lengths = [len(r.ids) for r in rollouts]
    ids = torch.zeros(len(rollouts), max(lengths), dtype=torch.long)
    features = torch.zeros(*ids.shape, rollouts[0].features.shape[1], dtype=rollouts[0].features.dtype)
    supervised = torch.zeros(ids.shape, dtype=torch.bool)
    for i, r in enumerate(rollouts):
        ids[i, : lengths[i]] = r.ids
        features[i, : lengths[i]] = r.features
        supervised[i, r.prompt_length : lengths[i]] = True
    return Batch(ids, features, supervised, lengths, list(range(len(rollouts))) if names is None else names)


def usable(rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts with at least one anchor: two tokens of the target's own.

    Raises `ValueError` if none has, and for one whose supervised part is the whole text: a prompt is never empty.
    """
    for i, r in enumerate(rollouts):
        if not 1 <= r.prompt_length <= len(r.ids):
            raise ValueError(f"rollout {i} has no prompt: prompt_length {r.prompt_length} of {len(r.ids)} tokens")
    kept = [r for r in rollouts if len(r.ids) - r.prompt_length >= 2]
    if not kept:
        raise ValueError(f"none of {len(rollouts)} rollouts has two tokens of the target's own: nothing to learn from")
    return kept


def step_rollouts(step: int, count: int, sequences: int, seed: int) -> list[int]:
    """Which of `count` rollouts a step takes: epochs of random permutations, a function of (seed, step) alone."""
    picked: list[int] = []
    orders: dict[int, list[int]] = {}
    for position in range(step * sequences, (step + 1) * sequences):
        epoch, place = divmod(position, count)
        if epoch not in orders:
            generator = torch.Generator().manual_seed(stream_seed(seed, epoch))
            orders[epoch] = torch.randperm(count, generator=generator).tolist()
        picked.append(orders[epoch][place])
    return picked
