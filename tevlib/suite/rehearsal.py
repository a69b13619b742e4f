"""A profile rehearsed before hours are paid for: every training, cell and table, on tiny models, in minutes.

The profile itself is what runs, with its sizes cut: same rows, verifiers, budgets, suites and temperatures, through the
same batch and notebooks. Hub names stay as they are and are found in a hub cache of tiny random models; drafters that
the profile trains are trained, for two steps. All of it happens in a results folder of its own, and the profile's name
ends in `-rehearsal`, so that no number of it is ever judged or mixed with another.
"""

import contextlib
import multiprocessing
import shutil
import traceback
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tevlib.sources import assets
from tevlib.suite.batch import Summary, run_cells, run_in_notebook
from tevlib.suite.cells import Cell, VerifierCell, Work, is_hub_id
from tevlib.suite.environment import environment
from tevlib.suite.notebook import NotebookFailed, run_notebook
from tevlib.suite.paths import home, repository
from tevlib.suite.plan import to_be_trained, training_parameters
from tevlib.suite.profile import REHEARSAL, load_profile, load_trained, read_profile
from tevlib.suite.rehearsal_models import check_known, write_models

LARGEST = {"prompts": 1, "repeats": 1, "max_new_tokens": 8, "rounds": 2}  # what a profile has more of is cut to
TRAINING = {  # of every drafter that the profile trains; what is not here stays as the profile has it
    "prompts": 8, "self_made": 4, "max_prompt_tokens": 400, "rollout_tokens": 12, "held_out": 1, "steps": 2,
    "sequences": 2, "anchors": 2, "trees": 1, "validation_contexts": 1, "decode_prompts": 2, "decode_tokens": 4,
}  # fmt: skip


@dataclass(frozen=True)
class Stage:
    """Where a rehearsal happens: its folder, the profile with its sizes cut, and the hub cache of tiny models."""

    folder: Path
    profile: Path
    hub: Path

    def set(self) -> contextlib.AbstractContextManager[None]:
        """Results go to the stage's folder and models come from its hub cache, here and in processes started inside."""
        return environment({"TEVLIB_HOME": str(self.folder), "HF_HUB_CACHE": str(self.hub), "HF_HUB_OFFLINE": "1"})


@dataclass
class Outcome:
    """What came of a rehearsal: drafters trained, the batch's summary, notebooks of tables, and what failed and why."""

    trained: list[str] = field(default_factory=list)
    cells: Summary = field(default_factory=Summary)
    tables: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"rehearsed: {len(self.trained)} drafters trained, {self.cells}, "
            f"{len(self.tables)} notebooks of tables and figures run"
        )


def set_stage(profile: str, tokenizers: Path | None = None, tables: Sequence[str] | None = None) -> Stage:
    """The `Stage` for a profile (its name or file), made anew under `runs/<profile>-rehearsal` of the results folder.

    tokenizers: see `tevlib.suite.rehearsal_models.write_models`. Raises `ValueError` for a bad profile or a model of no
    known architecture, for `tables` that the profile does not have and a folder of tokenizers that is not there, and
    `AssetMissing`, naming the command, where the offline prompts are not in the cache.
    """
    path, written = read_profile(profile)
    load_profile(profile, tables)
    if tokenizers is not None and not tokenizers.is_dir():
        raise ValueError(
            f"no folder of tokenizers at {tokenizers}: each is wanted as a folder named as its model in it"
        )
    for wheel in assets.WHEELS:
        if wheel != assets.GGUF_WHEEL:
            assets.wheel_path(wheel)
    folder = home() / "runs" / f"{path.stem}{REHEARSAL}"
    stage = Stage(folder, folder / f"{path.stem}{REHEARSAL}.yaml", folder / "hub")
    pairs = hub_models(load_profile(profile), load_trained(profile))
    check_known(pairs.values())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stage.profile.write_text(yaml.safe_dump(cut(written, folder), sort_keys=False), encoding="utf-8")
    write_models(stage.hub, pairs, tokenizers)
    return stage


