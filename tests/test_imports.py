"""The floors of the house: imports run downwards only, and the ground floor stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tevlib

PACKAGE = Path(tevlib.__file__).parent
ALLOWED = {  # floor -> floors it may import, itself apart
    "trees": set(),
    "sources": set(),
    "explorer": {"trees"},
    "course": {"trees"},
    "decoding": {"trees", "sources"},
    "training": {"decoding", "sources", "trees"},
    "suite": {"training", "decoding", "sources", "trees"},
    "report": {"suite", "explorer", "trees"},
    "cli": {"report", "suite", "explorer", "training", "decoding", "sources", "trees"},
    "__main__": {"cli"},
    "__init__": set(),
}
FORBIDDEN = {  # floor -> outside packages that it must not name, not even inside a function
    "trees": {"transformers", "datasets", "papermill"},
    "sources": {"torch", "transformers", "papermill"},
    "explorer": {"transformers", "datasets", "papermill"},
    "course": {"transformers", "datasets", "papermill"},
    "report": {"torch", "transformers", "papermill"},
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def imported(module: Path) -> set[str]:
    """Dotted names of everything a module imports, lazily inside functions too; relative imports made absolute."""
    found = set()
    package = ["tevlib", *module.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module) if part)
            found |= {name} | {f"{name}.{alias.name}" for alias in node.names}
    return found


def floor_of(module: Path) -> str:
    return module.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.relative_to(PACKAGE).as_posix())
def test_imports_run_downwards(module):
    """No module imports a floor above its own, and the light floors name no heavy package, lazily or not."""
    floor = floor_of(module)
    assert floor in ALLOWED, f"{floor} is not a floor of the house"
    names = {name for name in imported(module)}
    floors = {name.split(".")[1] for name in names if name.startswith("tevlib.")} - {"__version__", floor}
    assert floors <= ALLOWED[floor], f"{module.name} reaches up or sideways to {floors - ALLOWED[floor]}"
    outside = {name.split(".")[0] for name in names} & FORBIDDEN.get(floor, set())
    assert not outside, f"{module.name} imports {outside}"


def loaded(*modules: str) -> set[str]:
    """Names of all modules in a fresh interpreter after importing `modules`."""
    code = f"import sys, {', '.join(modules)}; print(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def names_of(floor: str) -> list[str]:
    files = [m for m in MODULES if floor_of(m) == floor]
    return [
        ".".join(("tevlib", *m.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__") for m in files
    ]


@pytest.mark.parametrize(
    ("floor", "absent"),
    [
        ("sources", {"torch", "transformers"}),
        ("trees", {"transformers", "datasets"}),
        ("explorer", {"transformers", "datasets"}),
        ("course", {"transformers", "datasets"}),
        ("report", {"torch", "transformers"}),
    ],
)
def test_light_floors_load_nothing_heavy(floor, absent):
    """In a fresh interpreter, importing all of a light floor loads no torch / transformers, also not through others."""
    assert not loaded(*names_of(floor)) & absent


def test_planning_loads_no_torch():
    """Command line, cells, records and batch load neither torch nor papermill: a finished suite ends at once."""
    names = ("tevlib.cli", "tevlib.suite.profile", "tevlib.suite.records", "tevlib.suite.batch", "tevlib.report.tables")
    assert not loaded(*names) & {"torch", "transformers", "papermill", "jupyter_client"}
