"""Every exercise's check: the right answer passes, each typical wrong one is caught with its own words."""

import pytest
import torch

from tevlib.course.by_hand import predraw, sequential_residual, tev
from tevlib.course.outcome import Outcome, score
from tevlib.course.pencil import check_child_tests, check_coverage, check_exit_law, check_sampled_chain
from tevlib.course.programs import check_builder, check_tev, check_unsaturated, check_weights
from tevlib.trees.exit_law import exit_law

W = [0.2, 0.05, 0.12, 0.15, 0.3, 0.09, 0.09]
RESIDUAL = [0, 0, 0, 0, 0.75, 0.25]
MOVED = [0.4, -0.025, -0.06, -0.075, -0.15, -0.045, -0.045]


def full_row(tree, probs, draw):
    node = draw(exit_law(tree, probs=probs).w)
    return node, draw(probs[node])


def exit_by_reach(tree, probs, draw):
    law = exit_law(tree, probs=probs)
    node = draw(law.P)
    return node, draw(law.residual(node))


def coin(tree, probs, draw):
    return tev(tree, probs, draw) if draw([1, 1]) else (0, draw(probs[0]))


def never_deep(tree, probs, draw):
    token = draw(probs[0])
    child = tree.child(0, token)
    return (0, token) if child is None else (child, draw(probs[child]))


def second_thoughts(tree, probs, draw):
    """Takes the last accepted token back and draws there again: it may not, having seen what came."""
    node, bonus = tev(tree, probs, draw)
    if node and draw([1, 1]):
        return tree.parent(node), draw(probs[tree.parent(node)])
    return node, bonus


def peeking(tree, probs, draw):
    """Gives the last accepted token back as a bonus, knowing that the next one is not drafted: no stopping time."""
    node, bonus = tev(tree, probs, draw)
    return (tree.parent(node), tree.token(node)) if node and draw([1, 1]) else (node, bonus)


def coin_with_residual(tree, probs, draw):
    if draw([1, 1]):
        return tev(tree, probs, draw)
    law = exit_law(tree, probs=probs)
    return 0, draw(law.residual(0) if law.rho[0] > 0 else probs[0])


def by_gain(law, budget):
    """The right builder: always the prefix of largest P next."""
    chosen, open_ = [], [(p, (token,)) for token, p in enumerate(law(()))]
    while len(chosen) < budget:
        p, path = max(open_)
        open_.remove((p, path))
        chosen.append(path)
        open_ += [(p * q, (*path, token)) for token, q in enumerate(law(path))]
    return chosen


def widest(law, budget):
    return [(token,) for token in range(min(budget, len(law(()))))]


def deepest(law, budget):
    path = ()
    paths = []
    for _ in range(budget):
        row = law(path)
        path = (*path, row.index(max(row)))
        paths.append(path)
    return paths


