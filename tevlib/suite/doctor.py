"""Whether a profile can be run on this machine, before anything starts: what is there, what is missing, what it costs.

Nothing is loaded and nothing downloaded. The hub is asked only where it can be reached and HF_HUB_OFFLINE is not set.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tevlib.sources import assets
from tevlib.sources.suites import SUITES
from tevlib.suite.cells import NO_DRAFTER, Work, is_hub_id
from tevlib.suite.devices import Gpu, gpus
from tevlib.suite.hub import Hub
from tevlib.suite.memory import available_bytes
from tevlib.suite.paths import from_repository, home, repository
from tevlib.suite.plan import to_be_trained
from tevlib.suite.profile import load_profile, load_trained
from tevlib.suite.provenance import cpu_model
from tevlib.suite.sizes import gigabytes, memory_bytes

OLDEST_PYTHON = (3, 11)
ROOM = 2e9  # free disk that records, executed notebooks and a conversion may take
RECURRENT = ("qwen3.5", "qwen3-next", "mamba")  # families with a state, where no configuration is here to say it


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: its name, whether it is as needed, what was found, and what is to be done.

    `refused`: it is not as needed, and nothing can be done about it.
    """

    name: str
    ok: bool
    found: str
    remedy: str = ""
    refused: bool = False


def examine(profile: str, tables: Sequence[str] | None = None) -> list[Check]:
    """Every `Check` of a profile (its name or file), of `tables` only if given; `ValueError` for a bad profile."""
    cells = load_profile(profile, tables)
    found, hub = gpus(), Hub.reached()
    out = [name for name in dict.fromkeys(cell.target for cell in cells) if refused(name, hub.configuration(name))]
    cells = [cell for cell in cells if cell.target not in out]  # nothing is to be had for what cannot run anyway
    targets = {cell.target: cell.dtype for cell in cells}
    drafters = dict.fromkeys(cell.drafter for cell in cells)
    wanted = [name for name in [*targets, *drafters] if is_hub_id(name)]
    return [
        *_software(),
        *_machine(targets, found),
        *_hub(hub, wanted),
        *_offline_data(cells),
        *(check for name in [*targets, *out] for check in _target(name, hub)),
        *(_hub_model("drafter", name, hub) for name in drafters if is_hub_id(name)),
        *_local_drafters(cells, load_trained(profile)),
    ]


