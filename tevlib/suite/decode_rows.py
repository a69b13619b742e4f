"""What is kept of a decoded answer: one response row, and one row per draft-verify round. JSON-ready."""

from tevlib.decoding.generation import Generation, Round


def response_row(ar: Generation, spec: Generation, oracle: dict[int, float]) -> dict:
    """The numbers of one answer; `tevlib.suite.metrics` says what each is. `oracle`: C_p of the best tree by round."""
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
        "exits": _added([exits_by_depth(r) for r in spec.rounds]),
        "oracle_rounds": len(oracle),
        "oracle_coverage": sum(oracle.values()),
        "oracle_reached": sum(spec.rounds[place].coverage for place in oracle),
    }


def exits_by_depth(cycle: Round) -> list[float]:
    """w(v) summed over the nodes of each depth, root first: where the target's own text leaves the tree. Sums to 1."""
    w, depths = cycle.w.double().cpu(), cycle.tree.depths.cpu()
    return w.new_zeros(int(depths.max()) + 1).index_add(0, depths, w).tolist()


def length_variance(cycle: Round) -> float:
    """Variance of the block length D + 1 of any saturated verifier on this round's tree: that of depth under w."""
    w, depths = cycle.w.double(), cycle.tree.depths.double()
    mean = (w * depths).sum()
    return float((w * (depths - mean) ** 2).sum())


def round_rows(spec: Generation, oracle: dict[int, float]) -> list[dict]:
    """One row per draft-verify round: length D + 1, emitted tokens, ceiling 1 + C_p, nodes, seconds by stage.

    `exits` is `exits_by_depth`; `oracle` the largest ceiling of a tree of this size, where it was looked for.
    """
    return [
        {
            "round": index,
            "length": r.length,
            "emitted": r.emitted,
            "ceiling": r.ceiling,
            "variance": length_variance(r),
            "nodes": len(r.tree),
            "exits": exits_by_depth(r),
            "oracle": 1 + oracle[index] if index in oracle else None,
            **{f"{stage}_s": seconds for stage, seconds in r.times.items()},
        }
        for index, r in enumerate(spec.rounds)
    ]


def _added(lists: list[list[float]]) -> list[float]:
    """Sums by position; shorter lists count as 0 beyond their end."""
    longest = max(map(len, lists), default=0)
    return [sum(values[i] for values in lists if i < len(values)) for i in range(longest)]
