"""LiteLLM's SDK, by way of each of its providers that speaks to a server of one's own: openai, hosted_vllm, anthropic."""

import asyncio
import json

import litellm
import pytest
from pydantic import BaseModel

import fleet
from fleet import MODEL, PIXEL, REPLICA, REPLICAS, ROUTERS, cancelled, counts, metric, run, until, words

feature = pytest.mark.feature
PROVIDERS = ["openai", "hosted_vllm", "anthropic"]
providers = pytest.mark.parametrize("provider", PROVIDERS)
WEATHER = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris"]}, "days": {"type": "integer"}}, "required": ["city", "days"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": WEATHER}}
litellm.suppress_debug_info = True
# Of models that it does not know LiteLLM fakes the streams of /v1/responses.
litellm.register_model({f"openai/{MODEL}": {"litellm_provider": "openai", "mode": "chat", "supports_native_streaming": True}})


class Verdict(BaseModel):
    reason: str
    score: int


def user(content):
    return [{"role": "user", "content": content}]


def settings(provider, router="main", model=MODEL):
    # Only the OpenAI-like ones want /v1.
    base = ROUTERS[router] if provider == "anthropic" else f"{ROUTERS[router]}/v1"
    return {"model": f"{provider}/{model}", "api_base": base, "api_key": "unused", "max_retries": 0, "timeout": 20}


def ask(provider="openai", router="main", model=MODEL, **more):
    return litellm.completion(**{**settings(provider, router, model), "messages": user("Hello."), "max_tokens": 6, **more})


def home(answer):
    replica = answer._hidden_params["additional_headers"][f"llm_provider-{REPLICA}"]
    assert replica in REPLICAS
    return replica


def refused(kind, call):
    with pytest.raises(Exception) as caught:
        call()
    assert type(caught.value) is kind, repr(caught.value)
    return caught.value


@feature("plain")
@providers
def test_plain(provider):
    answer = ask(provider)
    choice = answer.choices[0]
    assert choice.finish_reason == "length" and len(choice.message.content.split()) == 6 == answer.usage.completion_tokens
    assert home(answer) and answer.usage.prompt_tokens > 3


@feature("streaming")
@providers
def test_stream(provider):
    whole = ask(provider)
    chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices if choice.delta.content]
    assert len(texts) == 6 and "".join(texts) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 6 and chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


@feature("multi-turn")
@providers
def test_turns_share_a_replica_and_its_cache(provider):
    messages, homes, cached = [{"role": "system", "content": words(900)}, *user("Begin.")], [], []
    for turn in range(3):
        answer = ask(provider, messages=messages)
        homes.append(home(answer))
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
        messages += [answer.choices[0].message.model_dump(include={"role", "content"}), *user(f"Turn {turn}.")]
    assert len(set(homes)) == 1 and cached[0] == 0 and 800 < cached[1] <= cached[2], (homes, cached)


