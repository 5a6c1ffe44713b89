"""Real routers before simulated replicas under load, and a real Prometheus with the project's rules: whatever a dashboard or an alert asks for has an
answer, a healthy fleet raises no alert, and each fault that is planted raises its own and no other. A minute of the rules is two seconds here."""

import argparse
import contextlib
import http.server
import json
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time

from dashboards import dashboards, filled, panels, variables
from processes import ROOT, Processes
from rig.steps import soon

# Replicas are listed here, and not found behind a name.
WITHOUT_DATA = re.compile("prefix_router_discovery_")


def operands(query):
    """What is compared in an alert's expression, and what it goes with: each has to have values for the alert to be able to fire."""
    query = query.strip()
    while query.startswith("(") and closing(query, 0) == len(query) - 1:
        query = query[1:-1].strip()
    if found := re.fullmatch(r"absent\((.*)\)", query, re.S):
        return operands(found[1])
    for divider in (r"\b(?:and|or|unless)\b(?:\s+(?:on|ignoring)\s*\([^)]*\))?", r"(?:==|!=|>=|<=|>|<)"):
        parts = split(query, divider)
        if len(parts) > 1:
            return [inner for part in parts for inner in operands(part)]
    return [] if re.fullmatch(r"[\d.]+", query) else [query]


def closing(text, opening):
    """Where the bracket is closed that is opened there."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return None


def split(query, divider):
    """The parts between dividers that stand in no brackets."""
    plain, depth = [], 0
    for character in query:
        depth -= character in ")}]"
        plain.append(character if depth == 0 else "\0")
        depth += character in "({["
    # `on (…)` belongs to its divider.
    shown = re.sub(r"(on|ignoring)(\s*)\(\0*\)", lambda found: found[0].replace("\0", "x"), "".join(plain))
    parts, begin = [], 0
    for found in re.finditer(divider, shown):
        parts.append(query[begin : found.start()])
        begin = found.end()
    return [*parts, query[begin:]]


def check_queries(prometheus):
    """Each query of a panel, a variable or a rule has an answer now."""
    asked, empty = 0, []
    for dashboard in dashboards().values():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                asked += 1
                query = filled(target["expr"], dashboard)
                if not prometheus.query(query):
                    empty.append(f"{dashboard['title']}, {panel['title']}, {target['refId']}: {query}")
        for name, variable in variables(dashboard).items():
            if variable["type"] == "query":
                asked += 1
                series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
                if not prometheus.get(f"label/{label}/values", **{"match[]": filled(series, dashboard)}):
                    empty.append(f"{dashboard['title']}, ${name}")
    for rule in prometheus.rules():
        for query in operands(rule["query"]) if rule["type"] == "alerting" else [rule["query"], rule["name"]]:
            asked += 1
            if not prometheus.query(query):
                empty.append(f"{rule['name']}: {query}")
    for query in examples():
        asked += 1
        if bool(prometheus.query(query)) == bool(WITHOUT_DATA.search(query)):
            empty.append(f"docs/metrics.md: {query}")
    assert not empty, "no data (or some, where none was expected):\n  " + "\n  ".join(empty)
    print(f"ok  {asked} queries of panels, variables, rules and docs/metrics.md have answers", flush=True)


def examples():
    """The PromQL of docs/metrics.md: the last cell of each row that begins with a series."""
    rows = [line for line in (ROOT / "docs/metrics.md").read_text().splitlines() if line.startswith("| `prefix_router_")]
    return [re.search(r"\| `([^`]*)` \|$", row)[1].replace("\\|", "|") for row in rows]


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes all spans, and throws them away."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def watch(prometheus, seconds, expected=()):
    """For so long, nothing fires but what is expected."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        firing = prometheus.firing()
        assert set(firing) <= set(expected), f"{json.dumps(firing, indent=1)}, expected {expected}"
        time.sleep(0.5)


