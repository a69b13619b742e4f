"""The doctor: what it finds on this machine, what it says is missing, and that it never ends in a traceback."""

import json
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from tevlib import cli
from tevlib.sources import assets
from tevlib.suite import doctor as module
from tevlib.suite import hub as hub_module
from tevlib.suite.devices import Gpu
from tevlib.suite.doctor import Check, examine, refused, report, wrong_packages
from tevlib.suite.hub import Hub

SLIDING = {"model_type": "gemma3_text", "sliding_window": 512, "num_hidden_layers": 12}
HYBRID = {"model_type": "qwen3_next", "num_hidden_layers": 4}
FULL = {"model_type": "qwen3", "num_hidden_layers": 4}


def found(checks: list[Check], name: str) -> Check:
    """The one check whose name starts so."""
    (check,) = [check for check in checks if check.name.startswith(name)]
    return check


@pytest.fixture
def tiny_profile(tiny, tmp_path):
    """Path of a profile that needs nothing but the tiny models."""
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"""
        defaults: {{target: "{tiny / "target"}", builder: best_first, dtype: float32, top_p: 1.0, top_k: 0, seed: 0,
                    max_new_tokens: 8, budgets: [4], suites: {{"{tiny / "chat.jsonl"}": {{prompts: 2}}}}}}
        tables: {{table4: {{drafters: {{original: "{tiny / "drafter-tiny"}"}}, verifiers: [tev], temperatures: [1.0]}}}}
        """
    )
    return str(path)


def test_what_can_be_run_is_exit_code_0(tiny_profile, home, capsys):
    """A profile whose models, prompts and packages are all here is possible; nothing is written."""
    assert cli.main(["doctor", "--profile", tiny_profile]) == 0
    said = capsys.readouterr().out
    assert "possible here" in said.splitlines()[-1] and "MISSING" not in said and not home.exists()


def test_a_target_file_with_spaces_in_its_path_is_no_hub_id(tiny_profile, tmp_path, home):
    """A GGUF file anywhere is looked for on the disk and not asked of the hub; one that is gone is missing."""
    path = tmp_path / "mine.yaml"
    target = tmp_path / "my models" / "a model.gguf"
    written = yaml.safe_load(Path(tiny_profile).read_text())
    written["defaults"]["target"] = str(target)
    path.write_text(yaml.safe_dump(written))
    assert not found(examine(str(path)), f"target {target}").ok
    target.parent.mkdir()
    target.write_bytes(b"GGUF")
    assert found(examine(str(path)), f"target {target}").ok


def test_the_paper_without_gpu_and_hub_is_exit_code_3(home, capsys, monkeypatch):
    """Within seconds, with no GPU and no hub: every target and drafter is listed with size, licence or command."""
    monkeypatch.setattr(module, "gpus", lambda: [])
    start = time.monotonic()
    assert cli.main(["doctor", "--profile", "paper"]) == 3
    assert time.monotonic() - start < 60
    said = capsys.readouterr().out
    for words in (
        "off, by HF_HUB_OFFLINE",
        "Qwen/Qwen3-Coder-30B-A3B-Instruct needs about 90.0 GB",
        "8.0 GB to download, by its name",
        "gated, no token here",
        "target google/gemma-4-12b-it",
        "objective=prefix",
        "not possible here: ",
    ):
        assert words in said
    assert said.count("20_train_drafter") == 8 and "Traceback" not in said


def test_a_bad_profile_is_one_line(capsys):
    """A mistyped profile is a user's mistake here as everywhere."""
    assert cli.main(["doctor", "--profile", "papr"]) == 2
    assert "did you mean 'paper'" in capsys.readouterr().err


def test_a_gpu_is_held_against_the_largest_target(tiny_profile, home, monkeypatch):
    """A card that is too small is missing, one that is large enough is not."""
    for memory, ok in ((96 << 30, True), (24 << 30, False)):
        monkeypatch.setattr(module, "gpus", lambda memory=memory: [Gpu("0", "GPU-aa", "H20", memory)])
        monkeypatch.setattr(module, "_torch_has_cuda", lambda: True)
        assert found(examine("paper"), "GPU").ok is ok
        assert found(examine(tiny_profile), "GPU").ok


@pytest.mark.parametrize(
    ("registered", "words"),
    [
        (sys.executable, "is the same"),
        ("python", "is the same"),
        ("/opt/other/bin/python", "is another one"),
    ],
)
def test_the_kernel_that_jupyter_would_start_is_named(tmp_path, monkeypatch, registered, words):
    """papermill#251: our runs use this interpreter whatever is registered; that a notebook opened by hand would run
    under another is said."""
    manager = {"ensure_native_kernel": False, "kernel_dirs": [str(tmp_path / "kernels")]}
    from jupyter_client import kernelspec

    original = kernelspec.KernelSpecManager
    monkeypatch.setattr(kernelspec, "KernelSpecManager", lambda: original(**manager))
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps({"argv": [registered, "-m", "x"], "display_name": "x"}))
    check = found(list(module._software()), "kernel")
    assert check.ok and sys.executable in check.found and words in check.found


