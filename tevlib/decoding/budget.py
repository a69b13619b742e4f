"""How many draft tokens a round is worth: the budget that `budget="auto"` chooses, round by round.

A builder's tree of a smaller budget is a prefix of its tree of a larger one, so a round drafts more nodes than it will
need and keeps the best B of them. What B nodes bring is the drafter's own coverage, the sum of exp(score) over them,
times a factor that the rounds so far have earned: nodes accepted over nodes expected. What they cost is read from a
`CostCurve` measured on this machine.

**Which B.** Tokens a second over a whole answer is a ratio of sums over rounds, sum(tokens) / sum(seconds), and the
best ratio is not made of the best ratio of every round: a poor round would be given too large a tree to make up for its
fixed cost. With R the best rate that any rule reaches, sum(tokens - R * seconds) is at most 0 for every rule and 0 for
the best one (Dinkelbach); it is largest when every round's own term is. So each round takes the B that maximises
tokens(B) - R * seconds(B): R is the price of a second. R is not known, and the rate of the rounds so far stands in for
it, in the first round the best rate of that round alone. A rule that maximises against a rate that some rule reaches
reaches at least that rate, so the estimate climbs to R.

**Exactness.** B depends on the drafter's rows of this round, on the rounds before it and on the curve, never on the
target's rows of this round. The tree is then as fixed as any other when the target judges it, and every exact verifier
keeps its law (Theorem 1). For a tree whose tokens were *drawn* from the drafter that is not enough: their law given the
B that was chosen is no longer the drafter's. A sampled chain takes no automatic budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.verifiers import Verdict

AUTO = "auto"
LARGEST = {"cpu": 64, "cuda": 256}  # where a pass costs what its rows cost, and where rows are nearly free
SIZES = (0, 1, 3, 5, 7, 9, 11, 15, 19, 23, 31, 64, 96, 128, 192, 256)  # draft nodes that are timed
REPEATS = 6
OFTEN = 23  # larger sizes, which few rounds keep on a CPU and which take most of the time there, every third turn
SPARE = 8
PRIOR = 8.0  # expected nodes: how long the drafter is believed before its record counts for more


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a whole round, draft to commit, by the number of draft nodes. `measured_s`: what measuring took.

    Raises `ValueError` unless sizes ascend from 0 and every one has a positive time.
    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    measured_s: float = 0.0

    def __post_init__(self):
        ascending = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        if not self.sizes or self.sizes[0] != 0 or not ascending:
            raise ValueError(f"sizes of a cost curve ascend from 0, got {self.sizes}")
        if len(self.seconds) != len(self.sizes) or not all(second > 0 for second in self.seconds):
            raise ValueError(f"a cost curve needs a positive time for each of {self.sizes}, got {self.seconds}")

    def table(self, largest: int) -> list[float]:
        """Seconds [largest + 1] for 0 .. `largest` nodes: never falling, between sizes along a line, then level on."""
        seconds = never_falling(self.seconds)
        table = []
        upper = 0
        for nodes in range(largest + 1):
            while upper < len(self.sizes) and self.sizes[upper] < nodes:
                upper += 1
            if upper == 0 or upper == len(self.sizes):
                table.append(seconds[min(upper, len(seconds) - 1)])
                continue
            low, high = self.sizes[upper - 1], self.sizes[upper]
            share = (nodes - low) / (high - low)
            table.append((1 - share) * seconds[upper - 1] + share * seconds[upper])
        return table


class FixedBudget:
    """`largest` nodes in every round."""

    def __init__(self, largest: int):
        self.largest = self.drafts = largest

    def cut(self, tree: DraftTree) -> DraftTree:
        return tree

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Nothing to learn."""


