"""The plan of a profile: what is counted, what cannot be done yet, and where the time is from."""

import dataclasses
import itertools

import nbformat
import pytest

from tevlib import cli
from tevlib.suite import estimate, plan
from tevlib.suite.cells import Cell
from tevlib.suite.estimate import answers, by_rule, rates, seconds
from tevlib.suite.notebook import notebook_path
from tevlib.suite.parameters import checked, declared
from tevlib.suite.plan import companies, company_of, describe, distinct, make_plan
from tevlib.suite.profile import load_profile, load_trained
from tevlib.suite.records import record_path, write_failure, write_record
from tevlib.suite.sizes import download_bytes, memory_bytes, parameters

TARGETS = {
    "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "google/gemma-4-12b-it",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct",
}  # fmt: skip


@pytest.fixture
def waiting_profile(tiny, tmp_path):
    """Path of a profile with a drafter that is there and one that is still to be trained, at two temperatures."""
    path = tmp_path / "waiting.yaml"
    path.write_text(
        f"""
        defaults: {{target: "{tiny / "target"}", builder: best_first, dtype: float32, top_p: 1.0, top_k: 0, seed: 0,
                    max_new_tokens: 8, budgets: [4], temperatures: [0.0, 1.0],
                    suites: {{"{tiny / "chat.jsonl"}": {{prompts: 2}}}}}}
        tables:
          table1:
            methods:
              ddtree: {{drafter: "{tiny / "drafter-tiny"}", verifier: predraw}}
              exit: {{drafter: "{tmp_path / "exit"}", verifier: tev}}
          table4:
            drafters: {{original: "{tiny / "drafter-tiny"}"}}
            verifiers: [predraw]
            temperatures: [1.0]
        trained:
          "{tmp_path / "exit"}": {{objective: exit, target: "{tiny / "target"}", init: "a folder"}}
        """
    )
    return str(path)


def test_the_paper_profile_is_the_paper_s():
    """Five tables with the paper's targets, budgets, temperatures, verifiers, prompts and repeats, each cell once."""
    cells = load_profile("paper")
    tables = {name: [cell for cell in cells if cell.table == name] for name in (f"table{n}" for n in range(1, 6))}
    lookup = [c for c in tables["table1"] if c.builder == "prompt_lookup"]  # a row of our own
    assert {(c.target, c.drafter, c.budget) for c in lookup} == {("Qwen/Qwen3-4B", "none", 10)}
    tables["table1"] = [c for c in tables["table1"] if c not in lookup]
    assert {c.target for c in tables["table1"]} == TARGETS and {c.budget for c in tables["table1"]} == {64}
    for name in ("table2", "table3", "table4", "table5"):
        assert {c.target for c in tables[name]} == {"Qwen/Qwen3-4B"}
    axes = {
        name: {(cell.budget, cell.temperature) for cell in tables[name]}
        for name in ("table2", "table3", "table4", "table5")
    }
    assert axes["table2"] == {(64, 0.0), (64, 1.0)} and axes["table4"] == {(64, 1.0)}
    assert axes["table3"] == set(itertools.product((32, 64, 128), (0.6, 1.0)))
    assert axes["table5"] == set(itertools.product((32, 64, 128), (0.0, 1.0)))
    decoded = [cell for cell in cells if isinstance(cell, Cell) and cell not in lookup]
    sizes = {"mt_bench": (80, 2), "humaneval": (164, 3), "gsm8k": (128, 3), "math500": (128, 3)}
    assert {cell.suite: (cell.prompts, cell.repeats) for cell in decoded} == sizes
    assert {(c.max_new_tokens, c.dtype, c.builder, c.top_p) for c in decoded} == {(2048, "bfloat16", "best_first", 1.0)}
    verifiers = {cell.role: cell.verifier for cell in tables["table1"]}
    assert verifiers == {"ddtree": "predraw", "opd": "predraw", "exit": "tev", "gain": "tev"}
    assert {cell.role for cell in tables["table2"]} == {"original", "finetune", "prefix", "exit", "gain"}
    assert answers(next(cell for cell in decoded if cell.suite == "mt_bench")) == 80 * 2 * 2


