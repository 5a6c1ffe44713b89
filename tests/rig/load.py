"""Load at a constant rate that does not wait for answers (open loop), so that a router that hesitates cannot hide it."""

import asyncio
import dataclasses
import time

from rig import asks
from rig.exchange import Connection


@dataclasses.dataclass
class Outcome:
    """One request, as its client saw it."""

    ask: asks.Ask
    sent_at: float
    verdict: str
    why: str
    replica: str | None
    status: int | None
    first_byte_at: float | None
    ended_at: float
    # Whether the connection had been used before; such a one may close just when it is used again.
    reused: bool

    @property
    def to_first_byte(self):
        return self.first_byte_at - self.sent_at if self.first_byte_at else None


class Load:
    """Sends `rate` requests a second until it is stopped. One in four has a connection of its own, the others keep theirs."""

    FRESH = 0.25

    def __init__(self, port, rate, seed=1, mix=None, patience=60, host="127.0.0.1", long_tokens=120):
        self.host, self.port, self.rate, self.patience = host, port, rate, patience
        self.rng = asks.seeded(seed)
        self.kinds = asks.mixed(self.rng, mix)
        self.long_tokens = long_tokens
        self.outcomes = []
        # ask -> [connection, when it was sent]
        self.open = {}
        self.idle = []
        self.unasked = []
        self.lag = 0.0
        self.task = asyncio.create_task(self.run())

    async def run(self):
        start, count = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - start) * self.rate)
            # After a pause of this machine's the requests are not sent all at once: that would be another test.
            self.lag = max(self.lag, (due - count) / self.rate)
            for _ in range(min(due - count, 20)):
                asyncio.create_task(self.one(asks.Ask(next(self.kinds), self.rng, self.long_tokens)))
                count += 1
            if due - count > self.rate:
                count = due
            await asyncio.sleep(0.004)

    def connection(self):
        while self.idle:
            connection = self.idle.pop()
            if not connection.closed:
                return connection
        return None

    async def one(self, ask):
        fresh = self.rng.random() < self.FRESH
        sent_at = time.monotonic()
        self.open[ask] = [None, sent_at]
        connection = None if fresh else self.connection()
        try:
            connection = connection or await asyncio.wait_for(Connection.open(self.host, self.port), self.patience)
        except (OSError, asyncio.TimeoutError) as error:
            self.note(ask, sent_at, asks.FAILED, f"cannot connect: {error!r}")
            return
        self.open[ask][0] = connection
        reused = connection.uses > 0
        answer = await connection.ask(ask.request(), self.patience)
        verdict, why = asks.judge(ask, answer)
        self.note(ask, sent_at, verdict, why, answer, reused)
        self.let_go(connection, fresh or not answer.whole)

    def let_go(self, connection, close):
        if connection.unasked:
            self.unasked.append(connection.unasked[:120])
        if close or not connection.usable() or len(self.idle) > 500:
            connection.close()
        else:
            self.idle.append(connection)

    def note(self, ask, sent_at, verdict, why, answer=None, reused=False):
        del self.open[ask]
        ended_at = answer.ended_at if answer else time.monotonic()
        replica, status, first = (answer.replica, answer.status, answer.first_byte_at) if answer else (None, None, None)
        # A body is needed no more, and there are many.
        ask.body = b""
        self.outcomes.append(Outcome(ask, sent_at, verdict, why, replica, status, first, ended_at, reused))

    def begun_on(self, replica):
        """Open requests whose answer has begun there."""
        answers = [connection.answer for connection, _ in self.open.values() if connection and connection.answer]
        return sum(1 for answer in answers if answer.first_byte_at and answer.replica == replica)

    async def pause(self):
        """Sends no more, and waits for what is open."""
        self.task.cancel()
        deadline = time.monotonic() + self.patience + 5
        while self.open and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def stop(self):
        await self.pause()
        for connection in self.idle:
            if connection.unasked:
                self.unasked.append(connection.unasked[:120])
            connection.close()
        self.idle.clear()

    def count(self, verdict):
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    def all(self, *verdicts):
        return [outcome for outcome in self.outcomes if outcome.verdict in verdicts]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else None
