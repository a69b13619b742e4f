"""The training notebook, run as a user does: own target, own prompts, a drafter folder at the end."""

import json

import nbformat
import pytest
import torch

from tests.tiny import make_target
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.decode import speculate
from tevlib.decoding.load import load_target
from tevlib.suite.notebook import NotebookFailed, run_notebook
from tevlib.training.initialise import drafter_from_target


@pytest.fixture
def parameters(tmp_path):
    """A tiny target and six prompts on disk, and the parameters that train a drafter on them in seconds."""
    target = make_target("qwen3")
    target.model.save_pretrained(tmp_path / "target")
    target.tokenizer.save_pretrained(tmp_path / "target")
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text("".join(json.dumps({"turns": [f"t7 t30 t{40 + i} t9"]}) + "\n" for i in range(6)))
    return {
        "target": str(tmp_path / "target"), "dtype": "float32", "source": str(prompts), "prompts": 6, "self_made": 0,
        "rollout_tokens": 12, "greedy_share": 0.5, "held_out": 1, "layers": 1, "block_size": 4, "taps": [0, 2],
        "steps": 8, "sequences": 2, "anchors": 4, "validate_every": 4, "validation_contexts": 2, "decode_prompts": 0,
        "out": str(tmp_path / "run"), "drafter": str(tmp_path / "run" / "drafter"),
    }  # fmt: skip


def test_own_prompts_end_in_a_drafter_that_loads(parameters, tmp_path):
    """The folder loads and drafts, its card says what was done, and a second run trains nothing again."""
    target = load_target(parameters["target"], dtype="float32", device="cpu")
    target.tokenizer.add_special_tokens({"mask_token": "t50"})
    target.tokenizer.save_pretrained(parameters["target"])
    run_notebook("20_train_drafter", parameters, tmp_path / "first.ipynb")
    drafter = load_drafter(parameters["drafter"], target)
    assert drafter.block_size == 4 and drafter.mask_id == 50
    assert speculate(target, drafter, [7, 30, 41, 9], max_new_tokens=8).tokens
    card = (tmp_path / "run" / "drafter" / "README.md").read_text()
    assert "Objective: base" in card and "8 steps" in card and "| 16 | 1 |" in card
    metrics = [json.loads(line) for line in (tmp_path / "run" / "train" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [4, 8] and all("ceiling_B32_T0" in row for row in metrics)
    state = (tmp_path / "run" / "train" / "state.pt").stat().st_mtime_ns
    run_notebook("20_train_drafter", parameters, tmp_path / "second.ipynb")
    assert (tmp_path / "run" / "train" / "state.pt").stat().st_mtime_ns == state


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["finetune", "prefix", "exit", "opd", "gain"])
def test_every_objective_goes_on_from_a_drafter(parameters, tmp_path, objective):
    """From a base drafter each objective trains one that loads, and its notebook shows the tree before and after."""
    target = make_target("qwen3")
    texts = drafter_from_target(target, torch.arange(4, 30), layers=1, block_size=4, taps=(0, 2), seed=0, mask_id=50)
    save_drafter(texts, tmp_path / "base", target=target)
    change = {"objective": objective, "init": str(tmp_path / "base"), "trees": 2, "tree_budget": 5}
    notebook = nbformat.read(run_notebook("20_train_drafter", parameters | change, tmp_path / "out.ipynb"), 4)
    assert load_drafter(parameters["drafter"], target).block_size == 4
    assert f"Objective: {objective}" in (tmp_path / "run" / "drafter" / "README.md").read_text()
    pictures = [o for c in notebook.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) == 2
    rows = [json.loads(line) for line in (tmp_path / "run" / "train" / "metrics.jsonl").read_text().splitlines()]
    assert ("tree_root_exit" in rows[-1]) == (objective in ("prefix", "exit", "gain"))


def test_bad_parameters_are_refused_before_a_model_is_loaded(parameters, tmp_path):
    """An unknown objective or an impossible split fails in the first cell, by name."""
    for change, message in (
        ({"objective": "bse"}, "unknown objective 'bse'"),
        ({"objective": "exit"}, "exit starts from a trained drafter"),
        ({"objective": "base", "trees": 0}, "trees must be at least 1"),
        ({"held_out": 3}, "held out|hold out"),
    ):
        with pytest.raises(NotebookFailed, match=message):
            run_notebook("20_train_drafter", parameters | {"target": "./nowhere"} | change, tmp_path / "bad.ipynb")
