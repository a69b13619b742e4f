"""The benchmark suite in one run, which is what `make bench` starts.

    python -m benchmarks [--quick] [--only SECTION ...] [--resume runs/bench/<time>.json]

Every section interleaves what it compares and states ratios of one run with 95% intervals. The record is written after
each section, to `runs/bench/<time>.json`; `--resume` goes on from one. Close other programs: a shared machine shows in
the intervals and in `load`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import torch

from tevlib.suite.paths import home
from tevlib.suite.provenance import provenance

SECTIONS = {  # in the order in which they run: the module's `measure(quick) -> dict`
    "speed": "plain decoding, generate, fixed budgets and the automatic one",
    "cycle": "where a round's time goes",
    "head": "what a deferred head saves",
    "builder": "the tree builder against public code's",
    "verifiers": "every form of every verifier, decision and commit on replayed rounds",
}


def main(arguments: list[str] | None = None) -> Path:
    """The path of the record, after its summary was printed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute instead of 22: does it run?")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--resume", type=Path, help="a record whose finished sections stay as they are")
    chosen = parser.parse_args(arguments)
    record, path = begin(chosen.quick), home() / "runs" / "bench" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    if chosen.resume:
        path, record = chosen.resume, continued(chosen.resume, record)
    for name in chosen.only:
        if name in record["sections"]:
            continue
        section, start, load = importlib.import_module(f"benchmarks.{name}"), time.perf_counter(), os.getloadavg()[0]
        result = section.measure(chosen.quick)
        record["sections"][name] = result | {"wall_s": time.perf_counter() - start, "load": [load, os.getloadavg()[0]]}
        write(path, record)
        if name == "cycle":
            print("picture:", section.save_picture(result, path.with_suffix(".png")))
    print(summary(record))
    print("record:", path)
    return path


def begin(quick: bool) -> dict:
    """A record without sections: when, where, with what."""
    return {
        "started_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}",
        "quick": quick,
        "threads": torch.get_num_threads(),
        "provenance": provenance(),
        "sections": {},
    }


def continued(path: Path, fresh: dict) -> dict:
    """The record at `path`. Raises `ValueError` where its ratios would not be comparable with those still to come."""
    record = json.loads(path.read_text(encoding="utf-8"))
    for what in ("quick", "threads"):
        if record[what] != fresh[what]:
            raise ValueError(f"{path} was begun with {what} = {record[what]}, this run has {fresh[what]}")
    for what in ("git_commit", "cpu", "host"):
        if record["provenance"][what] != fresh["provenance"][what]:
            raise ValueError(f"{path} was begun on another {what}: {record['provenance'][what]}")
    return record


def write(path: Path, record: dict) -> None:
    """Write the record; an interrupted write leaves the last one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def summary(record: dict) -> str:
    """The bars of all sections as lines of text: what, asked, got with its interval, met or missed."""
    where = record["provenance"]
    commit = (where["git_commit"] or "no commit")[:7] + (" and changes" if where["git_dirty"] else "")
    form = "quick form" if record["quick"] else "full form"
    lines = [f"{where['cpu']}, {record['threads']} threads; {commit}; {form}"]
    for name, section in record["sections"].items():
        lines.append(f"\n{name}: {SECTIONS[name]} ({section['wall_s']:.0f} s)")
        for line in section.get("bars", []):
            verdict = {True: "met", False: "missed", None: ""}[line["met"]]
            spread = "(one prompt)" if line["interval"] is None else "({:.3f} to {:.3f})".format(*line["interval"])
            got = f"{line['value']:.3f} {spread}"
            lines.append(f"  {line['what']:<78} {got:<26} {line['asked'] or '':<8} {verdict}".rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    main()
