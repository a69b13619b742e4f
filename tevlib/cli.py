"""`python -m tevlib ...`: a thin door to sources, suite and report. What a command needs is imported when it runs."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from tevlib import __version__
from tevlib.suite.names import TABLES, check_name, did_you_mean

EXIT_FAILED, EXIT_USER_ERROR, EXIT_NOT_POSSIBLE, EXIT_INTERRUPTED = 1, 2, 3, 130
NUMBERS = [table.removeprefix("table") for table in TABLES]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of a command line: 0 done, 1 cells failed, 2 a bad request (one line says what), 3 not all of it is
    possible here or yet, 130 Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is not None and first not in COMMANDS:  # argparse would list the commands, and guess none
        parser.error(f"unknown command {first!r}; known: {', '.join(COMMANDS)}{did_you_mean(first, COMMANDS)}")
    options = parser.parse_args(arguments)
    try:
        return options.command(options)
    except KeyboardInterrupt:
        print("\ninterrupted; what is finished is kept, the same command goes on from there", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if options.traceback or (error.name or "").startswith("tevlib"):
            raise
        where = (
            "use the one that make has set up, .venv/bin/python, or pip install -c constraints.txt -r requirements.txt"
        )
        print(f"error: {sys.executable} has no package {error.name}: {where}", file=sys.stderr)
        return EXIT_USER_ERROR
    except (ValueError, OSError, RuntimeError) as error:
        if options.traceback:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_USER_ERROR


def fetch(options: argparse.Namespace) -> int:
    """Bring the offline prompts and the laptop target into the cache."""
    from tevlib.sources.assets import cache_dir
    from tevlib.sources.assets import fetch as fetch_assets

    paths = fetch_assets(options.names or None)
    print(f"{len(paths)} files in {cache_dir()}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run every unfinished cell of a profile, then write its tables, figures and report, and print the tables."""
    from tevlib.suite.batch import CELL_TIMEOUT_S, run_cells, run_on_each
    from tevlib.suite.devices import devices

    if options.dry_run:
        return plan(options)
    todo, how = _cells(options), {"keep_going": not options.fail_fast, "timeout": options.timeout or CELL_TIMEOUT_S}
    found = devices(options.devices)
    several = options.devices is not None or "CUDA_VISIBLE_DEVICES" in os.environ
    summary = run_on_each(todo, found, **how) if several else run_cells(todo, devices=found, **how)
    _write_tables(options)
    _write_report(options.profile)
    return _said(summary, options)


def cell(options: argparse.Namespace) -> int:
    """Run the cells that are decoded side by side with one cell, and no others: the unit of work of a cluster."""
    from tevlib.suite.batch import CELL_TIMEOUT_S, run_cells
    from tevlib.suite.plan import company_of

    company = company_of(_cells(options), options.hash)
    return _said(run_cells(company, timeout=options.timeout or CELL_TIMEOUT_S), options)


def decode(options: argparse.Namespace) -> int:
    """Decode one cell and those beside it in all the processes that were launched, prompts dealt out."""
    from tevlib.suite.decode_together import decode_together
    from tevlib.suite.plan import company_of
    from tevlib.suite.processes import launched

    try:
        done = decode_together(company_of(_cells(options), options.hash), options.device_map)
    finally:
        state = launched()
        state.destroy_process_group()
    if state.is_main_process:
        print(f"{len(done)} cells decoded by {state.num_processes} processes")
    return 0


def plan(options: argparse.Namespace) -> int:
    """List the cells of a profile with their state, the notebook runs they make, and about how long those take."""
    from tevlib.suite.plan import describe, make_plan

    found = make_plan(options.profile, _tables(options))
    for cell, hash12, state in found.cells:
        print(f"{hash12}  {state:16}  {cell.table}  {cell}")
    print("", *describe(found), sep="\n")
    return 0


