"""Recorded rounds: what the explorer shows, as plain JSON, made from trees and the target's logits.

A recording is a dict: `format`, `target`, `temperatures` (at which the law is stored exactly), `labels` (token id as
text -> what a person reads) and `answers`. An answer has `name`, `prompt`, `temperature`, `verifier`, `pieces` (its
text, token by token) and `rounds`. A round has `start` (tokens written before it, the root's own included), `path`
(accepted nodes of the first tree, root first), `bonus` and `trees`, one or more on the same context; a tree is a `name`
and the columns PER_NODE and PER_STOP, which `tevlib.suite.tree_columns` explains.
"""

import gzip
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FORMAT = 1
NEVER = -1e9  # log-probability of what cannot be: JSON has no infinity
PER_NODE = ("tokens", "parents", "scores", "log_p", "argmax", "missing", "missing_log_p", "missing_log_q")
PER_STOP = ("log_z", "rho")


def recording_of(
    generation, label: Callable[[int], str] = str, temperature: float = 1.0, name: str = "a generation"
) -> dict:
    """A recording of a finished generation (`.tokens`, `.rounds` of tree, P, w, path, bonus, emitted).

    Only what the rounds hold is in it: P and w at the `temperature` that was decoded from. A round has no logits, so no
    missing tokens and no other temperature can be shown; `tevlib.suite.record_trees` keeps them.
    """
    rounds, start, seen = [], 1, set(generation.tokens)
    for cycle in generation.rounds:
        columns = {"name": "tree", **_columns_without_logits(cycle, temperature)}
        seen |= {*columns["tokens"], cycle.bonus}
        rounds.append({"start": start, "path": cycle.path, "bonus": cycle.bonus, "trees": [columns]})
        start += cycle.emitted
    answer = {
        "name": name,
        "prompt": "",
        "temperature": temperature,
        "verifier": "",
        "pieces": [label(token) for token in generation.tokens],
        "rounds": rounds,
    }
    labels = {str(token): label(token) for token in sorted(seen)}
    return {"format": FORMAT, "target": "", "temperatures": [temperature], "labels": labels, "answers": [answer]}


def check_recording(recording: Mapping) -> Mapping:
    """`recording` itself; ValueError that says what is wrong with it: format, no rounds, columns, paths, labels."""
    if not isinstance(recording, Mapping) or recording.get("format") != FORMAT:
        found = recording.get("format") if isinstance(recording, Mapping) else type(recording).__name__
        raise ValueError(f"a recording has format {FORMAT}; got {found}: record it again with this version")
    stops = recording["temperatures"]
    if not recording["answers"] or not all(answer["rounds"] for answer in recording["answers"]):
        raise ValueError("a recording needs at least one answer, and every answer at least one round")
    for answer in recording["answers"]:
        if answer["temperature"] not in stops:
            raise ValueError(f"{answer['name']}: temperature {answer['temperature']} is none of the recorded {stops}")
        for index, cycle in enumerate(answer["rounds"]):
            where = f"{answer['name']}, round {index}"
            for tree in cycle["trees"]:
                _check_tree(tree, len(stops), recording["labels"], where)
            lead = cycle["trees"][0]["parents"]
            path = cycle["path"]
            if not path or path[0] != 0 or any(lead[b] != a for a, b in itertools.pairwise(path)):
                raise ValueError(f"{where}: {path} is no path from the root of its first tree")
    return recording


def load_recording(path: Path | str) -> Mapping:
    """The recording in a `.json` or `.json.gz` file, checked; ValueError names the file that holds none."""
    path = Path(path)
    data = path.read_bytes()
    try:
        return check_recording(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))
    except (ValueError, KeyError, TypeError, OSError, EOFError) as error:
        raise ValueError(f"{path} is no recording of trees: {error}") from error


def save_recording(recording: Mapping, path: Path | str) -> Path:
    """The path of the file written; the same bytes for the same recording."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(check_recording(recording), separators=(",", ":"), allow_nan=False).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0) if path.suffix == ".gz" else data)
    return path


def _columns_without_logits(cycle, temperature: float) -> dict:
    """The columns of a tree from P and w alone: no missing tokens, one temperature."""
    tree, P, w = cycle.tree, cycle.P.double().tolist(), cycle.w.double().tolist()
    n = len(tree)
    edge = [1.0, *(P[u] / P[tree.parent(u)] if P[tree.parent(u)] > 0 else 0.0 for u in range(1, n))]
    argmax = [-1] * n
    for u in range(1, n):
        if edge[u] == 1:
            argmax[tree.parent(u)] = tree.token(u)
    return {
        "tokens": tree.tokens.tolist(),
        "parents": tree.parents.tolist(),
        "scores": None if tree.scores is None else _rounded(tree.scores.tolist(), 4),
        "log_p": [(temperature or 1.0) * math.log(p) if p > 0 else NEVER for p in edge],
        "argmax": argmax,
        "missing": [[] for _ in range(n)],
        "missing_log_p": [[] for _ in range(n)],
        "missing_log_q": [[] for _ in range(n)],
        "log_z": [[0.0] * n],
        "rho": [[x / mass if mass > 0 else 1.0 for x, mass in zip(w, P, strict=True)]],
    }


def _check_tree(tree: Mapping, stops: int, labels: Mapping, where: str) -> None:
    from tevlib.trees.draft_tree import DraftTree  # brings torch, which a reader of recordings can do without

    checked = DraftTree(tree["tokens"], tree["parents"])
    n = len(checked)
    for name in PER_NODE:
        if not (name == "scores" and tree[name] is None) and len(tree[name]) != n:
            raise ValueError(f"{where}: column {name} has {len(tree[name])} entries for {n} nodes")
    for name in PER_STOP:
        if len(tree[name]) != stops or any(len(column) != n for column in tree[name]):
            raise ValueError(f"{where}: {name} needs {n} entries for each of {stops} temperatures")
    unknown = {*tree["tokens"], *(token for row in tree["missing"] for token in row)} - {int(key) for key in labels}
    if unknown:
        raise ValueError(f"{where}: token {min(unknown)} has no label")


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) if math.isfinite(value) else NEVER for value in values]
