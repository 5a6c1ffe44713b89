"""The processes under test: simulated replicas and the router. What is started here is ended here, by pid."""

import asyncio
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import time

from rig import metrics

PATIENCE = 20


def free_port(host="127.0.0.1"):
    """One below the ports that the kernel gives to outgoing connections, so that nobody takes it while its replica is down."""
    while True:
        port = random.randrange(12000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return port
            except OSError:
                continue


async def eventually(what, is_so, patience=PATIENCE, every=0.02):
    deadline = time.monotonic() + patience
    while not (found := is_so()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience} s: {what}")
        await asyncio.sleep(every)
    return found


class Process:
    """One process with its output in a file."""

    def __init__(self, command, log, **options):
        self.log = log
        options.setdefault("stdout", log.open("ab"))
        # A group of its own: Ctrl-C on the terminal is for the script alone, which ends them in order.
        self.process = subprocess.Popen(command, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, **options)
        self.pid = self.process.pid

    def runs(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.runs():
            self.process.kill()
        self.process.wait()

    async def ended(self, patience=PATIENCE):
        await eventually(f"process {self.pid} ends", lambda: not self.runs(), patience)
        return self.process.returncode


class Replica:
    """`prefix-router demo-replica`, always on one port however often it dies."""

    def __init__(self, binary, folder, name, host="127.0.0.1", port=None, settings=None, prefix=()):
        self.name = name
        self.host, self.port = host, port or free_port(host if not prefix else "127.0.0.1")
        self.log = folder / f"{name}.log"
        file = folder / f"{name}.json"
        file.write_text(json.dumps(settings or {}))
        self.command = [*prefix, binary, "demo-replica", "--listen", f"{self.host}:{self.port}", "--settings", str(file)]
        self.process = None
        self.listening_at = None

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    async def start(self):
        before = self.log.stat().st_size if self.log.exists() else 0
        self.process = Process(self.command, self.log)
        said = lambda: "listening on" in self.log.read_text()[before:] or not self.process.runs()
        await eventually(f"replica {self.name} listens", said, every=0.005)
        assert self.process.runs(), f"replica {self.name} ended: {self.log.read_text()[-500:]}"
        self.listening_at = time.monotonic()

    def kill(self):
        if self.process:
            self.process.kill()

    def signal(self, number):
        self.process.signal(number)

    async def fault(self, **fields):
        status, text = await metrics.ask(self.host, self.port, "POST", "/demo/faults", json.dumps(fields).encode())
        assert status == 200, (fields, status, text)

    async def heal(self):
        await metrics.ask(self.host, self.port, "DELETE", "/demo/faults")

    async def seen(self):
        """What became of its requests."""
        return json.loads((await metrics.ask(self.host, self.port, "GET", "/demo/requests"))[1])


class Router:
    """`prefix-router serve`, set by variables; its log is kept and looked through at the end."""

    def __init__(self, binary, folder, replicas, files=None, stdout=None, **settings):
        self.folder = folder
        self.log = folder / "router.log"
        self.log.touch()
        self.port, self.admin = free_port(), free_port()
        self.command = [binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--admin", f"127.0.0.1:{self.admin}"]
        self.environment = {"PREFIX_ROUTER_" + name.upper(): str(value) for name, value in settings.items()}
        if replicas:
            self.environment["PREFIX_ROUTER_REPLICAS"] = ",".join(replicas)
        self.files, self.stdout = files, stdout
        self.process = None

    async def start(self):
        options = {"env": self.environment}
        if self.stdout:
            options["stdout"] = self.stdout
        if self.files:
            options["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (self.files, self.files))
        self.process = Process(self.command, self.log, **options)
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.process.runs(), f"the router ended: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, "the router does not listen"
            try:
                if (await self.ask("GET", "/ready"))[0] == 200:
                    return
            except OSError:
                pass
            await asyncio.sleep(0.05)

    async def ask(self, method, path, body=b""):
        return await metrics.ask("127.0.0.1", self.admin, method, path, body)

    async def metrics(self):
        return metrics.parse((await self.ask("GET", "/metrics"))[1])

    async def outstanding(self):
        return {labels["replica"]: int(value) for labels, value in (await self.metrics()).get("prefix_router_outstanding", [])}

    def files_open(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident(self):
        """Bytes of memory."""
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def panics(self):
        return re.findall(r".*panicked at.*", self.log.read_text(errors="replace"))

    def signal(self, number):
        self.process.signal(number)

    def kill(self):
        if self.process:
            self.process.kill()

    async def stop(self):
        """As an operator would; what it exits with."""
        if self.process.runs():
            self.signal(signal.SIGTERM)
        return await self.process.ended(40)
