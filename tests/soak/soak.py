"""Mixed load for a long time, with all that happens in a router's life; a table of what the router held, and what has to hold."""

import argparse
import asyncio
import collections
import contextlib
import csv
import json
import os
import pathlib
import random
import re
import signal
import statistics
import sys
import tempfile
import time

from rig import asks, table
from rig.aborts import STAGES, abort
from rig.load import Load, percentile
from rig.metrics import Watch, total
from rig.processes import Replica, Router

RATE = 60
SAMPLE_EVERY = 10
# Memory is looked at when this share of the time is over: before, caches, pools and the allocator's arenas still fill.
WARM_UP = 0.25
# The median of the last quarter may be above that of the second by so much. An allocator keeps what a peak needed once, so it is not zero.
MEMORY_TOLERANCE = 2 * 2**20
MEMORY_SHARE = 0.05
# Shorter runs are for trying the script; memory is told and not judged.
SHORTEST = 10
# Gauges that the router may have besides; each is told where it is there, and has to be back at the end.
GAUGES = re.compile(r"^prefix_router_(?!process_|outstanding|replica_|discovery_|build_)\w*(tasks|buffer|queue|connections|waiting)\w*$")

NO_GAUGES = ("_total", "_bucket", "_sum", "_count")


class Soak:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.seconds = arguments.minutes * 60
        self.problems = []
        self.samples = []
        self.counts = collections.Counter()
        # (replica, when it was killed)
        self.deaths = []
        self.rng = random.Random(11)
        self.lacks = set()

    async def run(self):
        self.replicas = [Replica(self.arguments.router, self.folder, name) for name in "abc"]
        self.file = self.folder / "router.yaml"
        self.write_config(0)
        # A minute's access log of such load is megabytes, and what is written to it is not what is looked at here.
        self.router = Router(self.arguments.router, self.folder, [], config=self.file, access_log="false")
        watch = None
        tasks = []
        try:
            for replica in self.replicas:
                await replica.start()
            await self.router.start()
            await asyncio.sleep(2)
            self.rest_before = await self.look()
            watch = Watch(self.router)
            self.load = Load(self.router.port, RATE, mix=asks.MIX)
            self.begin = time.monotonic()
            actors = [self.sample, self.disturb, self.leave, self.ask_badly, self.ask_largely, self.read_slowly]
            tasks = [asyncio.create_task(actor()) for actor in actors]
            await asyncio.sleep(self.seconds)
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, Exception) and not isinstance(outcome, asyncio.CancelledError):
                    self.problems.append(f"an actor ended: {outcome!r}")
            await self.load.stop()
            watch.stop()
            await asyncio.sleep(8)
            self.rest_after = await self.look()
            self.judge()
        finally:
            for task in tasks:
                task.cancel()
            if watch:
                watch.stop()
            self.router.kill()
            for replica in self.replicas:
                replica.kill()
        self.tell()
        return not self.problems

    def write_config(self, number):
        text = f"concurrency_threshold: {64 + number % 10}\nreplicas:\n"
        for replica in self.replicas:
            text += f"  - {{url: '{replica.url}', name: {replica.name}, weight: {1 + number % 2}}}\n"
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        os.replace(fresh, self.file)

    async def look(self):
        samples = await self.router.metrics()
        gauges = {name: total(samples, name) for name in samples if GAUGES.match(name) and not name.endswith(NO_GAUGES)}
        return {
            "memory": self.router.resident(), "descriptors": self.router.files_open(), "threads": self.router.threads(),
            "outstanding": int(total(samples, "prefix_router_outstanding")), **gauges,
        }  # fmt: skip

    # What happens all the time.

    async def sample(self):
        while True:
            await asyncio.sleep(SAMPLE_EVERY)
            self.samples.append((time.monotonic() - self.begin, await self.look()))
            # Outcomes are thousands a minute; what was well is only counted.
            self.fold()
            if len(self.samples) % 6 == 0:
                now = self.samples[-1][1]
                print(f"{self.samples[-1][0] / 60:5.1f} min  {now['memory'] / 2**20:.1f} MiB  {now['descriptors']} descriptors  {dict(self.counts)}", flush=True)

    def fold(self):
        load = self.load
        for outcome in load.outcomes:
            self.counts[outcome.verdict] += 1
            if outcome.verdict == asks.CUT and not self.died_with_its_replica(outcome) or outcome.verdict in (asks.FAILED, asks.TWICE, asks.WRONG):
                at = outcome.ended_at - self.begin
                self.problems.append(f"{outcome.verdict} at {at:.1f} s: {outcome.ask.kind} on {outcome.replica}: {outcome.why}")
        self.waits = percentile([outcome.to_first_byte for outcome in load.outcomes if outcome.to_first_byte], 0.99)
        load.outcomes.clear()

    def died_with_its_replica(self, outcome):
        return any(outcome.replica == name and outcome.first_byte_at <= died + 0.1 and abs(outcome.ended_at - died) < 2 for name, died in self.deaths)

    async def disturb(self):
        """Each minute a replica dies and comes back, the configuration changes, and a replica is drained for a while."""
        minute = 0
        while True:
            victim = self.replicas[minute % 3]
            await asyncio.sleep(10)
            self.deaths.append((victim.name, time.monotonic()))
            victim.kill()
            await asyncio.sleep(5)
            await victim.start()
            await asyncio.sleep(15)
            self.write_config(minute + 1)
            await self.command("/api/v1/reload")
            await asyncio.sleep(10)
            name = self.replicas[(minute + 1) % 3].name
            await self.command(f"/api/v1/replicas/{name}/drain")
            await asyncio.sleep(5)
            await self.command(f"/api/v1/replicas/{name}/undrain")
            await asyncio.sleep(15)
            minute += 1

    async def command(self, path):
        status, text = await self.router.ask("POST", path)
        what = path.rsplit("/", 1)[-1]
        if status == 404:
            self.lacks.add(what)
        elif status != 200:
            self.problems.append(f"POST {path}: {status} {text[:200]}")
        self.counts[what] += status == 200

    async def leave(self):
        """Two clients a second that do not wait for their answer."""
        number = 0
        running = set()
        while True:
            running.add(task := asyncio.create_task(abort(self.router.port, STAGES[number % len(STAGES)], self.rng)))
            task.add_done_callback(running.discard)
            self.counts["aborts"] += 1
            number += 1
            await asyncio.sleep(0.5)

    BAD = [
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{\"model\":", {400}),
        (b"GET /no/such/path HTTP/1.1\r\nhost: r\r\n\r\n", {403}),
        (b"DELETE /v1/chat/completions HTTP/1.1\r\nhost: r\r\n\r\n", {405}),
        (b"POST /sleep HTTP/1.1\r\nhost: r\r\ncontent-length: 0\r\n\r\n", {403}),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\nx-long: " + b"a" * 100_000 + b"\r\ncontent-length: 0\r\n\r\n", {431}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", {400, None}),
    ]  # fmt: skip

    async def ask_badly(self):
        number = 0
        while True:
            request, allowed = self.BAD[number % len(self.BAD)]
            status = await self.status_of(request)
            if status not in allowed:
                self.problems.append(f"bad request {request[:40]!r}: {status}, allowed {allowed}")
            self.counts["bad requests"] += 1
            number += 1
            await asyncio.sleep(0.5)

    async def status_of(self, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.router.port)
        try:
            with contextlib.suppress(OSError):
                writer.write(request)
                await writer.drain()
            line = await asyncio.wait_for(reader.readline(), 20)
            return int(line.split()[1]) if line else None
        except OSError:
            return None
        finally:
            writer.close()

    async def ask_largely(self):
        """A body of 8 MiB each ten seconds."""
        while True:
            await asyncio.sleep(10)
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "a" * (8 << 20)}}
            body = json.dumps({"model": asks.MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": [image]}]})
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            status = await self.status_of((head + body).encode())
            if status != 200:
                self.problems.append(f"a body of 8 MiB: {status}")
            self.counts["8 MiB bodies"] += 1

    async def read_slowly(self):
        """One stream at a time, taken in sips: it has to be whole all the same, unless its replica died."""
        while True:
            ask = asks.Ask("long stream", self.rng)
            reader, writer = await asyncio.open_connection("127.0.0.1", self.router.port, limit=1024)
            try:
                writer.write(ask.request())
                got = b""
                while not got.endswith(b"0\r\n\r\n"):
                    piece = await asyncio.wait_for(reader.read(300), 30)
                    if not piece:
                        break
                    got += piece
                    await asyncio.sleep(0.05)
            finally:
                writer.close()
            self.counts["slow readers"] += 1
            if b"[DONE]" not in got:
                replica = re.search(rb"x-prefix-router-replica: (\w+)", got)
                if b'"error"' not in got or not any(replica and replica[1].decode() == name for name, _ in self.deaths):
                    self.problems.append(f"a slow reader's stream broke: {got[-200:]!r}")

    # The end.

    def judge(self):
        self.fold()
        for what in ("outstanding", *(name for name in self.rest_before if name.startswith("prefix_router_"))):
            if self.rest_after.get(what, 0) > self.rest_before[what]:
                self.problems.append(f"{what}: {self.rest_before[what]} before, {self.rest_after.get(what)} at the end")
        if self.rest_after["descriptors"] > self.rest_before["descriptors"] + 1:
            self.problems.append(f"descriptors: {self.rest_before['descriptors']} before, {self.rest_after['descriptors']} at the end")
        if self.rest_after["threads"] > self.rest_before["threads"] + 1:
            self.problems.append(f"threads: {self.rest_before['threads']} before, {self.rest_after['threads']} at the end")
        self.problems += [f"the router lacks {what}, which was not run" for what in sorted(self.lacks)]
        second, last = self.quarter(1, "memory"), self.quarter(3, "memory")
        # A few minutes do not tell a leak from pools that still fill.
        if self.arguments.minutes >= SHORTEST and last - second > max(MEMORY_TOLERANCE, MEMORY_SHARE * second):
            self.problems.append(f"memory grows: {second / 2**20:.1f} MiB in the second quarter, {last / 2**20:.1f} MiB in the last")
        for what in ("descriptors", "threads"):
            # Load comes and goes, so these are compared loosely; at rest they are compared exactly.
            if self.quarter(3, what) > 1.5 * self.quarter(1, what) + 10:
                self.problems.append(f"{what} grow: {self.quarter(1, what):.0f} in the second quarter, {self.quarter(3, what):.0f} in the last")
        if self.load.unasked:
            self.problems.append(f"bytes that nobody asked for: {self.load.unasked[:2]}")
        self.problems += self.router.panics()

    def quarter(self, number, what):
        chosen = [sample[what] for at, sample in self.samples if number / 4 <= at / self.seconds <= (number + 1) / 4]
        return statistics.median(chosen) if chosen else 0

    def slope(self):
        """Least squares after the warm-up, in MB per hour."""
        points = [(at / 3600, sample["memory"] / 1e6) for at, sample in self.samples if at >= WARM_UP * self.seconds]
        if len(points) < 3:
            return None
        return statistics.linear_regression(*zip(*points)).slope

    def tell(self):
        at = lambda share: min(self.samples, key=lambda sample: abs(sample[0] - share * self.seconds))[1]
        columns = {"at rest, before": self.rest_before, "begin": self.samples[0][1], "quarter": at(0.25), "half": at(0.5)}
        columns |= {"end": self.samples[-1][1], "at rest, after": self.rest_after}
        rows = []
        for what in self.rest_before:
            cell = lambda value: f"{value / 2**20:.1f} MiB" if what == "memory" else f"{value:g}"
            rows.append([what.removeprefix("prefix_router_"), *(cell(column.get(what, 0)) for column in columns.values())])
        head = [f"{self.arguments.minutes:g} minutes", *columns]
        print("", table.text(head, rows), "", table.markdown(head, rows), "", sep="\n")
        slope = self.slope()
        print(f"slope of memory after the first quarter: {'–' if slope is None else f'{slope:+.2f} MB/h'}")
        print(", ".join(f"{count} {what}" for what, count in self.counts.items()) + f", {len(self.deaths)} deaths of a replica")
        if self.arguments.samples:
            with self.arguments.samples.open("w") as file:
                rows = csv.DictWriter(file, ["seconds", *self.rest_before], extrasaction="ignore")
                rows.writeheader()
                rows.writerows({"seconds": f"{when:.0f}", **sample} for when, sample in self.samples)
        for problem in self.problems[:50]:
            print(f"did not hold: {problem}")


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--samples", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        sys.exit(not asyncio.run(Soak(arguments, pathlib.Path(folder)).run()))


main()
