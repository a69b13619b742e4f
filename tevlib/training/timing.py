"""What training costs: seconds and peak memory of steps, and the rate of rollouts, measured side by side."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.packed import KeyStore
from tevlib.decoding.prepacked import unpacked
from tevlib.decoding.target import Target
from tevlib.training.batch import collate, usable
from tevlib.training.config import TrainConfig
from tevlib.training.rollouts import Rollout, rollouts
from tevlib.training.step import draw_uniforms, loss, plan, read

CLEAR_PEAK = Path("/proc/self/clear_refs")  # Linux: writing 5 resets the peak of the resident memory
STATUS = Path("/proc/self/status")


def step_costs(
    target: Target,
    drafter: DFlashDraftModel,
    texts: list[Rollout],
    variants: dict[str, TrainConfig],
    repeats: int,
) -> list[dict]:
    """One row per repeat and variant: `variant`, `seconds` and `peak_bytes` of one step (no optimiser, no loading).

    Every repeat runs all variants in turn on the same sequences of `texts`, so that a busy machine slows all alike. A
    variant's store is filled, and first calls are over, before the first row.
    """
    texts = usable(texts)
    stores = {
        name: KeyStore(int(config.key_store_gb * 2**30)) if config.key_store_gb > 0 else None
        for name, config in variants.items()
    }
    rows = []
    for repeat in range(-1, repeats):
        for name, config in variants.items():
            count = min(config.sequences, len(texts))
            if repeat == -1:
                _one_step(target, drafter, texts[:count], config, stores[name], repeat)
            _reset_peak(target)
            started = _now(target)
            _one_step(target, drafter, texts[:count], config, stores[name], max(repeat, 0))
            if repeat >= 0:
                rows.append({"variant": name, "seconds": _now(target) - started, "peak_bytes": _peak(target)})
    return rows


def _one_step(target, drafter, texts, config: TrainConfig, store, seed: int) -> None:
    batch = collate(texts).to(target.device)
    batch, prefix = read(target, drafter, batch, config, store)
    draws = draw_uniforms(batch.lengths, [seed * len(texts) + i for i in range(len(texts))])
    planned = plan(target, drafter, batch, texts, config, draws, prefix)
    total, _ = loss(target, drafter, batch, planned, config, planned.denominators)
    total.backward()
    drafter.zero_grad(set_to_none=True)


def rollout_rates(
    target: Target, prompts: list[list[int]], *, rows: int, new_tokens: int, repeats: int, stop: bool = False
) -> list[dict]:
    """New tokens per second of our rollouts and of transformers' batched `generate`, in turns, one row each.

    Same prompts, same number of rows, at most `new_tokens` for every prompt, sampled at temperature 1 in both. With
    `stop` answers end at the target's stop ids, as they do in training, and what is counted is their own tokens;
    without it all are of one length. `generate` is transformers' as it comes, with its own attention and linear layers
    (a target on the CPU carries ours otherwise); it goes through the prompts `rows` at a time, so that a batch lasts as
    long as its longest answer, while rollouts refill a row that has finished.
    """
    stop_ids = target.stop_ids if stop else frozenset({-1})

    def ours() -> int:
        how = {"temperature": 1.0, "max_new_tokens": new_tokens, "seed": 0, "rows": rows, "stop_ids": stop_ids}
        return sum(len(r.ids) - r.prompt_length for r in rollouts(target, prompts, (), **how))

    def theirs() -> int:
        batches = [prompts[start : start + rows] for start in range(0, len(prompts), rows)]
        return sum(_generate(target, batch, new_tokens, stop_ids) for batch in batches)

    methods: dict[str, Callable[[], int]] = {"rollouts": ours, "generate": theirs}
    found = []
    for _ in range(repeats):
        for name, run in methods.items():
            started = _now(target)
            tokens = run()
            found.append({"method": name, "tokens": tokens, "tokens_per_s": tokens / (_now(target) - started)})
    return found


def _generate(target: Target, prompts: list[list[int]], new_tokens: int, stop_ids: frozenset[int]) -> int:
    """How many new tokens the answers of one batch have, up to and including their stop token."""
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=target.device)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    ends = sorted(stop_ids - {-1})
    lengths = {"eos_token_id": ends} if ends else {"min_new_tokens": new_tokens}
    ours = target.model.config._attn_implementation
    target.model.set_attn_implementation("sdpa")
    try:
        with unpacked(target.model):
            made = target.model.generate(
                ids, attention_mask=mask, do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                max_new_tokens=new_tokens, pad_token_id=0, **lengths,
            )  # fmt: skip
    finally:
        target.model.set_attn_implementation(ours)
    answers = made[:, longest:]
    over = torch.isin(answers, torch.tensor(ends, device=answers.device)).cumsum(1) if ends else answers * 0
    return int((over == 0).sum()) + int((over.amax(1) > 0).sum())


def _now(target: Target) -> float:
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _reset_peak(target: Target) -> None:
    if target.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    elif CLEAR_PEAK.exists():
        CLEAR_PEAK.write_text("5")


def _peak(target: Target) -> int | None:
    """Bytes at the peak since the last reset, of the device or of this process; None where the system does not say."""
    if target.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if not STATUS.exists():
        return None
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])
