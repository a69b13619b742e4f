"""Linear layers on a CPU with bfloat16, laid out once for the processor's matrix instructions.

PyTorch otherwise brings every weight matrix into that layout anew in each call, which costs more than the product
itself when a pass has few rows: one token, or the nodes of a small tree. Results are the same to the last bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

ROWS = 32  # the layout is chosen for about so many rows
LARGEST = 2 * 2**30  # bytes of weights: the second copy of a larger model would cost more memory than a pass is worth


class PackedLinear(nn.Linear):
    """A frozen `nn.Linear` of the same parameters, with the weight in the processor's layout beside the plain one."""

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.packed: Tensor | None = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), ROWS)

    def forward(self, x: Tensor) -> Tensor:
        learning = torch.is_grad_enabled() and (x.requires_grad or self.weight.requires_grad)
        if self.packed is None or learning or x.dtype != torch.bfloat16:
            return super().forward(x)
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


def can_pack(model: nn.Module) -> bool:
    """Whether `model` is small enough, in bfloat16, and on a CPU whose instructions take that."""
    weight = next(model.parameters())
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    fits = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and size <= LARGEST
    return fits and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack(model: nn.Module) -> None:
    """Put a `PackedLinear` in place of every `nn.Linear` of a frozen `model`."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Linear:
                setattr(parent, name, PackedLinear(child))


@contextlib.contextmanager
def unpacked(model: nn.Module) -> Iterator[None]:
    """`model` as it was before `pack`."""
    packed = [(layer, layer.packed) for layer in model.modules() if isinstance(layer, PackedLinear)]
    for layer, _ in packed:
        layer.packed = None
    try:
        yield
    finally:
        for layer, weight in packed:
            layer.packed = weight
