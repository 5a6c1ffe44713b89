"""For checks that go one step after the other, each of which is told: the router as a process of its own, and waiting."""

import http.client
import re
import socket
import subprocess
import time

PATIENCE = 15


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def soon(what, is_so, patience=PATIENCE):
    """What `is_so` says, as soon as that is true."""
    deadline = time.monotonic() + patience
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"not within {patience} s: {what}"
        time.sleep(0.05)
    return found


def eventually(what, is_so):
    soon(what, is_so)
    print(f"ok  {what}", flush=True)


def check(what, is_so, found=""):
    assert is_so, f"{what}: {found}"
    print(f"ok  {what}", flush=True)


class Router:
    """`prefix-router serve` on ports that it chooses, set by variables."""

    def __init__(self, binary, log, **settings):
        self.log = log
        environment = {f"PREFIX_ROUTER_{name.upper()}": value for name, value in settings.items()}
        command = [binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, env=environment, stdout=log.open("wb"), stderr=subprocess.STDOUT)
        eventually("the router listens", self.addresses)
        self.traffic, self.admin = self.addresses()

    def addresses(self):
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"listening on (127\.0\.0\.1:\d+), admin port on (127\.0\.0\.1:\d+)", self.log.read_text())
        return found and found.groups()

    def get(self, path):
        connection = http.client.HTTPConnection(self.admin, timeout=PATIENCE)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
