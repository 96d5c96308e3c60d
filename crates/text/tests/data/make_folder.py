"""Writes folder/: a small tokenizer as transformers saves one, and goldens for it.

    pip install transformers jinja2
    python make_folder.py

The tokenizer is a byte-level BPE of 600 tokens trained on corpus.json, with Llama-3's
pre-tokenizer, a post-processor that puts BOS in front, and special tokens. The chat template is
made to use what templates use: namespaces, macros, loop controls, generation blocks, slices,
string and dict methods, tests, filters with arguments, white-space control.
"""

import json
import pathlib
import shutil

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = pathlib.Path(__file__).parent
OUT = HERE / "folder"

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEMPLATE = """\
{#- A template that uses what templates use. -#}
{%- macro turn(role, text) -%}
<|turn|>{{ role }}: {{ text }}<|end|>
{%- endmacro -%}
{{- bos_token }}
{%- set ns = namespace(system='', turns=0, seen=[]) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set ns.system = messages[0].content | trim %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- if ns.system or tools %}
{{ turn('system', ns.system) }}
{% endif %}
{%- if tools %}
    {%- for tool in tools %}
        {%- set f = tool.function %}
- {{ f.name | upper }} ({{ loop.index }}/{{ loop.length }}): {{ f | tojson }}
        {%- if f.parameters is mapping and f.parameters.get('properties') is mapping %}
            {%- for key, value in f.parameters.properties.items() %}
  {{ key }}={{ value.type | default('any', true) }}{{ ',' if not loop.last }}
            {%- endfor %}
{{ f.parameters | tojson(indent=2) }}
        {%- endif %}
    {%- endfor %}

{% endif %}
{%- for m in rest %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {%- if m.role not in ['user', 'assistant', 'tool'] %}
        {{- raise_exception('no such role: ' + m.role) }}
    {%- endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if m.role == 'assistant' %}
        {%- generation %}
<|turn|>assistant: {{ m.content.split('</think>')[-1].lstrip('\\n') if m.content else '' }}
        {%- for call in m.tool_calls or [] %}
<call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</call>
        {%- endfor %}<|end|>
        {%- endgeneration %}
    {%- elif m.content is string %}
        {{- turn(m.role, m.content.replace('\\t', '    ').strip()) }}
    {%- elif m.content is iterable %}
        {%- for part in m.content if part.type == 'text' %}
            {{- part.text ~ (' | ' if not loop.last else '') }}
        {%- endfor %}
    {%- endif %}
    {%- if m.name is defined and m.name.startswith('x') %} [{{ m.name[1:] }}]{% endif %}
{% endfor %}
{{- [ns.turns, true, none, 1.0, {'k': 'it\\'s'}] }} {{ (ns.turns * 2) // 3 }} {{ 7 / 2 }} {{ ns.turns > 1 and 'many' or 'one' }}
{%- if extra is defined %} {{ extra | join('-') }} {{ extra[::-1] | list }} {{ extra | map('upper') | join }} {{ extra | length }}{% endif %}
{%- if add_generation_prompt %}
<|turn|>assistant:
{%- endif -%}
"""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Finds <things> & \"more\" é 😀\n\u2028",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}, "n": {}}, "required": ["what"]},
        },
    },
    {"type": "function", "function": {"name": "noop"}},
]
CALL = {"type": "function", "id": "c1", "function": {"name": "find", "arguments": {"what": "x\"y", "n": [1, 2.5, 1e20, None]}}}
CHATS = [
    {"messages": [{"role": "user", "content": " hi\tthere \x1f"}]},
    {"messages": [{"role": "system", "content": "\n be kind \u00a0"}, {"role": "user", "content": "ok", "name": "xavier"}]},
    {"messages": [{"role": "user", "content": "find x"}], "tools": TOOLS},
    {
        "messages": [
            {"role": "user", "content": "find x"},
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": "12", "name": "xfind"},
            {"role": "skip", "content": "not shown"},
            {"role": "assistant", "content": "<think>\nhm</think>\n\nTwelve."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "tools": TOOLS,
        "add_generation_prompt": False,
    },
    {"messages": [{"role": "user", "content": "x"}], "kwargs": {"extra": ["p", "q", "r"]}},
]


def main():
    corpus = json.loads((HERE / "corpus.json").read_text())
    inner = Tokenizer(models.BPE(ignore_merges=True))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    specials = [AddedToken(t, special=True, normalized=False) for t in ("<|begin|>", "<|end|>", "<|turn|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(corpus, trainer)
    inner.add_tokens([AddedToken("<call>", special=False, normalized=False), AddedToken("<think>", special=False)])
    inner.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", pair="<|begin|> $A <|begin|> $B", special_tokens=[("<|begin|>", 0)]
    )
    hf = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<|begin|>", eos_token="<|end|>", chat_template=TEMPLATE)
    shutil.rmtree(OUT, ignore_errors=True)
    hf.save_pretrained(OUT)
    (OUT / "generation_config.json").write_text('{"eos_token_id": [1, 2]}\n')
    golden = {"texts": [], "chats": []}
    texts = [*corpus[:60], "<|turn|>x<call>y<think> <|end|>"]
    for text in texts:
        ids = hf(text)["input_ids"]
        golden["texts"].append({"text": text, "ids": ids, "decoded": hf.decode(ids, skip_special_tokens=True)})
    for chat in CHATS:
        kwargs = {"tools": chat.get("tools"), "add_generation_prompt": chat.get("add_generation_prompt", True)}
        kwargs |= chat.get("kwargs", {})
        text = hf.apply_chat_template(chat["messages"], tokenize=False, **kwargs)
        ids = hf.apply_chat_template(chat["messages"], **kwargs)["input_ids"]
        golden["chats"].append(chat | {"text": text, "ids": ids})
    (OUT / "golden.json").write_text(json.dumps(golden, separators=(",", ":")))


main()
