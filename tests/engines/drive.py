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
# So much of the prompts' tokens may two routers find less in the caches than one.
ROUTERS_TOLERANCE = 0.03


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--router", action="append", required=True, help="base URL of a router's traffic port")
    p.add_argument("--admin", action="append", required=True, help="base URL of its admin port")
    p.add_argument("--replica", action="append", required=True, metavar="NAME=URL")
    p.add_argument("--model", required=True)
    p.add_argument("--strategy", required=True)
    p.add_argument("--results", required=True, help="file of JSON lines, one for each workload so far; gets two more")
    for name, default in (("prefixes", 12), ("uses", 8), ("conversations", 12), ("turns", 6), ("clients", 4), ("seed", 1)):
        p.add_argument(f"--{name}", type=int, default=default)
    a = p.parse_args()
    fleet = Fleet(a.router, a.admin, dict(r.split("=", 1) for r in a.replica), a.model)
    workloads = {"documents": workload.documents(a.seed, a.prefixes, a.uses), "chat": workload.chat(a.seed, a.conversations, a.turns)}
    own = {}

    def measure(name):
        own[name] = {"strategy": a.strategy} | workload.run(fleet, name, workloads[name], a.clients, a.seed) | engine_facts(fleet)
        with open(a.results, "a") as out:
            print(json.dumps(own[name]), file=out)
        assert own[name]["client_aborts"] == 0, f"no client left early, yet: {figures.line(own[name])}"
        return figures.line(own[name])

    def rate_of(strategy, name):
        """What one router with that strategy reached before."""
        for result in figures.read(a.results):
            if (result["strategy"], result["routers"], result["workload"]) == (strategy, 1, name):
                return result["token_hit_rate"]
        raise checks.Skip(f"one router with {strategy} has not been measured before")

    def forecast_is_true(name):
        return agree(own[name])

    def more_reuse_than_random(name):
        rate, random = own[name]["token_hit_rate"], rate_of("random", name)
        assert rate > random, f"{rate:.1%}, random {random:.1%}"
        return f"{rate:.1%}, random {random:.1%}"

    def as_much_reuse_as_with_one_router(name):
        rate, one = own[name]["token_hit_rate"], rate_of(a.strategy, name)
        said = f"{rate:.1%}, with one {one:.1%}: {100 * (rate - one):+.1f} points"
        assert a.strategy != "cache_aware" or rate >= one - ROUTERS_TOLERANCE, said
        return said

    cache_aware, by_prefix = a.strategy == "cache_aware", a.strategy.startswith(("prefix_aware", "cache_aware"))
    alone = len(a.router) == 1
    todo = list(checks.of_router(a.strategy)) if alone else []
    for name in workloads:
        todo.append((name, lambda _, name=name: measure(name)))
        # What one router does not see of the others' requests it cannot predict.
        for condition, check in (
            (cache_aware and alone, forecast_is_true),
            (by_prefix and alone, more_reuse_than_random),
            (not alone, as_much_reuse_as_with_one_router),
        ):
            if condition:
                todo.append((f"{check.__name__}: {name}", lambda _, check=check, name=name: check(name)))
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
