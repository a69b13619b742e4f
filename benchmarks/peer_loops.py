"""Other people's decoding loops behind one signature, their passes counted and timed from outside.

DDTree waits for a GPU where there is none and crops caches as transformers did before version 5: `adapted` stands in
for both. Its modules are called `dflash` and `model`, as the package and others are: `only_from` keeps them apart.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from tevlib.decoding.target import Target

GENERATE, DFLASH, DFLASH_OURS, DDTREE = "generate", "dflash 0.1.0", "dflash 0.1.0 on our products", "DDTree"


def peers(
    target: Target, folder: Path | str, drafter: Path, ddtree: Path | None
) -> tuple[dict[str, dict], dict[str, str]]:
    """What `watched` wants for each peer that is there, and why each other one is not.

    `folder` holds the target as transformers loads it, `drafter` a drafter in the published layout.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=target.dtype).to(target.device).eval()
    stop = sorted(target.stop_ids)
    found: dict[str, dict] = {GENERATE: {"model": target.model, "answer": partial(_generate, target.model, stop)}}
    absent: dict[str, str] = {}
    try:
        package = importlib.import_module("dflash.model")
        draft = _drafter(package.DFlashDraftModel, drafter, target)
        for name, of in ((DFLASH, model), (DFLASH_OURS, target.model)):
            found[name] = {"model": of, "answer": partial(_dflash, package.dflash_generate, draft, of, stop)}
    except ImportError as error:
        absent[DFLASH] = f"{error}; pip install --no-deps dflash==0.1.0"
    if ddtree is None:
        absent[DDTREE] = "no --ddtree"
        return found, absent
    try:
        with only_from(ddtree):
            package = importlib.import_module("ddtree")
    except ImportError as error:
        absent[DDTREE] = f"{type(error).__name__}: {error}"
        return found, absent
    draft = _drafter(package.DFlashDraftModel, drafter, target)
    found[DDTREE] = {"model": model, "answer": partial(_ddtree, package.ddtree_generate, draft, model, stop)}
    return found, absent


def _drafter(cls, folder: Path, target: Target):
    """The drafter in `folder` as a peer's own class loads it."""
    return cls.from_pretrained(folder, dtype=target.dtype, attn_implementation="sdpa").to(target.device).eval()


def _generate(model, stop: list[int], ids: torch.Tensor, temperature: float, tokens: int, budget: int) -> list[int]:
    law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        eos_token_id=stop,
        pad_token_id=stop[0],
        **law or {"do_sample": False},
    )
    return out[0, ids.shape[1] :].tolist()


def _dflash(
    decode, draft, model, stop: list[int], ids: torch.Tensor, temperature: float, tokens: int, budget: int
) -> list[int]:
    out = decode(draft, model, ids, max_new_tokens=tokens, stop_token_ids=stop, temperature=temperature)
    return out[0, ids.shape[1] :].tolist()


def _ddtree(
    decode, draft, model, stop: list[int], ids: torch.Tensor, temperature: float, tokens: int, budget: int
) -> list[int]:
    with adapted():
        out = decode(
            draft,
            model,
            ids,
            mask_token_id=draft.mask_token_id,
            max_new_tokens=tokens,
            block_size=draft.block_size,
            stop_token_ids=stop,
            temperature=temperature,
            tree_budget=budget,
        )
    return out.output_ids[0, ids.shape[1] :].tolist()


def watched(
    device: torch.device,
    ids: torch.Tensor,
    temperature: float,
    tokens: int,
    seed: int,
    *,
    model,
    answer: Callable,
    budget: int,
) -> dict:
    """A peer's answer, its target passes counted and its clock begun when the first of them ends."""
    ends: list[float] = []

    def passed(*_):
        _wait(device)
        ends.append(time.perf_counter())

    hook = model.register_forward_hook(passed)
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            new = answer(ids[None].to(device), temperature, tokens, budget)
    finally:
        hook.remove()
    _wait(device)
    return told(new, len(ends) - 1, len(new) - 1, time.perf_counter() - ends[0])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def told(tokens: list[int], passes: int, timed: int, seconds: float) -> dict:
    """An answer as it is kept; `timed` tokens came out of `passes` of the target in `seconds`."""
    return {"new": tokens, "tokens": timed + 1, "passes": passes, "decode_s": seconds}


@contextlib.contextmanager
def only_from(folder: Path) -> Iterator[None]:
    """Modules named `dflash`, `model` and `ddtree` are those of `folder` inside, and as before afterwards."""

    def named() -> list[str]:
        return [name for name in sys.modules if name.split(".")[0] in ("dflash", "model", "ddtree")]

    kept = {name: sys.modules.pop(name) for name in named()}
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in named():
            del sys.modules[name]
        sys.modules.update(kept)


@contextlib.contextmanager
def adapted() -> Iterator[None]:
    """Inside, waiting for a GPU that is not there is no error, and `DynamicCache.crop(n)` with n > 0 keeps n tokens, as
    it did before transformers 5."""
    crop = DynamicCache.crop

    def legacy(cache: DynamicCache, length: int) -> None:
        crop(cache, length - cache.get_seq_length() if length > 0 else length)

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(DynamicCache, "crop", legacy))
        if not torch.cuda.is_available():
            patches.enter_context(mock.patch.object(torch.cuda, "synchronize", lambda: None))
        yield
