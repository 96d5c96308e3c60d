"""Holds a server to the official `openai` Python client.

usage: openai_client.py URL MODEL [API_KEY]

Prints a line for each check and exits non-zero at the first that fails. Nothing here depends on
what the model knows: a tiny model may answer nonsense, but in the right shape.
"""

import json
import sys

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Oslo", "Rome", "Lima"]},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time of day.",
            "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
        },
    },
]

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}


def user(text):
    return [{"role": "user", "content": text}]


def same(found, wanted, what):
    assert found == wanted, f"{what}: found {found!r}, wanted {wanted!r}"


class Checks:
    """Each method whose name begins with `check_` is one check."""

    def __init__(self, url, model, key):
        base = url.rstrip("/") + "/v1"
        self.url, self.model, self.key = base, model, key
        self.client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=120)
        self.chat = self.client.chat.completions

    def ask(self, text, **more):
        more = {"temperature": 0, "max_tokens": 32, **more}
        return self.chat.create(model=self.model, messages=user(text), **more)

    def check_models(self):
        ids = [m.id for m in self.client.models.list()]
        assert self.model in ids, f"{self.model} is not among {ids}"
        same(self.client.models.retrieve(self.model).id, self.model, "retrieved model")

    def check_chat(self):
        answer = self.ask("Say hello.")
        choice = answer.choices[0]
        same(choice.message.role, "assistant", "role")
        assert choice.message.content, "the answer is empty"
        assert choice.finish_reason in ("stop", "length"), choice.finish_reason
        usage = answer.usage
        same(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens, "total tokens")
        assert 0 < usage.completion_tokens <= 32, usage

    def check_stream_spells_the_whole_answer(self):
        for more in ({}, {"temperature": 0.9, "seed": 11}, {"stop": ["e"]}):
            whole = self.ask("Tell me about the sea.", **more)
            with self.ask(
                "Tell me about the sea.", stream=True,
                stream_options={"include_usage": True}, **more,
            ) as stream:
                chunks = list(stream)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            same(text, whole.choices[0].message.content or "", f"streamed text with {more}")
            ends = [c.choices[0].finish_reason for c in chunks if c.choices]
            same(ends[-1], whole.choices[0].finish_reason, "finish reason")
            same(set(ends[:-1]), {None}, "finish reasons before the last")
            same(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens, "usage")
            same(chunks[0].choices[0].delta.role, "assistant", "first delta's role")

    def check_stream_helper(self):
        # Ended by a stop string: the helper takes an answer that was cut off for an error.
        with self.chat.stream(
            model=self.model, messages=user("Count to three."), temperature=0, max_tokens=64,
            stop=["\n", ".", "e"],
        ) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
        assert final.choices[0].message.content, "the helper put nothing together"

    def check_seeds(self):
        more = {"temperature": 1.0, "max_tokens": 24}
        one, two = (self.ask("Tell a story.", seed=5, **more) for _ in range(2))
        same(one.choices[0].message.content, two.choices[0].message.content, "same seed")
        same(one.system_fingerprint, two.system_fingerprint, "fingerprint")

    def check_choices(self):
        answer = self.ask("Name a colour.", n=3, temperature=1.0, seed=3, max_tokens=8)
        same([c.index for c in answer.choices], [0, 1, 2], "indices")
        with self.ask(
            "Name a colour.", n=3, temperature=1.0, seed=3, max_tokens=8, stream=True,
        ) as stream:
            texts = ["", "", ""]
            for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        same(texts, [c.message.content for c in answer.choices], "streamed choices")

    def check_logprobs(self):
        answer = self.ask("Hi", logprobs=True, top_logprobs=3, max_tokens=6)
        content = answer.choices[0].logprobs.content
        assert 1 <= len(content) <= 6, len(content)
        for entry in content:
            same(len(entry.top_logprobs), 3, "top log-probabilities")
            assert entry.logprob <= 0, entry
            # Greedy: the chosen token is the likeliest, and the list is in order.
            same(entry.top_logprobs[0].token, entry.token, "best token")
            values = [t.logprob for t in entry.top_logprobs]
            same(values, sorted(values, reverse=True), "order")
        spelled = b"".join(bytes(e.bytes) for e in content).decode("utf-8", "replace")
        assert answer.choices[0].message.content.startswith(spelled[:1]), spelled
        same(self.ask("Hi", max_tokens=2).choices[0].logprobs, None, "logprobs not asked for")

    def check_completions(self):
        create = self.client.completions.create
        answer = create(
            model=self.model, prompt="The capital of France is", temperature=0, max_tokens=5,
            logprobs=2, echo=True,
        )
        choice = answer.choices[0]
        assert choice.text.startswith("The capital of France is"), choice.text
        lists = choice.logprobs
        same(len(lists.tokens), len(lists.token_logprobs), "lengths")
        same(lists.token_logprobs[0], None, "the first token's log-probability")
        same("".join(lists.tokens), choice.text, "tokens spell the text")
        two = create(model=self.model, prompt=["One", "Two"], temperature=0, max_tokens=4, n=2)
        same([c.index for c in two.choices], [0, 1, 2, 3], "indices of two prompts")
        same(two.choices[0].text, two.choices[1].text, "greedy choices of a prompt")
        with create(
            model=self.model, prompt="One", temperature=0, max_tokens=4, stream=True,
        ) as stream:
            text = "".join(c.choices[0].text for c in stream)
        same(text, two.choices[0].text, "streamed text")

    def arguments(self, call):
        made = json.loads(call.function.arguments)
        if call.function.name == "get_weather":
            assert made["city"] in ("Oslo", "Rome", "Lima"), made
            assert made["unit"] in ("celsius", "fahrenheit"), made
            same(len(made), 2, "arguments")
        else:
            same((call.function.name, made), ("get_time", {}), "call")

    def check_tools_required(self):
        answer = self.ask(
            "What is the weather in Rome?", tools=TOOLS, tool_choice="required", max_tokens=128,
        )
        choice = answer.choices[0]
        same(choice.finish_reason, "tool_calls", "finish reason")
        assert choice.message.tool_calls, "no call was made"
        for call in choice.message.tool_calls:
            self.arguments(call)

    def check_tools_named(self):
        for name in ("get_weather", "get_time"):
            answer = self.ask(
                "Hello.", tools=TOOLS, max_tokens=128,
                tool_choice={"type": "function", "function": {"name": name}},
            )
            (call,) = answer.choices[0].message.tool_calls
            same(call.function.name, name, "function")
            self.arguments(call)

    def check_tools_auto(self):
        for text in ("What is the weather in Oslo in celsius?", "Say hello."):
            answer = self.ask(text, tools=TOOLS, max_tokens=128)
            message = answer.choices[0].message
            for call in message.tool_calls or []:
                self.arguments(call)
            assert message.tool_calls or message.content, "neither words nor a call"
        none = self.ask("Say hello.", tools=TOOLS, tool_choice="none")
        same(none.choices[0].message.tool_calls, None, "calls with tool_choice none")

    def check_tools_streamed(self):
        more = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 128}
        whole = self.ask("What time is it?", **more).choices[0].message.tool_calls
        calls = []
        with self.ask("What time is it?", stream=True, **more) as stream:
            for chunk in stream:
                for piece in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                    if piece.index == len(calls):
                        assert piece.id and piece.function.name, piece
                        calls.append([piece.function.name, ""])
                    calls[piece.index][1] += piece.function.arguments or ""
        same(calls, [[c.function.name, c.function.arguments] for c in whole], "streamed calls")

    def check_tool_results(self):
        first = self.ask(
            "What is the weather in Rome?", tools=TOOLS, tool_choice="required", max_tokens=128,
        ).choices[0].message
        messages = user("What is the weather in Rome?")
        messages.append(first.model_dump(exclude_none=True))
        for call in first.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "21 degrees"})
        answer = self.chat.create(
            model=self.model, messages=messages, tools=TOOLS, tool_choice="none", max_tokens=24,
            temperature=0,
        )
        assert answer.choices[0].message.content, "no answer after the tool's result"

    def check_json(self):
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
        answer = self.ask("Describe a person as JSON.", response_format=form, max_tokens=256)
        same(answer.choices[0].finish_reason, "stop", "finish reason")
        made = json.loads(answer.choices[0].message.content)
        same(set(made), {"name", "age", "hobbies"}, "keys")
        assert isinstance(made["age"], int) and 0 <= made["age"] <= 150, made
        assert len(made["hobbies"]) <= 3 and len(made["name"]) <= 20, made
        form = {"type": "json_object"}
        answer = self.ask("Give me JSON.", response_format=form, max_tokens=512)
        if answer.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(answer.choices[0].message.content), dict)

    def refused(self, kind, **more):
        try:
            self.ask(more.pop("text", "Hi"), **more)
        except openai.APIStatusError as e:
            assert type(e) is kind, f"{more}: {type(e).__name__} where {kind.__name__} was due"
            assert e.body and e.body.get("message"), e.body
            return e
        raise AssertionError(f"{more} was not refused")

    def check_errors(self):
        same(self.refused(openai.BadRequestError, temperature=-1).param, "temperature", "param")
        same(self.refused(openai.BadRequestError, top_logprobs=3).param, "top_logprobs", "param")
        e = self.refused(openai.BadRequestError, text="word " * 300_000)
        same(e.code, "context_length_exceeded", "code")
        image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
        self.refused(openai.UnprocessableEntityError, text=image)
        try:
            self.chat.create(model="no-such-model", messages=user("Hi"))
            raise AssertionError("an unknown model was not refused")
        except openai.NotFoundError as e:
            same(e.code, "model_not_found", "code")
        try:
            self.client.embeddings.create(model=self.model, input="x")
            raise AssertionError("a route that is not there was not refused")
        except openai.NotFoundError:
            pass

    def check_leaving_a_stream(self):
        stream = self.ask("Go on for ever.", max_tokens=512, stream=True,
                          extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        assert self.ask("Still there?").choices, "the server is gone"

    def check_key(self):
        if self.key == "none":
            return
        wrong = openai.OpenAI(base_url=self.url, api_key="wrong", max_retries=0)
        try:
            wrong.models.list()
            raise AssertionError("a wrong key was accepted")
        except openai.AuthenticationError:
            pass


def main(argv):
    if len(argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    checks = Checks(argv[1], argv[2], argv[3] if len(argv) == 4 else "none")
    names = [n for n in dir(checks) if n.startswith("check_")]
    for name in names:
        what = name.removeprefix("check_").replace("_", " ")
        try:
            getattr(checks, name)()
        except Exception as e:
            print(f"FAILED {what}: {type(e).__name__}: {e}", flush=True)
            return 1
        print(f"ok     {what}", flush=True)
    print(f"{len(names)} checks with openai {openai.__version__}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
