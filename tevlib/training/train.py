"""The training loop: cached rollouts in, a trained drafter out. Stops and resumes bit for bit on a CPU.

One process, or several under `torchrun` / `accelerate launch`: the sequences of a step are dealt out, and gradients and
the loss's denominator are summed over all, so that n processes compute what one would on the whole batch.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.target import Target
from tevlib.training.evaluate import held_out_ceilings
from tevlib.training.objectives import sample_anchors, token_loss, token_targets
from tevlib.training.rollouts import Rollout
from tevlib.trees.seeds import stream_seed

LOG_EVERY = 10  # steps


@dataclass(frozen=True)
class TrainConfig:
    """Every choice of a training run. Where the paper is silent, the value of the reference recipe is named."""

    steps: int = 4000  # paper: hours on 7 GPUs; here what an hour of two cores allows
    sequences: int = 8  # per step, over all processes (paper: batch size 4)
    anchors: int = 16  # blocks per sequence (reference: 512 on sequences of 3,072 tokens)
    gamma: float = 4.0  # decay of L_tok with depth (reference: 7 for blocks of 16, 4 for blocks of 8)
    learning_rate: float = 1e-3  # from scratch; the paper fine-tunes with 1e-4
    warmup: float = 0.04  # share of the steps, linear, then a cosine to 0 (reference: 0.04)
    weight_decay: float = 0.0  # reference: 0
    clip: float = 1.0  # global gradient norm (reference: 1)
    seed: int = 0
    autocast: bool = True  # bfloat16 matrix products over float32 master weights
    validate_every: int = 1000
    save_every: int = 100
    validation_contexts: int = 96
    validation_budgets: tuple[int, ...] = (16, 32, 64)
    validation_temperatures: tuple[float, ...] = (0.0, 1.0)

    def __post_init__(self):
        for name in ("steps", "sequences", "anchors", "save_every", "validate_every", "validation_contexts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        budgets, temperatures = self.validation_budgets, self.validation_temperatures
        if not budgets or min(budgets) < 0 or not temperatures or min(temperatures) < 0:
            raise ValueError(
                f"validation needs budgets and temperatures >= 0, got {list(budgets)} and {list(temperatures)}"
            )
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps in [0, 1), got {self.warmup}")


@dataclass
class Batch:
    """Rollouts padded to one length: `ids [B, S]`, `features [B, S, K * H]`, `supervised [B, S]` (target's own)."""

    ids: Tensor
    features: Tensor
    supervised: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids.to(device), self.features.to(device), self.supervised.to(device))


def collate(rollouts: list[Rollout]) -> Batch:
    """The `Batch` of some rollouts; only what the target wrote is supervised."""
    length = max(len(r.ids) for r in rollouts)
    ids = torch.zeros(len(rollouts), length, dtype=torch.long)
    features = torch.zeros(len(rollouts), length, rollouts[0].features.shape[1], dtype=rollouts[0].features.dtype)
    supervised = torch.zeros(len(rollouts), length, dtype=torch.bool)
    for i, r in enumerate(rollouts):
        ids[i, : len(r.ids)] = r.ids
        features[i, : len(r.ids)] = r.features
        supervised[i, r.prompt_length : len(r.ids)] = True
    return Batch(ids, features, supervised)


