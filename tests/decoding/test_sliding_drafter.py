"""Drafters whose layers slide: keys by position, causal inside the block, in every form of the draft pass."""

import pytest
import torch

from tests.tiny import make_drafter, make_target
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.decode_fixed import decode_fixed
from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.drafter_config import Sight, sights
from tevlib.decoding.fixed_cache import FixedCache, draft_block

MIXED = ("sliding_attention", "full_attention")
SLIDING = ("sliding_attention",) * 2
NEVER = {-1}


def sliding(target, kinds=MIXED, window=6, **changed) -> DFlashDraftModel:
    """The drafter of `make_drafter` with layers of the given kinds."""
    plain = make_drafter(target)
    config = plain.config
    config.update(
        {"layer_types": list(kinds), "use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
    )
    config.update(changed)
    drafter = DFlashDraftModel(config).eval()
    drafter.load_state_dict(plain.state_dict())
    return drafter


def states(drafter, features, block):
    """Final states of a block's rows behind a context, with nothing cached before."""
    cache = drafter.new_cache(len(features) + len(block))
    with torch.no_grad():
        return drafter.draft(cache, block, features)


def test_what_a_row_sees():
    """The window counts the row itself, by position; one that is not causal has it on both sides."""
    at = torch.arange(4)
    assert Sight(True, 2).visible(at, at).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert Sight(False, 2).visible(at, at).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert Sight(True).visible(at, at).equal(torch.ones(4, 4).tril().bool())
    assert not Sight().masks and bool(Sight().visible(at, at).all())


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({}, [Sight(True, 6), Sight(False)]),
        ({"is_causal": False}, [Sight(False, 6), Sight(False)]),
        ({"is_causal": True}, [Sight(True, 6), Sight(True)]),
    ],
)
def test_sliding_layers_are_causal_unless_stated(stated, expected):
    """What servers and the `dflash` package make of a mixed drafter, with and without `is_causal`."""
    assert sights(sliding(make_target("qwen3"), **stated).config) == expected


def test_a_sliding_drafter_reads_its_window_and_nothing_before():
    """A block at position 20 with window 6 reads features 15 to 19, whatever slots they lie in; rows look back only."""
    target = make_target("qwen3")
    drafter = sliding(target, SLIDING)
    generator = torch.Generator().manual_seed(0)
    features, block = torch.randn(20, 64, generator=generator), torch.randn(8, 32, generator=generator)
    before = states(drafter, features, block)
    far, near, later = features.clone(), features.clone(), block.clone()
    far[:15] += 1
    near[15] += 1
    later[5] += 1
    assert torch.equal(states(drafter, far, block), before)
    assert not torch.equal(states(drafter, near, block)[0], before[0])
    after = states(drafter, features, later)
    torch.testing.assert_close(after[:4], before[:4], atol=1e-6, rtol=1e-6)
    assert not torch.allclose(after[4:], before[4:], atol=1e-3)


@pytest.mark.parametrize("stated", [{}, {"is_causal": False}, {"is_causal": True}])
@pytest.mark.parametrize("window", [3, 6, 100])
def test_the_training_pass_is_the_draft_pass(window, stated):
    """Packed blocks, rounds one after another and rounds of fixed shape give one answer, before and behind the window
    (no train-inference skew, SpecForge#533)."""
    target = make_target("qwen3")
    drafter = sliding(target, MIXED, window, **stated)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 128, (1, 40), generator=generator)
    features, anchors = torch.randn(1, 40, 64, generator=generator), [2, 9, 11, 30]
    with torch.no_grad():
        blocks = block_embeddings(target, drafter, ids[:, anchors])
        packed = drafter(features, blocks, torch.tensor([anchors]))[0]
    cache, fixed, start = drafter.new_cache(64), FixedCache(drafter.new_cache(96)), 0
    for i, anchor in enumerate(anchors):
        new = features[0, start:anchor]
        padded = torch.cat([new, torch.full((40 - len(new), 64), 7.0)])
        with torch.no_grad():
            drafted = drafter.draft(cache, blocks[0, i], new)
            shaped = draft_block(drafter, fixed, blocks[0, i], torch.tensor(7), padded, torch.tensor(len(new)))
        torch.testing.assert_close(drafted, packed[i, 1:], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(shaped, packed[i, 1:], atol=1e-5, rtol=1e-5)
        start = anchor


@pytest.mark.parametrize("length", [6, 30])
def test_decoding_with_a_sliding_drafter(length):
    """Window 8, prompts before and behind it: the target's own text, and one set of trees in both decoding loops."""
    target = make_target("qwen3")
    drafter = sliding(target, window=8)
    prompt = torch.randint(4, 128, (length,), generator=torch.Generator().manual_seed(length)).tolist()
    expected = autoregressive(target, prompt, max_new_tokens=24, stop=NEVER).tokens
    got = speculate(target, drafter, prompt, budget=12, max_new_tokens=24, stop=NEVER)
    fixed = decode_fixed(target, drafter, prompt, budget=12, max_new_tokens=24, stop=NEVER)
    assert got.tokens == fixed.tokens == expected
    assert [r.tree.tokens.tolist() for r in got.rounds] == [r.tree.tokens.tolist() for r in fixed.rounds]
