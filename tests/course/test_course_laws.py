"""The course's toys and its counted laws: by hand, against the library, and with verifiers that are wrong."""

import itertools
import re
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from tevlib.course.by_hand import BY_HAND, tev
from tevlib.course.draft_step import draft_step
from tevlib.course.enumeration import MOST_DRAWS, NoAnswer, verifier_law
from tevlib.course.toy import exercise_toy, lecture_toy, toy
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.verifiers import VERIFIERS

TOYS = {"lecture": lecture_toy(), "exercise": exercise_toy()}


def close(got, expected):
    got, expected = (torch.as_tensor(values, dtype=torch.float64) for values in (got, expected))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_the_lecture_toy_by_hand():
    """Tree in builder order, and w in fractions: .5 * .3, .3, .5 * .6, .5 * .1, and .2 at the root."""
    found = TOYS["lecture"]
    assert found.paths == ["cat", "cat sat", "cat ran", "cat sat on", "cat sat to"]
    w = [Fraction(1, 5), Fraction(3, 20), Fraction(3, 10), Fraction(3, 10), Fraction(1, 20)]
    assert sum(w) == 1
    close(found.law.w, [float(part) for part in w])
    assert float(found.law.coverage) == pytest.approx(1.15)


def test_the_exercise_toy_by_hand():
    """Seven nodes; the node with most P is not the one with most w, on which exercise 7 rests."""
    found = TOYS["exercise"]
    assert found.paths[-1] == "return x + x" and len(found.tree) == 7
    close(found.law.w, [0.2, 0.05, 0.12, 0.15, 0.3, 0.09, 0.09])
    assert float(found.law.coverage) == pytest.approx(1.43)
    assert int(found.law.P[1:].argmax()) != int(found.law.w[1:].argmax())


def test_the_handout_s_numbers_are_the_lecture_toy_s():
    """Every row of the handout's table, path, P, rho, w and depth, is what the library computes; the figures exist."""
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "handout.md").read_text(encoding="utf-8")
    figures = re.findall(r'<img src="(\S+)" alt="[^"]+" width="\d+">', page)
    assert len(figures) == 3 and all((docs / figure).is_file() for figure in figures)
    printed = re.findall(r"^\| (cat[\w ]*) \| (\S+) \| (\S+) \| (\S+) \| (\d) \|$", page, re.MULTILINE)
    found = TOYS["lecture"]
    computed = zip(found.paths, found.law.P, found.law.rho, found.law.w, found.tree.depths, strict=True)
    assert printed == [(path, f"{P:.2f}", f"{rho:.2f}", f"{w:.2f}", f"{depth}") for path, P, rho, w, depth in computed]
    assert f"= {float(found.law.coverage):.2f}" in page


def test_a_bad_toy_is_refused():
    """A word outside the vocabulary and a row that is no law are named."""
    with pytest.raises(ValueError, match=r"after 'a': 'c' is not in the vocabulary"):
        toy({"a": {"c": 1.0}, "b": {"a": 1.0}}, [{"a": 1.0}], 1)
    with pytest.raises(ValueError, match=r"draft at depth 1: the probabilities sum to 0.9"):
        toy({"a": {"a": 1.0}}, [{"a": 0.9}], 1)


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize("verifier", BY_HAND)
def test_verifiers_by_hand_have_the_canonical_law(name, verifier):
    """Corollaries 1 and 2 without sampling: exit law w, residual bonus, acceptance P, and the target's text."""
    found = TOYS[name]
    law = verifier_law(BY_HAND[verifier], found.tree, found.probs)
    close(law.exits, found.law.w)
    close(law.accepted, found.law.P)
    assert law.mean_accepted == pytest.approx(float(found.law.coverage))
    close(law.emitted(found.probs), found.law.P[:, None] * found.probs)
    for node in range(len(found.tree)):
        bonus = [law.joint.get((node, token), 0.0) for token in range(len(found.vocabulary))]
        close(bonus, found.law.w[node] * found.law.residual(node))


@pytest.mark.parametrize("verifier", BY_HAND)
def test_children_that_hold_all_mass(verifier):
    """Nothing exits where the children hold all mass, and rounding does not make a draw without weights."""
    tree = DraftTree([0, 1, 2, 3], [-1, 0, 0, 0])
    probs = torch.tensor([[0.0, 0.1, 0.2, 0.7]] + [[0.25] * 4] * 3, dtype=torch.float64)
    assert verifier_law(BY_HAND[verifier], tree, probs).exits[0] == 0


@pytest.mark.parametrize("verifier", BY_HAND)
def test_by_hand_and_library_agree(verifier):
    """2,000 verdicts of the library's verifier of the same name lie within 4 standard errors of the counted law."""
    found = TOYS["exercise"]
    law = verifier_law(BY_HAND[verifier], found.tree, found.probs)
    generator, plays = torch.Generator().manual_seed(0), 2000
    counts = torch.zeros(len(found.tree), dtype=torch.float64)
    for _ in range(plays):
        counts[VERIFIERS[verifier](found.tree, found.probs.log(), 1.0, generator).node] += 1
    error = (law.exits * (1 - law.exits) / plays).sqrt()
    assert bool(((counts / plays - law.exits).abs() <= 4 * error).all())


