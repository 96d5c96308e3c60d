//! Which pre-tokenizer a `tokenizer.ggml.pre` name stands for.
//!
//! GGUF stores a name, not the definition. The definitions are those of the models' own
//! `tokenizer.json` files; the names are the ones that llama.cpp's converter writes. A name that
//! is not here is refused: a near miss gives fluent text with wrong ids.

use serde_json::{Value, json};

/// One step of a pre-tokenizer, applied to every piece that the steps before it left.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Matches become pieces, and so does what is between them.
    Split(&'static str),
    /// Every numeric character is a piece.
    Digits,
}

/// How text becomes words before byte-level BPE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pre {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Split by GPT-2's pattern inside the byte-level step.
    gpt2_regex: bool,
    /// Text is brought to NFC first.
    pub(crate) nfc: bool,
    /// A word that is itself a token is taken whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// BOS is added where the file does not say.
    pub(crate) add_bos: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DEEPSEEK_CJK: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const DEEPSEEK_V3_CJK: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const DEEPSEEK_PUNCTUATION: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";
/// The cased letters that DeepSeek-LLM's definition enumerates.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\
    \u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\
    \u{388}-\u{38a}\u{38c}\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\
    \u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\
    \u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\
    \u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\
    \u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\
    \u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\
    \u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\
    \u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\
    \u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\
    \u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\
    \u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\
    \u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\
    \u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\
    \u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+";

const PLAIN: Pre = Pre {
    names: &[],
    steps: &[],
    gpt2_regex: false,
    nfc: false,
    ignore_merges: false,
    add_bos: false,
};

const TABLE: &[Pre] = &[
    Pre { names: &["gpt-2", "phi-2", "olmo", "exaone4"], gpt2_regex: true, ..PLAIN },
    // What llama.cpp does for files without a name; the model's own definition is unknown.
    Pre {
        names: &["default"],
        steps: &[
            Step::Split(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Split(GPT2),
            Step::Split(r"\p{N}+"),
            Step::Split("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    Pre {
        names: &["smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"],
        steps: &[Step::Digits],
        gpt2_regex: true,
        ..PLAIN
    },
    Pre { names: &["command-r"], steps: &[Step::Digits], gpt2_regex: true, nfc: true, ..PLAIN },
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2"],
        steps: &[Step::Split(LLAMA3)],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Pre { names: &["dbrx", "smaug-bpe"], steps: &[Step::Split(LLAMA3)], ..PLAIN },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        steps: &[Step::Split(QWEN2)],
        nfc: true,
        ..PLAIN
    },
    Pre { names: &["qwen35"], steps: &[Step::Split(QWEN35)], nfc: true, ..PLAIN },
    Pre {
        names: &["tekken"],
        steps: &[Step::Split(TEKKEN)],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    Pre { names: &["gpt-4o", "llama4"], steps: &[Step::Split(GPT4O)], ..PLAIN },
    Pre {
        names: &["deepseek-llm"],
        steps: &[
            Step::Split("[\r\n]"),
            Step::Split(DEEPSEEK_LETTERS),
            Step::Split(DEEPSEEK_PUNCTUATION),
            Step::Split(r"\s+$"),
            Step::Split(DEEPSEEK_CJK),
            Step::Digits,
        ],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-coder"],
        steps: &[
            Step::Split("[\r\n]"),
            Step::Split(r"\s?\p{L}+"),
            Step::Split(r"\s?\p{P}+"),
            Step::Split(DEEPSEEK_CJK),
            Step::Digits,
        ],
        ..PLAIN
    },
    Pre {
        names: &["deepseek-v3"],
        steps: &[
            Step::Split(r"\p{N}{1,3}"),
            Step::Split(DEEPSEEK_V3_CJK),
            Step::Split(DEEPSEEK_V3),
        ],
        ..PLAIN
    },
];

/// The entry of a name; an empty name is `default`.
pub(crate) fn find(name: &str) -> Option<&'static Pre> {
    let name = if name.is_empty() { "default" } else { name };
    TABLE.iter().find(|p| p.names.contains(&name))
}

/// Every name, in the order of the table.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|p| p.names.iter().copied())
}

impl Pre {
    /// The `pre_tokenizer` of a `tokenizer.json`.
    pub(crate) fn to_json(self) -> Value {
        let mut steps: Vec<Value> = self
            .steps
            .iter()
            .map(|step| match step {
                Step::Split(regex) => json!({
                    "type": "Split",
                    "pattern": {"Regex": regex},
                    "behavior": "Isolated",
                    "invert": false,
                }),
                Step::Digits => json!({"type": "Digits", "individual_digits": true}),
            })
            .collect();
        steps.push(json!({
            "type": "ByteLevel",
            "add_prefix_space": false,
            "trim_offsets": true,
            "use_regex": self.gpt2_regex,
        }));
        json!({"type": "Sequence", "pretokenizers": steps})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_twice() {
        let mut seen = std::collections::HashSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name}");
            assert!(find(name).is_some());
        }
        assert!(find("").is_some_and(|p| p.names == ["default"]));
        assert!(find("no-such").is_none());
    }
}
