"""The kernel that notebooks run in: this very interpreter, whatever kernelspecs the machine has."""

import sys

from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec


class SameInterpreter(AsyncKernelManager):
    """Kernel manager that starts ipykernel under `sys.executable`; a `python3` kernelspec of another one is ignored."""

    @property
    def kernel_spec(self) -> KernelSpec:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")
