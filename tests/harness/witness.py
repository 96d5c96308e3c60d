"""A relay between a client and a server that notes what passes: the same requests, timed by
somebody else."""

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Seen:
    """One streamed request. Times are on the clock of perf_counter."""

    sent: float
    outputs: list = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0

    @property
    def ttft_ms(self):
        return 1e3 * (self.outputs[0] - self.sent)

    @property
    def tpot_ms(self):
        return 1e3 * (self.ended - self.outputs[0]) / (self.tokens - 1)

    @property
    def e2e_ms(self):
        return 1e3 * (self.ended - self.sent)


class Witness:
    """Use as a context manager; `port` is where clients go instead."""

    def __init__(self, port):
        self.upstream, self.port = port, None
        self.requests = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        started = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._relay, "127.0.0.1", 0), self._loop)
        self._server = started.result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *exc):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def answers(self, tokens):
        """The whole answers of exactly so many tokens."""
        return [seen for seen in self.requests if seen.tokens == tokens and seen.outputs]

    async def _end(self):
        self._server.close()
        relays = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)

    async def _relay(self, reader, writer):
        upstream = await asyncio.open_connection("127.0.0.1", self.upstream)
        now = []
        try:
            await asyncio.gather(
                self._there(reader, upstream[1], now), self._back(upstream[0], writer, now))
        except (ConnectionError, asyncio.CancelledError):
            # Either side may leave at any time; so be it.
            pass
        finally:
            upstream[1].close()
            writer.close()

    async def _there(self, reader, writer, now):
        while data := await reader.read(1 << 16):
            if data.startswith(b"POST "):
                seen = Seen(time.perf_counter())
                now[:] = [seen]
                self.requests.append(seen)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def _back(self, reader, writer, now):
        rest = b""
        while data := await reader.read(1 << 16):
            at = time.perf_counter()
            writer.write(data)
            await writer.drain()
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if now and line.startswith(b"data:"):
                    note(now[0], line[5:].strip(), at)
        writer.close()


def note(seen, data, at):
    """Takes one event of a stream."""
    seen.ended = at
    if data == b"[DONE]":
        return
    event = json.loads(data)
    if event.get("usage"):
        seen.tokens = event["usage"]["completion_tokens"]
    for choice in event.get("choices", []):
        if choice.get("text") or choice.get("finish_reason") is None:
            seen.outputs.append(at)
