"""A drafter's folder made ready for a model hub: whole weights, a card with its record, the commands that serve it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tevlib.suite.code_hash import drafter_digest
from tevlib.suite.paths import home
from tevlib.suite.records import read_record

OWN = ("Target", "Measured by tevlib", "Files", "Serving")  # sections that an export writes anew


FILES = (
    "`model.safetensors` and `config.json` are in the layout of z-lab's DFlash: its `dflash` package, vLLM, SGLang and "
    "tevlib (`load_drafter`) read them as they are. The embedding and the head are the target's and not in the file."
)


@dataclass(frozen=True)
class Exported:
    """What was written: `files` with their bytes, the serving `commands` by server, and what to know (`notes`)."""

    folder: Path
    files: dict[str, int]
    commands: dict[str, str]
    notes: list[str]


def export_drafter(
    folder: Path | str,
    out: Path | str,
    *,
    repo_id: str | None = None,
    licence: str | None = None,
    base_model: str | None = None,
) -> Exported:
    """Write `out`, ready to be uploaded as `repo_id`: `config.json`, `model.safetensors`, `README.md`.

    Licence and target (a hub id) default to what the drafter's own card states. The weights keep their dtype; a
    difference from another drafter is added up. Raises `ValueError`, before anything is written, for a folder that is
    no drafter or has no card, an `out` that holds something, a licence or target that nobody states, and bad ids.
    """
    from safetensors.torch import save_file

    from tevlib.decoding.checkpoint import CONFIG, DELTA, VOCABULARY, WEIGHTS, read_description, read_tensors
    from tevlib.decoding.drafter_config import FINGERPRINT, config_json
    from tevlib.training.card import HUB_ID, front_matter, target_section

    folder, out = Path(folder), Path(out)
    raw, config = read_description(folder)
    stated, sections = _read_card(folder / "README.md")
    licence, base_model = licence or stated.get("license"), base_model or stated.get("base_model")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is not empty: an export replaces nothing, choose another folder")
    if not licence:
        raise ValueError(f"the card of {folder} states no license: give one with --licence, such as apache-2.0")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        raise ValueError(
            f"--licence is an identifier of the hub, such as apache-2.0, llama3.1 or gemma; got {licence!r}"
        )
    if not base_model:
        raise ValueError(f"the card of {folder} states no base_model: give the target's hub id with --base-model")
    for option, value in (("--base-model", base_model), ("--repo-id", repo_id)):
        if value is not None and not re.fullmatch(HUB_ID, value):
            raise ValueError(f"{option} is written owner/name, got {value!r}")
    fingerprint = raw.get(FINGERPRINT) or {}
    layers = config.num_target_layers or fingerprint.get("num_layers")
    if layers is None:
        raise ValueError(f"{folder / CONFIG} lacks num_target_layers, which z-lab's code needs")
    tensors = read_tensors(folder, config)
    dtype = tensors["fc.weight"].dtype

    commands = serving_commands(config, repo_id or str(out), base_model)
    taps = config.dflash_config["target_layer_ids"]
    notes = _notes(folder, DELTA, VOCABULARY)
    written = {**sections, "Target": target_section(fingerprint, taps).partition("\n\n")[2].strip()}
    if rows := measured(folder, VOCABULARY):
        written["Measured by tevlib"] = rows
    written["Files"] = "\n\n".join([FILES, *notes])
    written["Serving"] = "\n\n".join(f"{server}:\n\n```sh\n{line}\n```" for server, line in commands.items())
    card = front_matter(licence, base_model) + "\n" + _join(written)

    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=out.parent, prefix=".partial-"))
    try:
        save_file({name: value.contiguous() for name, value in tensors.items()}, partial / WEIGHTS, {"format": "pt"})
        own = {FINGERPRINT: fingerprint} if fingerprint else {}
        _write_json(partial / CONFIG, config_json(config, dtype, layers) | own)
        (partial / "README.md").write_text(card, encoding="utf-8")
        for file in partial.iterdir():
            file.chmod(0o644)
        partial.chmod(0o755)
        if out.exists():
            out.rmdir()
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Exported(out, {file.name: file.stat().st_size for file in sorted(out.iterdir())}, commands, notes)


def serving_commands(config, drafter: str, target: str) -> dict[str, str]:
    """The command line of each server that serves `target` with `drafter` (both ids or folders).

    vLLM is told of the drafted tokens, the block without its anchor; SGLang of the whole block.
    """
    block, kinds = config.block_size, set(config.layer_types)
    speculative = json.dumps({"method": "dflash", "model": drafter, "num_speculative_tokens": block - 1})
    runner = "VLLM_USE_V2_MODEL_RUNNER=1 " if len(kinds) > 1 else ""  # else vLLM refuses layers of two kinds
    return {
        "vLLM": f"{runner}vllm serve {shlex.quote(target)} --speculative-config {shlex.quote(speculative)}",
        "SGLang": f"python -m sglang.launch_server --model-path {shlex.quote(target)} --speculative-algorithm DFLASH "
        f"--speculative-draft-model-path {shlex.quote(drafter)} --speculative-num-draft-tokens {block}",
    }


def measured(folder: Path, vocabulary: str) -> str:
    """A Markdown table of the block lengths on record for exactly these files; empty where there are none.

    Both count: as they are, and without the file `vocabulary`, when any token was proposed.
    """
    from tevlib.training.card import table

    proposes = {drafter_digest(folder): "listed tokens", drafter_digest(folder, without=vocabulary): "any token"}
    rows = {}
    for path in sorted((home() / "data" / "results").glob("*.json")):
        record = None if path.name.endswith(".failed.json") else read_record(path)
        among = record and proposes.get(record["drafter"].get("sha256"))
        if not among or record["metrics"].get("tau") is None:
            continue
        cell, metrics = record["cell"], record["metrics"]
        key = [str(cell[name]) for name in ("suite", "temperature", "budget", "builder", "verifier")]
        rows[(*key, among)] = (metrics["tau"], metrics["tau_pooled"], metrics["ceiling"], metrics["responses"])
    if not rows:
        return ""
    head = [
        "suite",
        "temperature",
        "budget",
        "builder",
        "verifier",
        "proposes",
        "tau",
        "pooled tau",
        "1 + C_p",
        "answers",
    ]
    return (
        "Block length, bonus token included: mean of the responses' means (tau) and over all rounds (pooled), beside "
        "the exact mean of 1 + C_p.\n\n" + table(head, [(*key, *values) for key, values in sorted(rows.items())])
    )


def _read_card(path: Path) -> tuple[dict, dict[str, str]]:
    """The front matter of a card, and its sections by heading without those of an export; "" is what stands above."""
    if not path.is_file():
        raise ValueError(f"no card at {path}: an upload carries the record of its training")
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = re.match(r"---\n(.*?)\n---\n", text, flags=re.DOTALL)
        stated = (found and yaml.safe_load(found[1])) or {}
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} is no card in UTF-8 with YAML at its top: {error}") from error
    if not isinstance(stated, dict):
        raise ValueError(f"{path}: what stands between --- and --- must be keys and values, got {stated!r:.200}")
    for key, option in (("license", "--licence"), ("base_model", "--base-model")):
        if not isinstance(stated.get(key), str | None):
            raise ValueError(
                f"{path}: {key} must be one identifier, got {stated[key]!r}: correct it, or take it out "
                f"and give {option}"
            )
    text = text[found.end() :] if found else text
    first, *others = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = {"": first.strip()}
    for other in others:
        heading, _, body = other.partition("\n")
        if (name := heading.strip()) not in OWN:
            sections[name] = "\n\n".join(part for part in (sections.get(name), body.strip()) if part)
    return stated, sections


def _join(sections: dict[str, str]) -> str:
    return "\n\n".join(f"## {name}\n\n{body}" if name else body for name, body in sections.items()) + "\n"


def _notes(folder: Path, delta: str, vocabulary: str) -> list[str]:
    """What of the folder is not as it was."""
    notes = []
    if (folder / delta).is_file():
        notes.append(f"The weights are whole here: the difference in `{delta}` is added to what it was taken from.")
    if (folder / vocabulary).is_file():
        notes.append(f"`{vocabulary}` is left out, since servers take it for weights: any token is proposed.")
    return notes


def _write_json(path: Path, values: dict) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