class Ladder:
    """Cuts the trees of successive rounds to all `SIZES` up to `largest` in turn: what a cost curve is measured with.

    Turns go up and down alternately, so that a growing context favours no size.
    """

    def __init__(self, largest: int):
        self.largest = self.drafts = largest
        sizes = [size for size in SIZES if size < largest] + [largest]
        self.steps: list[int] = []
        for turn in range(REPEATS):
            timed = [size for size in sizes if size <= OFTEN or turn % 3 == 0]
            self.steps += timed[::-1] if turn % 2 else timed
        self.taken = 0

    @property
    def left(self) -> int:
        """Rounds still to come."""
        return len(self.steps) - self.taken

    def cut(self, tree: DraftTree) -> DraftTree:
        size = self.steps[self.taken]
        self.taken += 1
        return tree.prefix(min(size + 1, len(tree)))

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Nothing to learn: times are with the rounds."""


def curve_of(timed: Iterable[tuple[int, float]], measured_s: float = 0.0) -> CostCurve:
    """The `CostCurve` of rounds timed as (draft nodes, seconds): the shortest time of each size.

    Whatever disturbs a round, a first use or another program, only adds to its time; a median of few keeps some of it,
    and one size that looks dear sends every round past it.
    """
    shortest: dict[int, float] = {}
    for nodes, seconds in timed:
        shortest[nodes] = min(seconds, shortest.get(nodes, seconds))
    sizes = tuple(sorted(shortest))
    return CostCurve(sizes, tuple(shortest[size] for size in sizes), measured_s)


class AutoBudget:
    """The budget of one answer's rounds: `cut` each tree, then `observe` what became of it. Costs microseconds.

    largest: the most nodes that a round can keep. It drafts `drafts` of them: twice what the last round kept and some,
    so that a tree can grow and a small one is not cut from a large one each time.
    """

    def __init__(self, curve: CostCurve, largest: int):
        self.curve, self.largest, self.drafts = curve, largest, largest
        self.cost = curve.table(largest)
        self.expected, self.accepted = PRIOR, PRIOR
        self.tokens = self.seconds = 0.0
        self._coverage = 0.0

    @property
    def factor(self) -> float:
        """Accepted over expected draft tokens so far: below 1 where the drafter is too sure of itself."""
        return self.accepted / self.expected

    @property
    def rate(self) -> float | None:
        """Tokens a second, by the curve and the calibrated coverage of the rounds so far; None before the first."""
        return self.tokens / self.seconds if self.seconds else None

    def cut(self, tree: DraftTree) -> DraftTree:
        """The prefix of `tree` that is worth most; looks at its scores, at nothing of the target's."""
        if len(tree) == 1:
            coverage = [0.0]
        else:
            coverage = cumulative(tree.scores.exp().tolist())
        expected = [1 + self.factor * drafted for drafted in coverage]
        rate = self.rate or max(tokens / cost for tokens, cost in zip(expected, self.cost, strict=False))
        budget = choose_budget(expected, self.cost, rate)
        self._coverage = coverage[budget]
        self.drafts = min(self.largest, 2 * budget + SPARE)
        self.tokens += expected[budget]
        self.seconds += self.cost[budget]
        return tree if budget == len(tree) - 1 else tree.prefix(budget + 1)

    def observe(self, tree: DraftTree, verdict: Verdict) -> None:
        """Count what the verifier accepted of the tree that `cut` returned last."""
        self.expected += self._coverage
        self.accepted += len(verdict.path) - 1


Budget = FixedBudget | Ladder | AutoBudget


def choose_budget(expected: Sequence[float], cost: Sequence[float], rate: float) -> int:
    """The smallest B that maximises expected[B] - rate * cost[B]; see the module on why.

    expected: tokens of a round with the best B nodes, for B = 0, 1, ...; cost: its seconds, for as many or more.
    """
    worth = [tokens - rate * seconds for tokens, seconds in zip(expected, cost, strict=False)]
    return worth.index(max(worth))


def cumulative(probabilities: Sequence[float]) -> list[float]:
    """Sums over the draft nodes 1 .. B for B = 0, 1, ...: the expected accepted tokens of the best B nodes (Eq. 6)."""
    sums = [0.0]
    for probability in probabilities[1:]:
        sums.append(sums[-1] + probability)
    return sums


def never_falling(values: Sequence[float]) -> list[float]:
    """The closest never-falling sequence to `values` in squares: neighbours that fall are pooled (isotonic fit)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        pools.append((value, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (a, n), (b, m) = pools[-2:]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [mean for mean, n in pools for _ in range(n)]
