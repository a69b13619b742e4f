"""A profile of all five tables that takes a second, on the tiny models, for tests of what is made of records."""

import json
from pathlib import Path

import yaml

HOSTILE = "<img src=x onerror=alert(1)>&'$"


def write_tiny_profile(folder: Path, tiny: Path) -> Path:
    """The path of `folder/tiny.yaml`; its one suite is a file named `HOSTILE`."""
    suite = folder / f"{HOSTILE}.jsonl"
    suite.write_text("".join(json.dumps({"turns": [f"Say {letter}."]}) + "\n" for letter in "abc"))
    drafter = str(tiny / "drafter-tiny")
    methods = {"ddtree": {"drafter": drafter, "verifier": "predraw"}, "exit": {"drafter": drafter, "verifier": "tev"}}
    chain = {"sampled_chain": {"drafter": drafter, "verifier": "tev", "builder": "sampled_chain", "budget": 3}}
    auto = {"auto": {"drafter": drafter, "verifier": "tev", "budget": "auto"}}
    both = {"temperatures": [0.0, 1.0]}
    body = {
        "defaults": {
            "target": str(tiny / "target"), "builder": "best_first", "dtype": "float32", "top_p": 1.0, "top_k": 0,
            "seed": 0, "max_new_tokens": 10, "oracle_rounds": 1, "suites": {str(suite): {"prompts": 2}},
        },
        "tables": {
            "table1": {"methods": methods | chain | auto, "budgets": [6], **both},
            "table2": {"methods": {"original": methods["exit"], "exit": methods["exit"]}, "budgets": [6], **both},
            "table3": {
                "drafter": drafter, "shapes": ["own"], "budgets": [4, 6], "temperatures": [1.0],
                "suites": [str(suite)], "prompts": 1, "rounds": 2, "repeats": 1,
            },
            "table4": {
                "drafters": {"original": drafter}, "verifiers": ["predraw", "tev"], "budgets": [4],
                "temperatures": [1.0],
            },
            "table5": {"methods": methods, "budgets": [4, 32], **both},
        },
    }  # fmt: skip
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(body, sort_keys=False))
    return path
