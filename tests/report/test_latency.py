"""Table 3 from records: milliseconds and reductions beside the paper's, verdicts, nothing missing, nothing mixed."""

import pandas as pd
import pytest

from tevlib.report.build import build_table, printed, write_table
from tevlib.report.latency import TEV_FORMS, TIMED, latency_audit, latency_layout, latency_table

SUITES = ("mt_bench", "humaneval", "gsm8k", "math500")
TEV = ("this target", "0.6", "64", "TEV, parallel")


def outcome_of(suite, status="finished", record=None, ms=(3.0, 2.0, 1.0), **changed):
    """A latency cell's outcome; `ms` of predraw, sequential residual and TEV's parallel form; the others take 4."""
    cell = {
        "profile": "laptop", "table": "table3", "target": "t", "drafter": "data/drafters/base", "budget": 64,
        "temperature": 0.6, "suite": suite, "prompts": 1, "rounds": 2, "repeats": 1, "max_new_tokens": 8,
        "dtype": "float32", "seed": 0, "shape": "own",
    } | changed  # fmt: skip
    if status != "finished":
        return {"status": status, "cell": cell, "error": None}
    times = dict.fromkeys(TIMED, 4.0)
    times |= dict(zip(("predraw", "sequential_residual", "tev_parallel"), ms, strict=True))
    metrics = {f"{name}_ms": value for name, value in times.items()}
    metrics |= {f"{name}_ms_ci95": [0.99 * value, 1.01 * value] for name, value in times.items()}
    for form in TEV_FORMS:
        reduction = 100 * (1 - times[form] / ms[0])
        metrics |= {f"{form}_reduction": reduction, f"{form}_reduction_ci95": [reduction - 0.5, reduction + 0.5]}
    return {
        "status": status, "schema_version": 2, "hash": suite, "cell": cell,
        "metrics": metrics | {"rounds": 2, "nodes": 65.0, "internal": 9.0},
        "device": {"name": "a cpu", "threads": 2}, "target": {"revision": "r1"},
    } | (record or {})  # fmt: skip


def as_paper(suite, **changed):
    """A cell in the paper's setting, on its GPU."""
    device = {"name": "NVIDIA H20", "threads": None, "memory": 96 * 2**30}
    return outcome_of(suite, record={"device": device}, target="Qwen/Qwen3-4B", dtype="bfloat16", **changed)


def test_table_3_puts_the_paper_beside_ours():
    """Paper's milliseconds and reductions at its budgets and temperatures, ours below; a verifier that it has not
    stands alone; nothing off its hardware is judged."""
    table = latency_table([outcome_of(suite) for suite in SUITES])
    shown = latency_layout(table)
    assert shown.loc[(*TEV, "paper"), "HumanEval"] == "1.268 (-14.7%)"
    assert shown.loc[(*TEV, "ours"), "Average"] == "1.000 (-66.7%)"
    assert shown.loc[(*TEV, "ours - paper"), "GSM8K"] == "-0.193"
    assert (*TEV[:3], "Sequential residual", "paper") not in shown.index
    assert shown.loc[(*TEV, "ours"), "Verdict ms ±10%"] == "≠ different hardware"
    assert shown.loc[(*TEV[:3], "Sequential residual", "ours"), "Verdict ms ±10%"] == "— not in the paper"
    assert shown.loc[(*TEV[:3], "Predraw", "ours"), "Verdict reduction ±5"] == "—"
    assert "a cpu, 2 threads" in table.attrs["caption"]
    assert "(other: target, dtype, CPU)" in shown.attrs["notes"][0]


