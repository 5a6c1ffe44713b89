"""A client's connection, on which HTTP/1.1 answers are read to the last byte and nothing beyond goes unnoticed."""

import asyncio
import re
import time

CHUNKED, FIXED = "chunked", "fixed"


class Answer:
    """What came of one request."""

    def __init__(self):
        self.status = None
        self.headers = {}
        self.raw = bytearray()
        self.body = b""
        # Ended as HTTP says it does; else `broken` says how.
        self.whole = False
        self.broken = None
        # Bytes after the end: nobody asked for them.
        self.extra = b""
        self.first_byte_at = None
        self.ended_at = None

    @property
    def replica(self):
        return self.headers.get("x-prefix-router-replica")


def dechunk(raw):
    """(body so far, where the chunked body ends or None)."""
    body, at = [], 0
    while True:
        line = raw.find(b"\r\n", at)
        if line < 0:
            return b"".join(body), None
        size = int(raw[at:line].split(b";")[0], 16)
        if size == 0:
            end = raw.find(b"\r\n\r\n", line)
            return b"".join(body), None if end < 0 else end + 4
        start = line + 2
        body.append(bytes(raw[start : start + size]))
        at = start + size + 2
        if at > len(raw):
            return b"".join(body), None


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self):
        self.transport = None
        self.closed = False
        self.uses = 0
        self.answer = None
        self.done = None
        # What came while nothing had been asked.
        self.unasked = b""

    @classmethod
    async def open(cls, host, port):
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport):
        self.transport = transport

    async def ask(self, request, patience):
        self.answer, self.frame, self.length, self.start = Answer(), None, None, None
        self.done = asyncio.get_running_loop().create_future()
        self.uses += 1
        if self.closed:
            self.finish("closed before it was asked")
        else:
            self.transport.write(request)
        try:
            await asyncio.wait_for(asyncio.shield(self.done), patience)
        except asyncio.TimeoutError:
            self.finish(f"no end within {patience} s")
            self.close()
        return self.answer

    def data_received(self, data):
        if self.answer is None or self.done.done():
            self.unasked += data
            return
        answer = self.answer
        answer.raw += data
        if self.start is None and not self.read_head():
            return
        if len(answer.raw) > self.start:
            answer.first_byte_at = answer.first_byte_at or time.monotonic()
        if self.frame is CHUNKED:
            # Looked into only where it may be the end: most pieces of a stream are none.
            if answer.raw.endswith(b"0\r\n\r\n"):
                self.look_for_end()
        elif self.frame is FIXED and len(answer.raw) - self.start >= self.length:
            self.finish(None)

    def read_head(self):
        raw = self.answer.raw
        end = raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        status, *fields = bytes(raw[:end]).decode("latin-1").split("\r\n")
        self.answer.status = int(status.split()[1])
        self.answer.headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        self.start = end + 4
        if "content-length" in self.answer.headers:
            self.frame, self.length = FIXED, int(self.answer.headers["content-length"])
        elif "chunked" in self.answer.headers.get("transfer-encoding", ""):
            self.frame = CHUNKED
        return True

    def look_for_end(self):
        try:
            if dechunk(self.answer.raw[self.start :])[1] is not None:
                self.finish(None)
        except ValueError:
            self.finish("a chunk's size is no number")

    def finish(self, broken):
        """The answer as far as it has come."""
        if self.done.done():
            return
        answer = self.answer
        answer.broken, answer.ended_at = broken, time.monotonic()
        rest = bytes(answer.raw[self.start :]) if self.start is not None else b""
        if self.frame is CHUNKED:
            try:
                answer.body, end = dechunk(rest)
            except ValueError:
                answer.body, end = re.sub(rb"\r\n[0-9A-Fa-f]+\r\n", b"", rest), None
            answer.whole = end is not None
            answer.extra = rest[end:] if answer.whole else b""
        elif self.frame is FIXED:
            answer.whole = len(rest) >= self.length
            answer.body, answer.extra = rest[: self.length], rest[self.length :]
        else:
            answer.body = rest
        answer.raw = b""
        self.done.set_result(None)

    def connection_lost(self, error):
        self.closed = True
        if self.done and not self.done.done():
            self.finish(f"the connection was cut ({type(error).__name__})" if error else "the connection was closed")

    def close(self):
        if self.transport:
            self.transport.abort()

    def usable(self):
        return not self.closed and "close" not in self.answer.headers.get("connection", "").lower()