def usable(rollouts: list[Rollout]) -> list[Rollout]:
    """The rollouts with at least one anchor: two tokens of the target's own. Raises `ValueError` if none has."""
    kept = [r for r in rollouts if len(r.ids) - r.prompt_length >= 2]
    if not kept:
        raise ValueError(f"none of {len(rollouts)} rollouts has two tokens of the target's own: nothing to learn from")
    return kept


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of step 0..steps-1: linear warm-up, then a cosine to 0."""
    warm = max(1, round(config.warmup * config.steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, config.steps - warm)))


def step_rollouts(step: int, count: int, config: TrainConfig) -> list[int]:
    """Indices of the rollouts of a step: epochs of random permutations, a function of (seed, step) alone."""
    picked = []
    for position in range(step * config.sequences, (step + 1) * config.sequences):
        epoch, place = divmod(position, count)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(stream_seed(config.seed, epoch)))
        picked.append(int(order[place]))
    return picked


def batch_loss(
    target: Target, drafter: DFlashDraftModel, batch: Batch, config: TrainConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Numerator and denominator of L_tok on one batch, with anchors drawn from `generator`."""
    batch = batch.to(target.device)
    anchors, kept = sample_anchors(batch.supervised, config.anchors, generator)
    labels, weights = token_targets(batch.ids, batch.supervised, anchors, kept, drafter.depth, config.gamma)
    blocks = block_embeddings(target, drafter, batch.ids.gather(1, anchors))
    with torch.autocast(target.device.type, torch.bfloat16, enabled=config.autocast):
        hidden = drafter(batch.features, blocks, anchors)
    return token_loss(hidden[:, :, 1:], target.head.weight, labels, weights)


