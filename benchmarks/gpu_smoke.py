"""Every family of targets on a GPU: exactness at T = 0, verifiers' laws, an ExitTrain step, memory and time.

    bash benchmarks/gpu_smoke.sh                    # on a GPU, at most 6 minutes, no network
    python benchmarks/gpu_smoke.py --out smoke.json # the same; without a GPU: tiny sizes, the same code path

Random models of the real classes in bfloat16, attention by transformers' `sdpa`. At T = 0 speculative decoding gives
the plain text up to ties: products of one row and of many round differently in 16 bits. So the first token that differs
is allowed where the two largest logits are no further apart than `TIE` times the largest. The exit code is 1 where
something does not hold. Parts that the time does not suffice for are left out and named.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.tiny import CONFIGS, make_drafter, make_target
from tevlib.decoding.attention import NAME, grouped_attention
from tevlib.decoding.clock import Clock
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target
from tevlib.training.config import TrainConfig
from tevlib.training.rollouts import rollouts
from tevlib.training.train import train
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.verifiers import VERIFIERS

SECONDS = 330.0  # after which no further part is begun
TIE = 2**-5  # of the largest logit: four steps of bfloat16 there
LEAST_P = 1e-5  # of a chi-square: seeds are fixed, so that a law that holds does not fail now and then
SMALLEST = 5.0  # expected count of a cell of its own in it
LAW_TOKENS = 8  # vocabulary of the law check
LAW_PARENTS = [-1, 0, 0, 1, 1, 2, 3]
TAPS = (0, 2)
CUDA_ONLY = "what a GPU's kernels give, their times and memory"


@dataclass(frozen=True)
class Sizes:
    """Of a target and of what is done with it."""

    shape: dict
    prompt: int
    new_tokens: int
    draws: int
    drafter_shape: tuple[int, int, int, int, int]  # query heads, key heads, head size, block, context


LARGE = Sizes(
    dict(vocab_size=32_000, hidden_size=1024, intermediate_size=2816, max_position_embeddings=4096),
    prompt=700, new_tokens=128, draws=2000, drafter_shape=(32, 8, 128, 16, 4096),
)  # fmt: skip
TINY = Sizes({}, prompt=20, new_tokens=24, draws=150, drafter_shape=(4, 2, 16, 8, 64))


class Aimed(DFlashDraftModel):
    """A drafter whose rows point at the token that `text` has there, and at every third place beside it."""

    def aim(self, target: Target, text: list[int]) -> "Aimed":
        self.head, self.text = target.head.weight, text
        return self

    def draft(self, cache, block, features=None):
        states = super().draft(cache, block, features)
        places = range(cache.length + 1, cache.length + len(block))
        tokens = [(self.text[p] if p < len(self.text) else 8) + (p % 3 == 0) for p in places]
        rows = torch.nn.functional.normalize(self.head[tokens].float(), dim=-1)
        return (states.float().norm(dim=-1, keepdim=True) * rows).to(block.dtype)


def target_of(family: str, shape: dict, device: torch.device) -> Target:
    """A random bfloat16 target of a family on `device`, with the attention that `load_target` chooses there."""
    made = make_target(family, dtype=torch.bfloat16, **shape)
    made.model.generation_config.eos_token_id = None
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # as `load_target` does
        made.model.set_attn_implementation("sdpa")
    return Target(made.model.to(device), made.tokenizer, made.info)


def exact(family: str, sizes: Sizes, device: torch.device) -> dict:
    """Whether both decode the same text at T = 0 up to ties, with a drafter that is often right; times of both."""
    target = target_of(family, sizes.shape, device)
    ids = torch.randint(4, 120, (sizes.prompt,), generator=torch.Generator().manual_seed(0))
    settings = dict(max_new_tokens=sizes.new_tokens, stop=())
    plain = autoregressive(target, ids, **settings)
    drafter = Aimed(make_drafter(target).config).to(device, target.dtype).eval()
    drafter.aim(target, [*ids.tolist(), *plain.tokens])
    tree = speculate(target, drafter, ids, budget=32, verifier="tev", **settings)
    found = {"tokens": len(plain.tokens), "tau": tree.tau, "first_difference": None, "margin": None, "bound": None}
    places = [i for i, (a, b) in enumerate(zip(plain.tokens, tree.tokens, strict=True)) if a != b]
    if places:
        before = torch.cat([ids, torch.tensor(plain.tokens[: places[0]], dtype=torch.long)]).to(device)
        logits, _ = target.prefill(target.new_cache(len(before)), before)
        first, second = logits.topk(2).values.tolist()
        found |= {"first_difference": places[0], "margin": first - second, "bound": TIE * abs(first)}
    found["holds"] = not places or found["margin"] <= found["bound"]
    found["plain_ms"] = 1e3 * plain.decode_s / max(1, len(plain.tokens) - 1)
    found["round_ms"] = 1e3 * tree.decode_s / max(1, len(tree.rounds))
    return found


def laws(family: str, sizes: Sizes, device: torch.device) -> dict:
    """The p-value of every verifier's exits and bonus tokens against the exit law, on one tree of a tiny vocabulary."""
    shape = {"vocab_size": LAW_TOKENS}
    if "gemma4" in family and "unified" not in family:
        shape["vocab_size_per_layer_input"] = LAW_TOKENS
    target = target_of(family, shape, device)
    tree = DraftTree([3, 1, 2, 4, 5, 6, 7], LAW_PARENTS).to(device)
    cache = target.new_cache(8 + len(tree))
    target.prefill(cache, torch.tensor([4, 5, 6, 7, 1], device=device))
    logits, _ = target.score_tree(cache, tree)
    law = exit_law(tree, logits, 1.0)
    expected = torch.zeros(len(tree), LAW_TOKENS, dtype=torch.float64)
    for node in range(len(tree)):
        if law.rho[node] > 0:
            expected[node] = law.w[node].double().cpu() * law.residual(node).double().cpu()
    generator = torch.Generator(device).manual_seed(0)
    found = {}
    for name, verifier in VERIFIERS.items():
        if name != "greedy":
            counts = torch.zeros_like(expected)
            for _ in range(sizes.draws):
                verdict = verifier(tree, logits, 1.0, generator)
                counts[verdict.node, verdict.bonus] += 1
            found[name] = p_value(counts.flatten(), sizes.draws * expected.flatten())
    return {"draws": sizes.draws, "p": found, "holds": min(found.values()) >= LEAST_P}


