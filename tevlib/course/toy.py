"""Trees that one can do by hand: a target that looks at the last token only, and a drafter's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tevlib.trees.builders import best_first_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import ExitLaw, exit_law


@dataclass(frozen=True, eq=False)
class Toy:
    """A vocabulary of words, a target, a drafter, and the draft tree that best-first makes of the drafter's rows.

    next_token: [V, V] float64, row a is the target's law after token a. draft: [H, V] float64 draft laws, row d for
    depth d + 1, one row for all nodes of a depth. The root is token 0.
    """

    vocabulary: tuple[str, ...]
    next_token: Tensor
    draft: Tensor
    budget: int

    @cached_property
    def tree(self) -> DraftTree:
        """The `DraftTree` of the `budget` best prefixes under `draft`."""
        return best_first_tree(self.draft.log(), self.budget, 0)

    @cached_property
    def probs(self) -> Tensor:
        """[N, V] target laws at the nodes of `tree` (Eq. 1)."""
        return self.rows(self.tree)

    @cached_property
    def law(self) -> ExitLaw:
        """The exit law of `tree`."""
        return exit_law(self.tree, probs=self.probs)

    @property
    def words(self) -> list[str]:
        """The word of every node of `tree`."""
        return [self.vocabulary[token] for token in self.tree.tokens.tolist()]

    @property
    def paths(self) -> list[str]:
        """The words from the root to every node of `tree`, the root's own included."""
        return [" ".join(self.words[step] for step in self.tree.node_path(node)) for node in range(len(self.tree))]

    def rows(self, tree: DraftTree) -> Tensor:
        """[N, V] target laws at the nodes of any tree over this vocabulary."""
        return self.next_token[tree.tokens]


def toy(target: Mapping[str, Mapping[str, float]], draft: Sequence[Mapping[str, float]], budget: int) -> Toy:
    """The `Toy` whose vocabulary is the keys of `target`, the first of them the root; absent words have probability 0.

    Raises ValueError for a word outside the vocabulary and for a row that does not sum to 1, naming it.
    """
    words = tuple(target)
    next_token = torch.stack([_row(words, row, f"the target after {word!r}") for word, row in target.items()])
    rows = torch.stack([_row(words, row, f"the draft at depth {d}") for d, row in enumerate(draft, start=1)])
    return Toy(words, next_token, rows, budget)


def lecture_toy() -> Toy:
    """The toy of the lecture: five nodes, C_p = 1.15, and a node that the drafter likes and the target does not."""
    target = {
        "cat": {"sat": 0.5, "ran": 0.3, "on": 0.05, "to": 0.05, ".": 0.1},
        "sat": {"on": 0.6, "to": 0.1, "ran": 0.1, ".": 0.2},
        "ran": {"to": 0.5, "on": 0.2, ".": 0.3},
        "on": {"cat": 0.2, "to": 0.3, ".": 0.5},
        "to": {"cat": 0.4, ".": 0.6},
        ".": {"cat": 0.8, ".": 0.2},
    }
    draft = [
        {"sat": 0.6, "ran": 0.3, "on": 0.05, ".": 0.05},
        {"on": 0.45, "to": 0.4, ".": 0.15},
    ]
    return toy(target, draft, budget=4)


def exercise_toy() -> Toy:
    """The toy of the exercises: seven nodes, C_p = 1.43."""
    target = {
        "return": {"x": 0.5, "y": 0.3, "0": 0.15, ";": 0.05},
        "x": {"+": 0.6, ";": 0.3, "y": 0.1},
        "y": {";": 0.9, "+": 0.1},
        "+": {"0": 0.4, "x": 0.3, "y": 0.3},
        "0": {";": 0.8, "+": 0.2},
        ";": {"return": 0.5, "x": 0.3, ";": 0.2},
    }
    draft = [
        {"x": 0.6, "y": 0.2, "0": 0.1, ";": 0.1},
        {"+": 0.5, ";": 0.35, "y": 0.15},
        {"y": 0.5, "x": 0.45, "0": 0.05},
    ]
    return toy(target, draft, budget=6)


def _row(words: tuple[str, ...], row: Mapping[str, float], where: str) -> Tensor:
    for word in row:
        if word not in words:
            raise ValueError(f"{where}: {word!r} is not in the vocabulary {words}")
    law = torch.tensor([row.get(word, 0.0) for word in words], dtype=torch.float64)
    if abs(float(law.sum()) - 1) > 1e-9:
        raise ValueError(f"{where}: the probabilities sum to {float(law.sum())}, not to 1")
    return law
