"""Stages of a round on a device without data: no value is read, no device is mixed, nothing is copied over.

Tensors on torch's meta device have shapes and dtypes alone, so it stands in for a GPU where there is none: whatever
would wait for one raises, and so does an operation that brings along a tensor of the host's.
"""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from tests.tiny import CONFIGS, PLAIN
from tevlib.decoding import cycle as cycle_module
from tevlib.decoding.cycle import Cycle
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.target import Target, TargetInfo
from tevlib.training.initialise import drafter_config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trees"))
from host_reads import HostReads

META = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """AssertionError for an operation that takes or gives a tensor of one device and gives one of another."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves((args, kwargs, made)):
            if isinstance(tensor, torch.Tensor):
                assert tensor.device == META, f"{function} has a tensor of the {tensor.device}"
        return made


@pytest.mark.parametrize("law", [(0.0, 1.0, 0), (1.0, 1.0, 0), (0.7, 0.9, 20)])
@pytest.mark.parametrize("family", sorted(set(PLAIN) - {"qwen3_moe"}))
def test_a_round_stays_on_the_device(monkeypatch, family, law):
    """All five stages, twice, at every law: what they hold can be captured."""
    monkeypatch.setattr(cycle_module, "captured", lambda stages, device, before: stages)
    with torch.inference_mode():
        with META:
            model = AutoModelForCausalLM.from_config(CONFIGS[family](), attn_implementation="sdpa")
            target = Target(model, None, TargetInfo("meta", "none", "float32", 0, "meta"))
            drafter = DFlashDraftModel(drafter_config(target, 2, 8, (0, 2), mask_id=5)).eval()
        cycle = Cycle(target, drafter, 16, 64, 40, *law)
        for _ in range(2):
            with HostReads(refuse=True), OneDevice():
                cycle.round()
        assert cycle.report.device == cycle.tree.tokens.device == META
        assert cycle.logits.shape == (17, target.vocab_size)


def test_a_tensor_of_the_host_is_noticed():
    """Torch lets a host's scalar tensor join in; on a GPU that would be a copy."""
    with pytest.raises(AssertionError, match="has a tensor of the cpu"), OneDevice():
        torch.zeros(3, device=META) + torch.zeros(())
