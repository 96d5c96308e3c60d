"""Writes smollm2.json: what transformers and llama.cpp make of corpus.json with SmolLM2.

    pip install transformers gguf jinja2
    python make_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf path/to/llama-server > smollm2.json

The tokenizer.json of SmolLM2 is put together from the GGUF file's vocabulary, merges and token
types, and from the definition in the model's repository: no normalizer; pre-tokenizer Sequence of
Digits(individual_digits=True) and ByteLevel(add_prefix_space=False, use_regex=True); byte-level
decoder; BPE without an unknown token. It is read by transformers' PreTrainedTokenizerFast, whose
own engine (tokenizers with Oniguruma) does the rest. llama.cpp reads the same file by itself.

Both must agree on every text of the corpus; where they do not, the ids of llama.cpp are written
as `llama_ids`, so that a difference is seen and not averaged away.
"""

import json
import pathlib
import subprocess
import sys
import time
import urllib.request

import gguf
from make_goldens_common import every_character, fnv
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
PORT = 18431


def read_gguf(path):
    fields = gguf.GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items()}


def tokenizer_of(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    vocab = {text: i for i, text in enumerate(tokens)}
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    special = [tokens[i] for i, t in enumerate(meta["tokenizer.ggml.token_type"]) if t == 3]
    inner.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    name = lambda key: tokens[meta[f"tokenizer.ggml.{key}_token_id"]]
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=name("bos"),
        eos_token=name("eos"),
        unk_token=name("unknown"),
        pad_token=name("padding"),
        chat_template=meta["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
    )


class LlamaServer:
    def __init__(self, binary, model):
        args = [binary, "-m", model, "--port", str(PORT), "--jinja", "-c", "512", "-ngl", "0", "--no-warmup"]
        self.process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                if self.get("/health")["status"] == "ok":
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("llama-server did not start")

    def get(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data, {"Content-Type": "application/json"})
        return json.load(urllib.request.urlopen(request))

    def tokenize(self, text):
        body = {"content": text, "add_special": False, "parse_special": True}
        return self.get("/tokenize", body)["tokens"]

    def render(self, messages):
        return self.get("/apply-template", {"messages": messages})["prompt"]


CHATS = [
    [{"role": "user", "content": "Hello!"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  spaces kept?  \n"}],
    [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Drei 😀 שלום é\n\n\tcode: {% if x %}{{ y }}{% endif %}"},
    ],
    [{"role": "system", "content": ""}, {"role": "user", "content": ""}],
    [
        {"role": "user", "content": "What is 2+2?"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And\r\nthen? \u2028 \x00 end"},
        {"role": "assistant", "content": "5 < 6 && <b>"},
        {"role": "system", "content": "a late system message"},
        {"role": "user", "content": "<"},
    ],
]


def main(model, server):
    corpus = json.loads((HERE / "corpus.json").read_text())
    hf = tokenizer_of(read_gguf(model))
    llama = LlamaServer(server, model)
    out = {"texts": [], "chats": [], "blocks": {}}
    differ = 0
    try:
        for text in corpus:
            ids = hf(text, add_special_tokens=False)["input_ids"]
            entry = {"ids": ids, "text": hf.decode(ids, skip_special_tokens=True)}
            if entry["text"] == text:
                del entry["text"]
            theirs = llama.tokenize(text)
            if theirs != ids:
                differ += 1
                entry["llama_ids"] = theirs
            out["texts"].append(entry)
        for messages in CHATS:
            for start in (True, False):
                text = hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=start)
                ids = hf.apply_chat_template(messages, add_generation_prompt=start)["input_ids"]
                entry = {"messages": messages, "add_generation_prompt": start, "text": text, "ids": ids}
                if start:
                    entry["llama_agrees"] = llama.render(messages) == text and llama.tokenize(text) == ids
                out["chats"].append(entry)
        blocks_differ = []
        for first, text in every_character():
            ids = hf(text, add_special_tokens=False)["input_ids"]
            out["blocks"][f"{first:x}"] = fnv(ids)
            if llama.tokenize(text) != ids:
                blocks_differ.append(f"{first:x}")
        out["llama_blocks_differ"] = blocks_differ
    finally:
        llama.process.terminate()
    print(f"{differ} of {len(corpus)} texts differ between transformers and llama.cpp", file=sys.stderr)
    print(f"{len(blocks_differ)} of {len(out['blocks'])} blocks differ: {blocks_differ}", file=sys.stderr)
    print(f"chats: {[c.get('llama_agrees') for c in out['chats']]}", file=sys.stderr)
    json.dump(out, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main(*sys.argv[1:])
