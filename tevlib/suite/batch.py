"""Run many cells: finished ones are skipped, failures are recorded, a restart goes on.

Cells of one company (`Work.company`) are done side by side in one notebook, companies one after the other.
Two locks keep runners apart. A cell's own lock is held while it runs, so that no cell is ever run twice; a second
runner takes the next cell that is free. The machine's lock is held as well, so that two cells never run at once and
spoil each other's times. The system drops both with the process that holds them, however it ends.
"""

import contextlib
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tevlib.suite.cells import Work
from tevlib.suite.notebook import NotebookFailed, run_notebook
from tevlib.suite.paths import home
from tevlib.suite.records import failed_path, read_record, record_path, write_failure

CELL_TIMEOUT_S = 24 * 3600.0


@dataclass
class Summary:
    """What a batch did: counts of cells finished before, run now, and failed (with their errors)."""

    skipped: int = 0
    ran: int = 0
    failures: list[tuple[Work, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.ran} cells run, {self.skipped} were finished already, {len(self.failures)} failed"


def run_cells(
    cells: Sequence[Work],
    *,
    keep_going: bool = True,
    timeout: float = CELL_TIMEOUT_S,
    run: Callable[[Sequence[Work], Path], None] | None = None,
) -> Summary:
    """The `Summary` after every cell has a record or a failure.

    keep_going: go on after a failed cell (True) or stop at the first. timeout: seconds per notebook cell.
    run: `run(cells, output)` leaves the records of cells of one company; by default their notebook under papermill,
        its executed copy at `output` = `runs/<profile>/<hash12 of the first>.ipynb`.

    A company of which not one cell got an outcome is done again cell by cell, so that one cannot spoil the others.
    Ctrl-C passes through: finished cells are kept, the running ones leave no record.
    """
    run = run or (lambda cells, output: _run_in_notebook(cells, output, timeout))
    summary = Summary()
    work = {cell.hash12(): cell for cell in reversed(cells)}  # cells that tables share are done once, for the first
    hashes = {cell: hash12 for hash12, cell in reversed(work.items())}
    waiting = [cell for cell in hashes if read_record(record_path(cell, hashes[cell])) is None]
    summary.skipped = len(hashes) - len(waiting)
    if not waiting:
        return summary
    companies: dict[object, list[Work]] = {}
    for cell in waiting:
        companies.setdefault(cell.company(), []).append(cell)
    with tqdm(total=len(waiting), unit="cell", mininterval=1, smoothing=0.1) as bar:
        alone: list[Work] = []
        for company in companies.values():  # first what is free
            bar.set_description(str(company[0]) + (f" and {len(company) - 1} beside" if len(company) > 1 else ""))
            left = _together(company, hashes, run, summary)
            alone += left
            bar.update(len(company) - len(left))
            if summary.failures and not keep_going:
                return summary
        for cell in alone:  # then what another runner had, and what failed together
            bar.set_description(str(cell))
            _together([cell], hashes, run, summary, wait=True)
            bar.update()
            if summary.failures and not keep_going:
                return summary
    return summary


def _together(
    company: list[Work],
    hashes: dict[Work, str],
    run: Callable[[Sequence[Work], Path], None],
    summary: Summary,
    wait: bool = False,
) -> list[Work]:
    """The cells of `company` still to be done: those that another runner has (without `wait`), and all of several
    that failed without an outcome for any."""
    with contextlib.ExitStack() as locks:
        mine = [cell for cell in company if locks.enter_context(held(hashes[cell], wait))]
        if not mine:
            return company
        locks.enter_context(held(f"machine-{socket.gethostname()}", wait=True))
        paths = {cell: record_path(cell, hashes[cell]) for cell in mine}
        todo = [cell for cell in mine if read_record(paths[cell]) is None]  # the others another runner finished
        summary.skipped += len(mine) - len(todo)
        for cell in todo:
            failed_path(paths[cell]).unlink(missing_ok=True)
        error = _error_of(run, todo, home() / "runs" / todo[0].profile / f"{hashes[todo[0]]}.ipynb") if todo else None
        finished = [cell for cell in todo if read_record(paths[cell])]
        failed = [cell for cell in todo if cell not in finished]
        if len(todo) > 1 and not finished and not any(failed_path(paths[cell]).is_file() for cell in todo):
            tqdm.write(f"{len(todo)} cells failed together, each is tried alone: {error}")
            return [cell for cell in company if cell not in mine or cell in todo]
        summary.ran += len(finished)
        for cell in failed:
            _note_failure(cell, hashes[cell], paths[cell], error, summary)
    return [cell for cell in company if cell not in mine]


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


@contextlib.contextmanager
def held(name: str, wait: bool) -> Iterator[bool]:
    """Hold the lock `name` of this results folder; yields whether we have it (always, after a while, with `wait`)."""
    import fcntl  # not on Windows, where planning and reading still work

    folder = home() / "runs" / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _run_in_notebook(cells: Sequence[Work], output: Path, timeout: float) -> None:
    first, *others = cells
    parameters = first.fields()
    if others:
        parameters["beside"] = [{name: getattr(cell, name) for name in cell.BESIDE} for cell in others]
    run_notebook(first.NOTEBOOK, parameters, output, timeout=timeout)
