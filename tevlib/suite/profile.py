"""Profiles: the tables that somebody wants, written as YAML, and the cells that they come to."""

import dataclasses
import itertools
from collections.abc import Sequence, Set
from pathlib import Path

import yaml

from tevlib.suite.cells import Cell, VerifierCell, Work
from tevlib.suite.names import TABLES, check_name, did_you_mean

PROFILES = ("smoke", "laptop", "paper")
LATENCY_TABLE = "table3"  # its cells are `VerifierCell`s
REHEARSAL = "-rehearsal"  # how the name of a profile ends whose numbers stand for nothing: tevlib.suite.rehearsal


def load_profile(name: str, tables: Sequence[str] | None = None) -> list[Work]:
    """The cells of a profile (`smoke`, `laptop`, `paper`, or the path of a YAML file), of `tables` only if given.

    A cell whose drafter the profile lists as `trained` is there before its drafter is. Raises `ValueError` for an
    unknown profile, table or field and for a cell that cannot be run.
    """
    path, written = read_profile(name)
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
    return dict(read_profile(name)[1].get("trained") or {})


def read_profile(name: str) -> tuple[Path, dict]:
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
    for table in written["tables"]:
        check_name(f"table in {path.name}", str(table), TABLES)
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


def _check_keys(given: object, known: set[str], where: str) -> None:
    if not isinstance(given, dict):
        raise ValueError(f"{where} must be a mapping, got {given!r}")
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{did_you_mean(str(key), known)}")
