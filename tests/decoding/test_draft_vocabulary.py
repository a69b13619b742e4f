"""A drafter that proposes a part of the vocabulary: other trees, the same text."""

import math

import pytest
import torch
from safetensors.torch import save_file

from tests.decoding.test_decode import NEVER, PROMPT
from tests.tiny import VOCAB, make_drafter, make_target
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.decode import autoregressive, speculate
from tevlib.decoding.draft_vocabulary import DraftVocabulary, draft_log_probs
from tevlib.training.data import frequent_tokens
from tevlib.training.rollouts import Rollout
from tevlib.trees.builders import BUILDERS

TOKENS = torch.arange(4, VOCAB, 3)


@pytest.fixture
def limited(target):
    """A random drafter that proposes every third token."""
    drafter = make_drafter(target)
    drafter.vocabulary = DraftVocabulary(TOKENS, target)
    return drafter


def test_rows_are_the_whole_rows_renormalised_on_its_tokens(target, limited):
    """The head over some rows gives what the whole head gives there; every other token has no probability."""
    hidden = torch.randn(2, 3, target.hidden_size)
    got = draft_log_probs(target, limited, hidden)
    whole = target.logits(hidden)
    expected = torch.full_like(whole, -math.inf)
    expected[..., TOKENS] = torch.log_softmax(whole[..., TOKENS], dim=-1)
    assert got.shape == (2, 3, VOCAB) and got.dtype == torch.float32
    torch.testing.assert_close(got, expected)


def test_soft_capped_targets_cap_these_rows_too():
    """The cap applies to the logits of the part as to the whole head's."""
    target = make_target()
    target.softcap = 2.0
    hidden = torch.randn(1, target.hidden_size) * 20
    among = target.logits(hidden)[:, TOKENS].log_softmax(-1)
    torch.testing.assert_close(DraftVocabulary(TOKENS, target).log_probs(hidden), among)


@pytest.mark.parametrize("builder", [*BUILDERS, "sampled_chain"])
def test_text_is_the_same_and_trees_hold_its_tokens_only(target, limited, builder):
    """At T = 0 in float32 the answer is plain decoding's, though the text has tokens that are never proposed."""
    expected = autoregressive(target, PROMPT, max_new_tokens=30, stop=NEVER).tokens
    assert set(expected) - set(TOKENS.tolist())
    got = speculate(target, limited, PROMPT, builder=builder, budget=12, max_new_tokens=30, stop=NEVER)
    assert got.tokens == expected
    drafted = {r.tree.token(node) for r in got.rounds for node in range(1, len(r.tree))}
    assert drafted and drafted <= set(TOKENS.tolist())


def test_a_budget_beyond_all_its_paths_drafts_what_there_is(target):
    """Two tokens give 2 + 4 + 8 nodes at depth 3, whatever the budget: none of no probability fills it up."""
    drafter = make_drafter(target, block_size=4)
    drafter.vocabulary = DraftVocabulary(torch.tensor([6, 9]), target)
    got = speculate(target, drafter, PROMPT, budget=64, max_new_tokens=6, stop=NEVER)
    assert len(got.rounds[0].tree) == 1 + 2 + 4 + 8


def test_a_draft_with_nan_is_seen_even_where_token_0_is_not_proposed(target, limited):
    """NaN states make the whole row NaN: the round drafts nothing, with a warning, and the answer stays right."""
    assert draft_log_probs(target, limited, torch.full((1, target.hidden_size), math.nan)).isnan().all()
    with torch.no_grad():
        limited.norm.weight.fill_(math.nan)
    with pytest.warns(UserWarning, match="NaN"):
        got = speculate(target, limited, PROMPT, max_new_tokens=5, stop=NEVER)
    assert got.tokens == autoregressive(target, PROMPT, max_new_tokens=5, stop=NEVER).tokens


def test_it_is_kept_beside_the_weights(target, limited, tmp_path):
    """Saved and loaded again, with a difference from another drafter too; a drafter without one has no file."""
    whole = save_drafter(make_drafter(target), tmp_path / "whole", target=target)
    assert load_drafter(whole, target).vocabulary is None
    for name, of in (("part", None), ("difference", whole)):
        folder = save_drafter(limited, tmp_path / name, target=target, delta_of=of)
        assert torch.equal(load_drafter(folder, target).vocabulary.tokens, TOKENS)


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        (torch.tensor([3, 3]), "ascending"),
        (torch.tensor([5, 4]), "ascending"),
        (torch.tensor([-1, 4]), "ascending"),
        (torch.tensor([4, VOCAB]), "0 to 127"),
        (torch.tensor([], dtype=torch.long), "vector of token ids"),
        (torch.tensor([1.0, 2.0]), "float32"),
    ],
)
def test_bad_files_are_refused_by_name(target, tmp_path, tokens, fault):
    """The error says which file, and what it should hold."""
    folder = save_drafter(make_drafter(target), tmp_path / "d", target=target)
    save_file({"tokens": tokens}, folder / "draft_vocabulary.safetensors")
    with pytest.raises(ValueError, match=f"draft_vocabulary.safetensors: .*{fault}"):
        load_drafter(folder, target)
    save_file({"ids": tokens}, folder / "draft_vocabulary.safetensors")
    with pytest.raises(ValueError, match="one tensor, tokens; it holds ids"):
        load_drafter(folder, target)


def test_frequent_tokens_counts_responses_only():
    """Prompts do not count; a tie goes to the lower id; no more than occur."""
    rollouts = [
        Rollout(0, torch.tensor([9, 9, 9, 5, 7, 7]), 3, torch.zeros(0)),
        Rollout(1, torch.tensor([8, 6, 5, 6]), 1, torch.zeros(0)),
    ]
    assert frequent_tokens(rollouts, 1).tolist() == [5]
    assert frequent_tokens(rollouts, 2).tolist() == [5, 6]
    assert frequent_tokens(rollouts, 50).tolist() == [5, 6, 7]
    with pytest.raises(ValueError, match="at least one token, got 0"):
        frequent_tokens(rollouts, 0)
    with pytest.raises(ValueError, match="no responses"):
        frequent_tokens([], 5)
