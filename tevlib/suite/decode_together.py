"""A company of cells decoded by all processes that were launched: each a share of the prompts, one the record."""

import contextlib
from collections.abc import Iterator, Sequence

from tevlib.suite.cells import Cell
from tevlib.suite.decode_cell import run_decode_cells
from tevlib.suite.devices import devices, gpus, held, lock_name
from tevlib.suite.plan import distinct
from tevlib.suite.processes import launched
from tevlib.suite.records import failed_path, read_record, record_path


def decode_together(company: Sequence[Cell], device_map: str | None = None) -> list[Cell]:
    """The cells of a company that had no record; they have one now, or `CellFailed` says which has a failure instead.

    To be called in every process. No notebook is run. The first process holds the locks that a runner would hold: the
    cells' own and those of the devices, so that no other cell spoils the times. `device_map` ("auto", "balanced") lays
    one target over all GPUs of a single process. Raises `RuntimeError` where another runner has one of the cells.
    """
    state = launched()
    if device_map is not None and state.num_processes > 1:
        raise ValueError(
            f"a target over all GPUs ({device_map}) is for one process, {state.num_processes} were launched"
        )
    hashes = distinct(company)
    todo = [cell for cell in hashes if read_record(record_path(cell, hashes[cell])) is None]
    if not todo:
        return []
    names, count = [hashes[cell] for cell in todo], state.num_processes if device_map is None else None
    with _locked(names, count) if state.is_main_process else contextlib.nullcontext():
        for cell in todo if state.is_main_process else ():
            failed_path(record_path(cell, hashes[cell])).unlink(missing_ok=True)
        run_decode_cells(todo, device_map)
    return todo


@contextlib.contextmanager
def _locked(hashes: Sequence[str], count: int | None) -> Iterator[None]:
    """Hold the locks of the cells `hashes` and of the first `count` devices, of all for None."""
    found = gpus()
    with contextlib.ExitStack() as locks:
        for hash12 in hashes:
            if not locks.enter_context(held(hash12, wait=False)):
                raise RuntimeError(f"another runner has the cell {hash12}")
        for device in devices(found=found)[:count]:
            locks.enter_context(held(lock_name(device, found), wait=True))
        yield
