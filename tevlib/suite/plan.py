"""What a profile comes to: its cells once each, the notebook runs that they make, what is done and what cannot be yet.

Cells that share the plain decoding are a company (`Work.company`): one notebook run, one job of a cluster. A company is
known by the hash of its first cell.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from tevlib.suite.cells import Work
from tevlib.suite.devices import gpus
from tevlib.suite.estimate import CPU, GPU, Machine, by_rule, rates, seconds
from tevlib.suite.paths import home
from tevlib.suite.profile import load_profile, load_trained
from tevlib.suite.provenance import cpu_model
from tevlib.suite.records import failed_path, read_record, record_path
from tevlib.suite.sizes import memory_bytes, parameters

FINISHED, FAILED, NOT_RUN, NOT_POSSIBLE = "finished", "failed", "not run", "not possible yet"
RECORDS, RULE = "records of this machine", "rough rule"
WANTS_GPU = 1e9  # active parameters from which a job asks for a GPU
UNKNOWN_BYTES = int(16e9)
LEAST_MINUTES, LEAST_BYTES = 30, int(2e9)  # of a job


@dataclass(frozen=True)
class Job:
    """A company as a cluster sees it: its name, the hashes of its cells and of those to be run, and what it needs.

    `seconds` is for what is still to be run, on this machine; `basis` says where it is from. `minutes` is what to ask a
    cluster for: three times that, on a GPU where the job asks for one.
    """

    name: str
    cells: tuple[str, ...]
    todo: tuple[str, ...]
    seconds: float
    basis: str
    minutes: int
    gpus: int
    memory: int


@dataclass(frozen=True)
class Plan:
    """A profile's cells with hash and state, its jobs, the machine that it was planned for, and drafters to be trained.

    `gpu_seconds` is what is still to be run by the rough rule for one GPU, where this machine has none.
    """

    cells: list[tuple[Work, str, str]]
    jobs: list[Job]
    machine: str
    training: dict[str, str]
    gpu_seconds: float | None

    def by_table(self) -> dict[str, Counter]:
        """How many cells each table has in each state; a cell that tables share counts in each."""
        found: dict[str, Counter] = {}
        for cell, _, state in self.cells:
            found.setdefault(cell.table, Counter())[state] += 1
        return found


def make_plan(profile: str, tables: Sequence[str] | None = None) -> Plan:
    """The `Plan` of a profile (its name or file), of `tables` only if given, as things stand on this machine."""
    cells, found = load_profile(profile, tables), gpus()
    known = {cell: cell.hash12() for cell in cells}
    states = {hash12: state(cell, hash12) for cell, hash12 in known.items()}
    machine, name = (GPU, found[0].name) if found else (CPU, cpu_model())
    records = [read_record(path) for path in sorted((home() / "data" / "results").glob("????????????.json"))]
    measured = rates([record for record in records if record], name)
    jobs, gpu_seconds = [], 0.0
    for company in companies(distinct(cells)):
        todo = [cell for cell in company if states[known[cell]] in (FAILED, NOT_RUN)]
        jobs.append(_job(company, todo, known, measured, machine))
        gpu_seconds += seconds(todo, by_rule(todo[0], GPU)) if todo else 0.0
    return Plan(
        [(cell, hash12, states[hash12]) for cell, hash12 in known.items()],
        jobs,
        name,
        to_be_trained(cells, load_trained(profile)),
        None if found else gpu_seconds,
    )


def _job(company: list[Work], todo: list[Work], known: Mapping[Work, str], measured: Mapping, machine: Machine) -> Job:
    first = company[0]
    rate = measured.get((first.target, first.dtype))
    _, active = parameters(first.target, first.dtype) or (0.0, 0.0)
    wants_gpu = active >= WANTS_GPU
    here = seconds(todo, rate or by_rule(first, machine)) if todo else 0.0
    there = seconds(todo, by_rule(first, GPU)) if todo and wants_gpu and not rate else here
    return Job(
        name=known[first],
        cells=tuple(known[cell] for cell in company),
        todo=tuple(known[cell] for cell in todo),
        seconds=here,
        basis=RECORDS if rate else RULE,
        minutes=max(LEAST_MINUTES, ceil(3 * there / 60)),
        gpus=int(wants_gpu),
        memory=max(LEAST_BYTES, memory_bytes(first.target, first.dtype) or UNKNOWN_BYTES),
    )


def describe(plan: Plan) -> list[str]:
    """The plan as lines of text: what each table has, notebook runs, time and its basis, drafters to be trained."""
    lines = []
    for table, states in plan.by_table().items():
        shown = ", ".join(
            f"{states[name]} {name}" for name in (FINISHED, FAILED, NOT_RUN, NOT_POSSIBLE) if states[name]
        )
        lines.append(f"{table}: {states.total()} cells, {shown}")
    all_states = Counter({hash12: state for _, hash12, state in plan.cells}.values())
    total = f"{len(plan.cells)} cells ({all_states.total()} different)"
    lines.append(f"{total}, {all_states[FINISHED]} finished, {all_states[FAILED]} failed")
    todo = [job for job in plan.jobs if job.todo]
    lines.append(f"notebook runs: {len(plan.jobs)}, {len(todo)} of them to be done")
    for basis in (RECORDS, RULE):
        if some := [job.seconds for job in todo if job.basis == basis]:
            rough = ", which may be wrong by a factor of three" if basis == RULE else ""
            lines.append(f"time on {plan.machine}: about {duration(sum(some))} for {len(some)}, by {basis}{rough}")
    if plan.gpu_seconds and any(job.basis == RULE for job in todo):
        lines.append(f"time on one data-centre GPU: about {duration(plan.gpu_seconds)}, by {RULE}")
    for folder, command in plan.training.items():
        waiting = {hash12 for cell, hash12, state in plan.cells if cell.drafter == folder and state == NOT_POSSIBLE}
        lines.append(f"not possible yet: {len(waiting)} cells need {folder}; train it with\n    {command}")
    return lines


def duration(s: float) -> str:
    """Seconds as a person says them."""
    if s < 90:
        return f"{s:.0f} s"
    if s < 90 * 60:
        return f"{s / 60:.0f} min"
    return f"{s / 3600:.0f} h"


def distinct(cells: Iterable[Work]) -> dict[Work, str]:
    """Each cell's `hash12`; of cells that are the same work (two tables may share one) the first alone."""
    first: dict[str, Work] = {}
    for cell in cells:
        first.setdefault(cell.hash12(), cell)
    return {cell: hash12 for hash12, cell in first.items()}


