"""The numbers of a cell, from its response rows: block lengths, ceilings, speed-ups. Pure functions, no torch.

A response row is one answer (one turn of one prompt, in one repeat), decoded by both methods:

    id, turn, repeat    which answer; rows of one `id` are resampled together
    status              "ok" or "failed"; failed rows are counted and otherwise left out
    ar_tokens, ar_s, ar_prefill_s          autoregressive: tokens emitted, seconds
    tokens, spec_s, prefill_s, stage_s     speculative: the same, and seconds by stage
    rounds              draft-verify rounds of the answer
    lengths             sum over rounds of the block length D + 1, counted in full although a stop may cut the last one
    emitted             sum over rounds of the tokens that the output got
    ceilings            sum over rounds of 1 + C_p(T)
    squares             sum over rounds of (D + 1 - (1 + C_p))^2
    variances           sum over rounds of the exit law's own variance of D
    nodes               sum over rounds of the tree's size, root included
    exits               sums over rounds of w(v) by depth of v, root first
    oracle_rounds       rounds whose oracle tree was looked for; C_p summed over these of the oracle's trees
                        (oracle_coverage) and of the trees decoded with (oracle_reached)

One clock rule for both methods: the decode clock (`ar_s`, `spec_s`) starts right after the prefill, the first draft is
inside it, and it stops when the last token is known. The first token falls out of the prefill, so `ar_tokens - 1` and
`emitted` tokens are timed: all but the first, or but all that transformers' prompt lookup found in its prefill.
End-to-end times add the prefill.
"""

import math
from collections.abc import Sequence

import numpy as np

RESAMPLES = 2000
ROUNDING = 1e-5  # a mean difference below this is float32 noise, as at T = 0, where length and ceiling are equal


def summarise(responses: Sequence[dict], resamples: int = RESAMPLES) -> dict:
    """All metrics of a cell as a JSON-ready dict; a metric without data is None, never NaN.

    tau                  mean over responses of the response's mean block length (the references' and the paper's)
    tau_pooled           tokens over rounds, all rounds of the cell together
    ceiling              mean of 1 + C_p over all rounds: tau_pooled's expectation for a saturated verifier
    audit_z              see `audit_z`, and `audit_z_paired`
    speedup              headline: autoregressive seconds per token over speculative seconds per token, both in total
    speedup_references   ratio of mean seconds per output token, the free first token counted, as z-lab and DDTree do
    speedup_end_to_end   as `speedup`, prefill and first token included
    exits                mean w(v) by depth of v, root first: where the target's text leaves the trees
    oracle_share         C_p over that of the best trees of the same sizes, on the rounds that have one
    *_ci95               bootstrap interval [low, high] over prompts
    """
    rows = [row for row in responses if row["status"] == "ok"]
    decoded = [row for row in rows if row["rounds"]]
    rounds = sum(row["rounds"] for row in rows)
    groups = _by_prompt(rows)
    stages = sorted({stage for row in rows for stage in row["stage_s"]})
    return {
        "tau": tau(decoded),
        "tau_ci95": bootstrap(groups, tau, resamples),
        "tau_pooled": tau_pooled(decoded),
        "tau_pooled_ci95": bootstrap(groups, tau_pooled, resamples),
        "ceiling": _ratio(sum(row["ceilings"] for row in rows), rounds),
        "audit_z": audit_z(rows),
        "audit_z_paired": audit_z_paired(rows),
        "accepted_drafts": _ratio(sum(row["lengths"] for row in rows) - rounds, rounds),
        "speedup": speedup(rows),
        "speedup_ci95": bootstrap(groups, speedup, resamples),
        "speedup_references": speedup_references(rows),
        "speedup_end_to_end": speedup_end_to_end(rows),
        "tokens_per_s": _ratio(_total(rows, "emitted"), _total(rows, "spec_s")),
        "ar_tokens_per_s": _ratio(_plainly_timed(rows), _total(rows, "ar_s")),
        "stage_ms": {s: _ratio(1e3 * sum(row["stage_s"].get(s, 0.0) for row in rows), rounds) for s in stages},
        "nodes": _ratio(sum(row["nodes"] for row in rows), rounds),
        "exits": exits(decoded),
        "oracle_share": _ratio(_total(rows, "oracle_reached"), _total(rows, "oracle_coverage")),
        "oracle_rounds": _total(rows, "oracle_rounds"),
        "prompts": len(groups),
        "responses": len(rows),
        "failed_responses": len(responses) - len(rows),
        "rounds": rounds,
        "tokens": sum(row["tokens"] for row in rows),
        "ar_tokens": sum(row["ar_tokens"] for row in rows),
    }


