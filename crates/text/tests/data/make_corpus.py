"""Writes corpus.json: texts on which tokenizers are apt to disagree.

    python make_corpus.py > corpus.json

Every general category of Unicode (characters that have been assigned since version 3.2, so that
no table is too old to know them), alone and in company; white space in long and mixed runs;
digits of many scripts; emoji with joiners and selectors; combining marks, composed and not;
right-to-left text; control characters; code; and spellings of control tokens.
"""

import json
import random
import sys
import unicodedata

random.seed(20240229)


def categories():
    """Characters by general category, the same in old and new versions of Unicode."""
    old = unicodedata.ucd_3_2_0
    by = {}
    for cp in range(0x110000):
        if 0xD800 <= cp <= 0xDFFF:
            continue
        c = chr(cp)
        cat = unicodedata.category(c)
        if cat == old.category(c):
            by.setdefault(cat, []).append(c)
    return by


def unicode_texts():
    for cat, chars in sorted(categories().items()):
        some = chars if len(chars) <= 24 else random.sample(chars, 24)
        yield "".join(some)
        yield " ".join(some)
        yield "".join(f"a{c}1{c} {c}{c}\n" for c in some[:12])
    # Noncharacters and unassigned code points have no letters to hide behind.
    yield "\ufdd0 \uffff a\U0001fffeb \u0378\u0379 \U000e0fff \U0010ffff"


def space_texts():
    for n in (1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 32, 33, 64, 100, 255, 1000):
        yield " " * n
        yield "x" + " " * n + "y"
    for n in (1, 2, 3, 10, 200):
        yield "\n" * n
        yield "a" + "\n" * n + "b"
        yield "\t" * n + "c"
        yield "a\r\n" * n
    spaces = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u2007\u2009\u2028\u2029\u202f\u205f\u3000\ufeff\u200b"
    for c in spaces:
        yield f"a{c}b{c}{c}c {c}d{c} e{c}\n{c}1{c}!"
    yield spaces
    yield spaces[::-1] * 3
    for _ in range(24):
        yield "".join(random.choice(" \n\t\r  ab1.") for _ in range(40))
    yield "trailing   "
    yield "   leading"
    yield "\n\n  \n \n   end\n\n"


def number_texts():
    yield "0 1 12 123 1234 12345 123456 1234567 12345678 123456789 1234567890"
    yield "3.14159 -42 +7 1e10 1_000_000 1,234,567.89 0x1F 0b1010 007 ½ ¾ ⅓ ² ³ ¹ ₀₁₂"
    yield "٠١٢٣٤٥٦٧٨٩ ०१२३४५६७८९ ০১২৩ ๐๑๒๓ ０１２３４５６７８９ Ⅷ ⅻ ①②⑳ 𝟎𝟏𝟐 𝟗 〇一二三 ౦౧౨"
    yield "a1b22c333d4444e 1a 22b 333c v1.2.3 2024-02-29T12:34:56Z 192.168.0.1 $1,000 100% №5"
    yield "1" * 50
    yield " 1 2  3   4    5"


def emoji_texts():
    yield "😀😃😄 😀 😀\n👍🏽 👍🏿👍 🏳️‍🌈 🏴‍☠️ 👨‍👩‍👧‍👦 👩🏾‍🚀 ❤️ ❤ ☎️ ©️ #️⃣ 1️⃣ 🇩🇪🇫🇷 🇺 🧑‍🤝‍🧑"
    yield "a😀b👨‍👩‍👧c ✨sparkle✨ →⇒➜ ★☆ ♥️‍🔥 \u200d \ufe0f \u200d\u200d 😀\u200d"
    yield "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f flags"


def mark_texts():
    yield "é e\u0301 ñ n\u0303 Å A\u030a \u212b ﬁ ﬃ ǆ ẛ̣ q\u0323\u0307 q\u0307\u0323 \u0301 \u0301\u0302\u0303"
    yield "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢L̠ͨͧͩ͘G̴̻͈͍͔̹̑͗̎̅͛́Ǫ̵̹̻̝̳͂̌̌͘!͖̬̰̙̗̿̋ͥͥ̂ͣ̐́́͜͞"
    yield "가 각 \u1100\u1161\u11a8 힣 ᄒ\u1161\u11ab 한국어 日本語 中文字符 ｶﾞ か\u3099 が ヴ ꙮ ﷽"
    yield "नमस्ते दुनिया ক্ষ தமிழ் ภาษาไทย ສະບາຍດີ မြန်မာ ខ្មែរ བོད་ཡིག አማርኛ ᏣᎳᎩ ქართული Հայերեն"
    yield "ǅ ǈ ᾳ ß ẞ İ ı ſ K Ω µ μ ς σ Σ Å Straße STRASSE ΑΣ ας"


