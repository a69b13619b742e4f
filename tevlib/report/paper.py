"""The paper's own numbers, from `paper_numbers.yaml`, and which of our rows stands where in its tables."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import yaml

from tevlib.report.verdicts import REHEARSED
from tevlib.suite.profile import REHEARSAL

MODELS = {  # targets -> Table 1's rows; every other target stands beside the paper's main one
    "Qwen/Qwen3-4B": "Qwen3-4B",
    "Qwen/Qwen3-8B": "Qwen3-8B",
    "meta-llama/Llama-3.1-8B-Instruct": "LLaMA-3.1-8B",
    "google/gemma-4-12b-it": "Gemma-4-12B-IT",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": "Qwen3-Coder-30B-A3B",
}
MAIN_TARGET = "Qwen/Qwen3-4B"
METHODS = {"ddtree": "DDTree", "opd": "Draft-OPD", "exit": "ExitTrain + TEV"}  # our roles -> rows of Tables 1 and 5
VERIFIERS = {"predraw": "Predraw", "tev": "TEV"}
TIMED_FORMS = {"predraw": "Predraw", "tev_parallel": "TEV"}  # the paper times TEV on a GPU, in its parallel form
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
        "verifier": TIMED_FORMS.get(row["verifier"]),
        "budget": row["budget"],
        "temperature": row["temperature"],
    }
    if column not in numbers["columns"]:
        return None
    for printed in numbers["table3"]:
        if all(printed[name] == value for name, value in wanted.items()):
            return printed[metric][numbers["columns"].index(column)]
    return None


def tolerance(table: str, metric: str, value: float | None) -> float | None:
    """The largest difference from the paper's `value` that is a match, in the metric's unit; None for no value."""
    if value is None:
        return None
    ((kind, size),) = paper_numbers()["tolerances"][table][metric].items()
    return size * value if kind == "relative" else size


def tolerance_text(table: str, metric: str) -> str:
    """The tolerance of a metric as it is printed: "±5%" of the paper's number, or "±0.15"."""
    ((kind, size),) = paper_numbers()["tolerances"][table][metric].items()
    return f"±{size:.0%}" if kind == "relative" else f"±{size:g}"


def unlike_paper(table: str, outcome: Mapping) -> list[str]:
    """What keeps a finished cell from the paper's setting, one name each; [] where its numbers can be judged.

    "CPU" is no GPU at all, "GPU" another one than the paper's, which keeps times from being judged, and nothing else.
    "rehearsal" stands alone: tiny random models under the paper's names.
    """
    if outcome["cell"]["profile"].endswith(REHEARSAL):
        return [REHEARSED]
    settings, cell, device = paper_numbers()["settings"], outcome["cell"], outcome["device"]
    targets = MODELS if table == "table1" else {MAIN_TARGET}
    found = [] if cell["target"] in targets else ["target"]
    found += [name for name, value in settings[table].items() if cell[name] != value]
    if table != "table3" and outcome["metrics"]["prompts"] != settings["prompts"].get(Path(cell["suite"]).stem):
        found.append("prompts")
    if device.get("memory") is None:  # a GPU's is known
        found.append("CPU")
    elif settings["gpu"] not in re.split(r"\W+", device["name"]):
        found.append("GPU")
    return found


def judged(metric: str, unlike: Sequence[str]) -> bool:
    """Whether a metric is held against the paper's when `unlike_paper` gives these names: tau is on any GPU."""
    return not unlike or (metric == "tau" and list(unlike) == ["GPU"])


_ROWS = {
    "table1": lambda cell: {
        "model": MODELS.get(cell["target"], MODELS[MAIN_TARGET]),
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
