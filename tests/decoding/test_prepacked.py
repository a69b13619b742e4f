"""Weights in the processor's layout: the same products to the last bit, the same parameters, gradients where wanted."""

import pytest
import torch
from torch import nn

from tests.tiny import make_target
from tevlib.decoding.load import load_target
from tevlib.decoding.prepacked import PackedLinear, can_pack, measured_paths, pack_linears, unpacked

pytestmark = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor has no bfloat16 products in oneDNN"
)


@pytest.mark.parametrize("rows", [(1,), (9,), (33,), (2, 5), (2, 3, 4)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_the_same_to_the_last_bit(rows, bias):
    """Any number of rows, with and without a bias, any leading shape."""
    generator = torch.Generator().manual_seed(sum(rows))
    plain = nn.Linear(96, 160, bias=bias, dtype=torch.bfloat16).requires_grad_(False)
    x = torch.randn(*rows, 96, generator=generator).bfloat16()
    assert torch.equal(PackedLinear(plain)(x), plain(x))


def test_a_packed_target_is_the_same_target():
    """Same logits, same parameters under the same names, also while it is unpacked; every linear layer is packed."""
    target = make_target(dtype=torch.bfloat16)
    ids = torch.tensor([4, 6, 7, 9, 4])
    plain, _ = target.prefill(target.new_cache(8), ids)
    before = {name: value.clone() for name, value in target.model.state_dict().items()}
    assert can_pack(target.model)
    pack_linears(target.model)
    target.head = target.model.get_output_embeddings()
    assert not [m for m in target.model.modules() if type(m) is nn.Linear]
    after = target.model.state_dict()
    assert list(after) == list(before) and all(torch.equal(after[name], value) for name, value in before.items())
    assert torch.equal(target.prefill(target.new_cache(8), ids)[0], plain)
    packed = [m for m in target.model.modules() if isinstance(m, PackedLinear)]
    with unpacked(target.model):
        assert len(packed) > 20 and not any(m.use_packed for m in packed)
        assert torch.equal(target.prefill(target.new_cache(8), ids)[0], plain)
    assert all(m.use_packed for m in packed)


def test_gradients_pass_through():
    """Where something learns through a frozen packed layer, or its own weight does, the plain product is taken."""
    plain = nn.Linear(8, 4, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    layer, x = PackedLinear(plain), torch.randn(3, 8, dtype=torch.bfloat16, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, plain.weight.sum(0).expand(3, 8))
    layer.weight.requires_grad_(True)
    assert layer(x.detach()).requires_grad


def test_only_small_bfloat16_models_on_a_cpu_are_packed(tiny, monkeypatch):
    """float32 stays as it is, and so does a model whose second copy would not fit in memory."""
    assert not can_pack(make_target().model)
    model = make_target(dtype=torch.bfloat16).model
    monkeypatch.setattr("tevlib.decoding.prepacked.LARGEST", 1000)
    assert not can_pack(model)
    monkeypatch.undo()
    assert type(load_target(tiny / "target", dtype="float32").head) is nn.Linear


@pytest.mark.parametrize("fastest", ["plain", "packed"])
def test_the_faster_path_is_taken_and_named(tiny, monkeypatch, fastest):
    """What a target says of its products is what its layers do, whichever path the measurement finds faster."""
    seconds = {"plain": 2.0, "packed": 2.0, "float32": 4.0} | {fastest: 1.0}
    monkeypatch.setattr("tevlib.decoding.load.measured_paths", lambda weight: seconds)
    target = load_target(tiny / "target", dtype="bfloat16")
    assert isinstance(target.head, PackedLinear) == (fastest == "packed")
    assert target.info.products.startswith(f"{fastest} (0.50 of the time of ") and "faster" not in target.info.products
    seconds["float32"] = 0.5
    assert "dtype='float32' is faster" in load_target(tiny / "target", dtype="bfloat16").info.products


def test_every_path_is_measured():
    """Each path has a time of its own, none is left out on a processor with bfloat16."""
    seconds = measured_paths(torch.randn(64, 96).bfloat16())
    assert set(seconds) == {"plain", "float32", "packed"} and min(seconds.values()) > 0


def test_a_weight_that_changed_is_laid_out_again():
    """Stale copies: after a step of training in place, products are those of the new weight."""
    layer = PackedLinear(nn.Linear(96, 160, bias=False, dtype=torch.bfloat16).requires_grad_(False))
    x = torch.randn(3, 96).bfloat16()
    old = layer(x)
    layer.weight.mul_(2)
    assert torch.equal(layer(x), old * 2)