def cut(written: Mapping, folder: Path) -> dict:
    """A profile as written with its sizes cut, and the drafters that it trains in `folder` instead of where they go.

    A whole suite (`prompts: null`) becomes one prompt too.
    """
    trained = written.get("trained") or {}
    places = {name: str(folder / "drafters" / Path(name).name) for name in trained}

    def shrunk(value: object) -> object:
        if isinstance(value, dict):
            return {places.get(k, k): _least(k, v) if k in LARGEST else shrunk(v) for k, v in value.items()}
        if isinstance(value, list):
            return [shrunk(one) for one in value]
        return places.get(value, value) if isinstance(value, str) else value

    body = {part: shrunk(value) for part, value in written.items() if part != "trained"}
    made = {}
    for name, parameters in trained.items():
        out = {"out": str(folder / "training" / Path(name).name)}
        made[places[name]] = {k: places.get(v, v) for k, v in parameters.items()} | TRAINING | out
    return body | {"trained": made}


def _least(name: str, value: object) -> object:
    return LARGEST[name] if value is None else min(value, LARGEST[name])


def hub_models(cells: Sequence[Work], trained: Mapping[str, Mapping]) -> dict[str, str]:
    """The drafters of a profile that are on the hub -> the target each is for, also where only training needs them."""
    pairs = {cell.drafter: cell.target for cell in cells if is_hub_id(cell.drafter)}
    pairs |= {one["init"]: one["target"] for one in trained.values() if is_hub_id(one.get("init") or "")}
    return pairs


def rehearse(stage: Stage, tables: Sequence[str] | None = None) -> Outcome:
    """The `Outcome` of running everything on a stage: trainings, cells, the notebooks of the tables.

    Of `tables` only, if given. What fails is kept in the outcome, and the rest goes on. The work is done by a process
    that is started for it, since the hub's client asks once, when it is loaded, where its cache is.
    """
    with stage.set(), ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_rehearse, stage, tables).result()


def _rehearse(stage: Stage, tables: Sequence[str] | None) -> Outcome:
    profile = str(stage.profile)
    outcome, trained = Outcome(), load_trained(profile)
    for drafter in to_be_trained(load_profile(profile, tables), trained):
        parameters = training_parameters(drafter, trained)
        print(f"training {Path(drafter).name} for {parameters['steps']} steps", flush=True)
        if _ran("20_train_drafter", parameters, stage.folder / "runs" / f"train-{Path(drafter).name}.ipynb", outcome):
            outcome.trained.append(drafter)
    cells = load_profile(profile, tables)
    outcome.cells = run_cells(cells, run=FirstInNotebook())
    outcome.faults += [f"{cell}: {error}" for cell, error in outcome.cells.failures]
    outcome.faults += [f"{cell}: its drafter was not trained" for cell in outcome.cells.impossible]
    for name in table_notebooks(cell.table for cell in cells):
        if _ran(name, {"profile": profile}, stage.folder / "runs" / f"{name}.ipynb", outcome):
            outcome.tables.append(name)
    return outcome


class FirstInNotebook:
    """Does companies of cells: the first of each notebook, target and temperature in its notebook under papermill, the
    others, which differ in the suite, by the function that the notebook calls: a kernel's start costs most here."""

    def __init__(self):
        self.seen: set[tuple] = set()

    def __call__(self, cells: Sequence[Work], output: Path) -> None:
        first = cells[0]
        kind = (first.NOTEBOOK, first.target, first.temperature)
        if kind not in self.seen:
            self.seen.add(kind)
            return run_in_notebook(cells, output)
        from tevlib.suite.decode_cell import run_decode_cells
        from tevlib.suite.verifier_cell import run_verifier_cells

        do = {Cell.NOTEBOOK: run_decode_cells, VerifierCell.NOTEBOOK: run_verifier_cells}[first.NOTEBOOK]
        log = output.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
            try:
                do(cells)
            except Exception as error:  # as a notebook's, whatever it is: this company failed
                traceback.print_exc()
                raise ValueError(f"{type(error).__name__}: {error}; log: {log}") from error


def table_notebooks(tables: Iterable[str]) -> list[str]:
    """The notebooks that show `tables`, and the one of figures."""
    numbers = sorted({table.removeprefix("table") for table in tables})
    found = [path.stem for number in numbers for path in (repository() / "notebooks").glob(f"3?_table{number}_*.ipynb")]
    return [*found, "36_figures"]


def _ran(notebook: str, parameters: Mapping, output: Path, outcome: Outcome) -> bool:
    """Whether a notebook ran to its end; if not, why is among the outcome's faults."""
    try:
        run_notebook(notebook, parameters, output)
    except (NotebookFailed, ValueError, OSError) as fault:
        outcome.faults.append(str(fault))
        return False
    return True
