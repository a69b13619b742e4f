"""Where a record comes from: code, versions, machine. No torch: what the model ran on is the caller's to add."""

import hashlib
import importlib.metadata
import os
import platform
import socket
import subprocess
from pathlib import Path

from tevlib.suite.paths import repository

PACKAGES = ("torch", "transformers", "safetensors", "datasets", "numpy", "papermill")


def provenance() -> dict:
    """Git commit and dirtiness, Python and package versions, CPU, hashed host name, Slurm job; JSON-ready."""
    commit = _git("rev-parse", "HEAD")
    return {
        "git_commit": commit,
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no")) if commit else None,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _version(name) for name in PACKAGES},
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count(),
        "host": hashlib.sha256(socket.gethostname().encode()).hexdigest()[:12],
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
    }


def cpu_model() -> str:
    """The processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Output of a git command in the repository; None without git or outside a clone."""
    try:
        run = subprocess.run(
            ["git", *arguments], cwd=repository(), capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
