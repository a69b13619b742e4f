"""README and docs name only what exists: tests, functions, notebooks, files, commands; and every item of the paper."""

import ast
import dataclasses
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from tevlib.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "data" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
INDEX = ROOT / "docs" / "paper_index.md"
ITEMS = (
    *(f"Eq. {n}" for n in range(1, 68)),
    "Lemma 1", "Lemma 2", "Theorem 1", "Corollary 1", "Corollary 2", "Algorithm 1",
    *(f"Table {n}" for n in range(1, 6)),
    "Figure 1", "Figure 2",
)  # fmt: skip
MADE_BY_A_RUN = ("data/results", "data/tables", "figures/laptop/", "runs/")
HOSTS = r"p[y]pi\.org|p[y]thonhosted|download\.p[y]torch|anaconda[.]org|conda[.]io|huggingface[.]co/|hf[.]co"


def mentioned(pattern: str) -> list:
    """Every match of `pattern` in the pages, once, as pytest parameters that name the page."""
    found = {(page, m) for page in PAGES for m in re.findall(pattern, page.read_text(encoding="utf-8"))}
    return [pytest.param(m, id=f"{page.name}: {m}") for page, m in sorted(found)]


@cache
def functions(path: Path) -> set[str]:
    """Names of the functions and classes of a Python file, `Class::method` included."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


def resolve(dotted: str) -> object:
    """What a dotted name of the package stands for; a dataclass field counts. AttributeError where it is nothing."""
    parts = dotted.split(".")
    n = next(n for n in range(len(parts), 0, -1) if (ROOT.joinpath(*parts[:n]).with_suffix(".py")).is_file() or n == 1)
    found: object = importlib.import_module(".".join(parts[:n]))
    for name in parts[n:]:
        fields = {f.name: f for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else {}
        found = fields[name] if name in fields else getattr(found, name)
    return found


@pytest.mark.parametrize("name", mentioned(r"tests/[\w/]+\.py::\w+(?:::\w+)?"))
def test_tests_exist(name):
    """A cited test is a function of that file."""
    path, _, function = name.partition("::")
    assert function in functions(ROOT / path)


@pytest.mark.parametrize("name", mentioned(r"`(tevlib(?:\.\w+)+)`"))
def test_functions_exist(name):
    """A cited dotted name is a module, function, class, method or field of the package."""
    resolve(name)


@pytest.mark.parametrize("name", mentioned(r"\b(\d\d_[a-z]\w+)"))
def test_notebooks_exist(name):
    """A cited notebook is in `notebooks/`."""
    assert (ROOT / "notebooks" / f"{name}.ipynb").is_file()


def test_the_readme_lists_every_notebook():
    """The table of notebooks has each one, and in order."""
    listed = re.findall(r"^\| `(\d\d_\w+)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("name", mentioned(r"`((?:tevlib|tests|docs|notebooks|data|figures|runs)/[\w./-]*)`"))
def test_files_exist(name):
    """A cited file or folder is there, unless a run makes it."""
    assert name.startswith(MADE_BY_A_RUN) or (ROOT / name).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    """Every link that is no address leads from its page to a file, and its anchor to a heading there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page if not name else page.parent / name
        assert file.is_file(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_are_portable(page):
    """No absolute path and no package or model registry's host name."""
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"(?<![\w.~$/:])/(?:home|root|work|tmp|usr|opt|mnt|Users|var)\b\S*", text)
    assert not re.findall(HOSTS, text)


def test_commands_exist():
    """A quoted `make` target is in the Makefile, a quoted `python -m tevlib` command in the command line."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = set(re.findall(r"`make ([a-z]+)", text))
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"reproduce", "test", "quick"} <= targets <= made
    assert set(re.findall(r"python -m tevlib ([a-z]+)", text)) <= set(COMMANDS)


def index_rows() -> list[list[str]]:
    rows = [line.strip("| \n").split(" | ") for line in INDEX.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if len(row) > 1 and row[0] not in ("paper", "---")]


def test_the_index_has_every_item_of_the_paper():
    """Equations 1 to 67, lemmas, theorem, corollaries, algorithm, tables and figures, each in a row or a span."""
    found = set()
    for item, *_ in index_rows():
        span = re.fullmatch(r"Eqs?\. (\d+)(?:-(\d+))?", item)
        found |= {f"Eq. {n}" for n in range(int(span[1]), int(span[2] or span[1]) + 1)} if span else {item}
    assert found >= set(ITEMS)


def test_index_rows_are_whole():
    """Five columns; what is built cites a test, and what is not says so."""
    for row in index_rows():
        assert len(row) == 5, row
        assert "tests/" in row[4] or row[4] == row[2] == "not built yet", row


def test_a_wrong_name_would_be_noticed():
    """The checks above see what is not there: a function, a method, a field, a test."""
    assert resolve("tevlib.trees.exit_law.ExitLaw.P") is not None
    for name in ("tevlib.trees.exit_law.no_such", "tevlib.trees.exit_law.ExitLaw.no_such", "tevlib.no_such"):
        with pytest.raises(AttributeError):
            resolve(name)
    assert "test_no_such" not in functions(ROOT / "tests" / "test_docs.py")
