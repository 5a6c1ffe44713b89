"""The fleet under test as a client and an operator see it: the replicas, and the router or routers in front of them."""

import collections
import random
import re
import time

import anthropic
import httpx
import openai

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
REPLICA_HEADER = "x-prefix-router-replica"
# One token each, so that a text of N words is N tokens.
WORDS = """time people way day man thing woman life child world school state family student group country problem
hand part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city name president team minute idea body information back parent
face level office door health person art war history party result change morning reason research moment air""".split()


def words(seed, count):
    """The same text for the same seed, on every machine."""
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(count))


def until(condition, seconds, what):
    """Polls until the condition holds and says how long that took; too long is a failure."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - start


class Fleet:
    def __init__(self, routers, admins, replicas, model):
        self.router, self.admins, self.replicas, self.model = routers[0], admins, replicas, model
        # No retries: a retry of the client would hide a failure of the router.
        self.clients = [openai.OpenAI(base_url=f"{router}/v1", api_key="unused", max_retries=0, timeout=300) for router in routers]
        # The checks of one router alone go to the first.
        self.openai = self.clients[0]
        self.anthropic = anthropic.Anthropic(base_url=self.router, api_key="unused", max_retries=0, timeout=300)
        self.http = httpx.Client(timeout=300)

    def samples(self, url, name):
        """(labels, value) of each sample of one metric."""
        for line in self.http.get(f"{url}/metrics").raise_for_status().text.splitlines():
            m = SAMPLE.match(line)
            if m and m[1] == name:
                yield dict(LABEL.findall(m[2] or "")), float(m[3])

    def engine(self, name):
        """One metric of every engine, from the engine itself: {replica: value}."""
        values = {}
        for replica, url in self.replicas.items():
            found = [value for _, value in self.samples(url, name)]
            assert found, f"{replica} has no metric {name}"
            values[replica] = sum(found)
        return values

    def counted(self, name, *by):
        """A metric of the routers together, by the values of some labels."""
        counts = collections.Counter()
        for admin in self.admins:
            for labels, value in self.samples(admin, name):
                counts[tuple(labels[label] for label in by)] += value
        return counts

    def outstanding(self):
        values = {replica: value for (replica,), value in self.counted("prefix_router_outstanding", "replica").items()}
        assert values.keys() == self.replicas.keys(), f"prefix_router_outstanding is there for {sorted(values)}"
        return values

    def choices(self):
        """What the routers have chosen so far: {(replica, reason): count}."""
        return self.counted("prefix_router_choices_total", "replica", "reason")

    def forecast(self):
        """Cached tokens of answers so far, as they were predicted and as engines said: {(replica, kind): tokens}. Empty where nobody predicts."""
        return self.counted("prefix_router_forecast_cached_tokens_total", "replica", "kind")

    def client_aborts(self):
        """Clients that left before the end of their answer, as the routers count them."""
        return int(sum(self.counted("prefix_router_client_aborts_total").values()))

    def drain(self, replica, order="drain"):
        for admin in self.admins:
            self.http.post(f"{admin}/api/v1/replicas/{replica}/{order}").raise_for_status()

    def chosen(self, response):
        """The replica that answered, by the response's header."""
        replica = response.headers.get(REPLICA_HEADER)
        assert replica in self.replicas, f"{REPLICA_HEADER}: {replica}"
        return replica

    def reset_caches(self):
        # A block in use is not dropped, so the engines must be idle first.
        until(lambda: not any(self.engine("vllm:num_requests_running").values()), 30, "all engines idle")
        for url in self.replicas.values():
            self.http.post(f"{url}/reset_prefix_cache").raise_for_status()
