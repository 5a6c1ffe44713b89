"""The Anthropic client for Python."""

import asyncio
import json
import time

import anthropic
import pytest

import fleet
from fleet import ERROR, MODEL, PIXEL, REPLICA, REPLICAS, ROUTER, ROUTERS, cancelled, counts, gone, journal, metric, outstanding, run, running, until, words

feature = pytest.mark.feature
# The URL is without /v1, which the client adds. No retries: a retry of the client would hide a failure of the router.
client = anthropic.Anthropic(base_url=ROUTER, api_key="unused", max_retries=0, timeout=20)
nobody = anthropic.Anthropic(base_url=ROUTERS["nobody"], api_key="unused", max_retries=0, timeout=20)
hasty = anthropic.Anthropic(base_url=ROUTERS["hasty"], api_key="unused", max_retries=0, timeout=20)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris"]}, "days": {"type": "integer"}}, "required": ["city", "days"]}
TOOL = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}


def user(content):
    return [{"role": "user", "content": content}]


def ask(client=client, **more):
    return client.messages.create(**{"model": MODEL, "messages": user("Hello."), "max_tokens": 3, **more})


def refused(kind, call):
    """Exactly this exception; the body is in Anthropic's form."""
    with pytest.raises(anthropic.APIStatusError) as caught:
        call()
    assert type(caught.value) is kind, repr(caught.value)
    assert caught.value.body["type"] == "error" and caught.value.body["error"]["message"]
    return caught.value


@feature("plain")
def test_plain():
    before = {name: journal(name)["finished"] for name in REPLICAS}
    raw = client.messages.with_raw_response.create(model=MODEL, messages=user("Hello."), max_tokens=6)
    message = raw.parse()
    assert (message.type, message.role, message.model, message.stop_reason) == ("message", "assistant", MODEL, "max_tokens")
    assert message.content[0].type == "text" and len(message.content[0].text.split()) == 6 == message.usage.output_tokens
    replica = raw.headers[REPLICA]
    assert {name: journal(name)["finished"] - before[name] for name in REPLICAS} == {name: int(name == replica) for name in REPLICAS}


@feature("plain")
def test_system_and_stop():
    texts = [ask(**system).content[0].text for system in ({}, {"system": "Be kind."}, {"system": [{"type": "text", "text": "Be curt."}]})]
    assert len(set(texts)) == 3, "it matters"
    stop = texts[0].split()[1]
    stopped = ask(stop_sequences=[f" {stop}"])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == f" {stop}"
    assert stopped.content[0].text == texts[0][: texts[0].index(f" {stop}")]


@feature("raw responses")
def test_raw_response_shows_the_router():
    raw = client.messages.with_raw_response.create(model=MODEL, messages=user("Hello."), max_tokens=2)
    assert raw.headers[REPLICA] in REPLICAS and raw.headers["x-prefix-router-reason"] == "home"
    assert raw.http_response.json()["content"][0]["text"] == raw.parse().content[0].text
    with client.messages.with_streaming_response.create(model=MODEL, messages=user("Hello."), max_tokens=2, stream=True) as streamed:
        assert streamed.headers[REPLICA] == raw.headers[REPLICA]
        assert "event: message_start" in list(streamed.iter_lines())


@feature("streaming")
def test_stream():
    kinds = [event.type for event in ask(stream=True)]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("content_block_delta") == 3
    whole = ask(max_tokens=60, extra_body={"ignore_eos": True})
    start, at, texts = time.monotonic(), [], []
    with client.messages.stream(model=MODEL, messages=user("Hello."), max_tokens=60, extra_body={"ignore_eos": True}) as stream:
        for text in stream.text_stream:
            at.append(time.monotonic() - start)
            texts.append(text)
        final = stream.get_final_message()
    assert len(texts) == 60 and "".join(texts) == whole.content[0].text == final.content[0].text
    # As they are made, which takes 0.7 s; not all at the end.
    assert at[-1] - at[0] > 0.25, at
    assert final.stop_reason == "max_tokens" and final.usage.output_tokens == 60
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) + (whole.usage.cache_creation_input_tokens or 0) > 3


@feature("multi-turn")
def test_turns_share_a_replica_and_its_cache():
    system, messages, homes, cached = words(900), user("Begin."), [], []
    for turn in range(3):
        raw = client.messages.with_raw_response.create(model=MODEL, system=system, messages=messages, max_tokens=20)
        message = raw.parse()
        homes.append(raw.headers[REPLICA])
        cached.append(message.usage.cache_read_input_tokens or 0)
        messages += [{"role": "assistant", "content": message.content}, *user(f"Turn {turn}.")]
    assert len(set(homes)) == 1 and cached[0] == 0 and 800 < cached[1] < cached[2], (homes, cached)


