"""Every shipped notebook runs from top to bottom under papermill, with small parameters."""

import re
from pathlib import Path

import nbformat
import pytest

from tevlib.suite import cells as planning
from tevlib.suite.notebook import run_notebook
from tevlib.suite.paths import repository
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome, record_path, write_record

TESTED_ELSEWHERE = {"20_train_drafter"}  # tests/training


def outputs(path: Path) -> str:
    """All text that the executed notebook shows, and a mark for each picture."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    parts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            parts += [output.get("text", ""), data.get("text/html", ""), data.get("text/plain", "")]
            parts += ["<picture>"] if "image/png" in data else []
    return "\n".join(parts)


def test_no_notebook_is_untested():
    """A notebook that no test runs is not shipped."""
    here = Path(__file__).read_text()
    for path in (repository() / "notebooks").glob("*.ipynb"):
        assert path.stem in TESTED_ELSEWHERE or f'run_notebook("{path.stem}"' in here, f"{path.stem} is never run"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_quickstart(tiny, home, temperature):
    """Prompt, tree as text and picture, verdict, speed-up and tau appear; nothing is written to the checkout."""
    parameters = {
        "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"), "suite": str(tiny / "chat.jsonl"),
        "dtype": "float32", "budget": 6, "temperature": temperature, "max_new_tokens": 12,
    }  # fmt: skip
    shown = outputs(run_notebook("00_quickstart", parameters, timeout=120))
    for words in ("speed-up", "ceiling", "<picture>", "tokens from one target pass"):
        assert words in shown


def test_decode_cell(tiny_cell, home):
    """The batch unit leaves a record and shows metrics and the figure of lengths against ceilings."""
    cell = tiny_cell(profile="by_hand")
    shown = outputs(run_notebook("21_decode_cell", cell.fields(), timeout=120))
    assert "tau_pooled" in shown and "<picture>" in shown and str(record_path(cell)) in shown
    assert outcome(cell)["status"] == "finished"


def test_training_cost(tiny, home):
    """Steps of every objective, both ways, and both ways of generating are timed; the token loss is its own unit."""
    parameters = {
        "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"), "dtype": "float32", "sequences": 2,
        "response_tokens": 12, "anchors": 4, "trees": 2, "tree_budget": 5, "repeats": 2, "rows": 2,
        "rollout_prompts": 3, "rollout_tokens": 4,
    }  # fmt: skip
    shown = outputs(run_notebook("23_training_cost", parameters, timeout=120))
    for words in ("cached", "online", "peak_gb", "gain", "opd", "until they stop", ">1.00<"):
        assert words in shown


def test_compare_objectives(tiny, home, tmp_path):
    """Variants and seeds are trained, compared with the reference, written down and drawn."""
    parameters = {
        "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"), "source": str(tiny / "chat.jsonl"),
        "dtype": "float32", "variants": ["finetune", "gain"], "seeds": [0], "prompts": 2, "self_made": 0,
        "max_prompt_tokens": 500, "rollout_tokens": 12, "greedy_share": 0.0, "held_out": 1, "steps": 2,
        "sequences": 1, "anchors": 4, "trees": 2, "contexts": 4, "budgets": [4], "temperatures": [1.0],
        "out": str(tmp_path / "objectives"),
    }  # fmt: skip
    shown = outputs(run_notebook("24_compare_objectives", parameters, timeout=120))
    assert "B4_T1" in shown and "<picture>" in shown
    assert (tmp_path / "objectives" / "objectives.csv").read_text().count("\n") == 2


def test_verifier_cell(tiny, home):
    """Real rounds are replayed and timed; the record is there, the picture shows every verifier."""
    parameters = {
        "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"), "suite": str(tiny / "chat.jsonl"),
        "dtype": "float32", "budget": 5, "rounds": 3, "repeats": 1, "max_new_tokens": 8,
    }  # fmt: skip
    shown = outputs(run_notebook("22_verifier_cell", parameters, timeout=120))
    assert "less than predraw" in shown and "<picture>" in shown
    assert len(list((home / "data" / "results").glob("*.json"))) == 1


def test_table3(home, tiny, tmp_path):
    """The table notebook shows the paper's milliseconds and what was not run, and writes the files."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        f"""
        defaults: {{target: "{tiny / "target"}", dtype: float32, seed: 0, max_new_tokens: 8}}
        tables:
          table3: {{drafter: "{tiny / "drafter-tiny"}", shapes: [own], temperatures: [0.6], budgets: [64],
                    suites: [gsm8k, math500], prompts: 1, rounds: 2, repeats: 1}}
        """
    )
    shown = outputs(run_notebook("33_table3_latency", {"profile": str(path)}, timeout=120))
    assert "1.193 (-17.3%)" in shown and "not run" in shown
    assert (home / "data" / "tables" / "table3.csv").is_file()


def test_table2(home, record_of, monkeypatch):
    """Paper, ours, what was not run, changes against a row, the picture and the audit appear; the files are written."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    cells = load_profile("paper", tables=["table2"])
    for cell in cells[:4]:
        write_record(record_path(cell), record_of(cell))
    picture = home / "pictures" / "table2.png"
    shown = outputs(run_notebook("32_table2_objectives", {"profile": "paper", "picture": str(picture)}, timeout=120))
    for words in (
        "Original drafter",
        "ours - paper",
        "not run",
        "7.80",
        "2.00 (2.00..2.00)",
        "table2.tex",
        "<picture>",
    ):
        assert words in shown
    assert picture.is_file() and (home / "data" / "tables" / "table2.csv").is_file()


