"""Responses that the target itself writes: the drafter's training text, with the target's features beside it.

A fixed number of rows decodes together; a row that finishes is refilled with the next prompt at once. Every rollout
has its own random stream from (seed, index), so it does not depend on the rows beside it or on where a run resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm.auto import tqdm

from tevlib.decoding.packed import Keys, read_sequences
from tevlib.decoding.target import Target
from tevlib.trees.sampling import argmax_lowest, check_rows, check_temperature, is_greedy
from tevlib.trees.seeds import stream_seed

SHARD_ROLLOUTS = 128
PREFILL_ROWS, DEVICE_PREFILL_ROWS = 4, 256


@dataclass
class Rollout:
    """One conversation: `ids [n]` (prompt and response), and `features [n, K * H]` of the target's tapped layers.

    The features of the last token are zero: it was never fed to the target, and no anchor may read them.
    """

    index: int
    ids: Tensor
    prompt_length: int
    features: Tensor


class RowCache:
    """Keys and values of several sequences of different lengths.

    `[layers, 2, rows, heads, capacity, head_dim]` for each group of the target's layout.
    """

    def __init__(self, target: Target, rows: int, capacity: int):
        self.layout = target.layout
        self.stores = self.layout.empty(rows, capacity, target.dtype)
        self.lengths = torch.zeros(rows, dtype=torch.long, device=target.device)
        self.rows = torch.arange(rows, device=target.device)
        self.longest = 0

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_) -> tuple[Tensor, Tensor]:
        """Write one new token per row behind its sequence; all keys and values up to the `longest` row's."""
        group, place = self.layout.place[layer_idx]
        layer = self.stores[group][place]
        rows, at = self.rows.to(layer.device), self.lengths.to(layer.device)
        layer[0, rows, :, at] = keys[:, :, 0]
        layer[1, rows, :, at] = values[:, :, 0]
        end = self.longest + 1
        return layer[0, :, :, :end], layer[1, :, :, :end]

    def key_positions(self, new: Tensor, window: int | None) -> Tensor:
        """Positions `[1, m]` of the keys that `update` returns: every sequence starts at the first slot."""
        return torch.arange(self.longest + 1, device=new.device)[None]

    def read(self, rows: Tensor, keys: Keys) -> None:
        """Take the `keys` of whole sequences, as `read_sequences` gives them, into `rows`."""
        for store, part in zip(self.stores, keys, strict=True):
            store[:, :, rows.to(store.device), :, : part.shape[4]] = part

    def keep(self, rows: list[int]) -> None:
        """Go on with some of the rows."""
        self.stores = [store[:, :, rows].clone() for store in self.stores]
        self.lengths, self.rows = self.lengths[rows].clone(), self.rows[: len(rows)]


