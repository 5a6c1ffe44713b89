"""One fault's stage: replicas, the router and load; and what has to hold whatever the fault was."""

import asyncio
import dataclasses
import time
import typing

from rig import asks
from rig.load import Load
from rig.metrics import Watch
from rig.processes import Replica, Router, eventually

# The router looks for stale connections to replicas with each health check; this is beyond pool_idle_timeout and one such look.
FILES_PATIENCE = 8


@dataclasses.dataclass
class Fault:
    """One row: what is done, on what stage."""

    name: str
    done: str
    act: typing.Callable
    replicas: int = 3
    rate: int = 150
    # Variables of the router.
    settings: dict = dataclasses.field(default_factory=dict)
    # bench -> servers that stand beside the replicas.
    others: typing.Callable = lambda bench: []
    # bench -> the URLs that the router is given; by default all servers'.
    urls: typing.Callable | None = None
    # More of Load's or Router's arguments.
    load: dict = dataclasses.field(default_factory=dict)
    router: dict = dataclasses.field(default_factory=dict)
    # Why it cannot run here, if so.
    missing: typing.Callable = lambda: None
    # The router is expected to be gone at the end.
    ends_router: bool = False
    # Its replicas stand elsewhere: (bench, number) -> arguments of Replica.
    place: typing.Callable = lambda bench, number: {}


class Missing(Exception):
    """The router under test lacks what this row is about."""


class Bench:
    def __init__(self, fault, binary, folder):
        self.fault, self.binary, self.folder = fault, binary, folder
        self.cleanup = []
        self.problems = []
        self.notes = []
        self.stop = self.resume = None
        self.end_counts = "–"
        # (outcome) -> whether it may have ended so.
        self.may_fail = lambda outcome: False
        self.may_cut = lambda outcome: False
        self.may_be_wrong = lambda outcome: False
        self.load = self.watch = self.router = None
        self.replicas = []

    async def __aenter__(self):
        try:
            await self.begin()
        except BaseException:
            self.clean()
            raise
        return self

    async def begin(self):
        fault = self.fault
        for number in range(fault.replicas):
            replica = Replica(self.binary, self.folder, "abcdefghij"[number], **fault.place(self, number))
            self.keep(replica)
            await replica.start()
            self.replicas.append(replica)
        self.others = fault.others(self)
        for other in self.others:
            self.keep(other)
            await other.start()
        urls = fault.urls(self) if fault.urls else self.named(*self.replicas, *self.others)
        self.router = Router(self.binary, self.folder, urls, **fault.router, **fault.settings)
        self.keep(self.router)
        await self.router.start()
        # All have been checked once: what is counted now is what the router holds at rest.
        await asyncio.sleep(1.2)
        self.files_before = self.router.files_open()
        self.watch = Watch(self.router)
        if fault.rate:
            self.load = Load(self.router.port, fault.rate, **fault.load)

    @staticmethod
    def named(*servers):
        return [f"{server.url};name={server.name}" for server in servers]

    def keep(self, what):
        """Ended when this is over, whatever happens."""
        self.cleanup.append(what)
        return what

    def clean(self):
        if self.load:
            self.load.task.cancel()
        if self.watch:
            self.watch.stop()
        for what in reversed(self.cleanup):
            (getattr(what, "kill", None) or what.remove)()

    async def __aexit__(self, kind, error, trace):
        try:
            if kind is None:
                await self.settle()
        finally:
            self.clean()

    def expect(self, what, holds, found=""):
        if not holds:
            self.problems.append(f"{what}: {found}" if found != "" else what)
        return holds

    def note(self, text):
        self.notes.append(text)

    async def settle(self):
        """The load ends; then what holds after every fault."""
        if self.load:
            await self.load.stop()
            self.expect("nothing comes that was not asked for", not self.load.unasked, self.load.unasked[:2])
            self.judge("failed before the first byte", asks.FAILED, self.may_fail)
            self.judge("cut in mid-stream", asks.CUT, self.may_cut)
            self.judge("answered twice", asks.TWICE, lambda _: False)
            self.judge("not a true answer", asks.WRONG, self.may_be_wrong)
            if self.load.lag > 1:
                self.note(f"this machine was too busy: load was up to {self.load.lag:.1f} s late")
        panics = self.router.panics()
        self.expect("no panic in the router's log", not panics, panics[:1])
        if self.fault.ends_router:
            return
        self.expect("the router still runs", self.router.process.runs())
        await self.at_rest()

    def judge(self, what, verdict, allowed):
        bad = [outcome for outcome in self.load.all(verdict) if not allowed(outcome)]
        reasons = {}
        for outcome in bad:
            reasons[outcome.why] = reasons.get(outcome.why, 0) + 1
        most = sorted(reasons.items(), key=lambda item: -item[1])[:3]
        self.expect(f"{what}: {len(bad)} more than allowed", not bad, "; ".join(f"{count} x {why}" for why, count in most))

    async def at_rest(self):
        counts, files = {}, 0
        deadline = time.monotonic() + FILES_PATIENCE
        while time.monotonic() < deadline:
            counts, files = await self.router.outstanding(), self.router.files_open()
            # One more for the connection that asks for the counts.
            if not any(counts.values()) and files <= self.files_before + 1:
                break
            await asyncio.sleep(0.2)
        self.end_counts = "all 0" if not any(counts.values()) else ", ".join(f"{name} {count}" for name, count in counts.items())
        self.expect("all counts are 0 at the end", not any(counts.values()), counts)
        self.expect("its file descriptors are back to where they were", files <= self.files_before + 1, f"{self.files_before} before, {files} now")

    # What most faults need.

    async def warm_up(self, seconds=2.0):
        await asyncio.sleep(seconds)

    async def serves_again(self, replica, patience=15):
        """Waits until it is chosen again, and takes the time since it began to listen."""
        since = replica.listening_at
        await eventually(f"{replica.name} serves again", lambda: self.watch.resumed(replica.name, since) is not None, patience, every=0.05)
        self.resume = max(self.resume or 0, self.watch.resumed(replica.name, since))

    def only_begun_on(self, replica, killed_at):
        """Streams may be cut that had begun there when it was killed (a moment is for what was on its way)."""
        return lambda outcome: outcome.replica == replica.name and outcome.first_byte_at and outcome.first_byte_at <= killed_at + 0.1

    async def post(self, path, must=True):
        status, text = await self.router.ask("POST", path)
        if must and status == 404:
            raise Missing(f"POST {path}: 404")
        return status, text

    def row(self):
        load = self.load
        figures = [len(load.outcomes), *(load.count(verdict) for verdict in (asks.FAILED, asks.CUT, asks.TWICE))] if load else ["–"] * 4
        return figures
