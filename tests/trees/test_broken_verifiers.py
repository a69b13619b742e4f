"""The law check has teeth: each of these plausible, wrong verifiers must fail it."""

import pytest
import torch
from tree_reference import assert_same_law, enumerate_law, exits_in_order, joint_law, log_rows, random_case

from tevlib.trees import verifiers
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.verifiers import Verdict

SHAPES = [[-1, 0], [-1, 0, 0], [-1, 0, 1], [-1, 0, 0, 1], [-1, 0, 0, 1, 2]]


def draw(weights):
    """An index drawn through the seam that the tests enumerate."""
    return int(verifiers.categorical(torch.as_tensor(weights, dtype=torch.float64), None))


def accepts(probability):
    probability = min(1.0, float(probability))
    return draw([1 - probability, probability]) == 1


def walk(tree, logits, acceptance, bonus_weights):
    """A child-by-child verifier with given acceptance(p, token, removed mass) and bonus_weights(p, child tokens)."""
    node = 0
    while True:
        p = logits[node].softmax(-1)
        removed, follow = 0.0, None
        tokens = [tree.token(child) for child in tree.children[node]]
        for child, token in zip(tree.children[node], tokens, strict=True):
            if accepts(acceptance(p, token, removed)):
                follow = child
                break
            removed += float(p[token])
        if follow is None:
            return Verdict(node, tree.node_path(node), draw(bonus_weights(p, tokens)))
        node = follow


def right_acceptance(p, token, removed):
    return p[token] / (1 - removed) if removed < 1 - 1e-12 else 0.0


def without(p, tokens):
    residual = p.clone()
    residual[tokens] = 0
    return residual if residual.sum() > 0 else p


def correct(tree, logits):
    """The same scaffold with the right rules, so that a failure is the rule's and not the scaffold's."""
    return walk(tree, logits, right_acceptance, without)


def softmax_of_a_point_mass(tree, logits):
    """min(1, p / q) with the drafter's softmax as q, although the tree was chosen without drawing from q."""
    q = torch.full_like(logits[0], 0.2 / max(1, logits.shape[-1] - 1))
    q[tree.token(1)] = 0.8

    def leftover(p, tokens):
        residual = (p - q).clamp(min=0) if tokens else p
        return residual if residual.sum() > 0 else p

    return walk(tree, logits, lambda p, token, removed: p[token] / q[token], leftover)


def divided_by_the_maximum(tree, logits):
    """Acceptance p / max p."""
    return walk(tree, logits, lambda p, token, removed: p[token] / p.max(), without)


def half_a_block_verifier(tree, logits):
    """Joint acceptance of whole prefixes, deepest first, but each tested with its own P and the token-wise residual."""
    law = exit_law(tree, logits)
    for node in reversed(range(1, len(tree))):
        if accepts(law.P[node]):
            break
    else:
        node = 0
    tokens = [tree.token(child) for child in tree.children[node]]
    return Verdict(node, tree.node_path(node), draw(without(logits[node].softmax(-1), tokens)))


def fresh_draw_after_rejection(tree, logits):
    """Right acceptance, but the bonus is a fresh draw from p, rejected tokens included."""
    return walk(tree, logits, right_acceptance, lambda p, tokens: p)


def no_renormalisation(tree, logits):
    """Later siblings are tested with p instead of p / (1 - rejected mass)."""
    return walk(tree, logits, lambda p, token, removed: p[token], without)


def residual_keeps_sibling_mass(tree, logits):
    """Only the last rejected child is taken out of the residual."""
    return walk(tree, logits, right_acceptance, lambda p, tokens: without(p, tokens[-1:]))


def exit_then_full_row(tree, logits):
    """TEV whose bonus comes from p_v: the residual keeps the children's mass."""
    node = draw(exit_law(tree, logits).w)
    return Verdict(node, tree.node_path(node), draw(logits[node].softmax(-1)))


def exit_then_parent_residual(tree, logits):
    """TEV that reads the bonus from the row of the exit's parent: off by one."""
    law = exit_law(tree, logits)
    node = draw(law.w)
    row = logits[max(0, tree.parent(node))].softmax(-1)
    return Verdict(node, tree.node_path(node), draw(without(row, [tree.token(c) for c in tree.children[node]])))


def shared_uniform(tree, logits):
    """TEV that uses one uniform for both draws. The uniform is drawn as the piece of [0, 1) between all CDF steps."""
    law = exit_law(tree, logits)

    def steps(weights):
        return weights.double().cumsum(0) / weights.double().sum()

    exits = steps(law.w)
    bonus = {node: steps(law.residual(node)) for node in range(len(tree)) if law.w[node] > 0}
    cuts = torch.cat([torch.zeros(1, dtype=torch.float64), exits, *bonus.values()]).unique()
    piece = draw(cuts.diff().clamp(min=0))
    u = (cuts[piece] + cuts[piece + 1]) / 2
    node = int(torch.searchsorted(exits, u, right=True))
    return Verdict(node, tree.node_path(node), int(torch.searchsorted(bonus[node], u, right=True)))


def pruned_by_score(tree, logits):
    """Follows only children more likely than their uncovered siblings: lossy 'typical' acceptance."""
    return walk(tree, logits, lambda p, token, removed: float(p[token] >= without(p, [token]).max()), without)


