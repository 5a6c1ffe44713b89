"""LangChain's chat model and embeddings for OpenAI's API."""

import asyncio

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

import fleet
from fleet import ERROR, MODEL, PIXEL, REPLICA, REPLICAS, ROUTER, ROUTERS, cancelled, counts, metric, run, until, words

feature = pytest.mark.feature
# `include_response_headers` puts the router's headers into `response_metadata`.
SETTINGS = {"model": MODEL, "base_url": f"{ROUTER}/v1", "api_key": "unused", "max_retries": 0, "timeout": 20}
chat = ChatOpenAI(**SETTINGS, max_tokens=6, include_response_headers=True)
longer = ChatOpenAI(**SETTINGS, max_tokens=80)


@tool
def get_weather(city: str, days: int) -> str:
    """The weather in a city for so many days."""
    return f"sunny in {city} for {days} days"


class Verdict(BaseModel):
    """What is thought of it."""

    reason: str
    score: int


def home(message):
    replica = message.response_metadata["headers"][REPLICA]
    assert replica in REPLICAS
    return replica


def refused(kind, call):
    """LangChain's own classes derive from the OpenAI client's."""
    with pytest.raises(openai.APIError) as caught:
        call()
    assert isinstance(caught.value, kind), repr(caught.value)
    return caught.value


@feature("plain")
def test_plain():
    message = chat.invoke("Hello.")
    assert isinstance(message, AIMessage) and len(message.content.split()) == 6 and home(message)
    assert message.usage_metadata["output_tokens"] == 6 and message.response_metadata["finish_reason"] == "length"
    chain = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "{what}")]) | chat
    one, other = chain.batch([{"what": "one"}, {"what": "other"}])
    assert one.content != other.content and home(one) and home(other)


@feature("streaming")
def test_stream():
    whole = chat.invoke("Stream.")
    chunks = list(ChatOpenAI(**SETTINGS, max_tokens=6, stream_usage=True).stream("Stream."))
    texts = [chunk.content for chunk in chunks if chunk.content]
    assert len(texts) == 6 and "".join(texts) == whole.content
    total = sum(chunks[1:], chunks[0])
    assert total.usage_metadata["output_tokens"] == 6 and total.usage_metadata["input_tokens"] == whole.usage_metadata["input_tokens"]


@feature("multi-turn")
def test_turns_share_a_replica_and_its_cache():
    messages, homes, cached = [SystemMessage(words(900)), HumanMessage("Begin.")], [], []
    for turn in range(3):
        message = chat.invoke(messages)
        homes.append(home(message))
        cached.append(message.usage_metadata["input_token_details"]["cache_read"])
        messages += [message, HumanMessage(f"Turn {turn}.")]
    assert len(set(homes)) == 1 and cached[0] == 0 and 800 < cached[1] <= cached[2], (homes, cached)


@feature("tools")
@pytest.mark.parametrize("choice", ["auto", "required", "get_weather"])
def test_tools(choice):
    messages = [HumanMessage("Weather?")]
    message = longer.bind_tools([get_weather], tool_choice=choice).invoke(messages)
    [call] = message.tool_calls
    assert call["name"] == "get_weather" and isinstance(call["args"]["days"], int)
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage) and result.content.startswith("sunny in")
    said = longer.bind_tools([get_weather]).invoke([*messages, message, result])
    assert said.content and not said.tool_calls


@feature("streamed tools")
def test_streamed_tools():
    chunks = list(longer.bind_tools([get_weather]).stream("Weather?"))
    assert len([chunk for chunk in chunks if chunk.tool_call_chunks]) > 2
    [call] = sum(chunks[1:], chunks[0]).tool_calls
    assert call["name"] == "get_weather" and set(call["args"]) == {"city", "days"}


@feature("images")
@pytest.mark.parametrize("url", ["http://127.0.0.1:9/cat.png", f"data:image/png;base64,{PIXEL}"])
def test_images(url):
    message = chat.invoke([HumanMessage([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}])])
    assert message.content and message.usage_metadata["input_tokens"] > 200


@feature("structured output")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(method):
    verdict = longer.with_structured_output(Verdict, method=method).invoke("Judge.")
    assert isinstance(verdict, Verdict) and isinstance(verdict.score, int)