def companies(cells: Iterable[Work]) -> list[list[Work]]:
    """The cells grouped by what is done side by side in one notebook, in order of first appearance."""
    found: dict[object, list[Work]] = {}
    for cell in cells:
        found.setdefault(cell.company(), []).append(cell)
    return list(found.values())


def state(cell: Work, hash12: str) -> str:
    """`finished`, `failed`, `not run`, or `not possible yet` where its drafter is still to be trained."""
    path = record_path(cell, hash12)
    if read_record(path) is not None:
        return FINISHED
    if cell.lacks_drafter():
        return NOT_POSSIBLE
    return FAILED if failed_path(path).is_file() else NOT_RUN


def company_of(cells: Iterable[Work], hash12: str) -> list[Work]:
    """The whole company of the cell `hash12`; `ValueError` where no cell of the profile has that hash."""
    hashes = distinct(cells)
    if hash12 not in hashes.values():
        raise ValueError(f"no cell {hash12!r} in this profile: `python -m tevlib plan` lists them")
    return next(company for company in companies(hashes) if any(hashes[cell] == hash12 for cell in company))


def training_parameters(folder: str, trained: Mapping[str, Mapping]) -> dict:
    """The parameters of `20_train_drafter` that make the drafter `folder`, from what `load_trained` says of it."""
    return {"drafter": folder, "out": f"runs/drafters/{folder.rstrip('/').split('/')[-1]}"} | dict(trained[folder])


def training_command(folder: str, trained: Mapping[str, Mapping]) -> str:
    """The command that makes the drafter `folder`, from what the profile says of it (`load_trained`)."""
    words = [f"{name}={value}" for name, value in training_parameters(folder, trained).items()]
    return shlex.join(["python", "-m", "tevlib", "notebook", "20_train_drafter", *words])


def to_be_trained(cells: Sequence[Work], trained: Mapping[str, Mapping]) -> dict[str, str]:
    """Drafter folders that cells are waiting for -> the command that makes each."""
    lacking = dict.fromkeys(cell.drafter for cell in cells if cell.lacks_drafter())
    return {folder: training_command(folder, trained) for folder in lacking}
