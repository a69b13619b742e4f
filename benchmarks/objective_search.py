"""The search behind the shipped drafters: fresh rollouts, a converged base, many objectives, then the claim.

    python benchmarks/objective_search.py prompts  --out runs/search      the offline prompts, as token ids
    python benchmarks/objective_search.py rollouts --out runs/search      the target's responses to them and to its own
    python benchmarks/objective_search.py base     --out runs/search      more steps for the base drafter
    python benchmarks/objective_search.py search   --out runs/search      one seed of every variant in `SEARCH`
    python benchmarks/objective_search.py claim    --out runs/search      three seeds of the chosen few, on other text
    python benchmarks/objective_search.py export   --out runs/search      their drafters

Made for one GPU and a few minutes; runs on a CPU too, and slowly. Every stage resumes: what is in the folder is kept.
`search` chooses on its own held-out text; `claim` is measured on text that no choice has seen.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp

from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.load import load_target
from tevlib.sources.chat import chat_ids
from tevlib.training.compare import paired_differences, run_variant, variant_config
from tevlib.training.config import TrainConfig
from tevlib.training.prompts import rollout_prompts, user_turn_opening
from tevlib.training.rollouts import Rollout, rollouts
from tevlib.training.train import train

TEMPERATURES = (0.0, 0.7, 1.0)  # of the responses
HELD_OUT = {"choose": 64, "claim": 192}  # responses of each temperature, whose prompts are in no training set
BASE = "smollm2-135m-base"
LONGEST = 288  # tokens of a prompt
PIECE = 1500  # prompts that one process answers in one go
BUDGETS = (16, 32, 64, 128)
SEARCH = [  # the first sixteen where there is time for no more
    "finetune",
    *(f"exit guidance={x}" for x in (8, 32, 96, 256)),
    "exit guidance=96 horizon_leaves=false",
    "exit guidance=96 tree_budget=64",
    "exit guidance=96 tree_temperature=0.6",
    "exit guidance=32 token_weight=0",
    "exit guidance=32 gain_guidance=1",
    "prefix guidance=96",
    *(f"gain guidance={x}" for x in (1, 4, 16)),
    "gain guidance=4 gain_share=missing",
    "gain guidance=1 token_weight=0",
    "exit guidance=96 tree_budget=16",
    "exit guidance=96 tree_budget=128",
    "exit guidance=96 trees=1",
    "exit guidance=96 trees=8",
    *(f"prefix guidance={x}" for x in (8, 32, 256)),
    "gain guidance=0.25",
    "gain guidance=4 gain_share=present",
    "gain guidance=4 gain_share=root",
    "gain guidance=4 tree_budget=64",
    "gain guidance=4 trees=8",
    "gain guidance=4 tree_temperature=0.6",
    "opd",
]


def shared_config(args) -> TrainConfig:
    """What all variants have in common."""
    return TrainConfig(
        steps=args.steps,
        sequences=args.sequences,
        learning_rate=args.rate,
        tree_budget=args.tree_budget,
        online=True,
        validate_every=args.steps,
        save_every=args.steps,
        validation_contexts=24,
        validation_budgets=(64,),
    )


def base_of(args) -> Path:
    """Where the variants start: what the stage `base` made, else the drafter that it would start from."""
    made = args.out / "drafters" / BASE
    return made if made.is_dir() else Path(args.init)


# --- rollouts ---------------------------------------------------------------------------------------------------------


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


# --- training ---------------------------------------------------------------------------------------------------------


def train_base(args) -> None:
    """More steps for the drafter in `args.init`, in large batches; written to `out/base`."""
    target = args.load()
    learnt, held_out = read(sorted(args.out.glob("base-*-*.pt"))), read(sorted(args.out.glob("choose-*.pt")))
    drafter = load_drafter(args.init, target, dtype=torch.float32).requires_grad_(True)
    config = TrainConfig(
        steps=args.steps, sequences=args.sequences, anchors=32, learning_rate=args.rate, online=True, seed=2,
        validate_every=max(1, args.steps // 3), save_every=max(1, args.steps // 3), validation_contexts=96,
        validation_budgets=(32, 64),
    )  # fmt: skip
    started = time.time()
    rows = train(target, drafter, learnt, held_out, config, args.out / "base-run")
    save_drafter(drafter, args.out / "drafters" / BASE, target=target)
    for row in rows:
        if "ceiling_B32_T0" in row:
            print({k: round(v, 4) for k, v in row.items()}, flush=True)
    print(f"base: {len(learnt)} rollouts, {args.steps} steps, {time.time() - started:.0f} s", flush=True)


def folder_name(text: str, seed: int) -> str:
    return f"{text.replace(' ', '_').replace('=', '')}-s{seed}"


def work(args, stage: str, jobs) -> None:
    """Takes (variant, seed) from the queue until it is empty; every run leaves its evaluation and its drafter."""
    target = args.load()
    learnt = read(sorted(args.out.glob("fresh-*-*.pt")))
    held_out = read(sorted(args.out.glob(f"{'claim' if stage == 'claim' else 'choose'}-*.pt")))
    while (job := jobs.get()) is not None:
        text, seed = job
        folder = args.out / stage / folder_name(text, seed)
        how = dict(contexts=2 * len(held_out), budgets=BUDGETS, temperatures=(0.0, 0.6, 1.0))
        config = variant_config(text, shared_config(args), seed)
        found = run_variant(target, base_of(args), learnt, held_out, config, folder, **how)
        means = {k: round(sum(v) / len(v), 3) for k, v in found["ceilings"].items()}
        speed = f"{found['seconds']:.0f} s, {found['steps_per_s']:.2f} steps/s"
        print(f"{stage} {text} seed {seed}: {speed}, {means}", flush=True)


def run_jobs(args, stage: str, names: list[tuple[str, int]]) -> dict[tuple[str, int], dict]:
    context = mp.get_context("spawn")
    jobs = context.Queue()
    slow = ("trees=8", "tree_budget=128", "opd")  # first, so that none of them is alone at the end
    for job in sorted(names, key=lambda job: not any(word in job[0] for word in slow)) + [None] * args.workers:
        jobs.put(job)
    run_all([context.Process(target=work, args=(args, stage, jobs)) for _ in range(args.workers)], args.seconds)
    paths = {job: args.out / stage / folder_name(*job) / "evaluation.json" for job in names}
    missing = [f"{text} seed {seed}" for (text, seed), path in paths.items() if not path.exists()]
    if missing:
        print(f"not finished: {', '.join(missing)}", flush=True)
    return {job: json.loads(path.read_text()) for job, path in paths.items() if path.exists()}


def search(args) -> None:
    results = run_jobs(args, "search", [(text, 0) for text in args.variants or SEARCH[: args.variants_most]])
    if len(results) < 2:
        raise SystemExit("nothing to compare: give the stage more --seconds")
    table = paired_differences(results, "finetune")
    table.to_csv(args.out / "search.csv", index=False)
    wanted = table[table.setting.isin(["B32_T1", "B64_T1", "B32_T0", "B64_T0"])]
    means = wanted.groupby("variant").relative.mean().sort_values(ascending=False)
    print((100 * means).round(2).to_string(), flush=True)
    pure = [variant for variant in means.index if "gain_guidance" not in variant]
    best = {kind: next(variant for variant in pure if variant.split()[0] == kind) for kind in ("exit", "gain")}
    best["prefix"] = "prefix " + " ".join(best["exit"].split()[1:])
    (args.out / "chosen.json").write_text(json.dumps(best))
    print(best, flush=True)


def claim(args) -> None:
    """`--steps 0`: as many as fit into `--seconds` at the search's pace."""
    if args.steps == 0:
        paths = (args.out / "search").glob("exit*/evaluation.json")
        pace = min(json.loads(path.read_text())["steps_per_s"] for path in paths)
        args.steps = int(0.8 * pace * (args.seconds - 30)) // 50 * 50
        print(f"{args.steps} steps at {pace:.2f} a second", flush=True)
    chosen = args.variants or ["finetune", *json.loads((args.out / "chosen.json").read_text()).values(), "opd"]
    results = run_jobs(args, "claim", [(text, seed) for seed in range(3) for text in chosen])
    for reference in chosen[:4]:
        table = paired_differences(results, reference)
        table.to_csv(args.out / f"claim-{reference.split()[0]}.csv", index=False)
        shown = table[table.setting.isin(["B32_T1", "B64_T1", "B64_T0"])]
        print(f"minus {reference}\n{shown.round(4).to_string()}", flush=True)


