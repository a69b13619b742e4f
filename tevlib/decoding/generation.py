"""What decoding leaves behind: a `Generation`, and a `Round` for every draft-verify cycle of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from tevlib.trees.draft_tree import DraftTree

STAGES = ("draft", "build", "verify", "decide", "commit")


@dataclass
class Round:
    """One draft-verify cycle: the tree, the target's flow through it, and what the verifier made of it.

    `P`, `w` `[N]` and `coverage` (C_p, tokens) are those of the law decoded from (temperature and filters applied).
    `length` is D + 1, accepted draft tokens and the bonus; `emitted` is what of it entered the output.
    """

    tree: DraftTree
    P: Tensor
    w: Tensor
    coverage: float
    path: list[int]
    bonus: int
    emitted: int = 0
    times: dict[str, float] = field(default_factory=dict)  # seconds by stage

    @property
    def length(self) -> int:
        return len(self.path)

    @property
    def ceiling(self) -> float:
        """1 + C_p: the expected `length` of any saturated exact verifier on this tree (Theorem 1)."""
        return 1 + self.coverage


@dataclass
class Generation:
    """What was decoded. `tokens` are the new ones, a stop token included; times are seconds.

    `stop_reason` is "stop", "length" (`max_new_tokens` reached) or "context" (the target's limit reached).
    """

    tokens: list[int]
    rounds: list[Round]
    stop_reason: str
    prefill_s: float
    decode_s: float
    measuring_s: float = 0.0  # before the prefill: timing rounds for an automatic budget, where none were timed before

    @property
    def stage_s(self) -> dict[str, float]:
        """Seconds by stage, summed over the rounds."""
        return {stage: sum(r.times.get(stage, 0.0) for r in self.rounds) for stage in STAGES}

    @property
    def tau(self) -> float | None:
        """Mean block length of this response, bonus included, over all its rounds; None if there was no round.

        Averaged over responses it is the tau of the published tables (`tau_of_responses`); `pooled_tau` weighs rounds.
        """
        return sum(r.length for r in self.rounds) / len(self.rounds) if self.rounds else None

    @property
    def ceiling(self) -> float | None:
        """Mean 1 + C_p over the rounds: the low-variance estimate of `tau`; None if there was no round."""
        return sum(r.ceiling for r in self.rounds) / len(self.rounds) if self.rounds else None


def tau_of_responses(generations: Iterable[Generation]) -> float:
    """Mean over responses of each response's mean block length: tau as the published tables report it."""
    taus = [g.tau for g in generations if g.rounds]
    if not taus:
        raise ValueError("no response has a draft-verify round: tau is undefined")
    return sum(taus) / len(taus)


def pooled_tau(generations: Iterable[Generation]) -> float:
    """Mean block length over all rounds of all responses: long responses weigh more than in `tau_of_responses`."""
    lengths = [r.length for g in generations for r in g.rounds]
    if not lengths:
        raise ValueError("no response has a draft-verify round: tau is undefined")
    return sum(lengths) / len(lengths)
