"""A recorded round as the figures see it: a tree of some budget, the target's flow through it, the text that came."""

import gzip
import hashlib
import json
from collections.abc import Mapping

from tevlib.explorer.flow import Flow, flow, missing_tokens
from tevlib.explorer.labels import visible
from tevlib.explorer.recording import FORMAT
from tevlib.explorer.scene import text_from, walk
from tevlib.suite.paths import repository

ROUNDS = "data/trees/rounds.json.gz"
BASE, EXIT = 0, 1  # places of the shipped and the exit-trained drafter's trees in a round


class Round:
    """One tree of a recorded round, cut to its best `budget` draft tokens, with the target's flow through it.

    `flow` has P, rho and w at the temperature that was decoded at; `path` the nodes that the recorded text runs
    through, the last one the exit node, and `bonus` the text's next token.
    """

    def __init__(self, recording: Mapping, answer: int, cycle: int, tree: int, budget: int):
        said = recording["answers"][answer]
        self.columns = said["rounds"][cycle]["trees"][tree]
        self.name, self.prompt, self.temperature = self.columns["name"], said["name"], said["temperature"]
        self.stop = recording["temperatures"].index(self.temperature)
        self.labels = recording["labels"]
        self.flow: Flow = flow(self.columns, self.temperature, self.stop, budget)
        kept = {name: self.columns[name][: budget + 1] for name in ("tokens", "parents")}
        text = text_from(said, cycle)
        self.path = walk(kept, text)
        self.bonus = self.label(text[len(self.path) - 1])

    @property
    def nodes(self) -> list[int]:
        """The tree's nodes; best-first trees keep the first ones for a smaller budget, so these are 0, 1, 2, ..."""
        return self.flow.alive

    def label(self, token: int) -> str:
        return visible(self.labels[str(token)])

    def node_label(self, node: int) -> str:
        return self.label(self.flow.tokens[node])

    def missing(self, node: int) -> list[tuple[str, float]]:
        """Labels of the tokens that `node` has no child for and the target mass each would bring (Eq. 12)."""
        found = missing_tokens(self.columns, self.flow, node, self.temperature, self.stop)
        return [(self.label(token), gain) for token, gain in found]


def read(name: str) -> tuple[Mapping, str]:
    """The shipped recording at `name` (from the repository's root) and its digest as a figure's source."""
    data = (repository() / name).read_bytes()
    recording = json.loads(gzip.decompress(data))
    if recording.get("format") != FORMAT:
        raise ValueError(f"{name}: a recording has format {FORMAT}; got {recording.get('format')}")
    return recording, f"{name} sha256:{hashlib.sha256(data).hexdigest()}"


def mean_change(budget: int = 8) -> tuple[float, float, int]:
    """Mean C_p of the shipped and of the exit-trained drafter over all rounds of the recording, and their number."""
    recording, _ = read(ROUNDS)
    found = [
        [Round(recording, answer, cycle, tree, budget).flow.coverage for tree in (BASE, EXIT)]
        for answer, said in enumerate(recording["answers"])
        for cycle in range(len(said["rounds"]))
    ]
    return *(sum(column) / len(found) for column in zip(*found, strict=True)), len(found)


def child_tests(cycle: Round) -> list[tuple[str, bool]]:
    """What the sequential residual verifier tests on the recorded text: children in the tree's order, and the verdict.

    At a node of the path its children are tested up to the one that was accepted; at the exit node all are rejected.
    """
    tests = []
    for node, taken in zip(cycle.path, [*cycle.path[1:], None], strict=True):
        for child in cycle.nodes:
            if child and cycle.flow.parents[child] == node:
                tests.append((cycle.node_label(child), child == taken))
                if child == taken:
                    break
    return tests
