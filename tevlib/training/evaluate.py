"""What a drafter is worth: the exact 1 + C_p of its trees on held-out text, and tau in real decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tevlib.decoding.decode import pooled_tau, speculate, tau_of_responses
from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.target import Target
from tevlib.sources.prompts import SUITES, chat_ids, load_prompts
from tevlib.training.batch import collate
from tevlib.training.forest import grow
from tevlib.training.rollouts import Rollout
from tevlib.trees.builders import best_first_trees
from tevlib.trees.exit_law import ExitLaw, exit_laws


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
    """`HeldOut` values by (budget, temperature), over contexts spread evenly through the responses.

    The largest tree is scored once; a smaller budget is its prefix in builder order. The same contexts come in the
    same order for every drafter, so differences can be paired.
    """
    per_text = -(-contexts // len(held_out))
    found: dict[tuple[int, float], list] = {(b, t): [] for b in budgets for t in temperatures}
    texts: list[int] = []
    for text, rollout in enumerate(held_out):
        response = len(rollout.ids) - rollout.prompt_length
        anchors = sorted({rollout.prompt_length + i * response // per_text for i in range(per_text)}, reverse=True)
        ids = rollout.ids.to(target.device)
        cache = target.new_cache(len(ids) + max(budgets) + 1)
        _, features = target.prefill(cache, ids[: anchors[0]], drafter.taps)
        context = drafter.new_cache(len(ids) + drafter.block_size)
        drafter.append_context(context, features)
        for anchor in anchors:  # backwards, so that a shorter context is what remains of a longer one
            texts.append(text)
            cache.keep_first(anchor)
            context.keep_first(anchor)
            rows = drafter.draft(context, block_embeddings(target, drafter, ids[anchor]))
            log_probs = torch.log_softmax(target.logits(rows.to(target.dtype)), dim=-1)
            (tree,) = best_first_trees(log_probs[None], max(budgets), [int(ids[anchor])])
            logits, _ = target.score_tree(cache, tree.to(target.device))
            for temperature in temperatures:
                (law,) = exit_laws([tree], logits, temperature)
                for budget in budgets:  # P of a node does not depend on the nodes behind it
                    reached = law.P[1 : budget + 1].double()
                    left = 1 - reached[tree.depths[1 : budget + 1] == 1].sum()
                    found[budget, temperature].append((1 + float(reached.sum()), float(left.clamp(0, 1))))
    return {key: HeldOut(*torch.tensor(values).T, torch.tensor(texts)) for key, values in found.items()}


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