def doctor(options: argparse.Namespace) -> int:
    """Check, before anything starts, whether a profile can be run here, and say what each missing thing costs."""
    from tevlib.suite.doctor import examine, report

    found = examine(options.profile, _tables(options))
    print(*report(found), sep="\n")
    return 0 if all(check.ok for check in found) else EXIT_NOT_POSSIBLE


def rehearse(options: argparse.Namespace) -> int:
    """Run every training, cell and table of a profile in minutes, on tiny random models, in a folder of its own."""
    from tevlib.report.rehearsed import perform

    outcome, lines = perform(options.profile, _tables(options), options.tokenizers)
    print("", *lines, sep="\n")
    for fault in outcome.faults:
        print(f"failed: {fault}", file=sys.stderr)
    return EXIT_FAILED if outcome.faults else 0


def table(options: argparse.Namespace) -> int:
    """Write and print a table from the records that there are."""
    options.tables = [[options.number]]
    _write_tables(options)
    return 0


def report(options: argparse.Namespace) -> int:
    """Write every figure and one self-contained HTML page of a profile from the records that there are."""
    _write_report(options.profile, options.output)
    return 0


def collect(options: argparse.Namespace) -> int:
    """Write all results of a profile to one table of cells and one of rounds, for other software."""
    from tevlib.suite.collect import collect as collect_profile

    paths, states = collect_profile(options.profile)
    print(*paths, sep="\n")
    print(", ".join(f"{count} {state}" for state, count in states.items()))
    return 0


def notebook(options: argparse.Namespace) -> int:
    """Run one notebook with parameters."""
    import nbformat

    from tevlib.suite.notebook import notebook_path, run_notebook
    from tevlib.suite.parameters import declared, from_text

    path = notebook_path(options.name)
    known = declared(nbformat.read(path, as_version=4), path.name)
    if options.parameters_help:
        for parameter in known.values():
            print(f"{parameter.name} = {parameter.default!r}  # {parameter.help}")
        return 0
    values = {}
    for pair in options.parameter:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"a parameter is written name=value, got {pair!r}")
        values[name] = from_text(text, known[check_name(f"parameter of {path.name}", name, known)])
    output = run_notebook(path, values, options.output, timeout=options.timeout, progress=True)
    print(f"{output} (open it in JupyterLab; what it printed is in {output.with_suffix('.log').name} beside it)")
    return 0


def export(options: argparse.Namespace) -> int:
    """Write a notebook as one offline HTML file with interactive tree explorers; run it first if it has no outputs."""
    from tevlib.report.export import export_notebook

    path, explorers = export_notebook(options.name, options.output)
    print(f"{path} ({path.stat().st_size / 1e6:.1f} MB, {explorers} interactive explorer{'s' * (explorers != 1)})")
    return 0


def export_drafter(options: argparse.Namespace) -> int:
    """Write a drafter's folder ready for a model hub, with whole weights and a card, and print how to serve it."""
    from tevlib.suite.export_drafter import export_drafter as write
    from tevlib.suite.paths import from_repository

    made = write(
        from_repository(options.folder),
        options.out,
        repo_id=options.repo_id,
        licence=options.licence,
        base_model=options.base_model,
    )
    for name, size in made.files.items():
        print(f"{made.folder / name}  {size:,} bytes")
    print(*made.notes, sep="\n", end="\n" if made.notes else "")
    for server, command in made.commands.items():
        print(f"\n{server}:\n    {command}")
    if options.repo_id:
        print(f"\nupload it first:\n    hf upload {options.repo_id} {shlex.quote(str(made.folder))}")
    return 0


def record(options: argparse.Namespace) -> int:
    """Decode a prompt or more of each suite and keep the rounds for the tree explorer."""
    from tevlib.explorer.recording import save_recording
    from tevlib.suite.paths import from_repository
    from tevlib.suite.record_trees import record_suites

    recording = record_suites(
        options.target,
        options.drafters,
        answers=options.prompts,
        budget=options.budget,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens,
    )
    path = save_recording(recording, from_repository(options.output))
    rounds = sum(len(answer["rounds"]) for answer in recording["answers"])
    print(f"{path}: {len(recording['answers'])} answers, {rounds} rounds, {path.stat().st_size / 1e3:.0f} kB")
    return 0


