"""The OpenAI client for Python: what it sees when something fails."""

import asyncio
import time

import openai
import pytest

import fleet
from fleet import ERROR, MODEL, REPLICA, REPLICAS, ROUTERS, counts, gone, metric, until
from test_openai import asyncly, client, endless, home, user

feature = pytest.mark.feature
nobody = openai.OpenAI(base_url=f"{ROUTERS['nobody']}/v1", api_key="unused", max_retries=0, timeout=20)
hasty = openai.OpenAI(base_url=f"{ROUTERS['hasty']}/v1", api_key="unused", max_retries=0, timeout=20)


def ask(client=client, **more):
    return client.chat.completions.create(**{"model": MODEL, "messages": user("Hello."), "max_tokens": 3, **more})


def refused(kind, call):
    """Exactly this exception, with the status that belongs to it."""
    with pytest.raises(openai.APIStatusError) as caught:
        call()
    assert type(caught.value) is kind, repr(caught.value)
    return caught.value


@feature("errors")
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_model(stream):
    error = refused(openai.NotFoundError, lambda: ask(model="no-such-model", stream=stream))
    # The replica's own words.
    assert error.status_code == 404 and "no-such-model" in error.message and error.param == "model"
    assert error.response.headers[REPLICA] in REPLICAS and ERROR not in error.response.headers
    assert error.request_id
    # The router's, where it knows which models there are.
    error = refused(openai.NotFoundError, lambda: ask(nobody, model="no-such-model", stream=stream))
    assert error.code == "model_not_found" == error.response.headers[ERROR] and error.param == "model"
    assert "no-such-model" in error.message and error.type == "invalid_request_error"


@feature("errors")
def test_bad_parameters():
    error = refused(openai.BadRequestError, lambda: ask(temperature=-1))
    assert "temperature" in error.message and error.response.headers[REPLICA] in REPLICAS and ERROR not in error.response.headers
    error = refused(openai.BadRequestError, lambda: ask(max_tokens=10**7))
    assert "max_tokens" in error.message
    refused(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="Hi", max_output_tokens=0))
    error = refused(openai.BadRequestError, lambda: client.completions.create(model=MODEL, prompt="Hi", max_tokens=0))
    assert "max_tokens" in error.message


