"""Instructions that a request costs the release binary, counted by callgrind: they are the same on a busy machine as on an idle one."""

import contextlib
import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request

# Requests of a round, and rounds. The least counts: a busy machine makes more pieces of a body and more wake-ups, and never fewer.
REQUESTS, ROUNDS = 183, 5
# Before them: connections are made, pools and buffers have their size.
WARM_UP = 600
EVENTS = 16
# Starting is a hundred times slower than without callgrind, and 1,000 replicas are checked first.
PATIENCE = 180

# As many prompts come in turn.
PROMPTS = 61

# name -> size of the body, whether the answer is a stream, replicas, prompts. One prompt that is all of the traffic is read as far as prompts are ever read.
CASES = {
    "1k": (1 << 10, False, 1, PROMPTS), "32k": (32 << 10, False, 1, PROMPTS), "256k": (256 << 10, False, 1, PROMPTS),
    "1k-stream": (1 << 10, True, 1, PROMPTS), "32k-stream": (32 << 10, True, 1, PROMPTS),
    "32k-one-prompt": (32 << 10, False, 1, 1), "256k-one-prompt": (256 << 10, False, 1, 1),
    "1k-of-64": (1 << 10, False, 64, PROMPTS), "1k-of-256": (1 << 10, False, 256, PROMPTS), "1k-of-1000": (1 << 10, False, 1_000, PROMPTS),
}  # fmt: skip

# The same without metrics, to see what these cost. (How many pieces a large body comes in makes more of a difference.)
WITHOUT_METRICS = "-no-metrics"
CASES |= {case + WITHOUT_METRICS: CASES[case] for case in ("1k", "32k", "1k-stream", "32k-stream")}

# What the live page asks every two seconds while somebody looks, of so many replicas.
PAGES = {"page-of-7": 7, "page-of-200": 200}
ROUND = ("overview", "fleet", "decisions?limit=50")
CASES |= {page: (1 << 10, False, count, PROMPTS) for page, count in PAGES.items()}

