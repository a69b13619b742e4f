"""Digests of what decides a result: the code's meaning and the files it reads, not their layout."""

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import tevlib

DECIDES = ("trees", "sources", "decoding")  # inside the package, for every kind of cell
DELTA_OF = "tevlib_delta_of"  # as in tevlib.decoding.checkpoint, which planning does not load


def normalised(source: str) -> str:
    """`source` as Python writes its syntax tree: comments, docstrings, white space and quotes make no difference.

    Text that is no Python (a notebook cell with magics) comes back with the white space at its ends removed.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return source.strip()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def code_digest(notebook: Path, own: Sequence[str], package: Path | None = None) -> str:
    """Hex digest of the code that decides a cell's result: `DECIDES`, `own` modules of its kind, `notebook`'s cells."""
    package = package or Path(tevlib.__file__).parent
    parts = []
    for name in (*DECIDES, *own):
        path = package / name
        for file in [path] if path.is_file() else sorted([*path.rglob("*.py"), *path.rglob("*.txt")]):
            parts.append((file.relative_to(package).as_posix(), _source_digest(file, *_version(file))))
    parts.append((notebook.name, notebook_code(notebook)))
    return _digest_of(parts)


def notebook_code(notebook: Path) -> list[str]:
    """The normalised code cells of a notebook, without its parameters cell (a cell's own values replace it)."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [c for c in cells if c["cell_type"] == "code" and "parameters" not in c["metadata"].get("tags", [])]
    return [normalised("".join(cell["source"])) for cell in code]


def files_digest(path: Path, without: str = "") -> str:
    """Hex digest of a file, or of the names and bytes of all files under a folder except Markdown and hidden ones.

    Files of the name `without` are left out too.
    """
    if path.is_file():
        return _file_digest(path, *_version(path))
    return _digest_of(
        (file.relative_to(path).as_posix(), _file_digest(file, *_version(file)))
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.suffix != ".md" and not file.name.startswith(".") and file.name != without
    )


def drafter_digest(folder: Path, without: str = "") -> str:
    """`files_digest` of a model's folder; of a drafter kept as a difference, with that of the one it differs from."""
    own, config = files_digest(folder, without), folder / "config.json"
    base = _base(config) if config.is_file() else None
    return own if base is None else _digest_of([own, drafter_digest((folder / base).resolve(), without)])


def _base(config: Path) -> str | None:
    """The folder that the drafter of `config` differs from. Raises `ValueError` naming a file that cannot be read."""
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} is damaged or not whole: {error}") from error
    if not isinstance(read, dict) or not isinstance(read.get(DELTA_OF), str | None):
        raise ValueError(f"{config} must hold a JSON object, and {DELTA_OF} in it name a folder; got {read!r:.200}")
    return read.get(DELTA_OF)


def _digest_of(parts: Iterable) -> str:
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()


def _version(file: Path) -> tuple[int, int]:
    """Size and time of change: a file's digest is worked out once for each."""
    found = file.stat()
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=1024)
def _source_digest(path: Path, size: int, mtime_ns: int) -> str:
    text = path.read_text(encoding="utf-8")
    return _digest_of([normalised(text) if path.suffix == ".py" else text])


@lru_cache(maxsize=1024)
def _file_digest(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
