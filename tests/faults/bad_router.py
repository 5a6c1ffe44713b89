"""What is done to the router itself: clients that leave, reloads, drains, no disk, no file descriptors, SIGTERM."""

import asyncio
import json
import os
import pathlib
import signal
import subprocess
import time

from bench import Fault
from rig import asks, metrics
from rig.aborts import STAGES, abort
from rig.exchange import Connection
from rig.processes import eventually

ABORTS = 1000
RELOADS = 1000


async def aborts(bench):
    rng = asks.seeded(7)
    before = (await bench.router.metrics())["prefix_router_client_aborts_total"][0][1]
    running = set()
    for number in range(ABORTS):
        running.add(task := asyncio.create_task(abort(bench.router.port, STAGES[number % len(STAGES)], rng)))
        task.add_done_callback(running.discard)
        await asyncio.sleep(0.01)
    while running:
        await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    counted = (await bench.router.metrics())["prefix_router_client_aborts_total"][0][1] - before
    bench.note(f"{ABORTS} aborts, {counted:.0f} of them after a whole head had come")
    bench.expect("aborts are counted", counted > ABORTS / 4, counted)
    await bench.load.pause()
    open_there = {replica.name: (await replica.seen())["open"] for replica in bench.replicas}
    bench.expect("no replica works for a client that has left", not any(open_there.values()), open_there)


def with_file(bench):
    """The replicas stand in a file, which is what a reload reads."""
    bench.file = bench.folder / "router.yaml"
    write_config(bench, 0)
    bench.fault.settings["config"] = str(bench.file)
    return []


def write_config(bench, number, replicas=None):
    """Differs in thresholds and weights each time, and lists the third replica every other time."""
    servers = bench.replicas if number % 2 == 0 else bench.replicas[:-1]
    text = f"concurrency_threshold: {64 + number % 100}\nreplicas:\n"
    for server in servers:
        text += f"  - {{url: '{server.url}', name: {server.name}, weight: {1 + number % 3}}}\n"
    # As a whole, so that nobody reads half of it.
    fresh = bench.file.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, bench.file)


async def reloads(bench):
    """A thousand signals, each after the file has changed."""
    await bench.post("/api/v1/reload")
    before = await times_reloaded(bench)
    for number in range(1, RELOADS + 1):
        write_config(bench, number)
        bench.router.signal(signal.SIGHUP)
        await asyncio.sleep(0.02)
    write_config(bench, 0)
    status, text = await bench.post("/api/v1/reload")
    bench.expect("the last reload is 200", status == 200, (status, text[:200]))
    if status == 200:
        bench.expect("it tells what it did", {"applied", "needs_restart"} <= set(json.loads(text)), text[:200])
    bench.file.write_text("no_such_key: 1\n")
    status, text = await bench.post("/api/v1/reload")
    bench.expect("a bad file is 422", status == 422, (status, text[:200]))
    write_config(bench, 0)
    times = await times_reloaded(bench) - before
    bench.note(f"read again {times:.0f} times")
    # Signals that come while it reads become one.
    bench.expect("it was read again and again", times > RELOADS / 10, times)
    await bench.warm_up(3)
    known = set(await bench.router.outstanding())
    bench.expect("all replicas are in the fleet at the end", known == {replica.name for replica in bench.replicas}, known)


async def times_reloaded(bench):
    return metrics.total(await bench.router.metrics(), "prefix_router_config_reloads_total")


async def changed_file(bench):
    """Nobody is told: the router sees by itself that the file has changed. What runs on a replica that leaves ends in peace."""
    await bench.post("/api/v1/reload")
    await bench.warm_up(3)
    leaver = bench.replicas[-1].name
    changed_at = time.monotonic()
    write_config(bench, 1)
    await eventually("a replica that the file has no more leaves", lambda: leaver not in bench.watch.seen[-1][1])
    bench.stop = bench.watch.stopped(leaver, changed_at)
    changed_at = time.monotonic()
    write_config(bench, 2)
    await eventually("it is back", lambda: bench.watch.resumed(leaver, changed_at) is not None)
    bench.resume = bench.watch.resumed(leaver, changed_at)
    bench.expect("changes are noticed within 5 s", max(bench.stop, bench.resume) <= 5, f"{bench.stop:.1f} s, {bench.resume:.1f} s")
    await bench.warm_up()


