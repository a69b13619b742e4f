"""Do decode cells: every method on every prompt, one response row per answer, one record per cell at the end.

Protocol. Cells that differ in drafter, builder, verifier or budget alone are done side by side, against one plain
decoding. Per prompt and turn, `autoregressive` and each cell's `speculate` run one after the other on the same token
ids; from answer to answer plain decoding is now first and now last, and the cells take turns, so that a machine that
warms up or is shared favours none. All draw from the seed of (cell seed, repeat, prompt, turn), which is the same for
every drafter and verifier. In a conversation the history is the text of the *autoregressive* answer, decoded without
special tokens: all cells then see the same prompts (the references use the last method's answer, which differs between
rows). A short answer per method is decoded first and thrown away. What a cell decodes does not depend on the company
it has, nor, but for budgets that follow the machine's times, on the number of processes that share its prompts
(`tevlib.suite.processes`): a prompt's turns stay in one process, and its place decides seeds and order.
"""

import contextlib
import hashlib
import itertools
import json
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TextIO

import torch
from tqdm.auto import tqdm

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.generation import Generation
from tevlib.decoding.load import load_target
from tevlib.decoding.prompt_lookup import prompt_lookup
from tevlib.decoding.target import Target
from tevlib.sources.prompts import SUITES, Prompt, chat_ids, load_prompts
from tevlib.suite.cells import NO_DRAFTER, PROMPT_LOOKUP, Cell, VerifierCell
from tevlib.suite.decode_rows import response_row, round_rows
from tevlib.suite.memory import available_bytes, check_memory
from tevlib.suite.metrics import summarise
from tevlib.suite.models import device, drafter_facts, drafter_folder, local_weights, target_facts, target_name
from tevlib.suite.oracle import oracle_coverages
from tevlib.suite.paths import from_repository, home
from tevlib.suite.processes import gathered, launched, share
from tevlib.suite.provenance import provenance
from tevlib.suite.records import failed_path, record_path, write_failure, write_record

WARM_UP_TOKENS = 16
CHOICE_SEED = 0  # which prompts of a suite: the same for every cell
Place = tuple[int, int, int]  # of an answer: repeat, prompt, turn


class CellFailed(RuntimeError):
    """At least one answer of a cell failed; the failure record holds the others' numbers and every traceback."""


@dataclass
class _Running:
    """A cell at work: its drafter, if any, where its response rows go as they come, and all rows so far."""

    cell: Cell
    hash12: str
    drafter: DFlashDraftModel | None
    file: TextIO
    answers: list[tuple[Place, dict, list[dict]]] = field(default_factory=list)  # of this process; then of all

    def add(
        self, place: Place, row: dict, ar: Generation | dict, spec: tuple[Generation, dict[int, float]] | dict
    ) -> bool:
        """Whether the answer succeeded; its rows are kept either way. `row` says which answer it is."""
        fault = next((found for found in (ar, spec) if isinstance(found, dict)), None)
        row |= response_row(ar, *spec) if fault is None else fault
        self.answers.append((place, row, round_rows(*spec) if fault is None else []))
        self.file.write(json.dumps(row) + "\n")
        self.file.flush()
        return fault is None

    @property
    def responses(self) -> list[dict]:
        return [row for _, row, _ in self.answers]

    @property
    def rounds(self) -> list[dict]:
        """The rounds of all answers, each with its answer's number."""
        return [row | {"response": number} for number, (_, _, rows) in enumerate(self.answers) for row in rows]


def run_decode_cell(cell: Cell) -> dict:
    """The finished record of `cell`, as written to `record_path(cell)`; see `run_decode_cells`."""
    return run_decode_cells([cell])[0]


