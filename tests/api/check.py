"""Starts a router with replicas and asks its admin API whatever its description allows, and what it does not. See run."""

import argparse
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

TOKEN = "sesame"
PATIENCE = 30


class Process:
    """A process of the router's binary, with its log in a file."""

    def __init__(self, folder, name, *command):
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def found(self, pattern):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.process.poll() is None:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found.groups()
            time.sleep(0.05)
        raise SystemExit(f"no {pattern} in the log:\n{self.log.read_text()}")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()


def schemathesis(admin, token, options, folder):
    """Whether all that it asked was answered as described. What it leaves behind is in that folder."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"http://{admin}/api/v1/openapi.json"),
        *("--checks", "all", "--max-examples", str(options.examples), "--seed", str(options.seed), "--phases", "examples,coverage,fuzzing,stateful"),
        # A drain may be asked for twice, and what is deleted elsewhere is nobody's here: those checks are of other APIs.
        *("--exclude-checks", "use_after_free,ensure_resource_availability"),
        "--no-color",
    ]
    if token:
        command += ["--header", f"Authorization: Bearer {token}"]
    print(f"== schemathesis, {'with' if token else 'without'} a token", flush=True)
    return subprocess.run(command, check=False, cwd=folder).returncode == 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--router", required=True)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    started = []
    good = True
    with tempfile.TemporaryDirectory(prefix="prefix-router-api-") as folder:
        folder = pathlib.Path(folder)
        try:
            for name in ("a", "b"):
                started.append(Process(folder, name, options.router, "demo-replica", "--listen", "127.0.0.1:0", "--model", "m"))
            addresses = [replica.found(r"(127\.0\.0\.1:[1-9]\d*)")[0] for replica in started]
            for token in (None, TOKEN):
                settings = ["listen: 127.0.0.1:0", "admin: 127.0.0.1:0", "access_log: false", "health_check_rise: 1", "replicas:"]
                settings += [f"  - {{url: 'http://{address}', name: {name}}}" for address, name in zip(addresses, "ab")]
                settings += [f"admin_token: {token}"] if token else []
                config = folder / "router.yaml"
                config.write_text("\n".join(settings) + "\n")
                router = Process(folder, "router", options.router, "serve", "--config", str(config))
                started.append(router)
                traffic, admin = router.found(r"listening on ([\d.:]+), admin port on ([\d.:]+)")
                # So that there is something to be shown.
                for number in range(150):
                    body = b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "%d"}]}' % (number % 3)
                    request = urllib.request.Request(f"http://{traffic}/v1/chat/completions", body, {"content-type": "application/json"})
                    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                        answer.read()
                good &= schemathesis(admin, token, options, folder)
                if "panicked" in router.log.read_text():
                    print(router.log.read_text())
                    good = False
        finally:
            for process in reversed(started):
                process.stop()
    return 0 if good else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
