"""What must hold with the real client in front and real engines behind. A check fails by raising, and returns what it saw."""

import concurrent.futures
import time

import openai

from fleet import until, words

# Greedy, so that equal prompts have equal answers. A model with random weights then says one word again and again,
# and a mixed-up stream would look right: hence the penalties. The Messages API has none.
GREEDY = {"temperature": 0, "max_tokens": 48}
VARIED = {**GREEDY, "presence_penalty": 2, "frequency_penalty": 2}
PREFIX_LENGTH = 4096  # what the router is started with
USES = 4  # from the fifth on, of so few prompts in all, the automatic length takes a beginning for common and looks behind it


class Skip(Exception):
    """The engine itself does not do what the check is about."""


def check_models(f):
    ids = [m.id for m in f.openai.models.list()]
    assert ids == [f.model], ids
    return f"{ids}"


def check_unknown_model(f):
    for stream in (False, True):
        error = refused(f, openai.NotFoundError, model="no-such-model", messages=user("hi"), stream=stream)
    return error


def check_too_long_prompt(f):
    for stream in (False, True):
        error = refused(f, openai.BadRequestError, model=f.model, messages=user(words("long", 9000)), stream=stream)
    return error


def check_surfaces_answer(f):
    """Each surface answers 200 with a whole engine answer, and with the text that a replica gives when asked directly."""
    chat = {"model": f.model, "messages": user("Say something."), **VARIED}
    text = {"model": f.model, "prompt": "Once upon a time", **VARIED}
    message = {"model": f.model, "messages": user("Say something."), **GREEDY}
    surfaces = [
        ("/v1/chat/completions", chat, chat_text),
        ("/v1/completions", text, completion_text),
        ("/v1/responses", {"model": f.model, "input": "Say it.", "temperature": 0, "max_output_tokens": 48}, responses_text),
        ("/v1/messages", message, messages_text),
        ("/invocations", chat, chat_text),
        ("/invocations", text, completion_text),
    ]
    for path, body, read in surfaces:
        answers = []
        for base in (next(iter(f.replicas.values())), f.router):
            response = f.http.post(base + path, json=body)
            assert response.status_code == 200, f"{base}{path}: {response.status_code} {response.text[:300]}"
            assert response.json()["model"] == f.model, response.text
            answers.append(read(response.json()))
        f.chosen(response)
        assert answers[0] and answers[0] == answers[1], f"{path}: directly {answers[0]!r}, routed {answers[1]!r}"
    return ", ".join(dict.fromkeys(path for path, _, _ in surfaces))


def check_embeddings(f):
    body = {"model": f.model, "input": "hello"}
    direct = f.http.post(f"{next(iter(f.replicas.values()))}/v1/embeddings", json=body)
    if direct.status_code != 200:
        routed = f.http.post(f"{f.router}/v1/embeddings", json=body)
        same = (routed.status_code, routed.content) == (direct.status_code, direct.content)
        assert same, f"the engine says {direct.status_code} {direct.text}, the router {routed.status_code} {routed.text}"
        raise Skip(f"the engine itself says {direct.status_code} {direct.text}, and so does the router")
    raw = f.openai.embeddings.with_raw_response.create(**body)
    f.chosen(raw)
    vector = raw.parse().data[0].embedding
    assert len(vector) > 1 and any(vector), vector
    return f"{len(vector)} dimensions"


