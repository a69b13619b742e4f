"""One JSON file for each finished cell: the resume token, and all that tables read.

    data/results/<hash12>.json            a finished cell
    data/results/<hash12>.rounds.parquet  its rounds, one row each
    data/results/<hash12>.failed.json     a cell that ended in an error

The JSON is written last and in one step, so a file that exists is whole; one that is not (a full disk, an edit by hand)
counts as absent, with a warning, and its cell is done again.
"""

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tevlib.suite.cells import Work
from tevlib.suite.paths import home

SCHEMA_VERSION = 2
_FINISHED = {
    "schema_version": int, "status": str, "hash": str, "cell": dict, "metrics": dict,
    "device": dict, "target": dict, "drafter": dict, "provenance": dict, "started_at": str, "wall_s": float,
    "responses": list,
}  # fmt: skip

log = logging.getLogger(__name__)


def record_path(cell: Work, hash12: str | None = None) -> Path:
    """Where the record of `cell` lies once it is finished."""
    return home() / "data" / "results" / f"{hash12 or cell.hash12()}.json"


def failed_path(record: Path) -> Path:
    """Where the same cell's failure is written."""
    return record.with_suffix(".failed.json")


def rounds_path(record: Path) -> Path:
    """Where the same cell's rounds are written."""
    return record.with_suffix(".rounds.parquet")


def write_record(path: Path, body: dict, rounds: Sequence[dict] = ()) -> None:
    """Write a finished cell, rounds first, and remove an earlier failure; `ValueError` for a body that is no record."""
    record = {"schema_version": SCHEMA_VERSION, "status": "finished", **body}
    if fault := schema_fault(record, path):
        raise ValueError(f"not a record: {fault}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if rounds:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(list(rounds))
        write_atomically(rounds_path(path), lambda file: pq.write_table(table, file))
    _write_json(path, record)
    failed_path(path).unlink(missing_ok=True)


def write_failure(record: Path, body: dict) -> Path:
    """Write why a cell failed, with whatever `body` holds of it; returns the file's path."""
    path = failed_path(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_json(path, {"schema_version": SCHEMA_VERSION, "status": "failed", **body})
    return path


def read_record(path: Path) -> dict | None:
    """The finished record at `path`; None where there is none or, with a warning, where it is damaged."""
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        log.warning("%s is damaged (%s): taken as absent", path, error)
        return None
    if fault := schema_fault(record, path):
        log.warning("%s is not a record (%s): taken as absent", path, fault)
        return None
    return record


def outcome(cell: Work) -> dict:
    """The record of `cell`, or `{"status": "failed" | "not run", "cell": ..., "error": ...}`.

    `cell` in it is the one asked for: the record may have been made for another table.
    """
    path = record_path(cell)
    if record := read_record(path):
        return record | {"cell": cell.fields()}
    missing = {"status": "not run", "cell": cell.fields(), "error": None}
    try:
        failure = json.loads(failed_path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (json.JSONDecodeError, UnicodeDecodeError):
        failure = {}
    return missing | {"status": "failed", "error": failure.get("error", "the failure's own file is damaged")}


def schema_fault(record: object, path: Path) -> str | None:
    """What keeps `record` from being the finished record at `path`; None if nothing does."""
    if not isinstance(record, dict):
        return f"a JSON object is needed, got {type(record).__name__}"
    for key, kind in _FINISHED.items():
        if not isinstance(record.get(key), kind):
            return f"{key} must be {kind.__name__}, got {record.get(key)!r}"
    if record["schema_version"] != SCHEMA_VERSION:
        return f"schema_version is {record['schema_version']}, this code reads {SCHEMA_VERSION}"
    if record["status"] != "finished":
        return f"status is {record['status']!r}"
    if record["hash"] != path.stem:
        return f"it holds the cell {record['hash']}"
    if not record["responses"]:
        return "it has no responses"
    return None


def _write_json(path: Path, body: dict) -> None:
    data = json.dumps(body, indent=1, allow_nan=False).encode()
    write_atomically(path, lambda file: file.write(data))


def write_atomically(path: Path, write) -> None:
    """Call `write(file)` on a temporary file beside `path`, flush it to the disk, then rename it to `path`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    umask = os.umask(0)
    os.umask(umask)
    try:
        with os.fdopen(handle, "wb") as file:
            os.chmod(name, 0o666 & ~umask)  # as a plain file has it: others may read what a shared folder holds
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
