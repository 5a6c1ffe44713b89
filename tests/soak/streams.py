"""N slow streams at one time. Servers and clients are processes of their own (this file again), as each process has its own limit of descriptors."""

import argparse
import asyncio
import json
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from rig.exchange import Connection
from rig.h2 import H2
from rig.processes import Router, free_port
from rig.table import text

EVENTS, EVERY = 12, 5.0
SERVERS, CLIENTS = 4, 2
# Streams that begin in a second, all clients together.
RAMP = 400
H2_STREAMS = 100
H1_ONLY = os.environ.get("ONLY") == "h1"
PROTOCOLS = "all over HTTP/1.1" if H1_ONLY else f"half over HTTP/1.1, half over h2c ({H2_STREAMS} to a connection)"
BODY = '{"model":"m","stream":true,"messages":[{"role":"user","content":"stream %d"}]}'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class SlowServer(asyncio.Protocol):
    """A replica with no engine: it numbers its events."""

    def connection_made(self, transport):
        self.transport, self.got, self.sent, self.timer = transport, b"", 0, None

    def data_received(self, data):
        self.got += data
        if self.got.startswith(b"GET") and self.got.endswith(b"\r\n\r\n"):
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            self.got = b""
        elif self.got.endswith(b"}"):
            self.got, self.sent = b"", 0
            self.transport.write(HEAD)
            self.event()

    def event(self):
        if self.transport.is_closing():
            return
        data = b"data: [DONE]\n\n" if self.sent == EVENTS else b'data: {"number": %d}\n\n' % self.sent
        self.transport.write(b"%x\r\n%s\r\n" % (len(data), data) + (b"0\r\n\r\n" if self.sent == EVENTS else b""))
        self.sent += 1
        if self.sent <= EVENTS:
            self.timer = asyncio.get_running_loop().call_later(EVERY, self.event)

    def connection_lost(self, _):
        if self.timer:
            self.timer.cancel()


WANTED = b"".join(b'data: {"number": %d}\n\n' % number for number in range(EVENTS)) + b"data: [DONE]\n\n"


async def serve(port):
    server = await asyncio.get_running_loop().create_server(SlowServer, "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


def problem(ok, end, body):
    if ok and not end and bytes(body) == WANTED:
        return None
    return f"{'200' if ok else 'no 200'}, {end or 'ended well'}, {body.count(b'data:')} events: {bytes(body[-60:])!r}"


async def over_h1(port, number):
    connection = await Connection.open("127.0.0.1", port)
    body = (BODY % number).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    answer = await connection.ask(head + body, 4 * EVENTS * EVERY)
    connection.close()
    return problem(answer.status == 200, "" if answer.whole else answer.broken, answer.body)


async def over_h2(connection, number):
    stream = connection.ask(b"/v1/chat/completions", (BODY % number).encode())
    await asyncio.wait_for(stream.done, 4 * EVENTS * EVERY)
    return problem(stream.status_ok, stream.end, stream.body)


async def ask(port, count, first, rate):
    """Every second stream over each protocol, or all over HTTP/1.1; prints how they ended."""
    tasks, connection = [], None
    begin = time.monotonic()
    for number in range(count):
        if number % 2 and not H1_ONLY:
            if connection is None or connection.next > 2 * H2_STREAMS:
                connection = await H2.open("127.0.0.1", port)
                # The server's settings come before the first streams are counted against them.
                await asyncio.sleep(0.02)
            tasks.append(asyncio.create_task(over_h2(connection, first + number)))
        else:
            tasks.append(asyncio.create_task(over_h1(port, first + number)))
        await asyncio.sleep(max(0, begin + number / rate - time.monotonic()))
    problems = [str(found) if isinstance(found, BaseException) else found for found in await asyncio.gather(*tasks, return_exceptions=True)]
    print(json.dumps({"whole": problems.count(None), "problems": [one for one in problems if one is not None][:5]}), flush=True)


async def measure(arguments, folder):
    count, started = arguments.streams, []

    def start(*role):
        command = [sys.executable, __file__, "--router", "", "--role", json.dumps(role)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, start_new_session=True))
        return started[-1]

    router = None
    try:
        ports = [free_port() for _ in range(SERVERS)]
        for port in ports:
            assert start("serve", port).stdout.readline() == "ready\n"
        # Spread evenly, so that no server has more than its share of descriptors.
        router = Router(
            arguments.router, folder, [f"http://127.0.0.1:{port}" for port in ports], strategy="least_outstanding", access_log="false"
        )
        await router.start()
        await asyncio.sleep(1)
        before = (router.resident(), router.files_open(), router.threads())
        share = count // CLIENTS
        clients = [start("ask", router.port, share, number * share, RAMP / CLIENTS) for number in range(CLIENTS)]
        most, plateau = 0, []
        while any(client.poll() is None for client in clients):
            open_now = sum((await router.outstanding()).values())
            most = max(most, open_now)
            if open_now >= share * CLIENTS:
                plateau.append((router.resident(), router.files_open(), router.threads()))
            await asyncio.sleep(1)
        results = [json.loads(client.stdout.readline() or '{"whole": 0, "problems": ["the client ended early"]}') for client in clients]
        await asyncio.sleep(6)
        after = (router.resident(), router.files_open(), router.threads())
        rest = await router.outstanding()
    finally:
        for process in started:
            process.kill()
            process.wait()
        if router:
            router.kill()
    at_once = tuple(int(statistics.median(values)) for values in zip(*plateau)) if plateau else (0, 0, 0)
    looks = {"before": before, "all at once": at_once, "after": after}
    rows = [[when, f"{memory / 2**20:.1f} MiB", files, threads] for when, (memory, files, threads) in looks.items()]
    print(text(["", "memory", "descriptors", "threads"], rows))
    whole = sum(result["whole"] for result in results)
    print(f"\n{share * CLIENTS} streams, {most} at one time, {whole} whole, {PROTOCOLS}")
    if plateau:
        print(f"the router's memory per stream: {(at_once[0] - before[0]) / (share * CLIENTS) / 1024:.1f} KiB")
    problems = [one for result in results for one in result["problems"]]
    if most < share * CLIENTS:
        problems.append(f"they were never all open at one time: {most}")
    if any(rest.values()):
        problems.append(f"counts at the end: {rest}")
    problems += router.panics()
    if after[1] > before[1] + 1:
        problems.append(f"descriptors: {before[1]} before, {after[1]} after")
    for one in problems:
        print(f"did not hold: {one}")
    return not problems


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--role", type=json.loads)
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.role:
        name, *rest = arguments.role
        asyncio.run({"serve": serve, "ask": ask}[name](*rest))
        return
    needed = arguments.streams * (4 if H1_ONLY else 3) // 2 + 500
    if needed > hard:
        sys.exit(f"{arguments.streams} streams need {needed} descriptors in the router, and this machine allows {hard} for a process")
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        sys.exit(not asyncio.run(measure(arguments, pathlib.Path(folder))))


main()
