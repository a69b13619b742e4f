"""Tables from records: every cell says what happened to it, averages and differences are right, nothing is mixed."""

import pandas as pd
import pytest

from tevlib.report.audit import audit_lengths, audit_speed
from tevlib.report.build import brief, write_table
from tevlib.report.files import markdown
from tevlib.report.layout import layout
from tevlib.report.tables import decode_table

SUITES = ("mt_bench", "humaneval", "gsm8k", "math500")


def table4(outcomes):
    return decode_table("table4", outcomes)


def metrics(speedup, tau, **changed):
    return {
        "speedup": speedup, "speedup_ci95": [speedup - 0.1, speedup + 0.1], "tau": tau, "tau_ci95": [tau - 1, tau + 1],
        "tau_pooled": tau, "tau_pooled_ci95": [tau - 0.5, tau + 0.5], "ceiling": tau + 0.01, "audit_z": -0.5,
        "speedup_references": speedup + 0.02, "speedup_end_to_end": speedup - 0.2, "tokens_per_s": 20.0,
        "ar_tokens_per_s": 10.0, "prompts": 3, "responses": 3, "rounds": 100,
    } | changed  # fmt: skip


def cell(suite, verifier="tev", **changed):
    return {
        "profile": "laptop", "table": "table4", "target": "t", "role": "original", "drafter": "data/drafters/base",
        "builder": "best_first", "verifier": verifier, "budget": 16, "temperature": 1.0, "top_p": 1.0, "top_k": 0,
        "suite": suite, "prompts": 3, "max_new_tokens": 96, "dtype": "bfloat16", "seed": 0, "repeats": 1,
    } | changed  # fmt: skip


def finished(suite, speedup=1.5, tau=2.0, verifier="tev", record=None, **changed):
    return {
        "status": "finished", "schema_version": 1, "hash": f"{suite}-{verifier}",
        "cell": cell(suite, verifier, **changed),
        "metrics": metrics(speedup, tau), "device": {"name": "a cpu", "threads": 2}, "target": {"revision": "r1"},
        "responses": [],
    } | (record or {})  # fmt: skip


def all_finished(**changed):
    return [finished(suite, 1.0 + i, 2.0 + i, **changed) for i, suite in enumerate(SUITES)]


def test_paper_ours_difference_and_average():
    """Ours beside the paper's, their difference, and the unweighted mean over the suites."""
    frame = table4(all_finished()).set_index("suite")
    assert frame.loc["gsm8k", ["speedup", "paper_speedup"]].tolist() == [3.0, 5.51]
    assert frame.loc["gsm8k", "difference_tau"] == pytest.approx(4.0 - 7.88)
    assert frame.loc["average", ["speedup", "tau", "paper_speedup", "paper_tau"]].tolist() == [2.5, 3.5, 4.97, 7.09]
    equal = all_finished()
    equal[0]["metrics"]["tau"] = 5.0699999
    line = ("original (base)", "TEV", "ours - paper")
    assert layout(table4(equal)).loc[line, ("MT-Bench", "τ")] == "+0.00", "and not -0.00"
    shown = layout(table4(all_finished())).loc["original (base)", "TEV"]
    assert list(shown.index) == ["paper", "ours", "ours - paper"]
    assert shown["GSM8K"].to_numpy().tolist() == [["5.51", "7.88"], ["3.00", "4.00"], ["-2.51", "-3.88"]]


def test_no_cell_is_a_hole():
    """What was not run or failed says so, also in the average; a verifier that the paper has not has dashes there."""
    outcomes = all_finished()
    outcomes[1] = {"status": "failed", "cell": cell("humaneval"), "error": "boom"}
    outcomes += [{"status": "not run", "cell": cell(s, "sequential_residual"), "error": None} for s in SUITES]
    shown = layout(table4(outcomes))
    assert shown.loc[("original (base)", "TEV", "ours"), ("HumanEval", "τ")] == "failed"
    assert shown.loc[("original (base)", "TEV", "ours"), ("Average", "SR")] == "failed"
    assert shown.loc[("original (base)", "TEV", "ours - paper"), ("HumanEval", "SR")] == "—"
    assert set(shown.loc[("original (base)", "Sequential residual", "ours")]) == {"not run", "○ not run"}
    assert ("original (base)", "Sequential residual", "paper") not in shown.index
    assert not (shown.drop(columns="Verdict", level=0) == "").any().any() and not shown.isna().any().any()
    audit = audit_lengths(table4(outcomes))
    assert audit.loc[("original (base)", "TEV", "HumanEval"), "z"] == "failed"
    assert audit.loc[("original (base)", "TEV", "GSM8K"), ["1 + C_p", "z"]].tolist() == ["4.01", "-0.50"]


def test_answers_without_rounds_are_undefined_not_nan():
    """A finished cell whose answers all stopped at once has no tau: the table says undefined."""
    empty = finished("gsm8k") | {"metrics": dict.fromkeys(metrics(1, 1)) | {"prompts": 1, "rounds": 0}}
    shown = audit_lengths(table4([empty]))
    assert shown["τ"].tolist() == ["undefined"] and shown["z"].tolist() == ["undefined"]


