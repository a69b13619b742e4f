"""The kernel that notebooks run in: this very interpreter, whatever kernelspecs the machine has."""

import sys
from typing import TextIO

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec


def same_interpreter(log: TextIO) -> type[AsyncKernelManager]:
    """A kernel manager class that starts ipykernel under `sys.executable`, its last words on stderr going to `log`.

    A kernelspec called python3 may belong to another interpreter; none is looked up.
    """

    class SameInterpreter(AsyncKernelManager):
        @property
        def kernel_spec(self) -> KernelSpec:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

        async def start_kernel(self, **options) -> None:
            await super().start_kernel(stderr=log, **options)

    return SameInterpreter
