"""The audit: both means of the block length, ceilings with their own interval, marks where they disagree."""

import numpy as np
import pytest

from tests.report.test_tables import SUITES, finished, metrics
from tevlib.report.audit import audit_lengths, audit_speed
from tevlib.report.build import write_table
from tevlib.report.layout import layout
from tevlib.report.tables import decode_table

ROW = ("original (base)", "TEV")


def responses(*ceilings, rounds=10):
    """One answer per prompt, with the given mean ceilings."""
    return [
        {"id": f"p/{i}", "status": "ok", "ceilings": mean * rounds, "rounds": rounds} for i, mean in enumerate(ceilings)
    ]


def table4(z=0.5, suite="gsm8k", **record):
    """Table 4 with one row; the audit's z of one suite is given."""
    outcomes = [finished(name, record={"metrics": metrics(1.5, 2.0)}) for name in SUITES]
    outcomes[SUITES.index(suite)] |= {"metrics": metrics(1.5, 2.0, audit_z=z)} | record
    return decode_table("table4", outcomes)


def test_both_means_and_all_speedups_are_there():
    """tau as the mean of means and pooled, SR by totals, by means and end to end, each under its own name."""
    lengths, speed = audit_lengths(table4()), audit_speed(table4())
    line = (*ROW, "GSM8K")
    assert lengths.loc[line, ["τ", "τ 95%", "τ pooled", "τ pooled 95%"]].tolist() == [
        "2.00", "1.00..3.00", "2.00", "1.50..2.50",
    ]  # fmt: skip
    assert lengths.loc[line, ["z", "as predicted", "prompts", "rounds"]].tolist() == ["+0.50", "yes", "3", "100"]
    assert speed.loc[line, ["SR", "SR 95%", "SR of means", "SR end to end"]].tolist() == [
        "1.50", "1.40..1.60", "1.52", "1.30",
    ]  # fmt: skip
    assert lengths.index.equals(speed.index) and len(lengths) == 4


@pytest.mark.parametrize("z", [4.01, -7.0])
def test_a_block_length_that_its_ceilings_do_not_explain_is_marked(z, tmp_path):
    """|z| > 4: a dagger at tau in the table itself, a note under it, and a no in the audit; nowhere else, and not in
    the average; all files carry it."""
    table = table4(z)
    shown = layout(table)
    assert shown.loc[(*ROW, "ours"), ("GSM8K", "τ")] == "2.00†"
    assert sum("†" in str(cell) for cell in shown.to_numpy().ravel()) == 1
    assert shown.attrs["notes"][0].startswith("† |z| > 4")
    assert audit_lengths(table).loc[(*ROW, "GSM8K"), "as predicted"] == "no †"
    _, md, page, tex = write_table(table, tmp_path)
    assert "2.00†" in md.read_text() and "2.00†" in page.read_text() and r"2.00$\dagger$" in tex.read_text()
    assert "† |z| &gt; 4" in page.read_text() and r"$|$z$|$ $>$ 4" in tex.read_text()


def test_within_four_errors_nothing_is_marked():
    """z = 4 and less: no dagger, no note."""
    shown = layout(table4(-4.0))
    assert not any("†" in str(cell) for cell in shown.to_numpy().ravel())
    assert not any("†" in note for note in shown.attrs["notes"])


def test_the_ceilings_interval_is_over_prompts():
    """From the answers' own sums: equal prompts give no width, unequal ones the spread of redrawn prompts; one prompt
    gives none, and failed answers are left out."""
    same = table4(responses=responses(2.0, 2.0, 2.0))
    assert audit_lengths(same).loc[(*ROW, "GSM8K"), "1 + C_p 95%"] == "2.00..2.00"
    rows = table4(responses=[*responses(1.0, 3.0, 2.0), {"id": "p/9", "status": "failed"}]).set_index("suite")
    draws = np.random.default_rng(0).integers(3, size=(20000, 3))
    low, high = np.quantile(np.array([1.0, 3.0, 2.0])[draws].mean(1), [0.025, 0.975])
    assert rows.loc["gsm8k", ["ceiling_low", "ceiling_high"]].tolist() == pytest.approx([low, high], abs=0.01)
    assert np.isnan(table4(responses=responses(2.0)).set_index("suite").loc["gsm8k", "ceiling_low"])
    assert audit_lengths(table4()).loc[(*ROW, "GSM8K"), "1 + C_p 95%"] == "—"


def test_turns_of_a_prompt_stay_together():
    """Two answers of one prompt are drawn as one: two prompts that agree in sum have no width."""
    rows = responses(1.0, 3.0) + responses(3.0, 1.0)
    assert audit_lengths(table4(responses=rows)).loc[(*ROW, "GSM8K"), "1 + C_p 95%"] == "2.00..2.00"


def test_the_oracles_share_is_a_dash_in_older_records():
    """The share of the best tree's coverage where it was looked for; records from before have none."""
    outcomes = [finished(suite) for suite in SUITES]
    outcomes[0]["metrics"] |= {"oracle_share": 0.834, "oracle_rounds": 4}
    outcomes[1]["metrics"] |= {"oracle_share": None, "oracle_rounds": 0}
    shown = audit_lengths(decode_table("table4", outcomes))["oracle's share"]
    assert shown.tolist() == ["83%", "—", "—", "—"]


def test_the_sampled_chain_has_no_z():
    """Its verifier looks at the draft's law: no z, no mark, however far from 1 + C_p it is, and a note says why."""
    outcomes = [
        finished(suite, role="sampled_chain", builder="sampled_chain", table="table1", temperature=1.0,
                 record={"metrics": metrics(1.1, 2.0, audit_z=9.0)})
        for suite in SUITES
    ]  # fmt: skip
    table = decode_table("table1", outcomes)
    audit = audit_lengths(table)
    assert set(audit["z"]) == set(audit["as predicted"]) == {"—"}
    assert not any("†" in str(cell) for cell in layout(table).to_numpy().ravel())
    assert "sampled chain has no z" in audit.attrs["notes"][1]
    assert len(audit_lengths(table4()).attrs["notes"]) == 1


def test_an_average_with_an_undefined_suite_is_undefined():
    """Answers of a suite without a round have no tau: the average is not that of the others."""
    outcomes = [finished(suite) for suite in SUITES]
    outcomes[3]["metrics"] = dict.fromkeys(metrics(1, 1)) | {"prompts": 3, "rounds": 0}
    shown = layout(decode_table("table4", outcomes)).loc[(*ROW, "ours")]
    assert shown["Average", "τ"] == shown["MATH-500", "τ"] == "undefined" and shown["GSM8K", "τ"] == "2.00"
