"""Checks one running router, then measures the workload through it. `run` starts what is needed and calls this."""

import argparse
import collections
import json
import sys

import checks
import workload
from fleet import Fleet


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--router", required=True, help="base URL of the router's traffic port")
    p.add_argument("--admin", required=True, help="base URL of its admin port")
    p.add_argument("--replica", action="append", required=True, metavar="NAME=URL")
    p.add_argument("--model", required=True)
    p.add_argument("--strategy", required=True)
    p.add_argument("--results", required=True, help="file of JSON lines, one per strategy and workload; gets two more")
    for name, default in (("prefixes", 12), ("uses", 8), ("conversations", 12), ("turns", 6), ("clients", 4), ("seed", 1)):
        p.add_argument(f"--{name}", type=int, default=default)
    a = p.parse_args()
    fleet = Fleet(a.router, a.admin, dict(r.split("=", 1) for r in a.replica), a.model)

    workloads = {"documents": workload.documents(a.seed, a.prefixes, a.uses), "chat": workload.chat(a.seed, a.conversations, a.turns)}

    def measure(name):
        result = workload.run(fleet, a.strategy, name, workloads[name], a.clients) | engine_facts(fleet)
        with open(a.results, "a") as out:
            print(json.dumps(result), file=out)
        assert result["client_aborts"] == 0, f"no client left early, yet: {figures(result)}"
        return figures(result)

    def more_reuse_than_random(name):
        with open(a.results) as lines:
            rate = {r["strategy"]: r["token_hit_rate"] for r in map(json.loads, lines) if r["workload"] == name}
        if "random" not in rate:
            raise checks.Skip("random has not been measured before")
        assert rate[a.strategy] > rate["random"], rate
        return rate

    todo = list(checks.of_fleet(a.strategy))
    todo += [(name, lambda _, name=name: measure(name)) for name in workloads]
    todo.append(("at_rest_after_workloads", checks.check_at_rest))
    if a.strategy.startswith("prefix_aware"):
        todo += [(f"more_reuse_than_random_{name}", lambda _, name=name: more_reuse_than_random(name)) for name in workloads]
    counts = collections.Counter(attempt(f"{a.strategy}: {name}", check, fleet) for name, check in todo)
    print(f"{counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped", flush=True)
    sys.exit(counts["FAIL"] > 0)


def attempt(title, check, fleet):
    """Runs one check and prints how it went, in one line."""
    try:
        word, detail = "ok", check(fleet)
    except checks.Skip as skip:
        word, detail = "skip", skip
    except Exception as error:  # whatever broke, the other checks still run
        word, detail = "FAIL", f"{type(error).__name__}: {error}"
    print(f"{word:4} {title}: {detail}", flush=True)
    return word


def engine_facts(fleet):
    url = next(iter(fleet.replicas.values()))
    cache = next(fleet.samples(url, "vllm:cache_config_info"))[0]
    version = fleet.http.get(f"{url}/version").json()["version"]
    return {"model": fleet.model, "vllm": version, "kv_tokens": int(cache["num_gpu_blocks"]) * int(cache["block_size"])}


def figures(r):
    share = " ".join(f"{name} {part:.0%}" for name, part in r["share"].items())
    return (
        f"TTFT p50 {r['ttft_ms']['p50']:.0f} p90 {r['ttft_ms']['p90']:.0f} ms, "
        f"end to end p50 {r['e2e_ms']['p50']:.0f} p90 {r['e2e_ms']['p90']:.0f} ms, "
        f"{r['requests_per_second']:.2f} requests/s, token hit rate {r['token_hit_rate']:.1%}, "
        f"share {share}, overflow {r['overflow']}, client aborts {r['client_aborts']}"
    )


main()
