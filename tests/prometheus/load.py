#!/usr/bin/env python3
"""Requests for a router, at random times, whatever becomes of those before them: questions about documents under one system prompt, streamed and
not, and what real clients do besides: some leave early, some name a model that nobody serves. Needs nothing but Python.

    load.py --url http://127.0.0.1:8080 --model demo-model --rate 20

At its end, or on SIGTERM, it prints how many requests had which end, as JSON.
"""

import argparse
import asyncio
import collections
import functools
import json
import random
import signal
import urllib.parse

WORDS = "account ahead answer before cable carry change choice copy day door early each fact field first form give ground hand home idea into keep".split()


@functools.cache
def text(name, length):
    """Words that follow from the name, and so on up to a number of characters."""
    source = random.Random(name)
    words = []
    while sum(map(len, words)) + len(words) < length:
        words.append(source.choice(WORDS))
    return " ".join(words)[:length]


class Load:
    def __init__(self, arguments):
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.urls = [urllib.parse.urlsplit(url) for url in arguments.url]
        self.ends = collections.Counter()
        self.number = 0

    def body(self):
        """A request's body, as a dictionary."""
        settings, self.number = self.arguments, self.number + 1
        hot = self.random.random() < settings.hot
        document = "hot" if hot else int(self.random.random() ** settings.skew * settings.documents)
        question = "the same" if hot else f"{settings.seed} {self.number}"
        model = self.random.choice(settings.model)
        if self.random.random() < settings.unknown:
            model = "a-model-that-nobody-serves"
        prompt = text(f"document {document}", settings.document_characters) + "\n\n" + text(f"question {question}", 120)
        messages = [
            {"role": "system", "content": text("system", settings.system_characters)},
            {"role": "user", "content": prompt},
        ]
        body = {"model": model, "messages": messages, "max_tokens": settings.tokens}
        if self.random.random() < settings.streams:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    async def request(self, url, body, leaves):
        """How it ended: a status, `left`, or what broke."""
        writer = None
        try:
            reader, writer = await asyncio.open_connection(url.hostname, url.port)
            content = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content)
            await writer.drain()
            answer = await reader.readline()
            if leaves:
                return "left"
            whole = answer + await reader.read()
            status = answer.split()[1].decode() if answer else "nothing"
            is_whole = b"data: [DONE]" in whole or not body.get("stream") or status != "200"
            return status if is_whole else "cut"
        except (OSError, IndexError) as error:
            return type(error).__name__
        finally:
            if writer:
                writer.close()

    async def one(self):
        leaves = self.random.random() < self.arguments.leave
        self.ends[await self.request(self.random.choice(self.urls), self.body(), leaves)] += 1

    async def run(self):
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        running, clock = set(), asyncio.get_running_loop().time
        begun = due = clock()
        while not ended.is_set() and not 0 < self.arguments.seconds < clock() - begun:
            due += self.random.expovariate(self.arguments.rate)
            try:
                await asyncio.wait_for(ended.wait(), max(0, due - clock()))
            except TimeoutError:
                task = asyncio.create_task(self.one())
                running.add(task)
                task.add_done_callback(running.discard)
        if running:
            await asyncio.wait(running, timeout=20)
        print(json.dumps(self.ends), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", nargs="+", required=True, help="routers; each request goes to one of them")
    parser.add_argument("--model", nargs="+", default=["demo-model"])
    parser.add_argument("--rate", type=float, default=20, help="requests per second (default: 20)")
    parser.add_argument("--seconds", type=float, default=0, help="for so long (default: until it is stopped)")
    parser.add_argument("--documents", type=int, default=40, help="that questions are about (default: 40)")
    parser.add_argument("--skew", type=float, default=1, help="2: the first quarter of the documents has half of the questions (default: 1, all alike)")
    parser.add_argument("--system-characters", type=int, default=2000, help="of the system prompt that all have (default: 2000)")
    parser.add_argument("--document-characters", type=int, default=6000, help="of each document (default: 6000)")
    parser.add_argument("--tokens", type=int, default=16, help="of an answer, at most (default: 16)")
    parser.add_argument("--hot", type=float, default=0, help="share of requests that are one and the same prompt (default: 0)")
    parser.add_argument("--streams", type=float, default=0.7, help="share of requests that are streamed (default: 0.7)")
    parser.add_argument("--leave", type=float, default=0.01, help="share of clients that leave when the answer begins (default: 0.01)")
    parser.add_argument("--unknown", type=float, default=0.01, help="share of requests for a model that nobody serves (default: 0.01)")
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(Load(parser.parse_args()).run())


if __name__ == "__main__":
    main()
