"""The command line: one line for a bad request, exit codes that can be trusted."""

import os
import subprocess
import sys
import textwrap

import pytest

from tevlib import cli
from tevlib.suite.profile import load_profile
from tevlib.suite.records import record_path, write_failure, write_record


@pytest.fixture
def profile(tiny_fields, tmp_path):
    """Path of a profile with two tiny cells."""
    fields = tiny_fields
    path = tmp_path / "tiny.yaml"
    path.write_text(
        textwrap.dedent(f"""
            defaults: {{target: {fields["target"]}, builder: best_first, dtype: float32, top_p: 1.0, top_k: 0, seed: 0}}
            tables:
              table4:
                drafters: {{original: {fields["drafter"]}}}
                verifiers: [predraw, tev]
                budgets: [6]
                temperatures: [1.0]
                max_new_tokens: 8
                suites: {{{fields["suite"]}: {{prompts: 1}}}}
        """)
    )
    return str(path)


BAD = {
    "unknown command": (["rnu"], "did you mean 'run'"),
    "unknown profile": (["run", "--profile", "labtop"], "did you mean 'laptop'"),
    "unknown table": (["run", "--profile", "smoke", "--tables", "44"], "unknown table '44'"),
    "unknown table of several": (["plan", "--profile", "smoke", "--tables", "1,44"], "unknown table '44'"),
    "both after a failure": (["run", "--keep-going", "--fail-fast"], "not allowed with"),
    "unknown notebook": (["notebook", "21_decode_cel"], "did you mean '21_decode_cell'"),
    "unknown parameter": (["notebook", "21_decode_cell", "budgte=3"], "did you mean 'budget'"),
    "wrong type": (["notebook", "21_decode_cell", "max_new_tokens=3.5"], "'max_new_tokens' must be int"),
    "no value": (["notebook", "21_decode_cell", "budget"], "name=value"),
    "unknown wheel": (["fetch", "no-such-wheel"], "unknown asset"),
}


def test_tables_are_named_with_commas_or_spaces(capsys, home):
    """`--tables 1,4`, `--tables 1 4` and `--tables 1,4 1` list the same cells, which are fewer than all."""
    shown = []
    for tables in (["1,4"], ["1", "4"], ["1,4", "1"]):
        assert cli.main(["run", "--dry-run", "--keep-going", "--profile", "smoke", "--tables", *tables]) == 0
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1 and "table4" in shown[0] and "table2" not in shown[0]


@pytest.mark.parametrize("what", BAD)
def test_bad_requests_are_one_line_and_exit_code_2(what, capsys, home):
    """A user's mistake is answered with what would be right, exit code 2, and no traceback."""
    arguments, words = BAD[what]
    try:
        code = cli.main(arguments)
    except SystemExit as error:  # argparse's own way out
        code = error.code
    said = capsys.readouterr().err
    assert code == 2 and words in said and "Traceback" not in said
    assert len([line for line in said.splitlines() if "error" in line]) == 1


def test_help_is_instant_and_light():
    """`--help` loads neither pandas nor torch nor papermill."""
    code = "import sys, tevlib.cli\ntry: tevlib.cli.main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pandas", "torch", "papermill", "numpy", "yaml"} & set(loaded)


def test_a_dry_run_lists_and_runs_nothing(profile, capsys, home):
    """`--dry-run` names each cell, its hash and its state."""
    assert cli.main(["run", "--profile", profile, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("not run ") == 2 and "2 cells (2 different), 0 finished" in said
    assert all(cell.hash12() in said for cell in load_profile(profile))
    assert not (home / "runs").exists()


def test_the_table_shows_what_there_is(profile, capsys, home, record_of):
    """`table 4` writes and prints finished and failed cells from their files, and says where everything lies."""
    first, second = load_profile(profile)
    write_record(record_path(first), record_of(first))
    write_failure(record_path(second), {"error": "boom"})
    assert cli.main(["table", "4", "--profile", profile]) == 0
    said = capsys.readouterr().out
    assert "2.00" in said and "failed" in said and str(home / "data" / "tables" / "table4.csv") in said
    assert cli.main(["plan", "--profile", profile]) == 0
    assert "2 cells (2 different), 1 finished, 1 failed" in capsys.readouterr().out


def test_failed_cells_give_exit_code_1(profile, capsys, home, monkeypatch):
    """A batch with a failed cell still writes the table, names the cell, and does not exit with 0."""
    monkeypatch.setattr("tevlib.suite.batch.run_notebook", lambda *arguments, **options: None)
    assert cli.main(["run", "--profile", profile]) == 1
    captured = capsys.readouterr()
    assert "2 failed" in captured.out and "failed: original + tev" in captured.err


def test_ctrl_c_is_130_and_no_traceback(profile, capsys, home, monkeypatch):
    """Ctrl-C ends with one line and the usual exit code."""

    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("tevlib.suite.batch.run_notebook", interrupt)
    assert cli.main(["run", "--profile", profile]) == 130
    assert "the same command goes on" in capsys.readouterr().err


@pytest.mark.slow
def test_run_end_to_end_and_again(profile, home, tmp_path):
    """`python -m tevlib run` from a foreign folder: real cells under papermill, the table on disk; the second call runs
    nothing, loads no torch, and gives the same table."""
    command = [sys.executable, "-X", "importtime", "-m", "tevlib", "run", "--profile", profile]
    runs = [
        subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"COLUMNS": "200"})
        for _ in range(2)
    ]
    assert [run.returncode for run in runs] == [0, 0], runs[0].stderr[-2000:]
    assert "2 cells run, 0 were finished already" in runs[0].stdout
    assert "0 cells run, 2 were finished already" in runs[1].stdout
    assert runs[0].stdout.split("\n\n")[:3] == runs[1].stdout.split("\n\n")[:3]
    assert not any(line.split("|")[-1].strip() in ("torch", "papermill") for line in runs[1].stderr.splitlines())
    assert {p.suffix for p in (home / "data" / "tables").iterdir()} == {".csv", ".md", ".html", ".tex"}