@feature("errors")
@pytest.mark.parametrize("name", ["x" * 65, "a\tb", ""])
def test_bad_identifier(name):
    before = counts()["received"]
    error = refused(openai.BadRequestError, lambda: ask(extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": name}))
    assert error.code == "bad_identifier" == error.response.headers[ERROR] and REPLICA not in error.response.headers
    assert "1 to 64" in error.message and error.type == "invalid_request_error"
    assert counts()["received"] == before, "no replica was asked"


@feature("errors")
def test_path_not_exposed():
    error = refused(openai.PermissionDeniedError, lambda: client.with_options(base_url=fleet.ROUTER).post("/sleep", cast_to=object))
    assert error.status_code == 403 and error.code == "path_not_exposed" == error.response.headers[ERROR]
    error = refused(openai.PermissionDeniedError, lambda: client.post("/load_lora_adapter", cast_to=object, body={}))
    assert error.code == "path_not_exposed"


@feature("errors")
@pytest.mark.parametrize("stream", [False, True])
def test_all_replicas_are_busy(stream):
    fleet.busy(429, retry_after="7")
    before = counts()["received"]
    error = refused(openai.RateLimitError, lambda: ask(stream=stream))
    assert error.status_code == 429 and error.response.headers["retry-after"] == "7"
    assert error.response.headers[REPLICA] in REPLICAS and ERROR not in error.response.headers
    assert counts()["received"] == before + 3, "each replica was asked once"
    fleet.no_faults()
    fleet.busy(503, retry_after="5")
    error = refused(openai.InternalServerError, lambda: ask(stream=stream))
    assert error.status_code == 503 and error.response.headers["retry-after"] == "5"
    fleet.no_faults()
    fleet.busy(500)
    error = refused(openai.InternalServerError, lambda: ask(stream=stream))
    assert error.status_code == 500 and ERROR not in error.response.headers


@feature("errors")
def test_nobody_is_there():
    error = refused(openai.InternalServerError, lambda: ask(nobody))
    assert error.status_code == 502 and error.code == "connect_failed" == error.response.headers[ERROR]
    assert error.type == "server_error"
    error = refused(openai.InternalServerError, lambda: nobody.models.list())
    assert error.status_code == 503 and error.code == "no_replica" and error.response.headers["retry-after"] == "1"


@feature("errors")
def test_all_replicas_break_before_the_answer():
    for at in ("connect", "head"):
        fleet.breaks(at)
        for stream in (False, True):
            error = refused(openai.InternalServerError, lambda: ask(stream=stream))
            assert error.status_code == 502 and error.code == "replica_broke" == error.response.headers[ERROR]
        fleet.no_faults()


@feature("errors")
def test_answer_breaks():
    """Half of an answer that is no stream: what is missing cannot be told, so the connection is cut."""
    fleet.breaks(1)
    with pytest.raises(openai.APIConnectionError) as caught:
        ask()
    assert type(caught.value) is openai.APIConnectionError


@feature("errors")
@pytest.mark.no_router
def test_no_router():
    with pytest.raises(openai.APIConnectionError) as caught:
        ask(client.with_options(base_url="http://127.0.0.1:9/v1"))
    assert type(caught.value) is openai.APIConnectionError


@feature("broken streams")
def test_stream_breaks():
    fleet.breaks(4)
    texts = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in ask(stream=True, max_tokens=50):
            texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    error = caught.value
    # The router's event, not a mere loss of the connection.
    assert type(error) is openai.APIError and error.code == "replica_broke" and error.type == "server_error", repr(error)
    assert 0 < len(texts) < 5 and "mid-stream" in error.message
    with pytest.raises(openai.APIError) as caught:
        list(client.completions.create(model=MODEL, prompt="Hello", max_tokens=50, stream=True))
    assert type(caught.value) is openai.APIError and caught.value.code == "replica_broke"
    assert metric("prefix_router_errors_total", error="replica_broke") >= 2


@feature("broken streams")
def test_responses_stream_breaks():
    """The Responses API has an event of its own for errors; the client hands it on, and then finds that the connection is cut."""
    fleet.breaks(6)
    events = []
    with pytest.raises(openai.APIConnectionError):
        for event in client.responses.create(model=MODEL, input="Hello.", max_output_tokens=50, stream=True):
            events.append(event)
    assert events[-1].type == "error" and events[-1].code == "replica_broke", events[-1]
    assert "response.output_text.delta" in [event.type for event in events]


@feature("broken streams")
def test_stream_breaks_async():
    fleet.breaks(4)

    async def go(client):
        chunks = []
        with pytest.raises(openai.APIError) as caught:
            async for chunk in await client.chat.completions.create(model=MODEL, messages=user("Hi"), max_tokens=50, stream=True):
                chunks.append(chunk)
        return chunks, caught.value

    chunks, error = asyncly(go)
    assert chunks and type(error) is openai.APIError and error.code == "replica_broke"


@feature("retries unseen")
@pytest.mark.parametrize("status", [429, 503])
def test_one_busy_replica_is_not_seen(status):
    fleet.busy(status, "r1")
    busy = metric("prefix_router_retries_total", cause="busy")
    asked = metric("prefix_router_requests_total")
    homes = [home(client.chat.completions.with_raw_response.create(model=MODEL, messages=user(f"{n}"), max_tokens=1)) for n in range(16)]
    assert "r1" not in homes and set(homes) == {"r2", "r3"}
    assert metric("prefix_router_retries_total", cause="busy") > busy, "some had their home there"
    assert metric("prefix_router_requests_total") == asked + 16, "the client did not retry"
    with_events = [list(ask(messages=user(f"{n}"), max_tokens=1, stream=True)) for n in range(4)]
    assert all(chunks[-1].choices[0].finish_reason for chunks in with_events)


@feature("retries unseen")
def test_one_breaking_replica_is_not_seen():
    fleet.breaks("connect", "r2")
    broke = metric("prefix_router_retries_total", cause="broke")
    homes = [home(client.chat.completions.with_raw_response.create(model=MODEL, messages=user(f"{n}"), max_tokens=1)) for n in range(16)]
    assert set(homes) == {"r1", "r3"} and metric("prefix_router_retries_total", cause="broke") > broke


@feature("retries unseen")
def test_the_client_retries_by_itself():
    """What the router cannot help is the client's to repeat: it heeds the replica's Retry-After."""
    fleet.busy(429, retry_after="1")
    asked = metric("prefix_router_requests_total", route="chat_completions")
    start = time.monotonic()

    async def go(client):
        task = asyncio.create_task(client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=user("Hi"), max_tokens=1))
        while metric("prefix_router_requests_total", route="chat_completions") == asked:
            await asyncio.sleep(0.02)
        fleet.no_faults()
        return await task

    assert asyncly(go).choices[0].message.content
    assert metric("prefix_router_requests_total", route="chat_completions") == asked + 2
    assert time.monotonic() - start > 0.9


@feature("timeouts")
def test_timeout_of_the_client():
    left, before = metric("prefix_router_client_aborts_total"), counts()["aborted"]
    fleet.silent()
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.4))
    until(lambda: metric("prefix_router_client_aborts_total") == left + 1, 2, "the router counts a client that left")
    until(lambda: counts()["aborted"] == before + 1, 2, "the replica sees that it left")


@feature("timeouts")
def test_timeout_in_mid_stream():
    """The replica falls silent after some events."""
    left, aborted = metric("prefix_router_client_aborts_total"), {name: fleet.journal(name)["aborted"] for name in REPLICAS}
    raw = endless(client, timeout=0.6)
    chunks = []
    with pytest.raises(openai.APITimeoutError):
        for chunk in raw.parse():
            chunks.append(chunk)
            if len(chunks) == 3:
                fleet.slow()
    assert len(chunks) >= 3
    gone(home(raw), aborted[home(raw)], left)


@feature("timeouts")
def test_timeouts_of_the_router():
    fleet.silent()
    error = refused(openai.InternalServerError, lambda: ask(hasty))
    assert error.status_code == 504 and error.code == "first_byte_timeout" == error.response.headers[ERROR]
    fleet.no_faults()
    chunks = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in ask(hasty, stream=True, max_tokens=50):
            chunks.append(chunk)
            if len(chunks) == 3:
                fleet.slow()
    assert len(chunks) >= 3 and type(caught.value) is openai.APIError and caught.value.code == "idle_timeout"
