"""The OpenAI client for Python: everything that works."""

import asyncio
import json
import time
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from fleet import MODEL, PIXEL, REPLICA, REPLICAS, ROUTER, cancelled, counts, gone, journal, metric, outstanding, run, running, until, words

feature = pytest.mark.feature
# No retries: a retry of the client would hide a failure of the router.
client = openai.OpenAI(base_url=f"{ROUTER}/v1", api_key="unused", max_retries=0, timeout=20)
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}
RESPONSES_TOOL = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": WEATHER, "strict": True}


class Step(BaseModel):
    explanation: str
    number: int


class Solution(BaseModel):
    steps: list[Step]
    verdict: Literal["right", "wrong"]


def user(content):
    return [{"role": "user", "content": content}]


def asyncly(what):
    """Runs `what(client)` with an async client."""

    async def go():
        async with openai.AsyncOpenAI(base_url=f"{ROUTER}/v1", api_key="unused", max_retries=0, timeout=20) as client:
            return await what(client)

    return run(go())


def home(raw):
    """The replica that answered, by the router's header, which must be one of ours."""
    assert raw.headers[REPLICA] in REPLICAS
    return raw.headers[REPLICA]


@feature("plain")
def test_plain():
    before = {name: journal(name)["finished"] for name in REPLICAS}
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("Say something."), max_tokens=6)
    answer = raw.parse()
    assert (answer.object, answer.model, len(answer.choices)) == ("chat.completion", MODEL, 1)
    choice = answer.choices[0]
    assert (choice.message.role, choice.finish_reason, len(choice.message.content.split())) == ("assistant", "length", 6)
    assert answer.usage.completion_tokens == 6 and answer.usage.prompt_tokens > 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    grown = {name: journal(name)["finished"] - before[name] for name in REPLICAS}
    assert grown == {name: int(name == home(raw)) for name in REPLICAS}
    again = client.chat.completions.create(model=MODEL, messages=user("Say something."), max_tokens=6)
    assert again.choices[0].message.content == choice.message.content
    assert again.id != answer.id


@feature("plain")
def test_parameters():
    plain = client.chat.completions.create(model=MODEL, messages=user("Go on and on."), max_completion_tokens=8)
    text = plain.choices[0].message.content
    stop = text.split()[3]
    stopped = client.chat.completions.create(model=MODEL, messages=user("Go on and on."), max_tokens=8, stop=[f" {stop}"])
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].message.content == text[: text.index(f" {stop}")]
    several = client.chat.completions.create(
        model=MODEL, messages=user("Several."), max_tokens=4, n=3, temperature=0.5, top_p=0.9, seed=7, logprobs=True, top_logprobs=1
    )
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in several.choices}) == 3
    assert len(several.choices[0].logprobs.content) == 4


@feature("raw responses")
def test_raw_response_shows_the_router():
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=user("Raw."), max_tokens=2, extra_headers={"x-request-id": "raw-1"}
    )
    assert home(raw) and raw.headers["x-prefix-router-reason"] == "home" and raw.http_response.status_code == 200
    assert json.loads(raw.text)["choices"][0]["message"]["content"] == raw.parse().choices[0].message.content
    with client.chat.completions.with_streaming_response.create(
        model=MODEL, messages=user("Raw."), max_tokens=2, stream=True
    ) as streamed:
        assert home(streamed) == home(raw)
        lines = list(streamed.iter_lines())
    assert lines[0].startswith("data: {") and [line for line in lines if line][-1] == "data: [DONE]"


@feature("streaming")
def test_stream():
    whole = client.chat.completions.create(model=MODEL, messages=user("Stream."), max_tokens=60, extra_body={"ignore_eos": True})
    stream = client.chat.completions.create(
        model=MODEL,
        messages=user("Stream."),
        max_tokens=60,
        extra_body={"ignore_eos": True},
        stream=True,
        stream_options={"include_usage": True},
    )
    start, at, chunks = time.monotonic(), [], []
    for chunk in stream:
        at.append(time.monotonic() - start)
        chunks.append(chunk)
    deltas = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(deltas) == 60 and "".join(deltas) == whole.choices[0].message.content
    # A chunk for each token, and as they are made, which takes 0.7 s; not all at the end.
    assert at[-1] - at[1] > 0.25, at
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 60
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


