"""A cell is one row of work: what is decoded with what. Profiles are lists of cells, written as YAML.

A cell's hash names its record. It covers everything that decides the result: what is done, the drafter's and target's
files, and the meaning of the code; editing a comment or a docstring leaves it as it was. Which table wants it decides
nothing: a cell that several tables share is run once.
"""

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Sequence, Set
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import ClassVar

import yaml

from tevlib.sources.prompts import SUITES
from tevlib.suite.code_hash import code_digest, drafter_digest, files_digest
from tevlib.suite.names import check_name, did_you_mean
from tevlib.suite.paths import from_repository, repository

PROFILES = ("smoke", "laptop", "paper")
# The names that tevlib.trees and tevlib.decoding go by, kept here so that planning loads no torch.
AUTO = "auto"  # a budget that follows the machine: tevlib.decoding.budget
BUILDERS = ("best_first", "chain", "opt_tree", "sampled_chain")
VERIFIERS = (
    "greedy", "predraw", "predraw_reference", "predraw_lazy", "sequential_residual",
    "tev", "tev_parallel", "tev_descent",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ("own", "qwen3_4b")
LATENCY_TABLE = "table3"  # its cells are `VerifierCell`s


class Work:
    """What every kind of cell has: fields, a hash of all that decides its result, and the notebook that does it."""

    NOTEBOOK: ClassVar[str]
    CODE: ClassVar[tuple[str, ...]]  # modules of the package that this kind of cell is done by
    BESIDE: ClassVar[tuple[str, ...]]  # fields in which cells of one company may differ

    def fields(self) -> dict:
        """The fields as a JSON-ready dict; the class called with them gives an equal cell."""
        return dataclasses.asdict(self)

    def work(self) -> dict:
        """The fields that decide what is done: cells of two tables that are the same work share one record."""
        work = {name: value for name, value in self.fields().items() if name not in ("profile", "table", "role")}
        return {name: float(value) if name in ("temperature", "top_p") else value for name, value in work.items()}

    def company(self) -> object:
        """What cells have in common that are done side by side in one notebook: all fields but `BESIDE`."""
        return self.NOTEBOOK, *(value for name, value in self.fields().items() if name not in self.BESIDE)

    def lacks_drafter(self) -> bool:
        """Whether the drafter is a local folder that is not there: the cell is planned, and cannot be run yet."""
        return not is_hub_id(self.drafter) and not (from_repository(self.drafter) / "config.json").is_file()

    def hash12(self) -> str:
        """The first 12 hex digits of the digest of everything that decides this cell's result."""
        known = {
            "cell": self.work(),
            "files": {name: _content(getattr(self, name)) for name in ("drafter", "target", "suite")},
            "code": code_digest(repository() / "notebooks" / f"{self.NOTEBOOK}.ipynb", self.CODE),
        }
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Cell(Work):
    """One decode cell: `prompts` prompts of `suite`, autoregressive against speculative, `repeats` times.

    Cells that differ in drafter, builder, verifier and budget alone are decoded against one plain decoding.

    budget counts draft tokens, or is "auto": then trees, and a seed's tokens at T > 0, follow this machine's times.
    profile and table name what the cell belongs to; role names the drafter's place in the paper's tables (`original`,
    `exit`, ...). prompts None takes the whole suite; in `oracle_rounds` rounds of every answer the best possible tree
    is looked for, outside the clock. Relative drafter and target folders start at the repository's root. Raises
    `ValueError` for every field that cannot be run, before any work; `to_be_trained` (no field, it decides nothing)
    allows a drafter's folder that is not there yet.
    """

    profile: str
    table: str
    target: str
    role: str
    drafter: str
    builder: str
    verifier: str
    budget: int | str
    temperature: float
    top_p: float
    top_k: int
    suite: str
    prompts: int | None
    max_new_tokens: int
    dtype: str
    seed: int
    repeats: int = 1
    oracle_rounds: int = 0
    to_be_trained: InitVar[bool] = False

    NOTEBOOK: ClassVar[str] = "21_decode_cell"
    CODE: ClassVar[tuple[str, ...]] = (
        "suite/decode_cell.py", "suite/decode_rows.py", "suite/metrics.py", "suite/oracle.py",
    )  # fmt: skip
    BESIDE: ClassVar[tuple[str, ...]] = ("table", "role", "drafter", "builder", "verifier", "budget")

    def __post_init__(self, to_be_trained: bool):
        for name in ("profile", "table", "role"):
            _check_plain(name, getattr(self, name))
        check_name("builder", self.builder, BUILDERS)
        check_name("verifier", self.verifier, VERIFIERS)
        check_name("dtype", self.dtype, DTYPES)
        _check_suite(self.suite)
        for name, least in (("top_k", 0), ("max_new_tokens", 1), ("seed", 0), ("repeats", 1), ("oracle_rounds", 0)):
            _check_int(name, getattr(self, name), least)
        if self.budget != AUTO:
            _check_int("budget", self.budget, 0, f" or {AUTO!r}")
        elif self.builder == "sampled_chain":
            raise ValueError(f"budget {AUTO!r} cuts trees, and a sampled chain cannot be cut by what was drawn")
        if self.prompts is not None:
            _check_int("prompts", self.prompts, 1)
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a finite number >= 0, got {self.temperature!r}")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p!r}")
        if self.verifier == "greedy" and self.temperature > 0:
            raise ValueError(f"the greedy verifier is exact at temperature 0 only, got {self.temperature:g}")
        if not to_be_trained:
            _check_drafter(self.drafter)

    def __str__(self) -> str:
        return f"{self.role} + {self.verifier} on {Path(self.suite).stem}, B={self.budget}, T={self.temperature:g}"