def raised(prometheus, name):
    """Waits for that alert, while no other may fire. Its texts are whole."""

    def is_raised():
        watch(prometheus, 0.1, {name})
        return prometheus.firing().get(name)

    begun = time.monotonic()
    alerts = soon(f"{name} fires", is_raised, 60)
    for alert in alerts:
        notes = alert["annotations"]
        assert all(notes.values()) and not any(sign in text for text in notes.values() for sign in ("<error", "<no value", "NaN")), notes
    print(f"ok  {name} fires after {time.monotonic() - begun:.0f} s: {alerts[0]['annotations']['description']}", flush=True)
    watch(prometheus, 6, {name})
    print("ok  and no other", flush=True)


def fleet(processes, models, **engine):
    """Replicas r1, r2, … that serve these models, as a router is told of them."""
    named = list(enumerate(models, 1))
    return [f"{processes.replica(f'r{number}', model, **engine)};name=r{number};models={model}" for number, model in named]


def healthy(processes):
    """Two routers of either strategy, two models, and queries for everything."""
    replicas = fleet(processes, ["chat", "chat", "chat", "code", "code"], blocks=2000, max_model_len=8192)
    with collector() as endpoint:
        one = processes.router("one", replicas, max_outstanding=256, otlp_endpoint=endpoint)
        # It holds back as soon as there is something to compute, so that there is something to be seen.
        other = processes.router("other", replicas, strategy="cache_aware", hold="1ms")
        prometheus = processes.prometheus({"one": one[1], "other": other[1]})
        # More documents than the caches hold, so that there is always something to compute, and to wait for.
        processes.load("load", [one[0], other[0]], model=["chat", "code"], rate=24, documents=150)
        # Until there is something of the hours before as well.
        watch(prometheus, 66)
        check_queries(prometheus)
        ends = json.loads(processes.end("load"))
    assert set(ends) <= {"200", "404", "left"} and ends["200"] > 500, ends
    print(f"ok  nothing fired during {sum(ends.values())} requests", flush=True)


def dead_replica(processes):
    """One is killed."""
    router = processes.router("router", fleet(processes, ["m"] * 4))
    prometheus = processes.prometheus({"router": router[1]})
    processes.load("load", [router[0]], model=["m"])
    watch(prometheus, 6)
    processes.kill("r2")
    raised(prometheus, "PrefixRouterReplicaDown")
    assert [alert["labels"]["replica"] for alert in prometheus.firing()["PrefixRouterReplicaDown"]] == ["r2"]


def planted(name, settings, **load):
    """A run in which something is wrong from the start."""

    def run(processes):
        router = processes.router("router", fleet(processes, ["m"] * 4), **settings)
        prometheus = processes.prometheus({"router": router[1]})
        processes.load("load", [router[0]], model=["m"], **load)
        raised(prometheus, name)

    return run


# `prefix_length` may be 1,024 to 65,536: what all prompts share is longer, and all of each prompt is shorter.
RUNS = {
    "healthy": healthy,
    "a replica is killed": dead_replica,
    "a hot prompt": planted("PrefixRouterHotKey", {}, hot=0.65),
    "a hot prompt, fixed prefix_length": planted("PrefixRouterHotKey", {"prefix_length": 4096}, hot=0.65),
    "prefix_length is too short": planted("PrefixRouterPrefixTooShort", {"prefix_length": 1024}),
    "prefix_length is too long": planted("PrefixRouterPrefixTooLong", {"prefix_length": 65536}),
}


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--only", choices=RUNS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, run) in enumerate(RUNS.items()):
            if arguments.only not in (None, name):
                continue
            print(f"== {name}", flush=True)
            own = pathlib.Path(folder, str(number))
            with Processes(own, arguments.router, arguments.prometheus) as processes:
                try:
                    run(processes)
                except BaseException:
                    for log in sorted(own.glob("*.log")):
                        lines = [line for line in log.read_text(errors="replace").splitlines() if " access: " not in line]
                        print(f"-- {log.name}:", *lines[-15:], sep="\n")
                    raise


if __name__ == "__main__":
    main()
