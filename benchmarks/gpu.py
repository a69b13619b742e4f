"""The stages around the model on a GPU: verifiers and commit, the builder, and whole rounds eager against CUDA graphs.

    bash benchmarks/gpu.sh                                    # on a GPU, at most 8 minutes, no network
    python benchmarks/gpu.py --out gpu.json                   # the same; without a GPU: tiny sizes, the same code path

Random weights of Qwen3-4B's shape, and shapes of real draft trees (`tree_shapes.json`). Times are those between CUDA
events around a call, host work included, taken in turns; medians in milliseconds. Without a GPU the host's clock takes
the events' place and nothing is captured: such numbers say that the script runs, not how fast anything is.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tree_shapes import rows_of, shapes

from tevlib.decoding.attention import NAME
from tevlib.decoding.cache import KVCache
from tevlib.decoding.clock import Marks
from tevlib.decoding.cycle import Cycle
from tevlib.decoding.decode import speculate
from tevlib.decoding.decode_fixed import decode_fixed
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.fixed_cache import FixedCache
from tevlib.decoding.graphs import captured
from tevlib.decoding.target import Target, TargetInfo
from tevlib.training.initialise import drafter_config
from tevlib.trees.builders import best_first_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.fixed_builder import FixedBuilder
from tevlib.trees.fixed_shape import exit_draw
from tevlib.trees.verifiers import VERIFIERS

AIM_MS = 0.1  # exit draw and commit together, as graphs, at B = 64
CUDA_ONLY = "the times of a GPU, CUDA graphs against eager launches, and whether the aim is met"


@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    drafter_layers: int
    block: int
    context: int
    new_tokens: int
    budgets: tuple[int, ...]
    temperatures: tuple[float, ...]
    trees: int
    repeats: int
    dtype: torch.dtype


QWEN3_4B = Sizes(151_936, 2560, 9728, 36, 32, 8, 128, 5, 16, 512, 64, (32, 64, 128), (0.6, 1.0), 12, 15, torch.bfloat16)
TINY = Sizes(600, 32, 48, 3, 4, 2, 16, 1, 4, 24, 4, (4, 8), (0.6,), 2, 1, torch.float32)


def medians(
    calls: dict[str, Callable[[], None]], prepare: Callable[[], None], device, repeats: int
) -> dict[str, float]:
    """Median milliseconds of each call, in turns, the first two rounds thrown away; `prepare` runs before, untimed."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 2):
        for name, call in calls.items():
            prepare()
            marks = Marks(device)
            marks.mark()
            call()
            marks.mark()
            if turn >= 2:
                times[name] += marks.seconds()
    return {name: 1e3 * statistics.median(found) for name, found in times.items()}


def runs(name: str, call: Callable[[], None], prepare: Callable[[], None]) -> bool:
    """Whether `call` runs on this device at all; what does not is said, so that the other forms are still measured."""
    try:
        prepare()
        call()
    except RuntimeError as error:
        print(f"{name} does not run here: {str(error).splitlines()[0]}", flush=True)
        return False
    return True


def mean_of(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.mean(row[name] for row in rows), 5) for name in rows[0]}


class PerLayerStore:
    """The commit of public code: two operations for the keys and two for the values of every layer."""

    def __init__(self, sizes: Sizes, capacity: int, device):
        shape = (1, sizes.kv_heads, capacity, sizes.head_dim)
        make = lambda: torch.zeros(shape, dtype=sizes.dtype, device=device)  # noqa: E731
        self.pairs = [(make(), make()) for _ in range(sizes.layers)]

    def commit(self, path: list[int], length: int) -> None:
        source = torch.tensor(path, device=self.pairs[0][0].device) + length
        for pair in self.pairs:
            for x in pair:
                x[:, :, length : length + len(path)].copy_(x.index_select(2, source))


def stage_times(sizes: Sizes, device: torch.device) -> list[dict]:
    """Verifier and commit on the same trees and rows: every form with the stacked store, and TEV at fixed shape."""
    found = []
    for budget in sizes.budgets:
        for temperature in sizes.temperatures:
            rows = [
                stage_of_tree(sizes, device, temperature, budget, parents, edges, seed)
                for seed, (parents, edges) in enumerate(shapes(budget)[: sizes.trees])
            ]
            found.append({"budget": budget, "temperature": temperature, "trees": len(rows), "ms": mean_of(rows)})
            print(json.dumps(found[-1]), flush=True)
    return found


