"""The rollouts a drafter is trained on and those held out, from one description of how they are made."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from tevlib.decoding.target import Target
from tevlib.training.prompts import rollout_prompts
from tevlib.training.rollouts import Rollout, make_rollouts


@dataclass(frozen=True)
class DataConfig:
    """How rollouts are made. The paper: online responses to open-perfectblend prompts; temperature not stated."""

    prompts: int = 2000
    source: str = "offline"  # or a JSONL file of {"turns": [...]}
    self_made: int = 100  # of the prompts, written by the target itself
    max_prompt_tokens: int = 112  # chat template included
    max_new_tokens: int = 160
    temperature: float = 0.7  # reference recipe: 0.7; at 1 this target's text falls apart
    greedy_share: float = 0.4  # of the responses are written at temperature 0, where greedy decoding goes
    held_out: int = 24  # responses of each temperature kept for validation
    rows: int = 64  # decoded together
    seed: int = 0

    def __post_init__(self):
        if not 0 <= self.greedy_share <= 1:
            raise ValueError(f"greedy_share must be in [0, 1], got {self.greedy_share}")
        if not 0 <= self.self_made <= self.prompts:
            raise ValueError(f"self_made must be in 0..{self.prompts} (prompts), got {self.self_made}")
        smallest = min((n for _, n in self.parts()), default=0)
        if self.held_out < 1 or smallest <= self.held_out:
            raise ValueError(
                f"{self.prompts} prompts leave {smallest} at one temperature, of which {self.held_out} are to be held "
                "out: ask for more prompts or hold out fewer"
            )

    def parts(self) -> list[tuple[float, int]]:
        """(temperature, number of prompts) of each part that is not empty."""
        greedy = round(self.greedy_share * self.prompts)
        return [(t, n) for t, n in ((self.temperature, self.prompts - greedy), (0.0, greedy)) if n > 0]


def training_data(
    target: Target, taps: tuple[int, ...], config: DataConfig, folder: Path | str
) -> tuple[list[Rollout], list[Rollout]]:
    """Rollouts to train on and rollouts held out, both from `folder/rollouts-T...`; what is missing there is made."""
    folder = Path(folder)
    record = {k: v for k, v in asdict(config).items() if k in ("source", "self_made", "max_prompt_tokens", "seed")}
    prompts = _kept_prompts(target, config, record, folder / "prompts.json")
    learnt, held_out, start = [], [], 0
    for temperature, n in config.parts():
        store = make_rollouts(
            target,
            prompts[start : start + n],
            taps,
            folder / f"rollouts-T{temperature:g}",
            temperature=temperature,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            rows=config.rows,
            record=record,
        )
        start += n
        made = store.read()
        learnt += made[: -config.held_out]
        held_out += made[-config.held_out :]
    return learnt, held_out


def _kept_prompts(target: Target, config: DataConfig, record: dict, path: Path) -> list[list[int]]:
    """The prompts of `config`, from `path` where they are kept: those the target writes itself take minutes to make."""
    wanted = {**record, "prompts": config.prompts, "target": target.info.source, "revision": target.info.revision}
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["made"] == wanted and config.source == "offline":  # a file of the user's may have changed
            return kept["prompts"]
    prompts = rollout_prompts(
        target,
        config.prompts,
        seed=config.seed,
        source=config.source,
        self_made=config.self_made,
        max_prompt_tokens=config.max_prompt_tokens,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"made": wanted, "prompts": prompts}))
    os.replace(partial, path)
    return prompts


def frequent_tokens(rollouts: list[Rollout], n: int) -> Tensor:
    """The `n` most frequent tokens of the responses, ascending; fewer where fewer occur, the lower id in a tie.

    What `DraftVocabulary` takes. Raises `ValueError` for n < 1 and for no response.
    """
    if n < 1:
        raise ValueError(f"a draft vocabulary has at least one token, got {n}")
    if not rollouts:
        raise ValueError("no responses to count the tokens of")
    counts = torch.bincount(torch.cat([rollout.ids[rollout.prompt_length :] for rollout in rollouts]))
    kept = counts.argsort(descending=True, stable=True)[:n]
    return kept[counts[kept] > 0].sort().values
