"""Scripts that are run by hand, for minutes on a GPU, do not fail on their first line."""

import importlib
from pathlib import Path

import pytest
import torch

from tevlib.training.compare import variant_config
from tevlib.training.config import TrainConfig
from tevlib.training.rollouts import Rollout

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))  # as `python benchmarks/objective_search.py` has it
    return importlib.import_module("objective_search")


@pytest.fixture
def texts(script):
    return importlib.import_module("search_rollouts")


def test_every_line_of_the_search_is_a_configuration(script):
    """No variant is refused after the rollouts and the base have been paid for; no two share a folder."""
    shared = TrainConfig(online=True)
    configs = [variant_config(text, shared, seed=0) for text in script.SEARCH]
    assert len(set(configs)) == len(configs) and configs[0].objective == "finetune"
    assert len({script.folder_name(text, 0) for text in script.SEARCH}) == len(configs)


def test_held_out_prompts_are_in_no_training_set(texts):
    """Every prompt is held out or learnt from, never both; tasks are cut into pieces without loss."""
    prompts, own = [[i] for i in range(3000)], [[i] for i in range(5000, 5400)]
    tasks = texts.rollout_tasks(prompts, own)
    held = {p[0] for name, some, _, _ in tasks if name.split("-")[0] in texts.HELD_OUT for p in some}
    learnt = {p[0] for name, some, _, _ in tasks if name.split("-")[0] not in texts.HELD_OUT for p in some}
    assert len(held) == 3 * sum(texts.HELD_OUT.values()) and not held & learnt
    assert held | learnt == {p[0] for p in prompts + own}
    assert max(len(some) for _, some, _, _ in tasks) <= texts.PIECE
    assert len({name for name, *_ in tasks}) == len(tasks)


def test_rollouts_survive_their_file(texts, tmp_path):
    """Ids and prompt lengths come back in order of the prompts, without features."""

    made = [Rollout(i, torch.arange(5 + i), 2 + i, torch.zeros(5 + i, 0)) for i in (2, 0, 1)]
    texts.write(made, tmp_path / "some.pt")
    back = texts.read([tmp_path / "some.pt"])
    assert [(r.ids.tolist(), r.prompt_length) for r in back] == [(list(range(5 + i)), 2 + i) for i in range(3)]
    assert all(r.features.shape == (len(r.ids), 0) for r in back)
