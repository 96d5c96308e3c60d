//! Text to token ids and back: tokenizers, chat templates, incremental detokenizing, tool-call
//! and reasoning parsers, grammar masks.
//!
//! Invariants:
//! - Token ids are those of the model's own tokenizer (`transformers`), or the model is refused.
//! - Text that a client sent never becomes a control token: [`TextModel::render_chat`].
//! - What is streamed, concatenated, is what decoding or parsing the whole gives, however the
//!   text is cut.
//! - No input panics: vocabularies, templates, messages, schemas and token ids are all checked.
//!
//! Absent: async, threads, clocks, any file other than those of [`TextModel::from_hf_dir`].
#![forbid(unsafe_code)]

mod chat;
mod error;
mod grammar;
mod model;
mod stream;
mod tokenizer;
mod tools;

pub use chat::{ChatOptions, ChatPrompt};
pub use error::{MessageProblem, StopProblem, TextError, ToolProblem};
pub use grammar::GrammarSpec;
pub use model::TextModel;
pub use stream::{Increment, StreamOptions, TextStream};
pub use tokenizer::{Encode, GgufVocab};
pub use tools::{
    OutputEvent, OutputParser, ParsedOutput, ParserOptions, ReasoningMarks, ToolCall, ToolChoice,
    ToolFormat, ToolSpec, Tools,
};