@dataclass(frozen=True)
class VerifierCell(Work):
    """One latency cell: every verifier on the same replayed trees and rows of `suite`, decision and cache commit timed.

    `rounds` rounds are kept from decoding `prompts` prompts, evenly; each is timed `repeats` times per verifier.
    `shape` is the target's own, or `qwen3_4b`: rows widened to 151,936 tokens and a cache of 36 layers.
    """

    profile: str
    table: str
    target: str
    drafter: str
    budget: int
    temperature: float
    suite: str
    prompts: int
    rounds: int
    repeats: int
    max_new_tokens: int
    dtype: str
    seed: int
    shape: str = "own"
    to_be_trained: InitVar[bool] = False

    NOTEBOOK: ClassVar[str] = "22_verifier_cell"
    CODE: ClassVar[tuple[str, ...]] = ("suite/decode_cell.py", "suite/verifier_cell.py")
    BESIDE: ClassVar[tuple[str, ...]] = ("table", "budget", "temperature", "shape")

    def __post_init__(self, to_be_trained: bool):
        for name in ("profile", "table"):
            _check_plain(name, getattr(self, name))
        check_name("dtype", self.dtype, DTYPES)
        check_name("shape", self.shape, SHAPES)
        _check_suite(self.suite)
        for name in ("budget", "prompts", "rounds", "repeats", "max_new_tokens"):
            _check_int(name, getattr(self, name), 1)
        _check_int("seed", self.seed, 0)
        if not _is_number(self.temperature) or not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be a finite number > 0 (at 0 all are greedy), got {self.temperature!r}")
        if not to_be_trained:
            _check_drafter(self.drafter)

    def __str__(self) -> str:
        return f"verifiers on {Path(self.suite).stem}, B={self.budget}, T={self.temperature:g}, {self.shape}"


