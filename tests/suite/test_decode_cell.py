"""One decode cell on tiny models: what the record holds, what a failing answer does, which seeds are drawn from."""

import json

import pandas as pd
import pytest
import torch

from tevlib.decoding import decode, generation
from tevlib.suite import decode_cell
from tevlib.suite.decode_cell import CellFailed, answer_seed, run_decode_cell, run_decode_cells
from tevlib.suite.decode_rows import length_variance
from tevlib.suite.metrics import summarise
from tevlib.suite.records import failed_path, outcome, read_record, record_path, rounds_path
from tevlib.trees.draft_tree import DraftTree

TIMES = {"ar_s", "ar_prefill_s", "spec_s", "prefill_s", "stage_s"}


def without_times(record):
    return [{k: v for k, v in row.items() if k not in TIMES} for row in record["responses"]]


def test_the_record_says_what_was_measured_on_what(tiny_cell, home):
    """Metrics follow from the rows; block, template, attention, versions, commit, machine and hashes are all there."""
    cell = tiny_cell(repeats=2)
    record = run_decode_cell(cell)
    assert read_record(record_path(cell))["metrics"] == record["metrics"] == summarise(record["responses"])
    assert [(r["id"], r["turn"], r["repeat"]) for r in record["responses"]] == [
        (f"chat/{prompt}", turn, repeat) for repeat in (0, 1) for prompt, turn in ((1, 0), (1, 1), (2, 0))
    ]
    assert record["drafter"]["block_size"] == 4 and record["target"]["chat_template_sha256"]
    assert record["provenance"]["versions"]["torch"] == torch.__version__
    assert record["device"]["threads"] == torch.get_num_threads()
    lines = (home / "runs" / "test" / f"{cell.hash12()}.responses.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == record["responses"]


def test_every_round_is_kept_and_emission_is_told_from_length(tiny_cell):
    """vllm#56101: tokens behind a stop or the limit count in the verified length; the emitted sum to the output."""
    cell = tiny_cell(temperature=0.0, max_new_tokens=30)
    record = run_decode_cell(cell)
    rounds = pd.read_parquet(rounds_path(record_path(cell)))
    for number, row in enumerate(record["responses"]):
        mine = rounds[rounds["response"] == number]
        assert len(mine) == row["rounds"] and mine["length"].sum() == row["lengths"]
        assert mine["emitted"].sum() == row["emitted"] == row["tokens"] - 1
        assert mine["ceiling"].sum() == pytest.approx(row["ceilings"])
        assert mine["variance"].sum() == pytest.approx(row["variances"])
        assert (mine["emitted"] <= mine["length"]).all()
        assert mine[[f"{stage}_s" for stage in generation.STAGES]].notna().all().all()


def test_the_methods_take_turns_in_going_first(tiny_cell):
    """Which method runs first alternates, so that a machine that slows down favours neither."""
    record = run_decode_cell(tiny_cell())
    assert [row["first"] for row in record["responses"]] == ["autoregressive", "speculative", "autoregressive"]


def test_same_seed_same_numbers_other_seed_others(tiny_cell):
    """Equal cells give equal rows, times apart; another seed or repeat gives other draws."""
    cell = tiny_cell(max_new_tokens=24)
    first, second = without_times(run_decode_cell(cell)), without_times(run_decode_cell(cell))
    assert first == second
    assert without_times(run_decode_cell(tiny_cell(max_new_tokens=24, seed=1))) != first


def test_answers_do_not_share_a_stream():
    """No two answers of a cell draw from the same seed, and a prompt's seed does not depend on its neighbours."""
    seeds = {answer_seed(s, r, p, t) for s in range(3) for r in range(3) for p in range(20) for t in range(2)}
    assert len(seeds) == 360
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_history_is_the_plain_answer_and_equal_for_all_verifiers(tiny_cell, monkeypatch):
    """Cells that differ in the verifier alone see the same conversations: turn two follows the plain answer's text."""
    seen = {}

    def watched(running, target, messages, place, nth):
        seen.setdefault(running[0].cell.verifier, []).append(json.dumps(messages))
        return original(running, target, messages, place, nth)

    original = decode_cell._side_by_side
    monkeypatch.setattr(decode_cell, "_side_by_side", watched)
    for verifier in ("tev", "predraw"):
        run_decode_cell(tiny_cell(verifier=verifier))
    assert seen["tev"] == seen["predraw"]
    second = json.loads(seen["tev"][2])  # warm-up, turn one, turn two
    assert [m["role"] for m in second] == ["user", "assistant", "user"]


def test_a_failing_answer_fails_the_cell_but_not_the_others(tiny_cell, monkeypatch):
    """An exception in round 3 of an answer: that prompt is marked, left out of the means, its later turns are not
    tried; the rest is measured; the cell fails with `.failed.json` and no record."""
    calls = []

    def broken(target, drafter, ids, **how):
        calls.append(how)
        if len(calls) == 2:  # the first after the warm-up: prompt 1, turn 1
            raise ValueError("round 3: the target's logits are unusable: NaN at node 4")
        return decode.speculate(target, drafter, ids, **how)

    monkeypatch.setattr(decode_cell, "speculate", broken)
    cell = tiny_cell()
    with pytest.raises(CellFailed, match=r"1 of 2 answers failed, first chat/1: ValueError: round 3"):
        run_decode_cell(cell)
    path = record_path(cell)
    assert not path.exists() and outcome(cell)["status"] == "failed"
    failure = json.loads(failed_path(path).read_text())
    assert [row["status"] for row in failure["responses"]] == ["failed", "ok"]
    assert failure["metrics"]["responses"] == 1 and failure["metrics"]["failed_responses"] == 1
    assert "NaN at node 4" in failure["responses"][0]["traceback"]


def test_prompt_lookup_stands_beside_drafters(tiny_cell):
    """A row without a drafter: at T = 0 in float32 plain decoding's tokens, its rounds with their ceilings, and nothing
    said of a drafter or an oracle; it is planned as possible, and its plain decoding is the one of the others."""
    lookup = {"role": "prompt_lookup", "drafter": "none", "builder": "prompt_lookup", "verifier": "predraw"}
    cells = [tiny_cell(temperature=0.0, oracle_rounds=1, **changed) for changed in ({}, lookup | {"budget": 4})]
    assert not cells[1].lacks_drafter()
    tree, found = run_decode_cells(cells)
    assert found["drafter"] == {} and found["metrics"]["oracle_share"] is None and found["metrics"]["audit_z"] == 0.0
    for row, other in zip(found["responses"], tree["responses"], strict=True):
        assert row["ar_s"] == other["ar_s"] and row["tokens"] == row["ar_tokens"] == other["tokens"]
        assert row["emitted"] <= row["tokens"] - 1 and row["lengths"] >= row["emitted"]
    rounds = pd.read_parquet(rounds_path(record_path(cells[1])))
    assert len(rounds) == found["metrics"]["rounds"] and (rounds["length"] == rounds["ceiling"].round()).all()


def test_cells_side_by_side_take_turns(tiny_cell, monkeypatch):
    """Plain decoding is first and last in turns, once per answer; the cells begin with another one each time."""
    order = []

    def watched(name, decode):
        def run(*arguments, **how):
            order.append(how.get("verifier", name))
            return decode(*arguments, **how)

        return run

    monkeypatch.setattr(decode_cell, "autoregressive", watched("plain", decode.autoregressive))
    monkeypatch.setattr(decode_cell, "speculate", watched("", decode.speculate))
    run_decode_cells([tiny_cell(verifier=verifier) for verifier in ("predraw", "tev")])
    warm_up, *answers = [order[i : i + 3] for i in range(0, len(order), 3)]
    assert warm_up == ["plain", "predraw", "tev"]
    assert answers == [["plain", "predraw", "tev"], ["predraw", "tev", "plain"], ["plain", "tev", "predraw"]]


def test_a_failing_cell_leaves_those_beside_it_whole(tiny_cell, monkeypatch):
    """A fault in one cell's answer is that cell's; one in plain decoding is everybody's. The others' later turns are
    decoded, and every cell has its file before the failure is raised."""

    def broken(target, drafter, ids, **how):
        if how["verifier"] == "predraw":
            raise ValueError("boom")
        return decode.speculate(target, drafter, ids, **how)

    monkeypatch.setattr(decode_cell, "speculate", broken)
    _, good = cells = [tiny_cell(verifier=verifier) for verifier in ("predraw", "tev")]
    with pytest.raises(CellFailed, match="2 of 2 answers failed, first chat/1: ValueError: boom"):
        run_decode_cells(cells)
    assert [outcome(cell)["status"] for cell in cells] == ["failed", "finished"]
    assert len(outcome(good)["responses"]) == 3

    def silent(*arguments, **how):
        raise ValueError("no answer")

    monkeypatch.setattr(decode_cell, "autoregressive", silent)
    with pytest.raises(CellFailed, match=r"no answer.*no answer"):
        run_decode_cells(cells)
    assert json.loads(failed_path(record_path(good)).read_text())["metrics"]["tau"] is None


def test_cells_of_other_prompts_are_not_done_together(tiny_cell):
    """Another temperature, suite or length needs a plain decoding of its own."""
    for changed in ({"temperature": 0.0}, {"max_new_tokens": 5}, {"prompts": 1}, {"seed": 1}):
        with pytest.raises(ValueError, match="may differ in table, role, drafter, builder, verifier, budget only"):
            run_decode_cells([tiny_cell(), tiny_cell(**changed)])


def test_too_few_prompts_are_an_error(tiny_cell):
    """yourbench#89: asking for more prompts than there are must not run on fewer."""
    with pytest.raises(ValueError, match="5 prompts asked for"):
        run_decode_cell(tiny_cell(prompts=5))


def test_length_variance_is_that_of_the_exit_depth():
    """A root with one child and a grandchild, w = 0.5, 0.25, 0.25: variance of the depths 0, 1, 2."""
    tree = DraftTree([5, 1, 2], [-1, 0, 1])
    w = torch.tensor([0.5, 0.25, 0.25])
    cycle = generation.Round(tree, w, w, 0.75, [0], 3)
    assert length_variance(cycle) == pytest.approx(0.25 * 1 + 0.25 * 4 - 0.75**2)


def test_a_prompt_longer_than_the_context_is_named_before_any_decoding(tiny_cell, tmp_path, monkeypatch):
    """One too long a line at the end of a file does not cost the decoding of those before it."""
    (tmp_path / "long.jsonl").write_text('{"turns": ["short"]}\n{"turns": ["' + "word " * 900 + '"]}\n')
    monkeypatch.setattr(decode_cell, "_side_by_side", None)
    with pytest.raises(ValueError, match=r"prompt long/2 has \d+ tokens, the context holds 2048"):
        run_decode_cell(tiny_cell(suite=str(tmp_path / "long.jsonl")))


def test_exits_and_the_oracle_are_kept_by_round_and_in_sum(tiny_cell):
    """w by depth sums to 1 in every round; the oracle's ceiling, where looked for, is no lower than the round's own."""
    cell = tiny_cell(oracle_rounds=2, max_new_tokens=24)
    record = run_decode_cell(cell)
    rounds = pd.read_parquet(rounds_path(record_path(cell)))
    assert all(sum(exits) == pytest.approx(1, abs=1e-5) for exits in rounds["exits"])
    looked = rounds[rounds["oracle"].notna()]
    assert len(looked) == record["metrics"]["oracle_rounds"] == sum(min(2, r["rounds"]) for r in record["responses"])
    assert (looked["oracle"] >= looked["ceiling"] - 1e-5).all()
    share = (looked["ceiling"] - 1).sum() / (looked["oracle"] - 1).sum()
    assert record["metrics"]["oracle_share"] == pytest.approx(share)
    depth = sum(d * mass for d, mass in enumerate(record["metrics"]["exits"]))
    assert 1 + depth == pytest.approx(record["metrics"]["ceiling"], abs=1e-4)
    plain = run_decode_cell(tiny_cell(max_new_tokens=24))
    assert plain["metrics"]["oracle_share"] is None and plain["metrics"]["tau"] == record["metrics"]["tau"]