@feature("embeddings")
def test_embeddings():
    # It would send token ids of OpenAI's tokenizer, which it fetches from the network; a served model has another.
    embeddings = OpenAIEmbeddings(model=MODEL, base_url=f"{ROUTER}/v1", api_key="unused", check_embedding_ctx_length=False, max_retries=0)
    one, two = embeddings.embed_documents(["one", "two"])
    assert len(one) == len(two) > 10 and one != two
    assert all(abs(a - b) < 1e-6 for a, b in zip(embeddings.embed_query("one"), one, strict=True))


@feature("completions")
def test_completions():
    llm = OpenAI(**SETTINGS, max_tokens=5)
    text = llm.invoke("Once upon a time")
    assert len(text.split()) == 5 and "".join(llm.stream("Once upon a time")) == text


@feature("responses")
def test_responses():
    llm = ChatOpenAI(**SETTINGS, max_tokens=6, use_responses_api=True)
    message = llm.invoke("Hello.")
    assert len(message.text.split()) == 6 and message.usage_metadata["output_tokens"] == 6
    assert "".join(chunk.text for chunk in llm.stream("Hello.")) == message.text
    called = ChatOpenAI(**SETTINGS, use_responses_api=True).bind_tools([get_weather]).invoke("Weather?")
    assert [call["name"] for call in called.tool_calls] == ["get_weather"]


@feature("identifiers")
def test_identifiers():
    by_field = {n: home(chat.invoke("The same.", prompt_cache_key=f"tenant-{n}")) for n in range(12)}
    by_header = {n: home(chat.invoke("The same.", extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": f"tenant-{n}"})) for n in range(12)}
    assert by_field == by_header and set(by_field.values()) == set(REPLICAS)


@feature("async")
def test_async():
    async def go():
        many = await asyncio.gather(*(chat.ainvoke(f"{n}") for n in range(8)))
        return many, [chunk.content async for chunk in chat.astream("Stream.") if chunk.content]

    many, texts = run(go())
    assert len({message.content for message in many}) > 4 and all(map(home, many)) and len(texts) == 6


@feature("errors")
def test_errors():
    error = refused(openai.NotFoundError, lambda: ChatOpenAI(**{**SETTINGS, "model": "no-such-model"}).invoke("Hello."))
    assert "no-such-model" in str(error)
    refused(openai.BadRequestError, lambda: chat.invoke("Hello.", temperature=-1))
    error = refused(openai.BadRequestError, lambda: chat.invoke("Hello.", extra_headers={"X-Amzn-SageMaker-Prefix-Aware-Id": "x" * 65}))
    assert error.code == "bad_identifier" == error.response.headers[ERROR]
    error = refused(openai.InternalServerError, lambda: ChatOpenAI(**{**SETTINGS, "base_url": f"{ROUTERS['nobody']}/v1"}).invoke("Hello."))
    assert error.status_code == 502 and error.code == "connect_failed"
    fleet.busy(429, retry_after="7")
    error = refused(openai.RateLimitError, lambda: chat.invoke("Hello."))
    assert error.response.headers["retry-after"] == "7"


@feature("broken streams")
def test_stream_breaks():
    fleet.breaks(4)
    texts = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in longer.stream("Hello."):
            texts += [chunk.content] if chunk.content else []
    assert 0 < len(texts) < 5 and caught.value.code == "replica_broke"


@feature("retries unseen")
def test_one_busy_replica_is_not_seen():
    fleet.busy(503, "r3")
    busy = metric("prefix_router_retries_total", cause="busy")
    assert {home(chat.invoke(f"{n}")) for n in range(12)} == {"r1", "r2"}
    assert metric("prefix_router_retries_total", cause="busy") > busy


@feature("timeouts")
def test_timeout():
    aborted = counts()["aborted"]
    fleet.silent()
    refused(openai.APITimeoutError, lambda: ChatOpenAI(**{**SETTINGS, "timeout": 0.4}).invoke("Hello."))
    until(lambda: counts()["aborted"] == aborted + 1, 2, "the replica sees that it left")


@feature("cancel")
def test_cancelled_task():
    # Its time limit for chunks is made of asyncio.wait_for, which in Python 3.11 may swallow a cancel when a chunk has just come.
    endless = ChatOpenAI(**SETTINGS, max_tokens=2000, extra_body={"ignore_eos": True}, stream_chunk_timeout=None)
    run(cancelled(lambda: endless.astream("Go on.")))