def export(args) -> None:
    """The first seed of each claim as a drafter's folder, the controls as differences from the base."""
    target = args.load()
    base = base_of(args)
    for path in sorted((args.out / "claim").glob("*-s0/state.pt")):
        kind = path.parent.name.split("_")[0].removesuffix("-s0")
        drafter = load_drafter(base, target, dtype=torch.float32)
        drafter.load_state_dict(torch.load(path, map_location=target.device)["drafter"])
        of = None if kind in ("exit", "gain") else base
        save_drafter(drafter, args.out / "drafters" / BASE.replace("base", kind), target=target, delta_of=of)
        print(kind, flush=True)


# --- processes --------------------------------------------------------------------------------------------------------


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


class Arguments(argparse.Namespace):
    def load(self):
        """The target, on the GPU if there is one."""
        torch.set_num_threads(1)
        return load_target(self.target, dtype="bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["prompts", "rollouts", "base", "search", "claim", "export"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="SmolLM2-135M-Instruct")
    parser.add_argument("--init", default="data/drafters/smollm2-135m-base", help="where the base starts")
    parser.add_argument("--most", type=int, default=3600, help="prompts that are used")
    parser.add_argument("--seed", type=int, default=11, help="of the choice of prompts")
    parser.add_argument("--own", type=int, default=6000, help="prompts that the target writes itself")
    parser.add_argument("--tokens", type=int, default=160, help="of a response at most")
    parser.add_argument("--rows", type=int, default=512, help="responses that a process decodes together")
    parser.add_argument("--workers", type=int, default=8, help="processes that share the machine")
    parser.add_argument("--steps", type=int, default=400, help="of base, search and claim")
    parser.add_argument("--sequences", type=int, default=8, help="of a step (64 for the base on a GPU)")
    parser.add_argument("--rate", type=float, default=2e-4, help="learning rate (1e-3 for the base)")
    parser.add_argument("--tree-budget", type=int, default=32, help="nodes of the trees in training")
    parser.add_argument("--seconds", type=float, default=86400, help="after this the stage ends with what is done")
    parser.add_argument("--variants", nargs="*", help="instead of the stage's own")
    parser.add_argument("--variants-most", type=int, default=None, help="of `SEARCH`")
    args = parser.parse_args(namespace=Arguments())
    args.out.mkdir(parents=True, exist_ok=True)
    args.prompts = args.out / "prompts.json"
    stages = {
        "prompts": make_prompts,
        "rollouts": make_rollouts,
        "base": train_base,
        "search": search,
        "claim": claim,
        "export": export,
    }
    stages[args.stage](args)


if __name__ == "__main__":
    main()
