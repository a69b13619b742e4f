"""Do latency cells: every verifier on the same trees and rows of real decoding, in turns.

What is timed is the stage that the paper's Table 3 times: the decision, and the commit of the accepted path to the
key/value store; the target's pass is not in it. All verifiers see the same replayed rounds with equal seeds, one after
the other in rotating order, after a round of warm-up that is thrown away. Each gets the tree as a pass leaves it, with
nothing derived but its ancestors. The reference form of predraw takes a hundred times as long as the others on a CPU
(`torch.multinomial` does), so it is timed once on the first rounds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from tevlib.decoding.cache import KVCache
from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.clock import Clock
from tevlib.decoding.decode import speculate
from tevlib.decoding.load import load_target
from tevlib.decoding.target import Target
from tevlib.sources.prompts import chat_ids
from tevlib.suite.cells import VerifierCell
from tevlib.suite.code_hash import drafter_digest
from tevlib.suite.decode_cell import answer_seed, prompts_of
from tevlib.suite.models import device, drafter_folder, target_facts, target_name
from tevlib.suite.provenance import provenance
from tevlib.suite.records import record_path, write_record
from tevlib.training.evaluate import middles
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.verifiers import VERIFIERS

TIMED = ("predraw", "predraw_reference", "predraw_lazy", "sequential_residual", "tev_parallel", "tev_descent")
TEV_FORMS = ("tev_parallel", "tev_descent")
SLOW, SLOW_ROUNDS = "predraw_reference", 2
CONTEXT = 512  # committed tokens in front of the tree in the store that paths are committed to
QWEN3_4B = {"vocab_size": 151_936, "layers": 36, "kv_heads": 8, "head_dim": 128}
TAIL = -20.0  # logit below a row's largest of the tokens that the target does not have: 0.0002 of the mass at T = 1


def run_verifier_cells(cells: Sequence[VerifierCell]) -> list[dict]:
    """The finished records of cells of one `company()`, each as written to its `record_path` as soon as it is done.

    One response row per round and verifier. Cells of the same budget and temperature share their rounds. `wall_s` is
    that since the first cell's start.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    first = cells[0]
    if any(cell.company() != first.company() for cell in cells):
        raise ValueError(f"cells side by side may differ in {', '.join(VerifierCell.BESIDE)} only")
    hashes = [cell.hash12() for cell in cells]
    target = load_target(target_name(first.target), dtype=first.dtype)
    folder = drafter_folder(first.drafter)
    drafter = load_drafter(folder, target)
    facts = {"device": device(target), "target": target_facts(target), "drafter": {"sha256": drafter_digest(folder)}}
    kept: dict[tuple[int, float], list[tuple[DraftTree, Tensor]]] = {}
    records = []
    for cell, hash12 in zip(cells, hashes, strict=True):
        setting = (cell.budget, cell.temperature)
        if setting not in kept:
            kept[setting] = collect_rounds(cell, target, drafter)
        rounds = kept[setting]
        if cell.shape == "qwen3_4b":
            rounds = [(tree, widened(rows, QWEN3_4B["vocab_size"], cell.seed)) for tree, rows in rounds]
        rows = time_rounds(rounds, stage_cache(cell, target), cell)
        body = {
            "hash": hash12,
            "cell": cell.fields(),
            "beside": [other for other in hashes if other != hash12],
            "metrics": latencies(rows),
            **facts,
            "provenance": provenance(),
            "started_at": started.isoformat(timespec="seconds"),
            "wall_s": time.perf_counter() - clock,
            "responses": rows,
        }
        write_record(record_path(cell, hash12), body)
        records.append({"status": "finished", **body})
    return records


def collect_rounds(cell: VerifierCell, target: Target, drafter) -> list[tuple[DraftTree, Tensor]]:
    """At most `cell.rounds` trees with their target rows, spread evenly over the rounds of `cell.prompts` answers."""
    kept: list[tuple[DraftTree, Tensor]] = []
    prompts = prompts_of(cell)
    for index, prompt in enumerate(prompts):
        share = -(-cell.rounds // len(prompts))
        found: list[tuple[DraftTree, Tensor]] = []
        ids = chat_ids(target.tokenizer, [{"role": "user", "content": prompt.turns[0]}])
        speculate(
            target,
            drafter,
            ids,
            budget=cell.budget,
            temperature=cell.temperature,
            max_new_tokens=cell.max_new_tokens,
            seed=answer_seed(cell.seed, 0, index, 0),
            on_round=lambda tree, rows, found=found: found.append((tree, rows)),
        )
        kept += [found[place] for place in middles(len(found), share)]
    if not kept:
        raise ValueError(f"no draft-verify round in {cell.max_new_tokens} new tokens of {len(prompts)} answers")
    return kept[: cell.rounds]


def widened(rows: Tensor, vocabulary: int, seed: int) -> Tensor:
    """`rows [N, V]` with further tokens of small random logits up to `vocabulary`: a larger model's sizes."""
    missing = vocabulary - rows.shape[1]
    if missing < 0:
        raise ValueError(f"rows of {rows.shape[1]} tokens cannot be widened to {vocabulary}")
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(rows), missing, generator=generator).to(rows.device)
    return torch.cat([rows, rows.amax(1, keepdim=True) + TAIL + noise], dim=1)