def rollouts(
    target: Target,
    prompts: list[list[int]],
    taps: tuple[int, ...],
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    rows: int = 64,
    skip: frozenset[int] = frozenset(),
    stop_ids: frozenset[int] | None = None,
) -> Iterator[Rollout]:
    """Yields the target's response to each of `prompts` (token ids) as it finishes, in no fixed order.

    Sampling is from softmax(logits / temperature) in float32; a response ends at a stop id (kept) or after
    `max_new_tokens`. Prompts whose index is in `skip` are left out. Raises `ValueError` for an empty prompt, one
    that does not fit the context with its response, fewer than one row or new token, and NaN logits of the target.
    """
    check_temperature(temperature)
    if rows < 1 or max_new_tokens < 1:
        raise ValueError(f"rows and max_new_tokens must be at least 1, got {rows} and {max_new_tokens}")
    stop_ids = target.stop_ids if stop_ids is None else stop_ids
    for index, prompt in enumerate(prompts):
        if not 1 <= len(prompt) <= target.context_limit - max_new_tokens:
            raise ValueError(
                f"prompt {index} has {len(prompt)} tokens; with {max_new_tokens} new ones it must fit 1 to "
                f"{target.context_limit}"
            )
    waiting = [i for i in range(len(prompts)) if i not in skip][::-1]
    if not waiting:
        return
    rows = min(rows, len(waiting))
    capacity = max(len(prompts[i]) for i in waiting) + max_new_tokens
    cache = RowCache(target, rows, capacity)
    device = target.device
    ids = torch.zeros(rows, capacity, dtype=torch.long, device=device)
    features = torch.zeros(rows, capacity, len(taps) * target.hidden_size, dtype=target.dtype, device=device)
    owner = [-1] * rows
    streams: list[torch.Generator] = [torch.Generator() for _ in range(rows)]
    logits = torch.zeros(rows, target.vocab_size, device=device)
    key_slots = torch.arange(capacity, device=device)

    patience = 1 if device.type == "cpu" else -(-rows // 16)  # idle rows that are worth a pass of their own
    while True:
        idle = [row for row in range(rows) if owner[row] == -1][: len(waiting)]
        for some in _groups(idle if len(idle) >= min(patience, len(waiting)) else [], device):
            for row in some:
                owner[row] = index = waiting.pop()
                streams[row].manual_seed(stream_seed(seed, index))
            sizes = [len(prompts[owner[row]]) for row in some]
            padded = torch.zeros(len(some), max(sizes), dtype=torch.long)
            for i, row in enumerate(some):
                padded[i, : sizes[i]] = torch.tensor(prompts[owner[row]])
            padded, at = padded.to(device), torch.tensor(some, device=device)
            last, tapped, keys = read_sequences(target, padded, sizes, taps)
            ids[at, : max(sizes)], features[at, : max(sizes)] = padded, tapped
            cache.read(at, keys)
            cache.lengths[at] = torch.tensor(sizes, device=device)
            logits[at] = target.logits(last)
        active = [row for row in range(rows) if owner[row] != -1]
        if not active:
            return
        check_rows(logits[active].amax(-1), "rollout row")
        uniforms = torch.tensor([float(torch.rand((), generator=stream)) for stream in streams])
        tokens = draw(logits, temperature, uniforms)
        at = cache.lengths.clone()
        ids[cache.rows, at.clamp(max=capacity - 1)] = tokens
        places, drawn = at.tolist(), tokens.tolist()
        for row in active:
            length, index = places[row] + 1, owner[row]
            prompt_length = len(prompts[index])
            if drawn[row] in stop_ids or length - prompt_length >= max_new_tokens:
                features[row, length - 1] = 0
                text, tapped = (x[row, :length].to("cpu", copy=True) for x in (ids, features))
                yield Rollout(index, text, prompt_length, tapped)
                owner[row] = -1
                cache.lengths[row] = 0  # an idle row keeps attending to one token of its own
                at[row] = 0
        if not waiting and sum(o != -1 for o in owner) <= rows // 2:  # the last ones go on in less room
            busy = [row for row in range(rows) if owner[row] != -1]
            if not busy:
                return
            rows, owner, streams = len(busy), [owner[r] for r in busy], [streams[r] for r in busy]
            cache.keep(busy)
            ids, features, tokens, at = ids[busy], features[busy], tokens[busy], at[busy]
            logits = logits[busy]
        cache.longest = int(cache.lengths.max())
        visible = key_slots[None, None, : cache.longest + 1] <= cache.lengths[:, None, None]
        hidden, tapped = target.forward(tokens[:, None], cache.lengths[:, None], visible, cache, taps)
        logits = target.logits(hidden[:, 0])
        features[cache.rows, at] = tapped[:, 0]
        cache.lengths += torch.tensor([o != -1 for o in owner], device=device).long()


def _groups(rows: list[int], device: torch.device) -> list[list[int]]:
    """Rows whose prompts are read together: few where padding costs, many where passes do."""
    size = PREFILL_ROWS if device.type == "cpu" else DEVICE_PREFILL_ROWS
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def draw(logits: Tensor, temperature: float, uniforms: Tensor) -> Tensor:
    """One token per row `[B]` by inverse transform: `logits [B, V]` float32, `uniforms [B]` in [0, 1)."""
    if is_greedy(temperature):
        return argmax_lowest(logits, dim=-1)
    mass = torch.softmax(logits / temperature, dim=-1).cumsum(dim=-1)
    wanted = (uniforms.to(mass.device) * mass[:, -1]).unsqueeze(1)
    return torch.searchsorted(mass, wanted, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)


class RolloutStore:
    """A folder of shards: `shard-00000.safetensors` and `provenance.json`. Complete shards are never rewritten."""

    def __init__(self, folder: Path | str):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def shards(self) -> list[Path]:
        return sorted(self.folder.glob("shard-*.safetensors"))

    def done(self) -> frozenset[int]:
        """Indices of the prompts whose rollouts are stored."""
        return frozenset(int(i) for path in self.shards() for i in _load(path)["index"])

    def write(self, finished: list[Rollout]) -> None:
        """Append one shard, atomically."""
        last = max((int(shard.stem.removeprefix("shard-")) for shard in self.shards()), default=-1)
        path = self.folder / f"shard-{last + 1:05d}.safetensors"
        tensors = {
            "index": torch.tensor([r.index for r in finished]),
            "length": torch.tensor([len(r.ids) for r in finished]),
            "prompt_length": torch.tensor([r.prompt_length for r in finished]),
            "ids": torch.cat([r.ids for r in finished]).int(),
            "features": torch.cat([r.features for r in finished]).contiguous(),
        }
        partial = path.with_suffix(".partial")
        save_file(tensors, partial)
        os.replace(partial, path)

    def read(self) -> list[Rollout]:
        """All stored rollouts, ordered by prompt index."""
        found = []
        for path in self.shards():
            shard = _load(path)
            lengths = shard["length"].tolist()
            parts = zip(
                shard["index"].tolist(),
                shard["ids"].long().split(lengths),
                shard["prompt_length"].tolist(),
                shard["features"].split(lengths),
                strict=True,
            )
            found += [Rollout(*part) for part in parts]
        return sorted(found, key=lambda r: r.index)

    def provenance(self, record: dict) -> None:
        """Keep how the rollouts are made. Raises `ValueError` if the folder holds rollouts made otherwise."""
        path = self.folder / "provenance.json"
        if path.exists():
            before = json.loads(path.read_text())
            differing = sorted(k for k in record.keys() | before.keys() if record.get(k) != before.get(k))
            if differing:
                raise ValueError(
                    f"{self.folder} holds rollouts made with other settings ({', '.join(differing)}): "
                    "choose another folder or delete it"
                )
            return
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(record, indent=2) + "\n")
        os.replace(partial, path)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and its rollouts are made again") from error


