"""Fixtures: the tiny random targets, as for decoding."""

from tests.decoding.conftest import family, target

__all__ = ["family", "target"]
