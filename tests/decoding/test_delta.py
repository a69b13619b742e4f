"""A drafter kept as its difference from another: close, small, and never applied to the wrong base."""

import json

import pytest
import torch
from safetensors.torch import load_file

from tests.tiny import make_drafter, make_target
from tevlib.decoding.checkpoint import load_drafter, save_drafter
from tevlib.decoding.delta import GROUP, LEVELS, pack, unpack


@pytest.fixture
def two(tmp_path):
    """A target, the folder of a base drafter, and a drafter whose weights lie close to it."""
    target = make_target(hidden_size=64)
    base = make_drafter(target)
    folder = save_drafter(base, tmp_path / "base", target=target, dtype=torch.float32)
    tuned = make_drafter(target)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in tuned.parameters():
            value += 0.01 * torch.randn(value.shape, generator=generator)
    return target, folder, tuned


def test_a_difference_comes_back_within_half_a_step(two):
    """Every entry within half a step of its group's scale; what is no matrix is exact; unchanged weights stay so."""
    _, folder, tuned = two
    base, mine = load_file(folder / "model.safetensors"), tuned.state_dict()
    packed = pack(mine, base)
    for name, value in unpack(packed, base).items():
        if f"{name}.scale" not in packed:
            assert torch.equal(value, mine[name])
            continue
        step = (mine[name] - base[name]).view(-1, GROUP).abs().amax(1) / LEVELS
        assert bool(((value - mine[name]).view(-1, GROUP).abs() <= 0.51 * step[:, None] + 1e-6).all())
    same = unpack(pack(base, base), base)
    assert all(torch.equal(same[name], base[name]) for name in base)


def test_a_delta_folder_loads_as_any_other(two, tmp_path):
    """It drafts almost as the drafter it was made from and not as the base; the file is much smaller."""
    target, folder, tuned = two
    small = save_drafter(tuned, tmp_path / "tuned", target=target, card="# tuned", delta_of=folder)
    assert sorted(p.name for p in small.iterdir()) == ["README.md", "config.json", "delta.safetensors"]
    assert (small / "delta.safetensors").stat().st_size < 0.3 * (folder / "model.safetensors").stat().st_size
    loaded, base = load_drafter(small, target), load_drafter(folder, target)
    features, blocks = torch.randn(1, 9, 128), torch.randn(1, 1, 8, 64)
    with torch.no_grad():
        outputs = [d(features, blocks, torch.tensor([[5]])) for d in (tuned, loaded, base)]
    assert float((outputs[0] - outputs[1]).norm()) < 0.3 * float((outputs[0] - outputs[2]).norm())


def test_a_difference_from_nothing_or_from_another_is_refused(two, tmp_path):
    """The base moved away, a base of another shape: an error that names the file, not a drafter of noise."""
    target, folder, tuned = two
    small = save_drafter(tuned, tmp_path / "tuned", target=target, delta_of=folder)
    config = json.loads((small / "config.json").read_text())
    (small / "config.json").write_text(json.dumps(config | {"tevlib_delta_of": "../nowhere"}))
    with pytest.raises(ValueError, match=r"delta.safetensors is a difference from the drafter at .*nowhere"):
        load_drafter(small, target)
    (small / "config.json").write_text(json.dumps(config | {"tevlib_delta_of": None}))
    with pytest.raises(ValueError, match=r"delta.safetensors: tevlib_delta_of .* must be the base's folder, got None"):
        load_drafter(small, target)
    circle = save_drafter(tuned, tmp_path / "circle", target=target, delta_of=folder)
    for one, other in ((small, "circle"), (circle, "tuned")):
        (one / "config.json").write_text(json.dumps(config | {"tevlib_delta_of": f"../{other}"}))
    with pytest.raises(ValueError, match=r"circle.delta.safetensors is a difference from the drafter at .*tuned"):
        load_drafter(small, target)
    save_drafter(make_drafter(target, layers=1), tmp_path / "other", target=target)
    (small / "config.json").write_text(json.dumps(config | {"tevlib_delta_of": "../other"}))
    with pytest.raises(ValueError, match=r"delta.safetensors: a difference for another base: .*unexpected"):
        load_drafter(small, target)
    with pytest.raises(ValueError, match="two drafters of one shape"):
        save_drafter(make_drafter(target, layers=1), tmp_path / "bad", target=target, delta_of=folder)
