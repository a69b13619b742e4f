"""Collected results: a row for every planned cell, whatever became of it, and every round once."""

import json
import os

import pandas as pd
import pytest

from tevlib import cli
from tevlib.suite.collect import collect
from tevlib.suite.profile import load_profile
from tevlib.suite.records import record_path, rounds_path, write_failure, write_record

ROUNDS = [{"round": i, "length": 2, "ceiling": 1.9} for i in range(3)]
LATER = [{"round": 0, "length": 1, "ceiling": 1.5, "exits": [0.5, 0.5], "oracle": None}]


@pytest.fixture
def profile(tiny_fields, tmp_path):
    """Path of a profile `mine`: Table 4 with three cells, and Table 2 with one that is the same work as one of them."""
    fields = tiny_fields
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"""
        defaults: {{target: "{fields["target"]}", builder: best_first, dtype: float32, top_p: 1.0, top_k: 0, seed: 0,
                   budgets: [6], temperatures: [1.0], max_new_tokens: 8,
                   suites: {{"{fields["suite"]}": {{prompts: 1}}}}}}
        tables:
          table4: {{drafters: {{original: "{fields["drafter"]}"}}, verifiers: [predraw, sequential_residual, tev]}}
          table2: {{methods: {{original: {{drafter: "{fields["drafter"]}", verifier: tev}}}}}}
          table3: {{drafter: "{fields["drafter"]}", shapes: [own], temperatures: [1.0], budgets: [6],
                   suites: ["{fields["suite"]}"], prompts: 1, rounds: 2, repeats: 1, max_new_tokens: 8, dtype: float32}}
        """
    )
    return str(path)


@pytest.fixture
def written(profile, record_of):
    """The cells of the profile: predraw finished, sequential residual failed, TEV finished (twice), latency not run."""
    cells = load_profile(profile)
    write_record(record_path(cells[0]), record_of(cells[0]), ROUNDS)
    write_failure(record_path(cells[1]), {"error": "boom", "metrics": {"tau": 9.0}})
    write_record(record_path(cells[2]), record_of(cells[2]), LATER)
    return cells


def test_every_planned_cell_has_a_row(profile, written, home):
    """Settings, metrics and intervals, machine and commit; failed and not run say so and have no number; CSV and
    Parquet agree."""
    paths, states = collect(profile)
    names = ["mine.parquet", "mine.csv", "mine.rounds.parquet"]
    assert [path.name for path in paths] == names and {path.parent for path in paths} == {home / "data" / "collected"}
    assert states == {"finished": 3, "failed": 1, "not run": 1}
    frame = pd.read_parquet(paths[0])
    assert frame["table"].tolist() == ["table4"] * 3 + ["table2", "table3"]
    assert frame["status"].tolist() == ["finished", "failed", "finished", "finished", "not run"]
    assert frame["hash"].tolist() == [cell.hash12() for cell in written] and frame["hash"][2] == frame["hash"][3]
    first = frame.iloc[0]
    assert (first["verifier"], first["budget"], first["metrics_tau"]) == ("predraw", 6, 2.0)
    assert first["metrics_tau_ci95_low"] == first["metrics_tau_ci95_high"] == 2.0
    assert first["metrics_stage_ms_draft"] == pytest.approx(20.0)
    assert (first["device_name"], first["target_revision"], first["wall_s"]) == ("a cpu", "r1", 1.0)
    assert first["started_at"] == "2026-01-01T00:00:00+00:00" and first["schema_version"] == 2
    assert frame["error"].dropna().tolist() == ["boom"]
    numbers = [name for name in frame if name.startswith("metrics_")]
    assert frame.loc[[1, 4], numbers].isna().all(axis=None), "a failed cell's half results are no results"
    again = pd.read_csv(paths[1])
    assert list(again) == list(frame) and again["metrics_tau"].tolist()[0] == 2.0


def test_every_round_is_there_once(profile, written):
    """Rounds by hash, of cells that two tables share once; columns that older rounds have not are null there."""
    paths, _ = collect(profile)
    rounds = pd.read_parquet(paths[2])
    assert rounds["hash"].tolist() == [written[0].hash12()] * 3 + [written[2].hash12()]
    assert rounds["round"].tolist() == [0, 1, 2, 0] and rounds["exits"].isna().tolist() == [True] * 3 + [False]


def test_a_profile_with_nothing_run_is_collected(profile, home):
    """Five rows that say so, and a table of rounds without a row."""
    paths, states = collect(profile)
    assert states == {"not run": 5} and len(pd.read_parquet(paths[2])) == 0


def test_missing_rounds_are_said(profile, written, caplog):
    """A finished cell whose rounds were deleted keeps its row; a warning names it."""
    rounds_path(record_path(written[0])).unlink()
    paths, states = collect(profile)
    assert states["finished"] == 3 and len(pd.read_parquet(paths[2])) == 1
    assert written[0].hash12() in caplog.text


def test_other_schemas_are_refused_by_name(profile, written, home):
    """A record of an older schema stops the collection, which names the file, and nothing is written."""
    path = record_path(written[0])
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": 1}))
    with pytest.raises(ValueError, match=rf"{path.name} has 1"):
        collect(profile)
    assert not (home / "data" / "collected").exists()


def test_a_crash_leaves_the_earlier_files(profile, written, monkeypatch):
    """What was collected before stays whole when the disk is full, and no temporary file is left."""
    paths, _ = collect(profile)
    before = [path.read_bytes() for path in paths]

    def no_space(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="no space"):
        collect(profile)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in paths[0].parent.iterdir()) == sorted(path.name for path in paths)


def test_the_command_says_where_and_how_many(profile, written, capsys):
    """`collect` prints the files and what became of the cells."""
    assert cli.main(["collect", "--profile", profile]) == 0
    said = capsys.readouterr().out
    assert "mine.rounds.parquet" in said and "3 finished, 1 failed, 1 not run" in said
