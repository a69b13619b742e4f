"""Other people's loops on the same prompts: z-lab's `dflash`, the reference DDTree, transformers' `generate`.

    python -m benchmarks.peers [--quick] [--dtype float32] [--ddtree PATH_OF_A_CHECKOUT]

Every prompt is answered by all methods one after the other, in an order that rotates. They share weights, dtype and
threads. The package `dflash` (`pip install --no-deps dflash==0.1.0`) and DDTree (github.com/liranringel/ddtree) get the
target as transformers loads it, and `dflash on our products` the model object that we decode with. A peer that is not
there is said and left out; nothing of either is part of this repository.

One count and one clock for all, taken from outside: tau is tokens over target passes, the prefill and the first token
left out on both sides, so that a last block counts for what came out of it; seconds run from the end of the target's
first pass (`benchmarks.peer_loops`). DDTree decodes one token past the limit and drops it: at most a pass an answer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median

import torch
from tqdm.auto import tqdm

from benchmarks.__main__ import begin, write
from benchmarks.common import DRAFTER, prompt_ids, rotated, with_interval
from benchmarks.peer_loops import DFLASH, peers, told, watched
from benchmarks.speed import mean_ratio, per_token
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.load import converted_gguf, load_target
from tevlib.decoding.prompt_lookup import prompt_lookup
from tevlib.decoding.target import Target
from tevlib.sources.assets import OFFLINE_TARGET, gguf_path
from tevlib.suite.paths import from_repository, home

PLAIN, LOOKUP = "plain", "generate, prompt lookup"
FULL = {"temperatures": {0.0: 3, 1.0: 3}, "tokens": 128, "budget": 16}  # temperature: prompts a suite
QUICK = {"temperatures": {0.0: 1, 1.0: 1}, "tokens": 24, "budget": 16}
WARM_UP_TOKENS = 12
Method = Callable[[torch.Tensor, float, int, int], dict]  # ids, temperature, new tokens, seed -> what `told` returns


def main(arguments: list[str] | None = None) -> Path:
    """The path of the record, after its table was printed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few minutes: does it run?")
    parser.add_argument("--target", default=OFFLINE_TARGET, help="folder, hub id, or the offline default")
    parser.add_argument("--drafter", default=DRAFTER, help="folder of a drafter of that target")
    parser.add_argument("--dtype", default="bfloat16", help="float32: then texts at T = 0 have to be equal")
    parser.add_argument("--ddtree", type=Path, help="a checkout of github.com/liranringel/ddtree")
    chosen = parser.parse_args(arguments)
    target = load_target(chosen.target, dtype=chosen.dtype)
    drafter = load_drafter(from_repository(chosen.drafter), target)
    record, start = begin(chosen.quick), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        save_drafter(drafter, Path(folder) / "drafter", target=target, dtype=target.dtype)
        theirs, absent = peers(target, target_folder(chosen.target), Path(folder) / "drafter", chosen.ddtree)
    for name, why in absent.items():
        print(f"left out: {name}: {why}")
    record |= {"target": str(target.info), "drafter": chosen.drafter, "absent": absent}
    record |= compare(target, drafter, theirs, **(QUICK if chosen.quick else FULL))
    path = home() / "runs" / "bench" / f"peers-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    write(path, record | {"wall_s": time.perf_counter() - start})
    print(table(record))
    print("record:", path)
    return path


def target_folder(name: str) -> Path | str:
    """Where transformers loads the target from."""
    return converted_gguf(gguf_path())[0] if name == OFFLINE_TARGET else name


def compare(
    target: Target,
    drafter: DFlashDraftModel,
    theirs: dict[str, dict],
    temperatures: dict[float, int],
    tokens: int,
    budget: int,
) -> dict:
    """Rows of every answer and, by temperature, what `summary` makes of them.

    `theirs` as `peers` returns them; `temperatures` with their prompts a suite; `budget` of our tree and DDTree's.
    """
    rows = []
    with tqdm(total=4 * sum(temperatures.values()), desc="peers", unit="prompt") as progress:
        for temperature, n in temperatures.items():
            methods = ours(target, drafter, budget, temperature) | {
                name: partial(watched, target.device, budget=budget, **peer) for name, peer in theirs.items()
            }
            prompts = prompt_ids(target, n)
            for method in methods.values():
                method(prompts[0][2], temperature, WARM_UP_TOKENS, 0)
            for place, (suite, prompt, ids) in enumerate(prompts):
                for name in rotated(list(methods), place):
                    answer = methods[name](ids, temperature, tokens, place)
                    where = {"temperature": temperature, "suite": suite, "prompt": prompt, "method": name}
                    rows.append(where | answer)
                progress.update()
    by_temperature = {t: [row for row in rows if row["temperature"] == t] for t in temperatures}
    return {"rows": rows, "summary": {t: summary(some) for t, some in by_temperature.items()}}