@feature("tools")
@providers
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_tools(provider, choice):
    messages = user("Weather?")
    message = ask(provider, messages=messages, tools=[TOOL], tool_choice=choice, max_tokens=60).choices[0].message
    [call] = message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] == "Paris"
    messages += [message.model_dump(include={"role", "content", "tool_calls"}), {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    said = ask(provider, messages=messages, tools=[TOOL]).choices[0].message
    assert said.content and not said.tool_calls


@feature("streamed tools")
@providers
def test_streamed_tools(provider):
    chunks = list(ask(provider, messages=user("Weather?"), tools=[TOOL], max_tokens=60, stream=True))
    deltas = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    parts = [call.function.arguments for call in deltas if call.function.arguments]
    assert [call.function.name for call in deltas if call.function.name] == ["get_weather"]
    assert len(parts) > 1 and json.loads("".join(parts))["city"] == "Paris"


@feature("images")
@providers
def test_images(provider):
    # With `anthropic`, LiteLLM would fetch a plain URL by itself.
    for url in [f"data:image/png;base64,{PIXEL}", *(["http://127.0.0.1:9/cat.png"] if provider != "anthropic" else [])]:
        answer = ask(provider, messages=user([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]))
        assert answer.usage.prompt_tokens > 200 and answer.choices[0].message.content


@feature("structured output")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_structured_output(provider):
    answer = ask(provider, response_format=Verdict, max_tokens=80)
    assert isinstance(Verdict.model_validate_json(answer.choices[0].message.content).score, int)
    answer = ask(provider, response_format={"type": "json_object"}, max_tokens=80)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


@feature("embeddings")
@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_embeddings(provider):
    answer = litellm.embedding(**settings(provider), input=["one", "two"])
    one, two = (item["embedding"] for item in answer.data)
    assert len(one) == len(two) > 10 and one != two and isinstance(one[0], float)


@feature("completions")
def test_completions():
    ask = {**settings("text-completion-openai"), "prompt": "Once upon a time", "max_tokens": 5}
    answer = litellm.text_completion(**ask)
    assert len(answer.choices[0].text.split()) == 5
    texts = [choice.text for chunk in litellm.text_completion(**ask, stream=True) for choice in chunk.choices if choice.text]
    assert "".join(texts) == answer.choices[0].text


@feature("responses")
def test_responses():
    ask = {**settings("openai"), "input": "Hello.", "max_output_tokens": 20, "extra_body": {"ignore_eos": True}}
    answer = litellm.responses(**ask)
    text = answer.output[0].content[0].text
    assert len(text.split()) == 20 and answer.usage.output_tokens == 20
    deltas = [event.delta for event in litellm.responses(**ask, stream=True) if event.type == "response.output_text.delta"]
    assert len(deltas) == 20 and "".join(deltas) == text


@feature("identifiers")
def test_identifiers():
    by_header = {n: home(ask(max_tokens=1, extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": f"tenant-{n}"})) for n in range(12)}
    by_field = {n: home(ask(max_tokens=1, extra_body={"prompt_cache_key": f"tenant-{n}"})) for n in range(12)}
    assert by_field == by_header and set(by_field.values()) == set(REPLICAS)


@feature("async")
@providers
def test_async(provider):
    async def go():
        one = {**settings(provider), "max_tokens": 3}
        many = await asyncio.gather(*(litellm.acompletion(**one, messages=user(f"{n}")) for n in range(6)))
        stream = await litellm.acompletion(**one, messages=user("Stream."), stream=True)
        return many, [choice.delta.content async for chunk in stream for choice in chunk.choices if choice.delta.content]

    many, texts = run(go())
    assert len({answer.choices[0].message.content for answer in many}) > 3 and len(texts) == 3


@feature("errors")
@providers
def test_errors(provider):
    error = refused(litellm.NotFoundError, lambda: ask(provider, model="no-such-model"))
    assert "no-such-model" in str(error) and error.status_code == 404
    error = refused(litellm.BadRequestError, lambda: ask(provider, max_tokens=10**7))
    assert "max_" in str(error)
    error = refused(litellm.BadRequestError, lambda: ask(provider, extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": "x" * 65}))
    assert "1 to 64" in str(error)
    fleet.busy(429, retry_after="7")
    error = refused(litellm.RateLimitError, lambda: ask(provider))
    # With the others LiteLLM drops the headers.
    assert provider != "openai" or error.response.headers["retry-after"] == "7"
    fleet.no_faults()
    fleet.busy(503)
    error = refused(litellm.ServiceUnavailableError, lambda: ask(provider))
    assert error.status_code == 503


@feature("errors")
@providers
def test_nobody_is_there(provider):
    with pytest.raises(litellm.exceptions.openai.APIError) as caught:
        ask(provider, "nobody")
    assert "no replica could be reached" in str(caught.value) and caught.value.status_code in (500, 502), repr(caught.value)


@feature("broken streams")
@providers
def test_stream_breaks(provider):
    fleet.breaks(5)
    texts = []
    with pytest.raises(litellm.exceptions.openai.APIError) as caught:
        for chunk in ask(provider, stream=True, max_tokens=50):
            texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    assert texts and "mid-stream" in str(caught.value), repr(caught.value)


@feature("retries unseen")
@providers
def test_one_busy_replica_is_not_seen(provider):
    fleet.busy(429, "r2")
    busy = metric("prefix_router_retries_total", cause="busy")
    assert {home(ask(provider, messages=user(f"{n}"), max_tokens=1)) for n in range(12)} == {"r1", "r3"}
    assert metric("prefix_router_retries_total", cause="busy") > busy


@feature("timeouts")
@providers
def test_timeout(provider):
    aborted = counts()["aborted"]
    fleet.silent()
    refused(litellm.Timeout, lambda: ask(provider, timeout=0.5))
    until(lambda: counts()["aborted"] > aborted, 2, "the replica sees that it left")


@feature("cancel")
@providers
def test_cancelled_task(provider):
    async def chunks():
        more = {"messages": user("Go on."), "max_tokens": 2000, "stream": True, "extra_body": {"ignore_eos": True}}
        async for chunk in await litellm.acompletion(**settings(provider), **more):
            yield chunk

    run(cancelled(chunks))
