"""Many cells: resume after a crash, failures that show, and no cell run twice."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tevlib.suite import batch
from tevlib.suite.batch import run_cells, run_on_each
from tevlib.suite.devices import held
from tevlib.suite.notebook import NotebookFailed
from tevlib.suite.paths import repository
from tevlib.suite.records import failed_path, outcome, record_path, write_failure, write_record

RUNNER = """
import json, sys, time
from pathlib import Path
from tests.synthetic import synthetic_record
from tevlib.suite.batch import run_cells
from tevlib.suite.cells import Cell
from tevlib.suite.records import record_path, write_record

fields, log, seconds = json.loads(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

def run(cells, output):
    (cell,) = cells
    with log.open("a") as file:
        file.write(f"start {cell.seed}\\n")
    time.sleep(seconds)
    write_record(record_path(cell), synthetic_record(cell))
    with log.open("a") as file:
        file.write(f"end {cell.seed}\\n")

print(run_cells([Cell(**fields | {"seed": seed}) for seed in range(4)], run=run))
"""


@pytest.fixture
def runner(tiny_fields, tmp_path):
    """A function: start a process that runs four cells, each of the given seconds, and logs start and end of each."""
    log = tmp_path / "log"
    started = []

    def start(seconds):
        command = [sys.executable, "-c", RUNNER, json.dumps(tiny_fields), str(log), str(seconds)]
        root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
        process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    start.lines = lambda: log.read_text().splitlines() if log.exists() else []
    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def finish(record_of):
    """A `run` that writes records at once and remembers the cells it was given."""

    def run(cells, output):
        run.cells += cells
        for cell in cells:
            write_record(record_path(cell), record_of(cell))

    run.cells = []
    return run


def test_finished_cells_are_not_run_again(tiny_cell, record_of):
    """A second call runs nothing; a damaged record and a new cell are run, the others are not."""
    cells = [tiny_cell(seed=seed) for seed in range(3)]
    run = finish(record_of)
    assert str(run_cells(cells, run=run)) == "3 cells run, 0 were finished already, 0 failed"
    run.cells.clear()
    assert run_cells(cells, run=run).skipped == 3 and run.cells == []
    record_path(cells[1]).write_text("{")
    new = tiny_cell(seed=9)
    summary = run_cells([*cells, new], run=run)
    assert run.cells == [cells[1], new] and (summary.ran, summary.skipped) == (2, 2)


@pytest.mark.parametrize("keep_going", [True, False])
def test_a_failing_cell_is_recorded_and_the_rest_goes_on(tiny_cell, record_of, keep_going):
    """A failed cell leaves `.failed.json` and shows in the summary; the next cells run unless told otherwise."""
    cells = [tiny_cell(seed=seed) for seed in range(3)]
    good = finish(record_of)

    def run(cells, output):
        if cells[0].seed == 1:
            raise NotebookFailed("cell 3: the kernel died", 3, output)
        good(cells, output)

    summary = run_cells(cells, keep_going=keep_going, run=run)
    assert [(cell.seed, error) for cell, error in summary.failures] == [(1, "cell 3: the kernel died")]
    states = [outcome(cell)["status"] for cell in cells]
    assert states == ["finished", "failed", "finished" if keep_going else "not run"]
    assert run_cells(cells, run=good).failures == [] and not failed_path(record_path(cells[1])).exists()


def test_a_run_without_a_record_failed(tiny_cell):
    """A notebook that ends well but leaves no record (sys.exit, an early return) is a failure, not a success."""
    summary = run_cells([tiny_cell()], run=lambda cells, output: None)
    assert len(summary.failures) == 1 and "without a record" in outcome(tiny_cell())["error"]


def test_bugs_are_not_taken_for_failed_cells(tiny_cell):
    """Only what a cell may raise is recorded; anything else comes out with its traceback."""

    def run(cells, output):
        raise TypeError("a bug")

    with pytest.raises(TypeError, match="a bug"):
        run_cells([tiny_cell()], run=run)
    with held("machine-x", wait=False) as mine:
        assert mine, "a lock was kept"


def test_two_runners_share_the_cells(runner):
    """Two runners at once: each cell starts exactly once, one at a time, and both end well."""
    first, second = runner(0.3), runner(0.3)
    outputs = [process.communicate(timeout=120) for process in (first, second)]
    assert first.returncode == second.returncode == 0, outputs
    lines = runner.lines()
    assert sorted(lines) == sorted(f"{what} {seed}" for what in ("start", "end") for seed in range(4))
    for start, end in zip(lines[::2], lines[1::2], strict=True):
        assert start.split() == ["start", end.split()[1]] and end.startswith("end"), f"two at once: {lines}"


def test_kill_9_loses_only_the_running_cell(runner):
    """After kill -9 in the middle of a cell the finished ones stay, the locks are free, and only the rest is run."""
    victim = runner(2.0)
    wait_until(lambda: "start 1" in runner.lines())
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    rescuer = runner(0.0)
    output = rescuer.communicate(timeout=120)[0]
    assert "3 cells run, 1 were finished already, 0 failed" in output
    starts = [line for line in runner.lines() if line.startswith("start")]
    assert starts == ["start 0", "start 1", "start 1", "start 2", "start 3"]


def test_a_failure_elsewhere_is_not_tried_again_in_the_same_batch(tiny_cell, record_of):
    """What another runner failed at after this batch began is this batch's failure too; an older one is tried again."""
    cells = [tiny_cell(seed=seed) for seed in range(3)]
    write_failure(record_path(cells[1]), {"error": "an old one"})
    good, tried = finish(record_of), []

    def run(cells, output):
        tried.append(cells[0].seed)
        if cells[0].seed == 0:  # meanwhile, another runner
            write_failure(record_path(tiny_cell(seed=2)), {"error": "elsewhere"})
        good(cells, output)

    summary = run_cells(cells, run=run)
    assert tried == [0, 1] and summary.ran == 2
    assert [(cell.seed, error) for cell, error in summary.failures] == [(2, "elsewhere")]


def test_two_devices_share_one_batch(tiny_cell, monkeypatch):
    """A runner for each device, each in a process of its own: every cell once, whoever takes it, counted together."""
    seen = []

    def run(cells, **how):
        seen.append(how)
        return batch.Summary(0, 2, [(cells[0], "x")])

    monkeypatch.setattr(batch, "run_cells", run)

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers, mp_context):
            assert mp_context.get_start_method() == "spawn"
            super().__init__(workers)

    monkeypatch.setattr(batch, "ProcessPoolExecutor", Pool)
    summary = run_on_each([tiny_cell()], ["0", "1"], keep_going=True)
    assert sorted(how["devices"] for how in seen) == [["0"], ["1"]] and len({how["since"] for how in seen}) == 1
    assert summary.ran == 4 and len(summary.failures) == 1


