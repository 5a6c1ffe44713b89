"""The kinds of requests that clients send, and what is a true answer to each."""

import base64
import json
import random
import re

MODEL = "demo-model"
CONTENT_TYPES = {"json": "application/json", "stream": "text/event-stream"}

# kind -> weight in the mix
MIX = {
    "chat": 32, "chat stream": 24, "long stream": 5, "prefill stream": 2, "large chat": 1,
    "completion": 11, "completion stream": 9, "message": 6, "message stream": 10,
}  # fmt: skip

# What a misbehaving server of ours writes, so that it is known wherever it turns up.
MARK = b"from a broken server"


class Ask:
    """One request."""

    def __init__(self, kind, rng, long_tokens=120):
        self.kind = kind
        self.id = f"{rng.getrandbits(64):016x}"
        self.streams = kind.endswith("stream")
        self.family = next((family for family in ("completion", "message") if kind.startswith(family)), "chat")
        self.tokens = {"long stream": long_tokens, "chat": 4, "message": 4}.get(kind, 8)
        self.path = {"completion": "/v1/completions", "message": "/v1/messages", "chat": "/v1/chat/completions"}[self.family]
        self.body = json.dumps(self.fields(rng)).encode()

    def fields(self, rng):
        # No two prompts begin alike: they spread over the ring.
        text = f"{rng.getrandbits(64):016x} says hello"
        if self.kind == "prefill stream":
            text += " and more" * 1000
        content = text
        if self.kind == "large chat":
            image = base64.b64encode(rng.randbytes(200_000)).decode()
            content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}]
        fields = {"model": MODEL, "max_tokens": self.tokens}
        if self.family == "completion":
            fields["prompt"] = text
        else:
            fields["messages"] = [{"role": "user", "content": content}]
        if self.family != "message":
            fields |= {"min_tokens": self.tokens, "ignore_eos": True}
        if self.streams:
            fields["stream"] = True
            if self.family != "message":
                fields["stream_options"] = {"include_usage": True}
        return fields

    def request(self, host="router"):
        head = f"POST {self.path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\nx-request-id: {self.id}\r\n"
        return f"{head}content-length: {len(self.body)}\r\n\r\n".encode() + self.body


def mixed(rng, mix=None):
    """Kinds without end, as often as the mix says."""
    mix = mix or MIX
    kinds, weights = list(mix), list(mix.values())
    while True:
        yield from rng.choices(kinds, weights, k=256)


OK, FAILED, CUT, TWICE, WRONG = "ok", "failed", "cut", "twice", "wrong"


def judge(ask, answer):
    """(verdict, why). `failed`: nothing of an answer came. `cut`: it broke off, and said so. `twice`: parts of two answers. `wrong`: anything else."""
    if answer.extra:
        return TWICE, f"{len(answer.extra)} bytes after the end: {answer.extra[:80]!r}"
    if answer.status != 200:
        error = answer.headers.get("x-prefix-router-error", "")
        return FAILED, f"status {answer.status} {error}" if answer.status else answer.broken
    if not answer.body and not answer.whole:
        return FAILED, answer.broken
    if MARK in answer.body and ask.id.encode() in answer.body:
        return TWICE, "a broken server's bytes and a replica's in one answer"
    return (judge_stream if ask.streams else judge_json)(ask, answer)


def judge_json(ask, answer):
    if not answer.whole:
        return CUT, answer.broken
    try:
        found = json.loads(answer.body)
        usage = found["usage"]
        tokens = usage.get("completion_tokens", usage.get("output_tokens"))
        if ask.family == "message":
            (text,) = (part["text"] for part in found["content"])
        else:
            (choice,) = found["choices"]
            text = choice["text"] if ask.family == "completion" else choice["message"]["content"]
        words = len(text.split())
    except (ValueError, KeyError, TypeError) as error:
        return WRONG, f"no answer: {error!r} in {answer.body[:120]!r}"
    if ask.id not in found["id"]:
        return WRONG, f"somebody else's answer: {found['id']}"
    # An answer that ends by itself has one token more than words.
    if tokens - words not in (0, 1) or tokens > ask.tokens:
        return WRONG, f"{words} words for {tokens} tokens"
    return OK, ""


ID = re.compile(rb'"id":"([^"]*)"')
USAGE = re.compile(rb'"(?:completion|output)_tokens":(\d+)')
BEGINS = {"chat": b'"role":"assistant"', "message": b"event: message_start\n", "completion": None}
WORD = {"chat": b'"delta":{"content":"', "message": b"event: content_block_delta\n", "completion": b'"text":" '}
ENDS = {"chat": b"data: [DONE]\n\n", "message": b"event: message_stop\n", "completion": b"data: [DONE]\n\n"}
ERROR = re.compile(rb'(?:^|\n\n)(?:event: error\n)?data: \{"(?:error"|type":"error")')


def judge_stream(ask, answer):
    body = answer.body
    ids = set(ID.findall(body))
    begins = body.count(BEGINS[ask.family]) if BEGINS[ask.family] else 1
    ends = body.count(ENDS[ask.family])
    words = body.count(WORD[ask.family])
    if len(ids) > 1 or begins > 1 or ends > 1:
        return TWICE, f"ids {sorted(ids)}, {begins} beginnings, {ends} ends"
    if ids and ask.id.encode() not in next(iter(ids)):
        return WRONG, f"somebody else's answer: {ids}"
    if words > ask.tokens:
        return TWICE, f"{words} words, {ask.tokens} were asked for"
    if not answer.whole and "event-stream" not in answer.headers.get("content-type", ""):
        # Something else came than was asked for; where that ends early there is no event to tell of it.
        return CUT, answer.broken
    if not answer.whole:
        if ends:
            return (OK, "") if ends_well(ask, body) else (WRONG, "it says that it is over, and was cut")
        if not ERROR.search(body):
            return WRONG, f"cut without an error event ({answer.broken}): {body[-120:]!r}"
        return CUT, answer.broken
    usage = USAGE.findall(body)
    if not ids or begins != 1 or ends != 1 or not ends_well(ask, body) or not usage:
        return WRONG, f"looks whole and is not: {begins} beginnings, {words} words, {ends} ends: {body[-120:]!r}"
    if int(usage[-1]) - words not in (0, 1):
        return WRONG, f"{words} words for {int(usage[-1])} tokens"
    return OK, ""


def ends_well(ask, body):
    return ENDS[ask.family] in body[-80:]


def seeded(seed):
    return random.Random(seed)
