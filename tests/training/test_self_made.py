"""Prompts that a target writes itself: asked again where too few of its texts are prompts."""

from collections import namedtuple

import torch

from tests.tiny import make_target
from tevlib.training import prompts
from tevlib.training.prompts import ROUNDS, self_made_prompts

Made = namedtuple("Made", "ids prompt_length")


def test_a_target_is_asked_again_with_another_seed(monkeypatch):
    """The first round of texts has no end, the second does: its prompts are taken; with no end ever, none is, and
    it stops asking."""
    target, seeds = make_target("qwen3"), []
    monkeypatch.setattr(prompts, "user_turn_opening", lambda target: [7])
    ends = {"from": 1}

    def texts(target, openings, taps, *, seed, **how):
        seeds.append(seed)
        for i in range(len(openings)):
            end = 1 if len(seeds) > ends["from"] else 9
            yield Made(torch.tensor([7, 20 + i, 21, 22, end]), 1)

    monkeypatch.setattr(prompts, "rollouts", texts)
    found = self_made_prompts(target, 3, seed=5)
    assert found == ["t20 t21 t22", "t21 t21 t22", "t22 t21 t22"] and len(set(seeds)) == 2 and seeds[0] == 5
    seeds.clear()
    ends["from"] = ROUNDS
    assert self_made_prompts(target, 3, seed=5) == [] and len(set(seeds)) == ROUNDS
