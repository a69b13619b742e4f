"""Two clocks: one that waits for the device at every lap, and one that is read when all is over."""

from __future__ import annotations

import time

import torch


class Clock:
    """Laps of wall time in seconds; waits for the device's queued work where there is a queue."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.last = self.now()

    def now(self) -> float:
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap."""
        before, self.last = self.last, self.now()
        return self.last - before


class Marks:
    """Points in time on a device's own clock, read once at the end: CUDA events, or the host's clock."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.marks: list = []

    def mark(self) -> None:
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def seconds(self) -> list[float]:
        """Seconds between neighbouring marks. Waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) / 1e3 for a, b in zip(self.marks, self.marks[1:], strict=False)]
        return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]
