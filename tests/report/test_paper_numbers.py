"""The paper's numbers as we hold them are the paper's: its averages and its own sentences follow from them."""

import pytest

from tevlib.report.paper import paper_numbers, paper_value


def table4_value(role, verifier, column, metric):
    return paper_value("table4", {"role": role, "verifier": verifier}, column, metric)


NUMBERS = paper_numbers()
ROWS = [(table, row) for table in ("table1", "table2", "table3", "table4", "table5") for row in NUMBERS[table]]


def named(row):
    return ", ".join(str(value) for value in row.values() if not isinstance(value, list))


@pytest.mark.parametrize(("table", "row"), ROWS, ids=lambda value: value if isinstance(value, str) else named(value))
def test_printed_averages_are_the_means(table, row):
    """Each row has four suites and an average that is their mean to within rounding."""
    for metric in ("speedup", "tau", "ms"):
        if metric in row:
            *suites, average = row[metric]
            assert len(suites) == 4
            tolerance = 0.001 if metric == "ms" else 0.011
            assert average == pytest.approx(sum(suites) / 4, abs=tolerance), f"{table}: {metric}"


def test_all_rows_are_there():
    """24, 8, 12, 4 and 18 rows, none twice."""
    assert [len(NUMBERS[f"table{i}"]) for i in range(1, 6)] == [24, 8, 12, 4, 18]
    assert len({(table, named(row)) for table, row in ROWS}) == len(ROWS)


def test_the_papers_sentences_hold():
    """Appendix D.2's text and Table 4 agree; rows that several tables share are equal in all of them."""
    assert [table4_value("original", v, "average", "speedup") for v in ("predraw", "tev")] == [4.95, 4.97]
    assert [table4_value("exit", v, "average", "tau") for v in ("predraw", "tev")] == [8.05, 8.06]
    gaps = [
        abs(a - b)
        for first, second in (NUMBERS["table4"][:2], NUMBERS["table4"][2:])
        for a, b in zip(first["tau"], second["tau"], strict=True)
    ]
    assert max(gaps) == pytest.approx(0.03)
    for row in NUMBERS["table5"]:
        if row["budget"] == 64:
            (same,) = [
                r for r in NUMBERS["table1"]
                if (r["model"], r["method"], r["temperature"]) == ("Qwen3-4B", row["method"], row["temperature"])
            ]  # fmt: skip
            assert (same["speedup"], same["tau"]) == (row["speedup"], row["tau"])


def test_reductions_of_table_3_follow_from_its_times():
    """The printed reductions are those of the printed milliseconds, to within rounding of a per cent."""
    for slow, fast in zip(NUMBERS["table3"][::2], NUMBERS["table3"][1::2], strict=True):
        for a, b, reduction in zip(slow["ms"], fast["ms"], fast["reduction"], strict=True):
            assert reduction == pytest.approx(100 * (1 - b / a), abs=0.15)


def test_rows_the_paper_has_not_are_none():
    """Our other verifiers, drafters and suites have no printed number."""
    assert table4_value("original", "sequential_residual", "gsm8k", "tau") is None
    assert table4_value("gain", "tev", "gsm8k", "tau") is None
    assert table4_value("original", "tev", "my-prompts", "tau") is None
