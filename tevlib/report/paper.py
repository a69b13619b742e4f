"""The paper's own numbers, from `paper_numbers.yaml`, and which of our rows stands where in its tables."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import yaml

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

    `cell` has the fields of a `Cell` that name a row of `table` ("table2", "table4").
    """
    numbers = paper_numbers()
    wanted = _ROWS[table](cell)
    if column not in numbers["columns"]:
        return None
    for row in numbers[table]:
        if all(row[name] == value for name, value in wanted.items()):
            return row[metric][numbers["columns"].index(column)]
    return None


_ROWS = {
    "table2": lambda cell: {"objective": OBJECTIVES.get(cell["role"]), "temperature": cell["temperature"]},
    "table4": lambda cell: {"drafter": DRAFTERS.get(cell["role"]), "verifier": VERIFIERS.get(cell["verifier"])},
}
