"""Starts a stub replica, a receiver of spans, a collector before it and the router, and checks what spans come out at the far end."""

import argparse
import gzip
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

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2
from rig.steps import PATIENCE, Router, check, eventually, free_port

SECRET = "Xyzzy"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler):
        self.bodies = []
        self.parents = []
        super().__init__(("127.0.0.1", 0), handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return "http://%s:%d" % self.server_address[:2]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        return self.rfile.read(int(self.headers["content-length"]))

    def answer(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Replica(Handler):
    """Healthy, and its every answer tells of 300 tokens, of which 200 were cached."""

    def do_GET(self):
        self.answer("text/plain", b"")

    def do_POST(self):
        self.body()
        self.server.parents += self.headers.get_all("traceparent", [])
        usage = {"prompt_tokens": 300, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 200}}
        answer = {"choices": [{"message": {"role": "assistant", "content": SECRET}}], "usage": usage}
        self.answer("application/json", json.dumps(answer).encode())


class Receiver(Handler):
    """Keeps what it gets."""

    def do_POST(self):
        body = self.body()
        self.server.bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
        self.answer("application/x-protobuf", trace_service_pb2.ExportTraceServiceResponse().SerializeToString())


def spans_of(receiver):
    """All spans, each with its resource's attributes."""
    for body in list(receiver.bodies):
        message = trace_service_pb2.ExportTraceServiceRequest()
        message.ParseFromString(body)
        for of_one in message.resource_spans:
            for scope in of_one.scope_spans:
                yield from ((attributes(of_one.resource), span) for span in scope.spans)


def attributes(holder):
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in holder.attributes}


class Collector:
    """Rotel, which hands on what it gets."""

    def __init__(self, binary, receiver, folder):
        self.port, grpc = free_port(), free_port()
        self.command = [binary, "start", "--pid-file", str(folder / "rotel.pid"), "--otlp-http-endpoint", f"127.0.0.1:{self.port}"]
        self.command += ["--otlp-grpc-endpoint", f"127.0.0.1:{grpc}", "--exporter", "otlp", "--otlp-exporter-protocol", "http"]
        self.command += ["--otlp-exporter-endpoint", receiver.url]
        self.log = folder / "rotel.log"
        self.process = None

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=self.log.open("ab"), stderr=subprocess.STDOUT)
        eventually("the collector listens", self.listens)

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def stop(self):
        if self.process:
            self.process.terminate()
            self.process.wait(PATIENCE)
            self.process = None


class TracedRouter(Router):
    """One with this replica, whose spans go to this collector."""

    def __init__(self, binary, replica, collector, log):
        replicas = f"{replica.url};name=a;models=org/known"
        super().__init__(binary, log, replicas=replicas, otlp_endpoint=f"http://localhost:{collector.port}", health_check_rise="1")

    def chat(self, **fields):
        connection = http.client.HTTPConnection(self.traffic, timeout=PATIENCE)
        body = json.dumps({"model": "org/known", "messages": [{"role": "user", "content": SECRET}]})
        headers = {"content-type": "application/json", "authorization": f"Bearer {SECRET}", **fields}
        connection.request("POST", f"/v1/chat/completions?q={SECRET}", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    def spans(self, result):
        found = re.search(rf'prefix_router_spans_total{{result="{result}"}} (\d+)', self.get("/metrics")[1])
        return int(found[1])


def scenario(router, collector, replica, receiver):
    eventually("it is ready", lambda: router.get("/ready")[0] == 200)

    check("a chat is answered", router.chat(traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="a=1") == 200)
    eventually("its span comes out at the far end", lambda: len(list(spans_of(receiver))) == 1)
    resource, span = next(spans_of(receiver))
    check("the resource is the router", resource["service.name"] == "prefix-router", resource)
    check("it is in the client's trace", (span.trace_id.hex(), span.parent_span_id.hex(), span.trace_state) == (TRACE, PARENT, "a=1"), span)
    check("the replica was told of it", replica.parents == [f"00-{TRACE}-{span.span_id.hex()}-01"], replica.parents)
    check("name and kind", (span.name, span.kind) == ("chat org/known", trace_pb2.Span.SPAN_KIND_SERVER), span)
    expected = {
        "http.request.method": "POST",
        "http.route": "chat_completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "org/known",
        "gen_ai.usage.input_tokens": 300,
        "gen_ai.usage.cache_read.input_tokens": 200,
        "gen_ai.usage.output_tokens": 8,
        "prefix_router.replica": "a",
        "prefix_router.tries": 1,
        "server.address": "127.0.0.1",
    }
    found = attributes(span)
    check("attributes", expected.items() <= found.items(), found)
    check("times", 0 < found["prefix_router.time_to_first_byte"] <= (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, span)

    check("one whose client says so is not traced", router.chat(traceparent=f"00-{TRACE}-{PARENT}-00") == 200)
    collector.stop()
    check("chats are answered while the collector is away", {router.chat() for _ in range(50)} == {200})
    eventually("the log says so", lambda: "traces do not reach" in router.log.read_text())
    collector.start()
    eventually("no span is lost by that", lambda: router.spans("exported") == 51)
    check("as it is counted", router.spans("dropped") == router.spans("failed") == 0)
    eventually("all come out", lambda: len(list(spans_of(receiver))) == 51)
    eventually("and the log says that it is over", lambda: "again" in router.log.read_text())

    check("some more", {router.chat() for _ in range(20)} == {200})
    router.process.terminate()
    check("it ends with exit code 0", router.process.wait(PATIENCE) == 0)
    eventually("with the last spans sent", lambda: len(list(spans_of(receiver))) == 71)
    check("each once", len({span.span_id for _, span in spans_of(receiver)}) == 71)
    check("nothing of the clients' is in them", not any(SECRET.encode() in body for body in receiver.bodies))


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--collector", required=True)
    arguments = parser.parse_args()
    replica, receiver = Server(Replica), Server(Receiver)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        collector = Collector(arguments.collector, receiver, folder)
        router = None
        try:
            collector.start()
            router = TracedRouter(arguments.router, replica, collector, folder / "router.log")
            scenario(router, collector, replica, receiver)
        except BaseException:
            if router:
                print("the router said:", router.log.read_text()[-8000:], sep="\n")
            print("the collector said:", collector.log.read_text()[-3000:], sep="\n")
            raise
        finally:
            collector.stop()
            if router:
                router.kill()


main()
