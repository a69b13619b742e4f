"""Prompts for rollouts, as token ids: the offline mix, prompts of the target's own, or a JSONL of the user's."""

from __future__ import annotations

import random
from pathlib import Path

from tevlib.decoding.target import Target
from tevlib.sources.chat import chat_ids
from tevlib.sources.prompts import load_prompts, training_prompts
from tevlib.training.rollouts import rollouts
from tevlib.trees.seeds import stream_seed

ROUNDS = 8  # of asking a target for prompts of its own, before too few is an error


def rollout_prompts(
    target: Target,
    n: int,
    *,
    seed: int,
    source: str | Path = "offline",
    self_made: int = 0,
    max_prompt_tokens: int = 128,
) -> list[list[int]]:
    """`n` chat prompts as token ids in random order, `self_made` of them written by the target itself.

    `source` is `"offline"` (the training mix, which touches none of the four suites) or a JSONL file of `{"turns":
    [...]}`, whose first turns are used. Prompts over `max_prompt_tokens` are left out. Raises `ValueError` if too few
    remain.
    """
    wanted = n - self_made
    if source == "offline":
        texts = [p.turns[0] for p in training_prompts(min(2 * wanted + 100, 8000), seed)]
    else:
        texts = [p.turns[0] for p in load_prompts(source)]
    short = _short(target, texts, max_prompt_tokens)[:wanted]
    own = _short(target, self_made_prompts(target, self_made, seed), max_prompt_tokens) if self_made else []
    if len(short) < wanted or len(own) < self_made:
        raise ValueError(
            f"{wanted} prompts of {source} and {self_made} self-made ones of at most {max_prompt_tokens} tokens were "
            f"asked for; there are {len(short)} and {len(own)}"
        )
    random.Random(seed).shuffle(prompts := short + own)
    return prompts


def _short(target: Target, texts: list[str], most: int) -> list[list[int]]:
    ids = [chat_ids(target.tokenizer, [{"role": "user", "content": text}]) for text in texts]
    return [prompt for prompt in ids if len(prompt) <= most]


def self_made_prompts(target: Target, n: int, seed: int, max_tokens: int = 64) -> list[str]:
    """Up to `n` distinct user turns that the target writes after its chat template's opening of one, temperature 1.

    Texts without an end, or of a word, do not count: `2 * n` are begun, and as many again up to `ROUNDS` times.
    """
    opening = user_turn_opening(target)
    found: dict[str, None] = {}
    for attempt in range(ROUNDS):
        drawn = seed if attempt == 0 else stream_seed(seed, attempt)
        for made in rollouts(target, [opening] * (2 * n), (), temperature=1.0, max_new_tokens=max_tokens, seed=drawn):
            ids = made.ids[made.prompt_length :].tolist()
            text = target.tokenizer.decode(ids, skip_special_tokens=True).strip()
            if ids[-1] in target.stop_ids and len(text) > 8:
                found[text] = None
            if len(found) == n:
                return list(found)
    return list(found)


def user_turn_opening(target: Target) -> list[int]:
    """Token ids of the chat template up to where a user's first words stand."""
    mark = "user-turn-goes-here"
    rendered = target.tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    return target.tokenizer(rendered.split(mark)[0], add_special_tokens=False).input_ids