RIGHT = [
    (1, check_exit_law, (W,)),
    (1, check_exit_law, (torch.tensor(W),)),
    (2, check_coverage, (1.43, 1.34, 0.21)),
    (3, check_child_tests, (0.75, 0.86, RESIDUAL, 0.6)),
    (4, check_tev, (tev,)),
    (5, check_unsaturated, (coin, MOVED)),
    (6, check_sampled_chain, (0.5, 1.0, 0.42, 0.6, "B")),
    (7, check_weights, (1, 4, [0.05, 0.3], lambda law: law.w)),
    (8, check_builder, (by_gain,)),
]
WRONG = [
    (1, check_exit_law, ([1, 0.5, 0.3, 0.15, 0.3, 0.09, 0.09],), "These are P(v)"),
    (1, check_exit_law, ([0.2, 0.1, 0.4, 1, 1, 1, 1],), "These are rho(v)"),
    (1, check_exit_law, ([0.2, 0.05, 0.12, 0, 0, 0, 0],), "rho = 1"),
    (1, check_exit_law, ([0.2, 0.05, 0.12, 0.15, 0.3, 0.3, 0.09],), "node 5, 'return x + y'. Yours sum to 1.21"),
    (1, check_exit_law, (W[:-1],), "list of 7 numbers"),
    (1, check_exit_law, ("W",), "list of 7 numbers"),
    (1, check_exit_law, (["a"] * 7,), "must be a number; got 'a'"),
    (2, check_coverage, (2.43, 2.34, 0.21), "the ceiling"),
    (2, check_coverage, (1.4, 1.34, 0.21), "sum P(u)"),
    (2, check_coverage, (1.43, 1.43, 0.21), "no longer in the sum"),
    (2, check_coverage, (1.43, 1.34, 0.12), "one node earlier"),
    (3, check_child_tests, (0.3, 0.6, RESIDUAL, 0.6), "divide by the mass that is left"),
    (3, check_child_tests, (0.43, 0.86, RESIDUAL, 0.6), "`second`"),
    (3, check_child_tests, (0.75, 0.67, RESIDUAL, 0.6), "`second_swapped`"),
    (3, check_child_tests, (0.75, 0.86, [0, 0.5, 0.3, 0, 0.15, 0.05], 0.6), "That is p at the root"),
    (3, check_child_tests, (0.75, 0.86, [0, 0, 0, 0, 0.15, 0.05], 0.6), "divided by rho"),
    (3, check_child_tests, (0.75, 0.86, RESIDUAL, 0.5), "This one is not exact"),
    (3, check_child_tests, (0.75, 0.86, RESIDUAL, 0.7), "in two ways"),
    (4, check_tev, (full_row,), "Not exact"),
    (4, check_tev, (exit_by_reach,), "Not exact"),
    (4, check_tev, (coin,), "Exact, but"),
    (4, check_tev, (predraw,), "up to 7 draws"),
    (4, check_tev, (sequential_residual,), "takes two"),
    (4, check_tev, (lambda tree, probs, draw: (99, 0),), "exit node 99 is not in a tree"),
    (5, check_unsaturated, (tev, W), "accepted with all of its P"),
    (5, check_unsaturated, (never_deep, W), "accepted with all of its P"),
    (5, check_unsaturated, (lambda tree, probs, draw: (0, draw(probs[0])), W), "never accepted"),
    (5, check_unsaturated, (second_thoughts, MOVED), "Not exact"),
    (5, check_unsaturated, (peeking, MOVED), "Not exact"),
    (5, check_unsaturated, (coin_with_residual, MOVED), "Not exact"),
    (5, check_unsaturated, (coin, [0, 0.25, 0.15, 0.075, 0.15, 0.045, 0.045]), "Eq. 36"),
    (5, check_unsaturated, (coin, [-part for part in MOVED]), "other sign"),
    (5, check_unsaturated, (coin, [0.0] * 7), "moves other mass"),
    (6, check_sampled_chain, (1.0, 1.0, 0.42, 0.6, "B"), "`left`"),
    (6, check_sampled_chain, (0.5, 0.5, 0.42, 0.6, "B"), "`right`"),
    (6, check_sampled_chain, (0.5, 1.0, 0.44, 0.6, "B"), "`mean_left`"),
    (6, check_sampled_chain, (0.5, 1.0, 0.42, 1.0, "B"), "`mean_right`"),
    (6, check_sampled_chain, (0.5, 1.0, 0.42, 0.6, "A"), "Not A"),
    (6, check_sampled_chain, (0.5, 1.0, 0.42, 0.6, "C"), "Not C"),
    (6, check_sampled_chain, (0.5, 1.0, 0.42, 0.6, "b"), "got 'b'"),
    (7, check_weights, (0, 4, [0.05, 0.3], lambda law: law.w), "number of a drafted node, 1 to 6; got 0"),
    (7, check_weights, (2, 4, [0.05, 0.3], lambda law: law.w), "`most_prefix`: node 2 has 0.30"),
    (7, check_weights, (1, 1, [0.05, 0.05], lambda law: law.w), "`most_exit`: node 1 has 0.05"),
    (7, check_weights, (1, 4, [0.5, 0.3], lambda law: law.w), "`missing`, node 1"),
    (7, check_weights, (1, 4, [0.05, 0.3], lambda law: law.P), "pay where mass leaves"),
    (7, check_weights, (1, 4, [0.05, 0.3], lambda law: torch.ones(7)), "pay where mass leaves"),
    (7, check_weights, (1, 4, [0.05, 0.3], lambda law: -law.w), "weights must be >= 0"),
    (7, check_weights, (1, 4, [0.05, 0.3], lambda law: law.w[1:]), "one per node"),
    (8, check_builder, (widest,), "can be had"),
    (8, check_builder, (deepest,), "One more node"),
    (8, check_builder, (lambda law, budget: by_gain(law, budget - 1),), "would add"),
    (8, check_builder, (lambda law, budget: by_gain(law, budget + 1),), "for a budget of 4"),
    (8, check_builder, (lambda law, budget: [(1, 2)],), "Not a tree"),
    (8, check_builder, (lambda law, budget: [()],), "drafted prefixes only"),
    (8, check_builder, (lambda law, budget: [(1,), (1,)],), "listed twice"),
    (8, check_builder, (lambda law, budget: [(77,)],), "Tokens are 0 to 5; got 77"),
]
OPEN = [
    (1, check_exit_law, (...,), ""),
    (1, check_exit_law, (None,), ""),
    (1, check_exit_law, ([0.2, ..., ..., ..., ..., ..., ...],), ""),
    (2, check_coverage, (1.43, ..., ...), ""),
    (3, check_child_tests, (..., ..., ..., ...), ""),
    (4, check_tev, (lambda tree, probs, draw: ...,), ""),
    (4, check_tev, (lambda tree, probs, draw: None,), ""),
    (5, check_unsaturated, (lambda tree, probs, draw: ..., ...), ""),
    (5, check_unsaturated, (coin, ...), "`moved` is open"),
    (6, check_sampled_chain, (..., ..., ..., ..., ...), ""),
    (6, check_sampled_chain, (0.5, 1.0, 0.42, 0.6, ...), "`premise`"),
    (7, check_weights, (..., ..., ..., lambda law: ...), ""),
    (7, check_weights, (1, 4, [0.05, 0.3], lambda law: ...), "`my_weights` is open"),
    (8, check_builder, (lambda law, budget: ...,), ""),
]