JSON = b'{"id":"chatcmpl-0","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"}}]}'
EVENT = b'data: {"id":"chatcmpl-0","choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def message(stream, piece=lambda: None):
    """The next message, whole; None at the end. `piece` is called after each chunk."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            return None
        head += line
    if length := re.search(rb"content-length: *(\d+)", head, re.I):
        return head + stream.read(int(length[1]))
    if b"transfer-encoding: chunked" not in head.lower():
        return head
    body = b""
    while True:
        line = stream.readline()
        body += line + stream.read(int(line, 16) + 2)
        if int(line, 16) == 0:
            return head + body
        piece()


class Replicas:
    """So many addresses of this host, all one server."""

    def __init__(self, count):
        # An event is sent when the client has the last one. Otherwise some would come together, on a busy machine others than on an idle one.
        self.arrived = threading.Semaphore(0)
        self.listeners = [socket.create_server((f"127.0.{number // 250}.{number % 250 + 1}", 0)) for number in range(count)]
        self.urls = ["http://%s:%d" % listener.getsockname() for listener in self.listeners]
        for listener in self.listeners:
            threading.Thread(target=self.accept, args=(listener,), daemon=True).start()

    def accept(self, listener):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.answer, args=(listener.accept()[0],), daemon=True).start()

    def answer(self, connection):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while request := message(stream):
                if b'"stream": true' in request[-40:]:
                    connection.sendall(STREAM_HEAD)
                    for _ in range(EVENTS):
                        connection.sendall(b"%x\r\n%s\r\n" % (len(EVENT), EVENT))
                        self.arrived.acquire()
                    connection.sendall(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
                    self.arrived.acquire()
                else:
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(JSON), JSON))

    def close(self):
        for listener in self.listeners:
            # Wakes who waits in accept, which close alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def eventually(what, is_so):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {PATIENCE} s: {what}")
        time.sleep(0.2)


class Counted:
    """The router under callgrind, which tells its count so far whenever it is asked to."""

    def __init__(self, binary, replicas, folder, metrics):
        self.port, self.admin, self.folder, self.dumps = free_port(), free_port(), folder, 0
        # The access log is on, as by default. Nothing happens by itself while it is counted.
        settings = {
            "REPLICAS": ",".join(replicas.urls), "LISTEN": f"127.0.0.1:{self.port}", "ADMIN": f"127.0.0.1:{self.admin}", "WORKER_THREADS": "1",
            "HEALTH_CHECK_INTERVAL": "60s", "HEALTH_CHECK_TIMEOUT": "60s", "HEALTH_CHECK_RISE": "1", "SLOW_START": "0s", "CONNECT_TIMEOUT": "60s",
            "POOL_IDLE_TIMEOUT": "4900ms", "ENGINE_METRICS_INTERVAL": "0s", "METRICS": "true" if metrics else "false",
        }  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFIX_ROUTER_")}
        environment |= {f"PREFIX_ROUTER_{name}": value for name, value in settings.items()}
        command = ["valgrind", "--tool=callgrind", "--fair-sched=yes", f"--callgrind-out-file={folder}/out", binary, "serve"]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log, start_new_session=True)
        eventually("all replicas are up", lambda: self.up() == len(replicas.urls))

    def up(self):
        if self.process.poll() is not None:
            raise SystemExit(f"the router ended under callgrind:\n{(self.folder / 'log').read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/api/v1/fleet", timeout=PATIENCE) as answer:
            return sum(replica["state"] == "up" for replica in json.load(answer)["replicas"])

    def count(self):
        """Since the last time."""
        self.dumps += 1
        # The log's last lines are written by a thread of its own.
        time.sleep(0.5)
        subprocess.run(["callgrind_control", "--dump", str(self.process.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        file = self.folder / f"out.{self.dumps}"
        eventually(f"callgrind has written {file}", lambda: file.exists() and "\ntotals: " in file.read_text())
        return int(re.search(r"^totals: (\d+)", file.read_text(), re.M)[1])

    def stop(self):
        self.process.kill()
        self.process.wait()


def look(router):
    """Instructions of what the live page asks at one time."""
    with socket.create_connection(("127.0.0.1", router.admin), PATIENCE) as connection, connection.makefile("rb") as answers:
        for path in ROUND:
            connection.sendall(b"GET /api/v1/%s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
            answer = message(answers)
            assert answer and answer.startswith(b"HTTP/1.1 200 "), answer
    return router.count()


def measure(binary, case):
    """Instructions per request; of a page, per round."""
    size, stream, count, prompts = CASES[case]
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: router\r\ncontent-type: application/json\r\naccept: */*\r\nuser-agent: bench\r\n"

    def request(prompt):
        message = {"role": "user", "content": f"prompt {prompt:02} " + "word " * (size // 5 - 2)}
        body = json.dumps({"model": "m", "messages": [message], "stream": stream}).encode()
        return b"%sauthorization: Bearer key\r\ncontent-length: %d\r\n\r\n%s" % (head, len(body), body)

    requests = itertools.cycle([request(prompt) for prompt in range(prompts)])
    replicas = Replicas(count)
    with tempfile.TemporaryDirectory(prefix="instructions-") as folder:
        router = Counted(binary, replicas, pathlib.Path(folder), metrics=not case.endswith(WITHOUT_METRICS))
        try:
            with socket.create_connection(("127.0.0.1", router.port), PATIENCE) as connection, connection.makefile("rb") as answers:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

                def ask(times):
                    for _ in range(times):
                        connection.sendall(next(requests))
                        answer = message(answers, replicas.arrived.release)
                        assert answer and answer.startswith(b"HTTP/1.1 200 "), answer
                    return router.count()

                ask(WARM_UP)
                # What is counted where nothing is asked is in every round.
                nothing = ask(0)
                if case in PAGES:
                    return min(look(router) for _ in range(ROUNDS)) - nothing
                return (min(ask(REQUESTS) for _ in range(ROUNDS)) - nothing) / REQUESTS
        finally:
            router.stop()
            replicas.close()


def lacks():
    """What has to be installed first."""
    return [program for program in ("valgrind", "callgrind_control") if not shutil.which(program)]