async def drains(bench):
    """One replica after the other is drained and taken back, as fast as it goes."""
    count, end = 0, time.monotonic() + 10
    while time.monotonic() < end:
        name = bench.replicas[count % len(bench.replicas)].name
        for what in ("drain", "undrain"):
            status, text = await bench.post(f"/api/v1/replicas/{name}/{what}")
            bench.expect(f"{what} is 200", status == 200, (status, text[:200]))
            await asyncio.sleep(0.03)
        count += 1
    bench.note(f"{count} times")
    await bench.warm_up()
    for replica in bench.replicas:
        bench.expect(f"{replica.name} is up at the end", bench.watch.state(replica.name) == "up", bench.watch.state(replica.name))


async def log_full(bench):
    await asyncio.sleep(4)
    bench.expect("it is served nevertheless", bench.load.count(asks.OK) > 0)


class SmallDisk:
    """A file system of 64 KiB."""

    def __init__(self, folder):
        self.folder = folder / "disk"
        self.folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", self.folder], check=True)

    name = "disk"

    async def start(self):
        pass

    def kill(self):
        subprocess.run(["umount", "--lazy", self.folder], check=False)


def small_disk(bench):
    disk = SmallDisk(bench.folder)
    bench.fault.router["stdout"] = (disk.folder / "log").open("wb")
    return [disk]


def to_full(bench):
    bench.fault.router["stdout"] = pathlib.Path("/dev/full").open("wb")
    return []


async def no_files(bench):
    """More connections than it has file descriptors for; then they go away."""
    await bench.warm_up()
    crowd, began_at = [], time.monotonic()
    for _ in range(600):
        try:
            crowd.append(await asyncio.wait_for(Connection.open("127.0.0.1", bench.router.port), 1))
        except (OSError, asyncio.TimeoutError):
            break
    await asyncio.sleep(3)
    bench.note(f"{len(crowd)} idle connections beside the load, {bench.router.files_open()} of {bench.router.files} descriptors in use")
    for one in crowd:
        one.close()
    over_at = time.monotonic()
    # While it cannot open a socket it cannot serve; what was sent meanwhile may have failed, or waited.
    bench.may_fail = bench.may_cut = lambda outcome: began_at <= outcome.sent_at <= over_at + 0.5
    await bench.warm_up(6)
    after = [outcome for outcome in bench.load.outcomes if outcome.sent_at > over_at + 0.5]
    bench.expect("it serves again", any(outcome.verdict == asks.OK for outcome in after))
    states = {replica.name: bench.watch.state(replica.name) for replica in bench.replicas}
    bench.expect("no replica is blamed for it at the end", set(states.values()) == {"up"}, states)


async def terminated(bench):
    """SIGTERM under load, most of it on connections that are kept. What the router has taken it ends; then it goes."""
    await bench.warm_up(3)
    at = time.monotonic()
    bench.router.signal(signal.SIGTERM)
    await asyncio.sleep(0.3)
    await bench.load.pause()
    code = await bench.router.process.ended(40)
    bench.stop = time.monotonic() - at
    bench.expect("it exits with 0", code == 0, code)
    log = bench.router.log.read_text(errors="replace")
    # A request that it never read is its client's to send again: the connection was closed while the request was on its way.
    bench.may_fail = lambda outcome: outcome.status is None and outcome.ask.id not in log
    not_taken = [outcome for outcome in bench.load.all(asks.FAILED) if bench.may_fail(outcome)]
    on_kept = sum(outcome.reused for outcome in not_taken)
    bench.note(f"{len(not_taken)} found it gone, {on_kept} of them on a connection that had been kept")


def replicas_alone(bench):
    return bench.named(*bench.replicas)


def only_root():
    return None if os.geteuid() == 0 else "needs root"


def needs_full():
    return None if pathlib.Path("/dev/full").exists() else "there is no /dev/full"


FAULTS = [
    Fault("1,000 client aborts", f"clients leave at: {', '.join(STAGES)}", aborts, rate=60),
    Fault("reload in a loop", f"{RELOADS} times SIGHUP, each time with another file", reloads, others=with_file, urls=lambda _: []),
    Fault("changed file", "a replica is taken out of the file, and put back; no signal", changed_file, others=with_file, urls=lambda _: []),
    Fault("drain in a loop", "drain and undrain of each replica in turn for 10 s", drains),
    Fault("log to /dev/full", "its standard output cannot be written", log_full, others=to_full, urls=replicas_alone, missing=needs_full),
    Fault("log disk full", "its standard output is on a full disk (tmpfs of 64 KiB)", log_full, others=small_disk, urls=replicas_alone, missing=only_root),
    Fault("no file descriptors", "200 descriptors, 600 idle connections for 3 s", no_files, router={"files": 200}, rate=60),
    Fault("SIGTERM under load", "the router is told to stop at 150 requests/s", terminated, ends_router=True),
]
