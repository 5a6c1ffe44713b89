"""The workloads, which are the same for every strategy: long prefixes, each shared by several requests, in a shuffled order; conversations of several turns."""

import collections
import concurrent.futures
import math
import random
import time
import typing

from fleet import words

MAX_TOKENS = 8
PREFIX_WORDS = 2000
# Words of a conversation's first message, and of each further one.
OPENING_WORDS, TURN_WORDS = 600, 150


def documents(seed, prefixes, uses):
    """Sessions of one request each: a system prompt and what the user says."""
    order = [(prefix, use) for prefix in range(prefixes) for use in range(uses)]
    random.Random(seed).shuffle(order)
    heads = [words(f"{seed} prefix {n}", PREFIX_WORDS) for n in range(prefixes)]
    return [(heads[prefix], [words(f"{seed} tail {prefix} {use}", 12)]) for prefix, use in order]


def chat(seed, conversations, turns):
    """Sessions of several turns, each of which begins with all turns before it and their answers."""

    def turn(conversation, number):
        return words(f"{seed} conversation {conversation} {number}", TURN_WORDS if number else OPENING_WORDS)

    return [("Answer briefly.", [turn(conversation, number) for number in range(turns)]) for conversation in range(conversations)]


def run(f, name, sessions, clients, seed):
    """Every session, `clients` at one time; of each the turns one after the other, each through one router by chance."""

    def request(client, messages):
        start = time.monotonic()
        first = usage = None
        text = ""
        raw = client.chat.completions.with_raw_response.create(
            model=f.model,
            messages=messages,
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},  # so that every request is the same work
        )
        for chunk in raw.parse():
            first = first or time.monotonic()
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        end = time.monotonic()
        assert usage.completion_tokens == MAX_TOKENS, usage
        cached = usage.prompt_tokens_details.cached_tokens
        return text, Answered(f.chosen(raw), first - start, end - start, usage.prompt_tokens, cached)

    def session(number):
        # The same routers whichever session is faster.
        rng = random.Random(f"{seed} routers of {number}")
        system, turns = sessions[number]
        messages, done = [{"role": "system", "content": system}], []
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            text, answered = request(rng.choice(f.clients), messages)
            messages.append({"role": "assistant", "content": text})
            done.append(answered)
        return done

    warm_up(f)
    f.reset_caches()
    queries, hits = f.engine("vllm:prefix_cache_queries_total"), f.engine("vllm:prefix_cache_hits_total")
    choices, forecast, aborts = f.choices(), f.forecast(), f.client_aborts()
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:  # a client takes the next request when its last one ended
        done = [request for requests in pool.map(session, range(len(sessions))) for request in requests]
    seconds = time.monotonic() - start
    time.sleep(1)  # an engine counts a moment after it has answered
    queries = sum(f.engine("vllm:prefix_cache_queries_total").values()) - sum(queries.values())
    hits = sum(f.engine("vllm:prefix_cache_hits_total").values()) - sum(hits.values())
    choices, forecast = f.choices() - choices, difference(f.forecast(), forecast)

    share = collections.Counter(answered.replica for answered in done)
    counted = collections.Counter()
    for (replica, _), count in choices.items():
        counted[replica] += int(count)
    assert counted == share, f"the router counts {dict(counted)}, its headers say {dict(share)}"
    tokens = [answered.prompt_tokens for answered in done]
    assert queries == sum(tokens), f"the engines were asked for {queries} tokens, the prompts have {sum(tokens)}"
    new = sum(len(text.split()) for text in {system for system, _ in sessions} | {turn for _, turns in sessions for turn in turns})
    assert hits <= queries - new, "the caches were not empty at the start"
    cached = collections.Counter()
    for answered in done:
        cached[answered.replica] += answered.cached_tokens
    assert hits == sum(cached.values()), f"the engines count {hits} tokens found, their answers {dict(cached)}"
    return {
        "workload": name,
        "seed": seed,
        "routers": len(f.clients),
        "requests": len(done),
        "sessions": len(sessions),
        "clients": clients,
        "prompt_tokens_mean": round(sum(tokens) / len(tokens)),
        "seconds": round(seconds, 2),
        "requests_per_second": round(len(done) / seconds, 2),
        "ttft_ms": percentiles([answered.ttft for answered in done]),
        "e2e_ms": percentiles([answered.e2e for answered in done]),
        "token_hit_rate": round(hits / queries, 4),
        "query_tokens": int(queries),
        "hit_tokens": int(hits),
        "share": {replica: round(share[replica] / len(done), 3) for replica in f.replicas},
        "cached_tokens": {replica: cached[replica] for replica in f.replicas},
        "forecast": {replica: {kind: round(forecast.get((replica, kind), 0)) for kind in ("predicted", "observed")} for replica in f.replicas} if forecast else None,
        "overflow": sum(int(count) for (_, reason), count in choices.items() if reason == "overflow"),
        # No client leaves early here: the OpenAI client may close its connection on reading `[DONE]`, but that is the answer's end.
        "client_aborts": f.client_aborts() - aborts,
        "choices": {f"{replica} {reason}": int(count) for (replica, reason), count in sorted(choices.items())},
    }


class Answered(typing.NamedTuple):
    replica: str
    ttft: float
    e2e: float
    prompt_tokens: int
    cached_tokens: int


def difference(now, before):
    """Of counters; nothing is left out that is 0, as its series are there."""
    return {key: value - before[key] for key, value in now.items()}


def warm_up(f):
    """One long prompt straight to each replica, so that no strategy pays for what an engine does only once."""
    for url in f.replicas.values():
        body = {"model": f.model, "prompt": words("warm", PREFIX_WORDS), "max_tokens": MAX_TOKENS}
        f.http.post(f"{url}/v1/completions", json=body).raise_for_status()


def percentiles(seconds):
    """Nearest rank, in milliseconds."""
    ranked = sorted(seconds)
    return {f"p{p}": round(1000 * ranked[math.ceil(p / 100 * len(ranked)) - 1], 1) for p in (50, 90)}