def train(
    target: Target,
    drafter: DFlashDraftModel,
    rollouts: list[Rollout],
    held_out: list[Rollout],
    config: TrainConfig,
    folder: Path | str,
) -> list[dict]:
    """Trains `drafter` in place; returns the metrics rows, which are also in `folder/metrics.jsonl`.

    `folder/state.pt` is written every `save_every` steps and on Ctrl-C, atomically; a second call with the same
    config goes on from there, and one with another config is refused. Where Ctrl-C falls into an update or a
    validation, the state before it stays, so that neither is done half or left out. Steps without a supervised token
    or with a loss that is not finite are skipped and counted. Raises `ValueError` for nothing to train or validate.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rollouts = usable(rollouts)
    if not held_out:
        raise ValueError("held_out is empty: validation needs at least one rollout")
    if drafter.depth < 1:
        raise ValueError(f"a drafter of block size {drafter.block_size} predicts nothing: train one of 2 or more")
    drafter.train()
    accelerator = Accelerator(cpu=target.device.type == "cpu")
    rank, world = accelerator.process_index, accelerator.num_processes
    if config.sequences % world:
        raise ValueError(f"sequences = {config.sequences} cannot be dealt out to {world} processes evenly")
    optimiser = torch.optim.AdamW(
        drafter.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.999)
    )
    run = asdict(config) | identity(drafter, rollouts)
    step, rows, skipped = _resume(folder, drafter, optimiser, run)
    if step == config.steps:
        drafter.eval()
        return rows
    started, first = time.perf_counter(), step
    whole = True  # weights, optimiser, step and rows belong together
    main = accelerator.is_main_process
    with tqdm(total=config.steps, initial=step, desc="train", unit="step", mininterval=1, disable=not main) as bar:
        try:
            while step < config.steps:
                batch = collate([rollouts[i] for i in step_rollouts(step, len(rollouts), config)[rank::world]])
                generator = torch.Generator().manual_seed(stream_seed(config.seed, (step << 8) + rank))
                total, weight = batch_loss(target, drafter, batch, config, generator)
                total.backward()
                loss, usable_step = pool(accelerator, drafter, total.detach(), weight)
                whole = False
                if usable_step:
                    for group in optimiser.param_groups:
                        group["lr"] = learning_rate(step, config)
                    torch.nn.utils.clip_grad_norm_(drafter.parameters(), config.clip)
                    optimiser.step()
                else:
                    skipped += 1
                optimiser.zero_grad(set_to_none=True)
                step += 1
                bar.update()
                validating = step % config.validate_every == 0 or step == config.steps
                if step % LOG_EVERY == 0 or validating:
                    row = {"step": step, "loss": loss, "lr": learning_rate(step - 1, config), "skipped": skipped}
                    row["steps_per_s"] = (step - first) / (time.perf_counter() - started)
                    if main and validating:
                        row |= validate(target, drafter, held_out, config)
                    rows.append(row)
                    bar.set_postfix(loss=f"{row['loss']:.3f}", refresh=False)
                whole = True
                if main and step % config.save_every == 0:
                    _save(folder, drafter, optimiser, run, step, rows, skipped)
        finally:
            if main and whole:  # else the last state of `save_every` stays
                _save(folder, drafter, optimiser, run, step, rows, skipped)
    accelerator.wait_for_everyone()
    drafter.eval()
    if skipped == config.steps:
        raise ValueError(f"all {skipped} steps were skipped: no supervised token or no finite loss in any batch")
    return rows


def identity(drafter: DFlashDraftModel, rollouts: list[Rollout]) -> dict:
    """What a run is beside its config, JSON-ready: a state is only continued by the same drafter on the same text."""
    return {
        "block_size": drafter.block_size,
        "mask_id": drafter.mask_id,
        "taps": list(drafter.taps),
        "layers": len(drafter.layers),
        "rollouts": len(rollouts),
        "rollout_tokens": sum(len(r.ids) for r in rollouts),
    }


def pool(accelerator: Accelerator, drafter: DFlashDraftModel, total: Tensor, weight: Tensor) -> tuple[float, bool]:
    """The step's mean loss, and whether it can be used; leaves its gradient, summed over processes, in the drafter.

    `total` is this process's sum of weighted losses, whose gradient the drafter holds; `weight` its denominator.
    """
    gradients = [p.grad for p in drafter.parameters() if p.grad is not None]
    packed = torch.cat([*(g.flatten() for g in gradients), total.reshape(1).float(), weight.reshape(1).float()])
    if accelerator.num_processes > 1:
        packed = accelerator.reduce(packed, reduction="sum")
    denominator = float(packed[-1])
    mean = packed[:-1] / max(denominator, 1e-9)
    if gradients:
        for gradient, value in zip(gradients, mean[:-1].split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(value.view_as(gradient))
    return float(mean[-1]), denominator > 0 and bool(mean.isfinite().all())


def validate(target: Target, drafter: DFlashDraftModel, held_out: list[Rollout], config: TrainConfig) -> dict:
    """Mean exact 1 + C_p (tokens) on held-out contexts, keyed `ceiling_B<budget>_T<temperature>`."""
    drafter.eval()
    with torch.autocast(target.device.type, torch.bfloat16, enabled=config.autocast):
        found = held_out_ceilings(
            target,
            drafter,
            held_out,
            contexts=config.validation_contexts,
            budgets=config.validation_budgets,
            temperatures=config.validation_temperatures,
        )
    drafter.train()
    return {f"ceiling_B{b}_T{t:g}": float(values.mean()) for (b, t), values in found.items()}


def _save(folder: Path, drafter, optimiser, run: dict, step: int, rows: list[dict], skipped: int) -> None:
    state = {
        "config": run, "step": step, "rows": rows, "skipped": skipped,
        "drafter": drafter.state_dict(), "optimiser": optimiser.state_dict(),
    }  # fmt: skip
    torch.save(state, folder / "state.partial")
    os.replace(folder / "state.partial", folder / "state.pt")
    partial = folder / "metrics.partial"
    partial.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.replace(partial, folder / "metrics.jsonl")


def _resume(folder: Path, drafter, optimiser, run: dict) -> tuple[int, list[dict], int]:
    path = folder / "state.pt"
    if not path.exists():
        return 0, [], 0
    state = torch.load(path, weights_only=True)
    if state["config"] != run:
        changed = [k for k, v in run.items() if state["config"].get(k) != v]
        raise ValueError(f"{folder} holds a run with another {', '.join(changed)}: choose another folder or delete it")
    drafter.load_state_dict(state["drafter"])
    optimiser.load_state_dict(state["optimiser"])
    return state["step"], state["rows"], state["skipped"]


__all__ = [
    "Batch",
    "TrainConfig",
    "batch_loss",
    "collate",
    "learning_rate",
    "step_rollouts",
    "train",
    "usable",
    "validate",
]