def test_milliseconds_and_reductions_are_judged_on_the_papers_gpu():
    """Near its times: a match; TEV's reduction outside although its milliseconds match; the sizes of a larger model
    replayed on another are never the paper's."""
    outcomes = [as_paper(suite, ms=(1.45, 1.3, 1.31)) for suite in SUITES]
    rows = latency_table(outcomes).set_index(["verifier", "suite"])
    assert set(rows.loc["predraw", "verdict_ms"]) == set(rows.loc["tev_parallel", "verdict_ms"]) == {"match"}
    assert rows.loc[("tev_parallel", "math500"), "verdict_reduction"] == "outside", "9.7% against 15.5%"
    shown = latency_layout(latency_table(outcomes))
    assert shown.loc[(*TEV, "ours"), "Verdict ms ±10%"] == "✓ match"
    assert shown.loc[(*TEV, "ours - paper"), "GSM8K"] == "+0.117 ✓"
    widened = latency_table([as_paper(suite, shape="qwen3_4b") for suite in SUITES])
    assert set(widened[widened["verifier"] == "tev_parallel"]["verdict_ms"]) == {"different hardware"}


def test_table_3_says_what_became_of_every_row():
    """A failed cell says so at every verifier and in the averages; not run likewise; no hole in any printed part."""
    outcomes = [outcome_of(suite, "failed" if suite == "gsm8k" else "finished") for suite in SUITES]
    outcomes += [outcome_of(suite, "not run", budget=128) for suite in SUITES]
    shown = latency_layout(latency_table(outcomes))
    for verifier in ("Predraw", "Predraw, lazy", "Sequential residual", "TEV, parallel", "TEV, descent"):
        line = ("this target", "0.6", "64", verifier, "ours")
        assert shown.loc[line, ["GSM8K", "Average", "Verdict ms ±10%"]].tolist() == ["failed", "failed", "! failed"]
        assert shown.loc[line, "MATH-500"] != "failed"
        assert shown.loc[("this target", "0.6", "128", verifier, "ours"), "Average"] == "not run"
    assert shown.loc[(*TEV, "paper"), "GSM8K"] == "1.193 (-17.3%)"
    assert shown.loc[(*TEV, "ours - paper"), "GSM8K"] == "—"
    audit = latency_audit(latency_table(outcomes))
    assert audit.loc[(*TEV, "GSM8K"), "ms"] == "failed" and audit.loc[(*TEV, "MT-Bench"), "ms 95%"] == "0.990..1.010"
    assert not any(part.isna().any().any() for part in (shown, audit))


MIXES = {
    "profile": {"profile": "paper"},
    "target": {"target": "u"},
    "rounds": {"rounds": 9},
    "dtype": {"dtype": "bfloat16"},
    "machine": {"record": {"device": {"name": "another cpu", "threads": 2}}},
    "schema_version": {"record": {"schema_version": 1}},
    "target revision": {"record": {"target": {"revision": "r2"}}},
}


@pytest.mark.parametrize("what", MIXES)
def test_mixed_latency_records_are_refused(what):
    """Times of another profile, target, machine or schema are not one table."""
    with pytest.raises(ValueError, match=f"table 3 needs one {what}"):
        latency_table([*(outcome_of(suite) for suite in SUITES), outcome_of("gsm8k", budget=128, **MIXES[what])])
    with pytest.raises(ValueError, match="at least one cell"):
        latency_table([])
    with pytest.raises(ValueError, match="two cells"):
        latency_table([outcome_of("gsm8k"), outcome_of("gsm8k")])


def test_all_files_of_table_3(tmp_path):
    """By its name like the others: CSV with tolerance and verdict for each cell, three printed forms with the audit."""
    table = build_table("table3", [outcome_of(suite) for suite in SUITES])
    assert list(printed(table)) == ["", "Audit"]
    csv, md, html, tex = write_table(table, tmp_path)
    again = pd.read_csv(csv)
    assert again.loc[again["verifier"] == "tev_parallel", "tolerance_ms"].tolist()[-1] == pytest.approx(0.1232)
    assert set(again["verdict_ms"]) == {"different hardware", "not in the paper"}
    for path in (md, html, tex):
        assert "66.7" in path.read_text() and "different hardware" in path.read_text()
