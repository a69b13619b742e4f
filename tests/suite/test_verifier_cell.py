"""The latency cell: real rounds, every verifier on the same ones, a record that the table can read."""

import pytest
import torch

from tevlib.decoding.cache import KVCache
from tevlib.report import latency
from tevlib.suite import verifier_cell
from tevlib.suite.cells import VerifierCell
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome, record_path
from tevlib.suite.verifier_cell import SLOW, SLOW_ROUNDS, TEV_FORMS, TIMED, latencies, run_verifier_cells, widened
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.verifiers import VERIFIERS


@pytest.fixture
def latency_cell(tiny, home):
    """A function: a `VerifierCell` on the tiny models with the given fields changed."""
    fields = {
        "profile": "test", "table": "table3", "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"),
        "budget": 6, "temperature": 1.0, "suite": str(tiny / "chat.jsonl"), "prompts": 2, "rounds": 5, "repeats": 2,
        "max_new_tokens": 12, "dtype": "float32", "seed": 0,
    }  # fmt: skip
    return lambda **changed: VerifierCell(**fields | changed)


def test_every_verifier_is_timed_on_the_same_rounds(latency_cell):
    """One row per round and verifier, the slow one's of the first rounds only; all times positive; a record that is
    taken for this cell's."""
    cell = latency_cell()
    record = run_verifier_cells([cell])[0]
    rows = record["responses"]
    assert {row["verifier"] for row in rows} == set(TIMED)
    by_round = {i: [(r["nodes"], r["internal"]) for r in rows if r["round"] == i] for i in range(5)}
    assert {i: len(found) for i, found in by_round.items()} == {i: 5 + (i < SLOW_ROUNDS) for i in range(5)}
    assert all(len(set(found)) == 1 for found in by_round.values())
    assert [row["round"] for row in rows if row["verifier"] == SLOW] == list(range(SLOW_ROUNDS))
    assert all(row["ms"] > 0 for row in rows) and record["metrics"]["rounds"] == 5
    assert outcome(cell)["status"] == "finished" and record_path(cell).is_file()
    assert latency_cell(budget=7).hash12() != cell.hash12() == latency_cell(profile="other").hash12()


def test_latencies_are_means_and_their_ratio():
    """Means over rounds, and the reduction of both forms of TEV from the means of the same rounds."""
    ms = dict.fromkeys(TIMED, (1.0, 1.0)) | {"predraw": (2.0, 4.0), "tev_parallel": (1.0, 2.0)}
    rows = [
        {"round": i, "verifier": name, "ms": values[i], "nodes": 7, "internal": 3}
        for name, values in ms.items()
        for i in (0, 1)
    ]
    metrics = latencies(rows)
    assert (metrics["predraw_ms"], metrics["tev_parallel_ms"], metrics["tev_parallel_reduction"]) == (3.0, 1.5, 50.0)
    assert metrics["tev_descent_reduction"] == pytest.approx(100 * 2 / 3)
    low, high = metrics["predraw_ms_ci95"]
    assert low <= 3.0 <= high and metrics["tev_parallel_reduction_ci95"] == [50.0, 50.0]
    assert (latency.TIMED, latency.TEV_FORMS) == (TIMED, TEV_FORMS) and set(TIMED) < set(VERIFIERS)


def test_widened_rows_keep_the_law_of_the_old_tokens():
    """The added tokens are unlikely, and the old ones keep their ratios; rows cannot shrink."""
    rows = 3 * torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    wide = widened(rows, 120, seed=0)
    assert wide.shape == (4, 120) and torch.equal(wide[:, :50], rows)
    assert float(wide.softmax(-1)[:, 50:].sum(-1).max()) < 0.01
    with pytest.raises(ValueError, match="rows of 50 tokens cannot be widened to 20"):
        widened(rows, 20, seed=0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"temperature": 0.0}, "at 0 all are greedy"),
        ({"shape": "qwen"}, "did you mean 'qwen3_4b'"),
        ({"rounds": 0}, "rounds must be an integer >= 1, got 0"),
        ({"suite": "gsm8"}, "did you mean 'gsm8k'"),
    ],
)
def test_bad_latency_cells_are_refused(latency_cell, changed, words):
    """Before a model is loaded, by name."""
    with pytest.raises(ValueError, match=words):
        latency_cell(**changed)


def test_a_profile_s_table_3_is_of_latency_cells(tiny, tmp_path):
    """Defaults that only decoding knows are left out; every shape, temperature, budget and suite is a cell."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"""
        defaults: {{target: "{tiny / "target"}", builder: chain, dtype: float32, seed: 0, max_new_tokens: 8}}
        tables:
          table3: {{drafter: "{tiny / "drafter-tiny"}", shapes: [own, qwen3_4b], temperatures: [0.6, 1.0], budgets: [4],
                    suites: [gsm8k, math500], prompts: 1, rounds: 2, repeats: 1}}
        """
    )
    cells = load_profile(str(path))
    assert len(cells) == 8 and {type(cell) for cell in cells} == {VerifierCell}
    path.write_text(path.read_text().replace("rounds: 2", "ronds: 2"))
    with pytest.raises(ValueError, match="unknown key 'ronds'; did you mean 'rounds'"):
        load_profile(str(path))


def test_cells_side_by_side_have_rounds_of_their_own(latency_cell):
    """Cells of other budgets in one company are timed on the trees that each has alone; another seed is refused."""
    cells = [latency_cell(budget=budget) for budget in (2, 6)]
    together = [[row["nodes"] for row in record["responses"]] for record in run_verifier_cells(cells)]
    assert together == [[row["nodes"] for row in run_verifier_cells([cell])[0]["responses"]] for cell in cells]
    assert max(together[0]) == 3 < max(together[1]) == 7
    with pytest.raises(ValueError, match="side by side"):
        run_verifier_cells([cells[0], latency_cell(seed=1)])


def test_every_verifier_finds_the_rows_of_its_round(latency_cell, monkeypatch):
    """Rows written anew for each call are the round's own, of rounds of different sizes too."""
    generator, seen = torch.Generator().manual_seed(0), []
    rounds = [(DraftTree(range(n), range(-1, n - 1)), torch.randn(n, 30, generator=generator)) for n in (3, 5, 2)]

    def watched(tree, rows, temperature, generator):
        seen.append(any(torch.equal(rows, own) for _, own in rounds if len(own) == len(tree)))
        return VERIFIERS["tev"](tree, rows, temperature, generator)

    monkeypatch.setattr(verifier_cell, "VERIFIERS", dict.fromkeys(TIMED, watched))
    cache = KVCache(1, 1, 4, verifier_cell.CONTEXT + 6, torch.float32, "cpu")
    cache.length = verifier_cell.CONTEXT
    verifier_cell.time_rounds(rounds, cache, latency_cell(repeats=1))
    assert len(seen) >= 2 * 3 * (len(TIMED) - 1) and all(seen)
