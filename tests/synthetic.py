"""Records without decoding, for tests of what happens to them."""

from tevlib.suite.metrics import summarise


def synthetic_record(cell, **changed):
    """A finished record's body for `cell` without decoding anything: three answers, numbers chosen by hand."""
    row = {
        "status": "ok", "turn": 0, "repeat": 0, "ar_tokens": 11, "ar_s": 1.0, "ar_prefill_s": 0.1, "tokens": 11,
        "spec_s": 0.5, "prefill_s": 0.1, "stage_s": {"draft": 0.1}, "rounds": 5, "lengths": 10, "emitted": 10,
        "ceilings": 10.5, "squares": 1.0, "variances": 2.0, "nodes": 85, "stop": "length", "ar_stop": "length",
        "exits": [2.0, 0.5, 2.5], "oracle_rounds": 1, "oracle_coverage": 2.5, "oracle_reached": 1.5,
    }  # fmt: skip
    responses = [row | {"id": f"p/{i}"} for i in range(3)]
    return {
        "hash": cell.hash12(), "cell": cell.fields(),
        "metrics": summarise(responses, resamples=50), "device": {"name": "a cpu", "threads": 2},
        "target": {"revision": "r1"}, "drafter": {"block_size": 4}, "provenance": {}, "wall_s": 1.0,
        "started_at": "2026-01-01T00:00:00+00:00", "responses": responses,
    } | changed  # fmt: skip
