"""What is kept of a decoded answer: one response row, and one row per draft-verify round. JSON-ready."""

from tevlib.decoding.decode import Generation, Round


def response_row(ar: Generation, spec: Generation) -> dict:
    """The numbers of one answer; `tevlib.suite.metrics` says what each is."""
    return {
        "status": "ok",
        "ar_tokens": len(ar.tokens),
        "ar_s": ar.decode_s,
        "ar_prefill_s": ar.prefill_s,
        "ar_stop": ar.stop_reason,
        "tokens": len(spec.tokens),
        "spec_s": spec.decode_s,
        "prefill_s": spec.prefill_s,
        "stop": spec.stop_reason,
        "stage_s": spec.stage_s,
        "rounds": len(spec.rounds),
        "lengths": sum(r.length for r in spec.rounds),
        "emitted": sum(r.emitted for r in spec.rounds),
        "ceilings": sum(r.ceiling for r in spec.rounds),
        "squares": sum((r.length - r.ceiling) ** 2 for r in spec.rounds),
        "variances": sum(length_variance(r) for r in spec.rounds),
        "nodes": sum(len(r.tree) for r in spec.rounds),
    }


def length_variance(cycle: Round) -> float:
    """Variance of the block length D + 1 of any saturated verifier on this round's tree: that of depth under w."""
    w, depths = cycle.w.double(), cycle.tree.depths.double()
    mean = (w * depths).sum()
    return float((w * (depths - mean) ** 2).sum())


def round_rows(spec: Generation) -> list[dict]:
    """One row per draft-verify round: length D + 1, emitted tokens, ceiling 1 + C_p, nodes, seconds by stage."""
    return [
        {
            "round": index,
            "length": r.length,
            "emitted": r.emitted,
            "ceiling": r.ceiling,
            "variance": length_variance(r),
            "nodes": len(r.tree),
            **{f"{stage}_s": seconds for stage, seconds in r.times.items()},
        }
        for index, r in enumerate(spec.rounds)
    ]