MIXES = {
    "profile": {"profile": "smoke"},
    "budget": {"budget": 32},
    "temperature": {"temperature": 0.0},
    "target": {"target": "u"},
    "max_new_tokens": {"max_new_tokens": 16},
    "machine": {"record": {"device": {"name": "another cpu", "threads": 2}}},
    "threads": {"record": {"device": {"name": "a cpu", "threads": 4}}},
    "target revision": {"record": {"target": {"revision": "r2"}}},
    "schema_version": {"record": {"schema_version": 2}},
}


@pytest.mark.parametrize("what", MIXES)
def test_mixed_records_are_refused(what):
    """Rows that differ in more than drafter, verifier and suite, or come from another machine, are not one table."""
    name = {"threads": "machine"}.get(what, what)
    with pytest.raises(ValueError, match=f"needs one {name}"):
        table4([*all_finished(), finished("gsm8k", verifier="predraw", **MIXES[what])])


def test_empty_and_doubled_tables_are_refused():
    """No cells, or two for one place, is an error."""
    with pytest.raises(ValueError, match="at least one cell"):
        table4([])
    with pytest.raises(ValueError, match="two cells"):
        table4([finished("gsm8k"), finished("gsm8k")])


def test_all_four_files_carry_the_numbers(tmp_path):
    """CSV holds every number, Markdown, HTML and LaTeX the printed form, the audit and the caption."""
    table = table4(all_finished())
    csv, md, html, tex = write_table(table, tmp_path / "new")
    again = pd.read_csv(csv)
    assert again["tau"].tolist() == table["tau"].tolist() and again["hash"].dropna().tolist() == [
        f"{s}-tev" for s in SUITES
    ]
    for path in (md, html, tex):
        text = path.read_text()
        assert "-3.88" in text and "4.01" in text and "a cpu, 2 threads" in text
    assert tex.read_text().count(r"\begin{tabular}") == tex.read_text().count(r"\end{tabular}") == 3
    assert "τ" not in tex.read_text() and "_p$" in tex.read_text()


def test_the_caption_warns_of_another_target():
    """Off the paper's profile the caption says that rows are to be compared with each other only; on it, not."""
    assert "Qwen3-4B with B = 64 on an H20" in table4(all_finished()).attrs["caption"]
    assert "H20" not in table4(all_finished(profile="paper")).attrs["caption"]


def test_markdown_is_a_plain_grid():
    """Every line of the Markdown form has the same number of columns and one-line names."""
    lines = markdown(layout(table4(all_finished()))).splitlines()
    assert len({line.count("|") for line in lines}) == 1 and "MT-Bench SR" in lines[0]


def test_a_terminal_shows_the_averages_alone():
    """Every line of the table, with SR and τ of the average and no other column; the audits stay in the files."""
    table = table4(all_finished())
    parts = brief(table)
    assert list(parts) == [""] and list(parts[""].columns) == [("Average", "SR"), ("Average", "τ")]
    assert parts[""].equals(layout(table)[["Average"]])


def test_tables_1_and_5_have_methods_as_rows():
    """Drafter, builder and verifier differ by method; the paper's numbers stand at its own methods, models, budgets."""
    how = {
        "ddtree": {"verifier": "predraw"},
        "exit": {"verifier": "tev"},
        "dflash_chain": {"verifier": "predraw", "builder": "chain"},
        "autoregressive": {"verifier": "tev", "budget": 0},
    }
    outcomes = [
        finished(suite, role=role, table="table1", temperature=t, target=target, **changes)
        for t in (0.0, 1.0)
        for target in ("Qwen/Qwen3-8B", "data/some-target")
        for role, changes in how.items()
        for suite in SUITES
    ]
    for outcome in outcomes:
        outcome["target"] = {"revision": f"that of {outcome['cell']['target']}"}
    table = decode_table("table1", outcomes)
    rows = table[table["suite"] == "average"].set_index(["temperature", "target", "role"])["paper_tau"]
    assert rows[1.0, "Qwen/Qwen3-8B", "exit"] == 7.65 and rows[0.0, "data/some-target", "ddtree"] == 7.80
    assert rows[:, :, "dflash_chain"].isna().all() and rows[:, :, "autoregressive"].isna().all()
    shown = layout(table)
    assert ("0", "Qwen3-8B", "ExitTrain + TEV", "ours") in shown.index
    assert ("0", "Qwen3-8B", "DDTree", "paper") in shown.index
    assert ("0", "some-target", "DDTree", "paper (Qwen3-4B)") in shown.index, "the paper has no such target"
    extra = ("1", "Qwen3-8B", "Root alone, no draft (not in the paper's tables)")
    assert (*extra, "paper") not in shown.index and shown.loc[(*extra, "ours"), "Verdict"].tolist() == [
        "— not in the paper"
    ] * 2
    with pytest.raises(ValueError, match="table 1 needs one target revision"):
        decode_table("table1", [*outcomes[1:], outcomes[0] | {"target": {"revision": "another"}}])
    del how["autoregressive"]
    budgets = [
        finished(suite, role=role, table="table5", temperature=1.0, **changes | {"budget": budget})
        for budget in (16, 32, 128)
        for role, changes in how.items()
        for suite in SUITES
    ]
    rows = decode_table("table5", budgets)
    rows = rows[rows["suite"] == "average"].set_index(["budget", "role"])["paper_tau"]
    assert rows[128, "exit"] == 8.37 and rows[32, "ddtree"] == 6.77 and rows[16].isna().all()


