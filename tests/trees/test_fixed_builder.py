"""The builder of fixed shape: the tree of `best_first_tree` under ties, padding and limits, and no look at a value."""

import math
import warnings

import pytest
import torch
from host_reads import HostReads
from hypothesis import given, settings
from hypothesis import strategies as st

from tevlib.trees.builders import best_first_tree
from tevlib.trees.fixed_builder import FixedBuilder, fixed_top_tokens
from tevlib.trees.top_tokens import top_tokens

INF = math.inf


def rows(h, v, seed=0, scale=3.0):
    return (torch.randn(h, v, generator=torch.Generator().manual_seed(seed)) * scale).log_softmax(-1)


def build(log_probs, budget, root=5, depth_limit=None):
    builder = FixedBuilder(*log_probs.shape, budget, "cpu")
    limit = None if depth_limit is None else torch.tensor(depth_limit)
    with HostReads(refuse=True):
        return builder(log_probs, torch.tensor(root), limit)


def assert_is(fixed, tree, budget):
    """The fixed tree holds `tree` and, behind it, padding that no node sees and that sees no node."""
    n = len(tree)
    assert int(fixed.size) == n and len(fixed.tokens) == budget + 1
    assert torch.equal(fixed.tokens[:n], tree.tokens) and torch.equal(fixed.parents[:n], tree.parents)
    assert torch.equal(fixed.scores[:n], tree.scores) and torch.equal(fixed.depths[:n], tree.depths)
    whole = torch.eye(budget + 1, dtype=torch.bool)
    whole[:n, :n] = tree.ancestors
    assert torch.equal(fixed.ancestors, whole)
    assert (fixed.parents[n:] == -1).all() and (fixed.depths[n:] == 0).all() and (fixed.scores[n:] == -INF).all()
    assert (fixed.tokens[n:] == tree.token(0)).all()
    back = fixed.tree()
    assert torch.equal(back.tokens, tree.tokens) and torch.equal(back.parents, tree.parents)


@st.composite
def draft_rows(draw):
    """Rows with exact ties, zeros of both signs and -inf entries."""
    h, v = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    entry = st.sampled_from([0.0, -0.0, -0.25, -0.5, -0.5, -1.0, -2.0, -INF])
    return torch.tensor(draw(st.lists(st.lists(entry, min_size=v, max_size=v), min_size=h, max_size=h)))


@settings(max_examples=300, deadline=None)
@given(draft_rows(), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 5)))
def test_equals_best_first_under_ties(log_probs, budget, depth_limit):
    """Node for node the same tree, with no host read on the way; a row without a finite entry leaves the root."""
    rows_used = log_probs[:depth_limit] if depth_limit is not None else log_probs
    fixed = build(log_probs, budget, 5, depth_limit)
    usable = bool(rows_used.isfinite().any(-1).all())
    assert bool(fixed.usable) == usable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = best_first_tree(rows_used if usable else rows_used[:0], budget, 5)
    assert_is(fixed, tree, budget)


@pytest.mark.parametrize(
    ("h", "v", "budget"), [(7, 3000, 64), (15, 500, 256), (1, 200, 64), (7, 2, 50), (15, 4097, 32)]
)
@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
def test_equals_best_first_on_rows_of_a_drafter(h, v, budget, scale):
    """The same for realistic rows and budgets, rows rounded to few values included."""
    for log_probs in (rows(h, v, seed=budget, scale=scale), rows(h, v, scale=scale).bfloat16().float().clamp(max=0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_is(build(log_probs, budget), best_first_tree(log_probs, budget, 5), budget)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.sampled_from([1, 3, 63, 64, 65, 200, 640]), st.floats(0, 1), st.integers(1, 6))
def test_fixed_top_tokens_equal_top_tokens(h, v, fraction, levels):
    """Values and ids whatever k, block edges, ties and -inf entries."""
    table = -torch.randint(0, levels + 1, (h, v), generator=torch.Generator().manual_seed(v)).float()
    table[table == -levels] = -INF
    k = 1 + int(fraction * (v - 1))
    (values, ids), (expected, order) = fixed_top_tokens(table, k), top_tokens(table, k)
    assert torch.equal(values, expected)
    assert torch.equal(ids[values.isfinite()], order[values.isfinite()])


@pytest.mark.parametrize("nan", [math.nan, -math.nan])
@pytest.mark.parametrize("place", [0, 2])
def test_nan_rows_draft_nothing(place, nan):
    """A NaN anywhere in a row in use leaves the root alone and says so; behind the depth limit it plays no part."""
    log_probs = rows(3, 900)
    log_probs[place, 77] = nan
    fixed = build(log_probs, 16)
    assert int(fixed.size) == 1 and not fixed.usable and fixed.ancestors.equal(torch.eye(17, dtype=torch.bool))
    if place == 2:
        assert_is(build(log_probs, 16, depth_limit=2), best_first_tree(log_probs[:2], 16, 5), 16)


def test_what_does_not_fit_is_refused():
    """Budget 0, other shapes and other dtypes are errors, not other trees."""
    with pytest.raises(ValueError, match="needs a row and a node to draft"):
        FixedBuilder(3, 9, 0, "cpu")
    builder = FixedBuilder(3, 9, 4, "cpu")
    for wrong in (rows(2, 9), rows(3, 9).double()):
        with pytest.raises(ValueError, match=r"log_probs must be float32 \[3, 9\]"):
            builder(wrong, torch.tensor(0))
