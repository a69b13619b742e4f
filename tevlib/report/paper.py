"""The paper's own numbers, from `paper_numbers.yaml`, and which of our rows stands where in its tables."""

from functools import lru_cache
from pathlib import Path

import yaml

DRAFTERS = {"original": "Original DFlash", "exit": "Exit-trained DFlash"}  # our roles -> Table 4's rows
VERIFIERS = {"predraw": "Predraw", "tev": "TEV"}


@lru_cache(maxsize=1)
def paper_numbers() -> dict:
    """All tables of the paper: `table1` .. `table5`, each a list of rows, and `columns`, the order of their values."""
    return yaml.safe_load(Path(__file__).with_name("paper_numbers.yaml").read_text(encoding="utf-8"))


def table4_value(role: str, verifier: str, column: str, metric: str) -> float | None:
    """Table 4's printed `speedup` or `tau` in `column` (a suite or `average`); None for a row that it does not have."""
    numbers = paper_numbers()
    if column not in numbers["columns"]:
        return None
    for row in numbers["table4"]:
        if (row["drafter"], row["verifier"]) == (DRAFTERS.get(role), VERIFIERS.get(verifier)):
            return row[metric][numbers["columns"].index(column)]
    return None