def check_streamed_equals_whole(f):
    """At temperature 0 the pieces of a stream add up to the text of the answer that is not streamed, on every surface."""
    for n in range(4):
        prompt = words(f"stream {n}", 60)
        chat = {"model": f.model, "messages": user(prompt), **VARIED}
        whole = f.openai.chat.completions.create(**chat)
        chunks = list(f.openai.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
        choices = [choice for chunk in chunks for choice in chunk.choices]
        same("chat", whole.choices[0].message.content, [c.delta.content or "" for c in choices])
        assert choices[-1].finish_reason == whole.choices[0].finish_reason, choices[-1]
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens, chunks[-1]

        text = {"model": f.model, "prompt": prompt, **VARIED}
        whole = f.openai.completions.create(**text)
        chunks = f.openai.completions.create(**text, stream=True)
        same("completions", whole.choices[0].text, [c.choices[0].text for c in chunks])

        penalties = {"presence_penalty": 2, "frequency_penalty": 2}
        reply = {"model": f.model, "input": prompt, "temperature": 0, "max_output_tokens": 48, "extra_body": penalties}
        whole = f.openai.responses.create(**reply)
        events = f.openai.responses.create(**reply, stream=True)
        same("responses", whole.output_text, [e.delta for e in events if e.type == "response.output_text.delta"])

        message = {"model": f.model, "messages": user(prompt), "max_tokens": 48, "extra_body": {"temperature": 0}}
        whole = f.anthropic.messages.create(**message)
        with f.anthropic.messages.stream(**message) as stream:
            same("messages", whole.content[0].text, list(stream.text_stream))
    return "chat, completions, responses, messages; 4 prompts each"


def check_stream_comes_as_it_is_made(f):
    start = time.monotonic()
    at = [time.monotonic() - start for _ in long_stream(f, max_tokens=64)[1]]
    assert at[0] < 0.5 * at[-1], f"first chunk after {at[0]:.2f} s of {at[-1]:.2f} s"
    return f"{len(at)} chunks, the first after {at[0]:.2f} s, the last after {at[-1]:.2f} s"


def check_closed_stream(f):
    """A stream that the client closes in mid-way ends at the router and in the engine, long before its 6,000 tokens."""
    made = f.engine("vllm:generation_tokens_total")
    replica, stream = long_stream(f, max_tokens=6000)
    for n, _ in enumerate(stream):
        if n == 20:
            break
    expected = {name: float(name == replica) for name in f.replicas}
    until(lambda: f.outstanding() == expected, 2, f"one request outstanding, on {replica}")
    until(lambda: f.engine("vllm:num_requests_running") == expected, 2, f"one request running, on {replica}")
    stream.close()
    router, engine = both_at_rest(f, replica, engine_seconds=5)
    tokens = f.engine("vllm:generation_tokens_total")[replica] - made[replica]
    assert tokens < 2000, f"the engine made {tokens:.0f} tokens"
    return f"outstanding 0 after {router * 1000:.0f} ms, engine idle after {engine * 1000:.0f} ms and {tokens:.0f} tokens"


def check_client_gone_before_first_byte(f):
    """The same for a client that gives up while the engine still reads the prompt; nothing has been answered then."""
    client = f.openai.with_options(timeout=0.3)
    try:
        client.chat.completions.create(
            model=f.model, messages=user(words(f"gone {time.time()}", 6000)), max_tokens=2000, extra_body={"ignore_eos": True}
        )
        raise AssertionError("answered within 0.3 s")
    except openai.APITimeoutError:
        pass
    # An engine drops a request between two steps, and counts what runs after a step; one step may read much of the prompt.
    router, engine = both_at_rest(f, None, engine_seconds=30)
    time.sleep(5)
    running = f.engine("vllm:num_requests_running")
    assert not any(running.values()), f"running again: {running}"
    return f"outstanding 0 after {router * 1000:.0f} ms, engine idle after {engine * 1000:.0f} ms"


def check_equal_prefixes_share_a_home(f):
    """Prompts equal in their first 4,096 characters go to one replica, by the header and by the engines' own counters."""
    f.reset_caches()
    counters = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total")
    before = [f.engine(name) for name in counters]
    asked, cached = dict.fromkeys(f.replicas, 0), dict.fromkeys(f.replicas, 0)
    homes = []

    def ask(prompt):
        raw = f.openai.chat.completions.with_raw_response.create(model=f.model, messages=user(prompt), max_tokens=1)
        return f.chosen(raw), raw.parse().usage

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        heads = [words(f"home {key}", 1200)[:PREFIX_LENGTH] for key in range(8)]
        prompts = [[head + words(f"tail {key} {n}", 200) for key, head in enumerate(heads)] for n in range(USES)]
        # In turn, since a prefix that is most of the traffic is no key where the length is worked out. The first of each alone, so that the others
        # find its blocks.
        rounds = [[ask(prompt) for prompt in prompts[0]], *(list(pool.map(ask, some)) for some in prompts[1:])]
        for key, answers in enumerate(zip(*rounds)):
            for n, (replica, usage) in enumerate(answers):
                found = usage.prompt_tokens_details.cached_tokens
                assert replica == answers[0][0], f"prefix {key}: {[a[0] for a in answers]}"
                assert n == 0 or found > 0.6 * usage.prompt_tokens, f"{replica} had {found} of {usage.prompt_tokens} tokens"
                asked[replica] += usage.prompt_tokens
                cached[replica] += found
            homes.append(answers[0][0])
    assert len(set(homes)) > 1, f"all prefixes have one home: {homes[0]}"

    def agree():
        now = [f.engine(name) for name in counters]
        return all(n[r] - b[r] == said[r] for n, b, said in zip(now, before, (asked, cached)) for r in f.replicas)

    until(agree, 5, f"the engines' counters agree with the answers: queries {asked}, hits {cached}")
    return f"8 prefixes x {USES} on {homes}; tokens asked {asked}, cached {cached}"


def check_beginnings_are_looked_for_where_they_are(f):
    """What was computed at the only replica that was not drained is found there afterwards, though the others are back and idle."""
    f.reset_caches()
    holder, *others = f.replicas
    heads = [words(f"elsewhere {key}", 800) for key in range(4)]

    def ask(head, tail):
        prompt = f"{head} {words(f'elsewhere {tail}', 50)}"
        raw = f.openai.chat.completions.with_raw_response.create(model=f.model, messages=user(prompt), max_tokens=1)
        return f.chosen(raw), raw.headers["x-prefix-router-reason"], raw.parse().usage

    for other in others:
        f.drain(other)
    try:
        for head in heads:
            assert ask(head, 0)[0] == holder
    finally:
        for other in others:
            f.drain(other, "undrain")
    reasons = []
    for key, head in enumerate(heads):
        for tail in (1, 2):
            replica, reason, usage = ask(head, tail)
            found = usage.prompt_tokens_details.cached_tokens
            assert replica == holder, f"prefix {key} is at {holder}, {replica} was chosen as {reason}"
            assert found > 0.6 * usage.prompt_tokens, f"{replica} had {found} of {usage.prompt_tokens} tokens"
            reasons.append(reason)
    assert "cached" in reasons, f"all of them have their home there: {reasons}"
    return f"4 prefixes x 2 on {holder}, of which {reasons.count('cached')} have another home"


def check_at_rest(f):
    until(lambda: not any(f.outstanding().values()), 2, f"nothing outstanding: {f.outstanding()}")
    return "nothing outstanding on any replica"


# Of which strategies a check is; all others are of all.
ONLY_OF = {
    check_equal_prefixes_share_a_home: ("prefix_aware", "cache_aware"),
    check_beginnings_are_looked_for_where_they_are: ("cache_aware",),
}


def of_router(strategy):
    """The checks for a router with that strategy: (name, function), in the order in which they stand above."""
    for name, check in globals().items():
        if name.startswith("check_") and strategy.startswith(ONLY_OF.get(check, "")):
            yield name.removeprefix("check_"), check


def user(text):
    return [{"role": "user", "content": text}]


def refused(f, kind, **request):
    try:
        f.openai.chat.completions.create(**request)
    except kind as error:
        assert error.body and error.body["message"], f"no message in {error.body}"
        return f"{error.status_code} {error.body['message'][:60]}"
    raise AssertionError(f"no {kind.__name__}")


def long_stream(f, max_tokens):
    raw = f.openai.chat.completions.with_raw_response.create(
        model=f.model, messages=user("Go on."), max_tokens=max_tokens, stream=True, extra_body={"ignore_eos": True}
    )
    return f.chosen(raw), raw.parse()


def both_at_rest(f, replica, engine_seconds):
    """Seconds until the router and the engines hold no request (of one replica, or of all)."""
    names = [replica] if replica else list(f.replicas)
    router = until(lambda: not any(f.outstanding()[n] for n in names), 2, f"nothing outstanding on {names}")
    engine = until(lambda: not any(f.engine("vllm:num_requests_running")[n] for n in names), engine_seconds, f"idle: {names}")
    return router, router + engine


def same(surface, whole, pieces):
    assert len(pieces) > 1, f"{surface}: streamed in {len(pieces)} piece"
    assert whole and whole == "".join(pieces), f"{surface}: whole {whole!r}, streamed {''.join(pieces)!r}"


def chat_text(body):
    assert body["object"] == "chat.completion" and body["usage"]["prompt_tokens"] > 0, body
    assert body["choices"][0]["finish_reason"] in ("stop", "length"), body
    return body["choices"][0]["message"]["content"]


def completion_text(body):
    assert body["object"] == "text_completion" and body["usage"]["prompt_tokens"] > 0, body
    assert body["choices"][0]["finish_reason"] in ("stop", "length"), body
    return body["choices"][0]["text"]


def responses_text(body):
    assert body["object"] == "response" and body["usage"]["input_tokens"] > 0, body
    assert body["status"] in ("completed", "incomplete"), body
    return body["output"][-1]["content"][0]["text"]


def messages_text(body):
    assert body["type"] == "message" and body["role"] == "assistant" and body["usage"]["input_tokens"] > 0, body
    assert body["stop_reason"] in ("end_turn", "max_tokens"), body
    return body["content"][0]["text"]