@feature("streaming")
def test_stream_helper():
    # Not bounded: the helper takes an answer that is cut off for an error.
    with client.chat.completions.stream(model=MODEL, messages=user("Stream.")) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event.delta for event in events if event.type == "content.delta"]
    assert len(deltas) > 10 and "".join(deltas) == final.choices[0].message.content
    assert "content.done" in [event.type for event in events] and final.choices[0].finish_reason == "stop"


@feature("multi-turn")
def test_turns_share_a_replica_and_its_cache():
    messages = [{"role": "system", "content": words(900)}, *user("Begin.")]
    homes, cached = [], []
    for turn in range(3):
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=messages, max_tokens=20)
        answer = raw.parse()
        homes.append(home(raw))
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
        if turn:
            # All but the last, unfinished block of the turn before.
            assert cached[-1] > 0.9 * before, f"{cached} of {before}"
        before = answer.usage.prompt_tokens
        messages += [answer.choices[0].message.model_dump(exclude_none=True), *user(f"Turn {turn}.")]
    assert len(set(homes)) == 1, homes
    assert cached[0] == 0 < cached[1] < cached[2]
    assert journal(homes[0])["last"][-1]["cached_tokens"] == cached[2]


@feature("multi-turn")
def test_prefixes_spread_over_the_replicas():
    raw = client.chat.completions.with_raw_response
    homes = {home(raw.create(model=MODEL, messages=user(words(30)), max_tokens=1)) for _ in range(16)}
    assert homes == set(REPLICAS)


@feature("tools")
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools(choice):
    """The whole loop: the model calls, the client answers the call, the model speaks."""
    ask = {"model": MODEL, "tools": [TOOL], "tool_choice": choice, "max_tokens": 60}
    messages = user("What is the weather?")
    answer = client.chat.completions.create(messages=messages, **ask).choices[0]
    # As in vLLM and OpenAI, a call that the client named ends with `stop`.
    assert answer.finish_reason == ("stop" if isinstance(choice, dict) else "tool_calls")
    [call] = answer.message.tool_calls
    assert call.type == "function" and call.id and call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] == "Paris" and arguments["days"] >= 1
    messages += [answer.message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    said = client.chat.completions.create(messages=messages, **{**ask, "tool_choice": "auto", "max_tokens": 4}).choices[0]
    assert said.message.tool_calls is None and len(said.message.content.split()) == 4


@feature("tools")
def test_no_tool_where_none_may_be_called():
    said = client.chat.completions.create(
        model=MODEL, messages=user("Weather?"), tools=[TOOL], tool_choice="none", max_tokens=3
    ).choices[0]
    assert not said.message.tool_calls and said.message.content


@feature("streamed tools")
def test_streamed_tools():
    ask = {"model": MODEL, "messages": user("Weather?"), "tools": [TOOL], "max_tokens": 60}
    whole = client.chat.completions.create(**ask).choices[0].message.tool_calls[0]
    name, call, parts, finish = None, None, [], None
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for delta in choice.delta.tool_calls or []:
                name, call = delta.function.name or name, delta.id or call
                parts.append(delta.function.arguments or "")
    assert name == "get_weather" and call and finish == "tool_calls"
    assert len([part for part in parts if part]) > 1 and "".join(parts) == whole.function.arguments
    with client.chat.completions.stream(**ask) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.name for event in done] == ["get_weather"] and json.loads(done[0].arguments)["city"] == "Paris"


@feature("images")
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/cat.png", f"data:image/png;base64,{PIXEL}"])
def test_images(url):
    def ask(url):
        content = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        return client.chat.completions.create(model=MODEL, messages=user(content), max_tokens=4)

    answer, other = ask(url), ask(url + "#other")
    assert answer.usage.prompt_tokens > 200, "an image has tokens"
    assert answer.choices[0].message.content != other.choices[0].message.content, "and matters"


@feature("structured output")
def test_json_mode():
    answer = client.chat.completions.create(
        model=MODEL, messages=user("As JSON."), response_format={"type": "json_object"}, max_tokens=60
    ).choices[0]
    assert answer.finish_reason == "stop" and isinstance(json.loads(answer.message.content), dict)


