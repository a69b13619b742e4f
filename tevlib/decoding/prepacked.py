"""Linear layers on a CPU with bfloat16, laid out once for the processor's matrix instructions.

PyTorch otherwise brings every weight matrix into that layout anew in each call, which costs more than the product
itself when a pass has few rows: one token, or the nodes of a small tree. Results are the same to the last bit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ROWS = 32  # the layout is chosen for about so many rows
LARGEST = 2 * 2**30  # bytes of weights: the second copy of a larger model would cost more memory than a pass is worth
TRIALS = 7


class PackedLinear(nn.Linear):
    """A frozen `nn.Linear` of the same parameters, with the weight in the processor's layout beside the plain one.

    A weight that was changed in place since is laid out again.
    """

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.use_packed = True
        self._pack()

    def _pack(self) -> None:
        self.version, self.packed = self.weight._version, packed_weight(self.weight.detach())

    def forward(self, x: Tensor) -> Tensor:
        learning = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        if not self.use_packed or learning or x.dtype != torch.bfloat16:
            return super().forward(x)
        if self.weight._version != self.version:
            self._pack()
        return packed_linear(x, self.packed, self.bias)


def packed_weight(weight: Tensor) -> Tensor:
    """`weight` in the layout that oneDNN multiplies fastest; opaque, for `packed_linear` only."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)


def packed_linear(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x @ weight.T + bias` with what `packed_weight` gave."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def can_pack(model: nn.Module) -> bool:
    """Whether `model` is small enough, in bfloat16, and on a CPU whose instructions take that."""
    weight = next(model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    fits = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and size <= LARGEST
    return fits and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_linears(model: nn.Module) -> None:
    """Put a `PackedLinear` in place of every `nn.Linear` of a frozen `model`."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))


@torch.inference_mode()
def measured_paths(weight: Tensor) -> dict[str, float]:
    """Seconds of a product of one row and one of `ROWS` rows with `weight [out, in]`, together, by each path there is.

    Medians of a few interleaved trials: "plain", "float32", and "packed" where oneDNN takes bfloat16.
    """
    inputs = [torch.ones(rows, weight.shape[1], dtype=weight.dtype) for rows in (1, ROWS)]
    wide = weight.float()
    paths: dict[str, Callable[[Tensor], Tensor]] = {
        "plain": lambda x: linear(x, weight),
        "float32": lambda x: linear(x.float(), wide),
    }
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        packed = packed_weight(weight)
        paths["packed"] = lambda x: packed_linear(x, packed)
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(TRIALS):
        for name, product in paths.items():
            start = time.perf_counter()
            for x in inputs:
                product(x)
            times[name].append(time.perf_counter() - start)
    return {name: median(some[1:]) for name, some in times.items()}


@contextlib.contextmanager
def unpacked(model: nn.Module) -> Iterator[None]:
    """`model` as it was before `pack_linears`."""
    layers = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
    for layer in layers:
        layer.use_packed = False
    try:
        yield
    finally:
        for layer in layers:
            layer.use_packed = True
