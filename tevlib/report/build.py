"""Any table of the paper by its name: from outcomes to a frame, from a frame to what is printed and to its files."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tevlib.report.audit import audit_lengths, audit_speed
from tevlib.report.files import write_files
from tevlib.report.latency import latency_audit, latency_layout, latency_table
from tevlib.report.layout import layout
from tevlib.report.objectives import averages_layout, objective_averages
from tevlib.report.tables import decode_table
from tevlib.suite.profile import LATENCY_TABLE

OBJECTIVES_TABLE = "table2"
CHANGES = "Means over the suites, and changes against the original drafter on the same prompts (95% intervals)"


def build_table(name: str, outcomes: Sequence[dict]) -> pd.DataFrame:
    """The frame of table `name` ("table1" .. "table5") from the outcomes of its planned cells; see the two kinds.

    Table 2's `attrs["averages"]` hold its `objective_averages` against the original drafter, as records.
    """
    if name == LATENCY_TABLE:
        return latency_table(outcomes)
    table = decode_table(name, outcomes)
    if name == OBJECTIVES_TABLE:
        table.attrs["averages"] = objective_averages(outcomes).to_dict("records")
    return table


def printed(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What is printed, by title: the table (no title), Table 2's averages if it has any, and the audit."""
    if table.attrs["table"] == LATENCY_TABLE:
        return {"": latency_layout(table), "Audit": latency_audit(table)}
    parts = {"": layout(table)}
    if averages := table.attrs.get("averages"):
        parts[CHANGES] = averages_layout(pd.DataFrame(averages))
    return parts | {"Audit": audit_lengths(table), "Speed-ups by every definition": audit_speed(table)}


def brief(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What fits a terminal, by title: the printed table's averages over the suites, and Table 2's changes."""
    parts = printed(table)
    average = [column for column in parts[""].columns if "Average" in (column, column[0])]
    return {"": parts[""][average]} | {title: part for title, part in parts.items() if title == CHANGES}


def write_table(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Paths of the table's CSV, Markdown, HTML and LaTeX files in `folder`."""
    return write_files(table, printed(table), folder)
