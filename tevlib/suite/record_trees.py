"""Record rounds of real decoding with the target's most likely tokens, for the tree explorer.

`speculate` keeps a tree's P and w, not the logits. Here its rounds are replayed: the same trees on the same contexts,
scored once more, and beside each the trees that other drafters, and the oracle, would have put there.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tevlib.decoding.checkpoint import load_drafter
from tevlib.decoding.decode import draft, speculate
from tevlib.decoding.drafter import DFlashDraftModel
from tevlib.decoding.generation import Generation
from tevlib.decoding.load import load_target
from tevlib.decoding.target import Target
from tevlib.sources.prompts import SUITES, chat_ids, load_prompts
from tevlib.sources.text import TextStream, token_label
from tevlib.suite.models import drafter_folder
from tevlib.suite.tree_columns import tree_columns
from tevlib.trees.builders import BUILDERS, oracle_tree

TEMPERATURES = (0.0, 0.3, 0.6, 0.8, 1.0, 1.3)
ORACLE = "oracle: the best tree of this size"


def record_suites(
    target_name: str,
    drafters: Sequence[str],
    *,
    suites: Sequence[str] = SUITES,
    answers: int = 1,
    budget: int = 64,
    temperature: float = 0.6,
    max_new_tokens: int = 24,
    seed: int = 0,
    top: int = 6,
    dtype: str = "bfloat16",
    oracle: bool = True,
) -> dict:
    """A recording of `answers` prompts of each suite, decoded with the first of `drafters` (folders or hub ids).

    Every round holds its tree, then the trees of the other drafters on the same context, then the oracle's.
    Raises ValueError for what loading and decoding refuse, and for a temperature that is none of `TEMPERATURES`.
    """
    target = load_target(target_name, dtype=dtype)
    loaded = {name.rstrip("/").split("/")[-1]: load_drafter(drafter_folder(name), target) for name in drafters}
    recorder = Recorder(target, loaded, budget=budget, top=top, oracle=oracle)
    for suite in suites:
        for prompt in load_prompts(suite, answers, seed=seed):
            recorder.record(prompt.turns[0], prompt.id, temperature, max_new_tokens, seed)
    return recorder.recording()


class LiveDecoder:
    """Decodes a prompt that somebody types, and keeps its rounds; target and drafters are loaded when first needed."""

    def __init__(self, target_name: str, dtype: str = "bfloat16"):
        self.target_name, self.dtype = target_name, dtype
        self.target: Target | None = None
        self.drafters: dict[str, DFlashDraftModel] = {}

    def recording(
        self, prompt: str, drafter: str, budget: int, temperature: float, max_new_tokens: int, seed: int = 0
    ) -> dict:
        """The recording of one answer. ValueError for an empty prompt, and for what loading and decoding refuse."""
        if not prompt.strip():
            raise ValueError("the prompt is empty: type a question")
        if self.target is None:
            self.target = load_target(self.target_name, dtype=self.dtype)
        if drafter not in self.drafters:
            self.drafters[drafter] = load_drafter(drafter_folder(drafter), self.target)
        name = drafter.rstrip("/").split("/")[-1]
        recorder = Recorder(self.target, {name: self.drafters[drafter]}, budget=budget)
        recorder.record(prompt, "your prompt", temperature, max_new_tokens, seed)
        return recorder.recording()


class Recorder:
    """Decodes prompts and keeps their rounds; `recording()` is all that was kept so far.

    The first of `drafters` (name -> drafter) decides the text; the others, and the oracle, only draw their trees.
    """

    def __init__(
        self,
        target: Target,
        drafters: dict[str, DFlashDraftModel],
        *,
        budget: int = 64,
        builder: str = "best_first",
        verifier: str = "tev",
        top: int = 6,
        oracle: bool = True,
    ):
        self.target, self.drafters = target, drafters
        self.budget, self.builder, self.verifier, self.top, self.oracle = budget, builder, verifier, top, oracle
        self.answers: list[dict] = []
        self.tokens: set[int] = set()

    def recording(self) -> dict:
        """The recording of everything recorded so far."""
        labels = {str(token): token_label(self.target.tokenizer, token) for token in sorted(self.tokens)}
        return {
            "format": 1,
            "target": Path(self.target.info.source).name,
            "temperatures": list(TEMPERATURES),
            "labels": labels,
            "answers": self.answers,
        }

    def record(self, prompt: str, name: str, temperature: float, max_new_tokens: int, seed: int | None) -> Generation:
        """The generation that answers `prompt`; its rounds are kept under `name`."""
        if temperature not in TEMPERATURES:
            raise ValueError(f"the temperature must be one of {', '.join(map(str, TEMPERATURES))}; got {temperature}")
        ids = torch.tensor(chat_ids(self.target.tokenizer, [{"role": "user", "content": prompt}]))
        lead = next(iter(self.drafters.values()))
        how = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
        tree_how = {"budget": self.budget, "builder": self.builder, "verifier": self.verifier}
        generation = speculate(self.target, lead, ids, **tree_how, **how)
        if not generation.rounds:
            raise ValueError(f"{name}: the answer ended before its first round; allow more tokens or ask another way")
        stream = TextStream(self.target.tokenizer)
        pieces = [stream.push([token]) for token in generation.tokens]
        pieces[-1] += stream.finish()
        self.answers.append(
            {
                "name": name,
                "prompt": prompt,
                "temperature": temperature,
                "verifier": self.verifier,
                "pieces": pieces,
                "rounds": self._replay(generation, ids, temperature),
            }
        )
        return generation

    @torch.inference_mode()
    def _replay(self, generation: Generation, ids: Tensor, temperature: float) -> list[dict]:
        """The rounds of `generation` with their logits, as JSON-ready dicts."""
        target = self.target
        scale = temperature or 1.0  # the oracle's tree is the best at the temperature decoded from; at 0, at 1
        room = len(ids) + sum(cycle.length for cycle in generation.rounds) + self.budget + 1
        room += max(drafter.block_size for drafter in self.drafters.values())
        cache = target.new_cache(room)
        taps = sorted({tap for drafter in self.drafters.values() for tap in drafter.taps})
        _, features = target.prefill(cache, ids.to(target.device), tuple(taps))
        contexts = {name: drafter.new_cache(room) for name, drafter in self.drafters.items()}
        found, start = [], 1
        for cycle in generation.rounds:
            root = cycle.tree.token(0)
            trees = []
            for index, (name, drafter) in enumerate(self.drafters.items()):
                drafter.append_context(contexts[name], self._tapped(features, taps, drafter))
                rows = draft(target, drafter, contexts[name], root, drafter.depth)
                tree = cycle.tree if index == 0 else BUILDERS[self.builder](rows, self.budget, root)
                trees.append((name, tree, rows))
            if self.oracle:
                depth = max(drafter.depth for drafter in self.drafters.values())
                best = oracle_tree(lambda tree: target.score_tree(cache, tree)[0] / scale, self.budget, root, depth)
                trees.append((ORACLE, best, trees[0][2]))
            columns = [self._columns(cache, *named) for named in trees[1:]]
            logits, node_features = target.score_tree(cache, cycle.tree, tuple(taps))  # last: its path is kept
            name, tree, rows = trees[0]
            first = {"name": name, **tree_columns(tree, logits, TEMPERATURES, self.top, rows)}
            cache.commit(cycle.path)
            features = node_features[torch.tensor(cycle.path, device=target.device)]
            found.append({"start": start, "path": cycle.path, "bonus": cycle.bonus, "trees": [first, *columns]})
            start += cycle.emitted
            self.tokens |= {cycle.bonus}
            for tree in found[-1]["trees"]:
                self.tokens |= {*tree["tokens"], *(token for row in tree["missing"] for token in row)}
        return found

    def _columns(self, cache, name: str, tree, rows: Tensor) -> dict:
        logits, _ = self.target.score_tree(cache, tree)
        columns = tree_columns(tree, logits, TEMPERATURES, self.top, rows)
        if name == ORACLE:
            columns["scores"] = None  # its order is the target's own
        return {"name": name, **columns}

    def _tapped(self, features: Tensor, taps: list[int], drafter: DFlashDraftModel) -> Tensor:
        """The features of `drafter`'s own taps, in its own order, out of those of all `taps`."""
        size = features.shape[-1] // len(taps)
        return torch.cat([features[:, size * i : size * (i + 1)] for i in map(taps.index, drafter.taps)], dim=-1)
