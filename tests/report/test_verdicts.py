"""Verdicts: the paper's numbers are matched only in the paper's setting, within tolerances that are written down."""

import itertools

import pytest

from tests.report.test_tables import SUITES, cell, finished, metrics
from tevlib.report.build import write_table
from tevlib.report.files import markdown, styled
from tevlib.report.layout import layout
from tevlib.report.paper import paper_numbers, paper_value, tolerance
from tevlib.report.tables import decode_table
from tevlib.report.verdicts import SYMBOLS, judge, row_verdict

PROMPTS = {"mt_bench": 80, "humaneval": 164, "gsm8k": 128, "math500": 128}
H20 = {"name": "NVIDIA H20-96G", "threads": None, "memory": 96 * 2**30}
PAPER = {"profile": "paper", "target": "Qwen/Qwen3-4B", "budget": 64, "max_new_tokens": 2048}


def as_paper(suite, device=H20, role="original", verifier="tev", wide=0.01, add=0.0, **changed):
    """A finished cell of Table 4 in the paper's setting with the paper's own numbers, `add` more in tau."""
    where = {"role": role, "verifier": verifier}
    speedup, tau = (paper_value("table4", where, suite, metric) for metric in ("speedup", "tau"))
    found = metrics(speedup, tau + add, prompts=PROMPTS[suite], tau_ci95=[tau + add - wide, tau + add + wide])
    return finished(suite, record={"metrics": found, "device": device}, **PAPER | where | changed)


def verdicts(outcomes, metric="tau", name="table4"):
    return decode_table(name, outcomes).set_index("suite")[f"verdict_{metric}"]


def test_the_papers_own_numbers_match():
    """The paper's setting, GPU and numbers: every cell matches, the row says so, the difference carries the sign."""
    outcomes = [as_paper(suite) for suite in SUITES]
    assert set(verdicts(outcomes)) == set(verdicts(outcomes, "speedup")) == {"match"}
    shown = layout(decode_table("table4", outcomes)).loc["original (base)", "TEV"]
    assert shown.loc["ours", ("Verdict", "τ ±0.15")] == shown.loc["ours", ("Verdict", "SR ±4%")] == "✓ match"
    assert shown.loc["ours - paper", ("GSM8K", "τ")] == "+0.00 ✓"


def test_a_rehearsal_is_never_judged():
    """The paper's target, GPU and very numbers, from a profile that was rehearsed: neither match nor outside."""
    outcomes = [as_paper(suite, profile="paper-rehearsal") for suite in SUITES]
    assert set(verdicts(outcomes)) == set(verdicts(outcomes, "speedup")) == {"rehearsal"}
    table = decode_table("table4", outcomes)
    shown = layout(table).loc["original (base)", "TEV"]
    assert shown.loc["ours", ("Verdict", "τ ±0.15")] == "… rehearsal"
    assert any("random models" in note for note in layout(table).attrs["notes"])


def test_an_interval_that_reaches_the_tolerance_is_a_match():
    """0.3 above the paper with an interval of 0.1 is outside 0.15; with one of 0.2 it is a match; the tolerance is in
    the frame, relative for SR."""
    narrow = decode_table("table4", [as_paper(suite, add=0.3, wide=0.1) for suite in SUITES]).set_index("suite")
    assert set(narrow["verdict_tau"]) == {"outside"}
    assert narrow["tolerance_tau"].tolist() == [0.15] * 5
    assert narrow.loc["gsm8k", "tolerance_speedup"] == pytest.approx(0.04 * 5.51)
    wide = verdicts([as_paper(suite, add=0.3, wide=0.2) for suite in SUITES])
    assert set(wide[list(SUITES)]) == {"match"}
    assert wide["average"] == "outside", "four suites are steadier than one: half the width"
    shown = layout(decode_table("table4", [as_paper(suite, add=0.3, wide=0.2) for suite in SUITES]))
    assert shown.loc[("original (base)", "TEV", "ours"), ("Verdict", "τ ±0.15")] == "✗ outside in 1 of 5"
    assert shown.loc[("original (base)", "TEV", "ours - paper"), ("Average", "τ")] == "+0.30 ✗"


