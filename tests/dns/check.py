"""Starts stub replicas, a DNS server and the router, changes what the DNS server says, and checks what clients see and what /metrics tells."""

import argparse
import contextlib
import http.client
import http.server
import json
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from rig.steps import PATIENCE, Router, check, eventually


class Stub(http.server.ThreadingHTTPServer):
    """A replica: healthy, and every chat is a stream of two events, between which it waits for its gate."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, host, port):
        self.gate = threading.Event()
        self.gate.set()
        super().__init__((host, port), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def name(self):
        return "%s:%d" % self.server_address[:2]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.event(self.server.name)
        self.server.gate.wait(4 * PATIENCE)
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        self.wfile.flush()

    def log_message(self, *_):
        pass


def stubs():
    """Stubs on 127.0.0.1 to 127.0.0.5, all on one port."""
    while True:
        first = Stub("127.0.0.1", 0)
        port = first.server_address[1]
        all_of_them = [first]
        try:
            all_of_them += [Stub(f"127.0.0.{last}", port) for last in range(2, 6)]
            return port, all_of_them
        except OSError:
            for stub in all_of_them:
                stub.server_close()


def free_port():
    """One that is free for UDP and TCP."""
    while True:
        with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
            tcp.bind(("127.0.0.1", 0))
            with contextlib.suppress(OSError):
                udp.bind(tcp.getsockname())
                return tcp.getsockname()[1]


class DnsServer:
    """Twisted's DNS server, a process that serves one zone until it is killed."""

    def __init__(self, twistd, port, folder):
        self.command = [twistd, "--nodaemon", "--pidfile=", "dns", "--interface=127.0.0.1", f"--port={port}"]
        self.folder = folder
        self.port = port
        self.process = None

    def start(self, records):
        zone = self.folder / "zone.py"
        soa = 'SOA("fleet.test", mname="ns.fleet.test", rname="who.fleet.test", serial=1, refresh=60, retry=60, expire=60, minimum=60)'
        zone.write_text("zone = [\n  %s\n]\n" % ",\n  ".join([soa, *records]))
        log = (self.folder / "dns.log").open("ab")
        self.process = subprocess.Popen([*self.command, f"--pyzone={zone}"], stdout=log, stderr=log, cwd=self.folder)
        eventually("the DNS server listens", self.listens)

    def listens(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None


def a(name, *lasts, ttl=600):
    return [f'A("{name}.fleet.test", "127.0.0.{last}", ttl={ttl})' for last in lasts]


class DnsRouter(Router):
    """One that asks this DNS server who its replicas are."""

    def __init__(self, binary, replicas, dns_port, log):
        super().__init__(
            binary,
            log,
            replicas=",".join(replicas),
            dns_servers=f"127.0.0.1:{dns_port}",
            dns_min_ttl="200ms",
            dns_max_ttl="500ms",
            strategy="round_robin",
            health_check_interval="100ms",
            health_check_rise="1",
        )

    def chat(self):
        """The beginning of an answer: the rest is the caller's to read."""
        connection = http.client.HTTPConnection(self.traffic, timeout=PATIENCE)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        return connection.getresponse()

    def served_by(self, times=12):
        """Who answers so many chats, each of which has to be whole."""
        names = set()
        for _ in range(times):
            answer = self.chat()
            text = answer.read().decode()
            name = answer.headers["x-prefix-router-replica"]
            assert (answer.status, text.count("data: "), "[DONE]" in text) == (200, 2, True), (answer.status, text)
            names.add(name)
        return names

    def metric(self, name, **labels):
        """All samples with these labels, by their labels."""
        samples = {}
        for line in self.get("/metrics")[1].splitlines():
            found = re.fullmatch(re.escape(name) + r"(?:\{(.*)\})? (\S+)", line)
            if found:
                own = dict(re.findall(r'(\w+)="([^"]*)"', found[1] or ""))
                if labels.items() <= own.items():
                    samples[tuple(sorted(own.items()))] = float(found[2])
        return samples

    def total(self, name, **labels):
        return sum(self.metric(name, **labels).values())

    def known(self):
        return {dict(labels)["replica"] for labels in self.metric("prefix_router_outstanding")}


def scenario(router, dns, port, replicas):
    source, service = f"dns://vllm.fleet.test:{port}", "dns://_http._tcp.fleet.test"
    lookups, found = "prefix_router_discovery_lookups_total", "prefix_router_discovery_replicas"
    fixed = f"fixed.fleet.test:{port}"
    names = {last: replicas[last - 1].name for last in range(1, 6)}

    # No DNS server yet.
    answer = router.chat()
    check("nobody resolves: 502 or 503", answer.status in (502, 503), answer.status)
    check("nor is it ready", router.get("/ready")[0] == 503)
    eventually("failed lookups are counted", lambda: router.total(lookups, source=source) > 0)
    check("none of them as good", router.total(lookups, result="ok") == 0)

    srv = lambda target, priority: f'SRV("_http._tcp.fleet.test", {priority}, 0, {port}, "{target}.fleet.test", ttl=600)'
    others = [*a("five", 5), *a("late", 3), *a("fixed", 4), srv("five", 1), srv("late", 2)]
    dns.start([*a("vllm", 1, 2), *others])
    eventually("it is ready once the names resolve", lambda: router.get("/ready")[0] == 200)
    everybody = {names[1], names[2], names[5], fixed}
    eventually("addresses, service and fixed name serve", lambda: router.served_by() == everybody)
    check("metrics know them", router.known() == everybody, router.known())
    check("two were found", router.total(found, source=source) == 2 and router.total(found, source=service) == 1)

    # A stream on the first, which the next zone has no more.
    replicas[0].gate.clear()
    while True:
        stream = router.chat()
        if stream.headers["x-prefix-router-replica"] == names[1]:
            break
        stream.read()
    first = stream.readline()
    check("a stream has begun", names[1].encode() in first, first)

    dns.kill()
    before = router.total(lookups) - router.total(lookups, result="ok")
    eventually("lookups fail", lambda: router.total(lookups) - router.total(lookups, result="ok") >= before + 2)
    check("the last answer stays", router.known() == everybody, router.known())
    check("and is ready", router.get("/ready")[0] == 200)

    dns.start([*a("vllm", 2, 3), *others])
    without = {names[2], names[3], names[5], fixed}
    eventually("another zone, other replicas", lambda: {dict(labels)["replica"] for labels in router.metric("prefix_router_replica_state")} == without)
    eventually("they serve, and the one that left does not", lambda: router.served_by() == without)
    check("the stream there is still counted", router.total("prefix_router_outstanding", replica=names[1]) == 1)
    replicas[0].gate.set()
    # Raises where the end is missing.
    rest = stream.read()
    check("it ends whole", b"[DONE]" in rest, rest)
    eventually("then nothing of its replica is left", lambda: names[1] not in router.get("/metrics")[1])
    check("all counts are 0", router.total("prefix_router_outstanding") == 0)

    dns.kill()
    dns.start(others)
    eventually("a name that is gone is counted", lambda: router.total(lookups, source=source, result="not_found") > 0)
    check("and takes nobody away", router.served_by() == without)

    log = router.log.read_text()
    warnings = [line for line in log.splitlines() if f"{source} does not resolve" in line]
    check("failures are told once per change", 1 <= len(warnings) <= 8, warnings)

    told = {what: sum(f"fixed.fleet.test {what}" in line for line in log.splitlines()) for what in ("does not resolve", "resolves again")}
    check("so are those of a fixed name", 1 <= told["does not resolve"] <= 4 and 1 <= told["resolves again"] <= 4, told)
    blamed = [line for line in log.splitlines() if f"replica {fixed} is down" in line]
    check("nobody blames its replica for them", len(blamed) <= 1, blamed)

    router.process.terminate()
    check("it ends with exit code 0", router.process.wait(PATIENCE) == 0)


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--twistd", required=True)
    arguments = parser.parse_args()
    port, replicas = stubs()
    dns_port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        dns = DnsServer(arguments.twistd, dns_port, folder)
        urls = [f"http://fixed.fleet.test:{port}", f"dns://vllm.fleet.test:{port}", "dns://_http._tcp.fleet.test"]
        router = DnsRouter(arguments.router, urls, dns_port, folder / "router.log")
        try:
            scenario(router, dns, port, replicas)
        except BaseException:
            print("the router said:", router.log.read_text()[-8000:], "the DNS server said:", sep="\n")
            if (folder / "dns.log").exists():
                print((folder / "dns.log").read_text()[-3000:])
            raise
        finally:
            dns.kill()
            router.kill()


main()
