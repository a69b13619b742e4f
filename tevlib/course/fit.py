"""Whether counts fit a law: the chi-square test, with rare outcomes taken together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Fit:
    """The chi-square `statistic` of counts against a law, its degrees of `freedom`, and the p-value."""

    statistic: float
    freedom: int
    p: float


def chi_square(counts: Tensor, law: Tensor, least: float = 5.0) -> Fit:
    """The `Fit` of `counts` [K] to the probabilities `law` [K].

    Outcomes that are expected fewer than `least` times are taken together, the rarest first, until the group has that
    much. The p-value is 0 where an outcome of probability 0 was seen, and 1 where only one group is left. Raises
    ValueError for shapes that differ and for counts that are all 0.
    """
    counts, law = (torch.as_tensor(values, dtype=torch.float64) for values in (counts, law))
    if counts.shape != law.shape or counts.ndim != 1:
        raise ValueError(f"counts and law must be vectors of one length; got {tuple(counts.shape)}, {tuple(law.shape)}")
    n = counts.sum()
    if not n > 0:
        raise ValueError("a fit needs at least one count")
    if bool((counts[law == 0] > 0).any()):
        return Fit(float("inf"), 0, 0.0)
    expected, order = (n * law / law.sum()).sort()
    counts = counts[order]
    # The rare ones together: at least all below `least`, and more until the group itself is large enough.
    together = int((expected < least).sum())
    while 0 < together < len(expected) and expected[:together].sum() < least:
        together += 1
    if together > 1:
        expected = torch.cat([expected[:together].sum().view(1), expected[together:]])
        counts = torch.cat([counts[:together].sum().view(1), counts[together:]])
    freedom = len(expected) - 1
    if freedom == 0:
        return Fit(0.0, 0, 1.0)
    statistic = ((counts - expected) ** 2 / expected).sum()
    p = torch.special.gammaincc(torch.tensor(freedom / 2, dtype=torch.float64), statistic / 2)
    return Fit(float(statistic), freedom, float(p))
