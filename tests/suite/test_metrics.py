"""The numbers of a cell, held against values worked out by hand."""

import math
import random

import pytest

from tevlib.suite.metrics import (
    audit_z,
    audit_z_paired,
    bootstrap,
    speedup,
    speedup_references,
    summarise,
    tau,
    tau_pooled,
)


def row(lengths=(2,), ceilings=None, **changed):
    """One answer whose rounds have the given block lengths and ceilings (the lengths themselves by default)."""
    ceilings = lengths if ceilings is None else ceilings
    tokens = changed.get("tokens", 1 + sum(lengths))
    return {
        "id": "p/1", "turn": 0, "repeat": 0, "status": "ok", "ar_tokens": 11, "ar_s": 1.0, "ar_prefill_s": 0.5,
        "tokens": tokens, "spec_s": 0.5, "prefill_s": 0.5, "stage_s": {"draft": 0.2, "verify": 0.1},
        "rounds": len(lengths), "lengths": sum(lengths), "emitted": max(tokens - 1, 0), "ceilings": sum(ceilings),
        "squares": sum((a - b) ** 2 for a, b in zip(lengths, ceilings, strict=True)), "nodes": 17 * len(lengths),
        "variances": 0.25 * len(lengths), "exits": [0.5 * len(lengths)] * 2, "oracle_rounds": 0, "oracle_coverage": 0,
        "oracle_reached": 0,
    } | changed  # fmt: skip


def test_mean_of_means_and_pooled_tau_are_told_apart():
    """One round of 10 and nine of 2: mean of the answers' means 6.0, tokens over rounds 2.8, both named."""
    rows = [row([10]), row([2] * 9, id="p/2")]
    assert tau(rows) == 6.0
    assert tau_pooled(rows) == pytest.approx(2.8)


def test_tau_counts_the_bonus_and_every_round():
    """Exits at depth 3, 0 and 2: tau = (4 + 1 + 3) / 3 with the bonus, 5/3 accepted drafts without."""
    found = summarise([row([4, 1, 3])])
    assert found["tau"] == found["tau_pooled"] == pytest.approx(8 / 3)
    assert found["accepted_drafts"] == pytest.approx(5 / 3)


def test_headline_speedup_is_a_ratio_of_totals():
    """Plain 20 and 20 ms, tree 4 and 20 ms per token: 1.67 by totals, never the 3.0 of a mean of ratios."""
    rows = [
        row(ar_tokens=2, ar_s=0.020, tokens=2, spec_s=0.004),
        row(ar_tokens=2, ar_s=0.020, tokens=2, spec_s=0.020, id="p/2"),
    ]
    assert speedup(rows) == pytest.approx(40 / 24)
    assert speedup_references(rows) == pytest.approx(40 / 24)


def test_long_answers_weigh_more_in_the_headline_only():
    """The headline pools tokens; the references' ratio averages seconds per token over answers."""
    rows = [
        row(ar_tokens=101, ar_s=10.0, tokens=101, spec_s=5.0),
        row(ar_tokens=2, ar_s=0.1, tokens=2, spec_s=0.1, id="p/2"),
    ]
    assert speedup(rows) == pytest.approx((10.1 / 101) / (5.1 / 101))
    assert speedup_references(rows) == pytest.approx((10 / 101 + 0.05) / (5 / 101 + 0.05))


def test_unequal_lengths_do_not_bend_the_speedup():
    """Answers that stop at different lengths (T > 0): seconds per token, not seconds, are compared."""
    assert speedup([row(ar_tokens=101, ar_s=10.0, tokens=51, spec_s=2.5)]) == pytest.approx(2.0)


def test_end_to_end_times_include_the_prefill():
    """The prefill is in the end-to-end ratio and not in the headline, for both methods."""
    found = summarise([row(ar_tokens=11, ar_s=1.0, ar_prefill_s=1.0, tokens=11, spec_s=0.5, prefill_s=1.0)])
    assert found["speedup"] == pytest.approx(2.0)
    assert found["speedup_end_to_end"] == pytest.approx(2.0 / 1.5)


def test_audit_z_is_the_gap_over_the_laws_own_error():
    """z = sum of (length - ceiling) over the root of the summed variances of the law."""
    parts = [row([1, 3], [1.5, 2.0]), row([2, 5, 1], [2.5, 3.0, 2.0])]
    assert audit_z(parts) == pytest.approx((12 - 11) / math.sqrt(5 * 0.25))