def run_decode_cells(cells: Sequence[Cell], device_map: str | None = None) -> list[dict]:
    """The finished records of cells of one `company()`, each as written to its `record_path`.

    Every answer is appended to `runs/<profile>/<hash12>.responses.jsonl` as soon as it is there. Of n processes
    (`tevlib.suite.processes`) each decodes every n-th prompt, the later ones into `<hash12>.responses.<place>.jsonl`;
    the first writes the records, all return them. An exception in a cell's answer marks the prompt failed for this cell
    and it goes on with the next (one in plain decoding, for all); at the end `<hash12>.failed.json` is written instead
    of a record, with metrics over the answers that succeeded, and `CellFailed` raised when all cells have their file.
    `wall_s` is that of all cells together. `device_map`: of a target that does not fit one GPU, as in `load_target`.
    """
    started, clock, state = datetime.now(UTC), time.perf_counter(), launched()
    first = cells[0]
    if any(cell.company() != first.company() for cell in cells):
        raise ValueError(f"cells side by side may differ in {', '.join(Cell.BESIDE)} only")
    hashes = [cell.hash12() for cell in cells]
    prompts = prompts_of(first)
    if (weights := local_weights(first.target)) is not None and not torch.cuda.is_available():
        check_memory(weights, available_bytes())
    target = load_target(target_name(first.target), dtype=first.dtype, device_map=device_map)
    drafters = {
        name: None if name == NO_DRAFTER else load_drafter(drafter_folder(name), target)
        for name in dict.fromkeys(cell.drafter for cell in cells)
    }
    print(f"{target.info}; {len(prompts)} prompts; drafters {', '.join(drafters)}")
    _check_lengths(prompts, target)
    folder = home() / "runs" / first.profile
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        running = []
        ending = f".{state.process_index}" if state.process_index else ""
        for cell, hash12 in zip(cells, hashes, strict=True):
            file = files.enter_context((folder / f"{hash12}.responses{ending}.jsonl").open("w", encoding="utf-8"))
            running.append(_Running(cell, hash12, drafters[cell.drafter], file))
        _warm_up(running, target, prompts[0])
        _decode_all(running, target, prompts, share(prompts, state))
    for one in running:
        one.answers = gathered(one.answers)
    bodies = [
        {
            "hash": one.hash12,
            "cell": one.cell.fields(),
            "beside": [hash12 for hash12 in hashes if hash12 != one.hash12],
            "metrics": summarise(one.responses),
            "device": device(target),
            "target": target_facts(target),
            "drafter": drafter_facts(one.cell.drafter, one.drafter),
            "provenance": provenance(),
            "started_at": started.isoformat(timespec="seconds"),
            "wall_s": time.perf_counter() - clock,
            "processes": state.num_processes,
            "responses": one.responses,
        }
        for one in running
    ]
    if state.is_main_process:
        for one, body in zip(running, bodies, strict=True):
            _write(one, body)
    state.wait_for_everyone()
    if errors := [error for one in running if (error := _fault(one))]:
        raise CellFailed("; ".join(errors))
    return [{"status": "finished", **body} for body in bodies]


