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
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp
from search_rollouts import make_prompts, make_rollouts, read, run_all

from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.load import load_target
from tevlib.training.compare import paired_differences, run_variant, variant_config
from tevlib.training.config import TrainConfig
from tevlib.training.train import train

BASE = "smollm2-135m-base"
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