@pytest.fixture
def full_disk(tmp_path):
    """A folder on a file system of 64 kB that is nearly full; skipped where none can be mounted."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk_is_a_failed_cell_and_not_half_a_record(tiny_cell, record_of, full_disk, monkeypatch):
    """A disk that fills while a record is written: the cell fails with the system's words, no part of a record and no
    temporary file stays, and with room again it is run."""
    monkeypatch.setenv("TEVLIB_HOME", str(full_disk))
    cell, good = tiny_cell(), finish(record_of)

    def run(cells, output):
        large = record_of(cells[0]) | {"notes": "x" * 100_000}
        write_record(record_path(cells[0]), large)

    summary = run_cells([cell], run=run)
    assert len(summary.failures) == 1 and "No space left" in summary.failures[0][1]
    assert outcome(cell)["status"] == "failed"
    assert [path.name for path in record_path(cell).parent.iterdir()] == [failed_path(record_path(cell)).name]
    assert run_cells([cell], run=good).ran == 1 and outcome(cell)["status"] == "finished"


def test_a_killed_kernel_is_a_failed_cell_and_the_next_is_run(tiny_cell, home, monkeypatch):
    """kill -9 of a cell's kernel (as the system does when memory is out) is noticed, recorded and reported by exit
    code; the other cells are finished and the failed one is tried again by the next call."""
    cells = [tiny_cell(max_new_tokens=400), tiny_cell(seed=1, max_new_tokens=4)]
    answers = home / "runs" / "test" / f"{cells[0].hash12()}.responses.jsonl"
    original = batch.run_notebook

    def run(notebook, fields, output, timeout):
        if fields["seed"] == 0 and not marks:
            marks.append(fields)
            killer = threading.Thread(target=kill_own_kernel, args=[answers])
            killer.start()
            try:
                return original(notebook, fields, output, timeout=timeout)
            finally:
                killer.join()
        return original(notebook, fields, output, timeout=timeout)

    marks = []
    monkeypatch.setattr(batch, "run_notebook", run)
    summary = run_cells(cells)
    assert [(cell.seed, "the kernel died" in error) for cell, error in summary.failures] == [(0, True)]
    assert [outcome(cell)["status"] for cell in cells] == ["failed", "finished"] and answers.is_file()
    assert run_cells(cells).ran == 1 and outcome(cells[0])["status"] == "finished"


def kill_own_kernel(answers):
    """Kill -9 the kernel that this process started, once it decodes: when there is a file for its `answers`."""

    def kernels():
        children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
        pids = [pid for file in children for pid in file.read_text().split()]
        return [pid for pid in pids if "ipykernel_launcher" in Path(f"/proc/{pid}/cmdline").read_text()]

    wait_until(answers.is_file)
    for pid in kernels():
        os.kill(int(pid), signal.SIGKILL)


def test_cells_run_in_the_notebook(tiny_cell, home):
    """The default way: papermill runs 21_decode_cell with the cell's fields; the executed notebook is kept; a second
    batch starts no kernel."""
    cell = tiny_cell()
    assert run_cells([cell]).ran == 1
    found = outcome(cell)
    assert found["status"] == "finished" and len(found["responses"]) == 3
    assert (home / "runs" / "test" / f"{cell.hash12()}.ipynb").is_file()

    def forbidden(*arguments, **options):
        raise AssertionError("a kernel was started")

    original, batch.run_notebook = batch.run_notebook, forbidden
    try:
        assert run_cells([cell]).skipped == 1
    finally:
        batch.run_notebook = original


@pytest.mark.parametrize("folder", ["notebooks", "elsewhere"])
def test_cells_run_from_any_folder_into_a_path_with_spaces_and_braces(tiny_cell, tmp_path, monkeypatch, folder):
    """papermill#268, #316: where we stand decides nothing, and a results folder may be called anything."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(repository() / "notebooks" if folder == "notebooks" else tmp_path / "elsewhere")
    monkeypatch.setenv("TEVLIB_HOME", str(tmp_path / "my {results} {} of today"))
    cell = tiny_cell(prompts=1, max_new_tokens=4)
    assert run_cells([cell]).ran == 1 and outcome(cell)["status"] == "finished"
    assert list((tmp_path / "my {results} {} of today" / "runs" / "test").glob("*.ipynb"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_tables_share_is_run_once(tiny_cell, home, record_of):
    """Two tables' cells that are the same work have one record; each table sees it as its own cell."""
    cells = [tiny_cell(table="table2", role="original"), tiny_cell(table="table4", role="base"), tiny_cell(seed=1)]
    ran = []

    def run(cells, output):
        for cell in cells:
            ran.append((cell.table, cell.seed))
            write_record(record_path(cell), record_of(cell))

    summary = run_cells(cells, run=run)
    assert ran == [("table2", 0), ("table4", 1)] and (summary.ran, summary.skipped) == (2, 0)
    assert run_cells(cells, run=run).skipped == 2
    assert [outcome(cell)["cell"] for cell in cells] == [cell.fields() for cell in cells]
    assert {outcome(cell)["status"] for cell in cells} == {"finished"}


def test_cells_on_the_same_prompts_share_a_notebook(tiny_cell, tiny, home):
    """Verifiers, budgets and drafters on one suite and temperature run in one kernel, against one plain decoding; each
    has a record of its own, equal to the one that it gets alone but for the times."""
    cells = [tiny_cell(verifier=verifier) for verifier in ("predraw", "tev")] + [tiny_cell(budget=3, table="table5")]
    other = tiny_cell(temperature=0.0)
    assert run_cells([*cells, other]).ran == 4
    assert len(list((home / "runs" / "test").glob("*.ipynb"))) == 2
    found = [outcome(cell) for cell in cells]
    assert [one["beside"] for one in found] == [[c.hash12() for c in cells if c != cell] for cell in cells]
    plain = [[(row["ar_tokens"], row["ar_s"], row["first"]) for row in one["responses"]] for one in found]
    assert plain[0] == plain[1] == plain[2]
    for cell, one in zip(cells, found, strict=True):
        record_path(cell).unlink()
        assert run_cells([cell]).ran == 1
        alone = outcome(cell)
        assert alone["beside"] == [] and alone["cell"] == cell.fields() == one["cell"]
        for name in ("tau", "tau_pooled", "ceiling", "audit_z", "tokens", "rounds"):
            assert alone["metrics"][name] == one["metrics"][name], name


def test_one_cell_does_not_spoil_those_beside_it(tiny_cell, record_of):
    """A notebook that dies with several cells in it is done again cell by cell: the one at fault fails, the others do
    not; one that wrote its own failure is not tried twice."""
    cells = [tiny_cell(budget=budget) for budget in (1, 2, 3)]
    good, calls = finish(record_of), []

    def run(cells, output):
        calls.append([cell.budget for cell in cells])
        if any(cell.budget == 2 for cell in cells):
            raise NotebookFailed("the kernel died", 3, output)
        good(cells, output)

    summary = run_cells(cells, run=run)
    assert calls == [[1, 2, 3], [1], [2], [3]] and summary.ran == 2
    assert [(cell.budget, error) for cell, error in summary.failures] == [(2, "the kernel died")]

    def fail_one(cells, output):
        calls.append([cell.budget for cell in cells])
        good([cell for cell in cells if cell.budget != 5], output)
        write_failure(record_path(tiny_cell(budget=5)), {"error": "1 of 3 answers failed"})
        raise NotebookFailed("CellFailed: 1 of 3 answers failed", 3, output)

    calls.clear()
    summary = run_cells([tiny_cell(budget=budget) for budget in (4, 5)], run=fail_one)
    assert calls == [[4, 5]] and summary.ran == 1
    assert [(cell.budget, error) for cell, error in summary.failures] == [(5, "1 of 3 answers failed")]
