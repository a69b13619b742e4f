"""Run many cells one after the other: finished ones are skipped, failures are recorded, a restart goes on.

Two locks keep runners apart. A cell's own lock is held while it runs, so that no cell is ever run twice; a second
runner takes the next cell that is free. The machine's lock is held as well, so that two cells never run at once and
spoil each other's times. The system drops both with the process that holds them, however it ends.
"""

import contextlib
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
    run: Callable[[Work, Path], None] | None = None,
) -> Summary:
    """The `Summary` after every cell has a record or a failure.

    keep_going: go on after a failed cell (True) or stop at the first. timeout: seconds per notebook cell.
    run: `run(cell, output)` leaves the record of `cell`; by default the cell's own notebook under papermill,
        its executed copy at `output` = `runs/<profile>/<hash12>.ipynb`.

    Ctrl-C passes through: finished cells are kept, the running one leaves no record.
    """
    run = run or (lambda cell, output: _run_in_notebook(cell, output, timeout))
    summary = Summary()
    work = {cell.hash12(): cell for cell in reversed(cells)}  # cells that tables share are done once, for the first
    hashes = {cell: hash12 for hash12, cell in reversed(work.items())}
    waiting = [cell for cell in hashes if read_record(record_path(cell, hashes[cell])) is None]
    summary.skipped = len(hashes) - len(waiting)
    if not waiting:
        return summary
    with tqdm(total=len(waiting), unit="cell", mininterval=1, smoothing=0.1) as bar:
        busy: list[Work] = []
        for wait in (False, True):  # first what is free, then what another runner had
            for cell in waiting if not wait else busy:
                bar.set_description(str(cell))
                done = _one(cell, hashes[cell], run, wait, summary)
                if done is None:
                    busy.append(cell)
                    continue
                bar.update()
                if not done and not keep_going:
                    return summary
    return summary


def _one(cell: Work, hash12: str, run: Callable[[Work, Path], None], wait: bool, summary: Summary) -> bool | None:
    """Whether `cell` is finished (True) or failed (False) now; None where another runner has it and `wait` is False."""
    path = record_path(cell, hash12)
    with held(hash12, wait) as mine:
        if not mine:
            return None
        with held(f"machine-{socket.gethostname()}", wait=True):
            if read_record(path) is not None:  # the other runner finished it
                summary.skipped += 1
                return True
            failed_path(path).unlink(missing_ok=True)
            try:
                run(cell, home() / "runs" / cell.profile / f"{hash12}.ipynb")
                error = None if read_record(path) else "it ended without a record; did the code change meanwhile?"
            except (NotebookFailed, ValueError, OSError) as failure:
                error = str(failure)
    if error is None:
        summary.ran += 1
        return True
    if not failed_path(path).is_file():  # the cell itself got no chance to write one
        body = {"hash": hash12, "cell": cell.fields(), "error": error}
        write_failure(path, body)
    tqdm.write(f"FAILED {cell}: {error}")
    summary.failures.append((cell, error))
    return False


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


def _run_in_notebook(cell: Work, output: Path, timeout: float) -> None:
    run_notebook(cell.NOTEBOOK, cell.fields(), output, timeout=timeout)