def test_table_2_has_its_rows_and_marks_what_the_paper_has_not():
    """One block per temperature and objective; the paper's numbers there; opd and gain are extra."""
    outcomes = [
        finished(suite, role=role, temperature=t, table="table2", budget=32)
        for t in (0.0, 1.0)
        for role in ("original", "finetune", "prefix", "exit", "opd", "gain")
        for suite in SUITES
    ]
    table = decode_table("table2", outcomes)
    rows = table[(table["suite"] == "average")].set_index(["temperature", "role"])
    assert rows.loc[(0.0, "exit"), "paper_tau"] == 8.85 and rows.loc[(1.0, "prefix"), "paper_speedup"] == 5.35
    assert rows.loc[(0.0, "finetune"), "paper_tau"] == 8.36 and rows.loc[(1.0, "original"), "paper_tau"] == 7.08
    assert rows["paper_tau"].isna().tolist() == [False] * 4 + [True] * 2 + [False] * 4 + [True] * 2
    shown = layout(table)
    assert list(shown.index.names) == ["T", "Objective", ""] and len(shown) == 2 * (4 * 3 + 2)
    assert ("1", "Gain (ours, not the paper's)", "ours") in shown.index
    assert shown.loc[("0", "Exit weight w(v)", "paper"), ("GSM8K", "τ")] == "10.22"
    assert "verifier TEV" in table.attrs["caption"] and "T =" not in table.attrs["caption"]
    with pytest.raises(ValueError, match="table 2 needs one verifier"):
        decode_table("table2", [*outcomes, finished("gsm8k", verifier="predraw", role="x", temperature=2.0, budget=32)])


def test_table_2_says_what_became_of_every_row():
    """An objective that was not run, or failed in one suite, says so there and in its average; the others stand."""
    outcomes = [finished(suite, role="original", temperature=0.0, table="table2") for suite in SUITES]
    for role in ("exit", "gain"):
        for suite in SUITES:
            mine = finished(suite, role=role, temperature=0.0, table="table2")
            outcomes.append(mine if role == "gain" else {"status": "not run", "cell": mine["cell"], "error": None})
    outcomes[-1] = {"status": "failed", "cell": outcomes[-1]["cell"], "error": "boom"}
    shown = layout(decode_table("table2", outcomes))
    assert set(shown.loc[("0", "Exit weight w(v)", "ours")]) == {"not run", "○ not run"}
    assert shown.loc[("0", "Exit weight w(v)", "paper"), ("Average", "τ")] == "8.85"
    gain = shown.loc[("0", "Gain (ours, not the paper's)", "ours")]
    assert gain["MATH-500", "τ"] == gain["Average", "SR"] == "failed" and gain["GSM8K", "τ"] == "2.00"
    assert shown.loc[("0", "Original drafter", "ours"), ("Average", "τ")] == "2.00"
    row = ("0", "Original drafter", "GSM8K")
    assert audit_lengths(decode_table("table2", outcomes)).loc[row, "τ 95%"] == "1.00..3.00"
    assert audit_speed(decode_table("table2", outcomes)).loc[row, "SR 95%"] == "1.40..1.60"


DECODED = ("table1", "table2", "table4", "table5")


@pytest.mark.parametrize("name", DECODED)
def test_a_failed_cell_is_printed_in_every_table(name):
    """Failed in one suite: the word there, in the average, in the verdicts and through the audit; no cell is a hole."""
    outcomes = [finished(suite, role="exit", table=name) for suite in SUITES]
    outcomes[2] = {"status": "failed", "cell": outcomes[2]["cell"], "error": "boom"}
    table = decode_table(name, outcomes)
    shown = layout(table)
    ours = shown.xs("ours", level=-1).iloc[0]
    assert ours[[("GSM8K", "SR"), ("GSM8K", "τ"), ("Average", "SR"), ("Average", "τ")]].tolist() == ["failed"] * 4
    assert ours["Verdict"].tolist() == ["! failed"] * 2 and ours["MATH-500", "τ"] == "2.00"
    assert "! failed: the cell ended in an error" in " ".join(shown.attrs["notes"])
    for part in (audit_lengths(table), audit_speed(table)):
        line = part.xs("GSM8K", level="Suite").iloc[0]
        assert "failed" in set(line) and set(line) <= {"failed", "—"}


@pytest.mark.parametrize("name", DECODED)
@pytest.mark.parametrize("what", ["schema_version", "profile", "machine"])
def test_every_table_refuses_a_mix(name, what):
    """Records of another schema, profile or machine are not one table, whatever the table's rows are."""
    with pytest.raises(ValueError, match=f"table {name[-1]} needs one {what}"):
        decode_table(name, [finished("gsm8k", table=name), finished("math500", table=name, **MIXES[what])])
