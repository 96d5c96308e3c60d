"""Clients that ask again when an answer has ended, and note whatever one of them would notice."""

import threading
import time


class Streams:
    """Greedy streams of exactly `tokens` tokens each. Use as a context manager; inside, every one of
    them has had an answer or something has failed.

    `body` makes a stream's request of its number. Each answer of a stream has to be its first one's,
    letter for letter, where `same` says so."""

    def __init__(self, client, path, body, streams, tokens, pause_s=0.0, same=True):
        self.client, self.path, self.body, self.streams = client, path, body, streams
        self.asked = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        self.pause_s, self.same = pause_s, same
        self.answers, self.failures = [], []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(streams)]

    def _answer(self, body):
        """The text and how it ended."""
        events = [event for _, event in self.client.stream(self.path, body)]
        choices = [choice for event in events for choice in event.get("choices", [])]
        texts = [c.get("text") or c.get("delta", {}).get("content") or "" for c in choices]
        return "".join(texts), choices[-1]["finish_reason"]

    def _run(self, number):
        body, first = {**self.body(number), **self.asked}, None
        while not self._stop.is_set():
            try:
                text, end = self._answer(body)
            except Exception as e:  # whatever it is, a client has noticed
                self.failures.append(f"stream {number}: {e!r}")
                self._stop.wait(0.2)
                continue
            first = first if self.same and first is not None else text
            self.answers.append(number)
            if text != first or end != "length":
                self.failures.append(f"stream {number} gave {text!r} ({end}), at first {first!r}")
            self._stop.wait(self.pause_s)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        while len(set(self.answers)) < self.streams and not self.failures:
            time.sleep(0.02)
        return self

    def __exit__(self, *exc):
        self._stop.set()
        for thread in self._threads:
            thread.join()
