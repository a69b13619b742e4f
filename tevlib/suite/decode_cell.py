"""Do one decode cell: both methods on every prompt, one response row per answer, one record at the end.

Protocol. Per prompt and turn, `autoregressive` and `speculate` run one after the other on the same token ids; which of
them is first alternates from answer to answer, so that a machine that warms up or is shared favours neither. Both draw
from the seed of (cell seed, repeat, prompt, turn), which is the same for every drafter and verifier. In a conversation
the history is the text of the *autoregressive* answer, decoded without special tokens: cells that differ in drafter or
verifier alone then see the same prompts (the references use the last method's answer, which differs between rows).
A short answer per method is decoded first and thrown away.
"""

import hashlib
import json
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

import torch
from tqdm.auto import tqdm

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.decode import Generation, Round, autoregressive, speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.load import OFFLINE_TARGET, load_target
from tevlib.decoding.target import Target
from tevlib.sources.assets import gguf_path
from tevlib.sources.prompts import SUITES, Prompt, chat_ids, load_prompts
from tevlib.suite.cells import Cell, VerifierCell, is_hub_id
from tevlib.suite.code_hash import files_digest
from tevlib.suite.memory import available_bytes, check_memory
from tevlib.suite.metrics import summarise
from tevlib.suite.paths import from_repository, home
from tevlib.suite.provenance import provenance
from tevlib.suite.records import record_path, write_failure, write_record

WARM_UP_TOKENS = 16
CHOICE_SEED = 0  # which prompts of a suite: the same for every cell


class CellFailed(RuntimeError):
    """At least one answer of a cell failed; the failure record holds the others' numbers and every traceback."""


def run_decode_cell(cell: Cell) -> dict:
    """The finished record of `cell`, as written to `record_path(cell)`.

    Every answer is appended to `runs/<profile>/<hash12>.responses.jsonl` as soon as it is there. An exception in an
    answer marks its prompt failed and the cell goes on with the next; at the end `<hash12>.failed.json` is written
    instead of a record, with metrics over the answers that succeeded, and `CellFailed` raised.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    hash12 = cell.hash12()
    path = record_path(cell, hash12)
    prompts = prompts_of(cell)
    if (weights := _local_weights(cell.target)) is not None and not torch.cuda.is_available():
        check_memory(weights, available_bytes())
    target = load_target(target_name(cell.target), dtype=cell.dtype)
    folder = drafter_folder(cell.drafter)
    drafter = load_drafter(folder, target)
    print(f"{target.info}; drafter {cell.drafter}, block {drafter.block_size}; {len(prompts)} prompts")
    _check_lengths(prompts, target)
    _warm_up(cell, target, drafter, prompts[0])
    responses, rounds = _decode_all(cell, target, drafter, prompts, home() / "runs" / cell.profile / hash12)
    body = {
        "hash": hash12,
        "cell": cell.fields(),
        "metrics": summarise(responses),
        "device": device(target),
        "target": target_facts(target),
        "drafter": {"block_size": drafter.block_size, "sha256": files_digest(folder), "dtype": str(drafter.dtype)},
        "provenance": provenance(),
        "started_at": started.isoformat(timespec="seconds"),
        "wall_s": time.perf_counter() - clock,
        "responses": responses,
    }
    failures = [row for row in responses if row["status"] == "failed"]
    if failures:
        first = failures[0]
        error = f"{len(failures)} of {len(responses)} answers failed, first {first['id']}: {first['error']}"
        failed = write_failure(path, body | {"error": error})
        raise CellFailed(f"{error}; see {failed}")
    write_record(path, body, rounds)
    return {"status": "finished", **body}


def answer_seed(seed: int, repeat: int, prompt: int, turn: int) -> int:
    """The seed of one answer, 63 bits of a hash: no two answers of a cell share a stream."""
    digest = hashlib.sha256(f"{seed}/{repeat}/{prompt}/{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def drafter_folder(name: str) -> Path:
    """Folder of a drafter: a local one, or a hub repository's configuration and weights in the hub's own cache."""
    if not is_hub_id(name):
        return from_repository(name)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors"]))


def device(target: Target) -> dict:
    """What the target ran on: tables do not mix records whose `name` and `threads` differ."""
    if target.device.type == "cuda":
        found = torch.cuda.get_device_properties(target.device)
        return {
            "name": found.name, "threads": None, "count": torch.cuda.device_count(), "memory": found.total_memory,
            "capability": f"{found.major}.{found.minor}", "cuda": torch.version.cuda,
            "tf32": torch.backends.cuda.matmul.allow_tf32,
        }  # fmt: skip
    return {"name": provenance()["cpu"], "threads": torch.get_num_threads()}


def _decode_all(
    cell: Cell, target: Target, drafter: DFlashDraftModel, prompts: list[Prompt], stem: Path
) -> tuple[list[dict], list[dict]]:
    """Response rows and round rows of the whole cell; the response rows are on disk as they come."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    responses, rounds = [], []
    answers = sum(len(prompt.turns) for prompt in prompts) * cell.repeats
    with (
        stem.with_suffix(".responses.jsonl").open("w", encoding="utf-8") as rows,
        tqdm(total=answers, desc=str(cell), unit="answer", mininterval=1) as bar,
    ):
        for repeat in range(cell.repeats):
            for index, prompt in enumerate(prompts):
                messages = []
                for turn, text in enumerate(prompt.turns):
                    messages.append({"role": "user", "content": text})
                    row = {"id": prompt.id, "turn": turn, "repeat": repeat}
                    try:
                        ar, spec, first = _decode_both(cell, target, drafter, messages, (repeat, index, turn), bar.n)
                    except Exception as error:
                        reason = f"{type(error).__name__}: {error}"
                        row |= {"status": "failed", "error": reason, "traceback": traceback.format_exc()}
                    else:
                        row |= response_row(ar, spec) | {"first": first}
                        rounds += [row_of | {"response": len(responses)} for row_of in round_rows(spec)]
                        answer = target.tokenizer.decode(ar.tokens, skip_special_tokens=True)
                        messages.append({"role": "assistant", "content": answer})
                    responses.append(row)
                    rows.write(json.dumps(row) + "\n")
                    rows.flush()
                    bar.update()
                    if row["status"] == "failed":
                        bar.update(len(prompt.turns) - turn - 1)
                        break  # the later turns have no history
    return responses, rounds


