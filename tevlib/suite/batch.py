"""Run many cells: finished ones are skipped, failures are recorded, a restart goes on.

Cells of one company (`Work.company`) are done side by side in one notebook, companies one after the other.
Two locks keep runners apart. A cell's own lock is held while it runs, so that no cell is ever run twice; a second
runner takes the next cell that is free. A device's lock is held as well, so that two cells never share a GPU, or the
CPU, and spoil each other's times. The system drops both with the process that holds them, however it ends.
"""

import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tevlib.suite.cells import Work
from tevlib.suite.devices import devices as all_devices
from tevlib.suite.devices import held, one_of, only
from tevlib.suite.notebook import NotebookFailed, run_notebook
from tevlib.suite.paths import home
from tevlib.suite.plan import companies, distinct
from tevlib.suite.records import failed_path, read_record, record_path, write_failure

CELL_TIMEOUT_S = 24 * 3600.0


@dataclass
class Summary:
    """What a batch did: counts of cells finished before, run now, failed (with their errors), and not possible yet."""

    skipped: int = 0
    ran: int = 0
    failures: list[tuple[Work, str]] = field(default_factory=list)
    impossible: list[Work] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.ran} cells run, {self.skipped} were finished already, {len(self.failures)} failed"
        return text + (f", {len(self.impossible)} not possible yet" if self.impossible else "")


def run_cells(
    cells: Sequence[Work],
    *,
    keep_going: bool = True,
    timeout: float = CELL_TIMEOUT_S,
    run: Callable[[Sequence[Work], Path], None] | None = None,
    devices: Sequence[str] | None = None,
    since: int | None = None,
    place: int = 0,
) -> Summary:
    """The `Summary` after every cell has a record or a failure, but for those whose drafter is still to be trained.

    keep_going: go on after a failed cell (True) or stop at the first. timeout: seconds per notebook cell.
    run: `run(cells, output)` leaves the records of cells of one company; by default their notebook under papermill,
        its executed copy at `output` = `runs/<profile>/<hash12 of the first>.ipynb`.
    devices: each company takes the first of them that is free (`tevlib.suite.devices`); by default all there are.
    since: when the batch began (nanoseconds of `time.time_ns`, default now): a failure of another runner that is
        younger counts, one that is older is tried again. place: line of the progress bar.

    A company of which not one cell got an outcome is done again cell by cell, so that one cannot spoil the others.
    Ctrl-C passes through: finished cells are kept, the running ones leave no record.
    """
    devices = all_devices() if devices is None else devices
    batch = _Batch(run or (lambda cells, output: run_in_notebook(cells, output, timeout)), devices, since)
    hashes, summary = distinct(cells), batch.summary
    batch.hashes = hashes
    waiting = [cell for cell in hashes if read_record(record_path(cell, hashes[cell])) is None]
    summary.skipped = len(hashes) - len(waiting)
    summary.impossible = [cell for cell in waiting if cell.lacks_drafter()]
    waiting = [cell for cell in waiting if cell not in set(summary.impossible)]
    if not waiting:
        return summary
    with tqdm(total=len(waiting), unit="cell", mininterval=1, smoothing=0.1, position=place) as bar:
        alone: list[Work] = []
        for company in companies(waiting):  # first what is free
            bar.set_description(str(company[0]) + (f" and {len(company) - 1} beside" if len(company) > 1 else ""))
            left = batch.together(company)
            alone += left
            bar.update(len(company) - len(left))
            if summary.failures and not keep_going:
                return summary
        for cell in alone:  # then what another runner had, and what failed together
            bar.set_description(str(cell))
            batch.together([cell], wait=True)
            bar.update()
            if summary.failures and not keep_going:
                return summary
    return summary