def test_audit_z_paired_is_the_paired_z_score():
    """z = mean of (length - ceiling) over its standard error with n - 1, worked out from the single rounds."""
    lengths, ceilings = [1, 3, 2, 5, 1], [1.5, 2.0, 2.5, 3.0, 2.0]
    gaps = [a - b for a, b in zip(lengths, ceilings, strict=True)]
    mean = sum(gaps) / 5
    deviation = math.sqrt(sum((g - mean) ** 2 for g in gaps) / 4)
    parts = [row(lengths[:2], ceilings[:2]), row(lengths[2:], ceilings[2:])]
    assert audit_z_paired(parts) == pytest.approx(mean / (deviation / math.sqrt(5)))


def test_rare_long_blocks_raise_no_alarm():
    """Fourteen blocks of 1 where one in a hundred is longer are no evidence: the sample variance, which has seen none
    of the rare ones, would cry out."""
    rows = [row([1] * 14, [1.01 + 0.001 * i for i in range(14)], variances=14 * 0.016)]
    assert abs(audit_z(rows)) < 1 < 3 < abs(audit_z_paired(rows))


def test_audit_catches_a_verifier_that_loses_mass():
    """Exits drawn from the law stay within 4 standard errors of the ceiling; a verifier that stops early does not."""
    generator = random.Random(0)
    ceiling = 1 + 0.6 + 0.3  # a chain of two nodes, each kept with the given probability
    exact, early = [], []
    for _ in range(4000):
        u = generator.random()
        exact.append(1 + (u < 0.6) + (u < 0.3))
        early.append(1 + (u < 0.6))
    variance = 0.3 * 2**2 + 0.3 * 1**2 - 0.9**2
    for z in (audit_z, audit_z_paired):
        assert abs(z([row(exact, [ceiling] * 4000, variances=4000 * variance)])) < 4
        assert z([row(early, [ceiling] * 4000, variances=4000 * variance)]) < -10


def test_audit_is_zero_at_temperature_zero():
    """Lengths that equal their ceilings up to float32 rounding give z = 0, not noise divided by noise."""
    lengths = [1, 3, 2, 4]
    rows = [row(lengths, [x - 3e-7 for x in lengths], variances=0.0)]
    assert audit_z(rows) == audit_z_paired(rows) == 0.0
    assert audit_z([row([], variances=0.0)]) is None and audit_z_paired([row([2], [1.5])]) is None


def test_audit_sees_a_wrong_greedy_verifier():
    """At T = 0 the law has no variance: one block that is a token short of its ceiling is a huge z."""
    assert audit_z([row([1, 3, 1], [1, 3, 2], variances=0.0)]) < -1000


def test_metrics_without_rounds_are_none_not_nan():
    """A first token that stops the answer leaves no round: tau, ceiling and speed-up are None, nothing divides by 0."""
    found = summarise([row([], ar_tokens=1, ar_s=0.0, spec_s=0.0, stage_s={})])
    assert found["tau"] is found["tau_pooled"] is found["ceiling"] is found["audit_z"] is found["speedup"] is None
    assert found["rounds"] == 0 and found["responses"] == 1


def test_failed_answers_are_counted_and_left_out():
    """A failed prompt's numbers enter no mean."""
    rows = [row([4]), {"id": "p/2", "turn": 0, "repeat": 0, "status": "failed", "error": "boom"}]
    found = summarise(rows)
    assert (found["tau"], found["responses"], found["failed_responses"]) == (4.0, 1, 1)


def test_intervals_resample_prompts_not_turns():
    """Turns and repeats of one prompt stay together: two prompts that agree give an interval of no width."""
    rows = [row([2], id=f"p/{p}", turn=t) | {"lengths": 2 + t} for p in range(2) for t in range(2)]
    assert summarise(rows)["tau_ci95"] == [2.5, 2.5]
    assert bootstrap([rows], tau) is None
    spread = bootstrap([[row([1])], [row([3])], [row([5])]], tau)
    assert 1.0 <= spread[0] < 3.0 < spread[1] <= 5.0
    assert spread == bootstrap([[row([1])], [row([3])], [row([5])]], tau), "not reproducible"


