//! A tokenizer's data as a GGUF file holds it, with nothing interpreted.

/// The vocabulary of a GGUF file. `text` builds a tokenizer from it.
///
/// `token_types` and `scores` are empty or have one entry a token; every id is below
/// `tokens.len()`.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct VocabData {
    /// `tokenizer.ggml.model`: "gpt2" (byte-level BPE), "llama" (SentencePiece), ...
    pub model: String,
    /// `tokenizer.ggml.pre`: which pre-tokenizer expression a byte-level BPE uses.
    pub pre: Option<String>,
    pub tokens: Vec<String>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    pub scores: Vec<f32>,
    /// Pairs in order of rank, with a space between.
    pub merges: Vec<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    /// End of turn.
    pub eot: Option<u32>,
    /// End of message, where a tool's result is expected.
    pub eom: Option<u32>,
    pub unk: Option<u32>,
    pub sep: Option<u32>,
    pub pad: Option<u32>,
    pub add_bos: Option<bool>,
    pub add_eos: Option<bool>,
    pub add_space_prefix: Option<bool>,
    pub remove_extra_whitespaces: Option<bool>,
    /// `tokenizer.chat_template`, in Jinja.
    pub chat_template: Option<String>,
    /// Templates with a name of their own, e.g. `tool_use`.
    pub named_chat_templates: Vec<(String, String)>,
}
