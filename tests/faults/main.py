"""Runs the faults one after the other and prints the table."""

import argparse
import asyncio
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import bad_network
import bad_replicas
import bad_router
import deaths
from bench import Bench, Missing
from rig import table

FAULTS = [*deaths.FAULTS, *bad_replicas.FAULTS, *bad_network.FAULTS, *bad_router.FAULTS]
HEAD = [
    "fault", "what was done", "requests", "failed before the first byte", "cut in mid-stream", "answered twice",
    "time to stop sending", "time to resume sending", "counts at the end", "held", "remarks",
]  # fmt: skip


async def run_one(fault, arguments):
    """(row, problems)."""
    name = [fault.name, fault.done]
    if reason := fault.missing():
        return [*name, *["–"] * 7, "not run", reason], []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        folder = pathlib.Path(folder)
        bench = Bench(fault, arguments.router, folder)
        try:
            async with bench:
                await fault.act(bench)
        except Missing as error:
            return [*name, *["–"] * 7, "not run", f"the router lacks it: {error}"], [f"the router lacks it: {error}"]
        except (AssertionError, OSError, asyncio.TimeoutError) as error:
            bench.problems.append(f"{type(error).__name__}: {error}")
        if bench.problems and arguments.logs:
            kept = arguments.logs / "".join(sign if sign.isalnum() else "-" for sign in fault.name)
            shutil.copytree(folder, kept, dirs_exist_ok=True)
        times = [table.seconds(bench.stop), table.seconds(bench.resume)]
        held = "no" if bench.problems else "yes"
        return [*name, *bench.row(), *times, bench.end_counts, held, "; ".join(bench.notes)], bench.problems


async def run_all(arguments):
    chosen = [fault for fault in FAULTS if not arguments.names or any(fault.name.startswith(name) for name in arguments.names)]
    if not chosen:
        sys.exit(f"no fault's name begins with any of {arguments.names}; --list says which there are")
    rows, failures = [], []
    for fault in chosen:
        start = time.monotonic()
        row, problems = await run_one(fault, arguments)
        rows.append(row)
        print(f"{row[9]:7}  {fault.name}  ({time.monotonic() - start:.0f} s)  {row[10]}", flush=True)
        for problem in problems:
            print(f"           {problem}", flush=True)
            failures.append(f"{fault.name}: {problem}")
    print("", table.text([*HEAD[:1], *HEAD[2:]], [[*row[:1], *row[2:]] for row in rows]), "", sep="\n")
    markdown = table.markdown(HEAD, rows)
    print(markdown)
    if arguments.table:
        arguments.table.write_text(markdown + "\n")
    not_run = [f"{row[0]}: {row[10]}" for row in rows if row[9] == "not run"]
    if not_run:
        print("", "Not run:", *not_run, sep="\n  ")
    if failures:
        print("", "What did not hold:", *failures, sep="\n  ")
    return not failures


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.list:
        for fault in FAULTS:
            print(f"{fault.name:32}{fault.done}")
        return
    sys.exit(not asyncio.run(run_all(arguments)))


main()
