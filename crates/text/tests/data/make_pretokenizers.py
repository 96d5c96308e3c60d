"""Writes pretokenizers.json: where the models' own pre-tokenizers cut, as ids of a test vocabulary.

    pip install tokenizers
    python make_pretokenizers.py > pretokenizers.json

The vocabulary has every byte and every pair of bytes, so that nearly any difference in where a
text is cut changes the ids; a rule makes it, here and in pretokenizers.rs, and nothing is stored.
The definitions are those of the models' tokenizer.json files; the engine is Hugging Face's with
Oniguruma, the one that `transformers` uses. Ids are stored as their FNV-1a hash: one a text of
corpus.json, one a block of 1,024 characters.
"""

import json
import pathlib
import sys

from make_goldens_common import every_character, fnv
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

HERE = pathlib.Path(__file__).parent

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
NO_WORD = r"[^\r\n\p{L}\p{N}]?"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def cased(tail, digits):
    return (
        f"{NO_WORD}{UPPER}*{LOWER}+{tail}|{NO_WORD}{UPPER}+{LOWER}*{tail}|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
    )


def plain(digits, letters=r"\p{L}+", others=r"[^\s\p{L}\p{N}]+"):
    return rf"{CONTRACTIONS}|{NO_WORD}{letters}|{digits}| ?{others}[\r\n]*|{SPACES}"


def deepseek_letters():
    """The letters that DeepSeek-LLM's definition lists, read out of our own table."""
    source = (HERE / "../../src/tokenizer/pre.rs").read_text()
    literal = source.split("const DEEPSEEK_LETTERS: &str =")[1].split(";")[0].strip().strip('"')
    literal = "".join(line.strip().rstrip("\\") for line in literal.splitlines())
    import re

    literal = re.sub(r"\\u\{([0-9a-f]+)\}", lambda m: chr(int(m[1], 16)), literal)
    return literal.replace("\\\\", "\\")


CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEFINITIONS = {
    "gpt-2": [GPT2],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "smollm": ["DIGITS", GPT2],
    "command-r": ["NFC", "DIGITS", GPT2],
    "llama-bpe": [plain(r"\p{N}{1,3}")],
    "qwen2": ["NFC", plain(r"\p{N}")],
    "qwen35": ["NFC", plain(r"\p{N}", r"[\p{L}\p{M}]+", r"[^\s\p{L}\p{M}\p{N}]+")],
    "tekken": [cased("", r"\p{N}")],
    "gpt-4o": [cased(f"{CONTRACTIONS}?", r"\p{N}{1,3}")],
    "deepseek-llm": [
        "[\r\n]",
        deepseek_letters(),
        "\\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        CJK,
        "DIGITS",
    ],
    "deepseek-coder": ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, "DIGITS"],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    ],
}


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) if b in printable else chr(256 + others.index(b)) for b in range(256)]


def tokenizer(steps):
    alphabet = byte_alphabet()
    # An odd factor visits every pair once, in an order that favours none.
    pairs = [divmod(i * 40503 % 65536, 256) for i in range(65536)]
    merges = [(alphabet[a], alphabet[b]) for a, b in pairs]
    vocab = {text: i for i, text in enumerate(alphabet + [a + b for a, b in merges])}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    parts = []
    for step in steps:
        if step == "NFC":
            inner.normalizer = normalizers.NFC()
        elif step == "DIGITS":
            parts.append(pre_tokenizers.Digits(individual_digits=True))
        else:
            parts.append(pre_tokenizers.Split(Regex(step), "isolated"))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    inner.pre_tokenizer = pre_tokenizers.Sequence(parts)
    return inner


def main():
    corpus = json.loads((HERE / "corpus.json").read_text())
    out = {}
    # All blocks up to the CJK ideographs, then one in eight; SmolLM2's goldens have them all.
    some = {first for i, (first, _) in enumerate(every_character()) if first < 0x3400 or i % 8 == 0}
    for name, steps in DEFINITIONS.items():
        inner = tokenizer(steps)
        hash_of = lambda text: fnv(inner.encode(text, add_special_tokens=False).ids)
        out[name] = {
            "texts": [hash_of(text) for text in corpus],
            "blocks": {f"{first:x}": hash_of(text) for first, text in every_character() if first in some},
        }
    json.dump(out, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
