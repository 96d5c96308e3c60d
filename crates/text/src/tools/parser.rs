//! One ordered stream of events out of a model's text: reasoning, content, tool calls.

use super::ToolFormat;
use super::calls::CallParser;
use super::reasoning::{ReasoningMarks, Splitter};

/// What to look for in an output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParserOptions {
    /// How tool calls are written; `None` where the request has no tools.
    pub format: Option<ToolFormat>,
    /// The functions of the request. In formats without a mark a call is one only where it names
    /// one of these; empty accepts any name.
    pub functions: Vec<String>,
    /// How reasoning is marked; `None` leaves it in the content.
    pub reasoning: Option<ReasoningMarks>,
    /// The prompt ended inside the reasoning: [`ReasoningMarks::opened_by`].
    pub reasoning_opened: bool,
    /// Makes the ids of calls: distinct for every sequence that the server has ever produced.
    pub id_seed: u64,
}

/// A piece of the output. Fragments of one kind that follow each other belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OutputEvent {
    /// Text of the reasoning (`reasoning_content`).
    Reasoning(String),
    /// Text of the answer (`content`).
    Content(String),
    /// A tool call begins; `index` counts the calls of this output from 0.
    ToolCallStart { index: u32, id: String, name: String },
    /// The next piece of the arguments of call `index`.
    ToolArguments { index: u32, fragment: String },
}

/// A whole tool call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolCall {
    /// Unique.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// The arguments as the model wrote them. JSON unless the output was cut off or the model
    /// erred.
    pub arguments: String,
}

/// A whole output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParsedOutput {
    /// Empty where there was none.
    pub reasoning: String,
    /// Empty where there was none.
    pub content: String,
    /// In order.
    pub tool_calls: Vec<ToolCall>,
}

impl ParsedOutput {
    /// Adds the next event.
    pub fn add(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Reasoning(text) => self.reasoning.push_str(&text),
            OutputEvent::Content(text) => self.content.push_str(&text),
            OutputEvent::ToolCallStart { id, name, .. } => {
                self.tool_calls.push(ToolCall { id, name, arguments: String::new() });
            }
            OutputEvent::ToolArguments { index, fragment } => {
                if let Some(call) = self.tool_calls.get_mut(index as usize) {
                    call.arguments.push_str(&fragment);
                }
            }
        }
    }
}

/// Parses one sequence's text as it comes.
#[derive(Clone, Debug)]
pub struct OutputParser {
    splitter: Splitter,
    calls: CallParser,
}

impl OutputParser {
    /// A parser at the start of an output.
    pub fn new(options: ParserOptions) -> OutputParser {
        OutputParser {
            splitter: Splitter::new(options.reasoning, options.reasoning_opened),
            calls: CallParser::new(options.format, options.functions, options.id_seed),
        }
    }

    /// Takes the next piece of text. What may be the start of a mark is held back.
    pub fn push(&mut self, text: &str) -> Vec<OutputEvent> {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        self.splitter.push(text, &mut reasoning, &mut answer);
        let mut events = Vec::new();
        if !reasoning.is_empty() {
            events.push(OutputEvent::Reasoning(reasoning));
        }
        self.calls.push(&answer, &mut events);
        events
    }

    /// Ends the output: what was held back comes out as what it is.
    pub fn finish(&mut self) -> Vec<OutputEvent> {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        self.splitter.finish(&mut reasoning, &mut answer);
        let mut events = Vec::new();
        if !reasoning.is_empty() {
            events.push(OutputEvent::Reasoning(reasoning));
        }
        self.calls.push(&answer, &mut events);
        self.calls.finish(&mut events);
        events
    }

    /// How many tool calls have begun.
    pub fn tool_calls(&self) -> u32 {
        self.calls.count()
    }

    /// Parses a whole output.
    pub fn parse(options: ParserOptions, text: &str) -> ParsedOutput {
        let mut parser = OutputParser::new(options);
        let mut out = ParsedOutput::default();
        let events = parser.push(text);
        for event in events.into_iter().chain(parser.finish()) {
            out.add(event);
        }
        out
    }
}