def stage_of_tree(sizes, device, temperature, budget, parents, edges, seed) -> dict[str, float]:
    tokens, logits = rows_of(parents, edges, sizes.vocabulary, seed)
    logits = (logits * temperature).to(device)  # the edges' probabilities hold at this temperature
    tree = DraftTree(tokens, parents).to(device)
    depths, height = tree.depths, sizes.block - 1
    keep = depths <= height  # a block that is shorter than the recorded one drafts less deep
    ancestors = tree.ancestors
    masked = torch.where(keep, tree.parents, -1)
    ancestors = torch.where(keep[:, None], ancestors, torch.eye(len(tree), dtype=torch.bool, device=device))
    capacity = sizes.context + budget + 2 * sizes.block
    store = KVCache(sizes.layers, sizes.kv_heads, sizes.head_dim, capacity, sizes.dtype, device)
    fixed = FixedCache(store)
    layers = PerLayerStore(sizes, capacity, device)
    uniforms = torch.rand(2, dtype=torch.float64, device=device)
    drawn = {}

    def decide():
        drawn["it"] = exit_draw(tree.tokens, masked, ancestors, logits, temperature, uniforms, height)

    def commit():
        fixed.commit(drawn["it"].path, drawn["it"].length)

    eager = {"decide": decide, "commit": commit}
    graphs = captured(eager, device)
    generator = torch.Generator(device).manual_seed(seed)

    def prepare():
        store.length = sizes.context
        fixed.take_length()
        uniforms.copy_(torch.rand(2, dtype=torch.float64, generator=generator, device=device))

    def run(stages):
        for stage in stages.values():
            stage()

    def stage(name):
        return lambda: store.commit(VERIFIERS[name](tree, logits, temperature, generator).path)

    prepare()
    decide()
    path = [0, *(node for node in range(1, len(tree)) if node % 2 == 0)][:3]
    calls = {f"{name} + commit": stage(name) for name in VERIFIERS if name != "greedy"}
    calls = {name: call for name, call in calls.items() if runs(name, call, prepare)}
    calls |= {
        "predraw + commit per layer": lambda: layers.commit(
            VERIFIERS["predraw"](tree, logits, temperature, generator).path, sizes.context
        ),
        "fixed tev + commit": lambda: run(eager),
        "fixed tev + commit, graphs": lambda: run(graphs),
        "fixed tev, graph": graphs["decide"],
        "fixed commit, graph": graphs["commit"],
        "commit, stacked": lambda: store.commit(path),
        "commit, per layer": lambda: layers.commit(path, sizes.context),
    }
    return medians(calls, prepare, device, sizes.repeats)


def builder_times(sizes: Sizes, device: torch.device) -> list[dict]:
    """The builder on the drafter's rows: level by level with host reads, the CPU's heap after a copy, fixed shape."""
    found = []
    depths, vocabulary = sizes.block - 1, sizes.vocabulary
    exponent = torch.linspace(1.5, 1.25, depths)[:, None]
    ranks = torch.stack([torch.randperm(vocabulary, generator=torch.Generator().manual_seed(i)) for i in range(depths)])
    log_probs = (-exponent * (1 + ranks.float()).log()).log_softmax(-1).to(device)
    root, out = torch.zeros((), dtype=torch.long, device=device), {}
    for budget in sizes.budgets:
        builder = FixedBuilder(depths, vocabulary, budget, device)

        def fixed(builder=builder):
            out["tree"] = builder(log_probs, root)

        calls = {
            "best_first_tree": lambda budget=budget: best_first_tree(log_probs, budget, 0).ancestors,
            "copy and heap": lambda budget=budget: best_first_tree(log_probs.cpu(), budget, 0).ancestors.to(device),
            "fixed": fixed,
            "fixed, graph": captured({"build": fixed}, device)["build"],
        }
        found.append({"budget": budget, "ms": medians(calls, lambda: None, device, sizes.repeats)})
        print(json.dumps(found[-1]), flush=True)
    return found


