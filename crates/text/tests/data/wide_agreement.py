"""Compares corpus.json and chats on models that are not in the tree.

    python wide_agreement.py path/to/text_of vocabs llama-tokenize VOCAB.gguf...
    python wide_agreement.py path/to/text_of templates MODEL.gguf TEMPLATE.jinja...

`text_of` is the example of this crate. Vocabularies are compared with llama-tokenize of llama.cpp,
whose tree has `models/ggml-vocab-*.gguf`; templates (its `models/templates`) with jinja2 as
transformers sets it up. Prints a line each and, with VERBOSE=1, the first difference.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
VERBOSE = os.environ.get("VERBOSE")


def ours(binary, args, requests):
    lines = "".join(json.dumps(r) + "\n" for r in requests)
    done = subprocess.run([binary, *args], input=lines, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        return None, done.stderr.strip().splitlines()[-1]
    return [json.loads(line) for line in done.stdout.split("\n") if line], None


def theirs(binary, model, text):
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", newline="") as f:
        f.write(text)
        f.flush()
        args = [binary, "-m", model, "-f", f.name, "--ids", "--no-bos", "--log-disable"]
        out = subprocess.run(args, capture_output=True, text=True).stdout
    return json.loads(out[out.rindex("[") :])


def vocabs(binary, llama, *models):
    corpus = [t for t in json.loads((HERE / "corpus.json").read_text()) if "\x00" not in t]
    for model in models:
        name = pathlib.Path(model).stem
        answers, error = ours(binary, [model], [{"text": t} for t in corpus])
        if error:
            print(f"{name}: {error[:150]}")
            continue
        same = 0
        shown = False
        for text, answer in zip(corpus, answers):
            want = theirs(llama, model, text)
            if answer.get("ids") == want:
                same += 1
            elif VERBOSE and not shown:
                shown = True
                print(f"  {text[:60]!r}\n  ours   {answer}\n  theirs {want}"[:900])
        print(f"{name}: {same} of {len(corpus)} texts agree")


def chats():
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Weather of a <city> & more",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "description": "é"}, "days": {"type": "integer"}},
                    "required": ["city"],
                },
            },
        }
    ]
    plain = [{"role": "user", "content": "Hello <b>!\n"}]
    turns = [
        {"role": "system", "content": " You are brief. "},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two "},
        {"role": "user", "content": "Drei 😀 {{ x }}"},
    ]
    call = {"type": "function", "id": "abcdefghi", "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}}
    called = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "22 °C"},
    ]
    thought = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2", "reasoning_content": "add"},
        {"role": "user", "content": "2+2?"},
    ]
    for messages in (plain, turns, called, thought):
        for with_tools in (None, tools):
            for start in (True, False):
                yield {"messages": messages, "tools": with_tools, "add_generation_prompt": start}
    yield {"messages": plain, "tools": None, "add_generation_prompt": True, "kwargs": {"enable_thinking": False}}
    yield {"messages": plain, "tools": None, "add_generation_prompt": True, "kwargs": {"enable_thinking": True}}


def templates(binary, model, *paths):
    import datetime

    from transformers.utils import chat_template_utils as utils

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2024, 2, 29, 12, 34, 56)

    utils.datetime = Clock
    now = int(datetime.datetime(2024, 2, 29, 12, 34, 56, tzinfo=datetime.timezone.utc).timestamp())
    specials = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    total = agreed = 0
    for path in paths:
        source = pathlib.Path(path).read_text(encoding="utf-8")
        requests = list(chats())
        answers, error = ours(binary, [model, path], [r | {"now_unix_s": now} for r in requests])
        same = both_fail = 0
        for request, answer in zip(requests, answers or []):
            try:
                want = utils.render_jinja_template(
                    [request["messages"]],
                    tools=request["tools"],
                    chat_template=source,
                    add_generation_prompt=request["add_generation_prompt"],
                    **specials,
                    **request.get("kwargs", {}),
                )[0][0]
            except Exception as e:
                both_fail += "error" in answer
                if "error" not in answer and VERBOSE:
                    print(f"  only theirs fails: {e!r}"[:300])
                continue
            if answer.get("text") == want:
                same += 1
            elif VERBOSE:
                got = answer.get("text", answer.get("error"))
                at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                print(f"  at {at}: ours {got[max(0, at - 40) : at + 160]!r}\n  theirs {want[max(0, at - 40) : at + 160]!r}")
        total += len(requests)
        agreed += same + both_fail
        print(f"{pathlib.Path(path).stem}: {same} the same, {both_fail} refused by both, of {len(requests)} {error or ''}")
    print(f"{agreed} of {total} chats agree")


if __name__ == "__main__":
    {"vocabs": vocabs, "templates": templates}[sys.argv[2]](sys.argv[1], *sys.argv[3:])
