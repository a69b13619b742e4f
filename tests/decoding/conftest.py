"""Fixtures: the tiny random targets."""

import pytest

from tests.tiny import PLAIN, make_target
from tevlib.decoding.target import Target


@pytest.fixture(params=PLAIN)
def family(request) -> str:
    return request.param


@pytest.fixture
def target(family) -> Target:
    return make_target(family)


@pytest.fixture
def llama() -> Target:
    return make_target("llama")
