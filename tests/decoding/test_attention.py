"""Attention over few queries and over many: two paths, one result."""

import pytest
import torch

from tevlib.decoding import attention
from tevlib.decoding.attention import additive_mask, grouped_attention


@pytest.mark.parametrize("nodes", [1, 5])
def test_both_paths_see_what_the_mask_shows(monkeypatch, nodes):
    """A mask of the last keys alone, bfloat16, either path: softmax over what each query head's key head shows."""
    generator = torch.Generator().manual_seed(nodes)
    query = torch.randn(1, 6, nodes, 16, generator=generator).bfloat16()
    key, value = torch.randn(2, 1, 2, 20, 16, generator=generator).bfloat16()
    square = torch.ones(1, nodes, nodes, dtype=torch.bool).tril()
    visible = torch.cat([torch.ones(nodes, 20 - nodes, dtype=torch.bool), square[0]], 1)
    wide = [x.float().repeat_interleave(3, 1) for x in (key, value)]
    scores = (query.float() @ wide[0].transpose(-1, -2) / 4).masked_fill(~visible, -torch.inf)
    expected = (scores.softmax(-1) @ wide[1]).transpose(1, 2)
    for few in (0, 10**9):
        monkeypatch.setattr(attention, "FEW", few)
        mask = additive_mask(square, 3, torch.bfloat16)
        got, _ = grouped_attention(None, query, key, value, mask, 0.25)
        torch.testing.assert_close(got.float(), expected, atol=0.03, rtol=0.03)
