"""Devices and their locks: which GPUs a runner takes, and that no two cells share one."""

import os
import threading
import time

import pytest

from tevlib.suite import devices as module
from tevlib.suite.devices import Gpu, devices, gpus, held, lock_name, one_of, only

TWO = [Gpu("0", "GPU-aa", "H20", 96 << 30), Gpu("1", "GPU-bb", "H20", 96 << 30)]


def test_a_lock_is_not_given_twice(home):
    """A held lock is refused at once without waiting, and free again afterwards."""
    with held("x", wait=False) as mine:
        assert mine
        with held("x", wait=False) as second:
            assert not second
        with held("y", wait=False) as other:
            assert other
    with held("x", wait=False) as again:
        assert again


@pytest.mark.parametrize(
    ("asked", "visible", "found", "taken"),
    [
        (None, None, [], ["cpu"]),
        (None, None, TWO, ["0", "1"]),
        (None, "1", TWO, ["1"]),
        (None, "", TWO, ["cpu"]),
        (None, "0", [], ["cpu"]),
        ("cpu", None, TWO, ["cpu"]),
        ("0,1", "0", TWO, ["0", "1"]),
        ("GPU-bb", None, TWO, ["GPU-bb"]),
        (None, "MIG-cc", TWO, ["MIG-cc"]),
    ],
)
def test_what_is_asked_for_goes_before_what_is_visible_and_there(monkeypatch, asked, visible, found, taken):
    """`--devices`, then CUDA_VISIBLE_DEVICES, then every GPU, then the CPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices(asked, found) == taken


@pytest.mark.parametrize(
    ("asked", "found", "words"),
    [("0", [], "no GPU '0' on this machine; there: none"), ("2", TWO, "no GPU '2'.*H20"), ("0,GPU-aa", TWO, "once")],
)
def test_devices_that_are_not_there_are_refused(asked, found, words):
    """An absent GPU and one named twice (by number and by uuid) are errors, not a run on something else."""
    with pytest.raises(ValueError, match=words):
        devices(asked, found)


def test_locks_know_a_gpu_by_its_uuid():
    """Inside batch jobs every GPU is number 0: the lock is the card's, not the number's."""
    assert lock_name("0", TWO) == lock_name("GPU-aa", TWO) != lock_name("0", TWO[1:])


def test_every_runner_gets_a_device_of_its_own(home, monkeypatch):
    """Three runners on two GPUs: never two on one, each with its own in the environment, the third waits."""
    monkeypatch.setattr(module, "gpus", lambda: TWO)
    busy, most, overlaps = set(), [], []

    def work():
        with one_of(["0", "1"]) as device:
            overlaps.extend([device] if device in busy else [])
            busy.add(device)
            most.append(len(busy))
            time.sleep(0.1)
            busy.remove(device)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [] and max(most) == 2 and len(most) == 3


def test_processes_see_their_device_alone(monkeypatch):
    """Inside, CUDA_VISIBLE_DEVICES is the device, by the driver's numbers and not by speed as CUDA counts otherwise;
    afterwards all is what it was; the CPU changes nothing."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with only("1"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with only("cpu"):
        assert "CUDA_VISIBLE_DEVICES" not in os.environ
    with only("0"):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0" and os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_VISIBLE_DEVICES" not in os.environ and "CUDA_DEVICE_ORDER" not in os.environ


@pytest.mark.parametrize(
    ("printed", "count"),
    [("0, GPU-aa, NVIDIA H20, 97871\\n1, GPU-bb, NVIDIA H20, 97871\\n", 2), ("No devices were found\\n", 0)],
)
def test_gpus_are_the_driver_s(tmp_path, monkeypatch, printed, count):
    """The driver's own tool lists them; without it, or with words instead of a list, there is none."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '{printed}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = gpus()
    assert len(found) == count and all(gpu.memory == 97871 << 20 for gpu in found)
    tool.unlink()
    assert gpus() == []