def make_rollouts(
    target: Target,
    prompts: list[list[int]],
    taps: tuple[int, ...],
    folder: Path | str,
    *,
    temperature: float,
    max_new_tokens: int,
    seed: int,
    rows: int = 64,
    record: dict | None = None,
) -> RolloutStore:
    """The `RolloutStore` in `folder` with a rollout for every prompt; what is there already is not made again."""
    store = RolloutStore(folder)
    store.provenance(
        {
            "target": target.info.source,
            "revision": target.info.revision,
            "dtype": target.info.dtype,
            "taps": list(taps),
            "temperature": temperature,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "prompts": len(prompts),
            "prompts_sha256": hashlib.sha256(json.dumps(prompts).encode()).hexdigest()[:16],
            **(record or {}),
        }
    )
    done, batch, tokens = store.done(), [], 0
    with tqdm(total=len(prompts), initial=len(done), desc=f"rollouts T={temperature:g}", unit="prompt") as bar:
        made = rollouts(
            target,
            prompts,
            taps,
            temperature=temperature,
            max_new_tokens=max_new_tokens,
            seed=seed,
            rows=rows,
            skip=done,
        )
        try:
            for rollout in made:
                batch.append(rollout)
                tokens += len(rollout.ids) - rollout.prompt_length
                bar.update()
                bar.set_postfix(tokens=tokens, refresh=False)
                if len(batch) == SHARD_ROLLOUTS:
                    store.write(batch)
                    batch = []
        finally:  # what is finished is kept, after Ctrl-C too
            if batch:
                store.write(batch)
    return store