def stage_cache(cell: VerifierCell, target: Target) -> KVCache:
    """A store with `CONTEXT` committed tokens, of the target's size or of the shape that the cell asks for."""
    if cell.shape == "qwen3_4b":
        size = {name: QWEN3_4B[name] for name in ("layers", "kv_heads", "head_dim")}
    else:
        size = {"layers": target.layers, "kv_heads": target.kv_heads, "head_dim": target.head_dim}
    capacity = CONTEXT + cell.budget + 1
    cache = KVCache(size["layers"], size["kv_heads"], size["head_dim"], capacity, target.dtype, target.device)
    cache.length = CONTEXT
    return cache


def time_rounds(rounds: list[tuple[DraftTree, Tensor]], cache: KVCache, cell: VerifierCell) -> list[dict]:
    """One row per round and verifier: `round`, `verifier`, `ms` (median over the repeats), nodes, internal nodes.

    Every verifier finds the rows just written, as the head leaves them, and a tree of which nothing but the pass has
    asked anything.
    """
    clock = Clock(cache.store.device)
    written = torch.empty_like(max((rows for _, rows in rounds), key=len))
    times: dict[tuple[int, str], list[float]] = {}
    for repeat in tqdm(range(-1, cell.repeats), desc=str(cell), unit="pass", mininterval=1):
        for index, (tree, rows) in enumerate(rounds):
            turn = (repeat + index) % len(TIMED)
            for name in TIMED[turn:] + TIMED[:turn]:
                if name == SLOW and (repeat != 0 or index >= SLOW_ROUNDS):
                    continue
                tree = DraftTree(tree.tokens, tree.parents)
                tree.ancestors  # noqa: B018 - the pass had them
                generator = torch.Generator(device=rows.device)
                generator.manual_seed(answer_seed(cell.seed, max(repeat, 0), index, 0))
                fresh = written[: len(rows)].copy_(rows)
                clock.lap()
                verdict = VERIFIERS[name](tree, fresh, cell.temperature, generator)
                cache.commit(verdict.path)
                seconds = clock.lap()
                cache.keep_first(CONTEXT)
                if repeat >= 0:
                    times.setdefault((index, name), []).append(seconds)
    return [
        {
            "round": index,
            "verifier": name,
            "ms": 1e3 * float(np.median(seconds)),
            "nodes": len(rounds[index][0]),
            "internal": len(rounds[index][0].internal),
        }
        for (index, name), seconds in times.items()
    ]


def latencies(rows: list[dict]) -> dict:
    """Mean milliseconds per round of each verifier, with 95% bootstrap intervals over rounds, and TEV's reductions.

    `<form>_reduction` is in per cent, against predraw, from the means of the same rounds.
    """
    by_name = {name: np.array([row["ms"] for row in rows if row["verifier"] == name]) for name in TIMED}
    rounds = len(by_name["predraw"])
    metrics: dict = {"rounds": rounds}
    draws = np.random.default_rng(0).integers(rounds, size=(2000, rounds))
    for name, values in by_name.items():
        metrics[f"{name}_ms"] = float(values.mean())
        means = values[draws % len(values)].mean(1)
        metrics[f"{name}_ms_ci95"] = [float(q) for q in np.quantile(means, [0.025, 0.975])]
    for name in TEV_FORMS:
        ratios = by_name[name][draws].mean(1) / by_name["predraw"][draws].mean(1)
        metrics[f"{name}_reduction"] = 100 * (1 - metrics[f"{name}_ms"] / metrics["predraw_ms"])
        metrics[f"{name}_reduction_ci95"] = [float(q) for q in np.quantile(100 * (1 - ratios), [0.025, 0.975])]
    metrics["nodes"] = float(np.mean([row["nodes"] for row in rows]))
    metrics["internal"] = float(np.mean([row["internal"] for row in rows]))
    return metrics
