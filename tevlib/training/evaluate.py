"""What a drafter is worth: the exact 1 + C_p of its trees on held-out text, and tau in real decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from tevlib.decoding.decode import speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.generation import pooled_tau, tau_of_responses
from tevlib.decoding.packed import read_sequences
from tevlib.decoding.target import Target
from tevlib.sources.prompts import SUITES, chat_ids, load_prompts
from tevlib.training.batch import collate
from tevlib.training.forest import grow
from tevlib.training.rollouts import Rollout
from tevlib.trees.exit_law import ExitLaw, exit_laws

TREES_PER_PASS, DEVICE_TREES_PER_PASS = 8, 64


@dataclass(frozen=True)
class HeldOut:
    """Exact values on held-out contexts `[contexts]`: 1 + C_p (tokens), and w(root), the mass that leaves at once.

    `texts` says which response each context lies in: those of one response are alike.
    """

    ceilings: torch.Tensor
    root_exits: torch.Tensor
    texts: torch.Tensor


@torch.inference_mode()
def held_out_laws(
    target: Target,
    drafter: DFlashDraftModel,
    held_out: Sequence[Rollout],
    *,
    contexts: int,
    budgets: tuple[int, ...],
    temperatures: tuple[float, ...],
) -> dict[tuple[int, float], HeldOut]:
    """`HeldOut` values by (budget, temperature), over contexts spread evenly over and through the responses.

    The largest tree is scored once; a smaller budget is its prefix in builder order. The same contexts come in the
    same order for every drafter, so differences can be paired.
    """
    if contexts < len(held_out):
        held_out = [held_out[i * len(held_out) // contexts] for i in range(contexts)]
    per_text = -(-contexts // len(held_out))
    size = max(1, (TREES_PER_PASS if target.device.type == "cpu" else DEVICE_TREES_PER_PASS) // per_text)
    found: dict[tuple[int, float], list] = {(b, t): [] for b in budgets for t in temperatures}
    texts: list[int] = []
    for start in range(0, len(held_out), size):
        some = list(held_out[start : start + size])
        lengths = [(rollout.prompt_length, len(rollout.ids) - rollout.prompt_length) for rollout in some]
        places = [[prompt + middle for middle in middles(response, per_text)] for prompt, response in lengths]
        kept = torch.tensor([[i < len(own) for i in range(per_text)] for own in places], device=target.device)
        anchors = torch.tensor([own + own[:1] * (per_text - len(own)) for own in places], device=target.device)
        batch = collate(some).to(target.device)
        _, features, keys = read_sequences(target, batch.ids, batch.lengths, drafter.taps)
        batch = replace(batch, features=features)
        grown = grow(target, drafter, batch, anchors, kept, budget=max(budgets), temperature=temperatures[0], keys=keys)
        texts += [start + one.row for one in grown]
        for temperature in temperatures:
            laws = [one.law for one in grown]
            if temperature != temperatures[0]:
                laws = exit_laws([law.tree for law in laws], torch.cat([one.logits for one in grown]), temperature)
            for law, budget in product(laws, budgets):  # P of a node does not depend on the nodes behind it
                reached = law.P[1 : budget + 1].double()
                left = 1 - reached[law.tree.depths[1 : budget + 1] == 1].sum()
                found[budget, temperature].append((1 + float(reached.sum()), float(left.clamp(0, 1))))
    return {key: HeldOut(*torch.tensor(values).T, torch.tensor(texts)) for key, values in found.items()}


def middles(count: int, parts: int) -> list[int]:
    """The middles of `parts` equal parts of 0..count - 1; all of them where there are no more than `parts`."""
    return sorted({(2 * i + 1) * count // (2 * parts) for i in range(parts)}) if count else []


def held_out_tree(
    target: Target, drafter: DFlashDraftModel, rollout: Rollout, *, budget: int, temperature: float
) -> ExitLaw:
    """The exit law of the best-first tree that the drafter grows in the middle of a response."""
    anchor = torch.tensor([[(rollout.prompt_length + len(rollout.ids) - 1) // 2]], device=target.device)
    batch = collate([rollout]).to(target.device)
    return grow(target, drafter, batch, anchor, anchor >= 0, budget=budget, temperature=temperature)[0].law


def decoded_tau(
    target: Target,
    drafter: DFlashDraftModel,
    *,
    prompts: int,
    budget: int,
    temperatures: tuple[float, ...],
    max_new_tokens: int,
    seed: int = 0,
) -> list[dict]:
    """One row per suite and temperature: tau (mean of responses), pooled tau and mean 1 + C_p of first turns."""
    rows = []
    for suite in SUITES:
        asked = [
            chat_ids(target.tokenizer, [{"role": "user", "content": p.turns[0]}]) for p in load_prompts(suite, prompts)
        ]
        for temperature in temperatures:
            how = {"budget": budget, "temperature": temperature, "max_new_tokens": max_new_tokens}
            made = [speculate(target, drafter, ids, seed=seed + i, **how) for i, ids in enumerate(asked)]
            rounds = [r for g in made for r in g.rounds]
            rows.append(
                {
                    "suite": suite,
                    "temperature": temperature,
                    "budget": budget,
                    "tau": tau_of_responses(made),
                    "pooled tau": pooled_tau(made),
                    "1 + C_p": sum(r.ceiling for r in rounds) / len(rounds),
                }
            )
    return rows
