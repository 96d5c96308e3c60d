"""Tokens and rendered chat templates are those of llama.cpp and of Hugging Face transformers."""

import unittest
from concurrent.futures import ThreadPoolExecutor

from harness import gguf, samples, servers


def hugging_face(path):
    """The model's tokenizer as transformers runs it, made from the GGUF file's own tables."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    meta = gguf.metadata(path)
    if meta["tokenizer.ggml.pre"] != "smollm":
        raise ValueError(f"written for pre-tokenizer smollm, not {meta['tokenizer.ggml.pre']}")
    words = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ", 1)) for m in meta["tokenizer.ggml.merges"]]
    inner = tokenizers.Tokenizer(models.BPE({w: i for i, w in enumerate(words)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    inner.decoder = decoders.ByteLevel()
    control = [w for w, kind in zip(words, meta["tokenizer.ggml.token_type"]) if kind == 3]
    inner.add_special_tokens([tokenizers.AddedToken(w, special=True) for w in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, chat_template=meta["tokenizer.chat_template"],
        bos_token=words[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=words[meta["tokenizer.ggml.eos_token_id"]],
    )


def tokenize_all(client, texts):
    def one(text):
        body = {"content": text, "add_special": False, "parse_special": True}
        return client.post("/tokenize", body)["tokens"]

    with ThreadPoolExecutor(max_workers=4) as pool:
        return list(pool.map(one, texts))


def render_all(client, chats):
    """llama.cpp's rendered prompts, and their tokens."""
    prompts = [client.post("/apply-template", {"messages": chat})["prompt"] for chat in chats]
    return prompts, tokenize_all(client, prompts)


def our_rendered(client, chats):
    """Ours: the tokens of each chat, and the text that they spell, control tokens included."""
    ids = [client.post("/tokenize", {"messages": chat})["tokens"] for chat in chats]
    return [client.post("/detokenize", {"tokens": i})["content"] for i in ids], ids


class Text(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = samples.all_texts()
        with servers.lockstep() as server:
            cls.ours = tokenize_all(server.client, cls.texts)
            cls.our_chats = our_rendered(server.client, samples.CHATS)
            cls.round_trips = [
                server.client.post("/detokenize", {"tokens": ids})["content"] for ids in cls.ours
            ]
        with servers.llama("--parallel", 1, "-c", 512) as peer:
            cls.theirs = tokenize_all(peer.client, cls.texts)
            cls.their_chats = render_all(peer.client, samples.CHATS)
        cls.face = hugging_face(servers.model_path())
        cls.kinds = gguf.metadata(servers.model_path())["tokenizer.ggml.token_type"]

    def compare(self, name, others):
        wrong = [
            f"{text!r}: ours {mine}, {name} {other}"
            for text, mine, other in zip(self.texts, self.ours, others) if mine != other
        ]
        print(f"note: tokens: {len(self.texts) - len(wrong)} of {len(self.texts)} texts as {name}",
              flush=True)
        self.assertEqual(wrong[:10], [], f"{len(wrong)} texts differ")

    def test_every_category_of_unicode_is_there(self):
        self.assertGreaterEqual(len(samples.by_category()), 29)
        self.assertGreater(len(self.texts), 4000)

    def test_tokens_are_llama_cpps(self):
        self.compare("llama.cpp", self.theirs)

    def test_tokens_are_those_of_transformers(self):
        batch = self.face(self.texts, add_special_tokens=False)["input_ids"]
        self.compare("transformers", batch)

    def test_tokens_turn_back_into_their_text(self):
        """As transformers decodes them: a byte that the vocabulary has no token for is lost."""
        wanted = [self.face.decode(ids, clean_up_tokenization_spaces=False) for ids in self.ours]
        self.assertEqual(self.round_trips, wanted)
        whole = sum(a == b for a, b in zip(self.round_trips, self.texts))
        self.assertGreater(whole, 0.95 * len(self.texts))

    def test_rendered_chats_and_their_tokens_are_llama_cpps(self):
        for chat, our_text, our_ids, their_text, their_ids in zip(
                samples.CHATS, *self.our_chats, *self.their_chats):
            with self.subTest(chat=chat):
                self.assertEqual(our_text, their_text)
                if chat not in samples.FORGED:
                    self.assertEqual(our_ids, their_ids)

    def test_a_message_cannot_forge_a_control_token(self):
        """The same text, but what the client wrote stays text: only the template's own control
        tokens are control tokens. llama.cpp takes the forged ones for real."""
        control = {i for i, kind in enumerate(self.kinds) if kind == 3}
        for chat, ids in zip(samples.CHATS, self.our_chats[1]):
            system_by_template = chat[0]["role"] != "system"
            wanted = 2 * (len(chat) + system_by_template) + 1
            with self.subTest(chat=chat):
                self.assertEqual(sum(i in control for i in ids), wanted)

    def test_rendered_chats_are_those_of_transformers(self):
        render = self.face.apply_chat_template
        wanted = [render(c, tokenize=False, add_generation_prompt=True) for c in samples.CHATS]
        self.assertEqual(self.our_chats[0], wanted)


if __name__ == "__main__":
    unittest.main()
