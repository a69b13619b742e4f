"""The paper's own numbers, from `paper_numbers.yaml`, and which of our rows stands where in its tables."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import yaml

MODELS = {  # targets -> Table 1's rows; every other target stands beside the paper's main one
    "Qwen/Qwen3-4B": "Qwen3-4B",
    "Qwen/Qwen3-8B": "Qwen3-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "LLaMA-3.1-8B",
    "google/gemma-4-12b-it": "Gemma-4-12B-IT",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen3-Coder-30B-A3B",
}
METHODS = {"ddtree": "DDTree", "opd": "Draft-OPD", "exit": "ExitTrain + TEV"}  # our roles -> rows of Tables 1 and 5
VERIFIERS = {"predraw": "Predraw", "tev": "TEV"}
DRAFTERS = {"original": "Original DFlash", "exit": "Exit-trained DFlash"}  # our roles -> Table 4's rows
OBJECTIVES = {  # our roles -> Table 2's rows
    "original": "Original DFlash drafter",
    "finetune": "Finetuned DFlash drafter",
    "prefix": "Prefix weight P(v)",
    "exit": "Exit weight w(v) (ours)",
}


@lru_cache(maxsize=1)
def paper_numbers() -> dict:
    """All tables of the paper: `table1` .. `table5`, each a list of rows, and `columns`, the order of their values."""
    return yaml.safe_load(Path(__file__).with_name("paper_numbers.yaml").read_text(encoding="utf-8"))


def paper_value(table: str, cell: Mapping, column: str, metric: str) -> float | None:
    """The paper's `speedup` or `tau` in `column` (a suite or `average`) of the row where `cell` stands; None if none.

    `cell` has the fields of a `Cell` that name a row of `table` (all but "table3").
    """
    numbers = paper_numbers()
    wanted = _ROWS[table](cell)
    if column not in numbers["columns"]:
        return None
    for row in numbers[table]:
        if all(row[name] == value for name, value in wanted.items()):
            return row[metric][numbers["columns"].index(column)]
    return None


def paper_latency(row: Mapping, column: str, metric: str) -> float | None:
    """Table 3's printed `ms` or `reduction` (per cent) in `column`, at the row's verifier, budget, temperature."""
    numbers = paper_numbers()
    wanted = {
        "verifier": VERIFIERS.get(row["verifier"]),
        "budget": row["budget"],
        "temperature": row["temperature"],
    }
    if column not in numbers["columns"]:
        return None
    for printed in numbers["table3"]:
        if all(printed[name] == value for name, value in wanted.items()):
            return printed[metric][numbers["columns"].index(column)]
    return None


_ROWS = {
    "table1": lambda cell: {
        "model": MODELS.get(cell["target"], "Qwen3-4B"),
        "method": METHODS.get(cell["role"]),
        "temperature": cell["temperature"],
    },
    "table2": lambda cell: {"objective": OBJECTIVES.get(cell["role"]), "temperature": cell["temperature"]},
    "table5": lambda cell: {
        "budget": cell["budget"],
        "method": METHODS.get(cell["role"]),
        "temperature": cell["temperature"],
    },
    "table4": lambda cell: {"drafter": DRAFTERS.get(cell["role"]), "verifier": VERIFIERS.get(cell["verifier"])},
}
