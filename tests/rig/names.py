"""A DNS server of a few lines: A records of one name, which can fall silent and come back with others."""

import asyncio
import socket
import struct

from rig.processes import free_port


class Names(asyncio.DatagramProtocol):
    def __init__(self, name, addresses, ttl=1):
        self.name, self.addresses, self.ttl = name, addresses, ttl
        self.silent = False
        self.asked = 0
        self.port = free_port()

    async def start(self):
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", self.port))

    def datagram_received(self, data, address):
        self.asked += 1
        if self.silent:
            return
        number, _, questions = struct.unpack("!HHH", data[:6])
        end = data.index(b"\0", 12) + 5
        kind = struct.unpack("!H", data[end - 4 : end - 2])[0]
        labels, at = [], 12
        while data[at]:
            labels.append(data[at + 1 : at + 1 + data[at]])
            at += data[at] + 1
        known = b".".join(labels).decode().lower() == self.name
        addresses = self.addresses if known and kind == 1 else []
        # A response, authoritative, recursion available; 3 is "no such name".
        flags = 0x8580 | (0 if known else 3)
        answer = struct.pack("!HHHHHH", number, flags, questions, len(addresses), 0, 0) + data[12:end]
        for one in addresses:
            answer += b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, self.ttl, 4) + socket.inet_aton(one)
        self.transport.sendto(answer, address)

    def kill(self):
        self.transport.close()