COMMANDS = {
    "fetch": (fetch, "bring the offline prompts and the laptop target into the cache"),
    "run": (run, "run the unfinished cells of a profile, then write tables, figures and report"),
    "plan": (plan, "list the cells of a profile with their state, and about how long they take"),
    "doctor": (doctor, "check whether a profile can be run here, and what is missing"),
    "rehearse": (rehearse, "run all of a profile in minutes, on tiny random models, before hours are paid for"),
    "cell": (cell, "run one cell and those decoded beside it: what a cluster's jobs call"),
    "decode": (decode, "decode one cell with several processes, each its share of the prompts"),
    "table": (table, "write and print a table from the records that there are"),
    "report": (report, "write the figures and one HTML page from the records that there are"),
    "collect": (collect, "write all results of a profile to data/collected, as Parquet and CSV"),
    "notebook": (notebook, "run one notebook with parameters"),
    "export": (export, "write a notebook as one offline HTML file with interactive trees"),
    "export-drafter": (export_drafter, "write a drafter ready for a model hub, and print how to serve it"),
    "record": (record, "record rounds of real prompts for the tree explorer"),
}


def _cells(options: argparse.Namespace) -> list:
    """The planned cells of the tables that were asked for; of all that the profile has, where none was named."""
    from tevlib.suite.profile import load_profile

    return load_profile(options.profile, tables=_tables(options))


def _tables(options: argparse.Namespace) -> list[str] | None:
    """The tables that were asked for, as `--tables 1 4` or `--tables 1,4`; None for all."""
    numbers = dict.fromkeys(number for some in options.tables or () for number in some)
    return [f"table{number}" for number in numbers] or None


def _said(summary, options: argparse.Namespace) -> int:
    """Print what a batch did, how to make what it waits for, and what failed; the exit code."""
    from tevlib.suite.plan import to_be_trained
    from tevlib.suite.profile import load_trained

    print(f"\n{summary}")
    for folder, command in to_be_trained(summary.impossible, load_trained(options.profile)).items():
        print(f"not possible yet: {folder} is not there; train it with\n    {command}")
    for cell, error in summary.failures:
        print(f"failed: {cell}: {error}", file=sys.stderr)
    if summary.failures:
        return EXIT_FAILED
    return EXIT_NOT_POSSIBLE if summary.impossible else 0


def _write_tables(options: argparse.Namespace) -> None:
    from tevlib.report.build import brief, build_table, write_table
    from tevlib.report.files import as_text
    from tevlib.suite.paths import home
    from tevlib.suite.records import outcome

    planned = _cells(options)
    for name in dict.fromkeys(cell.table for cell in planned):
        found = build_table(name, [outcome(cell) for cell in planned if cell.table == name])
        paths = write_table(found, home() / "data" / "tables")
        print("\n" + found.attrs["caption"], *as_text(brief(found)), sep="\n\n")
        print("\nevery suite, verdicts and audit:", *(str(path) for path in paths))
        print("records:", home() / "data" / "results")
    print("notebooks as they ran:", home() / "runs" / planned[0].profile)


def _write_report(profile: str, output: str | None = None) -> None:
    from tevlib.report.page import write_report

    print(f"\n{write_report(profile, output)}")


