"""Decoding: `autoregressive` and `speculate`, one sequence at a time, with a record of every draft-verify round.

One clock rule for both: `prefill_s` ends when the first token is chosen, `decode_s` is everything after it until the
last token is out, the first draft included. Recording the exit law for the books is not part of either.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tevlib.decoding.budget import AUTO, LARGEST, AutoBudget, Budget, CostCurve, FixedBudget, Ladder, curve_of
from tevlib.decoding.clock import Clock
from tevlib.decoding.draft_vocabulary import draft_log_probs, proposed_by
from tevlib.decoding.drafter import DFlashDraftModel, block_embeddings
from tevlib.decoding.generation import Generation, Round
from tevlib.decoding.request import begin, choose, new_generator, unusable_logits
from tevlib.decoding.target import Target
from tevlib.trees.builders import BUILDERS, check_count
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.exit_law import exit_law
from tevlib.trees.rows import DeferredRows
from tevlib.trees.sampled_chain import draw_chain, verify_sampled_chain
from tevlib.trees.sampling import check_rows, filter_logits, is_greedy
from tevlib.trees.verdict import check_verdict
from tevlib.trees.verifiers import VERIFIERS, Verifier

SAMPLED_CHAIN = "sampled_chain"  # builder and verifier in one: it looks at q, so it is kept apart from the others


@torch.inference_mode()
def autoregressive(
    target: Target,
    input_ids: Tensor | list[int],
    *,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 128,
    stop: Iterable[int] | None = None,
    seed: int | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
) -> Generation:
    """A `Generation` by plain decoding, one target pass per token: the baseline. No rounds.

    `stop` defaults to the target's stop ids; `seed=None` draws afresh every time. Raises `ValueError` for an empty
    prompt, one longer than the context, an invalid temperature or filter, and NaN logits.
    """
    ids, out = begin(target, input_ids, temperature, top_p, top_k, max_new_tokens, stop, on_tokens)
    generator = new_generator(target, seed)
    if out.full:
        return out.generation([], 0.0, 0.0)
    clock = Clock(target.device)
    cache = target.new_cache(len(ids) + out.limit)
    logits, _ = target.prefill(cache, ids)
    token = choose(logits, temperature, top_p, top_k, generator)
    prefill_s = clock.lap()
    out.emit([token])
    while not out.full:
        logits, _ = target.prefill(cache, torch.tensor([token], device=target.device))
        token = choose(logits, temperature, top_p, top_k, generator, len(out.tokens))
        out.emit([token])
    return out.generation([], prefill_s, clock.lap())


@torch.inference_mode()
def speculate(
    target: Target,
    drafter: DFlashDraftModel,
    input_ids: Tensor | list[int],
    *,
    budget: int | str | Budget = 32,
    builder: str = "best_first",
    verifier: str | Verifier = "tev",
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_new_tokens: int = 128,
    stop: Iterable[int] | None = None,
    seed: int | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    on_round: Callable[[DraftTree, Tensor], None] | None = None,
) -> Generation:
    """A `Generation` by tree speculative decoding; its tokens follow the target's own law exactly.

    `builder` is one of `BUILDERS` or "sampled_chain" (which judges its own chain by min(1, p / q), whatever
    `verifier` says); `verifier` one of `VERIFIERS`, or a function of their kind, which then answers for the law;
    `budget` counts non-root nodes, or is "auto": then each round keeps as many as maximise expected tokens a second on
    this machine (`tevlib.decoding.budget`), by a `cost_curve` that is measured once and kept. Times differ from run to
    run, and so do such trees and, at T > 0, a seed's tokens (never their law); an `AutoBudget` over a curve of one's
    own does not. `top_p` and `top_k` filter the target's rows before any verifier sees them, so C_p and w are those of
    the filtered law. The block shrinks near the context limit. Hidden states go through the head only where a verifier
    looks: at internal nodes, and at a leaf if the path ends there. `on_round` is handed every round's tree and rows
    `[N, V]`, outside the clock. A draft with NaN is replaced by a root-only tree, with a warning; NaN in the target's
    logits of a node that is looked at raises `ValueError` with the round and the node, as do invalid arguments before
    any pass, and verdicts of a verifier of one's own that the tree does not allow.
    """
    check_decode_arguments(budget, builder, verifier, temperature)
    verify = VERIFIERS[verifier] if isinstance(verifier, str) else verifier
    ids, out = begin(target, input_ids, temperature, top_p, top_k, max_new_tokens, stop, on_tokens)
    generator = new_generator(target, seed)
    if out.full:
        return out.generation([], 0.0, 0.0)
    measuring = time.perf_counter()
    if budget == AUTO:
        how = {"builder": builder, "verifier": verifier, "temperature": temperature, "top_p": top_p, "top_k": top_k}
        budget = auto_budget(target, drafter, ids, **how)
    elif not isinstance(budget, Budget):
        budget = FixedBudget(check_count(budget, "budget"))
    measuring = time.perf_counter() - measuring
    clock = Clock(target.device)
    cache = target.new_cache(len(ids) + out.limit + budget.largest + drafter.block_size)
    logits, features = target.prefill(cache, ids, drafter.taps)
    root = choose(logits, temperature, top_p, top_k, generator)
    prefill_s = clock.lap()
    out.emit([root])
    context = drafter.new_cache(len(ids) + out.limit + drafter.block_size)
    proposals = proposed_by(drafter, target)
    rounds: list[Round] = []
    decode_s = 0.0
    while not out.full:
        depth = min(
            drafter.depth,
            target.context_limit - cache.length - 1,
            drafter.config.max_position_embeddings - 1 - cache.length,
        )
        drafts = budget.largest > 0 and depth > 0  # else never again: the context at hand no longer matters
        log_probs = None
        if drafts:
            log_probs = proposals.log_probs(draft_states(target, drafter, context, root, depth, features))
        times = {"draft": clock.lap()}
        q = None
        if log_probs is None:
            tree = budget.cut(DraftTree([root], [-1]).to(target.device))
        elif bool(log_probs[:, 0].isnan().any()):  # one NaN, or nothing finite, makes a whole row of log_softmax NaN
            warnings.warn(
                f"round {len(rounds)}: the drafter's logits hold NaN; this round drafts nothing", stacklevel=2
            )
            tree = budget.cut(DraftTree([root], [-1]).to(target.device))
        elif builder == SAMPLED_CHAIN:
            tree, q = draw_chain(proposals.widened(log_probs), budget.drafts, root, temperature, generator)
        else:
            tree = proposals.named(budget.cut(BUILDERS[builder](log_probs, budget.drafts, root)))
        times["build"] = clock.lap()
        hidden, node_features = target.pass_tree(cache, tree, drafter.taps)
        times["verify"] = clock.lap()
        head = Head(target, clock, temperature, top_p, top_k)
        rows = DeferredRows(tree, hidden, target.vocab_size, head)
        with unusable_logits(f"round {len(rounds)}"):
            if q is None:
                verdict = verify(tree, rows, temperature, generator)
            else:
                verdict = verify_sampled_chain(tree, q, rows, temperature, generator)
        if verify is verifier:  # somebody's own
            check_verdict(verdict, tree, target.vocab_size)
        times["decide"] = clock.lap() - head.seconds
        times["verify"] += head.seconds
        cache.commit(verdict.path)
        features = node_features[torch.tensor(verdict.path, device=target.device)]
        budget.observe(tree, verdict)
        times["commit"] = clock.lap()
        root = verdict.bonus
        block = [tree.token(node) for node in verdict.path[1:]] + [root]
        emitted = out.emit(block)
        decode_s += clock.lap() + sum(times.values())
        with unusable_logits(f"round {len(rounds)}"):  # a verifier may not have looked at every node
            law = exit_law(tree, rows, temperature)
        if on_round is not None:
            on_round(tree, rows.all())
        rounds.append(Round(tree, law.P, law.w, float(law.coverage), verdict.path, verdict.bonus, emitted, times))
        clock.lap()
    return out.generation(rounds, prefill_s, decode_s, measuring)


def auto_budget(target: Target, drafter: DFlashDraftModel, input_ids: Tensor, **how) -> AutoBudget:
    """The `AutoBudget` that "auto" stands for behind `input_ids`; `how` as in `cost_curve`."""
    return AutoBudget(cost_curve(target, drafter, input_ids, **how), LARGEST[target.device.type])


def cost_curve(target: Target, drafter: DFlashDraftModel, input_ids: Tensor, **how) -> CostCurve:
    """The `CostCurve` of rounds behind `input_ids`, from a short decoding with trees of all sizes that is thrown away.

    `how` as in `speculate`. Takes a few seconds, once for a drafter, setting, number of threads and some 500 tokens
    of context; `target` keeps it.
    """
    ids = input_ids[: max(target.context_limit // 2, 1)]
    key = (*how.values(), torch.get_num_threads(), len(ids) // 512)
    kept = target.cost_curves.setdefault(drafter, {})
    if key not in kept:
        start = time.perf_counter()
        ladder = Ladder(LARGEST[target.device.type])
        rounds: list[Round] = []
        while ladder.left:  # most rounds give several tokens, so that one answer does not use them up
            rounds += speculate(
                target, drafter, ids, budget=ladder, max_new_tokens=ladder.left + 1, stop=(), seed=0, **how
            ).rounds
        timed = [(len(r.tree) - 1, sum(r.times.values())) for r in rounds]
        kept[key] = curve_of(timed, time.perf_counter() - start)
    return kept[key]


def draft(
    target: Target, drafter: DFlashDraftModel, context, root: int, depth: int, features: Tensor | None = None
) -> Tensor:
    """Draft log-probabilities `[depth, V]` (float32) of the next `depth` tokens after `root`, one marginal per row.

    `features` are those of accepted tokens that the drafter's `context` does not hold yet; it does afterwards.
    """
    return draft_log_probs(target, drafter, draft_states(target, drafter, context, root, depth, features))


def draft_states(
    target: Target, drafter: DFlashDraftModel, context, root: int, depth: int, features: Tensor | None = None
) -> Tensor:
    """The drafter's final states `[depth, H]` for the next `depth` tokens after `root`; `features` as in `draft`."""
    block = block_embeddings(target, drafter, torch.tensor(root, device=target.device))[: depth + 1]
    return drafter.draft(context, block, features)