def test_drafters_that_nobody_released_can_be_trained_by_the_stated_command():
    """Every local drafter of the paper profile has parameters that notebook 20 declares, of the right types."""
    cells, trained = load_profile("paper"), load_trained("paper")
    known = declared(nbformat.read(notebook_path("20_train_drafter"), as_version=4), "20_train_drafter")
    local = {cell.drafter: cell.target for cell in cells if cell.drafter.startswith("data/")}
    assert set(local) == set(trained)
    for folder, values in trained.items():
        checked(values, known, "20_train_drafter")
        assert values["target"] == local[folder] and folder.endswith(values["objective"])
    command = plan.training_command("data/drafters/qwen3-4b-exit", trained).split()
    assert command[:5] == ["python", "-m", "tevlib", "notebook", "20_train_drafter"]
    assert {"objective=exit", "target=Qwen/Qwen3-4B", "drafter=data/drafters/qwen3-4b-exit"} <= set(command)


def test_a_drafter_to_be_trained_is_planned_and_a_mistyped_one_refused(waiting_profile, home, tmp_path):
    """The cell of an absent drafter is planned where the profile says how it is made; one that no one makes is an
    error, and the cell's fields alone (a notebook's parameters) are still refused."""
    found = make_plan(waiting_profile)
    states = {(cell.role, state) for cell, _, state in found.cells}
    assert states == {("ddtree", "not run"), ("exit", "not possible yet"), ("original", "not run")}
    waiting = next(cell for cell, _, state in found.cells if state == "not possible yet")
    with pytest.raises(ValueError, match="no drafter at"):
        Cell(**waiting.fields())
    mistyped = tmp_path / "mistyped.yaml"
    mistyped.write_text(open(waiting_profile).read().replace('drafter: "' + str(tmp_path / "exit"), 'drafter: "/exti'))
    with pytest.raises(ValueError, match="no drafter at /exti"):
        load_profile(str(mistyped))


@pytest.mark.parametrize(
    ("trained", "words"),
    [("[a]", "trained must be a mapping"), ("{a: {objective: exit}}", "trained a needs an objective and a target")],
)
def test_bad_recipes_are_refused(waiting_profile, tmp_path, trained, words):
    """A `trained` section of the wrong shape names what is wrong."""
    text = open(waiting_profile).read()
    path = tmp_path / "bad.yaml"
    path.write_text(text[: text.index("        trained:")] + f"        trained: {trained}\n")
    with pytest.raises(ValueError, match=words):
        load_profile(str(path))


def test_cells_and_notebook_runs_are_counted_once(waiting_profile, home, record_of):
    """A cell that two tables share counts once in all and in each table; companies and what is left of them follow."""
    found = make_plan(waiting_profile)
    cells = load_profile(waiting_profile)
    assert len(cells) == 5 and len(distinct(cells)) == 4
    assert {name: states.total() for name, states in found.by_table().items()} == {"table1": 4, "table4": 1}
    assert [len(job.cells) for job in found.jobs] == [2, 2] and [len(job.todo) for job in found.jobs] == [1, 1]
    write_record(record_path(cells[0]), record_of(cells[0]))
    write_failure(record_path(cells[2]), {"error": "boom"})
    again = make_plan(waiting_profile)
    assert sorted(len(job.todo) for job in again.jobs) == [0, 1]
    assert "1 finished, 1 failed" in "\n".join(describe(again))


def test_a_company_is_found_by_any_of_its_cells(waiting_profile, home):
    """Every cell's hash names the whole company; an unknown one is answered, not ignored."""
    cells = load_profile(waiting_profile)
    for company in companies(distinct(cells)):
        for cell in company:
            assert company_of(cells, cell.hash12()) == company
    with pytest.raises(ValueError, match="no cell 'abc'"):
        company_of(cells, "abc")