def load_profile(name: str, tables: Sequence[str] | None = None) -> list[Work]:
    """The cells of a profile (`smoke`, `laptop`, `paper`, or the path of a YAML file), of `tables` only if given.

    A cell whose drafter the profile lists as `trained` is there before its drafter is. Raises `ValueError` for an
    unknown profile, table or field and for a cell that cannot be run.
    """
    path, written = _read_profile(name)
    wanted = [str(table) for table in tables or written["tables"]]
    known = {str(table): body for table, body in written["tables"].items()}
    for table in wanted:
        check_name(f"table of profile {path.stem}", table, known)
    defaults, trained = written.get("defaults") or {}, set(written.get("trained") or {})
    expand = {LATENCY_TABLE: _expand_latency}
    return [
        cell
        for table in wanted
        for cell in expand.get(table, _expand)(path.stem, table, defaults, known[table], trained)
    ]


def load_trained(name: str) -> dict[str, dict]:
    """Drafter folders that a profile's user makes -> the parameters of `20_train_drafter` that make them."""
    return dict(_read_profile(name)[1].get("trained") or {})


def _read_profile(name: str) -> tuple[Path, dict]:
    """Where a profile is written, and what: a mapping with `tables`, maybe `defaults` and `trained`."""
    path = Path(name).expanduser() if str(name).endswith((".yaml", ".yml")) else None
    if path is None:
        path = Path(__file__).parent / "profiles" / f"{check_name('profile', name, PROFILES)}.yaml"
    if not path.is_file():
        raise ValueError(f"no profile at {path}")
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    _check_keys(written, {"defaults", "tables", "trained"}, str(path))
    if not isinstance(written.get("tables"), dict) or not written["tables"]:
        raise ValueError(f"{path}: tables must name at least one table, got {written.get('tables')!r}")
    trained = written.get("trained") or {}
    if not isinstance(trained, dict):
        raise ValueError(f"{path}: trained must be a mapping of drafter folders, got {trained!r}")
    for folder, parameters in trained.items():
        if not isinstance(parameters, dict) or not {"objective", "target"} <= set(parameters):
            raise ValueError(f"{path}: trained {folder} needs an objective and a target, got {parameters!r}")
    return path, written


def _expand(profile: str, table: str, defaults: dict, body: dict | list, trained: Set[str]) -> list[Cell]:
    """The cells of a table's YAML body, or of each of a list of them: every temperature, budget, row and suite.

    A body's rows are its `methods` (each a mapping with a drafter and, where it differs, verifier, builder, budget and
    the like), or every one of its `drafters` with every one of its `verifiers`.
    """
    if isinstance(body, list):
        return [cell for one in body for cell in _expand(profile, table, defaults, one, trained)]
    where = f"table {table} of profile {profile}"
    if not isinstance(body, dict) or not isinstance(defaults, dict):
        raise ValueError(f"{where} and the defaults must be mappings, got {body!r} and {defaults!r}")
    settings = defaults | body
    rows = {"methods"} if "methods" in settings else {"drafters", "verifiers"}
    plural = {"budgets", "temperatures", "suites"} | rows
    plain = {field.name for field in dataclasses.fields(Cell)} - {
        "profile", "table", "role", "drafter", "verifier", "budget", "temperature", "suite", "prompts", "repeats",
    }  # fmt: skip
    _check_keys(settings, plural | plain, where)
    if missing := sorted((plural | plain) - {"oracle_rounds"} - set(settings)):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    _check_axes(settings, where)
    if "methods" in settings:
        methods = list(settings["methods"].items())
        for role, method in methods:
            _check_keys(method, {"drafter", "verifier", "budget"} | plain, f"{where}, method {role}")
            if missing := sorted({"drafter", "verifier"} - set(method)):
                raise ValueError(f"{where}, method {role} lacks {', '.join(missing)}")
    else:
        methods = [
            (role, {"drafter": drafter, "verifier": verifier})
            for role, drafter in settings["drafters"].items()
            for verifier in settings["verifiers"]
        ]
    common = {key: settings[key] for key in plain if key in settings}
    return [
        Cell(
            **common | {"budget": budget} | method,
            profile=profile,
            table=table,
            role=role,
            temperature=temperature,
            suite=suite,
            to_be_trained=method["drafter"] in trained,
            **size,
        )
        for temperature, budget, (role, method), (suite, size) in itertools.product(
            settings["temperatures"], settings["budgets"], methods, settings["suites"].items()
        )
    ]


