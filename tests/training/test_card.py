"""The card of a trained drafter says what its training used, and nothing else."""

import pytest

from tests.tiny import make_drafter, make_target
from tevlib.training.card import drafter_card
from tevlib.training.config import TrainConfig
from tevlib.training.data import DataConfig


@pytest.mark.parametrize(
    ("changes", "there", "absent"),
    [
        ({"objective": "base"}, ["steps"], ["guidance", "trees", "gain_share", "opd_decay", "horizon_leaves"]),
        ({"objective": "exit"}, ["guidance | 32", "horizon_leaves", "gain_guidance | 0"], ["gain_share", "opd_decay"]),
        ({"objective": "exit", "gain_guidance": 2.0}, ["gain_guidance | 2", "gain_share | all"], ["opd_decay"]),
        ({"objective": "prefix", "guidance": 8.0}, ["guidance | 8", "horizon_leaves"], ["gain_", "opd_decay"]),
        ({"objective": "gain"}, ["guidance | 1", "gain_share | all"], ["horizon_leaves", "gain_guidance"]),
        ({"objective": "opd"}, ["opd_decay | 0.8"], ["guidance", "tree_budget"]),
    ],
)
def test_settings_that_played_no_part_are_left_out(changes, there, absent):
    """The guidance is the number that was used, a default included."""
    target = make_target()
    config = TrainConfig(**changes)
    card = drafter_card(
        "d", target, make_drafter(target), objective=config.objective, data=DataConfig(), supervised_tokens=7,
        config=config, processes=1, last={"ceiling_B16_T0": 2.5}, taus=[], commit="abc",
    )  # fmt: skip
    settings = card[card.index("| training | value |") : card.index("## Held-out")]
    for text in there:
        assert f"| {text}" in settings, text
    for text in absent:
        assert f"| {text}" not in settings, text