def test_the_estimate_is_from_records_where_there_are_any(tiny_cell, record_of):
    """One plain decoding and one speculative one a cell, at the recorded seconds per token and share of the length."""
    cell = tiny_cell(max_new_tokens=22)
    records = [record_of(cell)]
    rate = rates(records, "a cpu")[cell.target, cell.dtype]
    assert rate.plain_s == pytest.approx(1.1 / 11) and rate.speculative_s == pytest.approx(0.6 / 11)
    assert rate.share == pytest.approx(0.5) and rates(records, "another machine") == {}
    twice = [tiny_cell(max_new_tokens=220, budget=budget, repeats=2) for budget in (1, 2)]
    tokens = 3 * 2 * 110  # three turns, two repeats
    assert seconds(twice, rate) == pytest.approx(estimate.START_S + tokens * (0.1 + 2 * 0.6 / 11))


def test_the_rule_grows_with_the_active_weights(tiny_cell):
    """Larger targets take longer by the rule, experts count by what is active, a GPU is faster than two cores."""
    cell = next(c for c in load_profile("paper") if c.table == "table1")
    plain = {
        name: by_rule(dataclasses.replace(cell, target=name), estimate.CPU).plain_s
        for name in ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-Coder-30B-A3B-Instruct")
    }
    assert plain["Qwen/Qwen3-8B"] > plain["Qwen/Qwen3-4B"] > plain["Qwen/Qwen3-Coder-30B-A3B-Instruct"]
    assert by_rule(cell, estimate.GPU).plain_s < by_rule(cell, estimate.CPU).plain_s


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen/Qwen3-4B", (4e9, 4e9)),
        ("meta-llama/Llama-3.1-8B-Instruct", (8e9, 8e9)),
        ("google/gemma-4-12b-it", (12e9, 12e9)),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", (30e9, 3e9)),
        ("SmolLM2-135M-Instruct", (135e6, 135e6)),
        ("somebody/a-model", None),
    ],
)
def test_names_say_how_large_a_model_is(name, count):
    """Parameters, and the active ones of a mixture, are read from a hub id; a version number is not a size."""
    assert parameters(name) == count


def test_sizes_follow_from_names_and_files(tiny):
    """16 bits a parameter to download, a drafter an eighth of what is active, files by their own size."""
    assert download_bytes("Qwen/Qwen3-4B") == 8e9 and download_bytes("z-lab/Qwen3-4B-DFlash-b16") == 1e9
    assert download_bytes("z-lab/Qwen3-Coder-30B-A3B-DFlash") == 0.75e9 and download_bytes("a/b") is None
    weights = (tiny / "target" / "model.safetensors").stat().st_size
    assert memory_bytes(str(tiny / "target"), "float32") == int(1.5 * weights)


def test_plan_and_dry_run_say_the_same_and_run_nothing(waiting_profile, home, capsys):
    """Both list every cell with hash and state, the notebook runs, the time's basis and the training command."""
    assert cli.main(["plan", "--profile", waiting_profile]) == 0
    said = capsys.readouterr().out
    assert cli.main(["run", "--profile", waiting_profile, "--dry-run"]) == 0
    assert capsys.readouterr().out == said
    for words in ("notebook runs: 2", "by rough rule", "factor of three", "20_train_drafter", "not possible yet"):
        assert words in said
    assert all(cell.hash12() in said for cell in load_profile(waiting_profile)) and not (home / "runs").exists()


def test_a_run_goes_on_without_what_is_to_be_trained(waiting_profile, home, capsys, record_of, monkeypatch):
    """What is possible is run; the rest is named with its command, and the exit code says that it is not all."""

    def run(notebook, fields, output, timeout):
        given = Cell(**{name: value for name, value in fields.items() if name != "beside"})
        write_record(record_path(given), record_of(given))

    monkeypatch.setattr("tevlib.suite.batch.run_notebook", run)
    assert cli.main(["run", "--profile", waiting_profile]) == 3
    said = capsys.readouterr().out
    assert "2 cells run, 0 were finished already, 0 failed, 2 not possible yet" in said
    assert "20_train_drafter" in said and "objective=exit" in said
