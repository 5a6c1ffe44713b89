"""The replicas, the prompts and the clients."""

import json
import os
import random
import subprocess
import time
import urllib.request

import peers
from peers import CACHE, HERE, OHA, PROMPT_CLIENT, REPLICA_PORTS, STREAM_CLIENT, STUB

SIZES = {"1k": 1 << 10, "32k": 32 << 10, "256k": 256 << 10}
# A prime: were it a multiple of the number of replicas, round robin would send each prefix to one replica all the time.
PREFIXES = 61
CONNECTIONS = 32
WORDS = [
    "the", "system", "should", "answer", "with", "care", "tool", "schema", "returns", "a", "list", "of", "values", "\n", "user", '"name"',
    "policy", "for", "each", "request", "model", "cache", "prefix", "router", "and", "document", "section", "table", "if", "not", "2048", "é",
]  # fmt: skip


# Prompts.


def words(rng, length):
    chosen, so_far = [], 0
    while so_far < length:
        chosen.append(rng.choice(WORDS))
        so_far += len(chosen[-1]) + 1
    return " ".join(chosen)[:length]


def chat(prefix, question, stream):
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
    body = {"model": "stub", "messages": messages, "max_tokens": 16, "temperature": 0.7, **({"stream": True} if stream else {})}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def bodies(workload):
    """A file with a body in each line: 61 prefixes, which are 95 % of it, with four questions each (of 256 KB: one)."""
    file = CACHE / f"bodies-{workload}-of-{PREFIXES}.txt"
    if not file.exists():
        size, stream = SIZES[workload.split("-")[0]], workload.endswith("stream")
        rng = random.Random(7)
        prefixes = [f"pfx-{number:06d} {words(rng, int(size * 0.88))}" for number in range(PREFIXES)]
        rounds = 4 if size < 100_000 else 1
        lines = [chat(prefix, f"{rng.random()} {words(rng, int(size * 0.03))}", stream) for _ in range(rounds) for prefix in prefixes]
        write(file, lines)
    return file


def write(file, lines):
    # Whole or not at all, as it is kept.
    part = file.with_suffix(".part")
    part.write_text("".join(line + "\n" for line in lines))
    part.replace(file)


def first_body():
    with bodies("1k").open() as file:
        return file.readline().strip().encode()


# Replicas.


class Replicas:
    """Four stubs, each a process; `with` ends them."""

    def __init__(self, cores, events=16, every=0, first=0, after_head=0, hosts=1):
        options = [str(value) for value in (events, every, first, after_head, hosts)]
        self.processes = [subprocess.Popen(["taskset", "-c", cores, STUB, str(port), *options]) for port in REPLICA_PORTS]

    def __enter__(self):
        time.sleep(0.3)
        if any(process.poll() is not None for process in self.processes):
            self.__exit__()
            raise SystemExit(f"a stub ended at once: is something else on one of the ports {REPLICA_PORTS}?")
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()

    def ask(self, path):
        answers = []
        for port in REPLICA_PORTS:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                answers.append(json.load(answer))
        return answers

    def forget(self):
        self.ask("/reset")

    def stats(self):
        return self.ask("/stats")


# Clients.


def run(cores, command, **variables):
    command = [str(part) for part in ["taskset", "-c", cores, *command]]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True)
    if done.returncode:
        raise peers.Missing(f"{command[3]} failed: {(done.stderr or done.stdout)[-300:].strip()}")
    return done.stdout


def saturate(target, workload, seconds, cores, offset=0):
    """wrk with 32 connections as fast as it goes: what a request costs the target when it is busy."""
    before, stolen_before = target.processor_time(), stolen()
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "10s", "-s", HERE / "post.lua", f"http://127.0.0.1:{target.port}/"]
    output = run(cores, command, BODIES=str(bodies(workload)), OFFSET=str(offset))
    used, stolen_after = target.processor_time() - before, stolen()
    line = next(line for line in output.splitlines() if line.startswith("WRK "))
    requests, microseconds, *errors = (float(word) for word in line.split()[1:])
    return {
        "rps": requests / (microseconds / 1e6),
        "cpu_us": used / max(requests, 1) * 1e6,
        "util": used / (microseconds / 1e6),
        "errors": int(sum(errors)),
        "stolen": (stolen_after[0] - stolen_before[0]) / max(1, stolen_after[1] - stolen_before[1]),
    }


def stolen():
    """Time that the machine's host took, and all time, since the start."""
    with open("/proc/stat") as file:
        fields = [int(word) for word in file.readline().split()[1:]]
    return fields[7], sum(fields[:8])


def at_rate(target, workload, rate, seconds, cores):
    """oha, which sends at fixed times whatever becomes of the answers: latencies in milliseconds."""
    before = target.processor_time()
    command = [
        OHA, "--no-tui", "--output-format", "json", "-z", f"{seconds}s", "-q", rate, "-c", CONNECTIONS, "--latency-correction", "-m", "POST",
        "-T", "application/json", "-H", "x-prefix: p1", "-H", "x-session-id: p1", "-Z", bodies(workload),
        f"http://127.0.0.1:{target.port}/v1/chat/completions",
    ]  # fmt: skip
    found = json.loads(run(cores, command))
    used = target.processor_time() - before
    statuses = found["statusCodeDistribution"]
    requests, good = sum(statuses.values()), statuses.get("200", 0)
    # What is under way when the time is over is no error.
    broken = sum(count for why, count in found["errorDistribution"].items() if "deadline" not in why)
    first = found.get("firstBytePercentiles") or {}
    milliseconds = lambda percentiles, key: (percentiles.get(key) or float("nan")) * 1e3
    return {
        "p50": milliseconds(found["latencyPercentiles"], "p50"),
        "p99": milliseconds(found["latencyPercentiles"], "p99"),
        "first50": milliseconds(first, "p50"),
        "first99": milliseconds(first, "p99"),
        "rate_cpu_us": used / max(requests, 1) * 1e6,
        "rate_errors": requests - good + broken,
    }


class StreamClient:
    """Streams over so many connections at one time."""

    def __init__(self, target, connections, cores, ramp=500, loops=1):
        command = ["taskset", "-c", cores, STREAM_CLIENT, target.port, bodies("1k-stream"), connections, ramp, loops]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)

    def result(self, patience=300):
        return json.loads(self.process.communicate(timeout=patience)[0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class PromptClient:
    """So many prompts of so many bytes, of which no two begin alike."""

    def __init__(self, target, count, size, cores, connections=16):
        command = ["taskset", "-c", cores, PROMPT_CLIENT, target.port, count, connections, size]
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)

    def tenths(self):
        """Gives how many are answered, after each tenth of them."""
        for line in self.process.stdout:
            if line.startswith("done "):
                yield int(line.split()[1])
            else:
                self.outcomes = json.loads(line)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
