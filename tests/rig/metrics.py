"""Reading /metrics, once or all the time."""

import asyncio
import re
import time

SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.M)
LABEL = re.compile(r'(\w+)="([^"]*)"')


async def ask(host, port, method, path, body=b"", patience=10):
    """Status and text of a small answer, on a connection of its own."""

    async def exchange():
        reader, writer = await asyncio.open_connection(host, port)
        try:
            head = f"{method} {path} HTTP/1.1\r\nhost: {host}:{port}\r\nconnection: close\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            raise ConnectionError(f"no answer from {host}:{port}")
        if b"transfer-encoding: chunked" in head.lower():
            rest = b"".join(re.split(rb"(?:^|\r\n)[0-9a-fA-F]+\r\n", rest))
        return int(head[9:12]), rest.decode(errors="replace")

    return await asyncio.wait_for(exchange(), patience)


def parse(text):
    """All samples: name -> list of (labels, value)."""
    samples = {}
    for name, labels, value in SAMPLE.findall(text):
        samples.setdefault(name, []).append((dict(LABEL.findall(labels)), float(value)))
    return samples


def total(samples, name, **labels):
    return sum(value for own, value in samples.get(name, []) if labels.items() <= own.items())


class Watch:
    """Looks ten times a second at whom the router chooses and what it thinks of each replica."""

    EVERY = 0.1

    def __init__(self, router):
        self.router = router
        # (when, replica -> choices so far, replica -> state)
        self.seen = []
        self.task = asyncio.create_task(self.run())

    async def run(self):
        while True:
            try:
                self.look(await self.router.metrics())
            except (OSError, asyncio.TimeoutError):
                # The router is being stopped, or has no file descriptors left: what is not seen is not counted.
                pass
            await asyncio.sleep(self.EVERY)

    def look(self, samples):
        choices = {}
        for labels, value in samples.get("prefix_router_choices_total", []):
            choices[labels["replica"]] = choices.get(labels["replica"], 0) + value
        states = {labels["replica"]: labels["state"] for labels, value in samples.get("prefix_router_replica_state", []) if value == 1}
        self.seen.append((time.monotonic(), choices, states))

    def stop(self):
        self.task.cancel()

    def rises(self, replica, since, until=float("inf")):
        """When its choices were seen to have gone up."""
        times, before = [], None
        for when, choices, _ in self.seen:
            now = choices.get(replica, 0)
            if before is not None and now > before and since < when <= until:
                times.append(when)
            before = now
        return times

    def stopped(self, replica, since, until=float("inf")):
        """How long after `since` it was last chosen."""
        times = self.rises(replica, since, until)
        return times[-1] - since if times else 0.0

    def resumed(self, replica, since):
        """How long after `since` it was chosen for the first time; None: not at all."""
        times = self.rises(replica, since)
        return times[0] - since if times else None

    def state(self, replica):
        return self.seen[-1][2].get(replica) if self.seen else None