def direction_texts():
    yield "שלום עולם مرحبا بالعالم سلام دنیا \u202eabc\u202c \u200fdef\u200e (אבג) 123 ١٢٣ «نص» ـــ لا ﻻ"
    yield "\u2066isolate\u2069 \u061c ש\u05c1ָ\u05dc\u05d5\u05b9\u05dd בְּרֵאשִׁית"


def control_texts():
    yield "".join(chr(c) for c in range(32)) + "\x7f"
    yield " ".join(chr(c) for c in range(32)) + " \x7f"
    yield "".join(f"a{chr(c)}b" for c in range(128, 160))
    yield "\x00"
    yield "\x1b[31mred\x1b[0m \x07 \x08\x08"


def word_texts():
    yield "Hello, world!"
    yield "The quick brown fox jumps over the lazy dog."
    yield "I'm you're he's we've they'll I'd can't DON'T IT'S We'Ve 'tis rock'n'roll ''' 's' '''s x'S x'ſ"
    yield "it’s ‘quoted’ “double” — dash – en … ellipsis • bullet †‡ § ¶ ¿qué? ¡sí!"
    yield "CamelCaseString snake_case_string kebab-case-string SCREAMING_CASE mixedCASE123abc ABCdef"
    yield "http://example.com/path?query=1&other=two#frag user@example.org C:\\Windows\\System32 ~/x/../y"
    yield "!!!??? ... ,,, ;;; ::: --- ___ === +++ *** /// \\\\\\ ||| ~~~ ``` ^^^ &&& %%% $$$ ### @@@"
    yield "(a)[b]{c}<d> (((nested))) [[x]] {{y}} <<z>> a/b c\\d e|f"
    yield "$\\sum_{i=0}^{n} \\frac{x_i}{2} \\leq \\alpha$ E = mc² ∀x∈ℝ: ⌈x⌉ ≥ x ∴ ∞ ≠ ∅"
    yield "supercalifragilisticexpialidocious Donaudampfschifffahrtsgesellschaft pneumonoultramicroscopic"
    yield "a" * 300
    yield "ab" * 100 + " " + "Ab" * 50
    yield "Привет, как дела? Ёлка ЁЖ Їжак ћирилица Ελληνικά Türkçe ığüşöç Tiếng Việt đặc biệt"
    yield "¿Dónde está la biblioteca? Où est-ce ? Größe Ångström naïve façade œuvre Łódź žluťoučký kůň"


def code_texts():
    yield "def f(x: int) -> int:\n    if x > 0:\n        return x * 2\n    else:\n\treturn -x  # comment\n\n\n"
    yield "fn main() {\n    let v: Vec<&'static str> = vec![\"a\", \"b\"];\n    println!(\"{:?}\", v);\n}\n"
    yield "for (int i=0;i<10;++i) { a[i] += b[i]*c; /* x */ } // end\r\n#include <stdio.h>\r\n"
    yield "SELECT * FROM t WHERE a='b' AND c>=10 ORDER BY d DESC;\n--\n{\"k\": [1, 2.5, null, true], \"s\": \"\\n\\u00e9\"}"
    yield "<html><body class=\"x\">&nbsp;&amp;</body></html>\n\t\t<p>\n\t\t\ttext</p>"
    yield "x = 'it''s' + \"\\\"\" ; y=`t ${z}` && !w || (a?b:c)\n\n\n\n    indented\n  \t mixed"


def special_texts():
    yield "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    yield "<|endoftext|>"
    yield "a<|im_end|>b <|im_end|> c<|endoftext|><|im_start|>"
    yield "< |im_end|> <|im_end| > <|IM_END|> <|im_end<|im_end|>|> |im_end|>"
    yield "<s>[INST] <<SYS>> </s> <unk> <pad> [PAD] <0x0A> ▁ ▁▁a Ġ Ċ"
    yield "<repo_name>x<file_sep>y<filename>z<gh_stars><issue_start><jupyter_code><empty_output>"


def texts():
    yield ""
    for make in (
        word_texts, code_texts, number_texts, space_texts, emoji_texts, mark_texts,
        direction_texts, control_texts, special_texts, unicode_texts,
    ):
        yield from make()


json.dump(list(texts()), sys.stdout, ensure_ascii=True, indent=0)