def answer_seed(seed: int, repeat: int, prompt: int, turn: int) -> int:
    """The seed of one answer, 63 bits of a hash: no two answers of a cell share a stream."""
    digest = hashlib.sha256(f"{seed}/{repeat}/{prompt}/{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _write(one: _Running, body: dict) -> None:
    """Write the record of a cell, or its failure."""
    path = record_path(one.cell, one.hash12)
    if error := _fault(one):
        write_failure(path, body | {"error": error})
    else:
        write_record(path, body, one.rounds)


def _fault(one: _Running) -> str | None:
    """What failed in a cell and where that is written, or None."""
    failures = [row for row in one.responses if row["status"] == "failed"]
    if not failures:
        return None
    first, path = failures[0], failed_path(record_path(one.cell, one.hash12))
    error = f"{len(failures)} of {len(one.responses)} answers failed, first {first['id']}: {first['error']}"
    return f"{error}; see {path}"


def _decode_all(running: list[_Running], target: Target, prompts: list[Prompt], mine: list[tuple[int, Prompt]]) -> None:
    """Fill in every cell's rows for the prompts `mine`, which have their places in `prompts` with them."""
    repeats = running[0].cell.repeats
    title = str(running[0].cell) + (f" and {len(running) - 1} beside" if len(running) > 1 else "")
    *starts, turns = itertools.accumulate((len(prompt.turns) for prompt in prompts), initial=0)
    total = sum(len(prompt.turns) for _, prompt in mine) * repeats
    with tqdm(total=total, desc=title, unit="answer", mininterval=1) as bar:
        for repeat in range(repeats):
            for index, prompt in mine:
                messages, live = [], running  # a cell that failed has no history for the prompt's later turns
                for turn, text in enumerate(prompt.turns):
                    messages.append({"role": "user", "content": text})
                    place, nth = (repeat, index, turn), repeat * turns + starts[index] + turn
                    ar, specs = _side_by_side(live, target, messages, place, nth)
                    row = {"id": prompt.id, "turn": turn, "repeat": repeat}
                    row["first"] = "speculative" if nth % 2 else "autoregressive"
                    live = [one for one, spec in zip(live, specs, strict=True) if one.add(place, dict(row), ar, spec)]
                    bar.update()
                    if not live:
                        bar.update(len(prompt.turns) - turn - 1)
                        break
                    answer = target.tokenizer.decode(ar.tokens, skip_special_tokens=True)
                    messages.append({"role": "assistant", "content": answer})


def _side_by_side(
    running: list[_Running], target: Target, messages: list[dict], place: Place, nth: int
) -> tuple[Generation | dict, list[tuple[Generation, dict[int, float]] | dict]]:
    """Plain decoding of one conversation, and every cell's; a fault, as it goes into a response row, where one failed.

    Plain decoding is first where `nth` is even and last where it is odd; the cells begin with another one each time.
    """
    ids = torch.tensor(chat_ids(target.tokenizer, messages))
    shared = running[0].cell
    how = {"temperature": shared.temperature, "top_p": shared.top_p, "top_k": shared.top_k}
    length = {"max_new_tokens": shared.max_new_tokens, "seed": answer_seed(shared.seed, *place)}
    ar = None if nth % 2 else _attempt(autoregressive, target, ids, **how, **length)
    specs: dict[int, tuple[Generation, dict[int, float]] | dict] = {}
    for place_in_turn in range(len(running)):
        i = (nth // 2 + place_in_turn) % len(running)
        specs[i] = _attempt(_speculate, running[i], target, ids, how, length)
    if ar is None:
        ar = _attempt(autoregressive, target, ids, **how, **length)
    return ar, [specs[i] for i in range(len(running))]


def _speculate(
    one: _Running, target: Target, ids: torch.Tensor, how: dict, length: dict
) -> tuple[Generation, dict[int, float]]:
    """A cell's answer, and C_p of the oracle's tree in some of its rounds, where a drafter drew it."""
    if one.cell.builder == PROMPT_LOOKUP:
        return prompt_lookup(target, ids, budget=one.cell.budget, **how, **length), {}
    tree = {name: getattr(one.cell, name) for name in ("budget", "builder", "verifier")}
    answer = speculate(target, one.drafter, ids, **tree, **how, **length)
    rounds, depth = one.cell.oracle_rounds, one.drafter.depth
    return answer, oracle_coverages(target, ids, answer, rounds=rounds, depth=depth, **how)


def _attempt(decode: Callable, *arguments, **how):
    """What `decode` returns, or the fault; as text, since an exception would keep the memory that it was raised in."""
    try:
        return decode(*arguments, **how)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return {"status": "failed", "error": reason, "traceback": traceback.format_exc()}


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


def _warm_up(running: list[_Running], target: Target, prompt: Prompt) -> None:
    """Decode a few tokens with every method and forget them: first calls allocate and compile."""
    tokens = min(WARM_UP_TOKENS, running[0].cell.max_new_tokens)
    short = [replace(one, cell=replace(one.cell, max_new_tokens=tokens, oracle_rounds=0)) for one in running]
    _side_by_side(short, target, [{"role": "user", "content": prompt.turns[0]}], (0, 0, 0), nth=0)
