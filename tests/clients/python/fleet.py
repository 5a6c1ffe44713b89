"""The fleet under test as an operator sees it: the replicas with their faults and counts, the routers with their metrics."""

import asyncio
import os
import random
import re
import time

import httpx

MODEL = "demo-model"
REPLICAS = {name: os.environ[f"REPLICA_{name.upper()}"] for name in ("r1", "r2", "r3")}
ROUTERS = {name: os.environ[f"ROUTER_{name.upper()}"] for name in ("main", "nobody", "hasty")}
ADMINS = {name: os.environ[f"ADMIN_{name.upper()}"] for name in ("main", "nobody", "hasty")}
ROUTER = ROUTERS["main"]
REPLICA = "x-prefix-router-replica"
ERROR = "x-prefix-router-error"
SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
http = httpx.Client(timeout=10, trust_env=False)


def samples(url, name):
    """(labels, value) of each sample of one metric."""
    return select(http.get(f"{url}/metrics").raise_for_status().text, name)


def select(page, name):
    for line in page.splitlines():
        sample = line.startswith(name) and SAMPLE.fullmatch(line)
        if sample and sample[1] == name:
            yield dict(LABEL.findall(sample[2] or "")), float(sample[3])


def metric(name, router="main", **labels):
    """The sum of a router's samples that have these labels."""
    found = [value for have, value in samples(ADMINS[router], name) if labels.items() <= have.items()]
    return sum(found)


def outstanding(router="main"):
    found = {labels["replica"]: value for labels, value in samples(ADMINS[router], "prefix_router_outstanding")}
    assert found, f"{router} shows no prefix_router_outstanding"
    return found


def journal(replica):
    """What became of the inference requests that came to a replica."""
    return http.get(f"{REPLICAS[replica]}/demo/requests").raise_for_status().json()


def counts():
    """Of all replicas together."""
    journals = [journal(replica) for replica in REPLICAS]
    return {name: sum(one[name] for one in journals) for name in ("received", "open", "finished", "refused", "aborted")}


def running(replica):
    """Requests in the replica's engine."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum(value for name in names for _, value in samples(REPLICAS[replica], name))


switched_on = []


def fault(*replicas, **fault):
    """Switches a fault on, on these replicas or on all."""
    switched_on.append(fault)
    for replica in replicas or REPLICAS:
        http.post(f"{REPLICAS[replica]}/demo/faults", json=fault).raise_for_status()


def busy(status, *replicas, **more):
    """They answer with this status."""
    fault(*replicas, fault="status", status=status, **more)


def breaks(at, *replicas):
    """They cut the connection: at "connect", or after so many events."""
    fault(*replicas, fault="reset", at=at)


def silent(*replicas):
    """They take requests and say nothing."""
    fault(*replicas, fault="stall")


def slow(*replicas):
    """Their tokens take a second each, also those of what runs already."""
    fault(*replicas, fault="slow", factor=80)


def no_faults():
    if switched_on:
        for url in REPLICAS.values():
            http.delete(f"{url}/demo/faults").raise_for_status()
    if any(fault["fault"] == "slow" for fault in switched_on):
        # A step that is under way keeps its length.
        time.sleep(1.2)
    switched_on.clear()


def until(condition, seconds, what):
    """Polls until the condition holds and says how long that took; too long is a failure."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.02)
    return time.monotonic() - start


def at_rest():
    """Nothing is in flight: not by any router's count, and not in any replica. Returns how many requests the routers have seen."""
    seen = {}

    def idle():
        pages = [http.get(f"{url}/metrics").raise_for_status().text for url in ADMINS.values()]
        seen["requests"] = sum(value for page in pages for _, value in select(page, "prefix_router_requests_total"))
        counted = [list(select(page, "prefix_router_outstanding")) for page in pages]
        assert all(counted), "prefix_router_outstanding is missing"
        return not any(value for page in counted for _, value in page)

    until(idle, 3, lambda: f"nothing outstanding: {[outstanding(router) for router in ROUTERS]}")
    until(lambda: counts()["open"] == 0, 3, lambda: f"nothing open: {counts()}")
    return seen["requests"]


# One loop for all tests: some libraries keep their connections, which belong to the loop in which they were made.
runner = asyncio.Runner()


def run(coroutine, seconds=60):
    """Runs it to its end, which must not take longer."""
    return runner.run(asyncio.wait_for(coroutine, seconds))


async def cancelled(chunks):
    """Reads the stream that `chunks` makes, cancels the task that reads it once it has begun, and sees to it that this is noticed."""
    begun = asyncio.Event()
    left, aborted = metric("prefix_router_client_aborts_total"), {name: journal(name)["aborted"] for name in REPLICAS}

    async def read():
        async for _ in chunks():
            begun.set()

    task = asyncio.create_task(read())
    wait = asyncio.create_task(begun.wait())
    await asyncio.wait({task, wait}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        wait.cancel()
        raise AssertionError("the stream has ended already") from task.exception()
    # In a thread: the task goes on reading meanwhile.
    [replica] = [name for name, value in (await asyncio.to_thread(outstanding)).items() if value]
    assert await asyncio.to_thread(running, replica) == 1
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return await asyncio.to_thread(gone, replica, aborted[replica], left)
    raise AssertionError("it was not cancelled")


def gone(replica, aborted, left):
    """The replica has seen that the client left, and so has the router."""
    until(lambda: journal(replica)["aborted"] == aborted + 1, 2, lambda: f"aborted: {journal(replica)['aborted']}, before {aborted}")
    until(lambda: running(replica) == 0, 2, "nothing runs")
    until(lambda: not any(outstanding().values()), 2, lambda: f"{outstanding()}")
    until(lambda: metric("prefix_router_client_aborts_total") == left + 1, 2, "the router counts a client that left")


def words(count):
    """A prompt that was never there before."""
    return " ".join(random.choice(WORDS) for _ in range(count))


WORDS = "time people way day man thing woman life child world school state family student group country problem hand part place".split()
# What its first prompt is made of must not depend on the clock.
random.seed(1)

# A PNG of one red pixel.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
