"""Running a notebook: every way to fail is noticed, and output appears only whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from tevlib.suite.notebook import NotebookFailed, notebook_path, run_notebook
from tevlib.suite.paths import repository


def text_of(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(o.text for c in cells if c.cell_type == "code" for o in c.outputs if o.output_type == "stream")


def partials(home):
    return [p for p in (home / "runs" / ".partial").glob("*")] if home.exists() else []


def running(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    return state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def wait_until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_runs_here_with_the_parameters_and_the_kernel_of_this_interpreter(write_notebook, home, tmp_path, monkeypatch):
    """papermill#251, #638: a notebook made for a kernel that is not installed runs under this very interpreter, from
    the repository's root whatever our own folder is, in a path with spaces and braces (papermill formats paths)."""
    monkeypatch.chdir(tmp_path)
    path = write_notebook(
        "import os, sys; print(sys.executable, a, os.getcwd(), sep='|')", name="a {b} {}.ipynb", kernel="bogus"
    )
    output = run_notebook(path, {"a": 7}, tmp_path / "out {x}" / "o.ipynb")
    assert text_of(output).strip().split("|") == [sys.executable, "7", str(repository())]
    assert Path.cwd() == tmp_path and not partials(home)


@pytest.mark.parametrize("parameters", [{"b": 1}, {"a": "1"}])
def test_bad_parameters_start_no_kernel(write_notebook, home, tmp_path, parameters):
    """An unknown or ill-typed parameter fails before anything runs."""
    marker = tmp_path / "ran"
    path = write_notebook(f"open({str(marker)!r}, 'w')")
    with pytest.raises(ValueError, match="parameter"):
        run_notebook(path, parameters)
    assert not marker.exists()


def test_unknown_notebooks_are_answered_with_the_nearest():
    """A misspelt notebook is a ValueError with a suggestion; a path that is not there one that names it."""
    with pytest.raises(ValueError, match="did you mean '21_decode_cell'"):
        notebook_path("21_decode_cel")
    with pytest.raises(ValueError, match=r"no notebook at x\.ipynb"):
        notebook_path("x.ipynb")


FAILURES = {
    "exception": ("1 / 0", "ZeroDivisionError", {}),
    "sys.exit(0)": ("import sys; sys.exit(0)", "sys.exit", {}),  # papermill returns normally
    "sys.exit(1)": ("import sys; sys.exit(1)", "SystemExit", {}),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "died", {}),  # papermill says `completed`
    "timeout": ("import time; time.sleep(60)", "no end within 1 seconds", {"timeout": 1}),  # and here too
}


@pytest.mark.parametrize("how", FAILURES)
def test_failures_are_noticed_and_name_cell_and_log(write_notebook, home, tmp_path, how):
    """papermill#125, #337, #501: raise, sys.exit, kill -9 and timeout each raise NotebookFailed at the right cell; the
    output's name stays free, what ran is kept beside it, and no kernel is left."""
    source, words, options = FAILURES[how]
    pid_file = tmp_path / "pid"
    path = write_notebook(
        f"import os; print('so far'); open({str(pid_file)!r}, 'w').write(str(os.getpid()))", source, "2"
    )
    output = tmp_path / "out.ipynb"
    with pytest.raises(NotebookFailed, match=words) as caught:
        run_notebook(path, {"a": 2}, output, **options)
    assert caught.value.cell == 2 and f"cell 2 `{source}`" in str(caught.value)
    assert "so far" in caught.value.log.read_text()
    assert not output.exists() and (tmp_path / "out.failed.ipynb").is_file() and not partials(home)
    wait_until(lambda: not running(int(pid_file.read_text())), 10)


def test_an_earlier_output_survives_a_failure(write_notebook, home, tmp_path):
    """A failing rerun leaves the last whole output as it was; the next good run removes the failed copy."""
    output = tmp_path / "out.ipynb"
    run_notebook(write_notebook("print('first')"), None, output)
    before = output.read_bytes()
    with pytest.raises(NotebookFailed):
        run_notebook(write_notebook("1 / 0"), None, output)
    assert output.read_bytes() == before
    run_notebook(write_notebook("print('second')"), None, output)
    assert "second" in text_of(output) and not (tmp_path / "out.failed.ipynb").exists()


def test_chatty_cells_survive(write_notebook, home):
    """papermill#426: fifty thousand lines of output must not end the run."""
    output = run_notebook(write_notebook("for i in range(50_000): print(i)", "print('end')"))
    assert text_of(output).endswith("end\n")


RUNNER = """
from pathlib import Path
from tevlib.suite.notebook import run_notebook
run_notebook(Path({path!r}), None, Path({output!r}))
"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_no_kernel_outlives_its_runner(write_notebook, home, tmp_path, signal_number):
    """papermill#478: kill -9 and Ctrl-C of the runner leave neither a kernel nor an output; Ctrl-C passes through."""
    pid_file, output = tmp_path / "pid", tmp_path / "out.ipynb"
    path = write_notebook(
        f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid()) + ' '); time.sleep(120)"
    )
    code = RUNNER.format(path=str(path), output=str(output))
    runner = subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith(" "), 60)
    runner.send_signal(signal_number)
    error = runner.communicate(timeout=60)[1]
    assert runner.returncode != 0 and not output.exists()
    if signal_number == signal.SIGINT:
        assert "KeyboardInterrupt" in error or "CancelledError" in error
    wait_until(lambda: not running(int(pid_file.read_text())), 30)