def ours(target: Target, drafter: DFlashDraftModel, budget: int, temperature: float) -> dict[str, Method]:
    """Our loops by name: plain, a chain of all that the block drafts, trees, and prompt lookup as Table 1 has it."""
    chain = drafter.depth
    ways = {
        f"chain, B = {chain}": {"budget": chain, "builder": "chain"},
        f"tree, B = {budget}": {"budget": budget},
        "tree, automatic": {"budget": "auto"},
    }
    if temperature > 0:  # the law that `dflash` verifies by
        ways[f"sampled chain, B = {chain}"] = {"budget": chain, "builder": "sampled_chain"}

    def method(decode: Callable, *models, **way) -> Method:
        def answer(ids: torch.Tensor, temperature: float, tokens: int, seed: int) -> dict:
            found = decode(*models, ids, temperature=temperature, max_new_tokens=tokens, seed=seed, **way)
            timed = sum(r.emitted for r in found.rounds) if found.rounds else len(found.tokens) - 1
            return told(found.tokens, len(found.rounds) or timed, timed, found.decode_s)

        return answer

    return {
        PLAIN: method(autoregressive, target),
        LOOKUP: method(prompt_lookup, target),
        **{name: method(speculate, target, drafter, **way) for name, way in ways.items()},
    }


def summary(rows: Sequence[dict]) -> dict[str, dict]:
    """By method: median tokens a second over answers, tau, speed-up over plain decoding and over `dflash`, with 95%
    intervals over prompts, and how many of its answers are plain decoding's, token for token."""
    plain = {row["prompt"]: row["new"] for row in rows if row["method"] == PLAIN}
    found = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        found[method] = {
            "tokens_per_s": median((row["tokens"] - 1) / row["decode_s"] for row in own if row["tokens"] > 1),
            "tau": sum(row["tokens"] - 1 for row in own) / sum(row["passes"] for row in own),
            "ms_per_token": 1e3 * per_token(rows, method),
            "speedup": _faster(rows, PLAIN, method),
            "as_plain": sum(row["new"] == plain[row["prompt"]] for row in own) / len(own),
        }
        if any(row["method"] == DFLASH for row in rows):
            found[method]["over_dflash"] = _faster(rows, DFLASH, method)
    return found


def _faster(rows: Sequence[dict], slow: str, fast: str) -> dict:
    return with_interval(lambda some: mean_ratio(some, slow, fast), rows, within="suite")


def table(record: dict) -> str:
    """The summary as lines of text."""
    where = record["provenance"]
    lines = [f"{where['cpu']}, {record['threads']} threads; {record['target']}; drafter {record['drafter']}"]
    for temperature, methods in record["summary"].items():
        greedy = float(temperature) == 0  # else texts are other draws of the same law
        heads = f"{f'T = {float(temperature):g}':32}{'tokens/s':>8}{'tau':>8}{'over plain':>26}{'over dflash':>26}"
        lines.append(f"\n{heads}{'  as plain' if greedy else ''}")
        for name, own in methods.items():
            ratios = "".join(f"{_shown(own.get(key)):>26}" for key in ("speedup", "over_dflash"))
            same = f"{own['as_plain']:>10.0%}" if greedy else ""
            lines.append(f"{name:32}{own['tokens_per_s']:8.1f}{own['tau']:8.2f}{ratios}{same}")
    return "\n".join(lines)


def _shown(ratio: dict | None) -> str:
    if ratio is None:
        return "—"
    spread = "" if ratio["interval"] is None else " ({:.2f} to {:.2f})".format(*ratio["interval"])
    return f"{ratio['value']:.2f}{spread}"


if __name__ == "__main__":
    main()
