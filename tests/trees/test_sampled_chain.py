"""The sampled chain: min(1, p / q) with residual max(p - q, 0) is exact averaged over the chain."""

import itertools
import math
import random
from collections import Counter

import pytest
import torch
from tree_reference import assert_same_law, enumerate_law, log_rows, random_law

from tevlib.trees import sampled_chain
from tevlib.trees.builders import best_first_tree, chain_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.sampled_chain import draw_chain, verify_sampled_chain


def law_table(vocabulary, depth, rng):
    paths = [path for n in range(depth + 1) for path in itertools.product(range(vocabulary), repeat=n)]
    return {path: random_law(vocabulary, rng) for path in paths}


def rows_along(laws, tree):
    return log_rows([laws[tuple(tree.path(node))] for node in range(len(tree))])


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(4))
def test_block_law_is_the_target_law(seed, temperature, monkeypatch):
    """Averaged over the chain, the emitted block prolonged by the target has exactly the target's law of 3 tokens."""
    vocabulary, draft = 3, 2
    rng = random.Random(seed)
    laws = law_table(vocabulary, draft, rng)
    q_rows = log_rows([random_law(vocabulary, rng) for _ in range(draft)])

    def run():
        tree, q = draw_chain(q_rows, draft, 0, temperature, None)
        verdict = verify_sampled_chain(tree, q, rows_along(laws, tree), temperature, None)
        return (*tree.path(verdict.node), verdict.bonus)

    heated = {}
    for path, law in laws.items():
        weights = [p ** (1 / temperature) for p in law]
        heated[path] = [w / math.fsum(weights) for w in weights]

    emitted = Counter()
    for block, p in enumerate_law(run, monkeypatch, sampled_chain).items():
        for rest in itertools.product(range(vocabulary), repeat=draft + 1 - len(block)):
            full = (*block, *rest)
            emitted[full] += p * math.prod(heated[full[:i]][full[i]] for i in range(len(block), draft + 1))
    expected = {
        full: math.prod(heated[full[:i]][full[i]] for i in range(draft + 1))
        for full in itertools.product(range(vocabulary), repeat=draft + 1)
    }
    assert_same_law(emitted, expected)


def test_acceptance_is_the_overlap(monkeypatch):
    """The first draft token is accepted with probability sum min(p, q), more than p(argmax q) can give here."""
    p, q_law = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]

    def run():
        tree, q = draw_chain(log_rows([q_law]), 1, 0, 1.0, None)
        return verify_sampled_chain(tree, q, log_rows([p, p]), 1.0, None).node

    law = enumerate_law(run, monkeypatch, sampled_chain)
    assert law[1] == pytest.approx(sum(map(min, p, q_law)))


def test_marginals_are_no_joint_law(monkeypatch):
    """Tokens drawn apart do not fit each other, though every row is the target's own marginal (dflash#169).

    The target writes 000 or 111. A chain drawn from the marginals has 1 + 1/2 + 1/4 tokens accepted, the argmax chain
    half of three; a tree of the same rows holds both texts.
    """
    marginals = log_rows([[0.5, 0.5]] * 3)

    def law_of(path):
        return [0.5, 0.5] if not path else [float(path[0] == token) for token in (0, 1)]

    def rows_of(tree):
        return log_rows([law_of(tree.path(node)) for node in range(len(tree))])

    def run():
        tree, q = draw_chain(marginals, 3, 0, 1.0, None)
        return verify_sampled_chain(tree, q, rows_of(tree), 1.0, None).node

    drawn = sum(node * p for node, p in enumerate_law(run, monkeypatch, sampled_chain).items())
    chain, tree = chain_tree(marginals, 3, 0), best_first_tree(marginals, 14, 0)
    covered = [float(exit_law(t, rows_of(t)).coverage) for t in (chain, tree)]
    assert (drawn, *covered) == pytest.approx((1.75, 1.5, 3.0))


def test_perfect_drafter_is_always_accepted():
    """q = p leaves no residual: every token is accepted, in float32 and whatever the rounding."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 300, generator=generator).log_softmax(-1)
    for _ in range(50):
        tree, q = draw_chain(rows[:3], 3, 0, 0.9, generator)
        assert verify_sampled_chain(tree, q, rows, 0.9, generator).node == 3


def test_greedy_chain_is_the_argmax_chain():
    """At temperature 0 the chain and the verdict are the argmax ones, ties to the lowest id."""
    rows = torch.tensor([[1.0, 3, 3], [5, 0, 0], [0, 0, 1]])
    tree, q = draw_chain(rows.log_softmax(-1), 9, 7, 0, None)
    assert tree.path(3) == [1, 0, 2] and tree.tokens[0] == 7
    assert q.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]] and tree.scores.tolist() == [0] * 4
    generator = torch.Generator().manual_seed(0)
    target = torch.tensor([[1.0, 3, 3], [0, 5, 5], [0, 0, 1], [2, 2, 0]])
    verdict = verify_sampled_chain(tree, q, target, 0, generator)
    assert (verdict.node, verdict.path, verdict.bonus) == (1, [0, 1], 1)
    target[1] = torch.tensor([5.0, 0, 5])
    assert verify_sampled_chain(tree, q, target, 0, generator).path == [0, 1, 2, 3]


def test_scores_and_seeds():
    """Scores are cumulative log q of the drawn tokens; equal seeds give equal chains; budget 0 is the root alone."""
    rows = torch.randn(5, 20, generator=torch.Generator().manual_seed(1)).log_softmax(-1)
    draws = [draw_chain(rows, 4, 0, 1.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    (tree, q), (same, _), (other, _) = draws
    assert torch.equal(tree.tokens, same.tokens) and not torch.equal(tree.tokens, other.tokens)
    torch.testing.assert_close(tree.scores[-1], sum(q[i, token].log() for i, token in enumerate(tree.path(4))))
    root, empty = draw_chain(rows, 0, 3, 1.0, torch.Generator())
    assert len(root) == 1 and empty.shape == (0, 20)
    assert verify_sampled_chain(root, empty, rows[:1], 1.0, torch.Generator()).node == 0


def test_bad_input_is_refused():
    """A branching tree, misfit shapes, a token that q cannot have drawn, NaN rows and negative budgets are refused."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(3, 4)
    q = torch.full((2, 4), 0.25)
    with pytest.raises(ValueError, match="one node per depth"):
        verify_sampled_chain(DraftTree([0, 1, 2], [-1, 0, 0]), q, logits, 1.0, generator)
    chain = DraftTree([0, 1, 2], [-1, 0, 1])
    with pytest.raises(ValueError, match=r"q must be \[2, 4\]"):
        verify_sampled_chain(chain, q[:1], logits, 1.0, generator)
    with pytest.raises(ValueError, match="one row per node"):
        verify_sampled_chain(chain, q, logits[:2], 1.0, generator)
    with pytest.raises(ValueError, match=r"node 1: token 1 has q = 0\.0"):
        verify_sampled_chain(chain, torch.eye(4)[:1].expand(2, 4), logits, 1.0, generator)
    with pytest.raises(ValueError, match="node 0 has a NaN"):
        verify_sampled_chain(chain, q, logits * math.nan, 1.0, generator)
    with pytest.raises(ValueError, match="budget must be >= 0"):
        draw_chain(q.log(), -1, 0, 1.0, generator)
    with pytest.raises(ValueError, match="row 0: log_probs holds NaN"):
        draw_chain(q * math.nan, 2, 0, 1.0, generator)