def tau(rows: Sequence[dict]) -> float | None:
    """Mean over responses of the response's mean block length, bonus token included; unweighted."""
    means = [row["lengths"] / row["rounds"] for row in rows if row["rounds"]]
    return _ratio(sum(means), len(means))


def tau_pooled(rows: Sequence[dict]) -> float | None:
    """Mean block length over all rounds, bonus token included."""
    return _ratio(sum(row["lengths"] for row in rows), sum(row["rounds"] for row in rows))


def exits(rows: Sequence[dict]) -> list[float]:
    """Mean over all rounds of the target mass w(v) that leaves the tree at each depth, root first; sums to 1."""
    rounds = sum(row["rounds"] for row in rows)
    deepest = max((len(row["exits"]) for row in rows), default=0)
    return [sum(row["exits"][d] for row in rows if d < len(row["exits"])) / rounds for d in range(deepest)]


def audit_z(rows: Sequence[dict]) -> float | None:
    """Standard errors between the mean block length and the mean of its own ceiling 1 + C_p; None without a round.

    For a saturated verifier the differences (D + 1) - (1 + C_p) are martingale differences whose conditional variance
    is known: it is the exit law's. Their sum over the root of the summed variances is then close to standard normal
    however the rounds depend on each other, so |z| stays within about 3 (Theorem 1). Without meaning for the sampled
    chain, whose verifier looks at q.
    """
    n, gap = _gap(rows)
    if n == 0:
        return None
    return (
        gap / math.sqrt(max(sum(row["variances"] for row in rows), n * ROUNDING**2)) if abs(gap) > n * ROUNDING else 0.0
    )


def audit_z_paired(rows: Sequence[dict]) -> float | None:
    """As `audit_z` with the differences' sample variance: misled where long blocks are rare. None below 2 rounds."""
    n, gap = _gap(rows)
    if n < 2:
        return None
    variance = max(sum(row["squares"] for row in rows) / n - (gap / n) ** 2, ROUNDING**2) * n / (n - 1)
    return gap / math.sqrt(n * variance) if abs(gap) > n * ROUNDING else 0.0


def _gap(rows: Sequence[dict]) -> tuple[int, float]:
    """Number of rounds, and the sum over them of block length minus ceiling."""
    return sum(row["rounds"] for row in rows), sum(row["lengths"] - row["ceilings"] for row in rows)


def speedup(rows: Sequence[dict]) -> float | None:
    """Autoregressive seconds per timed token over speculative seconds per timed token, each over all rows."""
    slow = _ratio(_total(rows, "ar_s"), _plainly_timed(rows))
    fast = _ratio(_total(rows, "spec_s"), _total(rows, "emitted"))
    return _ratio(slow, fast)


def speedup_references(rows: Sequence[dict]) -> float | None:
    """Ratio of the methods' mean (over responses) seconds per output token, the free first token counted."""
    timed = [row for row in rows if row["tokens"] and row["ar_tokens"]]
    slow = sum(row["ar_s"] / row["ar_tokens"] for row in timed)
    return _ratio(slow, sum(row["spec_s"] / row["tokens"] for row in timed))


def speedup_end_to_end(rows: Sequence[dict]) -> float | None:
    """Ratio of seconds per token, prefill and first token included in both."""
    slow = _ratio(_total(rows, "ar_s") + _total(rows, "ar_prefill_s"), _total(rows, "ar_tokens"))
    fast = _ratio(_total(rows, "spec_s") + _total(rows, "prefill_s"), _total(rows, "tokens"))
    return _ratio(slow, fast)


def bootstrap(groups: Sequence[Sequence[dict]], metric, resamples: int = RESAMPLES) -> list[float] | None:
    """95% percentile interval [low, high] of `metric(rows)` when the groups (prompts) are drawn again; None for < 2."""
    if len(groups) < 2:
        return None
    draws = np.random.default_rng(0).integers(len(groups), size=(resamples, len(groups)))
    values = [metric([row for g in draw for row in groups[g]]) for draw in draws]
    known = [value for value in values if value is not None]
    return [float(q) for q in np.quantile(known, [0.025, 0.975])] if known else None


def _by_prompt(rows: Sequence[dict]) -> list[list[dict]]:
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["id"], []).append(row)
    return list(groups.values())


def _total(rows: Sequence[dict], key: str) -> float:
    return sum(row[key] for row in rows)


def _plainly_timed(rows: Sequence[dict]) -> int:
    return sum(max(row["ar_tokens"] - 1, 0) for row in rows)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None
