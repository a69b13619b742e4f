"""One company of cells as a cluster runs it, and Snakemake over all of them: the same records as the serial queue."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tevlib import cli
from tevlib.suite.paths import repository
from tevlib.suite.plan import companies, distinct, make_plan
from tevlib.suite.profile import load_profile
from tevlib.suite.records import outcome, record_path, write_failure, write_record

SNAKEMAKE = shutil.which("snakemake", path=str(Path(sys.executable).parent)) or shutil.which("snakemake")
needs_snakemake = pytest.mark.skipif(SNAKEMAKE is None, reason="NO SNAKEMAKE: pip install -r requirements-cluster.txt")
CLOCK = {"wall_s", "started_at", "provenance"}  # of a record
TIMES = {"ar_s", "ar_prefill_s", "spec_s", "prefill_s", "stage_s"}  # of a response


@pytest.fixture
def profile(tiny, tmp_path):
    """Path of a profile of six cells in three companies: two methods at three temperatures."""
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"""
        defaults: {{target: "{tiny / "target"}", builder: best_first, dtype: float32, top_p: 1.0, top_k: 0, seed: 0,
                    max_new_tokens: 6, suites: {{"{tiny / "chat.jsonl"}": {{prompts: 1}}}}}}
        tables:
          table5:
            methods:
              ddtree: {{drafter: "{tiny / "drafter-tiny"}", verifier: predraw}}
              exit: {{drafter: "{tiny / "drafter-tiny"}", verifier: tev}}
            budgets: [4]
            temperatures: [0.0, 0.5, 1.0]
        """
    )
    return str(path)


@pytest.fixture
def slurm():
    """A Slurm whose controller answers; the test is left out, with a word, where there is none."""
    if not all(shutil.which(name) for name in ("sinfo", "sbatch", "squeue")):
        pytest.skip("NO SLURM: apt-get install slurm-wlm munge, and docs/cluster.md for one machine")
    asked = subprocess.run(["timeout", "15", "sinfo", "-h"], capture_output=True, text=True)
    if not asked.stdout.strip():
        pytest.skip(f"NO SLURM: its controller does not answer: {asked.stderr.strip()}")


def snakemake(profile: str, executor: str, *more: str) -> list[str]:
    """The command that the docs give, with this interpreter."""
    rules, settings = repository() / "cluster" / "Snakefile", repository() / "cluster" / "profiles" / executor
    command = [SNAKEMAKE, "-s", str(rules), "--profile", str(settings), *more]
    return [*command, "--config", f"profile={profile}", f"python={sys.executable}"]


def environment() -> dict:
    return os.environ | {"PYTHONPATH": str(repository())}


def content(record: dict) -> dict:
    """A record without what a clock or the company it was run in decides."""
    kept = {name: value for name, value in record.items() if name not in CLOCK | {"metrics", "beside"}}
    rows = [{k: v for k, v in row.items() if k not in TIMES} for row in record["responses"]]
    tokens = {name: record["metrics"][name] for name in ("tau", "tau_pooled", "ceiling", "audit_z", "tokens", "rounds")}
    return kept | {"responses": rows, "metrics": tokens}


def test_a_job_runs_its_company_and_nothing_else(profile, home, capsys):
    """`cell HASH` leaves the records of the cells beside that one, none of any other, and runs nothing twice."""
    cells = load_profile(profile)
    first = companies(distinct(cells))[0]
    assert cli.main(["cell", first[1].hash12(), "--profile", profile]) == 0
    assert [outcome(cell)["status"] for cell in cells].count("finished") == 2
    assert all(outcome(cell)["status"] == "finished" for cell in first)
    assert cli.main(["cell", first[0].hash12(), "--profile", profile]) == 0
    assert "0 cells run, 2 were finished already" in capsys.readouterr().out


def test_a_job_s_failure_is_its_exit_code(profile, home, monkeypatch, capsys):
    """A cell without a record at the end, and a hash that is no cell's (the code changed), never end with 0."""
    monkeypatch.setattr("tevlib.suite.batch.run_notebook", lambda *arguments, **options: None)
    cell = load_profile(profile)[0]
    assert cli.main(["cell", cell.hash12(), "--profile", profile]) == 1
    assert cli.main(["cell", "0123456789ab", "--profile", profile]) == 2
    assert "no cell '0123456789ab'" in capsys.readouterr().err


def test_a_job_asks_for_what_its_target_needs():
    """A 4B target asks for a GPU and its memory, a laptop's for none; time is three times the estimate, half an hour
    at least."""
    job = next(job for job in make_plan("paper", ["table4"]).jobs if job.todo)
    assert job.gpus == 1 and job.memory == int(1.5 * 8e9) and job.minutes > 30
    small = make_plan("smoke", ["table4"]).jobs[0]
    assert small.gpus == 0 and small.minutes == 30 and small.memory >= 1e9


