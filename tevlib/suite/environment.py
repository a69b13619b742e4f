"""Environment variables for a while: for what is done inside, and for the processes that are started there."""

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """The variables have the values `wanted` inside, and afterwards those that they had, or none."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