@feature("tools")
@pytest.mark.parametrize("choice", [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools(choice):
    messages = user("Weather?")
    message = ask(messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=60)
    [call] = message.content
    assert message.stop_reason == "tool_use" and call.type == "tool_use" and call.id and call.name == "get_weather"
    assert call.input["city"] == "Paris" and isinstance(call.input["days"], int)
    messages += [{"role": "assistant", "content": message.content}]
    messages += user([{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}])
    said = ask(messages=messages, tools=[TOOL], max_tokens=4)
    assert [block.type for block in said.content] == ["text"] and len(said.content[0].text.split()) == 4


@feature("streamed tools")
def test_streamed_tools():
    with client.messages.stream(model=MODEL, messages=user("Weather?"), tools=[TOOL], max_tokens=60) as stream:
        events = list(stream)
        final = stream.get_final_message()
    parts = [event.partial_json for event in events if event.type == "input_json"]
    assert len(parts) > 1 and json.loads("".join(parts)) == final.content[0].input
    assert final.stop_reason == "tool_use" and final.content[0].input["city"] == "Paris"


@feature("images")
@pytest.mark.parametrize("source", [{"type": "url", "url": "http://127.0.0.1:9/cat.png"}, {"type": "base64", "media_type": "image/png", "data": PIXEL}])
def test_images(source):
    text = {"type": "text", "text": "What is it?"}
    count = lambda content: client.messages.count_tokens(model=MODEL, messages=user(content)).input_tokens  # noqa: E731
    message = ask(messages=user([{"type": "image", "source": source}, text]))
    assert message.content[0].text and count([{"type": "image", "source": source}, text]) > count([text]) + 200


@feature("structured output")
def test_structured_output():
    schema = {**SCHEMA, "additionalProperties": False}
    message = ask(output_config={"format": {"type": "json_schema", "schema": schema}}, max_tokens=60)
    assert json.loads(message.content[0].text)["city"] == "Paris" and message.stop_reason == "end_turn"


@feature("token counting")
def test_count_tokens():
    short = client.messages.count_tokens(model=MODEL, messages=user("Hello."))
    long = client.messages.count_tokens(model=MODEL, messages=user("Hello."), system=words(100), tools=[TOOL])
    assert 0 < short.input_tokens and short.input_tokens + 100 < long.input_tokens
    used = ask().usage
    assert short.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0) + (used.cache_creation_input_tokens or 0)


@feature("models")
def test_models():
    assert [model.id for model in client.models.list()] == [MODEL]


@feature("identifiers")
def test_identifier_places_alike():
    def home(name):
        raw = client.messages.with_raw_response.create(
            model=MODEL, messages=user("The same."), max_tokens=1, extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": name}
        )
        return raw.headers[REPLICA]

    homes = {f"tenant-{n}": home(f"tenant-{n}") for n in range(16)}
    assert set(homes.values()) == set(REPLICAS) and all(home(name) == homes[name] for name in list(homes)[:4])


@feature("async")
def test_async():
    async def go():
        async with anthropic.AsyncAnthropic(base_url=ROUTER, api_key="unused", max_retries=0, timeout=20) as client:
            many = await asyncio.gather(*(ask(client, messages=user(f"{n}")) for n in range(12)))
            async with client.messages.stream(model=MODEL, messages=user("Hello."), max_tokens=5) as stream:
                texts = [text async for text in stream.text_stream]
                final = await stream.get_final_message()
            return many, texts, final

    many, texts, final = run(go())
    assert len({message.content[0].text for message in many}) > 6
    assert len(texts) == 5 and "".join(texts) == final.content[0].text


@feature("errors")
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(stream):
    error = refused(anthropic.NotFoundError, lambda: ask(model="no-such-model", stream=stream))
    assert "no-such-model" in error.api_message and error.response.headers[REPLICA] in REPLICAS and ERROR not in error.response.headers
    error = refused(anthropic.NotFoundError, lambda: ask(nobody, model="no-such-model", stream=stream))
    assert error.response.headers[ERROR] == "model_not_found" and error.type == "not_found_error"


@feature("errors")
def test_refusals():
    error = refused(anthropic.BadRequestError, lambda: ask(max_tokens=10**7))
    assert error.response.headers[REPLICA] in REPLICAS and ERROR not in error.response.headers
    received = counts()["received"]
    error = refused(anthropic.BadRequestError, lambda: ask(extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": "x" * 65}))
    assert error.response.headers[ERROR] == "bad_identifier" and error.type == "invalid_request_error"
    assert counts()["received"] == received
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        client.post("/sleep", cast_to=object)
    assert caught.value.response.headers[ERROR] == "path_not_exposed"


@feature("errors")
@pytest.mark.parametrize("stream", [False, True])
def test_nobody_takes_it(stream):
    error = refused(anthropic.InternalServerError, lambda: ask(nobody, stream=stream))
    assert error.status_code == 502 and error.response.headers[ERROR] == "connect_failed" and error.type == "api_error"
    fleet.busy(429, retry_after="7")
    error = refused(anthropic.RateLimitError, lambda: ask(stream=stream))
    assert error.status_code == 429 and error.response.headers["retry-after"] == "7"
    fleet.no_faults()
    fleet.busy(503)
    error = refused(anthropic.ServiceUnavailableError, lambda: ask(stream=stream))
    assert error.status_code == 503 and error.response.headers[REPLICA] in REPLICAS
    fleet.no_faults()
    fleet.breaks("connect")
    error = refused(anthropic.InternalServerError, lambda: ask(stream=stream))
    assert error.status_code == 502 and error.response.headers[ERROR] == "replica_broke"


@feature("errors")
def test_answer_breaks():
    fleet.breaks(1)
    with pytest.raises(anthropic.APIConnectionError) as caught:
        ask()
    assert type(caught.value) is anthropic.APIConnectionError


@feature("broken streams")
def test_stream_breaks():
    fleet.breaks(5)
    texts = []
    with pytest.raises(anthropic.APIStatusError) as caught, client.messages.stream(
        model=MODEL, messages=user("Hello."), max_tokens=50
    ) as stream:
        for text in stream.text_stream:
            texts.append(text)
    # The router's event, not a mere loss of the connection.
    assert 0 < len(texts) < 5 and caught.value.body["error"]["type"] == "api_error" and "mid-stream" in str(caught.value)


@feature("retries unseen")
def test_one_bad_replica_is_not_seen():
    fleet.busy(429, "r1")
    fleet.breaks("connect", "r2")
    retries = metric("prefix_router_retries_total")
    asked = metric("prefix_router_requests_total", route="messages")
    for n in range(12):
        raw = client.messages.with_raw_response.create(model=MODEL, messages=user(f"{n}"), max_tokens=1)
        assert raw.headers[REPLICA] == "r3" and raw.parse().content[0].text
    assert metric("prefix_router_retries_total") > retries
    assert metric("prefix_router_requests_total", route="messages") == asked + 12


@feature("timeouts")
def test_timeouts():
    left, aborted = metric("prefix_router_client_aborts_total"), counts()["aborted"]
    fleet.silent()
    with pytest.raises(anthropic.APITimeoutError):
        ask(client.with_options(timeout=0.4))
    until(lambda: metric("prefix_router_client_aborts_total") == left + 1, 2, "the router counts a client that left")
    until(lambda: counts()["aborted"] == aborted + 1, 2, "the replica sees that it left")
    error = refused(anthropic.GatewayTimeoutError, lambda: ask(hasty))
    assert error.status_code == 504 and error.response.headers[ERROR] == "first_byte_timeout" and error.type == "timeout_error"


ENDLESS = {"model": MODEL, "messages": user("Go on."), "max_tokens": 2000, "extra_body": {"ignore_eos": True}}


@feature("cancel")
def test_closed_stream():
    left, aborted = metric("prefix_router_client_aborts_total"), {name: journal(name)["aborted"] for name in REPLICAS}
    with client.messages.stream(**ENDLESS) as stream:
        assert next(iter(stream.text_stream))
        [replica] = [name for name, value in outstanding().items() if value]
        assert running(replica) == 1
    gone(replica, aborted[replica], left)


@feature("cancel")
def test_cancelled_task():
    async def go():
        async with anthropic.AsyncAnthropic(base_url=ROUTER, api_key="unused", max_retries=0) as client:

            async def chunks():
                async with client.messages.stream(**ENDLESS) as stream:
                    async for text in stream.text_stream:
                        yield text

            await cancelled(chunks)

    run(go())