def test_missing_data_are_named_with_their_size(home, tmp_path, monkeypatch):
    """An empty cache: the wheels that the profile's suites and target need, their megabytes and the command."""
    monkeypatch.setenv("TEVLIB_CACHE", str(tmp_path / "empty"))
    check = found(examine("smoke"), "offline data")
    assert not check.ok and assets.FETCH_COMMAND in check.remedy and "MB" in check.remedy


def test_packages_are_held_against_their_ranges():
    """A missing package and one out of its range are named; comments and options are no packages."""
    listed = "pytest>=1  # fine\n-r other.txt\n\npytest>=9999\nno-such-package-here\n"
    first, second = wrong_packages(listed)
    assert (
        first.startswith("pytest")
        and first.endswith("is not >=9999")
        and second == "no-such-package-here is not installed"
    )


@pytest.mark.parametrize(
    ("name", "configuration", "words"),
    [
        ("Qwen/Qwen3.5-4B", None, "recurrent state"),
        ("somebody/model", HYBRID, "linear_attention"),
        ("somebody/model", SLIDING, None),
        ("google/gemma-4-12b-it", None, None),
        ("somebody/model", {"model_type": "no_such_kind"}, "no_such_kind"),
        ("google/gemma-4-12b-it", FULL, None),
        ("Qwen/Qwen3-4B", None, None),
    ],
)
def test_refused_targets_are_known_before_they_are_loaded(name, configuration, words):
    """By the configuration where it is here, by the family's name otherwise."""
    reason = refused(name, configuration)
    assert (reason is None) if words is None else words in reason


def test_the_report_says_what_is_missing_and_what_to_do():
    """One line a check, a remedy below what is missing, a verdict last."""
    lines = report(
        [Check("a", True, "fine"), Check("b", False, "gone", "get it"), Check("c", False, "no", refused=True)]
    )
    assert [line.split()[0] for line in lines[:4]] == ["ok", "MISSING", "->", "REFUSED"]
    assert lines[-1] == "not possible here: 2 of 3 things are missing"


@pytest.fixture
def a_hub(monkeypatch, tmp_path):
    """A hub of our own on this machine: two models, one of them gated; counts the requests."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            name = "/".join(self.path.split("?")[0].split("/")[3:5])
            sizes = {"some/open-4B": False, "some/closed-4B": "manual"}
            self.send_response(200 if name in sizes else 404)
            if name not in sizes:
                self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()
            files = [{"rfilename": "model.safetensors", "size": 123_000_000}, {"rfilename": "README.md", "size": 1}]
            body = {"id": name, "gated": sizes.get(name, False), "siblings": files, "private": False, "tags": []}
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *arguments):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Hub(True, "can be reached", tmp_path / "hub", False), f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_a_reachable_hub_is_asked_for_sizes_and_licences(a_hub, monkeypatch):
    """The hub's own sizes go before a guess by name; a gated model and one that is not there are told apart; each model
    is asked for once."""
    hub, address, asked = a_hub
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    api = huggingface_hub.HfApi
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api(endpoint=address))
    opened, closed, absent = (hub.facts(f"some/{name}") for name in ("open-4B", "closed-4B", "absent-4B"))
    assert (opened.size, opened.exact, opened.gated) == (123_000_000, True, False) and closed.gated
    assert "no such model" in absent.error
    assert hub.facts("some/open-4B") is opened and len(asked) == 3


def test_a_hub_that_does_not_answer_is_given_up(monkeypatch):
    """No connection within seconds, and a refused one at once: not reachable, with the reason, never an exception."""
    start = time.monotonic()
    assert hub_module._connects("http://127.0.0.1:9")[0] is False
    monkeypatch.setattr(hub_module, "PATIENCE_S", 0.2)
    monkeypatch.setattr(hub_module.socket, "create_connection", lambda *address: time.sleep(1) or socket.socket())
    reachable, why = hub_module._connects("http://a.name:80")
    assert not reachable and "no answer in 0.2 s" in why and time.monotonic() - start < 4


def test_what_is_in_the_hub_s_cache_is_here(tmp_path):
    """A snapshot with configuration and weights counts as here, one without weights does not."""
    hub = Hub(False, "off", tmp_path, False)
    for name, files in (("a/whole", ("config.json", "model.safetensors")), ("a/part", ("config.json",))):
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text("r1")
        (folder / "snapshots" / "r1").mkdir(parents=True)
        for file in files:
            (folder / "snapshots" / "r1" / file).write_text(json.dumps(FULL))
    assert hub.cached("a/whole") and not hub.cached("a/part") and not hub.cached("a/absent")
    assert hub.configuration("a/part") == FULL and hub.configuration("a/absent") is None