def test_table2_with_nothing_run(home, monkeypatch):
    """Before any record there is, the notebook runs to its end and says so."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    shown = outputs(run_notebook("32_table2_objectives", {"profile": "paper"}, timeout=120))
    assert "nothing run yet" in shown and "not run" in shown


def test_table4(home, record_of, monkeypatch):
    """The table notebook reads records, shows paper, ours, difference and the audit, and writes the files."""
    monkeypatch.setattr(planning, "_check_drafter", lambda drafter: None)
    for cell in load_profile("paper", tables=["table4"])[:3]:
        write_record(record_path(cell), record_of(cell))
    shown = outputs(run_notebook("34_table4_crossed", {"profile": "paper"}, timeout=120))
    for words in ("ours - paper", "not run", "2.00", "7.85", "1 + C_p", "table4.tex"):
        assert words in shown
    assert (home / "data" / "tables" / "table4.csv").is_file()


@pytest.fixture
def tables_home(reported, monkeypatch):
    """The results folder of the tiny profile, all its cells finished, and the profile's path."""
    home, profile = reported
    monkeypatch.setenv("TEVLIB_HOME", str(home))
    return home, profile


def test_table1(tables_home):
    """Methods, the paper's numbers, the picture and the audit appear; files of table and picture are written."""
    home, profile = tables_home
    shown = outputs(run_notebook("31_table1_main", {"profile": profile}, timeout=240))
    for words in ("DDTree", "ours - paper", "8.06", "1 + C_p", "table1.tex", "<picture>", "95% intervals"):
        assert words in shown
    assert (home / "data" / "tables" / "table1.csv").is_file()
    assert (home / "figures" / "tiny" / "methods.svg").is_file()


def test_table5(tables_home, tmp_path):
    """Budgets, the picture and the audit appear; with `figures` the picture goes there."""
    home, profile = tables_home
    parameters = {"profile": profile, "figures": str(tmp_path / "pictures")}
    shown = outputs(run_notebook("35_table5_budgets", parameters, timeout=240))
    for words in ("ExitTrain + TEV", "ours - paper", "table5.tex", "<picture>"):
        assert words in shown
    assert (home / "data" / "tables" / "table5.csv").is_file()
    assert (tmp_path / "pictures" / "budgets.pdf").is_file()


def test_figures(tables_home):
    """Every figure is drawn from a finished profile."""
    shown = outputs(run_notebook("36_figures", {"profile": tables_home[1]}, timeout=240))
    assert shown.count("<picture>") == 10 and "10 of 10 figures" in shown and "not drawn" not in shown


def test_tables_and_figures_with_nothing_run(reported, home):
    """Before any record there is, the three notebooks run to their end and say what would fill the gaps."""
    profile = {"profile": reported[1]}
    for notebook, words in (("31_table1_main", "--tables 1"), ("35_table5_budgets", "--tables 5")):
        shown = outputs(run_notebook(notebook, profile, timeout=240))
        assert "not run" in shown and "not drawn" in shown and words in shown and "<picture>" not in shown
    assert "2 of 10 figures" in outputs(run_notebook("36_figures", profile, timeout=240))


EXIT_LAW = {"toy_plays": 300, "plays": 20, "sampled_rounds": 2, "chains": 3, "max_new_tokens": 8}


def test_exit_law(tiny, home):
    """Toy and tiny real trees: laws, both forms of C_p, three verifiers, gains, both sides of Eq. 55, and pictures."""
    parameters = EXIT_LAW | {
        "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"), "suite": str(tiny / "chat.jsonl"),
        "dtype": "float32", "budget": 6, "chain_length": 2, "temperature": 0.7,
        "figures": str(home / "pictures"),
    }  # fmt: skip
    shown = outputs(run_notebook("10_exit_law", parameters, timeout=120))
    for words in ("sum of w: 1.000000000000", "E[D]", "z = ", "Eq. 55 holds", "argmax chain of 2", "could have"):
        assert words in shown
    assert shown.count("<picture>") == 6
    written = {path.stem for path in (home / "pictures").glob("*.png")}
    assert written == {"course_toy", "course_real", "course_chains"}


