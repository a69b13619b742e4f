"""The mass of target rows on a tree's edges, and the mass outside them: all that an exit law takes from the rows.

Weights are relative to a number near the row's largest logit. Rows are weighed a few at a time: on a CPU into a buffer
that stays in its cache, elsewhere to bound the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from tevlib.trees.sampling import LOG2_E, check_rows, is_greedy, target_probs

CPU_CHUNK = 2**19  # entries weighed at a time on a CPU, so that they stay in its cache
DEVICE_CHUNK = 2**27  # and elsewhere, to bound the memory


def rows_at_a_time(rows: Tensor) -> int:
    """How many of `rows` [N, V] are worth weighing at once on their device."""
    return max(1, (CPU_CHUNK if rows.device.type == "cpu" else DEVICE_CHUNK) // rows.shape[-1])


def edges_and_outside(
    rows: Tensor,
    temperature: float | None,
    inner: Sequence[int],
    owner: Tensor,
    token: Tensor,
    names: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """float64 log mass of each edge, and the mass outside the children of each row `inner` (ascending) of `rows`.

    Edge e leaves the row `inner[owner[e]]` with `token[e]`; `owner` [E] is ascending. The two masses are relative to
    one factor a row, so that a law divides them by their sum. Children are taken out before the rest is summed: what is
    left is never below 0 and keeps its digits. `temperature` None: the rows are laws. Raises ValueError for a NaN, a
    +inf and nothing but -inf in one of the rows `inner`, which it calls by its node in `names`.
    """
    if temperature is None or is_greedy(temperature):
        laws = rows.index_select(0, torch.tensor(inner, dtype=torch.long).to(rows.device))
        if temperature is not None:
            _refuse(laws.amax(-1), names)
            laws = target_probs(laws, temperature)
        edge = laws[owner, token].double().log()
        laws[owner, token] = 0
        return edge, laws.sum(-1).double()
    if rows.device.type == "cpu":
        masses = edges_and_outside_on_cpu(rows, temperature, inner, owner.numpy(), token.numpy(), names)
        return torch.from_numpy(masses[0]), torch.from_numpy(masses[1])
    return edges_and_outside_on_device(rows, temperature, inner, owner, token, names)


def edges_and_outside_on_device(
    rows: Tensor, temperature: float, inner: Sequence[int], owner: Tensor, token: Tensor, names: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """The same anywhere, at a temperature that is not greedy: few large steps, each row read for its maximum first."""
    place = torch.tensor(inner, dtype=torch.long).to(rows.device)
    scale = float(rows.new_tensor(LOG2_E / temperature))  # as it multiplies the rows
    step = rows_at_a_time(rows)
    edges, outsides = [rows.new_empty(0).double()], [rows.new_empty(0).double()]
    for first in range(0, len(inner), step):
        chosen = rows.index_select(0, place[first : first + step])
        largest = chosen.amax(-1)
        _refuse(largest, names[first : first + step])
        mine = (owner >= first) & (owner < first + step)
        row, shift = owner[mine] - first, largest * -scale
        edges.append(chosen[row, token[mine]].double() * scale + shift.double()[row])
        weights = torch.add(shift.unsqueeze(-1), chosen, alpha=scale).exp2_()
        weights[row, token[mine]] = 0
        outsides.append(weights.sum(-1).double())
    return torch.cat(edges) * math.log(2), torch.cat(outsides)


def edges_and_outside_on_cpu(
    rows: Tensor, temperature: float, inner: Sequence[int], owner: np.ndarray, token: np.ndarray, names: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    """The same on a CPU at a temperature that is not greedy, the few numbers of each row in NumPy, which calls faster.

    A row's reference is the largest logit of its children, which the law needs anyway (every row has one), so it is
    read once; only a row whose own largest entry lies so far above that it overflows is read again.
    """
    if not len(inner):
        return np.empty(0), np.empty(0)
    vocabulary = rows.shape[-1]
    logit = rows.numpy()[np.asarray(inner)[owner], token]
    ends = owner.searchsorted(np.arange(len(inner) + 1)).tolist()
    scale = float(logit.dtype.type(LOG2_E / temperature))  # as it multiplies the rows
    reference = np.maximum.reduceat(logit, ends[:-1])
    shift = torch.from_numpy(reference * logit.dtype.type(-scale))
    outside, children = rows.new_empty(len(inner)), torch.from_numpy(owner * vocabulary + token)
    step = rows_at_a_time(rows)
    buffer = rows.new_empty(min(step, len(inner)), vocabulary)
    for first in range(0, len(inner), step):
        last = min(first + step, len(inner))
        for start, end in _runs(inner, first, last):
            some = rows[inner[start] : inner[start] + end - start]
            torch.add(shift[start:end, None], some, alpha=scale, out=buffer[start - first : end - first])
        weights = buffer[: last - first].exp2_()
        weights.view(-1).index_fill_(0, children[ends[first] : ends[last]] - first * vocabulary, 0)
        torch.sum(weights, -1, out=outside[first:last])
    with np.errstate(invalid="ignore", over="ignore"):
        bad = (~np.isfinite(outside.numpy() * reference)).nonzero()[0].tolist()
    for i in bad:  # a row without a child near its largest entry, or no law
        largest = rows[inner[i]].amax()
        check_rows(largest, f"node {names[i]}")
        shift[i] = largest * -scale
        outside[i] = torch.add(shift[i], rows[inner[i]], alpha=scale).exp2_().sum()  # next to it children are nothing
    edge = logit.astype(np.float64) * scale + shift.numpy().astype(np.float64)[owner]
    return edge * math.log(2), outside.double().numpy()


def _runs(inner: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the stretches of `inner[first:last]` that are neighbours: they need no copy to be one matrix."""
    start = first
    for end in range(first + 1, last + 1):
        if end == last or inner[end] != inner[end - 1] + 1:
            yield start, end
            start = end


def _refuse(largest: Tensor, names: Sequence[int]) -> None:
    if not largest.isfinite().all():
        for value, name in zip(largest, names, strict=True):
            check_rows(value, f"node {name}")
