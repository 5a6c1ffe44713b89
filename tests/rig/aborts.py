"""Clients that leave, at every stage of a request's life."""

import asyncio

from rig import asks

STAGES = ["connect", "half of the head", "half of the body", "waiting", "after the head", "mid-stream"]


async def abort(port, stage, rng):
    """A request that its client leaves at this stage."""
    kind = "long stream" if stage in ("after the head", "mid-stream") else rng.choice(["long stream", "prefill stream", "large chat", "chat"])
    request = asks.Ask(kind, rng).request()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = request.index(b"\r\n\r\n") + 4
        part = {"connect": 0, "half of the head": head // 2, "half of the body": (head + len(request)) // 2}.get(stage, len(request))
        writer.write(request[:part])
        await writer.drain()
        if stage == "waiting":
            await asyncio.sleep(rng.random() * 0.02)
        elif stage == "after the head":
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        elif stage == "mid-stream":
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            await asyncio.sleep(rng.random())
        else:
            await asyncio.sleep(rng.random() * 0.2)
    finally:
        # Half of them go with FIN, half with RST.
        if rng.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()
