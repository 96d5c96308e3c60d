//! Tool calls and reasoning in a model's output.

mod call;
mod calls;
pub(crate) mod dsml;
mod lexer;
mod marker;
mod parser;
mod reasoning;
mod spec;

pub use parser::{OutputEvent, OutputParser, ParsedOutput, ParserOptions, ToolCall};
pub use reasoning::ReasoningMarks;
pub use spec::{ToolChoice, ToolSpec, Tools};

/// How a model writes tool calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToolFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`, one block a call: Hermes, Qwen.
    Hermes,
    /// `{"name": .., "parameters": {..}}` as the whole answer, or after `<|python_tag|>`: Llama 3.
    Llama3,
    /// `[TOOL_CALLS][{"name": .., "arguments": {..}}, ..]`, or `[TOOL_CALLS]name[ARGS]{..}`:
    /// Mistral.
    Mistral,
    /// `{"name": .., "arguments": {..}}` as the whole answer: what a grammar makes a model write
    /// whose template knows no tools.
    Plain,
    /// `<\u{ff5c}DSML\u{ff5c}tool_calls>` with an element a call and an element a parameter: DeepSeek-V4.
    Dsml,
}

impl ToolFormat {
    /// The format that a chat template asks the model for; `None` where it knows no tools, or
    /// a format that we do not parse.
    pub fn sniff(template: &str) -> Option<ToolFormat> {
        if template.contains(dsml::TOKEN) {
            Some(ToolFormat::Dsml)
        } else if template.contains("[TOOL_CALLS]") {
            Some(ToolFormat::Mistral)
        } else if template.contains("<tool_call>") {
            // Qwen3-Coder and GLM write XML inside the same mark.
            let xml = template.contains("<function=") || template.contains("<arg_key>");
            (!xml).then_some(ToolFormat::Hermes)
        } else if template.contains("<|python_tag|>")
            || (template.contains("<|start_header_id|>") && template.contains("\"parameters\""))
        {
            Some(ToolFormat::Llama3)
        } else {
            None
        }
    }

    /// The name of the arguments' key.
    pub(crate) fn arguments_key(self) -> &'static str {
        match self {
            ToolFormat::Llama3 => "parameters",
            ToolFormat::Hermes | ToolFormat::Mistral | ToolFormat::Plain | ToolFormat::Dsml => {
                "arguments"
            }
        }
    }

    /// Spellings that the parser looks for, and that decoding must therefore not skip.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            ToolFormat::Hermes => &["<tool_call>", "</tool_call>"],
            ToolFormat::Llama3 => &["<|python_tag|>"],
            ToolFormat::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            ToolFormat::Plain => &[],
            ToolFormat::Dsml => &[dsml::TOKEN],
        }
    }
}
