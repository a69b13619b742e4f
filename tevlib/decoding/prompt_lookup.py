"""Prompt-lookup decoding by transformers' own `generate`: what chains copied from the text so far bring, undrafted.

Where the last two tokens (or the last one) occurred before, what followed them is looked at as a chain; transformers
draws one token at each of its nodes and keeps those that agree, which is the predraw verifier. Loop, cache and masks
are transformers'. Its passes are watched from outside: block lengths are those of passes that happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

from tevlib.decoding.clock import Clock
from tevlib.decoding.generation import Generation, Round
from tevlib.decoding.request import Output, begin, check_seed, unusable_logits
from tevlib.decoding.target import Target
from tevlib.trees.builders import check_count
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.sampling import filter_logits, is_greedy


@torch.inference_mode()
def prompt_lookup(
    target: Target,
    input_ids: Tensor | list[int],
    *,
    budget: int = 10,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 128,
    stop: Iterable[int] | None = None,
    seed: int | None = None,
) -> Generation:
    """A `Generation` by `generate(prompt_lookup_num_tokens=budget)`, under the same law and clock as `speculate`'s.

    The prefill is transformers' first pass; it carries a chain too, so the prefill may leave more than one token. Each
    later pass is a round: its chain and the exit law of it, the block (in full, whatever of it the output got), and its
    seconds, all under `verify`. A checkpoint's generation config (penalties, temperatures) is not asked. Raises
    `ValueError` for a budget below 1 and where `autoregressive` does.
    """
    if check_count(budget, "budget") < 1:
        raise ValueError(f"prompt lookup looks at 1 token or more ahead, got budget {budget}")
    ids, out = begin(target, input_ids, temperature, top_p, top_k, max_new_tokens, stop, None)
    check_seed(seed)
    if out.full:
        return out.generation([], 0.0, 0.0)
    law = {"temperature": float(temperature), "top_p": top_p, "top_k": top_k}
    config = GenerationConfig(
        prompt_lookup_num_tokens=budget,
        max_new_tokens=out.limit + budget,  # room for the last block in full: `out` says when to end
        do_sample=not is_greedy(temperature),
        pad_token_id=0,
        **({} if is_greedy(temperature) else law),
    )
    watch = _Watch(out, len(ids), law, target.device)
    with _seeded(target.device, seed), _own_config(target.model), watch.over(target.model):
        target.model.generate(
            ids[None],
            attention_mask=torch.ones_like(ids[None]),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([watch]),
        )
    return out.generation(watch.rounds, watch.prefill_s, sum(r.times["verify"] for r in watch.rounds))


class _Watch(StoppingCriteria):
    """Called with the text after every pass, and by hooks around it; ends the answer where `out` is full."""

    def __init__(self, out: Output, prompt: int, law: dict, device: torch.device):
        self.out, self.length, self.law = out, prompt, law
        self.clock = Clock(device)
        self.prefill_s: float | None = None
        self.rounds: list[Round] = []
        self.chain: DraftTree | None = None
        self.recording_s = 0.0  # of this pass, for the books

    @contextlib.contextmanager
    def over(self, model) -> Iterator[None]:
        """Every pass of `model` is seen inside."""
        hook = model.register_forward_hook(self._passed, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _passed(self, _model, _arguments, named: dict, output) -> None:
        """Keep the chain that the pass looked at, and its exit law; the first pass is the prefill and has none."""
        if self.prefill_s is None:
            return
        start = self.clock.now()
        tokens = named["input_ids"][0]
        self.chain = DraftTree(tokens, range(-1, len(tokens) - 1))
        with unusable_logits(f"round {len(self.rounds)}"):
            rows = filter_logits(output.logits[0].float(), **self.law)
            self.exits = exit_law(self.chain, rows, self.law["temperature"])
        self.recording_s = self.clock.now() - start

    def __call__(self, input_ids: Tensor, scores, **_) -> Tensor:
        block = input_ids[0, self.length :].tolist()
        self.length = input_ids.shape[1]
        emitted, seconds = self.out.emit(block), self.clock.lap() - self.recording_s
        if self.prefill_s is None:
            self.prefill_s = seconds
        else:
            path, coverage = list(range(len(block))), float(self.exits.coverage)
            self.rounds.append(
                Round(self.chain, self.exits.P, self.exits.w, coverage, path, block[-1], emitted, {"verify": seconds})
            )
            self.clock.lap()
        return torch.full((1,), self.out.full, device=input_ids.device)


@contextlib.contextmanager
def _own_config(model) -> Iterator[None]:
    """`generate` fills in nothing from the checkpoint's generation config inside, stop ids included."""
    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = kept


@contextlib.contextmanager
def _seeded(device: torch.device, seed: int | None) -> Iterator[None]:
    """`generate` draws from torch's own stream: seeded inside, and afterwards where it was before."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed) if seed is not None else torch.seed()
        yield
