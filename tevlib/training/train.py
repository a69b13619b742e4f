"""The training loop: cached rollouts in, a trained drafter out. Stops and resumes bit for bit on a CPU.

One process, or several under `torchrun` / `accelerate launch`: the sequences of a step are dealt out, and gradients and
the losses' denominators are summed over all, so that n processes compute what one would on the whole batch.
"""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm

from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.packed import KeyStore
from tevlib.decoding.target import Target
from tevlib.training.batch import collate, step_rollouts, usable
from tevlib.training.config import TrainConfig
from tevlib.training.evaluate import held_out_laws
from tevlib.training.head_loss import PARTS
from tevlib.training.rollouts import Rollout
from tevlib.training.step import draw_uniforms, loss, plan, read
from tevlib.trees.seeds import stream_seed

LOG_EVERY = 10  # steps


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of step 0..steps-1: linear warm-up, then a cosine to 0."""
    warm = max(1, round(config.warmup * config.steps))
    if step < warm:
        return config.learning_rate * (step + 1) / warm
    return config.learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, config.steps - warm)))


def train(
    target: Target,
    drafter: DFlashDraftModel,
    rollouts: list[Rollout],
    held_out: list[Rollout],
    config: TrainConfig,
    folder: Path | str,
    untrained: bool = False,
) -> list[dict]:
    """Trains `drafter` in place; returns the metrics rows, which are also in `folder/metrics.jsonl`.

    `folder/state.pt` is written every `save_every` steps and on Ctrl-C, atomically; a second call with the same
    config goes on from there, and one with another config is refused. Where Ctrl-C falls into an update or a
    validation, the state before it stays, so that neither is done half or left out. Steps without a supervised token
    or with a loss that is not finite are skipped and counted. An `untrained` drafter's first loss cannot lie far below
    ln V: if it does, a warning says that it sees what it should predict. Raises `ValueError` for nothing to train or
    validate.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rollouts = usable(rollouts)
    if not held_out:
        raise ValueError("held_out is empty: validation needs at least one rollout")
    if drafter.depth < 1:
        raise ValueError(f"a drafter of block size {drafter.block_size} predicts nothing: train one of 2 or more")
    drafter.train()
    accelerator = Accelerator(
        cpu=target.device.type == "cpu",
        log_with="tensorboard" if config.tensorboard else None,
        project_dir=str(folder) if config.tensorboard else None,
    )
    main = accelerator.is_main_process
    optimiser = torch.optim.AdamW(
        drafter.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, betas=(0.9, 0.999)
    )
    run = asdict(config) | identity(drafter, rollouts)
    step, rows, skipped = _resume(folder, drafter, optimiser, run)
    if step == config.steps:
        drafter.eval()
        return rows
    if main:
        (folder / "config.json").write_text(json.dumps(run, indent=2) + "\n")
    accelerator.init_trackers("tensorboard")
    store = KeyStore(int(config.key_store_gb * 2**30)) if config.key_store_gb > 0 else None
    started, first, tokens = time.perf_counter(), step, 0
    whole = True  # weights, optimiser, step and rows belong together
    with tqdm(total=config.steps, initial=step, desc="train", unit="step", mininterval=1, disable=not main) as bar:
        try:
            while step < config.steps:
                seen, ok, read = _step(accelerator, target, drafter, rollouts, config, step, store)
                tokens += read
                whole = False
                if untrained and step == 0:
                    _warn_of_a_leak(seen, config.losses(), target.vocab_size)
                if ok:
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
                    row = {"step": step} | seen | {"lr": learning_rate(step - 1, config), "skipped": skipped}
                    elapsed = time.perf_counter() - started
                    row |= {"steps_per_s": (step - first) / elapsed, "tokens_per_s": tokens / elapsed}
                    if main and validating:
                        row |= validate(target, drafter, held_out, config)
                    rows.append(row)
                    accelerator.log({k: v for k, v in row.items() if k != "step"}, step=step)
                    shown = {k: f"{v:.3f}" for k, v in seen.items()}
                    bar.set_postfix(shown | {"tokens/s": f"{row['tokens_per_s']:.0f}"}, refresh=False)
                whole = True
                if main and step % config.save_every == 0:
                    _save(folder, drafter, optimiser, run, step, rows, skipped)
        finally:
            if main and whole:  # else the last state of `save_every` stays
                _save(folder, drafter, optimiser, run, step, rows, skipped)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    drafter.eval()
    if skipped == config.steps:
        raise ValueError(f"all {skipped} steps were skipped: no supervised token or no finite loss in any batch")
    return rows


