"""The recall model over the chat endpoint: its sessions, turn by turn, tool calls included.

Two faults were found here. The grammar of a forced call spelled DeepSeek-V4's marker in bytes where
the vocabulary has a token for it, so that every call was garbage; and a session that was sent twice
ended with an alarm of the audit, since pages without a compressed row kept what was in them before.
"""

import json
import unittest
from pathlib import Path

from harness import servers

FOLDER = Path(__file__).parents[2] / "models" / "recall"
SESSIONS = (0, 8, 41, 70)


def calls(message):
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or []
    ]


class Recall(unittest.TestCase):
    def test_every_turn_over_chat_is_the_model_s_own_also_the_second_time(self):
        tools = json.loads((FOLDER / "cases_meta.json").read_text())["tools"]
        lines = (FOLDER / "cases.jsonl").read_text().splitlines()
        sessions = [json.loads(lines[i])["messages"] for i in SESSIONS]
        turns, called = 0, 0
        with servers.lockstep("--kv-memory", 256 << 20, model=FOLDER) as server:
            for messages in sessions + sessions:
                thinks = any("reasoning_content" in message for message in messages)
                for at, want in enumerate(messages):
                    if want["role"] != "assistant":
                        continue
                    body = {"messages": messages[:at], "tools": tools, "temperature": 0,
                            "max_tokens": 300}
                    if thinks:
                        body["chat_template_kwargs"] = {"enable_thinking": True}
                    answer = server.client.post("/v1/chat/completions", body)
                    got = answer["choices"][0]["message"]
                    with self.subTest(turn=at, last=messages[at - 1]):
                        self.assertEqual(calls(got), calls(want))
                        text = (got.get("content") or "").strip()
                        self.assertEqual(text, (want.get("content") or "").strip())
                    turns, called = turns + 1, called + len(calls(want))
        self.assertGreater(called, 8)
        self.assertGreater(turns, 20)


if __name__ == "__main__":
    unittest.main()