def _expand_latency(profile: str, table: str, defaults: dict, body: dict, trained: Set[str]) -> list[VerifierCell]:
    """One latency cell for each shape, temperature, budget and suite; defaults that it has no use for are left out."""
    where = f"table {table} of profile {profile}"
    if not isinstance(body, dict) or not isinstance(defaults, dict):
        raise ValueError(f"{where} and the defaults must be mappings, got {body!r} and {defaults!r}")
    plural = {"shapes", "temperatures", "budgets", "suites"}
    plain = {field.name for field in dataclasses.fields(VerifierCell)} - {
        "profile", "table", "budget", "temperature", "suite", "shape",
    }  # fmt: skip
    _check_keys(body, plural | plain, where)
    settings = {name: value for name, value in defaults.items() if name in plain} | body
    if missing := sorted((plural | plain) - set(settings)):
        raise ValueError(f"{where} lacks {', '.join(missing)}")
    for name in plural:
        if not isinstance(settings[name], list) or not settings[name]:
            raise ValueError(f"{where}: {name} must be a list with at least one entry, got {settings[name]!r}")
    common = {key: settings[key] for key in plain}
    axes = (settings[name] for name in ("shapes", "temperatures", "budgets", "suites"))
    return [
        VerifierCell(
            profile=profile, table=table, shape=shape, temperature=t, budget=budget, suite=suite,
            to_be_trained=common["drafter"] in trained, **common,
        )
        for shape, t, budget, suite in itertools.product(*axes)
    ]  # fmt: skip


def _check_axes(settings: dict, where: str) -> None:
    """Raises `ValueError` unless every axis of a table has the right shape, at least one value and none twice."""
    for name in ("verifiers", "budgets", "temperatures"):
        values = settings.get(name, ["methods have their own"])
        if not isinstance(values, list) or not values or len(set(map(str, values))) < len(values):
            raise ValueError(f"{where}: {name} must be a list of different values, got {values!r}")
    for name in ("drafters", "methods", "suites"):
        if name not in settings:
            continue
        if not isinstance(settings[name], dict) or not settings[name]:
            raise ValueError(f"{where}: {name} must be a mapping with at least one entry, got {settings[name]!r}")
    for suite, size in settings["suites"].items():
        _check_keys(size, {"prompts", "repeats"}, f"{where}, suite {suite}")
        if "prompts" not in size:
            raise ValueError(f"{where}, suite {suite} lacks prompts")


def _check_plain(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{name} must be a plain name (letters, digits, - and _), got {value!r}")


def _check_keys(given: object, known: set[str], where: str) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{where} must be a mapping, got {given!r}")
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}")


def _check_int(name: str, value: object, least: int, otherwise: str = "") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}{otherwise}, got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_suite(suite: object) -> None:
    if str(suite).endswith(".jsonl"):
        if not from_repository(str(suite)).is_file():
            raise ValueError(f"no prompts at {suite}")
    else:
        check_name("suite (or .jsonl file)", suite, SUITES)


def _check_drafter(drafter: str) -> None:
    if is_hub_id(drafter):
        return
    folder = from_repository(drafter)
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ValueError(f"no drafter at {drafter}: a folder with config.json and model.safetensors is wanted")


def is_hub_id(name: str) -> bool:
    """Whether `name` has the form of a hub id (`owner/model`) and no such folder exists here."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not from_repository(name).exists()


def _content(name: str) -> str:
    """Digest of the file or folder that `name` points to, or `name` itself where it is only a name."""
    path = from_repository(name)
    if name in SUITES or not path.exists():
        return name
    return drafter_digest(path) if path.is_dir() else files_digest(path)
