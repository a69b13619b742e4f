"""All results of a profile in three files, for whoever goes on with them in other software.

data/collected/<profile>.parquet, .csv     one row per planned cell, finished or not
data/collected/<profile>.rounds.parquet    every recorded round, `hash` says of which cell
"""

import io
import json
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tevlib.suite.cells import Cell, Work
from tevlib.suite.paths import home
from tevlib.suite.profile import load_profile
from tevlib.suite.records import SCHEMA_VERSION, outcome, record_path, rounds_path, write_atomically

log = logging.getLogger(__name__)


def collect(profile: str) -> tuple[list[Path], Counter]:
    """Paths of the three files for a profile (its name, or the path of its YAML file), and how many cells have which
    status; each file is replaced in one step.

    Raises `ValueError` naming every record of another schema version, before anything is written.
    """
    cells = load_profile(profile)
    paths = {cell: record_path(cell) for cell in cells}
    _refuse_other_schemas(paths.values())
    frame = cell_rows(cells)
    finished = {cell for cell, status in zip(cells, frame["status"], strict=True) if status == "finished"}
    rounds = _rounds(dict.fromkeys(paths[cell] for cell in cells if cell in finished and isinstance(cell, Cell)))
    folder = home() / "data" / "collected"
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / cells[0].profile
    written = [stem.with_name(f"{stem.name}{ending}") for ending in (".parquet", ".csv", ".rounds.parquet")]
    write_atomically(written[0], lambda file: file.write(_parquet(frame)))
    write_atomically(written[1], lambda file: file.write(frame.to_csv(index=False).encode()))
    write_atomically(written[2], lambda file: pq.write_table(rounds, file))
    return written, Counter(frame["status"])


def cell_rows(cells: Sequence[Work]) -> pd.DataFrame:
    """One row per cell: `hash`, `status`, `error`, the cell's fields, and all single numbers and texts of its record.

    Those are named by their place in the record, `metrics_tau` or `provenance_versions_torch`; the ends of intervals
    have `_low` and `_high`. Longer lists (masses by depth, responses) stay in the record. A cell that was not finished
    has no numbers; one that two tables share has a row in each, with one hash.
    """
    rows = []
    for cell in cells:
        found = outcome(cell)
        row = {"hash": record_path(cell).stem, "status": found["status"], "error": found.get("error"), **cell.fields()}
        if found["status"] == "finished":
            for name, value in found.items():
                if name not in ("hash", "status", "cell"):
                    row |= _flat(name, value)
        rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()


def _flat(name: str, value: object) -> dict:
    """`value` under `name`, what lies in mappings under longer names; intervals as their ends, other lists left out."""
    if isinstance(value, dict):
        return {key: leaf for inner, part in value.items() for key, leaf in _flat(f"{name}_{inner}", part).items()}
    if name.endswith("_ci95"):
        return dict(zip((f"{name}_low", f"{name}_high"), value or (None, None), strict=True))
    return {} if isinstance(value, list) else {name: value}


def _rounds(records: Iterable[Path]) -> pa.Table:
    """The rounds of all records below one another, `hash` first; columns that some have not are null there."""
    tables = [pa.table({"hash": pa.array([], pa.string())})]
    for path in records:
        if not rounds_path(path).is_file():
            log.warning("no rounds are kept of cell %s: none of it are among those collected", path.stem)
            continue
        table = pq.read_table(rounds_path(path))
        tables.append(table.add_column(0, "hash", pa.array([path.stem] * len(table), pa.string())))
    return pa.concat_tables(tables, promote_options="permissive")


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def _refuse_other_schemas(paths: Iterable[Path]) -> None:
    """Raises `ValueError` that names the records of another schema version than this code's."""
    others = {}
    for path in paths:
        try:
            version = json.loads(path.read_text(encoding="utf-8"))["schema_version"]
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            continue  # absent or damaged: `outcome` says which
        if version != SCHEMA_VERSION:
            others[path.name] = version
    if others:
        named = ", ".join(f"{name} has {version}" for name, version in sorted(others.items()))
        raise ValueError(f"records of one schema_version are collected, {SCHEMA_VERSION}; {named}: run those again")