def _one_of(kind: str, known: Sequence[str]):
    """An argparse type for names: unknown ones are answered with the nearest known one."""

    def convert(text: str) -> str:
        try:
            return check_name(kind, text, known)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tevlib", description="Exit-guided speculative decoding.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("--traceback", action="store_true", help="show where an error came from")
    names = parser.add_subparsers(title="commands", required=True, metavar="command")
    made = {}
    for name, (function, text) in COMMANDS.items():
        made[name] = names.add_parser(name, help=text, description=function.__doc__)
        made[name].set_defaults(command=function)
    made["fetch"].add_argument("names", nargs="*", help="wheels to bring (default: all)")
    for name in ("run", "plan", "doctor", "rehearse", "cell", "decode", "table", "report", "collect"):
        made[name].add_argument(
            "--profile", default="laptop", help="smoke, laptop (the default), paper, or a YAML file"
        )
    for name in ("run", "plan", "doctor", "rehearse", "cell", "decode"):
        tables = made[name].add_argument("--tables", nargs="+", help="1,4 or 1 4 (default: all that the profile has)")
        tables.type = lambda text: [_one_of("table", NUMBERS)(number) for number in text.split(",")]
    made["table"].add_argument("number", type=_one_of("table", NUMBERS), help="1 to 5")
    made["run"].add_argument("--dry-run", action="store_true", help="as plan: list the cells, run nothing")
    made["run"].add_argument("--devices", help="0,1: a runner on each of these GPUs at once; cpu: none (default: one "
                             "runner, or one for each GPU of $CUDA_VISIBLE_DEVICES)")  # fmt: skip
    made["rehearse"].add_argument("--tokenizers", type=Path, help="folder of real ones, each named as its model")
    for name in ("cell", "decode"):
        made[name].add_argument("hash", help="hash of a cell, as plan lists it")
    made["decode"].add_argument("--device-map", help="auto or balanced: one target over all GPUs, for one process")
    after_failure = made["run"].add_mutually_exclusive_group()
    after_failure.add_argument("--keep-going", action="store_true", help="go on after a cell that fails (the default)")
    after_failure.add_argument("--fail-fast", action="store_true", help="stop at the first cell that fails")
    for name in ("run", "cell", "notebook"):
        made[name].add_argument("--timeout", type=float, help="seconds that one notebook cell may take")
    made["report"].add_argument("--output", help="where the page goes (default: runs/<profile>/report.html)")
    made["notebook"].add_argument("name", help="a notebook of notebooks/, or a path")
    made["notebook"].add_argument("parameter", nargs="*", default=[], help="name=value")
    made["export"].add_argument("name", help="a notebook of notebooks/, or a path")
    made["export"].add_argument("--output", help="where the page goes (default: runs/<name>.html)")
    made["export-drafter"].add_argument("folder", help="of a drafter, from the repository's root where relative")
    made["export-drafter"].add_argument("out", help="a new folder")
    made["export-drafter"].add_argument("--repo-id", help="owner/name that it will have on the hub")
    made["export-drafter"].add_argument(
        "--licence", "--license", help="apache-2.0, ... (default: what its card states)"
    )
    made["export-drafter"].add_argument("--base-model", help="hub id of its target (default: what its card states)")
    made["record"].add_argument("--drafters", nargs="+", default=["data/drafters/smollm2-135m-base"], metavar="DRAFTER",
                                help="the first writes the text, the others only draw their trees beside")  # fmt: skip
    made["record"].add_argument("--target", default="SmolLM2-135M-Instruct", help="hub id, folder or GGUF file")
    made["record"].add_argument("--prompts", type=int, default=1, help="prompts of each suite (default: 1)")
    made["record"].add_argument("--budget", type=int, default=64, help="draft tokens in a tree (default: 64)")
    made["record"].add_argument("--temperature", type=float, default=0.6, help="of the target (default: 0.6)")
    made["record"].add_argument("--max-new-tokens", type=int, default=24, help="length of an answer (default: 24)")
    made["record"].add_argument("--output", default="data/trees/rounds.json.gz", help="where the recording goes")
    made["notebook"].add_argument("--output", help="where the executed notebook goes (default: runs/<name>.ipynb)")
    made["notebook"].add_argument("--parameters-help", action="store_true", help="list the notebook's parameters")
    return parser
