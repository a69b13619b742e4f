"""Scripts that are run by hand, for minutes on a GPU, do not fail on their first line."""

import importlib.util
from pathlib import Path

import pytest
import torch

from tevlib.training.compare import variant_config
from tevlib.training.config import TrainConfig
from tevlib.training.rollouts import Rollout

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "objective_search.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("objective_search", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_line_of_the_search_is_a_configuration(script):
    """No variant is refused after the rollouts and the base have been paid for; no two share a folder."""
    shared = TrainConfig(online=True)
    configs = [variant_config(text, shared, seed=0) for text in script.SEARCH]
    assert len(set(configs)) == len(configs) and configs[0].objective == "finetune"
    assert len({script.folder_name(text, 0) for text in script.SEARCH}) == len(configs)


def test_held_out_prompts_are_in_no_training_set(script):
    """Every prompt is held out or learnt from, never both; tasks are cut into pieces without loss."""
    prompts, own = [[i] for i in range(3000)], [[i] for i in range(5000, 5400)]
    tasks = script.rollout_tasks(prompts, own)
    held = {p[0] for name, some, _, _ in tasks if name.split("-")[0] in script.HELD_OUT for p in some}
    learnt = {p[0] for name, some, _, _ in tasks if name.split("-")[0] not in script.HELD_OUT for p in some}
    assert len(held) == 3 * sum(script.HELD_OUT.values()) and not held & learnt
    assert held | learnt == {p[0] for p in prompts + own}
    assert max(len(some) for _, some, _, _ in tasks) <= script.PIECE
    assert len({name for name, *_ in tasks}) == len(tasks)


def test_rollouts_survive_their_file(script, tmp_path):
    """Ids and prompt lengths come back in order of the prompts, without features."""

    made = [Rollout(i, torch.arange(5 + i), 2 + i, torch.zeros(5 + i, 0)) for i in (2, 0, 1)]
    script.write(made, tmp_path / "some.pt")
    back = script.read([tmp_path / "some.pt"])
    assert [(r.ids.tolist(), r.prompt_length) for r in back] == [(list(range(5 + i)), 2 + i) for i in range(3)]
    assert all(r.features.shape == (len(r.ids), 0) for r in back)