@pytest.mark.parametrize(("exercise", "check", "answers"), RIGHT)
def test_right_answers_pass(exercise, check, answers):
    """The answer by hand, rounded to two digits, is right, and the check says what it shows."""
    found = check(*answers)
    assert (found.exercise, found.right) == (exercise, True), found
    assert found.says and "right" in repr(found)


@pytest.mark.parametrize(("exercise", "check", "answers", "says"), WRONG)
def test_wrong_answers_are_caught(exercise, check, answers, says):
    """A wrong answer is not right, and the check points at what is wrong with it."""
    found = check(*answers)
    assert (found.exercise, found.right) == (exercise, False), found
    assert says in found.says


@pytest.mark.parametrize(("exercise", "check", "answers", "says"), OPEN)
def test_open_answers_are_open(exercise, check, answers, says):
    """Dots or None, also in place of a part or a function's value, are no error and no wrong answer."""
    found = check(*answers)
    assert (found.exercise, found.right) == (exercise, None), found
    assert says in found.says and "not answered yet" in repr(found)


def test_every_exercise_has_wrong_answers_here():
    """No check is left without a wrong answer that it catches."""
    assert {row[0] for row in WRONG} == {row[0] for row in RIGHT} == {row[0] for row in OPEN} == set(range(1, 9))


def test_errors_of_the_reader_s_own_code_are_not_hidden():
    """A bug in the reader's function shows as Python's own error, with its traceback."""
    with pytest.raises(ZeroDivisionError):
        check_tev(lambda tree, probs, draw: (0, 1 / 0))


def test_score_counts_right_ones_only():
    """Open and wrong answers are listed and not counted."""
    text = score([Outcome(1, True, "Yes."), Outcome(2, False, "Look."), Outcome(3, None)])
    assert text.splitlines()[-1] == "1 of 3 right"
    assert text.splitlines()[:3] == [
        "Exercise 1: right. Yes.", "Exercise 2: not right yet. Look.", "Exercise 3: not answered yet.",
    ]  # fmt: skip
