"""One cell done by several processes: everything in the record but times is what one process writes."""

import itertools
import json
import os
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import yaml

from tevlib.suite.batch import run_cells
from tevlib.suite.decode_cell import CellFailed, run_decode_cells
from tevlib.suite.decode_together import decode_together
from tevlib.suite.devices import CPU, held, lock_name
from tevlib.suite.processes import share
from tevlib.suite.profile import load_profile
from tevlib.suite.records import failed_path, outcome, record_path, rounds_path

METHODS = {
    "exit": {"verifier": "tev"},
    "sampled": {"verifier": "tev", "builder": "sampled_chain", "budget": 3},
    "prompt_lookup": {"drafter": "none", "verifier": "predraw", "builder": "prompt_lookup", "budget": 3},
}
TIMES = {"ar_s", "ar_prefill_s", "spec_s", "prefill_s", "stage_s"}


@pytest.fixture
def profile(tiny, tiny_fields, tmp_path):
    """A profile of one company, three rows on five conversations at T = 1, each prompt twice."""
    chat = tmp_path / "five.jsonl"
    turns = [["Say a.", "Say b."], ["Say c."], ["a b c a b c a"], ["Say d.", "e e e e"], ["Say f."]]
    chat.write_text("".join(json.dumps({"turns": some}) + "\n" for some in turns))
    drafter = {"drafter": str(tiny / "drafter-tiny")}
    names = ("target", "builder", "dtype", "top_p", "top_k", "seed", "max_new_tokens", "oracle_rounds")
    body = {
        "defaults": {name: (tiny_fields | {"oracle_rounds": 1})[name] for name in names},
        "tables": {
            "table1": {
                "methods": {role: drafter | method for role, method in METHODS.items()},
                "budgets": [6],
                "temperatures": [1.0],
                "suites": {str(chat): {"prompts": 5, "repeats": 2}},
            }
        },
    }
    path = tmp_path / "five.yaml"
    path.write_text(yaml.safe_dump(body))
    return path


def numbers(cells):
    """What the records and rounds of the cells hold, times left out."""
    records = [outcome(cell) for cell in cells]
    rows = [[{k: v for k, v in row.items() if k not in TIMES} for row in record["responses"]] for record in records]
    rounds = [pq.read_table(rounds_path(record_path(cell))).to_pylist() for cell in cells]
    return rows, [[{k: v for k, v in row.items() if not k.endswith("_s")} for row in some] for some in rounds]


def test_two_processes_write_what_one_writes(profile, home, monkeypatch):
    """Two gloo processes share five conversations: tokens, block lengths, ceilings, order, seeds and rounds of every
    row, the sampled ones and transformers' own included, are those of one process; later runners have nothing to do."""
    cells = load_profile(str(profile))
    run_decode_cells(cells)
    alone = numbers(cells)
    assert all(outcome(cell)["processes"] == 1 for cell in cells)
    monkeypatch.setenv("TEVLIB_HOME", str(home) + "-two")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    command = [*launch, "tevlib", "decode", cells[1].hash12(), "--profile", str(profile)]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True)
    assert numbers(cells) == alone
    assert all(outcome(cell)["processes"] == 2 for cell in cells)
    folder = record_path(cells[0]).parent.parent.parent / "runs" / "five"
    written = sorted(path.name for path in folder.glob(f"{cells[0].hash12()}.responses*.jsonl"))
    assert [len((folder / name).read_text().splitlines()) for name in written] == [6, 8], "prompts 2 and 4; 1, 3 and 5"
    assert decode_together(cells) == [] and run_cells(cells).skipped == 3


class Other:
    """What the n-th of several processes sees of itself."""

    def __init__(self, process_index, num_processes):
        self.process_index, self.num_processes = process_index, num_processes


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_shares_are_everything_once(n):
    """Every prompt is in one share, with its place; more processes than prompts leave some without."""
    shares = [share("abcde", Other(i, n)) for i in range(n)]
    assert sorted(itertools.chain(*shares)) == list(enumerate("abcde"))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_it_keeps_to_the_runners_locks(tiny_cell, home, monkeypatch):
    """A cell that another runner has is not decoded a second time; a failure is raised, and gone after a success."""
    cell = tiny_cell()
    with held(cell.hash12(), wait=False), pytest.raises(RuntimeError, match="another runner has the cell"):
        decode_together([cell])

    def watched(cells, device_map):
        with held(lock_name(CPU, []), wait=False) as free:
            assert not free, "the processor is ours"
        raise CellFailed("boom")

    decoded = run_decode_cells([cell], device_map="auto")[0]["responses"]
    record_path(cell).unlink()
    again = run_decode_cells([cell])[0]["responses"]
    record_path(cell).unlink()
    assert [row["lengths"] for row in decoded] == [row["lengths"] for row in again], "wherever the target's layers are"
    monkeypatch.setattr("tevlib.suite.decode_together.run_decode_cells", watched)
    failed = failed_path(record_path(cell))
    failed.write_text("{}")
    with pytest.raises(CellFailed, match="boom"):
        decode_together([cell])
    assert not failed.exists()
