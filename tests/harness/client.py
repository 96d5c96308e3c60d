"""A JSON client over http.client: one connection a request, streaming where asked for."""

import contextlib
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor


class Refused(Exception):
    """The server answered with a status other than 200."""

    def __init__(self, status, body, headers):
        super().__init__(f"HTTP {status}: {body[:600]}")
        self.status, self.body, self.headers = status, body, headers


class Client:
    """Talks to one server at 127.0.0.1:port."""

    def __init__(self, port, timeout_s=300):
        self.port, self.timeout_s = port, timeout_s

    def _open(self, method, path, body):
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
        data = None if body is None else json.dumps(body).encode()
        conn.request(method, path, data, {"content-type": "application/json"})
        return conn, conn.getresponse()

    def call(self, method, path, body=None):
        """The decoded JSON (or text) of a 200; raises Refused otherwise."""
        conn, answer = self._open(method, path, body)
        try:
            text = answer.read().decode("utf-8")
            if answer.status != 200:
                raise Refused(answer.status, text, dict(answer.getheaders()))
            try:
                return json.loads(text)
            except json.JSONDecodeError:
                return text
        finally:
            conn.close()

    def get(self, path):
        return self.call("GET", path)

    def post(self, path, body):
        return self.call("POST", path, body)

    def stream(self, path, body):
        """Yields (seconds since the request was sent, event) for each server-sent event. EOFError where
        the last one is not [DONE]."""
        start = time.perf_counter()
        conn, answer = self._open("POST", path, body)
        try:
            if answer.status != 200:
                raise Refused(answer.status, answer.read().decode(), dict(answer.getheaders()))
            for line in answer:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield time.perf_counter() - start, json.loads(data)
            # http.client takes an answer that was cut between two lines for a whole one.
            raise EOFError("the stream was cut: it ended without [DONE]")
        finally:
            conn.close()

    @contextlib.contextmanager
    def held(self, path, body, count):
        """Inside, `count` requests are asked and not read: streams of so many tokens that none has
        ended, however quick the server. They are left at the end."""
        data = json.dumps({**body, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode()
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout_s)
                stack.callback(conn.close)
                conn.request("POST", path, data, {"content-type": "application/json"})
            yield

    def all(self, path, bodies, at_once):
        """Posts every body, at most `at_once` at a time; answers in the order of the bodies."""
        with ThreadPoolExecutor(max_workers=at_once) as pool:
            return list(pool.map(lambda body: self.post(path, body), bodies))