@pytest.mark.slow
def test_a_runner_on_each_of_two_gpus(profile, home, tmp_path):
    """`--devices 0,1` with a driver that lists two cards: two processes share the cells, each is done once, the summary
    counts them all, and a second call finds nothing to do."""
    driver = tmp_path / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text("#!/bin/sh\nprintf '0, GPU-aa, fake, 1000\\n1, GPU-bb, fake, 1000\\n'\n")
    driver.chmod(0o755)
    command = [sys.executable, "-m", "tevlib", "run", "--profile", profile, "--devices", "0,1"]
    paths = {"PATH": f"{driver.parent}:{os.environ['PATH']}"}
    said = [
        subprocess.run(command, env=environment() | paths, cwd=tmp_path, capture_output=True, text=True, timeout=500)
        for _ in range(2)
    ]
    assert [run.returncode for run in said] == [0, 0], said[0].stdout + said[0].stderr
    assert "6 cells run, 0 were finished already, 0 failed" in said[0].stdout
    assert "0 cells run, 6 were finished already, 0 failed" in said[1].stdout
    held = {path.name.rsplit("-", 2)[-1] for path in (home / "runs" / ".locks").glob("device-*")}
    assert held == {"aa.lock", "bb.lock"} and len(list((home / "runs" / "tiny").glob("*.ipynb"))) == 3


@needs_snakemake
def test_a_profile_is_given_to_jobs_by_its_full_path(home):
    """Jobs run in a folder of their own, where a relative path would mean another file: it is refused at once."""
    home.mkdir(parents=True)
    run = subprocess.run(
        snakemake("mine.yaml", "local", "-n"), env=environment(), cwd=home, capture_output=True, text=True, timeout=240
    )
    assert run.returncode != 0 and "full path" in run.stdout + run.stderr


@needs_snakemake
def test_jobs_are_the_unfinished_companies(profile, home, record_of):
    """A dry run plans one job for each company with something to do, none for a finished one, and a marker without its
    records is no reason to skip one."""
    cells = load_profile(profile)
    first, second, third = companies(distinct(cells))
    for cell in first:
        write_record(record_path(cell), record_of(cell))
    write_failure(record_path(second[0]), {"error": "boom"})
    marker = home / "runs" / "cluster" / "done" / third[0].hash12()
    marker.parent.mkdir(parents=True)
    marker.touch()
    run = subprocess.run(
        snakemake(profile, "local", "-n"), env=environment(), cwd=home, capture_output=True, text=True, timeout=240
    )
    said = run.stdout + run.stderr
    assert run.returncode == 0, said
    planned = {company[0].hash12() for company in (first, second, third) if f"company={company[0].hash12()}" in said}
    assert planned == {second[0].hash12(), third[0].hash12()} and not marker.exists()


@needs_snakemake
@pytest.mark.slow
def test_snakemake_is_killed_and_goes_on(profile, home, monkeypatch, tmp_path):
    """kill -9 of Snakemake and of the job it runs: the finished cells stay, the same command runs the rest alone, and
    every record is the serial queue's but for times."""
    _killed_and_resumed(profile, "local", home)
    _same_as_serial(profile, tmp_path, monkeypatch)


@needs_snakemake
@pytest.mark.slow
def test_slurm_runs_the_same_cells(slurm, profile, home, monkeypatch, tmp_path):
    """Batch jobs of a real Slurm, Snakemake killed in the middle and started again: the serial queue's records."""
    _killed_and_resumed(profile, "slurm", home, "--slurm-init-seconds-before-status-checks", "5")
    _same_as_serial(profile, tmp_path, monkeypatch)


def _killed_and_resumed(profile: str, executor: str, home: Path, *more: str) -> None:
    results, log = home / "data" / "results", home / "log"
    home.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        first = subprocess.Popen(
            snakemake(profile, executor, *more), env=environment(), cwd=home, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + 400
        while not list(results.glob("*.json")):
            assert first.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    before = {path.name: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert len(before) < 6, "nothing was left to do: killed too late"
    again = subprocess.run(
        snakemake(profile, executor, *more), env=environment(), cwd=home, capture_output=True, text=True, timeout=600
    )
    assert again.returncode == 0, again.stdout + again.stderr
    after = {path.name: path.stat().st_mtime_ns for path in results.glob("*.json")}
    assert len(after) == 6 and all(after[name] == stamp for name, stamp in before.items())


def _same_as_serial(profile: str, tmp_path: Path, monkeypatch) -> None:
    cells = load_profile(profile)
    by_cluster = [content(json.loads(record_path(cell).read_text())) for cell in cells]
    monkeypatch.setenv("TEVLIB_HOME", str(tmp_path / "serial"))
    assert cli.main(["run", "--profile", profile]) == 0
    assert [content(json.loads(record_path(cell).read_text())) for cell in cells] == by_cluster