def sections(name: str) -> dict[int, list[nbformat.NotebookNode]]:
    """The cells of each exercise of a notebook of the course, by the number in its heading."""
    found, number = {}, None
    for cell in nbformat.read(repository() / "notebooks" / f"{name}.ipynb", as_version=4).cells:
        if cell.cell_type == "markdown" and (heading := re.match(r"## (?:(\d)\. )?", cell.source)):
            number = int(heading[1]) if heading[1] else None
        if number:
            found.setdefault(number, []).append(cell)
    return found


def test_reading_group(home):
    """With nothing filled in it runs from top to bottom: eight exercises are open, none is an error or wrong."""
    shown = outputs(run_notebook("12_reading_group", timeout=120))
    assert "0 of 8 right" in shown and "not right yet" not in shown
    for number in range(1, 9):
        assert f"Exercise {number}: not answered yet." in shown
    assert "<picture>" not in shown  # the drawing shows w, the answer to the first exercise


def test_reading_group_answers(home):
    """Every check passes, with the pictures and tables that go with the answers."""
    shown = outputs(run_notebook("13_reading_group_answers", {"steps": [1.0, 3.0]}, timeout=120))
    assert "8 of 8 right" in shown and "<picture>" in shown and "exit weights w(v)" in shown


def test_reading_group_filled_in(home, tmp_path):
    """The exercises with the answers' cells in place of their own: all right, and what was held back is shown."""
    notebook = nbformat.read(repository() / "notebooks" / "12_reading_group.ipynb", as_version=4)
    answers = {
        re.search(r"^ex\d = ", cell.source, re.MULTILINE)[0]: cell.source
        for cells in sections("13_reading_group_answers").values()
        for cell in cells
        if cell.cell_type == "code" and re.search(r"^ex\d = ", cell.source, re.MULTILINE)
    }
    for cell in notebook.cells:
        if cell.cell_type == "code" and (found := re.search(r"^ex\d = ", cell.source, re.MULTILINE)):
            cell.source = answers.pop(found[0])
    assert not answers
    nbformat.write(notebook, tmp_path / "filled_in.ipynb")
    shown = outputs(run_notebook(tmp_path / "filled_in.ipynb", {"steps": [3.0]}, timeout=120))
    assert "8 of 8 right" in shown and "<picture>" in shown and "step 3" in shown


def test_exercises_and_answers_go_together():
    """The same eight headings and checks in both, a hint to open in each exercise, no answer in the exercises."""
    asked, answered = sections("12_reading_group"), sections("13_reading_group_answers")
    assert sorted(asked) == sorted(answered) == list(range(1, 9))
    for number, cells in asked.items():
        assert cells[0].source.splitlines()[0] == answered[number][0].source.splitlines()[0]
        assert "<details><summary>Hint</summary>" in cells[0].source
        ours, theirs = (
            re.findall(r"^ex\d = (check_\w+\(.*\))$", "\n".join(cell.source for cell in group), re.MULTILINE)
            for group in (cells, answered[number])
        )
        assert len(ours) == 1 and ours == theirs
        assert any("..." in cell.source for cell in cells if cell.cell_type == "code")


def test_tree_explorer(tiny, home):
    """The shipped rounds open without a model, a prompt of one's own decodes, and the widgets' state is saved."""
    parameters = {
        "prompt": "Say a.", "target": str(tiny / "target"), "drafter": str(tiny / "drafter-tiny"), "dtype": "float32",
        "budget": 6, "temperature": 1.0, "max_new_tokens": 8,
    }  # fmt: skip
    path = run_notebook("11_tree_explorer", parameters, timeout=120)
    assert outputs(path).count("<picture>") == 2
    assert "mean" in outputs(path) and "ceiling" in outputs(path)
    widgets = nbformat.read(path, as_version=4).metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert sum("scene" in model["state"] for model in widgets.values()) == 2


@pytest.mark.slow
def test_quickstart_as_shipped(home):
    """With its defaults the quickstart runs on the shipped drafter and the offline target."""
    shown = outputs(run_notebook("00_quickstart", {"max_new_tokens": 32}, timeout=600))
    assert "SmolLM2-135M-Instruct" in shown and "<picture>" in shown


@pytest.mark.slow
def test_exit_law_as_shipped(home):
    """With its defaults but fewer plays it runs on the shipped drafter and the offline target."""
    shown = outputs(run_notebook("10_exit_law", EXIT_LAW, timeout=600))
    assert "SmolLM2-135M-Instruct" in shown and shown.count("<picture>") == 6


@pytest.mark.slow
def test_decode_cell_as_shipped(home):
    """With its defaults the batch unit runs on the shipped drafter, and its audit holds."""
    run_notebook("21_decode_cell", {"max_new_tokens": 16}, timeout=600)
    (record,) = [p for p in (home / "data" / "results").glob("*.json")]
    assert record.is_file()
