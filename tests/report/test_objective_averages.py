"""Table 2's averages: the metrics' own definitions, changes prompt by prompt, and honest gaps."""

import numpy as np
import pytest

from tests.report.test_tables import SUITES, finished
from tevlib.report import objectives
from tevlib.report.build import build_table, printed, write_table
from tevlib.report.objectives import averages_layout, objective_averages
from tevlib.suite.metrics import speedup, tau

PROMPTS = 24


def answers(suite, seed, gain=1.0, noise=None):
    """Response rows of `PROMPTS` prompts of two turns, easy and hard ones by `seed`, `gain` times as long blocks in
    all; `noise`, a seed, adds what is this row's alone."""
    easy = np.random.default_rng(seed).normal(2.0, 0.5, (PROMPTS, 2)).clip(1)
    own = np.zeros_like(easy) if noise is None else np.random.default_rng(noise).normal(0, 0.2, easy.shape)
    rows = []
    for (prompt, turn), hard in np.ndenumerate(easy):
        rounds = 20 + prompt % 7
        mean = gain * hard + own[prompt, turn]
        rows.append({
            "id": f"{suite}/{prompt}", "turn": turn, "status": "ok", "rounds": rounds, "lengths": mean * rounds,
            "ceilings": mean * rounds, "ar_s": 0.04 * 60, "ar_tokens": 61, "spec_s": 0.08 * rounds,
            "tokens": 1 + round(mean * rounds), "emitted": round(mean * rounds),
        })  # fmt: skip
    return rows


def outcomes(**gains):
    """Finished cells of Table 2 at both temperatures, every role with blocks `gain` times the original's."""
    return [
        finished(suite, role=role, temperature=t, table="table2", record={"responses": answers(suite, i, gain)})
        for t in (0.0, 1.0)
        for role, gain in gains.items()
        for i, suite in enumerate(SUITES)
    ]


def one(table, role, metric, temperature=0.0):
    (row,) = table[
        (table["role"] == role) & (table["metric"] == metric) & (table["temperature"] == temperature)
    ].to_dict("records")
    return row


def test_averages_are_the_metrics_own():
    """tau and SR are those of the records, averaged over the suites without weights; the ceiling goes with tau."""
    cells = outcomes(original=1.0, exit=1.1)
    table = objective_averages(cells)
    mine = [o["responses"] for o in cells if o["cell"]["role"] == "exit" and o["cell"]["temperature"] == 0.0]
    assert one(table, "exit", "tau")["value"] == pytest.approx(np.mean([tau(rows) for rows in mine]))
    assert one(table, "exit", "speedup")["value"] == pytest.approx(np.mean([speedup(rows) for rows in mine]))
    assert one(table, "exit", "ceiling")["value"] == pytest.approx(one(table, "exit", "tau")["value"])


def test_changes_are_judged_prompt_by_prompt():
    """A tenth more on every prompt is a tenth more with certainty, though prompts differ by far more than a tenth; the
    paper's change stands beside it."""
    row = one(objective_averages(outcomes(original=1.0, exit=1.1)), "exit", "tau")
    assert row["value_high"] - row["value_low"] > 0.05
    assert [row["change"], row["change_low"], row["change_high"]] == pytest.approx([0.1] * 3)
    assert row["paper_change"] == pytest.approx(8.85 / 7.80 - 1)
    against = one(objective_averages(outcomes(original=1.0, exit=1.1, finetune=1.0), "finetune"), "exit", "tau", 1.0)
    assert against["paper_change"] == pytest.approx(8.06 / 7.47 - 1)


