"""Checks one running router, then measures the workload through it. `run` starts what is needed and calls this."""

import argparse
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
    p.add_argument("--results", required=True, help="file that gets one more JSON line")
    for name, default in (("prefixes", 12), ("uses", 8), ("clients", 4), ("seed", 1)):
        p.add_argument(f"--{name}", type=int, default=default)
    a = p.parse_args()
    fleet = Fleet(a.router, a.admin, dict(r.split("=", 1) for r in a.replica), a.model)

    def measure(_):
        result = workload.run(fleet, a.strategy, a.prefixes, a.uses, a.clients, a.seed)
        result |= {"model": a.model, "kv_tokens_per_replica": kv_tokens(fleet)}
        with open(a.results, "a") as out:
            print(json.dumps(result), file=out)
        return line(result)

    failed = checks.run(fleet, a.strategy)
    failed += not checks.report(f"{a.strategy}: workload", measure, fleet)
    failed += not checks.report(f"{a.strategy}: at rest after the workload", checks.check_at_rest, fleet)
    sys.exit(failed > 0)


def kv_tokens(fleet):
    labels = next(fleet.samples(next(iter(fleet.replicas.values())), "vllm:cache_config_info"))[0]
    return int(labels["num_gpu_blocks"]) * int(labels["block_size"])


def line(r):
    share = " ".join(f"{name} {part:.0%}" for name, part in r["share"].items())
    return (
        f"TTFT p50 {r['ttft_ms']['p50']:.0f} p90 {r['ttft_ms']['p90']:.0f} ms, "
        f"end to end p50 {r['e2e_ms']['p50']:.0f} p90 {r['e2e_ms']['p90']:.0f} ms, "
        f"{r['requests_per_second']:.2f} requests/s, token hit rate {r['token_hit_rate']:.1%}, "
        f"share {share}, overflow {r['overflow']}"
    )


main()
