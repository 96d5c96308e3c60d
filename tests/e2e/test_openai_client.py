"""The official `openai` client against a running server, one test a check."""

import unittest

from e2e.openai_client import Checks
from harness import servers

KEY = "a key of this test"


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = servers.lockstep("--api-key", KEY, name="openai")
        # Health is open, so that the wait for it needs no key.
        cls.server.__enter__()
        url = f"http://127.0.0.1:{cls.server.port}"
        checks = Checks(url, "", KEY)
        cls.checks = Checks(url, next(iter(checks.client.models.list())).id, KEY)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


def test_of(name):
    return lambda self: getattr(self.checks, name)()


for _name in [n for n in dir(Checks) if n.startswith("check_")]:
    setattr(OpenAiClient, f"test_{_name.removeprefix('check_')}", test_of(_name))


if __name__ == "__main__":
    unittest.main()
