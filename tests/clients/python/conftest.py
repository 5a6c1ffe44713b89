"""What holds for each test: the router had it in its hands, nothing is left in flight, no fault is left on. And what goes into the table."""

import importlib.metadata

import pytest

import fleet

# Which client a file of tests is about: its package, and what the table calls it.
CLIENTS = {
    "test_openai": ("openai", "openai (Python)"),
    "test_openai_errors": ("openai", "openai (Python)"),
    "test_anthropic": ("anthropic", "anthropic (Python)"),
    "test_langchain": ("langchain-openai", "langchain-openai"),
    "test_litellm": ("litellm", "litellm"),
}


# Requests that the routers have seen when the last test ended.
routed = 0


@pytest.fixture(autouse=True)
def around(request, record_property):
    marks = [mark.args[0] for mark in request.node.iter_markers("feature")]
    assert marks, "the test names no feature"
    package, client = CLIENTS[request.node.module.__name__]
    for feature in marks:
        record_property("feature", feature)
    record_property("client", client)
    record_property("version", importlib.metadata.version(package))
    global routed
    yield
    fleet.no_faults()
    before, routed = routed, fleet.at_rest()
    if not request.node.get_closest_marker("no_router"):
        assert routed > before, "no router has seen a request"
