"""Tables 1 and 5 from cells that were decoded: every method, the paper's and ours, in one company."""

import pytest

from tevlib.report.audit import audit_lengths
from tevlib.report.build import build_table, printed, write_table
from tevlib.report.layout import layout
from tevlib.suite.decode_cell import run_decode_cells
from tevlib.suite.records import outcome

TREE = {"budget": 6, "builder": "best_first"}
CHAIN = {"budget": 3, "builder": "chain", "verifier": "predraw"}
METHODS = {
    "ddtree": TREE | {"verifier": "predraw"},
    "opd": TREE | {"verifier": "predraw"},
    "exit": TREE | {"verifier": "tev"},
    "gain": TREE | {"verifier": "tev"},
    "auto": TREE | {"verifier": "tev", "budget": "auto"},
    "dflash_chain": CHAIN,
    "sampled_chain": CHAIN | {"builder": "sampled_chain", "verifier": "tev"},
    "autoregressive": TREE | {"verifier": "tev", "budget": 0},
    "prompt_lookup": {"drafter": "none", "builder": "prompt_lookup", "verifier": "predraw", "budget": 4},
}
SHOWN = [
    "DDTree", "Draft-OPD", "ExitTrain + TEV", "Gain + TEV (ours, not the paper's)",
    "Automatic budget (ours, not the paper's)",
    "DFlash, greedy chain (not in the paper's tables)", "DFlash, sampled chain (not in the paper's tables)",
    "Root alone, no draft (not in the paper's tables)", "Prompt lookup, transformers (not in the paper's tables)",
]  # fmt: skip


def decoded(cells):
    """What the records of the cells say once they are decoded; cells that are the same work are decoded once."""
    run_decode_cells(list({cell.hash12(): cell for cell in cells}.values()))
    return [outcome(cell) for cell in cells]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_table_1_of_decoded_cells(tiny_cell, temperature, tmp_path):
    """Methods with builders, verifiers and budgets of their own make one table, in its order, ours behind the paper's
    and marked; the root alone has blocks of one token, prompt lookup some of more and no drafter; the sampled chain has
    no z; every file is written."""
    cells = [tiny_cell(table="table1", role=role, temperature=temperature, **how) for role, how in METHODS.items()]
    table = build_table("table1", decoded(cells))
    shown, audit = layout(table), audit_lengths(table)
    assert list(dict.fromkeys(shown.index.get_level_values("Method"))) == SHOWN
    for name in SHOWN[3:]:
        (line,) = shown.xs(name, level="Method")["Verdict"].to_numpy().tolist()
        assert line == ["— not in the paper"] * 2
    root = table[(table["role"] == "autoregressive") & (table["suite"] == "chat")].iloc[0]
    assert root["tau"] == root["tau_pooled"] == root["ceiling"] == 1.0 and root["audit_z"] == 0.0
    assert root["budget"] == 0 and root["speedup"] > 0
    lookup = table[(table["role"] == "prompt_lookup") & (table["suite"] == "chat")].iloc[0]
    assert lookup["drafter"] == "none" and lookup["speedup"] > 0 and (temperature > 0 or lookup["tau"] > 1)
    z = audit.xs("chat", level="Suite")["z"].droplevel([0, 1])
    assert z["DFlash, sampled chain (not in the paper's tables)"] == "—"
    others = z.drop("DFlash, sampled chain (not in the paper's tables)")
    assert (others.astype(float).abs() < 4).all() and (temperature > 0 or set(others) == {"+0.00"})
    assert not any(part.isna().any(axis=None) for part in printed(table).values())
    assert all(path.stat().st_size > 0 for path in write_table(table, tmp_path))


def test_table_5_of_decoded_cells(tiny_cell):
    """Budgets are rows in their order; one drafter's block lengths at T = 0 do not depend on the verifier."""
    cells = [
        tiny_cell(table="table5", role=role, temperature=0.0, **METHODS[role] | {"budget": budget})
        for budget in (3, 6, 12)
        for role in ("ddtree", "exit")
    ]
    table = build_table("table5", decoded(cells))
    taus = table[table["suite"] == "chat"].pivot(index="budget", columns="role", values="tau")
    assert taus["ddtree"].tolist() == taus["exit"].tolist(), "one drafter, T = 0: verifiers cannot differ"
    assert list(dict.fromkeys(layout(table).index.get_level_values("B"))) == ["3", "6", "12"]
    assert "B =" not in table.attrs["caption"] and "builder" not in table.attrs["caption"]