def _decode_both(
    cell: Cell, target: Target, drafter: DFlashDraftModel, messages: list[dict], place: tuple[int, int, int], nth: int
) -> tuple[Generation, Generation, str]:
    """Both methods' generations for one conversation, and which of them ran first."""
    ids = torch.tensor(chat_ids(target.tokenizer, messages))
    how = {
        "temperature": cell.temperature, "top_p": cell.top_p, "top_k": cell.top_k,
        "max_new_tokens": cell.max_new_tokens, "seed": answer_seed(cell.seed, *place),
    }  # fmt: skip
    tree = {"budget": cell.budget, "builder": cell.builder, "verifier": cell.verifier}
    if nth % 2:
        spec = speculate(target, drafter, ids, **tree, **how)
        return autoregressive(target, ids, **how), spec, "speculative"
    ar = autoregressive(target, ids, **how)
    return ar, speculate(target, drafter, ids, **tree, **how), "autoregressive"


def response_row(ar: Generation, spec: Generation) -> dict:
    """The numbers of one answer; `tevlib.suite.metrics` says what each is."""
    return {
        "status": "ok",
        "ar_tokens": len(ar.tokens),
        "ar_s": ar.decode_s,
        "ar_prefill_s": ar.prefill_s,
        "ar_stop": ar.stop_reason,
        "tokens": len(spec.tokens),
        "spec_s": spec.decode_s,
        "prefill_s": spec.prefill_s,
        "stop": spec.stop_reason,
        "stage_s": spec.stage_s,
        "rounds": len(spec.rounds),
        "lengths": sum(r.length for r in spec.rounds),
        "emitted": sum(r.emitted for r in spec.rounds),
        "ceilings": sum(r.ceiling for r in spec.rounds),
        "squares": sum((r.length - r.ceiling) ** 2 for r in spec.rounds),
        "variances": sum(length_variance(r) for r in spec.rounds),
        "nodes": sum(len(r.tree) for r in spec.rounds),
    }


def length_variance(cycle: Round) -> float:
    """Variance of the block length D + 1 of any saturated verifier on this round's tree: that of depth under w."""
    w, depths = cycle.w.double(), cycle.tree.depths.double()
    mean = (w * depths).sum()
    return float((w * (depths - mean) ** 2).sum())


def round_rows(spec: Generation) -> list[dict]:
    """One row per draft-verify round: length D + 1, emitted tokens, ceiling 1 + C_p, nodes, seconds by stage."""
    return [
        {
            "round": index,
            "length": r.length,
            "emitted": r.emitted,
            "ceiling": r.ceiling,
            "variance": length_variance(r),
            "nodes": len(r.tree),
            **{f"{stage}_s": seconds for stage, seconds in r.times.items()},
        }
        for index, r in enumerate(spec.rounds)
    ]


def prompts_of(cell: Cell | VerifierCell) -> list[Prompt]:
    suite = cell.suite if cell.suite in SUITES else from_repository(cell.suite)
    prompts = load_prompts(suite, cell.prompts, seed=CHOICE_SEED)
    if not prompts or cell.prompts not in (None, len(prompts)):
        raise ValueError(f"{cell.prompts} prompts of {cell.suite} asked for, {len(prompts)} came")
    return prompts


def _check_lengths(prompts: list[Prompt], target: Target) -> None:
    """Raises `ValueError` naming the prompt whose first turn the target's context cannot hold."""
    for prompt in prompts:
        length = len(chat_ids(target.tokenizer, [{"role": "user", "content": prompt.turns[0]}]))
        if length > target.context_limit:
            raise ValueError(f"prompt {prompt.id} has {length} tokens, the context holds {target.context_limit}")


def _warm_up(cell: Cell, target: Target, drafter: DFlashDraftModel, prompt: Prompt) -> None:
    """Decode a few tokens with either method and forget them: first calls allocate and compile."""
    messages = [{"role": "user", "content": prompt.turns[0]}]
    short = Cell(**cell.fields() | {"max_new_tokens": min(WARM_UP_TOKENS, cell.max_new_tokens)})
    _decode_both(short, target, drafter, messages, (0, 0, 0), nth=0)


def target_name(name: str) -> str:
    return str(from_repository(name)) if from_repository(name).exists() else name


def _local_weights(name: str) -> Path | None:
    """The target's weights where they are on this machine; None for a hub id."""
    if name == OFFLINE_TARGET:
        return gguf_path()
    path = from_repository(name)
    return path if path.exists() else None


def target_facts(target: Target) -> dict:
    template = target.tokenizer.chat_template or ""
    return {
        "revision": target.info.revision,
        "parameters": target.info.parameters,
        "dtype": target.info.dtype,
        "attention": target.model.config._attn_implementation,
        "fingerprint": target.fingerprint(),
        "chat_template_sha256": hashlib.sha256(str(template).encode()).hexdigest()[:12],
    }