def test_draws_are_counted():
    """TEV makes two draws whatever comes; predraw one per node; the residual tests depend on the data."""
    found = TOYS["exercise"]
    assert verifier_law(tev, found.tree, found.probs).draws == 2
    assert verifier_law(BY_HAND["predraw"], found.tree, found.probs).draws == len(found.tree)


def first_token_only(tree, probs, draw):
    return 0, draw(probs[0])


def bonus_from_the_full_row(tree, probs, draw):
    node = draw(exit_law(tree, probs=probs).w)
    return node, draw(probs[node])


def test_what_is_emitted_is_prolonged_by_the_target():
    """A verifier that accepts nothing and draws from p is exact; its bonus tokens that are drafted count as text."""
    found = TOYS["exercise"]
    law = verifier_law(first_token_only, found.tree, found.probs)
    assert law.mean_accepted == 0
    close(law.emitted(found.probs), found.law.P[:, None] * found.probs)


def test_emitted_text_equals_enumeration():
    """For a wrong verifier too: the law of the first three tokens, block prolonged by the target, path by path."""
    found = TOYS["exercise"]
    law = verifier_law(bonus_from_the_full_row, found.tree, found.probs)
    size = len(found.vocabulary)
    emitted = law.emitted(found.probs)
    for node in range(len(found.tree)):
        for token in range(size):
            wanted, total = [*found.tree.path(node), token], 0.0
            for (exit_node, bonus), p in law.joint.items():
                block = [*found.tree.path(exit_node), bonus]
                if block[: len(wanted)] == wanted:
                    total += p
                elif block == wanted[: len(block)]:
                    for a, b in itertools.pairwise(wanted[len(block) - 1 :]):
                        p *= float(found.next_token[a, b])
                    total += p
            assert total == pytest.approx(float(emitted[node, token]), abs=1e-12)


def test_bad_verifiers_are_refused():
    """No answer, an answer on some draws only, a node or token that is none, bad weights, and no end."""
    found = TOYS["lecture"]

    def law(verifier):
        return verifier_law(verifier, found.tree, found.probs)

    with pytest.raises(NoAnswer):
        law(lambda tree, probs, draw: ...)
    with pytest.raises(ValueError, match="nothing on some of its draws"):
        law(lambda tree, probs, draw: (0, 0) if draw([1, 1]) == 0 else None)
    with pytest.raises(ValueError, match="node 5 is not in a tree of 5"):
        law(lambda tree, probs, draw: (5, 0))
    with pytest.raises(ValueError, match="token 6 is outside the vocabulary of 6"):
        law(lambda tree, probs, draw: (0, 6))
    with pytest.raises(ValueError, match=r"returns \(node, bonus\); got 3"):
        law(lambda tree, probs, draw: 3)
    with pytest.raises(ValueError, match="at least one weight above 0"):
        law(lambda tree, probs, draw: (0, draw([0.0, 0.0])))
    with pytest.raises(ValueError, match=r"finite weights >= 0; got -0\.5"):
        law(lambda tree, probs, draw: (0, draw([1.0, -0.5])))
    with pytest.raises(ValueError, match=f"more than {MOST_DRAWS} times"):
        law(lambda tree, probs, draw: [draw([1.0]) for _ in range(MOST_DRAWS + 1)])
    with pytest.raises(ValueError, match="more than 20000 outcomes"):
        law(lambda tree, probs, draw: (0, [draw([1, 1]) for _ in range(15)][-1]))


def test_a_draft_step_is_the_gradient_of_the_weighted_likelihood():
    """The rows after a step are autograd's on the sum of Eq. 14, at the tree's total exit weight."""
    found = TOYS["exercise"]
    weights = torch.rand(len(found.tree), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits = found.draft.log().requires_grad_(True)
    spent = weights[1:] * found.law.w[1:].sum() / weights[1:].sum()
    rows = logits.log_softmax(-1)
    loss = -(spent * rows[found.tree.depths[1:] - 1, found.tree.tokens[1:]]).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    close(draft_step(found, weights, 2.0).draft, (logits.detach() - 2.0 * gradient).softmax(-1))
    close(draft_step(found, 7 * weights, 2.0).draft, draft_step(found, weights, 2.0).draft)


def test_bad_weights_are_refused():
    """Weights of another size, negative ones, and none at all outside the root."""
    found = TOYS["exercise"]
    for weights, says in (([1.0], "one per node"), ([-1.0] * 7, ">= 0"), ([1.0] + [0.0] * 6, "not all 0")):
        with pytest.raises(ValueError, match=says):
            draft_step(found, weights, 1.0)
