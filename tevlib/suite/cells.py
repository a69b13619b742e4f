"""A cell is one row of work: what is decoded with what.

A cell's hash names its record. It covers everything that decides the result: what is done, the drafter's and target's
files, and the meaning of the code; editing a comment or a docstring leaves it as it was. Which table wants it decides
nothing: a cell that several tables share is run once.
"""

import dataclasses
import hashlib
import json
import math
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import ClassVar

from tevlib.sources.prompts import SUITES
from tevlib.suite.code_hash import code_digest, drafter_digest, files_digest
from tevlib.suite.names import check_name
from tevlib.suite.paths import from_repository, repository

# The names that tevlib.trees and tevlib.decoding go by, kept here so that planning loads no torch.
AUTO = "auto"  # a budget that follows the machine: tevlib.decoding.budget
PROMPT_LOOKUP, NO_DRAFTER = "prompt_lookup", "none"  # transformers' own chains, copied from the text: no drafter
BUILDERS = ("best_first", "chain", "opt_tree", "sampled_chain", PROMPT_LOOKUP)
VERIFIERS = (
    "greedy", "predraw", "predraw_reference", "predraw_lazy", "sequential_residual",
    "tev", "tev_parallel", "tev_descent",
)  # fmt: skip
DTYPES = ("float32", "bfloat16", "float16")
SHAPES = ("own", "qwen3_4b")


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
        return (
            self.drafter != NO_DRAFTER
            and not is_hub_id(self.drafter)
            and not (from_repository(self.drafter) / "config.json").is_file()
        )

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
    With the builder `prompt_lookup` transformers decodes, `budget` tokens ahead at most; the drafter is then "none".
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
        "suite/decode_cell.py", "suite/decode_rows.py", "suite/metrics.py", "suite/models.py", "suite/oracle.py",
        "suite/processes.py",
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
        if self.builder == PROMPT_LOOKUP:
            self._check_prompt_lookup()
        elif self.drafter == NO_DRAFTER:
            raise ValueError(f"only {PROMPT_LOOKUP!r} needs no drafter, {self.builder!r} was asked for")
        if self.prompts is not None:
            _check_int("prompts", self.prompts, 1)
        if not _is_number(self.temperature) or not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature must be a finite number >= 0, got {self.temperature!r}")
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p!r}")
        if self.verifier == "greedy" and self.temperature > 0:
            raise ValueError(f"the greedy verifier is exact at temperature 0 only, got {self.temperature:g}")
        if not to_be_trained and self.builder != PROMPT_LOOKUP:
            _check_drafter(self.drafter)

    def _check_prompt_lookup(self) -> None:
        """Raises `ValueError` for what `transformers`' own loop, which verifies by drawing first, cannot be asked."""
        if self.drafter != NO_DRAFTER:
            raise ValueError(f"{PROMPT_LOOKUP!r} takes the drafter {NO_DRAFTER!r}, got {self.drafter!r}")
        if self.verifier != "predraw":
            raise ValueError(f"{PROMPT_LOOKUP!r} is verified by predraw, got {self.verifier!r}")
        if self.budget == AUTO or self.budget < 1:
            raise ValueError(f"{PROMPT_LOOKUP!r} looks 1 token or more ahead, got budget {self.budget!r}")

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
    CODE: ClassVar[tuple[str, ...]] = ("suite/decode_cell.py", "suite/models.py", "suite/verifier_cell.py")
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


def _check_plain(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"{name} must be a plain name (letters, digits, - and _), got {value!r}")


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
