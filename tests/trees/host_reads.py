"""A dispatch mode that counts, or refuses, what would make a CPU wait for a device or give a shape that varies."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

READS = (
    "_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select",
    "repeat_interleave.Tensor", "unique", "_unique2", "unique_consecutive", "bincount",
)  # fmt: skip


class HostReads(TorchDispatchMode):
    """Counts operations that read a value on the host; with `refuse`, raises AssertionError at the first."""

    def __init__(self, refuse=False):
        super().__init__()
        self.refuse, self.seen = refuse, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__
        short = name.split(".")[0]
        by_mask = short in ("index", "index_put", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if short in READS or name in READS or by_mask:
            assert not self.refuse, f"{name} waits for the device"
            self.seen.append(name)
        return function(*args, **(kwargs or {}))
