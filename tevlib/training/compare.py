"""A matched comparison of objectives: same start, data, steps, order; exact ceilings on the same held-out contexts."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import yaml

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.target import Target
from tevlib.training.config import TrainConfig
from tevlib.training.evaluate import held_out_laws
from tevlib.training.rollouts import Rollout
from tevlib.training.train import train

RESAMPLES = 4000
COLUMNS = ["variant", "setting", "difference", "low", "high", "reference", "relative", "seeds", "contexts"]


def variant_config(text: str, shared: TrainConfig, seed: int) -> TrainConfig:
    """`shared` with what a line such as `exit guidance=32 trees=8` changes, and the seed.

    Raises `ValueError` for a word that is not `field=value` of `TrainConfig`, and for values that it refuses.
    """
    objective, *words = text.split()
    changes: dict = {"objective": objective, "seed": seed}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name not in asdict(shared):
            known = ", ".join(asdict(shared))
            raise ValueError(f"variant {text!r}: {word!r} is not field=value of a training configuration ({known})")
        changes[name] = yaml.safe_load(value)
    return replace(shared, **changes)


def run_variant(
    target: Target,
    init: Path | str,
    learnt: list[Rollout],
    held_out: list[Rollout],
    config: TrainConfig,
    folder: Path | str,
    *,
    contexts: int,
    budgets: tuple[int, ...],
    temperatures: tuple[float, ...],
) -> dict:
    """What one run gave, from `folder/evaluation.json` if it is there: per-context ceilings, seconds of training.

    Trains a drafter that starts from the folder `init` (resumable, as `train` is), then evaluates it. The keys of
    `ceilings` are `B<budget>_T<temperature>`, their values lists over the contexts, in the same order for every
    variant. `seconds` is the time in the training loop, validation included, over all calls.
    """
    folder = Path(folder)
    path = folder / "evaluation.json"
    how = {"contexts": contexts, "budgets": list(budgets), "temperatures": list(temperatures), **asdict(config)}
    how = json.loads(json.dumps(how))
    if path.exists():
        kept = json.loads(path.read_text())
        if kept["how"] == how:
            return kept
    drafter = load_drafter(init, target, dtype=torch.float32).requires_grad_(True)
    started = time.perf_counter()
    rows = train(target, drafter, learnt, held_out, config, folder)
    seconds = time.perf_counter() - started
    drafter = drafter.to(target.dtype)
    found = held_out_laws(target, drafter, held_out, contexts=contexts, budgets=budgets, temperatures=temperatures)
    result = {
        "how": how,
        "steps_per_s": rows[-1]["steps_per_s"],
        "seconds": seconds,
        "skipped": rows[-1]["skipped"],
        "ceilings": {f"B{b}_T{t:g}": laws.ceilings.tolist() for (b, t), laws in found.items()},
        "root_exits": {f"B{b}_T{t:g}": laws.root_exits.tolist() for (b, t), laws in found.items()},
        "texts": next(iter(found.values())).texts.tolist(),
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    os.replace(partial, path)
    return result


def paired_differences(results: dict[tuple[str, int], dict], reference: str, seed: int = 0) -> pd.DataFrame:
    """Mean 1 + C_p of each variant minus that of `reference`, on the same contexts, with a 95% interval.

    `results` of `run_variant` by (variant, seed); only seeds that both have are compared, run by run. Contexts of one
    response are alike, so whole responses are drawn again in the bootstrap, and so are seeds. One row per variant and
    setting: `difference`, `low`, `high` (tokens), `reference` (its mean), `relative` (difference over it), `seeds`,
    `contexts`. Raises `ValueError` for a reference that was not run, and results of other contexts.
    """
    names = list(dict.fromkeys(name for name, _ in results))
    if reference not in names:
        raise ValueError(f"no result of the reference {reference!r}: there are {', '.join(names)}")
    texts = np.array(next(iter(results.values()))["texts"])
    if any(result["texts"] != texts.tolist() for result in results.values()):
        raise ValueError("the results are not of the same contexts: they cannot be paired")
    members = [np.flatnonzero(texts == text) for text in np.unique(texts)]
    rng = np.random.default_rng(seed)
    rows = []
    for name in names:
        seeds = [s for n, s in results if n == name and (reference, s) in results]
        if name == reference or not seeds:
            continue
        for setting in results[name, seeds[0]]["ceilings"]:
            theirs = np.array([results[reference, s]["ceilings"][setting] for s in seeds])
            mine = np.array([results[name, s]["ceilings"][setting] for s in seeds])
            by_response = np.stack([(mine - theirs)[:, some].sum(1) for some in members], axis=1)
            sizes = np.array([len(some) for some in members])
            drawn = []
            for _ in range(RESAMPLES):
                some, runs = rng.integers(len(members), size=len(members)), rng.integers(len(seeds), size=len(seeds))
                drawn.append(by_response[runs][:, some].sum() / (len(seeds) * sizes[some].sum()))
            low, high = np.percentile(drawn, [2.5, 97.5])
            difference = float((mine - theirs).mean())
            rows.append(
                {
                    "variant": name, "setting": setting, "difference": difference, "low": float(low),
                    "high": float(high), "reference": float(theirs.mean()),
                    "relative": difference / float(theirs.mean()), "seeds": len(seeds), "contexts": mine.shape[1],
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=COLUMNS)