def p_value(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The chance of a chi-square as large as that of `counts`, cells of less than `SMALLEST` expected taken together;
    0 for a count where none can be."""
    if counts[expected == 0].sum() > 0:
        return 0.0
    rare = expected < SMALLEST
    cells = (
        torch.cat([counts[~rare], counts[rare].sum()[None]]),
        torch.cat([expected[~rare], expected[rare].sum()[None]]),
    )
    observed, wanted = (cell[cells[1] > 0] for cell in cells)
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor(len(wanted) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2)) if freedom > 0 else 1.0


def step(family: str, sizes: Sizes, device: torch.device) -> dict:
    """Whether one ExitTrain step has finite losses and moves the drafter and nothing of the target; its seconds."""
    target = target_of(family, sizes.shape, device)
    drafter = make_drafter(target).to(device, torch.float32)
    prompts = [[7, 30, 41 + i, 9] for i in range(4)]
    how = dict(temperature=1.0, max_new_tokens=32, seed=0, stop_ids=frozenset({-1}))
    texts = list(rollouts(target, prompts, TAPS, **how))
    config = TrainConfig(
        objective="exit", steps=1, sequences=2, anchors=4, trees=2, tree_budget=16, validate_every=1,
        validation_contexts=2, validation_budgets=(8,), validation_temperatures=(1.0,),
    )  # fmt: skip
    before = {name: value.detach().clone() for name, value in drafter.named_parameters()}
    frozen = target.head.weight.clone()
    clock = Clock(device)
    with tempfile.TemporaryDirectory() as folder:
        (row,) = train(target, drafter, texts[:-1], texts[-1:], config, folder)
    seconds = clock.lap()
    losses = {name: value for name, value in row.items() if name.startswith("loss")}
    moved = any(not torch.equal(before[name], value) for name, value in drafter.named_parameters())
    finite = all(value == value and abs(value) < float("inf") for value in losses.values())
    holds = finite and moved and torch.equal(frozen, target.head.weight) and row["skipped"] == 0
    return {"losses": losses, "step_s": seconds, "holds": holds}


def drafter_attention(sizes: Sizes, device: torch.device) -> dict:
    """Milliseconds of the drafter's attention on its own shapes, ours and, where it is installed, `flash_attn`; and how
    far they are apart, relative to the largest output."""
    heads, kv_heads, dim, block, context = sizes.drafter_shape
    generator = torch.Generator(device).manual_seed(0)
    made = lambda h, n: torch.randn(1, h, n, dim, generator=generator, device=device, dtype=torch.bfloat16)  # noqa: E731
    query, key, value = made(heads, block), made(kv_heads, context + block), made(kv_heads, context + block)
    forms = {"ours": lambda: grouped_attention(None, query, key, value, None, dim**-0.5)[0]}
    found = {"holds": True, "flash_attn": "not installed"}
    try:
        from flash_attn import flash_attn_func
    except ImportError:
        flash_attn_func = None
    if flash_attn_func is not None and device.type == "cuda":
        forms["flash_attn"] = lambda: flash_attn_func(*(x.transpose(1, 2) for x in (query, key, value)), causal=False)
    outputs = {name: form() for name, form in forms.items()}
    for name, form in forms.items():
        clock = Clock(device)
        for _ in range(20):
            form()
        found[f"{name}_ms"] = 1e3 * clock.lap() / 20
    if len(outputs) > 1:
        ours, theirs = outputs["ours"].float(), outputs["flash_attn"].float()
        apart = float((ours - theirs).abs().max() / ours.abs().max())
        found |= {"flash_attn": "installed", "apart": apart, "holds": apart < 2**-6}
    return found


PARTS: dict[str, Callable[[str, Sizes, torch.device], dict]] = {"exact": exact, "laws": laws, "step": step}


def attempt(part: Callable[..., dict], *arguments) -> dict:
    """What a part found, and the memory that it took on a GPU; one that ends in an error does not hold."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    try:
        found = part(*arguments)
    except Exception as error:  # the other parts are still worth their minutes
        found = {"holds": False, "error": f"{type(error).__name__}: {error}"}
    found["seconds"] = round(time.perf_counter() - started, 2)
    if cuda:
        found["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    return found


def line(family: str, part: str, found: dict) -> str:
    """A result in one line."""
    words = f"{'ok  ' if found['holds'] else 'FAIL'} {family:15} {part:9} {found['seconds']:6.1f} s"
    if "error" in found:
        return f"{words}  {found['error']}"
    if part == "exact":
        where = found["first_difference"]
        same = (
            "all equal"
            if where is None
            else f"equal up to {where}: margin {found['margin']:.3g} of {found['bound']:.3g}"
        )
        words += f"  {found['tokens']} tokens, {same}; tau {found['tau']:.2f}"
        words += f"; {found['plain_ms']:.1f} ms a token, {found['round_ms']:.1f} ms a round"
    elif part == "laws":
        words += f"  {len(found['p'])} verifiers, smallest p {min(found['p'].values()):.3g} of {found['draws']} draws"
    elif part == "step":
        words += "  " + ", ".join(f"{name} {value:.3f}" for name, value in found["losses"].items())
    else:
        words += f"  ours {found['ours_ms']:.3f} ms, flash_attn {found.get('flash_attn_ms', found['flash_attn'])}"
    return words + (f"; {found['memory_gb']:.2f} GB" if "memory_gb" in found else "")


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the results here as JSON")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, also on a GPU")
    parser.add_argument("--families", nargs="+", choices=sorted(CONFIGS), default=list(CONFIGS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="begin no further part after so many")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    sizes = LARGE if cuda and not options.tiny else TINY
    result = {
        "device": torch.cuda.get_device_name() if cuda else "no GPU", "torch": torch.__version__,
        "attention": "sdpa" if cuda else NAME, "tie": TIE, "least_p": LEAST_P,
        "not_measured": [] if cuda else [CUDA_ONLY], "families": {},
    }  # fmt: skip
    if not cuda:
        print(f"no GPU here: tiny sizes on the CPU, the same code path. Not measured: {CUDA_ONLY}.", flush=True)
    todo = [("", "attention", drafter_attention, (sizes, device))]
    todo += [
        (family, name, part, (family, sizes, device)) for name, part in PARTS.items() for family in options.families
    ]
    for family, name, part, what in todo:
        if time.perf_counter() - started > options.seconds:
            result["not_measured"].append(f"{family} {name}: no time left")
            print(f"--   {family:15} {name}: no time left", flush=True)
            continue
        found = attempt(part, *what)
        result["families"].setdefault(family or "drafter", {})[name] = found
        print(line(family or "drafter", name, found), flush=True)
        if options.out:  # after every part, so that one that fails takes no other's results along
            options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    checks = [found["holds"] for parts in result["families"].values() for found in parts.values()]
    result["holds"] = all(checks)
    print(f"{sum(checks)} of {len(checks)} hold, in {time.perf_counter() - started:.0f} s", flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    sys.exit(0 if main()["holds"] else 1)
