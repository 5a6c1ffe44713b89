"""Simulated replicas, routers, a load and the real Prometheus, each a process of its own that ends with the block it was started in."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.parse
import urllib.request

from rig.steps import free_port, soon

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RULES = ROOT / "config" / "rules"
PATIENCE = 30


def quickened(rules):
    """The rules with two seconds for each minute in `for`, ranges and offsets, and with nothing else changed."""
    unit = {"m": "s", "h": "m"}
    lengths = r"(for: |\[|offset )(\d+)([mh])(?=[\]\s)]|$)"
    return re.sub(lengths, lambda found: f"{found[1]}{2 * int(found[2])}{unit[found[3]]}", rules, flags=re.M)


class Processes:
    """All that is started, with a folder for what they write."""

    def __init__(self, folder, router, prometheus):
        self.folder, self.router_binary, self.prometheus_binary = pathlib.Path(folder), router, prometheus
        self.folder.mkdir(parents=True, exist_ok=True)
        self.running = {}

    def start(self, name, command, **environment):
        log = self.folder / f"{name}.log"
        plain = {key: value for key, value in os.environ.items() if not key.startswith("PREFIX_ROUTER_")}
        with log.open("wb") as output:
            self.running[name] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=plain | environment)
        return log

    def says(self, name, log, pattern):
        """What it says at its start."""

        def look():
            assert self.running[name].poll() is None, f"{name} has ended: {log.read_text()[-2000:]}"
            return re.search(pattern, log.read_text())

        return soon(f"{name} says {pattern}", look, PATIENCE).groups()

    def replica(self, name, model="demo-model", port=0, **engine):
        settings = self.folder / f"{name}.json"
        settings.write_text(json.dumps({"model": model, "engine": engine}))
        command = [self.router_binary, "demo-replica", "--listen", f"127.0.0.1:{port}", "--settings", settings]
        return self.says(name, self.start(name, command), r"(http://127\.0\.0\.1:\d+)")[0]

    def router(self, name, replicas, **settings):
        """Its address for clients, and that of its admin port. Replicas are `URL;name=NAME`."""
        command = [self.router_binary, "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        environment = {f"PREFIX_ROUTER_{key.upper()}": str(value) for key, value in settings.items()}
        log = self.start(name, command, PREFIX_ROUTER_REPLICAS=",".join(replicas), **environment)
        return self.says(name, log, r"listening on (127\.0\.0\.1:\d+), admin port on (127\.0\.0\.1:\d+)")

    def prometheus(self, routers, rules=quickened):
        """A fresh one that asks these routers, by name, and has the project's rules, as `rules` makes them out of the files."""
        for file in RULES.glob("*.yml"):
            (self.folder / file.name).write_text(rules(file.read_text()))
        targets = [{"targets": [admin], "labels": {"instance": name}} for name, admin in routers.items()]
        config = {
            # As long a timeout as may be: on a machine that has other work to do as well, a router may take a second to answer.
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"},
            "rule_files": [str(self.folder / file.name) for file in RULES.glob("*.yml")],
            "scrape_configs": [{"job_name": "prefix-router", "static_configs": targets}],
        }
        # JSON is YAML.
        file = self.folder / "prometheus.yml"
        file.write_text(json.dumps(config))
        url = f"http://127.0.0.1:{free_port()}"
        log = self.start(
            "prometheus",
            [
                self.prometheus_binary,
                f"--config.file={file}",
                f"--storage.tsdb.path={self.folder / 'data'}",
                f"--web.listen-address={url.removeprefix('http://')}",
            ],
        )

        def is_ready():
            assert self.running["prometheus"].poll() is None, log.read_text()[-2000:]
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
                return answer.status == 200

        soon("Prometheus is ready", is_ready, PATIENCE)
        prometheus = Prometheus(url)
        # It takes some seconds to begin, during which there is no router to it; to quickened rules that is long.
        soon("it has asked the routers", lambda: len(prometheus.query("up == 1")) == len(routers) and not prometheus.firing(), PATIENCE)
        return prometheus

    def load(self, name, urls, **arguments):
        words = [word for key, value in arguments.items() for word in (f"--{key.replace('_', '-')}", *([value] if not isinstance(value, list) else value))]
        self.start(name, [sys.executable, HERE / "load.py", "--url", *(f"http://{url}" for url in urls), *map(str, words)])

    def end(self, name):
        """Ends it in good order; what it has said."""
        process = self.running.pop(name)
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return (self.folder / f"{name}.log").read_text()

    def kill(self, name):
        process = self.running.pop(name)
        process.kill()
        process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self.running):
            self.kill(name)


class Prometheus:
    def __init__(self, url):
        self.url = url

    def get(self, path, **parameters):
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=PATIENCE) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, query):
        """Values now, by labels; those that are no number are none."""
        found = self.get("query", query=query)
        if found["resultType"] == "scalar":
            return {(): float(found["result"][1])}
        values = {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found["result"]}
        return {labels: value for labels, value in values.items() if value == value}

    def rules(self):
        return [rule for group in self.get("rules")["groups"] for rule in group["rules"]]

    def firing(self):
        """The alerts that fire, by name."""
        firing = {}
        for alert in self.get("alerts")["alerts"]:
            if alert["state"] == "firing":
                firing.setdefault(alert["labels"]["alertname"], []).append(alert)
        return firing
