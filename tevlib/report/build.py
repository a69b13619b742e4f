"""Any table of the paper by its name: from outcomes to a frame, from a frame to what is printed and to its files."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tevlib.report.files import write_files
from tevlib.report.latency import latency_layout, latency_table
from tevlib.report.tables import audit_columns, decode_table, layout
from tevlib.suite.cells import LATENCY_TABLE


def build_table(name: str, outcomes: Sequence[dict]) -> pd.DataFrame:
    """The frame of table `name` ("table1" .. "table5") from the outcomes of its planned cells; see the two kinds."""
    return latency_table(outcomes) if name == LATENCY_TABLE else decode_table(name, outcomes)


def printed(table: pd.DataFrame) -> list[pd.DataFrame]:
    """The table as it is printed and, for tables of decoding, its audit."""
    return [latency_layout(table)] if table.attrs["table"] == LATENCY_TABLE else [layout(table), audit_columns(table)]


def write_table(table: pd.DataFrame, folder: Path) -> list[Path]:
    """Paths of the table's CSV, Markdown, HTML and LaTeX files in `folder`."""
    return write_files(table, printed(table), folder)
