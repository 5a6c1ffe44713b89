"""Replicas that die, hang, flap, are slow, or are drained and restarted."""

import asyncio
import signal
import time

from bench import Fault
from rig.load import percentile
from rig.processes import eventually

# From the replica's first good health check to the first request that it serves again. The first check comes within health_check_interval after
# the replica listens, which is what is measured from here.
RESUME = 2.0
CHECK_INTERVAL = 1.0
# Of a replica that has fallen silent: without it the threshold would keep requests away before the health checks do.
NO_GATE = {"concurrency_threshold": 1024}


def resumes_in_time(bench):
    limit = RESUME + CHECK_INTERVAL
    bench.expect(f"it serves again within {RESUME:.0f} s of its first good check", bench.resume <= limit, f"{bench.resume:.1f} s after it listened")


async def kill_and_restart(bench, victim, down=4.0):
    """How many answers had begun there."""
    waited = (await bench.router.outstanding())[victim.name]
    begun = bench.load.begun_on(victim.name)
    bench.note(f"{begun} answers had begun there, {max(0, waited - begun)} requests waited")
    killed_at = time.monotonic()
    victim.kill()
    bench.may_cut = bench.only_begun_on(victim, killed_at)
    await asyncio.sleep(down)
    restarted_at = time.monotonic()
    bench.stop = bench.watch.stopped(victim.name, killed_at, restarted_at)
    bench.expect("nobody is sent to a dead replica for long", bench.stop <= 1.0, f"{bench.stop:.1f} s")
    await victim.start()
    await bench.serves_again(victim)
    resumes_in_time(bench)
    await bench.warm_up()
    return begun


async def kill_idle(bench):
    """No request is there when it dies: the load begins afterwards."""
    victim = bench.replicas[0]
    await bench.load.pause()
    await asyncio.sleep(0.5)
    bench.expect("it was idle", (await bench.router.outstanding())[victim.name] == 0)
    victim.kill()
    killed_at = time.monotonic()
    bench.load.task = asyncio.create_task(bench.load.run())
    await asyncio.sleep(4)
    bench.stop = bench.watch.stopped(victim.name, killed_at, time.monotonic())
    await victim.start()
    await bench.serves_again(victim)
    resumes_in_time(bench)
    await bench.warm_up()


async def kill_in_prefill(bench):
    """Requests reach its engine only after three seconds, their streams' heads are out: all that are there wait when it dies."""
    victim = bench.replicas[0]
    await bench.warm_up()
    await victim.fault(fault="slow", seconds=3)
    await asyncio.sleep(2.5)
    waiting = (await bench.router.outstanding())[victim.name]
    bench.expect("requests waited there", waiting > 20, waiting)
    await kill_and_restart(bench, victim)


async def kill_in_mid_stream(bench):
    victim = bench.replicas[0]
    await bench.warm_up(4)
    begun = await kill_and_restart(bench, victim)
    bench.expect("streams ran there", begun > 0)


async def restart_under_load(bench):
    """The headline: a replica is killed and restarted under 500 requests a second, while streams run there and many requests wait."""
    victim = bench.replicas[0]
    await bench.warm_up(3)
    await victim.fault(fault="slow", seconds=0.5)
    await asyncio.sleep(1)
    await kill_and_restart(bench, victim, down=5)


async def rolling_restart(bench):
    """Each replica in turn: drain, wait until it is empty, restart, undrain."""
    await bench.warm_up()
    for replica in bench.replicas:
        drained_at = time.monotonic()
        status, text = await bench.post(f"/api/v1/replicas/{replica.name}/drain")
        bench.expect("drain is 200", status == 200, (status, text[:200]))

        empty_at = time.monotonic() + 30
        while (await bench.router.outstanding())[replica.name] and time.monotonic() < empty_at:
            await asyncio.sleep(0.1)
        bench.stop = max(bench.stop or 0, bench.watch.stopped(replica.name, drained_at, time.monotonic()))
        replica.signal(signal.SIGTERM)
        await replica.process.ended()
        await replica.start()
        await bench.post(f"/api/v1/replicas/{replica.name}/undrain")
        await bench.serves_again(replica)
    bench.expect("a drained replica gets nothing new", bench.stop <= 0.5, f"{bench.stop:.1f} s")
    resumes_in_time(bench)
    await bench.warm_up()


