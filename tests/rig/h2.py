"""Just enough of an h2c client for many streams on one connection: requests without compression, answers of which only the status byte is looked at."""

import asyncio
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
# In HPACK's static table: ":status: 200".
STATUS_200 = 0x88
WINDOW = 1 << 30


def frame(kind, flags, stream, payload=b""):
    return struct.pack("!I", len(payload))[1:] + struct.pack("!BBI", kind, flags, stream) + payload


def text(data):
    """A string without Huffman code, shorter than 127 bytes."""
    return bytes([len(data)]) + data


def fields(path, authority, length):
    """A POST's head: fixed entries of the static table, and literals that are kept in no table."""
    named = [(1, authority), (4, path), (31, b"application/json"), (28, b"%d" % length)]
    # 3 is ":method: POST", 6 ":scheme: http"; a name's index from 15 on takes a second byte.
    head = b"\x83\x86"
    for index, value in named:
        head += (bytes([index]) if index < 15 else bytes([15, index - 15])) + text(value)
    return head


class Stream:
    def __init__(self):
        self.status_ok = False
        self.body = bytearray()
        # None while open; "" ended well, else how it broke.
        self.end = None
        self.done = asyncio.get_running_loop().create_future()

    def finish(self, end):
        if not self.done.done():
            self.end = end
            self.done.set_result(None)


class H2(asyncio.Protocol):
    """One connection."""

    def __init__(self):
        self.got = bytearray()
        self.streams = {}
        self.next = 1

    @classmethod
    async def open(cls, host, port):
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport):
        self.transport = transport
        transport.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", WINDOW)))

    def ask(self, path, body, authority=b"router"):
        """A stream whose `done` is set at its end. The body is shorter than the first window."""
        number, stream = self.next, Stream()
        self.next += 2
        self.streams[number] = stream
        self.transport.write(frame(HEADERS, END_HEADERS, number, fields(path, authority, len(body))) + frame(DATA, END_STREAM, number, body))
        return stream

    def data_received(self, data):
        self.got += data
        while len(self.got) >= 9:
            length = int.from_bytes(self.got[:3], "big")
            if len(self.got) < 9 + length:
                return
            kind, flags, number = struct.unpack("!BBI", self.got[3:9])
            payload = bytes(self.got[9 : 9 + length])
            del self.got[: 9 + length]
            self.take(kind, flags, number & 0x7FFFFFFF, payload)

    def take(self, kind, flags, number, payload):
        if kind == SETTINGS and not flags & ACK:
            self.transport.write(frame(SETTINGS, ACK, 0))
        elif kind == PING and not flags & ACK:
            self.transport.write(frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            for stream in self.streams.values():
                stream.finish("GOAWAY")
        stream = self.streams.get(number)
        if not stream:
            return
        if kind == HEADERS:
            # A change of the table's size may stand before it.
            stream.status_ok |= STATUS_200 in payload[:3]
        elif kind == DATA:
            stream.body += payload
        elif kind == RST_STREAM:
            stream.finish(f"RST_STREAM {int.from_bytes(payload, 'big')}")
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            stream.finish("")

    def connection_lost(self, error):
        for stream in self.streams.values():
            stream.finish("the connection was cut")

    def close(self):
        self.transport.abort()
