"""Records on disk: whole or absent, never half."""

import json
import os

import pytest

from tevlib.suite import records
from tevlib.suite.records import failed_path, outcome, read_record, record_path, write_failure, write_record


def test_a_record_comes_back(tiny_cell, record_of):
    """What was written is read, schema version first; an earlier failure of the same cell is gone."""
    cell = tiny_cell()
    path = record_path(cell)
    write_failure(path, {"error": "earlier"})
    assert outcome(cell)["status"] == "failed" and outcome(cell)["error"] == "earlier"
    write_record(path, record_of(cell), [{"round": 0, "length": 2, "ceiling": 1.9}])
    found = read_record(path)
    assert next(iter(found)) == "schema_version" and found["cell"] == cell.fields()
    assert outcome(cell) == found and not failed_path(path).exists()
    assert records.rounds_path(path).is_file()


def test_a_cell_without_a_file_is_not_run(tiny_cell):
    """No file: the outcome says so, and keeps the cell's fields for the table."""
    found = outcome(tiny_cell())
    assert found["status"] == "not run" and found["cell"]["verifier"] == "tev"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"schema_version": 2', '"schema_version": 99'),
        lambda text: text.replace('"metrics"', '"metrcis"'),
        lambda text: text.replace('"hash": "', '"hash": "0'),
        lambda text: "\x00" * 40,
    ],
    ids=["truncated", "empty", "not an object", "other schema", "key missing", "another cell", "zeros"],
)
def test_damaged_records_count_as_absent(tiny_cell, record_of, caplog, damage):
    """A truncated, foreign or older file is reported and done again, never read as a result."""
    cell = tiny_cell()
    path = record_path(cell)
    write_record(path, record_of(cell))
    path.write_text(damage(path.read_text()))
    assert read_record(path) is None and outcome(cell)["status"] == "not run"
    assert "taken as absent" in caplog.text


def test_a_body_that_is_no_record_is_refused(tiny_cell, record_of):
    """A record without answers, or of another cell, is not written at all."""
    cell = tiny_cell()
    for fault in ({"responses": []}, {"hash": "000000000000"}, {"wall_s": None}):
        with pytest.raises(ValueError, match="not a record"):
            write_record(record_path(cell), record_of(cell, **fault))
    assert not record_path(cell).exists()


def test_nan_never_enters_a_record(tiny_cell, record_of):
    """NaN is no JSON: it raises instead of writing a file that other readers reject, and leaves no rest."""
    cell = tiny_cell()
    with pytest.raises(ValueError):
        write_record(record_path(cell), record_of(cell, wall_s=float("nan")))
    assert list(record_path(cell).parent.iterdir()) == []


def test_a_crash_while_writing_leaves_the_old_record(tiny_cell, record_of, monkeypatch):
    """The name is taken by one rename at the end: a crash before it keeps what was there, and no temporary file."""
    cell = tiny_cell()
    path = record_path(cell)
    write_record(path, record_of(cell))
    before = path.read_bytes()

    def no_space(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        write_record(path, record_of(cell, wall_s=2.0))
    assert path.read_bytes() == before and json.loads(before)["wall_s"] == 1.0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_finished_record_has_its_rounds(tiny_cell, record_of, monkeypatch):
    """The JSON is the last to be written: a crash in the rounds leaves a cell that is done again."""
    import pyarrow.parquet

    def no_space(*_):
        raise OSError("no space left on device")

    cell = tiny_cell()
    monkeypatch.setattr(pyarrow.parquet, "write_table", no_space)
    with pytest.raises(OSError, match="no space"):
        write_record(record_path(cell), record_of(cell), [{"round": 0, "length": 2, "ceiling": 1.9}])
    assert outcome(cell)["status"] == "not run" and list(record_path(cell).parent.iterdir()) == []


def test_a_reader_never_sees_a_record_change(tiny_cell, record_of):
    """A new record is another file under the same name: who has the old one open reads it to its end."""
    cell = tiny_cell()
    path = record_path(cell)
    write_record(path, record_of(cell))
    before = path.read_bytes()
    with path.open("rb", buffering=0) as reader:
        start = reader.read(10)
        write_record(path, record_of(cell, wall_s=2.0))
        assert start + reader.read() == before
    assert read_record(path)["wall_s"] == 2.0


def test_records_may_be_read_by_others(tiny_cell, record_of):
    """A record has the mode of any new file: a colleague who shares the results folder makes tables from it."""
    cell = tiny_cell()
    path = record_path(cell)
    path.parent.mkdir(parents=True)
    (path.parent / "plain").touch()
    write_record(path, record_of(cell))
    assert path.stat().st_mode == (path.parent / "plain").stat().st_mode
