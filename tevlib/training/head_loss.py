"""The loss at the head: what draft rows are taught, and its value and gradient without keeping any logits.

Every objective says which tokens a row (one depth of one block) should give, and how much each counts. The head is
large (vocabulary x hidden), so rows go through it in chunks and their gradient is formed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_PER_CHUNK = 64  # 64 rows of 49,152 logits stay in a processor's cache
ROWS_PER_DEVICE_CHUNK = 2048  # elsewhere few, large steps are better; this bounds the memory
PARTS = ("token", "exit", "prefix", "gain", "opd")  # the losses that a total may be made of

CROSS_ENTROPY, TWO_OUTCOME_KL, REVERSE_KL = range(3)
LARGEST, LOWEST = 10.0, -10.0  # bounds of a divergence's value and of its log-probabilities, those of Draft-OPD


@dataclass(frozen=True)
class Entries:
    """Single tokens that rows are taught: entry e concerns row `rows[e]` and `tokens[e]`, all `[E]`.

    With q the row's draft probability of the token and p = `teacher[e]`, it costs `weights[e]` times -log q
    (`kinds[e]` CROSS_ENTROPY), the KL divergence of (p, 1 - p) from (q, 1 - q) (TWO_OUTCOME_KL), or p/q - log(p/q) - 1
    (REVERSE_KL, the low-variance estimate where the token was drawn from q). `parts[e]` is an index into `PARTS`.
    """

    rows: Tensor
    tokens: Tensor
    weights: Tensor
    parts: Tensor
    kinds: Tensor
    teacher: Tensor

    @staticmethod
    def of(part: str, rows: Tensor, tokens: Tensor, weights: Tensor, kind=CROSS_ENTROPY, teacher=None) -> Entries:
        """Entries of one part and one kind; those that weigh nothing are left out."""
        kept = weights > 0
        rows, tokens, weights = rows[kept], tokens[kept], weights[kept]
        parts = torch.full_like(rows, PARTS.index(part))
        teacher = torch.ones_like(weights) if teacher is None else teacher[kept]
        return Entries(rows, tokens, weights, parts, torch.full_like(rows, kind), teacher)

    @staticmethod
    def join(entries: list[Entries]) -> Entries:
        """All of them, ordered by row."""
        columns = [torch.cat([getattr(one, field.name) for one in entries]) for field in fields(Entries)]
        order = columns[0].argsort(stable=True)
        return Entries(*(column[order] for column in columns))

    def to(self, device: torch.device) -> Entries:
        """The same on `device`."""
        return Entries(*(getattr(self, field.name).to(device) for field in fields(Entries)))

    def scaled(self, factors: Tensor) -> Entries:
        """The same with every weight times the factor `[len(PARTS)]` of its part."""
        weights = self.weights * factors.to(self.weights)[self.parts]
        return replace(self, weights=weights)


@dataclass(frozen=True)
class Mixture:
    """Whole laws that rows are taught (part "gain"): row `rows[m]` (ascending) should give `masses[m]`, `[M, V]`."""

    rows: Tensor
    masses: Tensor

    def scaled(self, factor: float) -> Mixture:
        return Mixture(self.rows, self.masses * factor)


def head_loss(
    hidden: Tensor, head: Tensor, entries: Entries, mixture: Mixture | None = None, softcap: float | None = None
) -> tuple[Tensor, Tensor]:
    """The total (a scalar with a gradient towards `hidden`) and its parts `[len(PARTS)]` (without one).

    `hidden [R, H]` are the final states of all rows, `head [V, H]` the frozen output matrix, `softcap` the bound of the
    target's logits where they have one: a draft is scored through it, and learns through it. Rows that are taught
    nothing cost nothing. Softmax in float32 or better.
    """
    taught = torch.zeros(len(hidden), dtype=torch.bool, device=hidden.device)
    taught[entries.rows] = True
    if mixture is not None:
        taught[mixture.rows] = True
    place = taught.cumsum(0) - 1
    entries = replace(entries, rows=place[entries.rows])
    if mixture is not None:
        mixture = Mixture(place[mixture.rows], mixture.masses)
    return HeadLoss.apply(hidden[taught], head, entries, mixture, softcap)


class HeadLoss(torch.autograd.Function):
    """`head_loss` on rows that are all taught something, numbered in order."""

    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, entries: Entries, mixture: Mixture | None, softcap: float | None):
        gradient = torch.empty_like(hidden)
        dtype = torch.promote_types(torch.float32, hidden.dtype)
        parts = hidden.new_zeros(len(PARTS), dtype=dtype)
        chunk = ROWS_PER_CHUNK if hidden.device.type == "cpu" else ROWS_PER_DEVICE_CHUNK
        starts = torch.arange(0, len(hidden) + chunk, chunk, device=hidden.device)
        entry_at = torch.searchsorted(entries.rows, starts).tolist()
        law_at = torch.searchsorted(mixture.rows, starts).tolist() if mixture is not None else None
        for i, start in enumerate(range(0, len(hidden), chunk)):
            part = slice(start, start + chunk)
            some = slice(entry_at[i], entry_at[i + 1])
            logits, steepness = F.linear(hidden[part].to(head.dtype), head), None
            if softcap is not None:
                bent = torch.tanh(logits.to(dtype) / softcap)
                logits, steepness = bent * softcap, 1 - bent * bent
            slope = torch.softmax(logits, dim=1, dtype=dtype)
            rows, tokens = entries.rows[some] - start, entries.tokens[some]
            weights, kinds = entries.weights[some].to(dtype), entries.kinds[some]
            value, by_log_q = divergence(slope[rows, tokens], kinds, entries.teacher[some].to(dtype))
            parts.index_add_(0, entries.parts[some], weights * value)
            by_log_q = weights * by_log_q
            pull = slope.new_zeros(len(slope)).index_add_(0, rows, by_log_q)
            if law_at is None or law_at[i] == law_at[i + 1]:
                slope *= -pull[:, None]
            else:
                laws = slice(law_at[i], law_at[i + 1])
                rows_of_laws, masses = mixture.rows[laws] - start, mixture.masses[laws].to(dtype)
                parts[PARTS.index("gain")] -= (masses * _log(slope[rows_of_laws])).sum()
                pull.index_add_(0, rows_of_laws, -masses.sum(1))
                slope *= -pull[:, None]
                slope.index_add_(0, rows_of_laws, -masses)
            slope.view(-1).index_add_(0, rows * slope.shape[1] + tokens, by_log_q)
            if steepness is not None:
                slope *= steepness
            gradient[part] = (slope.to(head.dtype) @ head).to(gradient.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(parts)
        return parts.sum(), parts

    @staticmethod
    def backward(ctx, upstream: Tensor, _):
        (gradient,) = ctx.saved_tensors
        return gradient * upstream.to(gradient.dtype), None, None, None, None


def divergence(q: Tensor, kinds: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Value `[E]` of each entry at draft probability `q [E]`, and its derivative by log q (see `Entries`)."""
    log_q = _log(q)
    value, slope = -log_q, -torch.ones_like(q)
    if not bool((kinds != CROSS_ENTROPY).any()):
        return value, slope
    inside = log_q > LOWEST  # below, the value is that of the bound and nothing pulls
    bounded = log_q.clamp_min(LOWEST)
    tiny = torch.finfo(q.dtype).eps
    p, missed, kept = p.clamp(tiny, 1 - tiny), (1 - p).clamp_min(tiny), (1 - q).clamp_min(tiny)
    ratio = (p.log() - bounded).exp()
    kl = p * (p.log() - bounded) + missed * (missed.log() - kept.log())
    k3 = ratio - ratio.log() - 1
    for kind, amount, by_log_q in (
        (TWO_OUTCOME_KL, kl, -p + missed * q / kept),
        (REVERSE_KL, k3, 1 - ratio),
    ):
        mine = kinds == kind
        value = torch.where(mine, amount.clamp(max=LARGEST), value)
        slope = torch.where(mine, by_log_q * (inside & (amount < LARGEST)), slope)
    return value, slope


def _log(q: Tensor) -> Tensor:
    """log q; a token of no probability costs 87 nats (in float32), not infinity."""
    return q.clamp_min(torch.finfo(q.dtype).tiny).log()
