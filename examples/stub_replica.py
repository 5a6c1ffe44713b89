#!/usr/bin/env python3
"""A stand-in for an engine, to try the router without one: stub_replica.py PORT. Needs nothing but Python.

It answers chat completions, streamed or not, with its own port and the length of the prompt, and says that it is healthy.
"""
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = int(sys.argv[1])


class Replica(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        models = {"object": "list", "data": [{"id": "stub", "object": "model", "owned_by": "stub"}]}
        self.answer(models if self.path == "/v1/models" else {})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        characters = sum(len(message["content"]) for message in asked["messages"])
        words = f"replica {PORT} read {characters} characters".split()
        if not asked.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": " ".join(words)}, "finish_reason": "stop"}
            self.answer({"id": "stub", "object": "chat.completion", "model": "stub", "choices": [choice]})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for word in words:
            chunk = {"id": "stub", "object": "chat.completion.chunk", "model": "stub", "choices": [{"index": 0, "delta": {"content": word + " "}}]}
            self.chunk(f"data: {json.dumps(chunk)}\n\n")
            time.sleep(0.2)
        self.chunk("data: [DONE]\n\n")
        self.chunk("")

    def chunk(self, text):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))

    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """The router logs requests; twice would be once too often."""


ThreadingHTTPServer(("127.0.0.1", PORT), Replica).serve_forever()
