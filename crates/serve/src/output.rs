//! What a model's text is made of: plain text, thinking, tool calls.

#[allow(dead_code, reason = "parsers for thinking and calls come with the text room")]
/// A stretch of output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// For the user.
    Text(String),
    /// The model's thinking.
    Reasoning(String),
    /// A tool call begins.
    ToolBegin { index: usize, name: String },
    /// More of its arguments.
    ToolArguments { index: usize, text: String },
}

/// Takes a choice's text apart as it comes.
pub enum OutputParser {
    /// All of it is text.
    Plain,
}

impl OutputParser {
    /// More text.
    pub fn push(&mut self, text: String) -> Vec<Piece> {
        match self {
            OutputParser::Plain => vec![Piece::Text(text)],
        }
    }

    /// The text ended.
    pub fn finish(&mut self) -> Vec<Piece> {
        match self {
            OutputParser::Plain => Vec::new(),
        }
    }
}