def flaps(up, times):
    """It dies and comes back after a second, again and again: whatever is sent there is at risk."""

    async def act(bench):
        victim = bench.replicas[0]
        await bench.warm_up()
        deaths = []
        for _ in range(times):
            deaths.append(time.monotonic())
            victim.kill()
            await asyncio.sleep(1)
            await victim.start()
            await asyncio.sleep(up)
        # Cut only by a death: the answer had begun before one and was over with it.
        died = lambda outcome, death: outcome.first_byte_at <= death + 0.1 and abs(outcome.ended_at - death) < 1
        bench.may_cut = lambda outcome: outcome.replica == victim.name and any(died(outcome, death) for death in deaths)
        last = time.monotonic()
        # An ejection that has grown may last 30 s.
        await bench.serves_again(victim, 45)
        chosen = len(bench.watch.rises(victim.name, deaths[0], last))
        bench.note(f"chosen in {chosen} of {(last - deaths[0]) / bench.watch.EVERY:.0f} tenths of a second")
        await bench.warm_up()

    return act


async def stopped(bench):
    """SIGSTOP: its kernel takes connections and requests, and nothing answers. Then it goes on as if nothing had been."""
    victim = bench.replicas[0]
    await bench.warm_up()
    stopped_at = time.monotonic()
    victim.signal(signal.SIGSTOP)
    await asyncio.sleep(10)
    victim.signal(signal.SIGCONT)
    continued_at = time.monotonic()
    bench.stop = bench.watch.stopped(victim.name, stopped_at, continued_at)
    bench.resume = None
    await eventually("it serves again", lambda: bench.watch.resumed(victim.name, continued_at) is not None, 15)
    bench.resume = bench.watch.resumed(victim.name, continued_at)
    await bench.warm_up()
    await bench.load.pause()
    kinds = ("chat", "chat stream", "completion", "completion stream")
    short = [outcome for outcome in bench.load.outcomes if outcome.to_first_byte and outcome.ask.kind in kinds]
    before = [outcome.to_first_byte for outcome in short if outcome.sent_at < stopped_at]
    during = [outcome for outcome in short if stopped_at <= outcome.sent_at <= continued_at]
    # Who was answered late had waited there first; nobody else may be slow.
    elsewhere = [outcome.to_first_byte for outcome in during if outcome.replica != victim.name and outcome.to_first_byte < 1]
    moved = [outcome.to_first_byte for outcome in during if outcome.to_first_byte >= 1]
    usual, p99 = percentile(before, 0.99), percentile(elsewhere, 0.99)
    bench.note(f"first byte of the others p99 {p99 * 1000:.0f} ms, {usual * 1000:.0f} ms before")
    bench.note(f"{len(moved)} of {len(during)} short requests waited a second or more, at most {max(moved, default=0):.1f} s")
    # Two replicas do the work of three; more than that is not their doing.
    bench.expect("the others are not delayed", p99 < 2 * usual + 0.3, f"p99 {p99 * 1000:.0f} ms, {usual * 1000:.0f} ms before")
    bench.expect("it gets no requests once its checks have failed", bench.stop <= 10, f"{bench.stop:.1f} s")


async def slow(bench):
    """Ten times as slow as the others."""
    victim = bench.replicas[0]
    await bench.warm_up()
    await victim.fault(fault="slow", factor=10)
    await asyncio.sleep(8)
    await victim.heal()
    await bench.warm_up()
    await bench.load.pause()
    first = lambda mine: percentile([o.to_first_byte for o in bench.load.outcomes if o.to_first_byte and (o.replica == victim.name) == mine], 0.99)
    bench.note(f"first byte p99: {first(True):.1f} s there, {first(False):.1f} s on the others")


FAULTS = [
    Fault("kill -9, idle", "killed while no request was there, load at once; restarted after 4 s", kill_idle),
    Fault("kill -9, in prefill", "killed while all its requests waited for their first byte; restarted after 4 s", kill_in_prefill),
    Fault("kill -9, in mid-stream", "killed while streams ran; restarted after 4 s", kill_in_mid_stream),
    Fault("restart under 500/s", "one of four killed at 500 requests/s, streams running and requests waiting there; restarted after 5 s", restart_under_load, replicas=4, rate=500),
    Fault("rolling restart with drain", "each of three: drain, wait until empty, SIGTERM, start, undrain", rolling_restart),
    Fault("flapping, 1 s", "a second down, a second up, ten times", flaps(1, 10)),
    Fault("flapping, 4 s", "a second down, four seconds up, five times", flaps(4, 5)),
    Fault("SIGSTOP", "stopped for 10 s, then SIGCONT", stopped, settings=dict(NO_GATE)),
    Fault("slow replica", "one of three ten times as slow for 8 s", slow, rate=100),
]
