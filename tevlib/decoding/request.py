"""A request and its growing answer: the checks before any pass, the first choice, where and why it ends."""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from tevlib.decoding.generation import Generation, Round
from tevlib.decoding.target import Target
from tevlib.trees.builders import check_count
from tevlib.trees.sampling import check_temperature, filter_logits, sample


class Output:
    """The growing output: stops at the first stop token, at `limit` tokens, and hands new tokens to a callback."""

    def __init__(self, limit: int, reason: str, stop: frozenset[int], on_tokens: Callable[[list[int]], None] | None):
        self.tokens: list[int] = []
        self.limit, self.stop, self.on_tokens = limit, stop, on_tokens
        self.at_limit = reason
        self.stopped = False

    @property
    def full(self) -> bool:
        return self.stopped or len(self.tokens) >= self.limit

    def emit(self, block: list[int]) -> int:
        """How many of `block` entered the output."""
        block = block[: self.limit - len(self.tokens)]
        first = next((i for i, token in enumerate(block) if token in self.stop), None)
        if first is not None:
            block, self.stopped = block[: first + 1], True
        self.tokens += block
        if self.on_tokens is not None and block:
            self.on_tokens(block)
        return len(block)

    def generation(
        self, rounds: list[Round], prefill_s: float, decode_s: float, measuring_s: float = 0.0
    ) -> Generation:
        reason = "stop" if self.stopped else self.at_limit
        return Generation(self.tokens, rounds, reason, prefill_s, decode_s, measuring_s)


def begin(
    target: Target, input_ids, temperature, top_p, top_k, max_new_tokens, stop, on_tokens
) -> tuple[Tensor, Output]:
    """The prompt as a tensor and an empty `Output`, after every check that needs no pass."""
    check_temperature(temperature)
    check_count(top_k, "top_k")
    filter_logits(torch.zeros(1), temperature, top_p, top_k)
    if input_ids is None or isinstance(input_ids, str):
        raise ValueError(f"input_ids are token ids, a text's are tokenizer.encode(text); got {input_ids!r:.80}")
    ids = torch.as_tensor(input_ids, device=target.device)
    if len(ids) and (ids.is_floating_point() or ids.dtype == torch.bool):
        raise ValueError(f"input_ids must be whole numbers, got {ids.dtype}")
    ids = ids.long()
    if ids.ndim != 1 or len(ids) == 0:
        raise ValueError(f"input_ids must be a non-empty list of token ids, got shape {tuple(ids.shape)}")
    if bool((ids < 0).any() | (ids >= target.vocab_size).any()):
        raise ValueError(f"token ids must be in 0..{target.vocab_size - 1}, got {int(ids.min())}..{int(ids.max())}")
    if len(ids) > target.context_limit:
        raise ValueError(f"the prompt has {len(ids)} tokens, the target's context holds {target.context_limit}")
    check_count(max_new_tokens, "max_new_tokens")
    if not isinstance(stop, Iterable | None):
        raise ValueError(f"stop takes token ids, such as [{stop!r}], got {stop!r}")
    stop = target.stop_ids if stop is None else frozenset(stop)
    for token in stop:
        if not isinstance(token, int):
            raise ValueError(f"stop takes token ids, got {token!r}: a text's are tokenizer.encode(text)")
    room = target.context_limit - len(ids)
    limit, reason = (room, "context") if room < max_new_tokens else (max_new_tokens, "length")
    return ids, Output(limit, reason, stop, on_tokens)


def new_generator(target: Target, seed: int | None) -> torch.Generator:
    check_seed(seed)
    generator = torch.Generator(device=target.device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


def check_seed(seed: int | None) -> None:
    """Raises `ValueError` for a seed that torch's generators do not take as it stands."""
    whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    if seed is not None and not (whole and -(2**63) <= seed < 2**64):
        raise ValueError(f"seed must be an integer of at most 64 bits, or None for another every time; got {seed!r}")


def choose(
    logits: Tensor, temperature: float, top_p: float, top_k: int, generator: torch.Generator, place: int = 0
) -> int:
    with unusable_logits(f"token {place}"):
        return int(sample(filter_logits(logits, temperature, top_p, top_k), temperature, generator))


@contextlib.contextmanager
def unusable_logits(where: str) -> Iterator[None]:
    """Says in a `ValueError` from the laws of `trees` where in the decoding it was."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: the target's logits are unusable: {error}") from error
