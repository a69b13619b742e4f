"""The text that `objective_search.py` learns from and judges by: prompts, and the target's own responses to them.

Two training sets, for the base and for the variants, and two held out, to choose by and to claim by. Every prompt is in
one of them only.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

from tevlib.sources.chat import chat_ids
from tevlib.training.prompts import rollout_prompts, user_turn_opening
from tevlib.training.rollouts import Rollout, rollouts

TEMPERATURES = (0.0, 0.7, 1.0)  # of the responses
HELD_OUT = {"choose": 64, "claim": 192}  # responses of each temperature, whose prompts are in no training set
LONGEST = 288  # tokens of a prompt
PIECE = 1500  # prompts that one process answers in one go


def write(found: list[Rollout], path: Path) -> None:
    found = sorted(found, key=lambda r: r.index)
    tensors = {
        "ids": torch.cat([r.ids.int() for r in found]),
        "lengths": [len(r.ids) for r in found],
        "prompts": [r.prompt_length for r in found],
    }
    torch.save(tensors, path.with_suffix(".partial"))
    os.replace(path.with_suffix(".partial"), path)


def read(paths: list[Path]) -> list[Rollout]:
    """The rollouts of some files, without features: those come from the target in every step."""
    found = []
    for path in paths:
        kept = torch.load(path)
        pieces = kept["ids"].long().split(kept["lengths"])
        found += [Rollout(0, ids, n, torch.zeros(len(ids), 0)) for ids, n in zip(pieces, kept["prompts"], strict=True)]
    return found


def rollout_tasks(prompts: list[list[int]], own: list[list[int]]) -> list[tuple[str, list[list[int]], float, int]]:
    """(name, prompts, temperature, seed): two training sets, for the base and for the variants, and two held out."""
    start, tasks = 0, []
    for name, n in HELD_OUT.items():
        for i, temperature in enumerate(TEMPERATURES):
            tasks.append((f"{name}-{i}", prompts[start : start + n], temperature, 1000 + i))
            start += n
    rest, half = prompts[start:], len(own) // 2
    for i, temperature in enumerate(TEMPERATURES):
        tasks.append((f"base-prompts-{i}", rest, temperature, i))
    tasks += [("base-own-0", own[:half], 0.0, 10), ("base-own-1", own[:half], 0.7, 11)]
    tasks += [("fresh-prompts-1", rest, 0.7, 20), ("fresh-prompts-2", rest, 1.0, 21)]
    tasks += [("fresh-own-0", own[half:], 0.0, 22), ("fresh-own-1", own[half:], 0.7, 23)]
    pieces = []
    for name, some, temperature, seed in tasks:
        pieces += [
            (f"{name}-{i}", some[start : start + PIECE], temperature, seed * 100 + i)
            for i, start in enumerate(range(0, len(some), PIECE))
        ]
    return sorted(pieces, key=lambda piece: -len(piece[1]))


def make_prompts(args) -> None:
    """All training prompts of at most `LONGEST` tokens, and what stands in front of a user's words."""
    target = args.load()
    prompts = rollout_prompts(target, args.most, seed=args.seed, max_prompt_tokens=LONGEST)
    args.prompts.write_text(json.dumps({"prompts": prompts, "opening": user_turn_opening(target)}))
    print(f"{len(prompts)} prompts", flush=True)


def own_prompts(args, share: int, shares: int, queue) -> None:
    """A share of the user turns that the target writes itself, as prompts."""
    target = args.load()
    opening = json.loads(args.prompts.read_text())["opening"]
    how = dict(temperature=1.0, max_new_tokens=64, seed=500 + share, rows=args.rows)
    found: dict[str, None] = {}
    for made in rollouts(target, [opening] * (2 * args.own // shares), (), **how):
        ids = made.ids[made.prompt_length :].tolist()
        text = target.tokenizer.decode(ids, skip_special_tokens=True).strip()
        if ids[-1] in target.stop_ids and len(text) > 8:
            found[text] = None
    queue.put([chat_ids(target.tokenizer, [{"role": "user", "content": text}]) for text in found])


def respond(args, tasks) -> None:
    """The responses of some tasks."""
    target = args.load()
    for name, prompts, temperature, seed in tasks:
        path = args.out / f"{name}.pt"
        if path.exists():
            continue
        started = time.time()
        made = rollouts(
            target, prompts, (), temperature=temperature, max_new_tokens=args.tokens, seed=seed, rows=args.rows
        )
        found = []
        for rollout in made:
            found.append(rollout)
            if time.time() > args.until:
                break
        if not found:
            return
        write(found, path)
        tokens = sum(len(r.ids) - r.prompt_length for r in found)
        rate = tokens / (time.time() - started)
        print(f"{name}: {len(found)} responses, {tokens} tokens, {rate:.0f} a second", flush=True)


def make_rollouts(args) -> None:
    context = mp.get_context("spawn")
    kept = args.out / "own.json"
    if not kept.exists():
        queue = context.Queue()
        shares = range(args.workers)
        processes = [context.Process(target=own_prompts, args=(args, i, args.workers, queue)) for i in shares]
        own = gather(processes, queue)
        distinct = {tuple(ids): None for part in own for ids in part if len(ids) <= LONGEST}
        kept.write_text(json.dumps([list(ids) for ids in distinct][: args.own]))
    own = json.loads(kept.read_text())
    args.until = time.time() + args.seconds
    tasks = rollout_tasks(json.loads(args.prompts.read_text())["prompts"][: args.most], own)
    print(f"{len(own)} prompts of the target's own; {sum(len(t[1]) for t in tasks)} responses", flush=True)
    shares = [tasks[i :: args.workers] for i in range(args.workers)]
    run_all([context.Process(target=respond, args=(args, share)) for share in shares if share], args.seconds + 10)


def gather(processes, queue) -> list:
    for process in processes:
        process.start()
    found = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    return found


def run_all(processes, seconds: float) -> None:
    """Until all are done, or the time is up."""
    end = time.time() + seconds
    for process in processes:
        process.start()
    for process in processes:
        process.join(max(0.0, end - time.time()))
    for process in processes:
        if process.is_alive():
            process.terminate()
