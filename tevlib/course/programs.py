"""Checks of the exercises that are done with a few lines of Python: 4, 5, 7 and 8."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tevlib.course.draft_step import draft_step
from tevlib.course.enumeration import VerifierLaw, verifier_law
from tevlib.course.outcome import Wrong, exercise, expect, given, near, numbers
from tevlib.course.toy import Toy, exercise_toy, lecture_toy
from tevlib.trees.builders import oracle_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law

EXACT = 1e-9

STEP = 3.0
"""Size of the gradient step of exercise 7."""


@exercise(4)
def check_tev(verifier: Callable) -> str:
    """The `Outcome` of exercise 4: a verifier with the canonical law (Eq. 10) in at most two draws."""
    draws = 0
    for name, tree, probs in _cases():
        found = _exact_law(verifier, name, tree, probs)
        most = float(exit_law(tree, probs=probs).coverage)
        got = found.mean_accepted
        expect(got > most - EXACT, f"Exact, but on {name} it accepts {got:.2f} tokens of C_p = {most:.2f}.")
        draws = max(draws, found.draws)
    expect(draws <= 2, f"The law is right, but it takes up to {draws} draws. TEV takes two: the exit, then the bonus.")
    return "The canonical law, from one exit draw and one bonus draw."


@exercise(5)
def check_unsaturated(verifier: Callable, moved: object) -> str:
    """The `Outcome` of exercise 5: a verifier that is exact, accepts every drafted node sometimes and none as often
    as P; and `moved`, its Pr(V = v) - w(v) at each node of the exercise toy.
    """
    for name, tree, probs in _cases():
        found = _exact_law(verifier, name, tree, probs)
        share = found.accepted / exit_law(tree, probs=probs).P
        for node in range(1, len(tree)):
            expect(float(share[node]) < 1 - EXACT, f"Exact, but on {name} node {node} is accepted with all of its P.")
            expect(float(share[node]) > EXACT, f"Exact, but on {name} node {node} is never accepted; give it a chance.")
    toy = exercise_toy()
    moved = numbers(moved, len(toy.tree), "moved", so_far="The verifier is as asked; `moved` is open.")
    found = verifier_law(verifier, toy.tree, toy.probs)
    right = found.exits - toy.law.w
    expect(
        not near(moved, toy.law.P - found.accepted),
        "That is P(u) - Pr(u accepted), Eq. 36. `moved` is about where paths end: Pr(V = v) - w(v).",
    )
    expect(not near([-part for part in moved], right), "The other sign: positive where more leaves than has to.")
    expect(near(moved, right), f"The verifier is as asked, but it moves other mass. Yours sum to {sum(moved):.3g}.")
    lost, most = float(toy.law.coverage) - found.mean_accepted, float(toy.law.coverage)
    return f"Mass leaves too early: {lost:.2f} of the {most:.2f} draft tokens are not accepted, and no text is changed."


@exercise(7)
def check_weights(most_prefix: object, most_exit: object, missing: object, weights: Callable) -> str:
    """The `Outcome` of exercise 7: the drafted nodes of most prefix and of most exit weight, the coverage missing one
    step below each of the two (Eq. 13), and `weights(law) -> [N]` that trains as good a tree as exit weights do.
    """
    toy = exercise_toy()
    nodes = [_heaviest(most_prefix, toy.law.P, "most_prefix"), _heaviest(most_exit, toy.law.w, "most_exit")]
    missing = numbers(missing, 2, "missing")
    for node, mine in zip(nodes, missing, strict=True):
        expect(
            near(mine, toy.law.missing_mass(node)), f"`missing`, node {node}: what do all gains there sum to (Eq. 13)?"
        )
    found = given(weights(toy.law), "The numbers are right; `my_weights` is open.")
    mine, prefix, exits = (
        float(draft_step(toy, values, STEP).law.coverage) for values in (found, toy.law.P, toy.law.w)
    )
    report = (
        f"C_p {float(toy.law.coverage):.2f} before the step; after it {prefix:.2f} with P(v), {mine:.2f} with yours."
    )
    expect(mine > exits - EXACT, f"{report} {exits:.2f} can be had: pay where mass leaves, not where it passes.")
    return report


@exercise(8)
def check_builder(builder: Callable) -> str:
    """The `Outcome` of exercise 8: `builder(law, budget)` returns the prefixes of a tree of the largest coverage."""
    for toy, budget in _targets():
        found = given(builder(lambda path, toy=toy: toy.next_token[path[-1] if path else 0].tolist(), budget))
        tree = _tree_of(found, budget)
        known = len(toy.vocabulary)
        expect(max(tree.tokens) < known, f"Tokens are 0 to {known - 1}; got {int(max(tree.tokens))}.")
        law = exit_law(tree, probs=toy.rows(tree))
        best = oracle_tree(lambda tree, toy=toy: toy.rows(tree).log(), budget, 0, depth_limit=budget)
        got, most = float(law.coverage), float(exit_law(best, probs=toy.rows(best)).coverage)
        if got < most - EXACT:
            gain, node, token = max((float(law.one_step_gain(v, a)), v, a) for v, a in _missing(tree, toy))
            where = " ".join(toy.vocabulary[step] for step in [0, *tree.path(node)])
            raise Wrong(
                f"With {budget} nodes C_p = {got:.2f}, where {most:.2f} can be had. One more node, "
                f"'{toy.vocabulary[token]}' after '{where}', would add {gain:.2f} (Eq. 12)."
            )
    return "No tree of these budgets holds more of the target's mass."


def _exact_law(verifier: Callable, name: str, tree: DraftTree, probs: Tensor) -> VerifierLaw:
    """The law of `verifier`; Wrong where the text that it emits has not the target's law (Eq. 3)."""
    found = verifier_law(verifier, tree, probs)
    got = found.emitted(probs)
    wanted = exit_law(tree, probs=probs).P[:, None] * probs
    gap = (got - wanted).abs()
    node, token = divmod(int(gap.argmax()), probs.shape[-1])
    expect(
        float(gap[node, token]) <= EXACT,
        f"Not exact: on {name} token {token} after node {node} comes out with probability "
        f"{float(got[node, token]):.3f}, the target's is {float(wanted[node, token]):.3f}.",
    )
    return found


