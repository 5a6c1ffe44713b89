"""What listens on a port of its own."""

import asyncio

from rig.processes import free_port


class Listener:
    """Serves each connection with its `serve(reader, writer)`."""

    def __init__(self, name):
        self.name = name
        self.host, self.port = "127.0.0.1", free_port()
        self.server = None

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    async def start(self):
        self.server = await asyncio.start_server(self.serve, self.host, self.port)

    def kill(self):
        if self.server:
            self.server.close()
