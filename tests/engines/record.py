"""Sends a fixed sequence of requests, one after another, to one vLLM replica, and writes what it counted for each: one JSON line a request.

tests/fixtures/engines/README.md describes the file. The replica must be fresh: its prefix cache empty, its counters at 0.
"""

import argparse
import json
import random

import httpx

from fleet import LABEL, SAMPLE, until

MASK = (1 << 64) - 1
REQUESTS = 100


def token(seed, i):
    """Token number i of a seed. Plain tokens only: 1,000 to 40,999."""
    x = ((seed << 32) + i) * 0x9E3779B97F4A7C15 & MASK
    x ^= x >> 32
    x = x * 0xD6E8FEB86659FD93 & MASK
    x ^= x >> 32
    return 1000 + x % 40000


def sequence(block, blocks, seed=1):
    """The requests: (segments, salt, max_tokens). A {"turn": k} of the result is the index of an earlier request."""
    rng = random.Random(seed)
    fresh = iter(range(1, 1000))  # seeds of texts

    def text(tokens, seed=None):
        return {"seed": next(fresh) if seed is None else seed, "tokens": tokens}

    # A thread is a list of requests that keep their order; its {"turn": k} counts within the thread.
    threads = []
    for n in (1, block - 1, block, block + 1, 2 * block - 1, 2 * block, 2 * block + 1, 4 * block):
        prompt = [text(n)]
        threads.append([(prompt, None, 2), (prompt, None, 1)])
    # The answer ends just before, at and just after a block's end; what extends it shows which of its tokens are in the cache.
    for prompt, out in ((-4, 3), (-4, 4), (-4, 5), (0, block), (0, block + 1), (1, 1), (0, 1), (-1, 1), (-1, 2), (-5, 38)):
        first = [text(2 * block + prompt)]
        threads.append([(first, None, out), ([{"turn": 0}, text(block + 8)], None, 1)])
    for first, turns in ((5 * block + 3, 5), (7, 5), (12 * block, 4)):
        chat = [([text(first)], None, rng.randint(1, 40))]
        for k in range(turns - 1):
            chat.append(([{"turn": k}, text(rng.randint(3, 50))], None, rng.randint(1, 40)))
        threads.append(chat)
    for n in (3 * block, 12 * block + block // 2, 40 * block + 1):
        head = text(n)
        threads.append([([head, text(rng.randint(1, 3 * block))], None, rng.randint(1, 40)) for _ in range(3)])
    head = text(6 * block + 5)
    salted = [([head], salt, 3) for salt in (None, "a", "b", "a", None)]
    salted += [([{"turn": 1}, text(20)], salt, 30) for salt in ("a", "b")]
    threads.append(salted)
    threads.append([([{"ids": [1, 2, 3, 40000, 40001, 49151]}, text(block)], None, 9)])
    rng.shuffle(threads)

    # The bulk that evicts: long texts, more than the cache holds, asked again whole, cut short or extended.
    heads = [(text(rng.randint(25, 70) * block + rng.randint(0, block - 1))) for _ in range(9)]
    bulk = []
    near = text((blocks - 1) * block - 30)  # with 30 tokens of answer it takes all blocks but the one that vLLM keeps for itself
    todo = REQUESTS - 3 - sum(map(len, threads))
    for n in range(todo):
        head = heads[n] if n < 4 else heads[min(rng.randrange(9), rng.randrange(9))]
        cut = rng.choice((1, 1, 0.5, 0.8))
        prompt = [text(int(head["tokens"] * cut), head["seed"])]
        if rng.random() < 0.5:
            prompt.append(text(rng.randint(1, 2 * block)))
        bulk.append((prompt, None, rng.randint(1, 40)))
    half = text(near["tokens"] // 2, near["seed"])
    bulk[todo * 2 // 3 : todo * 2 // 3] = [([near], None, 30), ([half], None, 5), ([near], None, 30)]

    # A few threads at a time, so that the requests of one come close to each other but rarely at once.
    done, running, waiting = [], [(bulk, 0, [])], threads
    while running or waiting:
        while waiting and len(running) < 4:
            running.append((waiting.pop(), 0, []))
        at = rng.choices(range(len(running)), [3 if thread is bulk else 2 for thread, _, _ in running])[0]
        thread, next_one, indices = running.pop(at)
        prompt, salt, max_tokens = thread[next_one]
        indices.append(len(done))
        prompt = [{"turn": indices[part["turn"]]} if "turn" in part else part for part in prompt]
        done.append((prompt, salt, max_tokens))
        if next_one + 1 < len(thread):
            running.insert(at, (thread, next_one + 1, indices))
    return done


def expand(prompt, turns):
    ids = []
    for part in prompt:
        if "turn" in part:
            ids += turns[part["turn"]]
        elif "ids" in part:
            ids += part["ids"]
        else:
            ids += (token(part["seed"], i) for i in range(part["tokens"]))
    return ids


class Engine:
    def __init__(self, url):
        self.http = httpx.Client(base_url=url, timeout=300)

    def get(self, path):
        return self.http.get(path).raise_for_status()

    def samples(self):
        for line in self.get("/metrics").text.splitlines():
            if m := SAMPLE.match(line):
                yield m[1], dict(LABEL.findall(m[2] or "")), float(m[3])

    def counted(self):
        counts = dict.fromkeys(("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"), 0)
        for name, _, value in self.samples():
            if name in counts:
                counts[name] += int(value)
        return tuple(counts.values())

    def settings(self):
        cache = next(labels for name, labels, _ in self.samples() if name == "vllm:cache_config_info")
        scheduler = self.get("/server_info?config_format=json").json()["vllm_config"]["scheduler_config"]
        return {
            "engine": "vllm",
            "version": self.get("/version").json()["version"],
            "model": self.get("/v1/models").json()["data"][0]["id"],
            "block_size": int(cache["block_size"]),
            "num_gpu_blocks": int(cache["num_gpu_blocks"]),
            "max_num_batched_tokens": scheduler["max_num_batched_tokens"],
        }


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--replica", required=True, help="base URL")
    p.add_argument("--out", required=True, help="file of JSON lines, written anew")
    a = p.parse_args()
    engine = Engine(a.replica)
    settings = engine.settings()
    before = engine.counted()
    assert before == (0, 0), f"the replica has counted before: {before}"
    turns = []
    with open(a.out, "w") as out:
        print(json.dumps(settings), file=out)
        for prompt, salt, max_tokens in sequence(settings["block_size"], settings["num_gpu_blocks"]):
            ids = expand(prompt, turns)
            body = {
                "model": settings["model"],
                "prompt": ids,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,  # so that every answer has its full length
                "return_token_ids": True,
            }
            if salt is not None:
                body["cache_salt"] = salt
            answer = engine.http.post("/v1/completions", json=body).raise_for_status().json()
            usage, output = answer["usage"], answer["choices"][0]["token_ids"]
            assert len(output) == max_tokens, answer
            # The counters come a moment after the answer. Both move in one step.
            until(lambda: engine.counted()[0] > before[0], 10, "the request is counted")
            now = engine.counted()
            line = {
                "prompt": prompt,
                "salt": salt,
                "max_tokens": max_tokens,
                "output": output,
                "prompt_tokens": usage["prompt_tokens"],
                "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
                "queries": now[0] - before[0],
                "hits": now[1] - before[1],
            }
            print(json.dumps(line, separators=(",", ":")), file=out)
            before = now
            turns.append(ids + output)
    print(f"{len(turns)} requests: {before[0]} tokens asked for, {before[1]} found")


if __name__ == "__main__":
    main()
