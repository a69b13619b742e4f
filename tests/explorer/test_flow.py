"""The explorer's own arithmetic against the exit law, to the five digits that a recording keeps."""

import pytest
import torch

from tests.explorer.made import TEMPERATURES, random_logits, random_tree
from tevlib.explorer.flow import flow, missing_tokens
from tevlib.suite.tree_columns import tree_columns
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law


def case(nodes, seed, top=8):
    tree, logits = random_tree(nodes, seed), random_logits(nodes, seed)
    return tree, logits, tree_columns(tree, logits, TEMPERATURES, top)


@pytest.mark.parametrize("stop", range(len(TEMPERATURES)))
@pytest.mark.parametrize("seed", range(4))
def test_every_budget_is_the_exit_law_of_the_pruned_tree(seed, stop):
    """P, rho, w and C_p of the first B draft tokens are those of `exit_law` on that prefix, at every temperature."""
    tree, logits, columns = case(30, seed)
    for budget in range(30):
        law = exit_law(tree.prefix(budget + 1), logits[: budget + 1], TEMPERATURES[stop])
        found = flow(columns, TEMPERATURES[stop], stop, budget)
        for name in ("P", "rho", "w"):
            assert getattr(found, name)[: budget + 1] == pytest.approx(getattr(law, name).tolist(), abs=3e-5)
            assert getattr(found, name)[budget + 1 :] == [None] * (29 - budget)
        assert found.coverage == pytest.approx(float(law.coverage), abs=3e-5)
        assert found.exit_depth == pytest.approx(found.coverage, abs=1e-9)
        assert sum(found.w[: budget + 1]) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("stop", range(len(TEMPERATURES)))
@pytest.mark.parametrize("seed", range(4))
def test_adding_a_missing_token_gains_exactly_its_mass(seed, stop):
    """What-if T + (v, a): C_p rises by P(v) p_v(a) (Eq. 12), which is the law of the grown tree; w still sums to 1."""
    tree, logits, columns = case(20, seed)
    law = exit_law(tree, logits, TEMPERATURES[stop])
    before = flow(columns, TEMPERATURES[stop], stop)
    for node in range(20):
        for token, gain in missing_tokens(columns, before, node, TEMPERATURES[stop], stop)[:3]:
            assert gain == pytest.approx(float(law.one_step_gain(node, token)), abs=3e-5)
            after = flow(columns, TEMPERATURES[stop], stop, edits=[("add", node, token)])
            assert after.coverage - before.coverage == pytest.approx(gain, abs=1e-12)
            assert after.exit_depth == pytest.approx(after.coverage, abs=1e-9)
            assert sum(after.w) == pytest.approx(1, abs=1e-9)
            grown = DraftTree([*columns["tokens"], token], [*columns["parents"], node])
            rows = torch.cat([logits, logits[:1]])  # a leaf's row does not matter
            assert after.P == pytest.approx(exit_law(grown, rows, TEMPERATURES[stop]).P.tolist(), abs=3e-5)


def test_gains_of_a_node_sum_to_its_exit_mass():
    """With all of the vocabulary listed, the gains of a node add up to w(v) (Eq. 13)."""
    _, _, columns = case(20, 5, top=40)
    found = flow(columns, 0.6, 1)
    for node in range(20):
        gains = missing_tokens(columns, found, node, 0.6, 1)
        assert sum(gain for _, gain in gains) == pytest.approx(found.w[node], abs=3e-5)


def test_a_dropped_subtree_gives_its_mass_back_to_its_parent():
    """Dropping u takes its subtree away; its P joins the parent's w, and C_p falls by the subtree's P."""
    _, _, columns = case(25, 3)
    before = flow(columns, 1.0, 2)
    for node in range(1, 25):
        after = flow(columns, 1.0, 2, edits=[("drop", node, -1)])
        below = [v for v in range(25) if after.P[v] is None]
        assert node in below and set(below) <= set(range(node, 25))
        parent = columns["parents"][node]
        assert after.w[parent] == pytest.approx(before.w[parent] + before.P[node], abs=1e-9)
        assert before.coverage - after.coverage == pytest.approx(sum(before.P[v] for v in below), abs=1e-9)
        listed = dict(missing_tokens(columns, after, parent, 1.0, 2))
        assert listed[columns["tokens"][node]] == pytest.approx(before.P[node], abs=1e-9)


def test_a_swap_and_a_way_back():
    """Drop and add again is where one was; a budget-preserving swap changes C_p by gain minus loss."""
    _, _, columns = case(25, 8)
    before = flow(columns, 1.0, 2)
    leaf = next(v for v in range(24, 0, -1) if v not in columns["parents"])
    parent, token = columns["parents"][leaf], columns["tokens"][leaf]
    back = flow(columns, 1.0, 2, edits=[("drop", leaf, -1), ("add", parent, token)])
    assert back.coverage == pytest.approx(before.coverage, abs=1e-12) and sum(
        back.w[v] for v in back.alive
    ) == pytest.approx(1)
    found, gain = missing_tokens(columns, before, 0, 1.0, 2)[0]
    swap = flow(columns, 1.0, 2, edits=[("add", 0, found), ("drop", leaf, -1)])
    assert swap.coverage - before.coverage == pytest.approx(gain - before.P[leaf], abs=1e-12)
    assert len(swap.alive) == len(before.alive)


def test_edits_that_do_not_fit_are_refused():
    """A node that is not there, the root dropped, a token that is there or was never recorded, a negative budget."""
    _, _, columns = case(10, 1, top=3)
    child = columns["parents"].index(0)
    with pytest.raises(ValueError, match="node 99 is not in the tree"):
        flow(columns, 1.0, 2, edits=[("drop", 99, -1)])
    with pytest.raises(ValueError, match="root cannot be dropped"):
        flow(columns, 1.0, 2, edits=[("drop", 0, -1)])
    with pytest.raises(ValueError, match="already has a child"):
        flow(columns, 1.0, 2, edits=[("add", 0, columns["tokens"][child])])
    with pytest.raises(ValueError, match="no recorded probability"):
        flow(columns, 1.0, 2, edits=[("add", 0, 39_000)])
    with pytest.raises(ValueError, match="budget must be >= 0; got -1"):
        flow(columns, 1.0, 2, budget=-1)
