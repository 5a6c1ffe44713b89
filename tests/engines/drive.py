"""Checks one running router, then measures the workloads through it; or through several. `run` starts what is needed and calls this."""

import argparse
import collections
import json
import sys

import checks
import figures
import workload
from fleet import Fleet

# Of the tokens found in the caches, so much may have been predicted too many or too few.
FORECAST_TOLERANCE = 0.1
# So much of the prompts' tokens may two routers find less in the caches than one. It takes so many seeds to tell that from chance: what one router
# finds of the documents has been between 65 and 80 %.
ROUTERS_TOLERANCE = 0.03
LEAST_SEEDS = 3


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--router", action="append", required=True, help="base URL of a router's traffic port")
    p.add_argument("--admin", action="append", required=True, help="base URL of its admin port")
    p.add_argument("--replica", action="append", required=True, metavar="NAME=URL")
    p.add_argument("--model", required=True)
    p.add_argument("--strategy", required=True)
    p.add_argument("--results", required=True, help="file of JSON lines, one for each workload so far; gets two more")
    for name, default in (("prefixes", 12), ("uses", 8), ("conversations", 12), ("turns", 6), ("clients", 4)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split()], default=[1])
    a = p.parse_args()
    fleet = Fleet(a.router, a.admin, dict(r.split("=", 1) for r in a.replica), a.model)
    workloads = {
        "documents": lambda seed: workload.documents(seed, a.prefixes, a.uses),
        "chat": lambda seed: workload.chat(seed, a.conversations, a.turns),
    }
    own = {}

    def measure(name, seed):
        result = {"strategy": a.strategy} | workload.run(fleet, name, workloads[name](seed), a.clients, seed) | engine_facts(fleet)
        own[name, seed] = result
        with open(a.results, "a") as out:
            print(json.dumps(result), file=out)
        assert result["client_aborts"] == 0, f"no client left early, yet: {figures.line(result)}"
        return figures.line(result)

    def rate_of(strategy, routers, name):
        """What was found of all prompts that they sent so far."""
        key = (strategy, routers, name)
        results = [r for r in figures.read(a.results) if (r["strategy"], r["routers"], r["workload"]) == key]
        if not results:
            raise checks.Skip(f"{figures.title(strategy, routers)} has not been measured")
        return sum(r["hit_tokens"] for r in results) / sum(r["query_tokens"] for r in results)

    def forecast_is_true(name, seed):
        return agree(own[name, seed])

    def more_reuse_than_random(name):
        rate, random = rate_of(a.strategy, 1, name), rate_of("random", 1, name)
        assert rate > random, f"{rate:.1%}, random {random:.1%}"
        return f"{rate:.1%}, random {random:.1%}"

    def as_much_reuse_as_with_one_router(name):
        rate, one = rate_of(a.strategy, len(a.router), name), rate_of(a.strategy, 1, name)
        said = f"{rate:.1%}, with one {one:.1%}: {100 * (rate - one):+.1f} points"
        if a.strategy == "cache_aware":
            if len(a.seeds) < LEAST_SEEDS:
                raise checks.Skip(f"{said}; judged from {LEAST_SEEDS} seeds on")
            assert rate >= one - ROUTERS_TOLERANCE, said
        return said

    cache_aware, by_prefix = a.strategy == "cache_aware", a.strategy.startswith(("prefix_aware", "cache_aware"))
    alone = len(a.router) == 1
    todo = list(checks.of_router(a.strategy)) if alone else []

    def add(check, *of):
        todo.append((f"{check.__name__}: {' '.join(map(str, of))}", lambda _: check(*of)))

    for name in workloads:
        for seed in a.seeds:
            add(measure, name, seed)
            if cache_aware and alone:  # what one of several does not see of the others' requests it cannot predict
                add(forecast_is_true, name, seed)
        if by_prefix and alone:
            add(more_reuse_than_random, name)
        if not alone:
            add(as_much_reuse_as_with_one_router, name)
    todo.append(("at_rest_after_workloads", checks.check_at_rest))
    title = figures.title(a.strategy, len(a.router))
    counts = collections.Counter(attempt(f"{title}: {name}", check, fleet) for name, check in todo)
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


def agree(result):
    """What was predicted of a workload's answers and what the engines said in them, of all replicas together."""
    forecast = result["forecast"]
    assert forecast, "the router has no prefix_router_forecast_cached_tokens_total"
    observed = {replica: kinds["observed"] for replica, kinds in forecast.items()}
    said = figures.forecast(result)
    assert observed == result["cached_tokens"], f"the answers say {result['cached_tokens']}, the router {said}"
    off = figures.forecast_error(result)
    assert off is not None and abs(off) <= FORECAST_TOLERANCE, said
    return said


def engine_facts(fleet):
    url = next(iter(fleet.replicas.values()))
    cache = next(fleet.samples(url, "vllm:cache_config_info"))[0]
    version = fleet.http.get(f"{url}/version").json()["version"]
    return {"model": fleet.model, "vllm": version, "kv_tokens": int(cache["num_gpu_blocks"]) * int(cache["block_size"])}


main()
