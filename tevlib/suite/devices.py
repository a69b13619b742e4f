"""Which devices a machine lends to cells, and locks that give each to one cell at a time. No torch."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tevlib.suite.environment import environment
from tevlib.suite.paths import home

CPU = "cpu"  # all cores together are one device
POLL_S = 0.2


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver lists it: index, uuid, name, total memory in bytes."""

    index: str
    uuid: str
    name: str
    memory: int


def gpus() -> list[Gpu]:
    """The GPUs that this process may see by the driver's own tool; none where there is no such tool."""
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    if run.returncode != 0:
        return []
    lines = [[part.strip() for part in line.split(",")] for line in run.stdout.splitlines()]
    return [Gpu(*line[:3], int(line[3]) << 20) for line in lines if len(line) == 4 and line[3].isdigit()]


def devices(asked: str | None = None, found: Sequence[Gpu] | None = None) -> list[str]:
    """The devices to run on: `asked` ("0,1", GPU uuids, or "cpu"), else $CUDA_VISIBLE_DEVICES, else every GPU, else
    the CPU.

    Raises `ValueError` for a GPU that is not there and for one that is named twice.
    """
    found = gpus() if found is None else found
    text = os.environ.get("CUDA_VISIBLE_DEVICES") if asked is None else asked
    if text is None:
        return [gpu.index for gpu in found] or [CPU]
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or names == [CPU] or (asked is None and not found):
        return [CPU]
    known = {gpu.index for gpu in found} | {gpu.uuid for gpu in found}
    for name in names:
        if name not in known and not name.startswith("MIG-"):
            there = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in found) or "none"
            raise ValueError(f"no GPU {name!r} on this machine; there: {there}")
    if len({lock_name(name, found) for name in names}) < len(names):
        raise ValueError(f"every device once, got {text!r}")
    return names


def lock_name(device: str, found: Sequence[Gpu]) -> str:
    """The lock's name of a device on this machine: GPUs by uuid, for inside a batch job each is number 0."""
    uuid = next((gpu.uuid for gpu in found if gpu.index == device), device)
    return f"device-{socket.gethostname()}-{uuid}"


def only(device: str) -> contextlib.AbstractContextManager[None]:
    """Processes started inside see `device` alone, by the driver's numbering; for the CPU nothing is changed."""
    return environment({} if device == CPU else {"CUDA_VISIBLE_DEVICES": device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"})


@contextlib.contextmanager
def one_of(devices: Sequence[str]) -> Iterator[str]:
    """Hold the lock of one of `devices`, the first that is free; waits while all are taken. Yields which."""
    found = gpus() if list(devices) != [CPU] else []
    with contextlib.ExitStack() as stack:
        while True:
            for device in devices:
                with contextlib.ExitStack() as attempt:
                    if attempt.enter_context(held(lock_name(device, found), wait=len(devices) == 1)):
                        stack.enter_context(attempt.pop_all())
                        yield device
                        return
            time.sleep(POLL_S)


@contextlib.contextmanager
def held(name: str, wait: bool) -> Iterator[bool]:
    """Hold the lock `name` of this results folder; yields whether we have it (always, after a while, with `wait`).

    The system drops it with the process that holds it, however that ends.
    """
    import fcntl  # not on Windows, where planning and reading still work

    folder = home() / "runs" / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
