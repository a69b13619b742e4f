"""The check that is prepared for a GPU runs from end to end at tiny sizes, and notices what does not hold."""

import importlib
import json
import subprocess
from pathlib import Path

import pytest
import torch

from tevlib.decoding.cache import KVCache
from tevlib.trees.verdict import Verdict
from tevlib.trees.verifiers import VERIFIERS

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture
def smoke(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as `python benchmarks/gpu_smoke.py` has it
    return importlib.import_module("gpu_smoke")


def test_every_part_holds_and_is_written(smoke, tmp_path, capsys):
    """Both kinds of layers: exactness with accepted paths, every verifier's law, an ExitTrain step; a line for each."""
    found = smoke.main(["--tiny", "--families", "qwen3_moe", "gemma4", "--out", str(tmp_path / "smoke.json")])
    assert found["holds"] and json.loads((tmp_path / "smoke.json").read_text()) == found
    for family in ("qwen3_moe", "gemma4"):
        parts = found["families"][family]
        assert set(parts) == set(smoke.PARTS) and parts["exact"]["tau"] > 1.5
        assert set(parts["laws"]["p"]) == set(VERIFIERS) - {"greedy"}
    said = capsys.readouterr().out
    assert "7 of 7 hold" in said and said.count("ok  ") == 7
    if not torch.cuda.is_available():
        assert "no GPU here" in said and found["not_measured"] == [smoke.CUDA_ONLY]


def test_what_does_not_hold_is_said(smoke, monkeypatch):
    """A commit that loses the keys of the last accepted token, a verifier that never goes down, a part that breaks."""
    commit = KVCache.commit

    def forgets(cache, path):
        commit(cache, path)
        if len(path) > 1:
            for store in cache.stores:
                store[..., cache.length - 1, :] = 0.0

    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "commit", forgets)
        assert not smoke.exact("qwen3", smoke.TINY, CPU)["holds"]
    with monkeypatch.context() as patch:
        stays = lambda tree, rows, temperature, generator: Verdict(0, [0], int(rows[0].argmax()))  # noqa: E731
        patch.setitem(VERIFIERS, "tev", stays)
        found = smoke.laws("qwen3", smoke.TINY, CPU)
        assert not found["holds"] and found["p"]["tev"] < smoke.LEAST_P
    assert smoke.attempt(smoke.exact, "no family", smoke.TINY, CPU)["error"].startswith("KeyError")


def test_it_ends_by_itself(smoke, capsys):
    """With no time left nothing is begun, and what was left out is named."""
    found = smoke.main(["--tiny", "--families", "llama", "--seconds", "0"])
    assert found["families"] == {} and len(found["not_measured"]) >= 4
    assert capsys.readouterr().out.count("no time left") == 4


def test_the_shell_script_parses():
    """No syntax error waits for the minutes on a GPU."""
    subprocess.run(["bash", "-n", str(BENCHMARKS / "gpu_smoke.sh")], check=True)
