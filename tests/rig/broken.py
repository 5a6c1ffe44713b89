"""Servers that misbehave below HTTP, where a simulated replica cannot. Their health checks are answered well: only requests meet the fault."""

import asyncio
import os
import socket
import struct

from rig.asks import MARK
from rig.listener import Listener
from rig.processes import free_port

LINGER_0 = struct.pack("ii", 1, 0)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENT = b'data: {"said":"%s"}\n\n' % MARK
ANSWER = b'{"said":"%s"}' % MARK


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class Broken(Listener):
    """Answers health checks, and does to every other request what `behave(writer)` does."""

    def __init__(self, name, behave):
        super().__init__(name)
        self.behave = behave
        self.met = 0

    async def serve(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                    continue
                length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                self.met += 1
                await self.behave(writer)
                return
        except (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError):
            # The last is the end of all, which Python 3.11's streams would report as an error.
            pass
        finally:
            writer.close()


async def reset(writer):
    """Ends with RST in place of FIN, after what was written had a moment to leave."""
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_0)
    writer.transport.abort()


def says(*pieces, end=None):
    """Writes the pieces as segments of their own, and then closes, or does `end`."""

    async def behave(writer):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)
        if end:
            await end(writer)

    return behave


async def endless_head(writer):
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x-more: " + b"a" * 4000 + b"\r\n")
        await writer.drain()


async def random_bytes(writer):
    writer.write(os.urandom(4096))
    await writer.drain()


async def silent(_):
    await asyncio.sleep(3600)


# What breaks before the first byte of an answer's body: another replica has to answer.
BEFORE_FIRST_BYTE = {
    "RST before the head": says(end=reset),
    "RST in mid-head": says(b"HTTP/1.1 200 OK\r\ncontent-ty", end=reset),
    "closed in mid-head": says(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "RST after the head": says(STREAM_HEAD, end=reset),
    "RST in the first chunk's size": says(STREAM_HEAD, b"2", end=reset),
    "closed after the head": says(STREAM_HEAD),
    "two lengths that differ": says(JSON_HEAD + b"content-length: 10\r\ncontent-length: 12\r\n\r\n" + ANSWER),
    "length is no number": says(JSON_HEAD + b"content-length: many\r\n\r\n" + ANSWER),
    "random bytes": random_bytes,
    "an SSH banner": says(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n"),
    "an endless head": endless_head,
    "an HTTP/2 preface": says(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2 settings": says(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    "an invalid first chunk size": says(STREAM_HEAD, b"zz\r\n" + EVENT),
    "a chunk size beyond 64 bits": says(STREAM_HEAD, b"fffffffffffffffff1\r\n" + EVENT),
}

# What breaks after it: the client is told, and nobody answers again.
IN_MID_ANSWER = {
    "RST after an event": says(STREAM_HEAD, chunk(EVENT), end=reset),
    "closed after an event": says(STREAM_HEAD, chunk(EVENT)),
    "RST in mid-event": says(STREAM_HEAD, chunk(EVENT) + b"40\r\ndata: {", end=reset),
    "RST in a chunk's size": says(STREAM_HEAD, chunk(EVENT), b"4", end=reset),
    "an invalid chunk size after an event": says(STREAM_HEAD, chunk(EVENT), b"zz\r\n" + EVENT),
    "a length that is too long": says(JSON_HEAD + b"content-length: 900\r\n\r\n" + ANSWER),
}

# Whole by HTTP's rules, so it passes; what is beyond the length must not reach anybody.
TOO_SHORT = says(JSON_HEAD + b"content-length: 10\r\n\r\n" + ANSWER + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")


class FullQueue:
    """Healthy until `fill`: then it accepts nobody any more and its queue is full, so that further connections are neither made nor refused."""

    def __init__(self, name):
        self.name, self.host, self.port = name, "127.0.0.1", free_port()
        self.listener = None
        self.task = None
        self.fillers = []

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    async def start(self):
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((self.host, self.port))
        self.listener.listen(1)
        self.listener.setblocking(False)
        self.task = asyncio.create_task(self.accept())

    async def accept(self):
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self.listener)
            with connection:
                connection.setblocking(False)
                await loop.sock_recv(connection, 65536)
                await loop.sock_sendall(connection, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    def fill(self):
        self.task.cancel()
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex((self.host, self.port))
            self.fillers.append(filler)

    def kill(self):
        for own in [self.listener, *self.fillers]:
            if own:
                own.close()
