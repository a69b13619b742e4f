"""The processes that do a cell together: each decodes its share of the prompts, one of them writes the record.

`accelerate launch` (on GPUs, one on each) or `torchrun` (on CPUs too) starts them. Without a launcher there is one.
"""

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta

import torch
from accelerate import PartialState
from accelerate.utils import gather_object

from tevlib.suite.cells import Cell
from tevlib.suite.devices import devices, gpus, held, lock_name
from tevlib.suite.plan import distinct
from tevlib.suite.records import failed_path, read_record, record_path

PATIENCE = timedelta(days=7)  # a process may be done with its share long before the others


def launched() -> PartialState:
    """The processes and which of them this one is; from now on this one's GPU is the current one."""
    return PartialState(cpu=not torch.cuda.is_available(), timeout=PATIENCE)


def share(items: Sequence, of: PartialState) -> list[tuple[int, object]]:
    """This process' items with their places: every n-th of n processes."""
    return list(enumerate(items))[of.process_index :: of.num_processes]


def gathered(answers: list[tuple]) -> list[tuple]:
    """The answers of all processes in order of their first entry, in every process; waits for the last of them."""
    return sorted(gather_object(answers), key=lambda answer: answer[0])


def decode_together(company: Sequence[Cell], device_map: str | None = None) -> list[Cell]:
    """The cells of a company that had no record; they have one now, or `CellFailed` says which has a failure instead.

    To be called in every process. No notebook is run. The first process holds the locks that a runner would hold: the
    cells' own and those of the devices, so that no other cell spoils the times. `device_map` ("auto", "balanced") lays
    one target over all GPUs of a single process. Raises `RuntimeError` where another runner has one of the cells.
    """
    from tevlib.suite.decode_cell import run_decode_cells  # loads torch's models

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
