"""Sends requests of tests/fixtures/engines/requests.jsonl to a running engine and writes the raw bytes of each answer, as those fixtures are.

A fixture that is there already is left as it is. Give --out another folder to compare with what is there.
"""

import argparse
import json
import pathlib
import subprocess

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures/engines"


def curl(url, request):
    command = ["curl", "-sS", "-i", "--raw", "--noproxy", "*", "-m", "120", url + request["path"]]
    # With another way to say HEAD, curl would wait for a body.
    command += ["--head"] if request["method"] == "HEAD" else ["-X", request["method"]]
    headers = dict(request.get("headers", {}))
    body = request.get("text")
    if "body" in request:
        body = json.dumps(request["body"], ensure_ascii=False, separators=(",", ":"))
        body = body.replace("{long}", "word " * request.get("long", 0))
    if body is not None:
        headers.setdefault("content-type", "application/json")
        command += ["--data-binary", "@-"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    return subprocess.run(command, input=(body or "").encode(), stdout=subprocess.PIPE, check=True).stdout


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--url", required=True, help="base URL of the engine")
    p.add_argument("--server", default="", help='send the requests of this "server" (default: those that name none)')
    p.add_argument("--out", type=pathlib.Path, default=FIXTURES)
    p.add_argument("files", nargs="*", help="only these, such as vllm/chat.http")
    a = p.parse_args()
    for line in (FIXTURES / "requests.jsonl").read_text().splitlines():
        request = json.loads(line)
        path = a.out / request["file"]
        if request.get("server", "") != a.server or a.files and request["file"] not in a.files or path.exists():
            continue
        answer = curl(a.url, request)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(answer)
        print(request["file"], answer.split(b"\r\n", 1)[0].decode(), len(answer), flush=True)


main()