@pytest.mark.parametrize("prompts", [3, PROMPTS])
def test_intervals_cover(prompts, monkeypatch):
    """Of rows without a true change, 95% intervals miss 0 about once in twenty, with three prompts a suite hardly
    oftener: plain redrawing, too narrow by a fifth there, would miss it once in nine."""
    monkeypatch.setattr(objectives, "RESAMPLES", 400)
    missed, plays = 0, 150
    for play in range(plays):
        cells = [
            finished(suite, role=role, temperature=0.0, record={"responses": rows[: 2 * prompts]})
            for number, role in enumerate(("original", "exit"))
            for i, suite in enumerate(SUITES)
            for rows in [answers(suite, [play, i], noise=[play, i, number])]
        ]
        row = one(objective_averages(cells), "exit", "tau")
        missed += not row["change_low"] <= 0 <= row["change_high"]
    assert 0.01 < missed / plays < 0.09, missed / plays


def test_unfinished_rows_are_left_out_and_the_paper_has_not_all():
    """An objective that failed in a suite has no average; without the reference there is no change; opd and gain have
    no paper's number."""
    cells = outcomes(original=1.0, opd=1.05, gain=1.2)
    cells[2] = {"status": "failed", "cell": cells[2]["cell"], "error": "boom"}
    table = objective_averages(cells)
    assert set(table[table["temperature"] == 0.0]["role"]) == {"opd", "gain"}
    assert np.isnan(one(table, "gain", "tau")["change"]) and one(table, "gain", "tau", 1.0)["change"] > 0.19
    assert table[table["role"] != "original"]["paper_change"].isna().all()
    shown = averages_layout(table)
    assert shown.loc[("0", "Gain (ours, not the paper's)"), "τ change"] == "—"
    assert shown.loc[("1", "Gain (ours, not the paper's)"), "τ change"].startswith("+20.0% (")
    assert shown.loc[("1", "Gain (ours, not the paper's)"), "τ change, paper"] == "—"
    nothing = objective_averages([{"status": "not run", "cell": o["cell"], "error": None} for o in cells])
    assert nothing.empty and averages_layout(nothing).empty


def test_one_prompt_has_no_interval():
    """A suite of a single prompt says nothing of other prompts: values stand, intervals are not invented."""
    cells = outcomes(original=1.0, exit=1.1)
    for o in cells:
        o["responses"] = o["responses"][:2]
    row = one(objective_averages(cells), "exit", "tau")
    assert row["value"] > 0 and np.isnan(row["value_low"]) and np.isnan(row["change_high"])
    assert averages_layout(objective_averages(cells)).loc[("0", "Exit weight w(v)"), "τ change"] == "+10.0%"


def test_other_prompts_are_not_compared():
    """Rows that answered other prompts of a suite cannot be judged prompt by prompt."""
    cells = outcomes(original=1.0, exit=1.1)
    cells[5]["responses"] = cells[5]["responses"][2:]
    with pytest.raises(ValueError, match="those of humaneval at T = 0 differ between cells"):
        objective_averages(cells)


def test_the_averages_are_printed_with_the_table(tmp_path):
    """Table, averages, audit: on the screen and in the files, with signs that LaTeX takes; no averages, no part."""
    cells = outcomes(original=1.0, exit=1.1)
    table = build_table("table2", cells)
    _, averages, *_ = printed(table).values()
    assert averages.loc[("0", "Original drafter"), "τ change"] == "+0.0% (+0.0%..+0.0%)"
    assert averages.loc[("1", "Exit weight w(v)"), "τ change"] == "+10.0% (+10.0%..+10.0%)"
    assert averages.loc[("1", "Exit weight w(v)"), "τ change, paper"] == "+13.8%"
    _, md, html, tex = write_table(table, tmp_path)
    assert all("changes against the original drafter" in path.read_text() for path in (md, html, tex))
    assert r"+10.0\% (+10.0\%..+10.0\%)" in tex.read_text() and tex.read_text().count(r"\begin{tabular}") == 4
    nothing = [{"status": "not run", "cell": o["cell"], "error": None} for o in cells]
    assert list(printed(build_table("table2", nothing))) == [
        "",
        "Audit",
        "Speed-ups by every definition",
    ]
