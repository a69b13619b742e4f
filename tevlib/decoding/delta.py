"""A drafter as its difference from another: a quarter of the size, for controls that are shipped beside their base.

Differences of matrices are kept in four bits with one scale per group; everything else as it is. What is loaded is then
the drafter: numbers measured with it are those of the rounded weights.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 64  # entries of a row that share a scale
LEVELS = 7  # steps to either side of zero


def pack(drafter: dict[str, Tensor], base: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of `drafter - base` for a file: `name` (uint8, two entries a byte) and `name.scale` for each matrix.

    Other tensors, and matrices whose width is no multiple of `GROUP`, are kept whole, in the base's dtype. Raises
    `ValueError` where names or shapes differ.
    """
    if drafter.keys() != base.keys() or any(drafter[n].shape != base[n].shape for n in base):
        raise ValueError("a difference needs two drafters of one shape: names or shapes of their tensors differ")
    packed = {}
    for name, value in drafter.items():
        known = base[name]
        if value.ndim != 2 or value.shape[1] % GROUP:
            packed[name] = value.to(known.dtype).contiguous()
            continue
        groups = (value.float() - known.float()).view(-1, GROUP)
        scale = (groups.abs().amax(1, keepdim=True) / LEVELS).to(torch.float16)
        steps = torch.where(scale > 0, groups / scale.float().clamp_min(1e-12), 0).round().clamp(-LEVELS, LEVELS)
        nibbles = (steps.flatten() + LEVELS + 1).to(torch.uint8)
        packed[name] = nibbles[0::2] | (nibbles[1::2] << 4)
        packed[f"{name}.scale"] = scale.flatten()
    return packed


def unpack(packed: dict[str, Tensor], base: dict[str, Tensor]) -> dict[str, Tensor]:
    """The drafter's tensors, in the base's dtype, from `pack`'s and the base's; `ValueError` where these do not fit."""
    names = {name for name in packed if not name.endswith(".scale")}
    if names != base.keys():
        missing, unexpected = sorted(base.keys() - names), sorted(names - base.keys())
        raise ValueError(f"a difference for another base: missing tensors {missing}, unexpected tensors {unexpected}")
    found = {}
    for name, known in base.items():
        scale = packed.get(f"{name}.scale")
        if scale is None:
            found[name] = packed[name]
            continue
        if packed[name].numel() * 2 != known.numel():
            raise ValueError(f"a difference for another base: {name} has {2 * packed[name].numel()} entries")
        steps = torch.stack([packed[name] & 15, packed[name] >> 4], dim=1).flatten().float() - (LEVELS + 1)
        change = steps.view(-1, GROUP) * scale.float()[:, None]
        found[name] = (known.float() + change.view(known.shape)).to(known.dtype)
    return found