def _cases() -> list[tuple[str, DraftTree, Tensor]]:
    """Trees that verifiers are checked on, with a name and target laws; one of them has children that hold all mass."""
    lecture, exercises = lecture_toy(), exercise_toy()
    full = DraftTree([0, 1, 2, 1], [-1, 0, 0, 1])
    laws = torch.tensor([[0.0, 0.6, 0.4], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64)
    return [
        ("the exercise toy", exercises.tree, exercises.probs),
        ("the lecture toy", lecture.tree, lecture.probs),
        ("a tree whose first two children hold all mass", full, laws),
    ]


def _heaviest(answer: object, values: Tensor, name: str) -> int:
    """`answer` as a drafted node; Wrong unless it has the largest of `values` among them."""
    answer = given(answer)
    if not isinstance(answer, int) or not 1 <= answer < len(values):
        raise Wrong(f"`{name}` is the number of a drafted node, 1 to {len(values) - 1}; got {answer!r}.")
    best = float(values[1:].max())
    expect(
        float(values[answer]) > best - EXACT,
        f"`{name}`: node {answer} has {float(values[answer]):.2f}, one has {best:.2f}.",
    )
    return answer


def _targets() -> list[tuple[Toy, int]]:
    """Targets and budgets of exercise 8: both toys, and two random targets over five tokens."""
    found = [(lecture_toy(), 4), (exercise_toy(), 6)]
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        laws = torch.randn(5, 5, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
        found.append((Toy(tuple("abcde"), laws, laws[:1], 1), 8))
    return found


def _tree_of(paths: object, budget: int) -> DraftTree:
    """The `DraftTree` of these token paths; Wrong where they are no tree of at most `budget` drafted nodes."""
    found = sorted((tuple(int(token) for token in path) for path in paths), key=lambda path: (len(path), path))
    expect(() not in found, "List the drafted prefixes only; the empty one, the root, is there anyway.")
    expect(len(set(found)) == len(found), "A prefix is listed twice.")
    expect(len(found) <= budget, f"{len(found)} prefixes for a budget of {budget}.")
    node_of: dict[tuple[int, ...], int] = {(): 0}
    for path in found:
        expect(path[:-1] in node_of, f"Not a tree: it holds the prefix {path}, and not its parent {path[:-1]}.")
        node_of[path] = len(node_of)
    return DraftTree([0, *(path[-1] for path in found)], [-1, *(node_of[path[:-1]] for path in found)])


def _missing(tree: DraftTree, toy: Toy) -> list[tuple[int, int]]:
    """Every (node, token) that is no child in the tree."""
    return [(v, a) for v in range(len(tree)) for a in range(len(toy.vocabulary)) if tree.child(v, a) is None]
