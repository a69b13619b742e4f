"""How much of what any builder could cover a drafter's trees do cover, on rounds of a decoded answer."""

from __future__ import annotations

import torch

from tevlib.decoding.generation import Generation
from tevlib.decoding.target import Target
from tevlib.training.evaluate import middles
from tevlib.trees.builders import oracle_tree
from tevlib.trees.draft_tree import DraftTree
from tevlib.trees.sampling import filter_logits, is_greedy, target_log_probs


@torch.inference_mode()
def oracle_coverages(
    target: Target,
    ids: torch.Tensor,
    answer: Generation,
    *,
    rounds: int,
    depth: int,
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
) -> dict[int, float]:
    """The largest C_p that a tree could have had, by round, for at most `rounds` rounds spread over `answer`.

    Largest among trees with as many nodes as the round's own and at most `depth` tokens deep, under the law decoded
    from, on the same context (`ids [n]`, the prompt, and what was decoded before the round). At T = 0 the target's own
    continuation is that tree, and no pass is needed. Rounds of trees without a draft token are left out.
    """
    places = [place for place in middles(len(answer.rounds), rounds) if len(answer.rounds[place].tree) > 1]
    sizes = {place: len(answer.rounds[place].tree) - 1 for place in places}
    decoded = {place: sum(cycle.length for cycle in answer.rounds[:place]) for place in places}  # before its root
    depths = {place: min(depth, target.context_limit - len(ids) - decoded[place] - 1) for place in places}
    if is_greedy(temperature):
        return {place: float(min(size, depths[place])) for place, size in sizes.items()}
    cache = target.new_cache(len(ids) + len(answer.tokens) + max(sizes.values(), default=0) + 1)

    def score(tree: DraftTree) -> torch.Tensor:
        rows = filter_logits(target.score_tree(cache, tree)[0], temperature, top_p, top_k)
        return target_log_probs(rows, temperature)

    found: dict[int, float] = {}
    for place in places:
        text = torch.cat([ids, torch.tensor(answer.tokens[: decoded[place]], dtype=ids.dtype)]).to(target.device)
        target.prefill(cache, text[cache.length :])
        root = answer.rounds[place].tree.token(0)
        best = oracle_tree(score, sizes[place], root, depths[place])
        found[place] = float(best.scores[1:].double().exp().sum())
    return found
