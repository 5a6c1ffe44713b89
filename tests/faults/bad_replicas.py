"""Replicas that break their answers, at every stage, or answer with what is no HTTP."""

import asyncio
import time

from bench import Fault
from rig import asks, broken
from rig.broken import Broken, FullQueue

BAD = "bad"


def on_bad(outcome):
    return outcome.replica == BAD


def resets_at(stage):
    """A simulated replica whose connections break, for so long that many requests meet it."""

    async def act(bench):
        victim = bench.replicas[0]
        await bench.warm_up(1)
        before = (await victim.seen())["received"]
        await victim.fault(fault="reset", at=stage)
        await asyncio.sleep(4)
        await victim.heal()
        healed_at = time.monotonic()
        met = (await victim.seen())["received"] - before
        bench.note(f"{met} requests met it")
        bench.expect("requests met it", met > 0)
        # An answer that had begun is cut. A stream has not begun with its head; one that is no stream breaks in its middle, at any stage.
        begun = lambda outcome: stage not in ("connect", "head") or (stage == "head" and not outcome.ask.streams)
        bench.may_cut = lambda outcome: begun(outcome) and outcome.replica == victim.name and outcome.sent_at <= healed_at
        await bench.warm_up(1)

    return act


async def answers_elsewhere(bench):
    """Whatever the bad server does, it does it before a first byte."""
    await asyncio.sleep(4)
    met_it(bench)


async def cut_where_begun(bench):
    bench.may_cut = on_bad
    await asyncio.sleep(4)
    met_it(bench)


async def length_too_short(bench):
    # Ten bytes that are whole by HTTP's own rules: no proxy can know better.
    bench.may_be_wrong = on_bad
    await asyncio.sleep(4)
    met_it(bench)


async def silent(bench):
    """Takes each request and says nothing; its checks are good. Only a time limit can end that."""
    await asyncio.sleep(5)
    met_it(bench)
    bench.may_fail = lambda outcome: outcome.status == 504 and outcome.ended_at - outcome.sent_at < 3.5


def met_it(bench):
    met = bench.others[0].met
    bench.note(f"{met} requests met it")
    bench.expect("requests met it", met > 0)


async def full_queue(bench):
    """Healthy first. Then its queue is full: connections are neither made nor refused."""
    other = bench.others[0]
    # While it still takes connections it answers with nothing, which is whole.
    bench.may_be_wrong = on_bad
    other.fill()
    filled_at = time.monotonic()
    await asyncio.sleep(12)
    bench.stop = bench.watch.stopped(other.name, filled_at, time.monotonic())
    bench.expect("it gets no requests once its checks have failed", bench.stop <= 10, f"{bench.stop:.1f} s")


def one_bad(behave):
    return lambda _: [Broken(BAD, behave)]


async def truncated(bench):
    """Its streams end in good order without their end: a client that counts on HTTP alone takes them for whole."""
    victim = bench.replicas[0]
    await bench.warm_up(1)
    await victim.fault(fault="truncate", at=3)
    await asyncio.sleep(3)
    await victim.heal()
    healed_at = time.monotonic()
    # By HTTP they are whole; the router passes what it was given.
    bench.may_be_wrong = lambda outcome: outcome.replica == victim.name and outcome.ask.streams and outcome.sent_at <= healed_at
    # Other answers break in their middle.
    bench.may_cut = lambda outcome: outcome.replica == victim.name and not outcome.ask.streams and outcome.sent_at <= healed_at
    await bench.warm_up(1)
    await bench.load.pause()
    bench.note(f"{bench.load.count(asks.WRONG)} streams met it")


STAGES = [("connect", "before the head"), ("head", "after the head"), ("first_event", "after the first event"), (5, "after five events")]

FAULTS = [
    *(Fault(f"reset {what}", f"one of three breaks each answer {what}, for 4 s", resets_at(stage)) for stage, what in STAGES),
    *(
        Fault(f"broken: {name}", f"one server of four answers each request so: {name}", answers_elsewhere, others=one_bad(behave), rate=100)
        for name, behave in broken.BEFORE_FIRST_BYTE.items()
    ),
    *(
        Fault(f"broken: {name}", f"one server of four answers each request so: {name}", cut_where_begun, others=one_bad(behave), rate=100)
        for name, behave in broken.IN_MID_ANSWER.items()
    ),
    Fault(
        "broken: a length that is too short",
        "one server of four says 10 bytes and sends more, with a second answer after them",
        length_too_short,
        others=one_bad(broken.TOO_SHORT),
        rate=100,
    ),
    Fault(
        "broken: a head without an end",
        "one server of four begins a head and stops; first_byte_timeout 2 s",
        silent,
        others=one_bad(broken.says(b"HTTP/1.1 200 OK\r\nx-begun: ", end=broken.silent)),
        settings={"first_byte_timeout": "2s"},
        rate=100,
    ),
    Fault("truncated streams", "one of three ends its streams in good order after three events, for 3 s", truncated, rate=100),
    Fault("full accept queue", "one server of four stops accepting, its queue of 1 is full", full_queue, others=lambda _: [FullQueue(BAD)], rate=100),
]
