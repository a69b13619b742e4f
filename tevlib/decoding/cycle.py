"""One draft-verify round at fixed shapes: draft, build, verify, decide and commit on tensors that stay in place.

Every stage is a fixed list of tensor operations between buffers that are made once: nothing waits for the device, and
no shape depends on a value. On a GPU each stage is a CUDA graph; elsewhere the same code is called as it is. The host
reads one small report a round, and the record of all rounds once, at the end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tevlib.decoding.draft_vocabulary import draft_log_probs
from tevlib.decoding.drafter import DFlashDraftModel, embed_for
from tevlib.decoding.fixed_cache import FixedCache, TreeMask, draft_block, pass_tree
from tevlib.decoding.graphs import captured
from tevlib.decoding.layers import FULL
from tevlib.decoding.target import Target
from tevlib.trees.builders import check_count
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.fixed_builder import FixedBuilder
from tevlib.trees.fixed_filter import fixed_filter
from tevlib.trees.fixed_shape import exit_draw


class Report(NamedTuple):
    """What the host learns of a round: the tokens that entered the output, and how the round went."""

    emitted: list[int]
    length: int  # L = D + 1
    size: int  # nodes of the tree
    stopped: bool  # the last emitted token is a stop token
    finite: bool  # no row that mattered was NaN or infinite
    usable: bool  # the draft held no NaN


class Recorded(NamedTuple):
    """A round as the books keep it; see `tevlib.decoding.generation.Round`."""

    tree: DraftTree
    P: Tensor
    w: Tensor
    path: list[int]
    bonus: int
    emitted: int


class Cycle:
    """Rounds of one target, drafter and budget, by the best-first builder and Tree Exit Verification.

    `capacity` bounds prompt and new tokens of a request, `max_rounds` its new tokens; `temperature`, `top_p` and
    `top_k` are fixed when the graphs are captured. Make one and use it for many requests: `begin`, then `round` until
    a report says so. Raises ValueError for a budget below 1, and in `begin` for a request that is too long.
    """

    STAGES = ("draft", "build", "verify", "decide", "commit")

    @torch.inference_mode()
    def __init__(
        self,
        target: Target,
        drafter: DFlashDraftModel,
        budget: int,
        capacity: int,
        max_rounds: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
    ):
        if check_count(budget, "budget") == 0:
            raise ValueError("a cycle of fixed shape drafts: budget must be >= 1, got 0")
        self.target, self.drafter, self.budget = target, drafter, budget
        self.law = (temperature, top_p, top_k)
        self.capacity, self.max_rounds = capacity, max_rounds
        device, block, nodes = target.device, drafter.block_size, budget + 1
        store = -(-(capacity + max(nodes, block)) // 64) * 64
        self.cache = FixedCache(target.new_cache(store))
        self.context = FixedCache(drafter.new_cache(-(-(capacity + 3 * block) // 64) * 64))
        self.mask = TreeMask(nodes, store, target.repeats[FULL], target.dtype, device)
        self.builder = FixedBuilder(drafter.depth, target.vocab_size, budget, device)
        self.last_position = min(target.context_limit, drafter.config.max_position_embeddings) - 1

        long = dict(dtype=torch.long, device=device)
        self.root, self.accepted, self.count, self.limit, self.number = (torch.zeros((), **long) for _ in range(5))
        self.features = torch.zeros(block, len(drafter.taps) * target.hidden_size, dtype=target.dtype, device=device)
        self.block_ids = torch.full((block,), drafter.mask_id, **long)
        self.offsets = torch.arange(block, **long)
        self.is_stop = torch.zeros(target.vocab_size, dtype=torch.bool, device=device)
        self.uniforms = torch.zeros(max_rounds, 2, dtype=torch.float64, device=device)
        self.report = torch.zeros(block + 6, **long)
        self.host = torch.zeros(block + 6, dtype=torch.long, pin_memory=device.type == "cuda")
        self.whole = torch.zeros(max_rounds, 2 * nodes + block + 4, **long)
        self.parts = torch.zeros(max_rounds, 3 * nodes, dtype=torch.float64, device=device)
        self.stages = captured({name: getattr(self, f"_{name}") for name in self.STAGES}, device, before=self._rewind)

    @torch.inference_mode()
    def begin(self, ids: Tensor) -> Tensor:
        """Logits [V] after a prompt `ids [n]`; earlier requests are forgotten. `start` chooses the first token."""
        if len(ids) > self.capacity:
            raise ValueError(f"the prompt has {len(ids)} tokens, this cycle was made for {self.capacity} in all")
        for cache in (self.cache, self.context):
            cache.kv.length = 0
            cache.store.zero_()  # attention reads what it does not see too, and 0 * NaN is NaN
        logits, features = self.target.prefill(self.cache.kv, ids, self.drafter.taps)
        self.drafter.append_context(self.context.kv, features)
        self.mask.begin(len(ids))
        return logits

    @torch.inference_mode()
    def start(self, token: int, limit: int, stop: frozenset[int], generator: torch.Generator) -> None:
        """Begin the rounds behind the first new `token`: at most `limit` more tokens, until one of `stop`."""
        if limit > min(self.max_rounds, self.capacity - self.cache.kv.length):
            raise ValueError(
                f"{limit} more tokens after a prompt of {self.cache.kv.length}: this cycle was made for "
                f"{self.capacity} tokens in all and {self.max_rounds} new ones"
            )
        self.root.fill_(token)
        self.limit.fill_(limit)
        self._rewind()
        self.cache.take_length()
        self.context.take_length()
        self.is_stop.zero_()
        self.is_stop[[i for i in stop if 0 <= i < len(self.is_stop)]] = True
        self.uniforms.copy_(
            torch.rand(self.uniforms.shape, dtype=torch.float64, generator=generator, device=generator.device)
        )

    @torch.inference_mode()
    def round(self, after_stage=lambda: None) -> None:
        """Run one round. Nothing is read; `after_stage` is called behind each of the five stages."""
        for stage in self.stages.values():
            stage()
            after_stage()

    @torch.inference_mode()
    def read(self) -> Report:
        """The `Report` of the last round: the one thing that the host waits for."""
        self.host.copy_(self.report, non_blocking=True)
        if self.report.is_cuda:
            torch.cuda.current_stream(self.report.device).synchronize()
        *block, emitted, length, size, stopped, finite, usable = self.host.tolist()
        return Report(block[:emitted], length, size, bool(stopped), bool(finite), bool(usable))

    def _rewind(self) -> None:
        for counter in (self.accepted, self.count, self.number, self.cache.length, self.context.length):
            counter.zero_()

    def _draft(self) -> None:
        """Log-probabilities `[H, V]` of the next tokens; the last round's features enter the context on the way."""
        self.block_ids[0] = self.root
        self.depth = (self.last_position - self.cache.length).clamp(0, self.drafter.depth)
        block = embed_for(self.target, self.drafter, self.block_ids)
        hidden = draft_block(self.drafter, self.context, block, self.depth, self.features, self.accepted)
        self.log_probs = draft_log_probs(self.target, self.drafter, hidden)

    def _build(self) -> None:
        """The tree, no deeper than the context allows."""
        self.tree = self.builder(self.log_probs, self.root, self.depth)

    def _verify(self) -> None:
        """The target's filtered logits `[n, V]` at every node, padding included, in one pass."""
        self.cache.expect(self.budget + 1)
        self.mask.show(self.tree.ancestors, self.cache.slots)
        hidden, self.node_features = pass_tree(
            self.target, self.cache, self.tree.tokens, self.tree.depths, self.mask.mask, self.drafter.taps
        )
        self.logits = fixed_filter(self.target.logits(hidden), *self.law)

    def _decide(self) -> None:
        """Exit, bonus and path; what of them enters the output; the report."""
        uniforms = self.uniforms.index_select(0, self.number[None])[0]
        tree = self.tree
        self.drawn = drawn = exit_draw(
            tree.tokens, tree.parents, tree.ancestors, self.logits, self.law[0], uniforms, self.drafter.depth
        )
        behind = tree.tokens.index_select(0, drawn.path).roll(-1)
        self.block = torch.where(self.offsets == drawn.length - 1, drawn.bonus, behind)
        inside = torch.minimum(drawn.length, self.limit - self.count)
        stops = self.is_stop.index_select(0, self.block) & (self.offsets < inside)
        end = torch.where(stops, self.offsets + 1, len(self.offsets)).amin()
        self.emitted = torch.minimum(inside, end)
        flags = (self.emitted, drawn.length, tree.size, stops.any(), drawn.finite, tree.usable)
        self.report.copy_(torch.cat([self.block, torch.stack([flag.long() for flag in flags])]))

    def _commit(self) -> None:
        """The accepted path in the cache and in the records; the next round's root and features."""
        drawn, tree = self.drawn, self.tree
        record = torch.stack([tree.size, drawn.length, drawn.bonus, self.emitted])
        row = torch.cat([tree.tokens, tree.parents, drawn.path, record])
        self.whole.index_copy_(0, self.number[None], row[None])
        part = torch.cat([tree.scores.double(), drawn.P, drawn.w])
        self.parts.index_copy_(0, self.number[None], part[None])
        self.cache.commit(drawn.path, drawn.length)
        self.mask.commit(drawn.length, self.cache.slots)
        self.features.copy_(self.node_features.index_select(0, drawn.path))
        self.accepted.copy_(drawn.length)
        self.root.copy_(drawn.bonus)
        self.count.add_(self.emitted)
        self.number.add_(1)

    def records(self, rounds: int) -> list[Recorded]:
        """The first `rounds` rounds since `start`, on the CPU."""
        nodes, block = self.budget + 1, self.drafter.block_size
        found = []
        parts = self.parts[:rounds].float().cpu().split(nodes, dim=1)
        for number, whole in enumerate(self.whole[:rounds].cpu()):
            tokens, parents, path, (size, length, bonus, emitted) = (
                part.tolist() for part in whole.split([nodes, nodes, block, 4])
            )
            scores, P, w = (part[number, :size].clone() for part in parts)
            tree = DraftTree(tokens[:size], parents[:size], scores)
            found.append(Recorded(tree, P, w, path[:length], bonus, emitted))
        return found