def descent(tree, logits, total, inside, bonus_weights):
    """TEV's descent with given total(children's masses, mass outside), new u inside(target, mass) and bonus weights."""
    node, u = 0, verifiers.uniform(None)
    while True:
        p = logits[node].softmax(-1)
        masses = [float(p[tree.token(child)]) for child in tree.children[node]]
        target = u * total(masses, 1 - sum(masses))
        for child, mass in zip(tree.children[node], masses, strict=True):
            if target < mass:
                node, u = child, inside(target, mass)
                break
            target -= mass
        else:
            tokens = [tree.token(child) for child in tree.children[node]]
            return Verdict(node, tree.node_path(node), draw(bonus_weights(p, tokens)))


def correct_descent(tree, logits):
    """The same scaffold with the right rules."""
    return descent(tree, logits, lambda masses, rest: 1.0, lambda target, mass: target / mass, without)


def u_is_not_rescaled(tree, logits):
    """The descent that takes the same u to the next node."""
    u = []

    def total(masses, rest):
        return 1.0

    def inside(target, mass):
        u.append(target)
        return u[0]

    return descent(tree, logits, total, inside, without)


def children_without_the_exit(tree, logits):
    """The descent that divides a node's interval among its children alone, wherever there are any."""
    return descent(tree, logits, lambda masses, rest: sum(masses) or 1.0, lambda target, mass: target / mass, without)


def descent_with_a_full_row(tree, logits):
    """The descent whose bonus comes from p_v."""
    return descent(tree, logits, lambda masses, rest: 1.0, lambda target, mass: target / mass, lambda p, tokens: p)


def mass_outside_with_the_children(tree, logits):
    """The descent that sums the whole row for the mass outside the children."""
    return descent(tree, logits, lambda masses, rest: 1 + sum(masses), lambda target, mass: target / mass, without)


def exit_without_what_was_reached(tree, logits):
    """TEV that draws the exit from rho instead of w = P rho."""
    law = exit_law(tree, logits)
    node = draw(law.rho * (law.P > 0))
    tokens = [tree.token(child) for child in tree.children[node]]
    return Verdict(node, tree.node_path(node), draw(without(logits[node].softmax(-1), tokens)))


BROKEN = [
    softmax_of_a_point_mass,
    divided_by_the_maximum,
    half_a_block_verifier,
    fresh_draw_after_rejection,
    no_renormalisation,
    residual_keeps_sibling_mass,
    exit_then_full_row,
    exit_then_parent_residual,
    shared_uniform,
    pruned_by_score,
    u_is_not_rescaled,
    children_without_the_exit,
    descent_with_a_full_row,
    mass_outside_with_the_children,
    exit_without_what_was_reached,
]


def check_exactness(verifier, monkeypatch):
    """The joint-law check of the production verifiers, on a few shapes; AssertionError for a verifier that is off."""
    for seed, parents in enumerate(SHAPES):
        tree, tokens, probs = random_case(parents, 4, seed + 40)

        def run(tree=tree, probs=probs):
            verdict = verifier(tree, log_rows(probs))
            return verdict.node, verdict.bonus

        pieces = [w for _, w in exits_in_order(tokens, parents, probs)]
        law = enumerate_law(run, monkeypatch, verifiers, (verifiers, "uniform"), pieces=pieces)
        assert_same_law(law, joint_law(tokens, parents, probs))


@pytest.mark.parametrize(
    "verifier",
    [
        correct,
        correct_descent,
        lambda tree, x: verifiers.tev_parallel(tree, x, 1.0, None),
        lambda tree, x: verifiers.tev_descent(tree, x, 1.0, None),
    ],
)
def test_right_rules_pass(verifier, monkeypatch):
    """The scaffold of the broken verifiers passes with the right rules, and so does TEV."""
    check_exactness(verifier, monkeypatch)


@pytest.mark.parametrize("verifier", BROKEN)
def test_broken_verifiers_fail(verifier, monkeypatch):
    """Each deliberately wrong verifier is caught by the joint-law check."""
    with pytest.raises(AssertionError, match=r"probability .* expected"):
        check_exactness(verifier, monkeypatch)


def test_point_mass_bias_in_numbers(monkeypatch):
    """p = [.6, .4] with q = [.8, .2] comes out as [.75, .25] (transformers#32867)."""
    tree, logits = DraftTree([0, 0], [-1, 0]), log_rows([[0.6, 0.4], [0.6, 0.4]])

    def first_token():
        verdict = softmax_of_a_point_mass(tree, logits)
        return [*tree.path(verdict.node), verdict.bonus][0]

    assert_same_law(enumerate_law(first_token, monkeypatch, verifiers), {0: 0.75, 1: 0.25})


def test_maximum_ratio_bias_in_numbers(monkeypatch):
    """p = [.5, .3, .2], child token 1: accepted with .6 instead of .3 (1bit-MONSTER#637)."""
    tree, logits = DraftTree([0, 1], [-1, 0]), log_rows([[0.5, 0.3, 0.2]] * 2)
    law = enumerate_law(lambda: divided_by_the_maximum(tree, logits).node, monkeypatch, verifiers)
    assert_same_law(law, {0: 0.4, 1: 0.6})