def run_on_each(cells: Sequence[Work], devices: Sequence[str], **how) -> Summary:
    """The `Summary` of a runner for each of `devices`, in a process of its own, all on the same cells.

    how: `keep_going` and `timeout` of `run_cells`. The cells' locks share the work out.
    """
    if len(devices) == 1:
        return run_cells(cells, devices=devices, **how)
    since = time.time_ns()
    before = sum(read_record(record_path(cell, hash12)) is not None for cell, hash12 in distinct(cells).items())
    with ProcessPoolExecutor(len(devices), mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [
            pool.submit(run_cells, cells, devices=[device], since=since, place=place, **how)
            for place, device in enumerate(devices)
        ]
        found = [run.result() for run in runs]
    failures = {cell: (cell, error) for one in found for cell, error in one.failures}
    return Summary(before, sum(one.ran for one in found), list(failures.values()), found[0].impossible)


class _Batch:
    """A runner at work: how it runs a company, on which devices, and what came of it so far."""

    def __init__(self, run: Callable[[Sequence[Work], Path], None], devices: Sequence[str], since: int | None):
        self.run, self.devices = run, devices
        self.since = time.time_ns() if since is None else since
        self.summary, self.hashes = Summary(), {}

    def together(self, company: list[Work], wait: bool = False) -> list[Work]:
        """The cells of `company` still to be done: those that another runner has (without `wait`), and all of several
        that failed without an outcome for any."""
        hashes, summary = self.hashes, self.summary
        with contextlib.ExitStack() as locks:
            mine = [cell for cell in company if locks.enter_context(held(hashes[cell], wait))]
            if not mine:
                return company
            device = locks.enter_context(one_of(self.devices))
            locks.enter_context(only(device))
            paths = {cell: record_path(cell, hashes[cell]) for cell in mine}
            todo = [cell for cell in mine if not self._done_elsewhere(cell, paths[cell])]
            for cell in todo:
                failed_path(paths[cell]).unlink(missing_ok=True)
            output = home() / "runs" / mine[0].profile / f"{hashes[todo[0]]}.ipynb" if todo else None
            error = _error_of(self.run, todo, output) if todo else None
            finished = [cell for cell in todo if read_record(paths[cell])]
            failed = [cell for cell in todo if cell not in finished]
            if len(todo) > 1 and not finished and not any(failed_path(paths[cell]).is_file() for cell in todo):
                tqdm.write(f"{len(todo)} cells failed together, each is tried alone: {error}")
                return [cell for cell in company if cell not in mine or cell in todo]
            summary.ran += len(finished)
            for cell in failed:
                _note_failure(cell, hashes[cell], paths[cell], error, summary)
        return [cell for cell in company if cell not in mine]

    def _done_elsewhere(self, cell: Work, record: Path) -> bool:
        """Whether another runner finished `cell` meanwhile, or failed at it: then that is our failure too."""
        if read_record(record) is not None:
            self.summary.skipped += 1
            return True
        failure = failed_path(record)
        if failure.is_file() and failure.stat().st_mtime_ns > self.since:
            _note_failure(cell, self.hashes[cell], record, "", self.summary)
            return True
        return False


def _error_of(run: Callable[[Sequence[Work], Path], None], cells: list[Work], output: Path) -> str:
    """What a cell without a record has to say once `run(cells, output)` is over."""
    try:
        run(cells, output)
    except (NotebookFailed, ValueError, OSError) as failure:
        return str(failure)
    return "it ended without a record; did the code change meanwhile?"


def _note_failure(cell: Work, hash12: str, record: Path, error: str, summary: Summary) -> None:
    """Put a failed cell into the summary, and a failure file where the cell itself got no chance to write one."""
    if failed_path(record).is_file():
        error = json.loads(failed_path(record).read_text(encoding="utf-8")).get("error", error)
    else:
        write_failure(record, {"hash": hash12, "cell": cell.fields(), "error": error})
    tqdm.write(f"FAILED {cell}: {error}")
    summary.failures.append((cell, error))


def run_in_notebook(cells: Sequence[Work], output: Path, timeout: float = CELL_TIMEOUT_S) -> None:
    """Do cells of one company in their notebook; its executed copy is at `output`."""
    first, *others = cells
    parameters = first.fields()
    if others:
        parameters["beside"] = [{name: getattr(cell, name) for name in cell.BESIDE} for cell in others]
    run_notebook(first.NOTEBOOK, parameters, output, timeout=timeout)
