"""Checks of the exercises that are done with a pencil: 1 to 3, and 6."""

from __future__ import annotations

import math

import torch

from tevlib.course.outcome import CLOSE, exercise, expect, given, near, number, numbers
from tevlib.course.toy import exercise_toy
from tevlib.trees.exit_law import exit_law

CHAIN_P = ((0.4, 0.6), (0.6, 0.4))
"""Target laws of exercise 6: two positions, tokens a and b, the second independent of the first."""

CHAIN_Q = ((0.8, 0.2), (0.3, 0.7))
"""Draft laws of exercise 6."""


@exercise(1)
def check_exit_law(w: object) -> str:
    """The `Outcome` of exercise 1: `w`, w(v) of every node of the exercise toy (Eqs. 2, 4)."""
    toy = exercise_toy()
    w = numbers(w, len(toy.tree), "w")
    leaf = torch.tensor([not children for children in toy.tree.children])
    mistakes = {
        "These are P(v), the mass that reaches each node; w(v) is the part of it that stops there.": toy.law.P,
        "These are rho(v), shares of what reaches each node; w(v) = P(v) rho(v).": toy.law.rho,
        "A leaf has no children to go to: all that reaches it leaves there, rho = 1.": toy.law.w.masked_fill(leaf, 0),
    }
    for says, wrong in mistakes.items():
        expect(not near(w, wrong), says)
    total = "" if abs(sum(w) - 1) <= CLOSE else f" Yours sum to {sum(w):.3g}."
    for node, (mine, right) in enumerate(zip(w, toy.law.w.tolist(), strict=True)):
        expect(near(mine, right), f"Look again at node {node}, '{toy.paths[node]}'.{total}")
    return "Every continuation leaves the tree exactly once, so the seven numbers sum to 1."


@exercise(2)
def check_coverage(coverage: object, coverage_after: object, exit_after: object) -> str:
    """The `Outcome` of exercise 2: C_p (Eq. 6), and without the leaf `return x + x` C_p and w at `return x +`."""
    toy = exercise_toy()
    leaf = len(toy.tree) - 1
    smaller = exit_law(toy.tree.prefix(leaf), probs=toy.probs[:leaf])
    coverage = number(coverage, "coverage")
    coverage_after, exit_after = number(coverage_after, "coverage_after"), number(exit_after, "exit_after")
    expect(not near(coverage, toy.law.ceiling), "That is the ceiling 1 + C_p: the root is no drafted token.")
    expect(
        near(coverage, toy.law.coverage), "C_p: sum P(u) over drafted nodes; check it with the sum of w(v) depth(v)."
    )
    expect(near(coverage_after, smaller.coverage), f"Which P(u) is no longer in the sum without '{toy.paths[leaf]}'?")
    expect(
        near(exit_after, smaller.w[toy.tree.parent(leaf)]),
        f"What went on to '{toy.paths[leaf]}' must now leave one node earlier.",
    )
    return f"C_p falls by the leaf's P, {float(toy.law.P[leaf]):.2f}, and its parent's w rises by as much."


@exercise(3)
def check_child_tests(second: object, second_swapped: object, residual: object, emitted_x: object) -> str:
    """The `Outcome` of exercise 3: tests of the second child at `return x` in both orders (Eq. 49), the residual law
    at the root (Eq. 7), and Pr(first token is x) of a verifier that draws its bonus from p instead.
    """
    toy = exercise_toy()
    second, second_swapped = number(second, "second"), number(second_swapped, "second_swapped")
    residual, emitted_x = numbers(residual, len(toy.vocabulary), "residual"), number(emitted_x, "emitted_x")
    x = toy.vocabulary.index("x")
    node = toy.tree.child(0, x)
    plus, semicolon = (float(toy.probs[node, toy.tree.token(child)]) for child in toy.tree.children[node])
    expect(
        not (near(second, semicolon) or near(second_swapped, plus)),
        "After a rejection the rejected token is out: divide by the mass that is left (Eq. 49).",
    )
    expect(near(second, semicolon / (1 - plus)), "`second`: p(;) over the mass that is left without + (Eq. 49).")
    expect(near(second_swapped, plus / (1 - semicolon)), "`second_swapped`: now + has what is left without ; .")
    expect(not near(residual, toy.probs[0]), "That is p at the root; its residual has no mass on drafted children.")
    expect(near(residual, toy.law.residual(0)), "`residual`: x and y get 0, the others are divided by rho (Eq. 7).")
    p_x, rho = float(toy.probs[0, x]), float(toy.law.rho[0])
    expect(not near(emitted_x, p_x), "An exact verifier would emit x with that probability. This one is not exact.")
    expect(near(emitted_x, p_x * (1 + rho)), "x comes out in two ways: accepted, or as the bonus after two rejections.")
    return f"Both orders follow + with probability {plus:.2f}. The wrong bonus turns {p_x:.2f} into {emitted_x:.2f}."


@exercise(6)
def check_sampled_chain(left: object, right: object, mean_left: object, mean_right: object, premise: object) -> str:
    """The `Outcome` of exercise 6: both sides of Eq. 55 for the chain (a, a), their means over the chain as it is
    drawn, and which premise of Theorem 1 a verifier of sampled chains does without ("A", "B" or "C").
    """
    left, right = number(left, "left"), number(right, "right")
    mean_left, mean_right = number(mean_left, "mean_left"), number(mean_right, "mean_right")
    premise = given(premise, "The numbers are read when `premise` is filled in too.")
    ratios = {(a, b): (CHAIN_P[0][a] / CHAIN_Q[0][a], CHAIN_P[1][b] / CHAIN_Q[1][b]) for a in (0, 1) for b in (0, 1)}
    by_position = {chain: math.prod(min(1.0, r) for r in both) for chain, both in ratios.items()}
    jointly = {chain: min(1.0, math.prod(both)) for chain, both in ratios.items()}
    drawn = {(a, b): CHAIN_Q[0][a] * CHAIN_Q[1][b] for a, b in ratios}
    means = [sum(drawn[chain] * side[chain] for chain in drawn) for side in (by_position, jointly)]
    expect(near(left, by_position[0, 0]), "`left`: clip each ratio p / q at 1, then multiply.")
    expect(near(right, jointly[0, 0]), "`right`: multiply the ratios, then clip once.")
    expect(near(mean_left, means[0]), "`mean_left`: over the four chains, each weighted with q, which draws them.")
    expect(near(mean_right, means[1]), "`mean_right`: the sum over the four chains of min(q(chain), p(chain)).")
    expect(premise in ("A", "B", "C"), f"`premise` is 'A', 'B' or 'C'; got {premise!r}.")
    expect(premise != "A", "Not A: (a, a) is in the tree, it is the whole tree.")
    expect(premise != "C", "Not C: where the block ends depends on the tokens so far and on coins, on nothing later.")
    return f"Before the chain is drawn: {means[0]:.2f} by position, at most {means[1]:.2f} jointly."
