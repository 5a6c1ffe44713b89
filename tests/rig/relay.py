"""A TCP relay in user space that does to the bytes what a bad network does to their arrival: where the kernel has no netem, this stands in for it."""

import asyncio
import contextlib

from rig.listener import Listener


class Relay(Listener):
    """In front of a replica. `delay`: each piece arrives so much later. `trickle`: in pieces of so many bytes. `stall`: sometimes nothing comes for so long."""

    def __init__(self, replica, delay=0.0, trickle=0, stall=0.0, stall_every=20):
        super().__init__(replica.name)
        self.replica = replica
        self.delay, self.trickle, self.stall, self.stall_every = delay, trickle, stall, stall_every
        self.pieces = 0
        self.sides = set()

    async def serve(self, reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(self.replica.host, self.replica.port)
        except OSError:
            writer.transport.abort()
            return
        sides = {writer, far_writer}
        self.sides |= sides
        ways = [asyncio.create_task(self.carry(reader, far_writer)), asyncio.create_task(self.carry(far_reader, writer))]
        try:
            # When one side is gone, so is the other.
            # The end of all is no error, as which Python 3.11's streams would report it.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for side in sides:
                side.close()
            self.sides -= sides

    async def carry(self, reader, writer):
        """Later, but in order and at full rate: what arrives while another piece waits is not held up by it."""
        queue = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def arrive():
            while True:
                when, data = await queue.get()
                await asyncio.sleep(max(0, when - loop.time()))
                if not data:
                    return
                for piece in self.cut(data):
                    writer.write(piece)
                    await writer.drain()
                    if self.trickle:
                        await asyncio.sleep(0.001)

        arriving = asyncio.create_task(arrive())
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    self.pieces += 1
                    stalled = self.stall if self.stall and self.pieces % self.stall_every == 0 else 0
                    queue.put_nowait((loop.time() + self.delay + stalled, data))
            queue.put_nowait((loop.time() + self.delay, b""))
            with contextlib.suppress(OSError):
                await arriving
        finally:
            arriving.cancel()

    def cut(self, data):
        # The first bytes alone trickle: all of a large body would take minutes.
        if not self.trickle:
            return [data]
        slow = [data[at : at + self.trickle] for at in range(0, min(len(data), 40 * self.trickle), self.trickle)]
        return [*slow, data[40 * self.trickle :]] if len(data) > 40 * self.trickle else slow

    def kill(self):
        super().kill()
        for side in self.sides:
            side.transport.abort()
