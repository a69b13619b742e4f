"""The script that is prepared for a GPU runs from end to end at tiny sizes, wherever it is."""

import importlib
import json
import subprocess
from pathlib import Path

import pytest
import torch

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.verifiers import VERIFIERS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as `python benchmarks/gpu.py` has it
    return importlib.import_module("gpu")


def test_every_part_runs_and_is_written(gpu, tmp_path, capsys):
    """All forms of the verifier stage, the builder and whole rounds; without a GPU it says what was not measured."""
    gpu.main(["--tiny", "--out", str(tmp_path / "gpu.json")])
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert len(result["stage"]) == 2 and len(result["builder"]) == 2 and len(result["cycle"]) == 6
    assert all(row["same_tokens"] for row in result["check"])
    for row in result["stage"]:
        assert {f"{name} + commit" for name in VERIFIERS if name != "greedy"} < set(row["ms"])
        assert {"fixed tev + commit, graphs", "commit, stacked", "commit, per layer"} < set(row["ms"])
        assert all(ms > 0 for ms in row["ms"].values())
    for row in result["cycle"]:
        assert row["eager"]["rounds"] > 0 and set(row["fixed"]["stage_ms"]) == set(row["eager"]["stage_ms"])
    if not torch.cuda.is_available():
        assert "no GPU here" in capsys.readouterr().out and "aim" not in result
        assert result["not_measured"] == gpu.CUDA_ONLY


def test_shapes_are_real_trees(gpu):
    """The recorded shapes are trees at every budget, and the rows made for them have the recorded chances."""
    for budget in (32, 128):
        found = gpu.shapes(budget)
        assert len(found) == 12 and {len(parents) for parents, _ in found} == {budget + 1}
    parents, edges = found[2]
    tokens, logits = gpu.rows_of(parents, edges, 600, seed=0)
    law = exit_law(DraftTree(tokens, parents), logits)
    torch.testing.assert_close(law.edge_log_probs.exp(), torch.tensor(edges), atol=2e-3, rtol=1e-2)


def test_the_shell_script_parses():
    """No syntax error waits for the minutes on a GPU."""
    subprocess.run(["bash", "-n", str(BENCHMARKS / "gpu.sh")], check=True)
