"""Rounds of different trees on one text, so that what differs is the trees and not the luck of the draws."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.rows import Rows
from tevlib.trees.verdict import Verdict
from tevlib.trees.verifiers import tev


class SameText:
    """A verifier whose answer is `text`, token ids drawn before from the target behind the same prompt at the same T.

    The exit is the deepest node whose path is a piece of the text, the bonus the token after it. Over texts drawn from
    the target that is predraw's law, so TEV's too (Theorem 1): rounds start where they start in free decoding, and
    give as many tokens in the mean. TEV judges the round first, for what it costs; past the end of the text its bonus
    stands. At T = 0 too, where a pass of another size rounds otherwise and a near tie turns the text.
    """

    def __init__(self, text: Sequence[int]):
        self.text, self.root = text, 0  # place of the root's token

    def __call__(self, tree: DraftTree, rows: Tensor | Rows, temperature: float, generator: torch.Generator) -> Verdict:
        bonus = tev(tree, rows, temperature, generator).bonus
        path = [0]
        for token in self.text[self.root + 1 :]:
            child = tree.child(path[-1], token)
            if child is None:
                bonus = token
                break
            path.append(child)
        self.root += len(path)
        return Verdict(path[-1], path, bonus)