def cycle_times(sizes: Sizes, device: torch.device) -> list[dict]:
    """Milliseconds a round and a stage of whole rounds with random weights: `speculate`, and rounds of fixed shape."""
    target, drafter = random_models(sizes, device)
    prompt = torch.randint(4, sizes.vocabulary, (sizes.context,), generator=torch.Generator().manual_seed(0)).tolist()
    found = []
    for attention, budgets in (("sdpa", sizes.budgets), (NAME, sizes.budgets[1:2])):
        target = with_attention(target, attention)
        for budget, temperature in itertools.product(budgets, (0.0, sizes.temperatures[-1])):
            settings = dict(budget=budget, temperature=temperature, max_new_tokens=sizes.new_tokens, stop=(), seed=0)
            started = time.perf_counter()
            cycle = Cycle(target, drafter, budget, sizes.context + sizes.new_tokens, sizes.new_tokens, temperature)
            made = time.perf_counter() - started
            row = {"attention": attention, "budget": budget, "temperature": temperature, "capture_s": round(made, 2)}
            runs_of = {
                "eager": partial(speculate, target, drafter, prompt, **settings),
                "fixed": partial(decode_fixed, target, drafter, prompt, cycle=cycle, **settings),
            }
            for name, run in runs_of.items():
                run()
                generation = run()
                rounds = len(generation.rounds)
                row[name] = {
                    "round_ms": round(1e3 * generation.decode_s / rounds, 4),
                    "stage_ms": {k: round(1e3 * s / rounds, 4) for k, s in generation.stage_s.items()},
                    "rounds": rounds,
                }
            found.append(row)
            print(json.dumps(row), flush=True)
            del cycle, runs_of
    return found


def check(_: Sizes, device: torch.device) -> list[dict]:
    """Whether rounds of fixed shape emit the tokens of `speculate` at T = 0: tiny models in float32, on this device.

    Near ties of large models' 16-bit logits would say nothing.
    """
    target, drafter = random_models(TINY, device)
    found = []
    for budget in (1, 7, 32):
        settings = dict(budget=budget, max_new_tokens=40, stop=())
        prompt = list(range(5, 25))
        same = (
            decode_fixed(target, drafter, prompt, **settings).tokens
            == speculate(target, drafter, prompt, **settings).tokens
        )
        found.append({"budget": budget, "same_tokens": same})
        print(json.dumps(found[-1]), flush=True)
    return found


def with_attention(target: Target, name: str) -> Target:
    target.model.set_attn_implementation(name)
    return Target(target.model, None, target.info)


@torch.no_grad()
def random_models(sizes: Sizes, device: torch.device) -> tuple[Target, DFlashDraftModel]:
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as `load_target` does
    config = Qwen3Config(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.inner,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=sizes.dtype)
        info = TargetInfo("random", "seed 0", str(sizes.dtype), sum(p.numel() for p in model.parameters()), str(device))
        target = Target(model, None, info)
        taps = tuple(range(0, sizes.layers - 1, max(1, sizes.layers // 5)))[:5]
        drafter = DFlashDraftModel(drafter_config(target, sizes.drafter_layers, sizes.block, taps, mask_id=3))
    return target, drafter.to(device, sizes.dtype).eval()


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, also on a GPU")
    parts = ["check", "stage", "builder", "cycle"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    options = parser.parse_args(arguments)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    sizes = QWEN3_4B if cuda and not options.tiny else TINY
    name = torch.cuda.get_device_name() if cuda else "no GPU"
    if not cuda:
        print(f"no GPU here: tiny sizes on the CPU, the same code path. Not measured: {CUDA_ONLY}.", flush=True)
    measure = {"check": check, "stage": stage_times, "builder": builder_times, "cycle": cycle_times}
    result = {"device": name, "torch": torch.__version__, "sizes": "tiny" if sizes is TINY else "Qwen3-4B"}
    result["not_measured"] = None if cuda else CUDA_ONLY
    for part in options.parts:
        with torch.inference_mode():
            result[part] = measure[part](sizes, device)
        at_64 = [row for row in result[part] if row["budget"] == 64] if part == "stage" and cuda else []
        if at_64:
            worst = max(row["ms"]["fixed tev + commit, graphs"] for row in at_64)
            result["aim"] = {"aim_ms": AIM_MS, "worst_ms": worst, "met": worst < AIM_MS}
            print(f"TEV and commit at B = 64, worst temperature: {worst:.4f} ms; the aim is {AIM_MS} ms", flush=True)
        if options.out:  # after every part, so that one that fails takes no other's numbers along
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