@feature("structured output")
def test_parse():
    parsed = client.chat.completions.parse(model=MODEL, messages=user("Solve."), response_format=Solution, max_tokens=100)
    solution = parsed.choices[0].message.parsed
    assert isinstance(solution, Solution) and solution.verdict == "right" and isinstance(solution.steps, list)
    response = client.responses.parse(model=MODEL, input="Solve.", text_format=Solution, max_output_tokens=100)
    assert isinstance(response.output_parsed, Solution) and response.output_parsed.verdict == "right"
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model=MODEL, messages=user("Solve."), response_format=Solution, max_tokens=2)


@feature("embeddings")
def test_embeddings():
    # The client asks for base64 by itself, and decodes it.
    default = client.embeddings.create(model=MODEL, input=["one", "two"])
    floats = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float", extra_headers={"accept": "application/json"})
    assert [one.index for one in default.data] == [0, 1] and default.usage.prompt_tokens > 0
    one, two = (item.embedding for item in default.data)
    assert one != two and abs(sum(value * value for value in one) - 1) < 1e-3
    assert all(abs(a - b) < 1e-6 for a, b in zip(one, floats.data[0].embedding, strict=True))
    raw = client.embeddings.with_raw_response.create(model=MODEL, input="one", encoding_format="base64")
    assert home(raw) and isinstance(json.loads(raw.text)["data"][0]["embedding"], str)


@feature("completions")
def test_completions():
    whole = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5)
    assert (whole.object, whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("text_completion", "length", 5)
    stream = client.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=5, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [choice.text for chunk in chunks for choice in chunk.choices if choice.text]
    assert len(texts) == 5 and "".join(texts) == whole.choices[0].text and chunks[-1].usage.completion_tokens == 5
    many = client.completions.create(model=MODEL, prompt=["One", "Two"], max_tokens=2, n=2, echo=True)
    assert [choice.index for choice in many.choices] == [0, 1, 2, 3] and many.choices[2].text.startswith("Two")
    tokens = client.completions.create(model=MODEL, prompt=[11, 12, 13], max_tokens=2)
    assert tokens.usage.prompt_tokens == 3


@feature("responses")
def test_responses():
    raw = client.responses.with_raw_response.create(model=MODEL, instructions="Be brief.", input="Hello.", max_output_tokens=6)
    answer = raw.parse()
    assert home(raw) and answer.object == "response" and answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens" and len(answer.output_text.split()) == 6
    assert answer.usage.output_tokens == 6 and answer.instructions == "Be brief."
    turns = [{"role": "user", "content": "Hello."}, *answer.output, {"role": "user", "content": [{"type": "input_text", "text": "And?"}]}]
    assert client.responses.create(model=MODEL, instructions="Be brief.", input=turns, max_output_tokens=3).output_text
    picture = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}]
    seen = client.responses.create(model=MODEL, input=[{"role": "user", "content": picture}], max_output_tokens=3)
    assert seen.usage.input_tokens > 200


