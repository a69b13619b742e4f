"""The ways to install agree with each other."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
CONDA_NAMES = {"torch": "pytorch"}  # PyPI -> conda-forge, where they differ


def requirements(name: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / name).read_text().splitlines()]
    pairs = [re.match(r"([\w.-]+)(.*)", line).groups() for line in lines if line and not line.startswith("-")]
    return {package: spec.replace(" ", "") for package, spec in pairs}


def test_conda_lists_the_same_packages_and_ranges():
    """environment.yml asks for what requirements.txt asks for, under conda-forge's names; no channel of the past."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    listed = [line for line in environment["dependencies"] if isinstance(line, str)]
    conda = dict(re.match(r"([\w-]+)\s*(.*)", line).groups() for line in listed)
    wanted = {CONDA_NAMES.get(name, name): spec for name, spec in requirements("requirements.txt").items()}
    assert {name: spec for name, spec in conda.items() if name not in ("python", "pip")} == wanted
    assert set(environment["channels"]) == {"conda-forge", "nodefaults"}


def test_pins_lie_in_the_ranges():
    """Every pin of constraints.txt is inside its range of requirements.txt, where the package is required at all."""
    from packaging.specifiers import SpecifierSet

    ranges = requirements("requirements.txt")
    pins = requirements("constraints.txt")
    assert {"torch", "transformers", "papermill"} <= pins.keys()
    for name, pin in pins.items():
        if name in ranges:
            assert SpecifierSet(ranges[name]).contains(pin.removeprefix("==")), f"{name}{pin} is not {ranges[name]}"


def test_the_package_of_the_round_trips_is_pinned_and_installed_alone():
    """z-lab's `dflash` asks for exact versions of other packages: the Makefile installs it without them."""
    from importlib.metadata import version

    assert requirements("requirements-dflash.txt") == {"dflash": f"=={version('dflash')}"}
    makefile = (ROOT / "Makefile").read_text()
    assert "--no-deps -r requirements-dflash.txt" in makefile
    assert re.search(r"^\$\(VENV\)/\.development:.* requirements-dflash\.txt", makefile, flags=re.MULTILINE)