def report(checks: Sequence[Check]) -> list[str]:
    """The checks as lines, what is missing with its remedy; the last line says whether the profile can be run here."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        state = "ok" if check.ok else "REFUSED" if check.refused else "MISSING"
        lines.append(f"{state:8}{check.name:{width}}  {check.found}")
        if check.remedy:
            lines.append(f"{'':8}{'':{width}}  -> {check.remedy}")
    missing = sum(not check.ok for check in checks)
    verdict = f"not possible here: {missing} of {len(checks)} things are missing" if missing else "possible here"
    return [*lines, "", verdict]


def _software() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    new = sys.version_info[:2] >= OLDEST_PYTHON
    yield Check("Python", new, version, "" if new else f"Python {'.'.join(map(str, OLDEST_PYTHON))} or newer")
    wrong = wrong_packages((repository() / "requirements.txt").read_text(encoding="utf-8"))
    remedy = "pip install -c constraints.txt -r requirements.txt" if wrong else ""
    yield Check("packages", not wrong, "; ".join(wrong) or "all of requirements.txt, in their ranges", remedy)
    runs = importlib.util.find_spec("ipykernel") is not None
    state = f"this interpreter, {sys.executable}; {_jupyter_kernel()}"
    yield Check("kernel", runs, state, "" if runs else "pip install ipykernel")


def _jupyter_kernel() -> str:
    """Whether notebooks opened by hand in Jupyter run under this interpreter too, in words."""
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return "Jupyter is not installed"
    try:
        other = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return "Jupyter has no kernel called python3"
    bare = {"python", "python3", f"python3.{sys.version_info.minor}"}  # Jupyter starts its own interpreter for these
    if other in bare or Path(other) == Path(sys.executable):
        return "Jupyter's python3 is the same"
    return f"Jupyter's python3 is another one, {other}"


def wrong_packages(requirements: str) -> list[str]:
    """The packages of a requirements file that are not installed or out of their range, each with what is there."""
    from packaging.requirements import Requirement

    wrong = []
    for line in requirements.splitlines():
        if not (text := line.split("#")[0].strip()) or text.startswith("-"):
            continue
        wanted = Requirement(text)
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{wanted.name} is not installed")
            continue
        if not wanted.specifier.contains(version, prereleases=True):
            wrong.append(f"{wanted.name} {version} is not {wanted.specifier}")
    return wrong


def _machine(targets: dict[str, str], found: list[Gpu]) -> Iterator[Check]:
    sizes = {name: memory_bytes(name, dtype) for name, dtype in targets.items()}
    largest = max((name for name in sizes if sizes[name]), key=lambda name: sizes[name], default=None)
    free, needed = available_bytes(), sizes.get(largest) or 0
    memory = f"{gigabytes(free)} of memory free" if free else "free memory unknown"
    yield Check("processor", True, f"{cpu_model()}, {os.cpu_count()} cores, {memory}")
    need = f"{largest} needs about {gigabytes(needed)}"
    if found:
        most = max(gpu.memory for gpu in found)
        listed = ", ".join(f"{gpu.name} ({gigabytes(gpu.memory)})" for gpu in found)
        yield Check("GPU", most >= needed, f"{listed}; {need}", "" if most >= needed else "a GPU with more memory")
        if not _torch_has_cuda():
            yield Check("torch", False, "a build without CUDA", "install torch's CUDA build of the same version")
    else:
        fits = free is None or needed <= free
        remedy = "" if fits else "a GPU, or more memory; `--tables` and a profile of your own leave targets out"
        yield Check("GPU", fits, f"none: everything runs on the CPU; {need}", remedy)
    disk = shutil.disk_usage(_existing(home())).free
    yield Check("disk", disk > ROOM, f"{gigabytes(disk)} free at {home()}", "" if disk > ROOM else "room for 2 GB")


def _torch_has_cuda() -> bool:
    try:
        return "+cpu" not in importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _hub(hub: Hub, wanted: list[str]) -> Iterator[Check]:
    if not wanted:
        yield Check("hub", True, "not needed: no model of this profile is from there")
        return
    absent = [name for name in wanted if not hub.cached(name)]
    remedy = "" if hub.online or not absent else f"{len(absent)} models are still to be had from there"
    yield Check("hub", hub.online or not absent, hub.state, remedy)
    room, size = shutil.disk_usage(_existing(hub.folder)).free, sum(hub.facts(name).size or 0 for name in absent)
    if size:
        remedy = "" if room > size else "set HF_HOME to a larger disk"
        yield Check("hub's cache", room > size, f"{gigabytes(room)} free, {gigabytes(size)} to come", remedy)


def _offline_data(cells: Sequence[Work]) -> Iterator[Check]:
    names = [name for name in assets.WHEELS if name != assets.GGUF_WHEEL] if _uses_suites(cells) else []
    names += [assets.GGUF_WHEEL] if any(cell.target == assets.OFFLINE_TARGET for cell in cells) else []
    missing = []
    for name in names:
        try:
            assets.wheel_path(name)
        except assets.AssetMissing:
            missing.append(assets.WHEELS[name])
    size = sum(wheel.size for wheel in missing)
    remedy = f"{assets.FETCH_COMMAND} ({size / 1e6:.0f} MB, a minute)" if missing else ""
    state = (
        f"{', '.join(wheel.name for wheel in missing)} not in {assets.cache_dir()}" if missing else "all in the cache"
    )
    yield Check("offline data", not missing, state, remedy)


def _uses_suites(cells: Sequence[Work]) -> bool:
    return any(cell.suite in SUITES for cell in cells)


def _target(name: str, hub: Hub) -> Iterator[Check]:
    if refusal := refused(name, hub.configuration(name)):
        yield Check(f"target {name}", False, refusal, "its cells will fail, the others run", refused=True)
    elif is_hub_id(name):
        yield _hub_model("target", name, hub)
    elif name != assets.OFFLINE_TARGET:
        there = from_repository(name).exists()
        remedy = "" if there else "a folder or a .gguf file in its place"
        yield Check(f"target {name}", there, "there" if there else "not there", remedy)


def refused(name: str, configuration: dict | None) -> str | None:
    """Why a target is refused at load, by its `config.json` where that is here, else by its family's name; or None."""
    if configuration is None:
        family = next((family for family in RECURRENT if family in name.lower()), None)
        return f"{family} has layers with a recurrent state, which cannot be rolled back" if family else None
    from transformers import AutoConfig

    from tevlib.decoding.target import refuse_inexact

    try:
        kind, values = configuration["model_type"], {k: v for k, v in configuration.items() if k != "model_type"}
        refuse_inexact(AutoConfig.for_model(kind, **values).get_text_config())
    except (ValueError, KeyError) as error:
        return " ".join(str(error).split())
    return None


def _hub_model(kind: str, name: str, hub: Hub) -> Check:
    title = f"{kind} {name}"
    if hub.cached(name):
        return Check(title, True, "in the hub's cache")
    facts = hub.facts(name)
    if facts.error:
        return Check(title, False, facts.error, "see whether the name is right and its licence accepted")
    size = f"{gigabytes(facts.size)} to download" if facts.size else "size unknown"
    size += "" if facts.exact else ", by its name"
    if facts.gated and not hub.token:
        return Check(
            title, False, f"gated, no token here; {size}", "accept its licence on the hub, then `hf auth login`"
        )
    return Check(title, hub.online, f"not here; {size}", "" if hub.online else "access to the hub, or a copied cache")


def _local_drafters(cells: Sequence[Work], trained: dict[str, dict]) -> Iterator[Check]:
    lacking = to_be_trained(cells, trained)
    local = dict.fromkeys(c.drafter for c in cells if c.drafter != NO_DRAFTER and not is_hub_id(c.drafter))
    for folder in local:
        if folder not in lacking:
            yield Check(f"drafter {folder}", True, "there")
            continue
        count = len({cell.hash12() for cell in cells if cell.drafter == folder})
        yield Check(
            f"drafter {folder}",
            False,
            f"not there: {count} cells wait for it; hours of training on a GPU (the paper: 35 to 100 on eight)",
            lacking[folder],
        )
