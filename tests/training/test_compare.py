"""The matched comparison: variants from one line, runs that resume, differences that are paired and honest."""

import numpy as np
import pytest

from tests.tiny import make_drafter, make_target
from tevlib.decoding.checkpoint import save_drafter
from tevlib.training.compare import paired_differences, run_variant, variant_config
from tevlib.training.config import TrainConfig
from tevlib.training.rollouts import rollouts

SHARED = TrainConfig(
    steps=4, sequences=2, anchors=4, trees=2, tree_budget=5, autocast=False, save_every=2, validate_every=4,
    validation_contexts=2, validation_budgets=(4,), validation_temperatures=(1.0,),
)  # fmt: skip


def test_a_variant_is_a_line():
    """Objective and changes, typed as the fields are; what is no field is named with those that are."""
    config = variant_config("exit guidance=32 horizon_leaves=false trees=8", SHARED, seed=3)
    assert (config.objective, config.guidance, config.horizon_leaves) == ("exit", 32, False)
    assert (config.trees, config.seed, config.steps) == (8, 3, 4)
    with pytest.raises(ValueError, match=r"'lambda=3' is not field=value .* guidance"):
        variant_config("exit lambda=3", SHARED, 0)
    with pytest.raises(ValueError, match="unknown objective 'exits'"):
        variant_config("exits", SHARED, 0)


def test_a_run_is_evaluated_once_and_kept(tmp_path):
    """Variants start from the same drafter and see the same contexts; a second call trains and evaluates nothing."""
    target = make_target()
    texts = sorted(
        rollouts(target, [[7, 30, 41 + i, 9] for i in range(4)], (0, 2), temperature=0.0, max_new_tokens=12, seed=0),
        key=lambda r: r.index,
    )
    save_drafter(make_drafter(target, block_size=5), tmp_path / "base", target=target)
    how = dict(contexts=6, budgets=(4, 8), temperatures=(0.0, 1.0))
    results = {}
    for name in ("finetune", "gain"):
        config = variant_config(name, SHARED, 0)
        results[name, 0] = run_variant(target, tmp_path / "base", texts, texts[:2], config, tmp_path / name, **how)
    assert results["finetune", 0]["texts"] == [0] * 3 + [1] * 3
    assert set(results["gain", 0]["ceilings"]) == {"B4_T0", "B4_T1", "B8_T0", "B8_T1"}
    stamp = (tmp_path / "gain" / "evaluation.json").stat().st_mtime_ns
    again = run_variant(target, tmp_path / "base", texts, texts[:2], config, tmp_path / "gain", **how)
    assert again == results["gain", 0] and (tmp_path / "gain" / "evaluation.json").stat().st_mtime_ns == stamp
    table = paired_differences(results, "finetune")
    assert table["variant"].tolist() == ["gain"] * 4 and table["contexts"].tolist() == [6] * 4
    expected = np.mean(results["gain", 0]["ceilings"]["B8_T1"]) - np.mean(results["finetune", 0]["ceilings"]["B8_T1"])
    assert table.set_index("setting").loc["B8_T1", "difference"] == pytest.approx(expected)


def result(values, texts):
    return {"ceilings": {"B4_T1": list(values)}, "texts": list(texts)}


def test_intervals_cover_what_they_should():
    """Of 200 synthetic comparisons with response and seed effects, about 95% of the intervals hold the true gain; one
    that took contexts for independent would hold it far less often."""
    rng = np.random.default_rng(0)
    texts = np.repeat(np.arange(30), 4)
    covered = 0
    for _ in range(200):
        results = {}
        effect = rng.normal(0, 0.1, 30)[texts]
        for seed in range(3):
            base = rng.normal(2, 0.3, 120)
            noise = effect + rng.normal(0, 0.05, 120)
            results["finetune", seed] = result(base, texts)
            results["exit", seed] = result(base + 0.05 + noise, texts)
        row = paired_differences(results, "finetune").iloc[0]
        covered += row["low"] <= 0.05 <= row["high"]
    assert 180 <= covered <= 199


def test_what_cannot_be_paired_is_refused():
    """Other contexts, or a reference that was not run."""
    with pytest.raises(ValueError, match="not of the same contexts"):
        paired_differences({("a", 0): result([1, 2], [0, 0]), ("b", 0): result([1, 2], [0, 1])}, "a")
    with pytest.raises(ValueError, match="no result of the reference 'finetune'"):
        paired_differences({("a", 0): result([1], [0])}, "finetune")


def test_a_reference_alone_gives_no_rows():
    """A table of its usual columns, so that a comparison that has only begun can be looked at."""
    found = paired_differences({("finetune", 0): result([1, 2], [0, 1])}, "finetune")
    assert len(found) == 0 and "relative" in found
