"""Networks that swallow, delay and stall, and names that are gone."""

import asyncio
import time

from bench import Fault
from deaths import NO_GATE
from rig import namespaces
from rig.names import Names
from rig.processes import eventually
from rig.relay import Relay


def in_namespace(bench, number):
    """The first replica stands on a host of its own."""
    if number:
        return {}
    bench.host = bench.keep(namespaces.Host().make())
    return {"host": bench.host.address, "prefix": bench.host.prefix}


async def black_hole(bench):
    """Packets to and from its host are lost for 12 s; it lives on, and so do its connections."""
    victim = bench.replicas[0]
    await bench.warm_up()
    begun = bench.load.begun_on(victim.name)
    bench.host.swallow()
    lost_at = time.monotonic()
    await asyncio.sleep(12)
    bench.host.give_back()
    back_at = time.monotonic()
    bench.stop = bench.watch.stopped(victim.name, lost_at, back_at)
    bench.expect("it gets no requests once its checks have failed", bench.stop <= 10, f"{bench.stop:.1f} s")
    await eventually("it serves again", lambda: bench.watch.resumed(victim.name, back_at) is not None, 15)
    bench.resume = bench.watch.resumed(victim.name, back_at)
    bench.note(f"{begun} answers had begun there")
    await bench.warm_up()


async def half_open(bench):
    """Its host vanishes while streams run and requests wait there: no FIN, no RST, nothing until it is back as another process."""
    victim = bench.replicas[0]
    await bench.warm_up()
    await victim.fault(fault="slow", seconds=3, factor=2)
    await asyncio.sleep(2)
    begun = bench.load.begun_on(victim.name)
    waiting = (await bench.router.outstanding())[victim.name] - begun
    bench.note(f"{begun} answers had begun there, {waiting} requests waited")
    bench.host.swallow()
    lost_at = time.monotonic()
    victim.kill()
    # No sooner than idle_timeout anybody can know that a stream is over.
    bench.may_cut = bench.only_begun_on(victim, lost_at)
    await asyncio.sleep(12)
    bench.stop = bench.watch.stopped(victim.name, lost_at, time.monotonic())
    bench.expect("it gets no requests once its checks have failed", bench.stop <= 10, f"{bench.stop:.1f} s")
    bench.host.give_back()
    await victim.start()
    await bench.serves_again(victim)
    await bench.warm_up()
    await bench.load.pause()
    waited = [outcome.ended_at - outcome.sent_at for outcome in bench.load.outcomes if outcome.sent_at < lost_at + 10]
    bench.note(f"longest request {max(waited):.1f} s")


def netem(*rule):
    async def act(bench):
        namespaces.sh("tc", "qdisc", "add", "dev", bench.host.near, "root", "netem", *rule)
        await asyncio.sleep(6)

    return act


def through_relay(**how):
    """All replicas stand behind relays that spoil the way."""

    def others(bench):
        return [Relay(replica, **how) for replica in bench.replicas]

    return {"others": others, "urls": lambda bench: bench.named(*bench.others)}


async def just_load(bench):
    await asyncio.sleep(6)


def served_names(bench):
    bench.names = Names("fleet.test", ["127.0.0.2", "127.0.0.3"])
    return [NamesServer(bench.names)]


class NamesServer:
    """A server like others for the bench."""

    name = "names"

    def __init__(self, names):
        self.names = names

    async def start(self):
        await self.names.start()

    def kill(self):
        self.names.kill()


def same_port(bench, number):
    """127.0.0.2, 127.0.0.3, … all at one port, as behind one name."""
    if number == 0:
        return {"host": "127.0.0.2"}
    return {"host": f"127.0.0.{2 + number}", "port": bench.replicas[0].port}


def by_name(bench):
    # Read only now, when the port is known: variables are made with the router.
    bench.fault.settings["dns_servers"] = f"127.0.0.1:{bench.names.port}"
    return [f"dns://fleet.test:{bench.replicas[0].port}"]


async def names_gone(bench):
    """The DNS server falls silent for 10 s, and comes back with a third replica and without the first."""
    await bench.warm_up()
    asked = bench.names.asked
    bench.names.silent = True
    await asyncio.sleep(10)
    bench.expect("it was asked meanwhile", bench.names.asked > asked)
    bench.names.addresses = ["127.0.0.3", "127.0.0.4"]
    bench.names.silent = False
    back_at = time.monotonic()
    newcomer, gone = f"127.0.0.4:{bench.replicas[0].port}", f"127.0.0.2:{bench.replicas[0].port}"
    await eventually("the newcomer serves", lambda: bench.watch.resumed(newcomer, back_at) is not None, 12)
    bench.resume = bench.watch.resumed(newcomer, back_at)
    bench.stop = bench.watch.stopped(gone, back_at)
    await bench.warm_up(4)


ROOT = {"place": in_namespace, "missing": namespaces.missing}
NETEM = {"place": in_namespace, "missing": namespaces.netem_missing}

FAULTS = [
    Fault("black hole", "packets to and from one replica's host are swallowed for 12 s (network namespace)", black_hole, settings=dict(NO_GATE), **ROOT),
    Fault(
        "half-open",
        "one replica's host vanishes without FIN while streams run and requests wait; back after 12 s; idle_timeout 5 s (network namespace)",
        half_open,
        settings=NO_GATE | {"idle_timeout": "5s"},
        **ROOT,
    ),
    Fault("delay 100 ms (netem)", "netem delay 100ms 20ms to one replica", netem("delay", "100ms", "20ms"), **NETEM),
    Fault("loss 5 % (netem)", "netem loss 5% to one replica", netem("loss", "5%"), **NETEM),
    Fault("delay 100 ms (relay)", "a relay delays every piece by 100 ms each way, to all replicas", just_load, rate=60, **through_relay(delay=0.1)),
    Fault("trickle (relay)", "a relay passes 7 bytes at a time, a millisecond apart", just_load, rate=30, **through_relay(trickle=7)),
    Fault("stall (relay)", "a relay holds every 20th piece for 2 s, as retransmissions do", just_load, rate=60, **through_relay(stall=2.0)),
    Fault(
        "DNS gone",
        "the DNS server behind a dns:// name falls silent for 10 s, then lists other replicas",
        names_gone,
        others=served_names,
        urls=by_name,
        place=same_port,
        settings={"dns_min_ttl": "500ms", "dns_max_ttl": "1s"},
    ),
]
