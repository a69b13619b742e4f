"""Run one notebook through papermill, with what papermill leaves open closed.

papermill writes its output in place, marks the cells of a killed kernel `completed`, returns normally after
`sys.exit(0)`, formats paths as templates and takes whatever kernel is called python3. Here the output appears only
whole, under its name if every cell ran, as `<stem>.failed.ipynb` otherwise.
"""

import logging
import os
import shutil
import sys
import tempfile
import traceback
from pathlib import Path

import nbformat

from tevlib.suite.names import check_name
from tevlib.suite.parameters import checked, declared
from tevlib.suite.paths import home, repository

LONGEST_SOCKET_FOLDER = 80  # a socket's whole path may have 107 bytes


class NotebookFailed(RuntimeError):
    """A notebook did not run to its end.

    `cell` is the index (from 0, in the notebook as it is in `notebooks/`) of the cell at fault, or None; `log` a text
    file with what the cells printed and the traceback.
    """

    def __init__(self, message: str, cell: int | None, log: Path):
        super().__init__(message)
        self.cell, self.log = cell, log


def notebook_path(name_or_path: str | Path) -> Path:
    """Path of a notebook: a file, or the name of one in `notebooks/`; raises `ValueError` with a suggestion."""
    path = Path(name_or_path).expanduser()
    if path.suffix == ".ipynb":
        if not path.is_file():
            raise ValueError(f"no notebook at {name_or_path}")
        return path.resolve()
    known = sorted(p.stem for p in (repository() / "notebooks").glob("*.ipynb"))
    return repository() / "notebooks" / f"{check_name('notebook', str(name_or_path), known)}.ipynb"


def run_notebook(
    name_or_path: str | Path,
    parameters: dict | None = None,
    output: Path | None = None,
    *,
    timeout: float | None = None,
    start_timeout: float = 60,
    progress: bool = False,
    cwd: Path | None = None,
) -> Path:
    """Path of the executed notebook, after every one of its cells ran.

    parameters: values for the notebook's parameters cell, checked before anything runs (`tevlib.suite.parameters`).
    output: where the executed notebook goes, `runs/<name>.ipynb` by default; replaced in one step at the end.
    timeout: seconds that one cell may take (None: any); start_timeout: seconds for the kernel to start.
    cwd: folder that the cells run in, the repository's root by default.

    Raises `ValueError` for an unknown notebook or parameter and a value of the wrong type, and `NotebookFailed`, which
    names cell and log, for an exception in a cell, a timeout, a kernel that died, and cells that were skipped by
    `sys.exit`. No kernel outlives the call; Ctrl-C passes through.
    """
    source = notebook_path(name_or_path)
    written = nbformat.read(source, as_version=4)
    values = checked(parameters or {}, declared(written, source.name), source.name)
    output = Path(output or home() / "runs" / source.name).resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    log = output.with_suffix(".log")
    partial = home() / "runs" / ".partial" / f"{os.getpid()}-{output.name}"
    partial.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_suffix(".failed.ipynb")
    try:
        fault = _execute(source, partial, values, log, timeout, start_timeout, progress, cwd or repository())
        if fault is not None:
            message, cell = fault
            if partial.is_file():
                shutil.move(partial, failed)
            cell = _in_source(cell, written, injected=bool(values))
            where = "" if cell is None else f", cell {cell} `{_first_line(written.cells[cell].source)}`"
            raise NotebookFailed(f"{source.name}{where}: {message}; log: {log}", cell, log)
        os.replace(partial, output)
        failed.unlink(missing_ok=True)
        return output
    finally:
        partial.unlink(missing_ok=True)


def _execute(source, partial, values, log, timeout, start_timeout, progress, cwd) -> tuple[str, int | None] | None:
    """What went wrong as (one line, cell index), or None; the executed notebook is at `partial`, details in `log`."""
    import papermill  # half a second, and not needed to check parameters
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError
    from traitlets.config import Config

    from tevlib.suite.kernel import same_interpreter

    logging.getLogger("papermill").setLevel(logging.ERROR)  # it does not know `int | None` and warns of such parameters
    try:
        with log.open("w", encoding="utf-8") as stream, tempfile.TemporaryDirectory(prefix="tevlib-") as sockets:
            executed = papermill.execute_notebook(
                _escaped(source),
                _escaped(partial),
                parameters=values,
                kernel_name="python3",
                language="python",
                progress_bar={"leave": False} if progress else False,
                stdout_file=stream,
                stderr_file=stream,
                start_timeout=start_timeout,
                execution_timeout=timeout,
                cwd=str(cwd),
                kernel_manager_class=same_interpreter(stream),
                config=Config({"KernelManager": _transport(sockets)}),
                raise_on_iopub_timeout=False,
            )
    except PapermillExecutionError as error:
        _append(log, "\n".join(error.traceback))
        return f"{error.ename}: {_first_line(error.evalue)}", error.cell_index
    except CellTimeoutError as error:
        _append(log, str(error))
        return f"no end within {timeout:g} seconds", _last_started(partial)
    except DeadKernelError as error:
        _append(log, str(error))
        return "the kernel died (killed, or out of memory)", _last_started(partial)
    except RuntimeError as error:  # nbclient's own, such as a kernel that never answered
        _append(log, traceback.format_exc())
        return _first_line(str(error)), _last_started(partial)
    return _not_run(executed)


def _transport(sockets: str) -> dict:
    """Kernel settings: Unix sockets in a folder of their own, so that no two kernels race for a port; TCP elsewhere."""
    if sys.platform == "win32" or len(sockets) > LONGEST_SOCKET_FOLDER:
        return {}
    return {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}


def _not_run(executed: nbformat.NotebookNode) -> tuple[str, int | None] | None:
    """The first code cell that did not run to its end though papermill returned, as after `sys.exit(0)`."""
    for index, cell in enumerate(executed.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if any(output.output_type == "error" for output in cell.outputs):
            return "the cell ended the kernel's run (sys.exit?), those behind it did not run", index
        if cell.metadata.get("papermill", {}).get("status") != "completed" or cell.execution_count is None:
            return "the cell did not run", index
    if executed.metadata.papermill.get("exception"):
        return "papermill reports an exception", None
    return None


def _in_source(cell: int | None, source: nbformat.NotebookNode, injected: bool) -> int | None:
    """Index in the source notebook of executed cell `cell`: papermill puts the values behind the parameters cell."""
    if cell is None or not injected:
        return cell
    parameters = next(i for i, c in enumerate(source.cells) if "parameters" in c.metadata.get("tags", []))
    return cell if cell <= parameters else cell - 1


def _last_started(partial: Path) -> int | None:
    """Index of the last cell that papermill started, by the notebook that it left behind."""
    if not partial.is_file():
        return None
    cells = nbformat.read(partial, as_version=4).cells
    started = [i for i, cell in enumerate(cells) if cell.metadata.get("papermill", {}).get("start_time")]
    return started[-1] if started else None


def _escaped(path: Path) -> str:
    """`path` as papermill must be given it: it formats paths with the parameters."""
    return str(path).replace("{", "{{").replace("}", "}}")


def _append(log: Path, text: str) -> None:
    with log.open("a", encoding="utf-8") as stream:
        stream.write(f"\n{text}\n")


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no message"