def check_decode_arguments(
    budget: int | str | Budget, builder: str, verifier: str | Verifier, temperature: float
) -> None:
    """Raises `ValueError` for a bad budget, an unknown builder or verifier, and greedy verification of samples."""
    if isinstance(budget, str) and budget != AUTO:
        raise ValueError(f"budget must be an integer >= 0 or {AUTO!r}; got {budget!r}")
    if not isinstance(budget, str | Budget):
        check_count(budget, "budget")
    elif builder == SAMPLED_CHAIN:
        raise ValueError("a sampled chain takes a number as budget: cut by its own draws, it would not have law q")
    if builder not in BUILDERS and builder != SAMPLED_CHAIN:
        raise ValueError(f"unknown builder {builder!r}: choose one of {', '.join([*BUILDERS, SAMPLED_CHAIN])}")
    if not callable(verifier) and verifier not in VERIFIERS:
        raise ValueError(f"unknown verifier {verifier!r}: choose one of {', '.join(VERIFIERS)}, or give a function")
    if verifier in ("greedy", VERIFIERS["greedy"]) and not is_greedy(temperature):
        raise ValueError(f"the greedy verifier is exact at temperature 0 only, got temperature {temperature}")


class Head:
    """The target's filtered rows `[k, V]` of hidden states `[k, H]`, and the `seconds` that making them has taken.

    Raises `ValueError` naming the node where a filter meets NaN; without filters it is whoever reads the row that does.
    """

    def __init__(self, target: Target, clock: Clock, temperature: float, top_p: float, top_k: int):
        self.target, self.clock, self.filters = target, clock, (temperature, top_p, top_k)
        self.seconds = 0.0

    def __call__(self, hidden: Tensor, nodes: Tensor) -> Tensor:
        start = self.clock.now()
        rows = self.target.logits(hidden)
        if self.filters[1:] != (1.0, 0):
            largest = rows.new_zeros(int(nodes.max()) + 1 if len(nodes) else 0).index_copy_(0, nodes, rows.amax(-1))
            check_rows(largest, "node")
            rows = filter_logits(rows, *self.filters)
        self.seconds += self.clock.now() - start
        return rows