@feature("responses")
def test_responses_stream():
    whole = client.responses.create(model=MODEL, input="Hello.", max_output_tokens=8)
    events = list(client.responses.create(model=MODEL, input="Hello.", max_output_tokens=8, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) == 8 and "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == 8
    with client.responses.stream(model=MODEL, input="Hello.") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == text


@feature("responses")
def test_responses_tools():
    ask = {"model": MODEL, "tools": [RESPONSES_TOOL], "max_output_tokens": 60}
    turns = [{"role": "user", "content": "Weather?"}]
    answer = client.responses.create(input=turns, **ask)
    [call] = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "get_weather" and json.loads(call.arguments)["city"] == "Paris" and answer.status == "completed"
    events = list(client.responses.create(input=turns, **ask, stream=True))
    parts = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(parts) > 1 and "".join(parts) == call.arguments
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert done.arguments == call.arguments and done.name == "get_weather"
    turns += [call, {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert client.responses.create(input=turns, **ask).output_text
    forced = client.responses.create(input=turns, **ask, tool_choice={"type": "function", "name": "get_weather"})
    assert [item.type for item in forced.output] == ["function_call"]


@feature("models")
def test_models():
    page = client.models.list()
    assert [model.id for model in page] == [MODEL] and page.data[0].owned_by == "vllm"


@feature("identifiers")
@pytest.mark.parametrize("how", ["prompt_cache_key", "header"])
def test_identifier_places_alike(how):
    """One prompt: each identifier has one home of its own; together they have all."""

    def ask(name):
        given = {"prompt_cache_key": name} if how == "prompt_cache_key" else {"extra_headers": {"X-Amzn-SageMaker-Prefix-Aware-Id": name}}
        return home(client.chat.completions.with_raw_response.create(model=MODEL, messages=user("The same."), max_tokens=1, **given))

    homes = {f"tenant-{n}": ask(f"tenant-{n}") for n in range(16)}
    assert set(homes.values()) == set(REPLICAS), homes
    assert all(ask(name) == homes[name] for name in list(homes)[:4])
    # The longest name there may be; a body's may be longer.
    assert ask("x" * 64) in REPLICAS
    answer = client.responses.with_raw_response.create(model=MODEL, input="The same.", prompt_cache_key="tenant-3", max_output_tokens=1)
    assert answer.headers[REPLICA] == homes["tenant-3"], "one home on all chat-like surfaces"


@feature("async")
def test_async_many_at_once():
    async def go(client):
        async def one(n):
            answer = await client.chat.completions.create(model=MODEL, messages=user(f"{n}"), max_tokens=3)
            return answer.choices[0].message.content

        return await asyncio.gather(*map(one, range(24)))

    before = counts()["finished"]
    texts = asyncly(go)
    assert len(texts) == 24 and len(set(texts)) > 12 and all(len(text.split()) == 3 for text in texts)
    assert counts()["finished"] == before + 24


@feature("async")
def test_async_stream():
    async def go(client):
        stream = await client.chat.completions.create(model=MODEL, messages=user("Stream."), max_tokens=6, stream=True)
        deltas = [choice.delta.content async for chunk in stream for choice in chunk.choices if choice.delta.content]
        events = [event.type async for event in await client.responses.create(model=MODEL, input="Hi", max_output_tokens=3, stream=True)]
        models = [model.id async for model in client.models.list()]
        raw = await client.embeddings.with_raw_response.create(model=MODEL, input="one")
        return deltas, events, models, raw.headers[REPLICA]

    deltas, events, models, replica = asyncly(go)
    assert len(deltas) == 6 and events.count("response.output_text.delta") == 3 and models == [MODEL] and replica in REPLICAS


def endless(client, **more):
    """A stream of 2,000 tokens; nobody waits for its end."""
    return client.chat.completions.with_raw_response.create(
        model=MODEL, messages=user("Go on."), max_tokens=2000, stream=True, extra_body={"ignore_eos": True}, **more
    )


@feature("cancel")
def test_closed_stream():
    left = metric("prefix_router_client_aborts_total")
    aborted = {name: journal(name)["aborted"] for name in REPLICAS}
    raw = endless(client)
    stream = raw.parse()
    for n, _ in enumerate(stream):
        if n == 3:
            break
    assert outstanding()[home(raw)] == 1 and running(home(raw)) == 1
    stream.close()
    gone(home(raw), aborted[home(raw)], left)


@feature("cancel")
def test_cancelled_task():
    async def go(client):
        async def chunks():
            async for chunk in (await endless(client)).parse():
                yield chunk

        await cancelled(chunks)

    asyncly(go)


@feature("cancel")
def test_cancelled_before_the_first_byte():
    left = metric("prefix_router_client_aborts_total")
    before = counts()["aborted"]

    async def go(client):
        task = asyncio.create_task(client.chat.completions.create(
            model=MODEL, messages=user("Go on."), max_tokens=2000, extra_body={"ignore_eos": True}))
        while counts()["open"] == 0:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncly(go)
    until(lambda: counts()["aborted"] == before + 1, 2, lambda: f"{counts()}")
    until(lambda: metric("prefix_router_client_aborts_total") == left + 1, 2, "the router counts a client that left")