def _step(
    accelerator, target: Target, drafter: DFlashDraftModel, rollouts, config: TrainConfig, step: int, store
) -> tuple[dict, bool, int]:
    """What the step showed, whether its gradient (left in the drafter, pooled) can be used, and tokens read here."""
    rank, world = accelerator.process_index, accelerator.num_processes
    slots = range(config.sequences)[rank::world]
    picked = step_rollouts(step, len(rollouts), config.sequences, config.seed)
    planned: list[tuple] = []
    size = -(-len(slots) // config.accumulate)
    for start in range(0, len(slots), size or 1):
        some = slots[start : start + size]
        texts = [rollouts[picked[slot]] for slot in some]
        batch = collate(texts, [picked[slot] for slot in some]).to(target.device)
        seeds = [stream_seed(config.seed, step * config.sequences + slot) for slot in some]
        batch, prefix = read(target, drafter, batch, config, store)
        draws = draw_uniforms(batch.lengths, seeds)
        planned.append((batch, plan(target, drafter, batch, texts, config, draws, prefix)))
    sums = torch.zeros(len(PARTS) + 3)
    for _, one in planned:
        sums[: len(PARTS)] += one.denominators
        sums[len(PARTS) :] += torch.tensor([one.trees, one.coverage, one.root_exit])
    sums = _sum(accelerator, sums.to(target.device)).cpu()
    parts = torch.zeros(len(PARTS))
    for batch, one in planned:
        total, share = loss(target, drafter, batch, one, config, sums[: len(PARTS)])
        total.backward()
        parts += share
    values, finite = pool(accelerator, drafter, parts)
    weights = config.losses()
    seen = {"loss": float(sum(values[PARTS.index(part)] * weight for part, weight in weights.items()))}
    if len(weights) > 1:
        seen |= {f"loss_{part}": float(values[PARTS.index(part)]) for part in weights}
    if (trees := float(sums[len(PARTS)])) > 0:
        seen |= {"tree_coverage": float(sums[-2]) / trees, "tree_root_exit": float(sums[-1]) / trees}
    usable_step = finite and bool((sums[: len(PARTS)] > 0).any())
    return seen, usable_step, sum(sum(batch.lengths) for batch, _ in planned)


def _warn_of_a_leak(seen: dict, weights: dict[str, float], vocab_size: int) -> None:
    if "token" not in weights:
        return
    token_loss = seen["loss_token"] if len(weights) > 1 else seen["loss"] / weights["token"]
    guess = math.log(vocab_size)
    if 0 < token_loss < guess / 2:  # 0: the step had no supervised token
        warnings.warn(
            f"the first token loss of an untrained drafter is {token_loss:.2f}, guessing costs {guess:.2f}: do the "
            "features or the mask show it the tokens that it should predict?",
            stacklevel=3,
        )


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


def pool(accelerator: Accelerator, drafter: DFlashDraftModel, parts: Tensor) -> tuple[Tensor, bool]:
    """The losses' parts summed over processes, and whether all of it is finite; so is the gradient left in the drafter.

    Each process's parts and gradient are its shares of means over all, so that they add up. A process that had
    nothing to learn from takes part with zeros.
    """
    shapes = list(drafter.parameters())
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in shapes]
    packed = torch.cat([*(g.flatten() for g in gradients), parts.to(gradients[0])])
    packed = _sum(accelerator, packed)
    pieces = packed[: -len(parts)].split([g.numel() for g in gradients])
    for parameter, value in zip(shapes, pieces, strict=True):
        parameter.grad = value.view_as(parameter).clone()
    return packed[-len(parts) :].cpu(), bool(packed.isfinite().all())


def _sum(accelerator: Accelerator, packed: Tensor) -> Tensor:
    return accelerator.reduce(packed, reduction="sum") if accelerator.num_processes > 1 else packed


def validate(target: Target, drafter: DFlashDraftModel, held_out: list[Rollout], config: TrainConfig) -> dict:
    """Means over held-out contexts, exact: 1 + C_p (`ceiling_B<budget>_T<temperature>`), w(root) (`root_exit_...`)."""
    drafter.eval()
    with torch.autocast(target.device.type, torch.bfloat16, enabled=config.autocast):
        found = held_out_laws(
            target,
            drafter,
            held_out,
            contexts=config.validation_contexts,
            budgets=config.validation_budgets,
            temperatures=config.validation_temperatures,
        )
    drafter.train()
    row = {}
    for (b, t), laws in found.items():
        row[f"ceiling_B{b}_T{t:g}"] = float(laws.ceilings.mean())
        row[f"root_exit_B{b}_T{t:g}"] = float(laws.root_exits.mean())
    return row


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
