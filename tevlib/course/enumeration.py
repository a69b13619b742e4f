"""The exact law of a verifier, by following every outcome of its draws; what it accepts and what it emits.

A verifier of the course is a function `(tree, probs, draw) -> (node, bonus)`: it takes all its randomness from
`draw(weights)`, which returns an index with probability proportional to the weights. That seam is what lets the law
be counted instead of estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree

Draw = Callable[[Iterable[float]], int]
Verifier = Callable[[DraftTree, Tensor, Draw], tuple[int, int]]

MOST_PATHS = 20_000
MOST_DRAWS = 200  # on one path: a verifier that draws more is taken to walk in circles


class NoAnswer(Exception):
    """The function returned nothing on any path: it is still to be written."""


@dataclass(frozen=True, eq=False)
class VerifierLaw:
    """What a verifier does on one tree, exactly: `joint` {(exit node, bonus): probability} and its most `draws`."""

    tree: DraftTree
    joint: dict[tuple[int, int], float]
    draws: int

    @property
    def exits(self) -> Tensor:
        """[N] float64 probability of each exit node, Pr(V = v)."""
        exits = torch.zeros(len(self.tree), dtype=torch.float64)
        for (node, _), p in self.joint.items():
            exits[node] += p
        return exits

    @property
    def accepted(self) -> Tensor:
        """[N] float64 probability that each node is on the accepted path: its exits summed over the subtree."""
        return self.tree.ancestors.double().T @ self.exits

    @property
    def mean_accepted(self) -> float:
        """E[D]: expected number of accepted draft tokens (Eq. 34)."""
        return float(self.accepted[1:].sum())

    def emitted(self, probs: Tensor) -> Tensor:
        """[N, V] probability that the text runs through each node and goes on with each token.

        The text is the emitted block, prolonged by the target where it ends inside the tree, as the next round does.
        The verifier is exact (Eq. 3) just when this is P(v) p_v(a) everywhere.
        """
        flow = torch.zeros(len(self.tree), probs.shape[-1], dtype=torch.float64)
        ended = torch.zeros(len(self.tree), dtype=torch.float64)  # blocks that ended with this node's prefix, or above
        for (node, bonus), p in self.joint.items():
            flow[node, bonus] += p
        for node in range(1, len(self.tree)):
            parent, token = self.tree.parent(node), self.tree.token(node)
            ended[node] = flow[parent, token] + ended[parent] * probs[parent, token]
            flow[parent, token] += self.accepted[node]
        return flow + ended[:, None] * probs


def verifier_law(verifier: Verifier, tree: DraftTree, probs: Tensor) -> VerifierLaw:
    """The `VerifierLaw` of `verifier` on `tree` with target laws `probs` [N, V], by running it once per outcome.

    Raises NoAnswer when it returns None or `...` at once, and ValueError when a draw has no weight or a bad one, when
    what is returned is no node and token, and when there are too many draws or outcomes to follow.
    """
    joint: dict[tuple[int, int], float] = {}
    pending: list[tuple[int, ...]] = [()]
    runs = draws = 0
    while pending:
        path = _Path(pending.pop())
        found = verifier(tree, probs, path.draw)
        if found is None or found is ...:
            if runs == 0:
                raise NoAnswer
            raise ValueError("the verifier returned nothing on some of its draws; it must return (node, bonus) on all")
        outcome = _outcome(found, tree, probs.shape[-1])
        joint[outcome] = joint.get(outcome, 0.0) + path.probability
        pending += path.others
        draws = max(draws, len(path.taken))
        runs += 1
        if runs > MOST_PATHS:
            raise ValueError(f"the verifier has more than {MOST_PATHS} outcomes on a tree of {len(tree)} nodes")
    return VerifierLaw(tree, joint, draws)


class _Path:
    """One run: takes the scripted outcomes of its first draws, then the first possible ones, and notes the others."""

    def __init__(self, script: tuple[int, ...]):
        self.script, self.taken, self.others, self.probability = script, (), [], 1.0

    def draw(self, weights: Iterable[float]) -> int:
        row = torch.as_tensor(weights, dtype=torch.float64).flatten().tolist()
        if bad := [weight for weight in row if not (weight >= 0 and math.isfinite(weight))]:
            raise ValueError(f"draw() needs finite weights >= 0; got {bad[0]}")
        support = [index for index, weight in enumerate(row) if weight > 0]
        if not support:
            raise ValueError(f"draw() needs at least one weight above 0; got {row}")
        if len(self.taken) == MOST_DRAWS:
            raise ValueError(f"the verifier drew more than {MOST_DRAWS} times without coming to an end")
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice = support[0]
            self.others += [(*self.taken, other) for other in support[1:]]
        self.taken += (choice,)
        self.probability *= row[choice] / math.fsum(row)
        return choice


def _outcome(found: object, tree: DraftTree, vocabulary: int) -> tuple[int, int]:
    """`found` as an exit node and a bonus token; ValueError where it is neither."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ValueError(f"a verifier returns (node, bonus); got {found!r}")
    node, bonus = (int(part) for part in found)
    if not 0 <= node < len(tree):
        raise ValueError(f"exit node {node} is not in a tree of {len(tree)} nodes")
    if not 0 <= bonus < vocabulary:
        raise ValueError(f"bonus token {bonus} is outside the vocabulary of {vocabulary}")
    return node, bonus