OTHERS = {
    "target": {"target": "SmolLM2-135M-Instruct"},
    "budget": {"budget": 32},
    "max_new_tokens": {"max_new_tokens": 64},
    "dtype": {"dtype": "float32"},
    "builder": {"builder": "opt_tree"},
    "CPU": {"device": {"name": "a cpu", "threads": 2}},
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_setting_is_not_judged(what):
    """Another target, budget, length, precision, builder or a CPU: no match however equal the numbers, nor outside
    however far; the note says what it is."""
    for add in (0.0, -5.0):
        outcomes = [as_paper(suite, add=add, **OTHERS[what]) for suite in SUITES]
        assert set(verdicts(outcomes)) == set(verdicts(outcomes, "speedup")) == {"different hardware"}
    notes = layout(decode_table("table4", outcomes)).attrs["notes"]
    assert notes == [f"≠ different hardware: not the paper's setting, so not judged (other: {what})."]


def test_fewer_prompts_are_not_judged():
    """Four prompts have an interval that reaches anything: too few to be held against the paper's 128."""
    outcomes = [as_paper(suite) for suite in SUITES]
    outcomes[2]["metrics"]["prompts"] = 4
    found = verdicts(outcomes)
    assert found["gsm8k"] == found["average"] == "different hardware" and found["math500"] == "match"


def test_times_are_judged_on_the_papers_gpu_only():
    """tau is judged on any GPU, SR on an H20 alone: an H200 is none."""
    other = H20 | {"name": "NVIDIA H200"}
    outcomes = [as_paper(suite, device=other) for suite in SUITES]
    assert set(verdicts(outcomes)) == {"match"}
    assert set(verdicts(outcomes, "speedup")) == {"different hardware"}


def test_the_profile_of_the_paper_on_a_laptop_is_not_judged():
    """The name of a profile makes nothing comparable: what was run does."""
    outcomes = [as_paper(suite, device={"name": "a cpu", "threads": 2}, profile="paper") for suite in SUITES]
    assert set(verdicts(outcomes)) == {"different hardware"}


def test_what_there_is_no_number_for():
    """Failed and not run come first, then rows of our own; a row is as grave as its gravest cell."""
    outcomes = [as_paper(suite) for suite in SUITES]
    outcomes[0] = {"status": "failed", "cell": outcomes[0]["cell"], "error": "boom"}
    assert verdicts(outcomes).to_dict() == {
        "mt_bench": "failed", "humaneval": "match", "gsm8k": "match", "math500": "match", "average": "failed",
    }  # fmt: skip
    outcomes[0] = {"status": "not run", "cell": outcomes[0]["cell"], "error": None}
    assert verdicts(outcomes)[["mt_bench", "average"]].tolist() == ["not run"] * 2
    own = [finished(suite, verifier="sequential_residual") for suite in SUITES]
    assert set(verdicts(own)) == {"not in the paper"}
    mixed = [*outcomes[1:], finished("my-prompts", **PAPER, record={"device": H20})]
    assert verdicts(mixed)["my-prompts"] == "not in the paper"
    assert judge("finished", None, 5.0, 0.1, True) == "failed", "no round was decoded"
    assert row_verdict(["match", "not run", "failed"]) == "! failed"
    assert row_verdict(["match", "not in the paper"]) == "✓ match"


def test_tolerances_tell_the_methods_apart():
    """On Qwen3-4B the tolerance of an average does not reach the next method's, in tau not even half way."""
    numbers = paper_numbers()
    assert set(numbers["tolerances"]) == {f"table{i}" for i in range(1, 6)}
    for name in ("table1", "table5"):
        rows = [row for row in numbers[name] if row.get("model", "Qwen3-4B") == "Qwen3-4B"]
        for metric, share in (("tau", 0.5), ("speedup", 1.0)):
            for row, other in itertools.permutations(rows, 2):
                if (row.get("budget"), row["temperature"]) == (other.get("budget"), other["temperature"]):
                    gap = abs(row[metric][-1] - other[metric][-1])
                    assert tolerance(name, metric, row[metric][-1]) < share * gap, (row, other)


def test_a_verdict_has_a_sign_and_a_colour(tmp_path):
    """In HTML the word, its sign and its colour; in LaTeX a macro for the sign; in Markdown the sign and the legend."""
    outcomes = [as_paper(suite, add=add) for suite, add in zip(SUITES, (0.0, 2.0, 0.0, 0.0), strict=True)]
    outcomes += [{"status": "failed", "cell": cell(s, "predraw", **PAPER), "error": "boom"} for s in SUITES]
    table = decode_table("table4", outcomes)
    page = styled(layout(table)).to_html()
    assert "✗ outside in 2 of 5" in page and page.count("#b34700") >= 1 and page.count("#9c2f6f") >= 1
    assert "caption-side: bottom" in page and "neither our number" in page
    _, md, _, tex = write_table(table, tmp_path)
    assert r"$\times$ outside in 2 of 5" in tex.read_text() and "✗" not in tex.read_text()
    assert "✗ outside: neither" in md.read_text() and "! failed: " in md.read_text()
    assert all(sign in "✓✗○!≠…—" for sign in SYMBOLS.values())
    assert "Verdict τ ±0.15" in markdown(layout(table))
