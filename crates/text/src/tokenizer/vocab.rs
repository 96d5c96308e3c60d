//! A vocabulary as a GGUF file states it, and the checks that it is not lying.

use crate::TextError;
use lockstep_flow::{Token, limits};
use std::collections::HashMap;

/// The values of `tokenizer.ggml.model` that this room builds.
pub const MODELS: &[&str] = &["gpt2", "llama"];

/// Bytes of a token's spelling, at most; the longest real ones are runs of spaces.
const TOKEN_BYTES_MAX: usize = 4096;
/// The same for SentencePiece, where every way to split a token is looked at.
const PIECE_BYTES_MAX: usize = 1024;

/// The tokenizer keys of a GGUF file's metadata, as plain data.
///
/// `None` where the file lacks a key; what then holds is the convention of the file format for
/// the kind of tokenizer (SentencePiece adds BOS and a leading space, byte-level BPE does not).
#[derive(Clone, Default, PartialEq, Debug)]
pub struct GgufVocab {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`; empty where absent, which is read as `default`.
    pub pre: String,
    /// `tokenizer.ggml.tokens`: the text of every id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte. Empty where absent (all normal).
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.scores`: needed by `llama`, ignored by `gpt2`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.merges`: needed by `gpt2`, best first, two parts with a space between.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

/// What an id is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl GgufVocab {
    /// Checks lengths, types, duplicates, special ids and scores; gives the kind of every id.
    pub(crate) fn check(&self) -> Result<Vec<Kind>, TextError> {
        if !MODELS.contains(&self.model.as_str()) {
            return Err(TextError::UnknownModel { found: self.model.clone() });
        }
        let n = self.tokens.len();
        if n == 0 || n > limits::VOCAB_MAX as usize {
            return Err(TextError::VocabSize { found: n, max: limits::VOCAB_MAX });
        }
        let lengths = [
            ("tokenizer.ggml.token_type", self.token_types.len(), false),
            ("tokenizer.ggml.scores", self.scores.len(), self.model == "llama"),
        ];
        for (array, found, needed) in lengths {
            if found != n && (needed || found != 0) {
                return Err(TextError::ArrayLength { array, found, expected: n });
            }
        }
        for (which, id) in self.specials() {
            if let Some(found) = id.filter(|&id| id as usize >= n) {
                return Err(TextError::SpecialOutOfRange { which, found, vocab: n as u32 });
            }
        }
        let mut first = HashMap::with_capacity(n);
        for (id, text) in self.tokens.iter().enumerate() {
            let second = Token(id as u32);
            if text.is_empty() {
                return Err(TextError::EmptyToken { token: second });
            }
            let (bytes, spm) = (text.len(), self.model == "llama");
            let max_bytes = if spm { PIECE_BYTES_MAX } else { TOKEN_BYTES_MAX };
            if bytes > max_bytes {
                return Err(TextError::TokenTooLong { token: second, bytes, max_bytes });
            }
            if let Some(first) = first.insert(text.as_str(), second) {
                return Err(TextError::DuplicateToken { text: text.clone(), first, second });
            }
        }
        if self.model == "llama"
            && let Some(at) = self.scores.iter().position(|s| !s.is_finite())
        {
            return Err(TextError::Score { token: Token(at as u32) });
        }
        self.kinds()
    }

    /// The named special ids, with the names that errors use.
    pub(crate) fn specials(&self) -> [(&'static str, Option<u32>); 6] {
        [
            ("bos", self.bos),
            ("eos", self.eos),
            ("unknown", self.unk),
            ("padding", self.pad),
            ("eot", self.eot),
            ("eom", self.eom),
        ]
    }

    fn kinds(&self) -> Result<Vec<Kind>, TextError> {
        if self.token_types.is_empty() {
            return Ok(vec![Kind::Normal; self.tokens.len()]);
        }
        let kind = |(id, &t): (usize, &i32)| match t {
            1 => Ok(Kind::Normal),
            2 => Ok(Kind::Unknown),
            3 => Ok(Kind::Control),
            4 => Ok(Kind::UserDefined),
            5 => Ok(Kind::Unused),
            6 => Ok(Kind::Byte),
            found => Err(TextError::TokenType { token: Token(id as u32), found }),
        };
        self.token_types.iter().enumerate().map(kind).collect()
    }
}