def test_stage_times_are_per_round():
    """Stage times are milliseconds per round over all rounds."""
    assert summarise([row([2, 2])])["stage_ms"] == pytest.approx({"draft": 100.0, "verify": 50.0})


def test_exits_are_averaged_over_rounds_whatever_their_depth():
    """Two rounds leaving (0.5, 0.5) and (1) by depth, one leaving (0, 0.4, 0.6): means 0.5, 0.3, 0.2; they sum to 1."""
    rows = [row([1, 1], exits=[1.5, 0.5]), row([3], id="p/2", exits=[0.0, 0.4, 0.6])]
    assert summarise(rows)["exits"] == pytest.approx([0.5, 0.3, 0.2])
    assert summarise([row((), tokens=1, exits=[])])["exits"] == []


def test_oracle_share_is_of_sums_over_the_rounds_that_have_one():
    """1 of 2 and 3 of 3 covered tokens: 4 / 5, not the mean of the ratios; without such a round there is none."""
    known = {"oracle_rounds": 1, "oracle_coverage": 2.0, "oracle_reached": 1.0}
    rows = [row(**known), row(id="p/2", oracle_rounds=1, oracle_coverage=3.0, oracle_reached=3.0), row(id="p/3")]
    assert summarise(rows)["oracle_share"] == pytest.approx(0.8) and summarise(rows)["oracle_rounds"] == 2
    assert summarise([row()])["oracle_share"] is None


def test_tokens_behind_a_stop_are_verified_and_not_emitted():
    """vllm#56101: a round that verifies [a, b, EOS, d, e] and a bonus has block length 6 and emits 3. tau counts the
    six, as the references do; speed counts what came out."""
    rows = [row([2, 6], tokens=1 + 2 + 3, emitted=5, ar_tokens=6, ar_s=1.0, spec_s=0.5)]
    found = summarise(rows)
    assert found["tau"] == found["tau_pooled"] == 4.0
    assert found["tokens"] == 6 and found["tokens_per_s"] == pytest.approx(5 / 0.5)
    assert found["speedup"] == pytest.approx((1.0 / 5) / (0.5 / 5))


def test_what_a_prefill_found_is_not_timed():
    """A prefill that leaves 4 tokens and 6 that 0.6 s of rounds emit: 10 tokens a second, not 9 / 0.6; end to end all
    ten count."""
    found = summarise([row([3, 3], tokens=10, emitted=6, ar_tokens=10, ar_s=1.8, spec_s=0.6)])
    assert found["tokens_per_s"] == pytest.approx(10.0) and found["speedup"] == pytest.approx((1.8 / 9) / 0.1)
    assert found["speedup_end_to_end"] == pytest.approx(2.3 / 1.1)


def test_all_rounds_count_not_the_last():
    """Exits at depths 5, 0, 0, 1: tau is (6 + 1 + 1 + 2) / 4, neither the last round's 2 nor the longest one's 6."""
    assert summarise([row([6, 1, 1, 2])])["tau"] == pytest.approx(2.5)


def test_the_first_draft_is_on_the_clock():
    """Both clocks start after the prefill: 0.1 s of a first draft in 0.4 s of decoding make 2.5 of what would be 3.3
    without it, and 1.5 / 0.9 end to end; both are reported, the references' tokens-per-output ratio beside them."""
    first_draft, rest = 0.1, 0.3
    found = summarise([row(ar_tokens=11, ar_s=1.0, tokens=11, spec_s=first_draft + rest, prefill_s=0.5)])
    assert [found["speedup"], found["speedup_references"]] == pytest.approx([2.5, 2.5])
    assert found["speedup_end_to_end"] == pytest.approx(1.5 / 0.9)


def test_a_mean_of_ratios_is_nowhere():
    """Plain 20 and 20 ms, tree 4 and 20 ms per token: no metric is the 3.0 that favours the lucky answer."""
    rows = [
        row(ar_tokens=2, ar_s=0.020, ar_prefill_s=0.0, tokens=2, spec_s=0.004, prefill_s=0.0),
        row(ar_tokens=2, ar_s=0.020, ar_prefill_s=0.0, tokens=2, spec_s=0.020, prefill_s=0.0, id="p/2"),
    ]
    found = summarise(rows)
    for name in ("speedup", "speedup_references", "speedup_end_to_end"):
        assert found[name] == pytest.approx(40 / 24), name
