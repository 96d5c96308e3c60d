//! What can go wrong in this room, in the field's words.

use core::fmt;
use lockstep_flow::Token;
use std::path::PathBuf;

/// Every failure that this room reports.
#[derive(Clone, PartialEq, Debug)]
pub enum TextError {
    /// A model folder without `tokenizer.json`.
    NoTokenizer { dir: PathBuf },
    /// Text is asked of a model that is served for token ids.
    IdsOnly,
    /// A tokenizer file that cannot be read.
    Read { path: PathBuf, kind: std::io::ErrorKind },
    /// A folder, a pipe or a device where a file is needed.
    NotAFile { path: PathBuf },
    /// A tokenizer file that is larger than any known one.
    FileTooLarge { path: PathBuf, bytes: u64, max_bytes: u64 },
    /// A tokenizer file that is not JSON.
    NotJson { path: PathBuf, line: usize, column: usize },
    /// `tokenizer.ggml.model` names a kind of tokenizer that we do not have.
    UnknownModel { found: String },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that we do not have.
    UnknownPre { found: String },
    /// A vocabulary with no tokens, or with more than `max`.
    VocabSize { found: usize, max: u32 },
    /// An array of the vocabulary whose length does not fit the number of tokens.
    ArrayLength { array: &'static str, found: usize, expected: usize },
    /// Two ids with the same text.
    DuplicateToken { text: String, first: Token, second: Token },
    /// A token with an empty text.
    EmptyToken { token: Token },
    /// A token whose text is longer than any real one.
    TokenTooLong { token: Token, bytes: usize, max_bytes: usize },
    /// A token type outside 1..=6.
    TokenType { token: Token, found: i32 },
    /// A score that is not a finite number.
    Score { token: Token },
    /// A merge that does not have two parts, or names a token that the vocabulary lacks.
    Merge { index: usize, merge: String, missing: Option<String> },
    /// A special token's id outside the vocabulary.
    SpecialOutOfRange { which: &'static str, found: u32, vocab: u32 },
    /// A SentencePiece vocabulary without the token of a byte.
    NoByteToken { byte: u8 },
    /// The decoder of a `tokenizer.json` is neither byte-level nor SentencePiece.
    Decoder { found: String },
    /// The tokenizer library refused the definition or the text; its words.
    Tokenizer { what: String },
    /// A run of white space, or of anything else, that is too long to be cut reliably.
    RunTooLong { space: bool, max_chars: usize },
    /// The model has no chat template.
    NoTemplate,
    /// The chat template does not parse.
    TemplateSyntax { line: usize, what: String },
    /// The chat template failed on these messages.
    TemplateFailed { line: usize, what: String },
    /// The chat template called `raise_exception`.
    TemplateRaised { message: String },
    /// The template's output passed the limit.
    PromptTooLong { max_bytes: usize },
    /// The template ran for too many steps.
    TemplateTooSlow { max_steps: u64 },
    /// A message does not have the shape of a chat message.
    Message { index: usize, problem: MessageProblem },
    /// `messages` is not an array, or is empty.
    Messages { found: &'static str },
    /// `tools` is not an array of `{"type": "function", "function": {"name", ...}}`.
    Tool { index: usize, problem: ToolProblem },
    /// `tool_choice` names a function that is not among the tools.
    UnknownTool { name: String },
    /// A tool choice that needs tools, and there are none.
    NoTools,
    /// A stop string is empty, too long or one too many.
    Stop { problem: StopProblem },
    /// A grammar that the grammar engine refuses; its words.
    Grammar { kind: &'static str, what: String },
    /// A grammar, schema or pattern that is larger than the limit.
    GrammarTooLarge { kind: &'static str, bytes: usize, max_bytes: usize },
    /// The grammar engine could not be built for this vocabulary.
    GrammarEngine { what: String },
}

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageProblem {
    /// Not a JSON object.
    NotAnObject,
    /// `role` is missing or is not a string.
    NoRole,
    /// `content` is neither a string, null nor an array of parts.
    Content,
    /// A content part of a kind other than text.
    PartKind,
}

/// What is wrong with a tool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolProblem {
    /// Not an object with `type` "function" and a `function` object.
    Shape,
    /// The function's name is not 1 to 64 of `a-z A-Z 0-9 _ -`.
    Name,
    /// `parameters` is not a JSON schema object.
    Parameters,
    /// A second function with the same name.
    Duplicate,
    /// `tools` itself is not an array, or has more than the limit.
    List,
}

/// What is wrong with a stop string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopProblem {
    Empty,
    TooLong,
    TooMany,
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use TextError as E;
        match self {
            E::NoTokenizer { dir } => write!(
                f,
                "{} has no tokenizer.json; save the tokenizer in that format beside the weights \
                 (transformers: AutoTokenizer.from_pretrained(..).save_pretrained(..)), or serve a \
                 GGUF file, which carries its tokenizer",
                dir.display()
            ),
            E::IdsOnly => f.write_str(
                "the model's folder has no tokenizer.json, so it is served for token ids alone: \
                 send `prompt` as an array of token ids to /v1/completions, `stop_token_ids` for \
                 `stop`, and read the tokens in `logprobs`",
            ),
            E::NotAFile { path } => write!(f, "{} is not a regular file", path.display()),
            E::Read { path, kind } => write!(f, "{} cannot be read: {kind}", path.display()),
            E::FileTooLarge { path, bytes, max_bytes } => write!(
                f,
                "{} has {bytes} bytes; a tokenizer file has at most {max_bytes}",
                path.display()
            ),
            E::NotJson { path, line, column } => {
                write!(f, "{} is not JSON: line {line}, column {column}", path.display())
            }
            E::UnknownModel { found } => write!(
                f,
                "tokenizer.ggml.model is '{found}'; supported are {}",
                crate::tokenizer::MODELS.join(", ")
            ),
            E::UnknownPre { found } => write!(
                f,
                "tokenizer.ggml.pre is '{found}'; supported are {}",
                crate::tokenizer::pre_names().collect::<Vec<_>>().join(", ")
            ),
            E::VocabSize { found, max } => {
                write!(f, "the vocabulary has {found} tokens; 1 to {max} are supported")
            }
            E::ArrayLength { array, found, expected } => {
                write!(f, "{array} has {found} entries where the vocabulary needs {expected}")
            }
            E::DuplicateToken { text, first, second } => {
                write!(f, "tokens {first} and {second} have the same text {text:?}")
            }
            E::EmptyToken { token } => write!(f, "token {token} has an empty text"),
            E::TokenTooLong { token, bytes, max_bytes } => {
                write!(f, "token {token} has {bytes} bytes; at most {max_bytes} are supported")
            }
            E::TokenType { token, found } => {
                write!(f, "token {token} has type {found}; types are 1 to 6")
            }
            E::Score { token } => write!(f, "the score of token {token} is not a finite number"),
            E::Merge { index, merge, missing: Some(part) } => write!(
                f,
                "merge {index} ({merge:?}) needs the token {part:?}, which the vocabulary lacks"
            ),
            E::Merge { index, merge, missing: None } => {
                write!(f, "merge {index} is {merge:?}; a merge is two parts with a space between")
            }
            E::SpecialOutOfRange { which, found, vocab } => {
                write!(f, "the {which} token is {found}, outside the vocabulary of {vocab}")
            }
            E::NoByteToken { byte } => write!(
                f,
                "the vocabulary lacks the byte token <0x{byte:02X}>, which byte fallback needs"
            ),
            E::Decoder { found } => write!(
                f,
                "the decoder of tokenizer.json is {found}; supported are ByteLevel and the \
                 SentencePiece sequence (Replace, ByteFallback, Fuse, Strip) or Metaspace"
            ),
            E::Tokenizer { what } => write!(f, "the tokenizer definition is refused: {what}"),
            E::RunTooLong { space, max_chars } => {
                let what =
                    if *space { "characters of white space" } else { "characters without any" };
                write!(f, "the text has more than {max_chars} {what} in a row; break the run up")
            }
            E::NoTemplate => write!(
                f,
                "the model has no chat template (tokenizer.chat_template in a GGUF file, \
                 chat_template in tokenizer_config.json or chat_template.jinja in a folder); \
                 use /v1/completions, or give a template"
            ),
            E::TemplateSyntax { line, what } => {
                write!(f, "the chat template does not parse, line {line}: {what}")
            }
            E::TemplateFailed { line, what } => {
                write!(f, "the chat template failed on these messages, line {line}: {what}")
            }
            E::TemplateRaised { message } => {
                write!(f, "the chat template refuses these messages: {message}")
            }
            E::PromptTooLong { max_bytes } => {
                write!(f, "the chat template produced more than {max_bytes} bytes")
            }
            E::TemplateTooSlow { max_steps } => {
                write!(f, "the chat template did not finish in {max_steps} steps")
            }
            E::Message { index, problem } => {
                let what = match problem {
                    MessageProblem::NotAnObject => "is not an object with role and content",
                    MessageProblem::NoRole => "has no role, which must be a string",
                    MessageProblem::Content => {
                        "has a content that is neither a string, null nor an array of parts"
                    }
                    MessageProblem::PartKind => {
                        "has a content part that is not {\"type\": \"text\", \"text\": ..}; this \
                         model takes text only"
                    }
                };
                write!(f, "messages[{index}] {what}")
            }
            E::Messages { found } => {
                write!(f, "messages is {found}; it must be an array of at least one message")
            }
            E::Tool { index, problem } => {
                let what = match problem {
                    ToolProblem::Shape => {
                        "is not {\"type\": \"function\", \"function\": {\"name\": ..}}"
                    }
                    ToolProblem::Name => {
                        "has a function name that is not 1 to 64 letters, digits, '_' or '-'"
                    }
                    ToolProblem::Parameters => "has parameters that are not a JSON schema object",
                    ToolProblem::Duplicate => "repeats the name of an earlier function",
                    ToolProblem::List => "is not in an array of at most 128 tools",
                };
                write!(f, "tools[{index}] {what}")
            }
            E::UnknownTool { name } => {
                write!(f, "tool_choice names the function {name:?}, which is not among the tools")
            }
            E::NoTools => write!(f, "tool_choice asks for a tool call and there are no tools"),
            E::Stop { problem } => {
                let what = match problem {
                    StopProblem::Empty => "a stop string is empty; it needs at least one character",
                    StopProblem::TooLong => "a stop string has more than 1024 bytes",
                    StopProblem::TooMany => "there are more than 16 stop strings",
                };
                f.write_str(what)
            }
            E::Grammar { kind, what } => write!(f, "the {kind} is refused: {what}"),
            E::GrammarTooLarge { kind, bytes, max_bytes } => {
                write!(f, "the {kind} has {bytes} bytes; at most {max_bytes} are accepted")
            }
            E::GrammarEngine { what } => {
                write!(f, "this model's vocabulary does not allow constrained output: {what}")
            }
        }
    }
}

impl core::error::Error for TextError {}
