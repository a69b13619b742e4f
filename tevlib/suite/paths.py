"""Where things lie: the repository (code, notebooks, shipped drafters) and the folder that results are written to."""

import os
from pathlib import Path

import tevlib


def repository() -> Path:
    """Root of the checkout that `tevlib` was installed from; holds `notebooks/` and `data/drafters/`.

    Raises `FileNotFoundError` where the package was copied without its notebooks.
    """
    root = Path(tevlib.__file__).resolve().parent.parent
    if not (root / "notebooks").is_dir():
        raise FileNotFoundError(f"no notebooks/ in {root}: install with `pip install -e .` from a clone")
    return root


def home() -> Path:
    """Folder under which `data/results`, `data/tables` and `runs` are written: $TEVLIB_HOME, else the repository."""
    own = os.environ.get("TEVLIB_HOME")
    return Path(own).expanduser().resolve() if own else repository()


def from_repository(name: str) -> Path:
    """`name` as a path: absolute as it stands, relative ones from the repository's root, wherever we run."""
    path = Path(name).expanduser()
    return path if path.is_absolute() else repository() / path
