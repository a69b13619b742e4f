"""The drafter's context when a prefix is reused: as if it had been read afresh."""

import pytest
import torch

from tests.tiny import make_drafter, make_target
from tevlib.decoding.decode import draft
from tevlib.trees.draft_tree import DraftTree


def read(target, drafter, cache, context, ids):
    """Commit `ids` to both caches."""
    _, features = target.prefill(cache, torch.tensor(ids), drafter.taps)
    drafter.append_context(context, features)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_reused_prefix_drafts_as_a_fresh_one(family):
    """Turn 2 behind what is left of turn 1's caches, rounds of trees and their roll-back included: the same draft as
    from a fresh read; a context left stale is another (vllm#47930)."""
    target = make_target(family)
    drafter = make_drafter(target)
    cache, context = target.new_cache(96), drafter.new_cache(96)
    first = torch.randint(4, 128, (12,), generator=torch.Generator().manual_seed(2)).tolist()
    read(target, drafter, cache, context, first)
    tree = DraftTree([20, 21, 22, 23, 24, 25], [-1, 0, 0, 2, 1, 2])
    for path in ([0, 2, 5], [0, 1, 4]):  # accepted nodes lie apart, the others are rolled back
        _, features = target.pass_tree(cache, tree, drafter.taps)
        cache.commit(path)
        drafter.append_context(context, features[path])
    text = [*first, 20, 22, 25, 20, 21, 24]
    second = [*text[:-2], 60, 61, 62, 63, 64, 65, 66, 67, 68, 69]  # the history is rendered anew: its end differs
    stale = draft(target, drafter, context, 70, drafter.depth)
    for kept in (cache, context):
        kept.keep_first(len(text) - 2)
    read(target, drafter, cache, context, second[len(text) - 2 :])
    fresh_cache, fresh = target.new_cache(96), drafter.new_cache(96)
    read(target, drafter, fresh_cache, fresh, second)
    expected = draft(target, drafter, fresh, 70, drafter.depth)
    assert context.length == fresh.length == len(second)
    torch.testing.assert_close(draft(target, drafter, context, 70, drafter.depth), expected, atol=1e-5, rtol=1e-5)
    assert float((stale - expected).abs().max()) > 0.01
