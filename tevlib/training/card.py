"""The card of a trained drafter: what it is, what it was trained on, what was measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target
from tevlib.sources.assets import OFFLINE_TARGET
from tevlib.training.config import TrainConfig
from tevlib.training.data import DataConfig
from tevlib.training.objectives import OBJECTIVES

HUB_ID = r"[A-Za-z0-9][\w.-]*/[\w.-]+"  # owner/name
HUB_IDS = {OFFLINE_TARGET: "HuggingFaceTB/SmolLM2-135M-Instruct"}  # where the offline target comes from
TAGS = ("speculative-decoding", "dflash", "draft-model")


def front_matter(licence: str, base_model: str | None) -> str:
    """What a model hub reads at the top of a card: `licence`, the target's hub id where it is known, tags."""
    base = [] if base_model is None else [f"base_model: {base_model}"]
    lines = ["---", f"license: {licence}", *base, "library_name: tevlib", f"tags: [{', '.join(TAGS)}]", "---", ""]
    return "\n".join(lines)


def target_section(fingerprint: dict, taps: Sequence[int]) -> str:
    """The section on the target: what the drafter was made for, and how its layers are counted."""
    return "\n".join(
        [
            "## Target",
            "",
            "What it was made for: sizes, and digests of the tokenizer and of the weights. Another tokenizer or size "
            "is refused; other weights of the same sizes cost block length.",
            "",
            table(["fingerprint", "value"], list(fingerprint.items())),
            "",
            f"It reads the outputs of layers {list(taps)}, counted from 0 (`hidden_states[i + 1]` of transformers), as "
            f"z-lab's code and SGLang do. vLLM counts inputs and adds one by itself, {[tap + 1 for tap in taps]}: "
            "nothing in `config.json` is to be changed for it.",
            "",
        ]
    )


def drafter_card(
    name: str,
    target: Target,
    drafter: DFlashDraftModel,
    *,
    objective: str,
    data: DataConfig,
    supervised_tokens: int,
    config: TrainConfig,
    processes: int,
    last: dict,
    taus: list[dict],
    commit: str,
    init: str = "",
) -> str:
    """The Markdown card.

    `init` is where training started, empty for the target's own layers; `last` is the last metrics row of training;
    `taus` are rows of suite, temperature, budget and tau.
    """
    parameters = sum(p.numel() for p in drafter.parameters())
    ceilings = [
        (*key.removeprefix("ceiling_B").split("_T"), f"{v:.3f}") for key, v in last.items() if key.startswith("ceiling")
    ]
    return "\n".join(
        [
            front_matter("apache-2.0", hub_id(target.info.source)),
            f"# {name}",
            "",
            f"A DFlash drafter for {target.info.source} ({target.info.revision}): {len(drafter.layers)} layers, block "
            f"{drafter.block_size}, taps {list(drafter.taps)}, mask id {drafter.mask_id}, "
            f"{parameters / 1e6:.1f}M parameters. Objective: {objective}.",
            "",
            *_proposes(drafter),
            "It reads the target's hidden states and uses the target's embedding and head: it drafts for this target "
            "and for no other.",
            "",
            target_section(target.fingerprint(), drafter.taps),
            "## Training",
            "",
            f"{supervised_tokens:,} tokens that the target wrote itself, {config.steps:,} steps on {processes} "
            f"process(es), code at commit `{commit}`. "
            + (f"It started from `{init}`." if init else "It started from the target's own last layers.")
            + (" None of the four suites' prompts is among the training prompts." if data.source == "offline" else ""),
            "",
            _settings("data", asdict(data)),
            "",
            _settings("training", _used(config)),
            "",
            "## Held-out ceilings",
            "",
            f"Mean exact 1 + C_p (tokens) over {config.validation_contexts} held-out contexts, best-first trees.",
            "",
            table(["budget", "temperature", "1 + C_p"], ceilings),
            "",
            "## Measured in decoding",
            "",
            "Block length, bonus token included: mean of the responses' means (tau) and over all rounds (pooled).",
            "",
            table(list(taus[0]), [tuple(row.values()) for row in taus]) if taus else "Not measured.",
            "",
        ]
    )


def _proposes(drafter: DFlashDraftModel) -> list[str]:
    """The lines on a draft vocabulary, none for a drafter without."""
    if drafter.vocabulary is None:
        return []
    return [
        f"It proposes {len(drafter.vocabulary):,} tokens, the most frequent ones of the responses, listed in "
        "`draft_vocabulary.safetensors`: the head over them alone is faster. Software that does not read the file "
        "proposes any token.",
        "",
    ]


def _used(config: TrainConfig) -> dict:
    """The settings that play a part in the run, with the guidance that was meant."""
    values = {k: v for k, v in asdict(config).items() if k not in _unused(config)}
    if "guidance" in values:
        values["guidance"] = config.losses().get(config.objective, 0.0)
    return values


def _unused(config: TrainConfig) -> set[str]:
    """Fields that play no part in the run's objective."""
    trees = {"guidance", "token_weight", "trees", "tree_budget", "tree_temperature"}
    leaves, gain = {"horizon_leaves"}, {"gain_share", "gain_floor"}
    losses = set(OBJECTIVES[config.objective][1]) | set(config.losses())
    unused = set() if losses & {"exit", "prefix", "gain"} else trees
    unused |= set() if losses & {"exit", "prefix"} else leaves
    unused |= set() if "gain" in losses else gain
    unused |= set() if config.objective == "exit" else {"gain_guidance"}
    return unused | (set() if "opd" in losses else {"opd_decay"})


def _settings(kind: str, values: dict) -> str:
    """A table of settings; numbers as they were given, not rounded."""
    return table([kind, "value"], [(k, f"{v:g}" if isinstance(v, float) else v) for k, v in values.items()])


def hub_id(source: str) -> str | None:
    """The hub id behind a target's source; None for a file or a folder of somebody's."""
    if source in HUB_IDS:
        return HUB_IDS[source]
    return source if re.fullmatch(HUB_ID, source) and not Path(source).exists() else None


def table(head: list[str], rows: list[tuple]) -> str:
    """A Markdown table; floats with three decimals."""
    lines = [
        head,
        ["---"] * len(head),
        *([f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
