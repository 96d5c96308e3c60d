//! DeepSeek-V4's tool calls: invocations with one element a parameter, turned into JSON arguments
//! as they come.
//!
//! Values marked as strings are raw text up to the closing mark and are escaped piece by piece.
//! Other values are JSON literals; one that is not becomes a string.

use super::marker;
use serde_json::Value;

/// Opens a block of calls.
pub(crate) const OPEN: &str = "<\u{ff5c}DSML\u{ff5c}tool_calls>";
/// Closes it.
pub(crate) const CLOSE: &str = "</\u{ff5c}DSML\u{ff5c}tool_calls>";
/// Opens a call; the name and `">` follow.
pub(crate) const INVOKE: &str = "<\u{ff5c}DSML\u{ff5c}invoke name=\"";
/// Closes it.
pub(crate) const INVOKE_END: &str = "</\u{ff5c}DSML\u{ff5c}invoke>";
/// Opens a parameter; its name and one of the kinds follow.
pub(crate) const PARAMETER: &str = "<\u{ff5c}DSML\u{ff5c}parameter name=\"";
/// Between a parameter's name and its text.
pub(crate) const STRING: &str = "\" string=\"true\">";
/// Between a parameter's name and its JSON literal.
pub(crate) const LITERAL: &str = "\" string=\"false\">";
/// Closes it.
pub(crate) const PARAMETER_END: &str = "</\u{ff5c}DSML\u{ff5c}parameter>";
/// The one token in all of these that is not plain text.
pub(crate) const TOKEN: &str = "\u{ff5c}DSML\u{ff5c}";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Between calls.
    Calls,
    /// In a call's name.
    Name,
    /// Between parameters.
    Parameters,
    /// In a parameter's name and kind.
    Head,
    /// In a text.
    Text,
    /// In a JSON literal.
    Literal,
}

/// Reads what follows [`OPEN`].
#[derive(Clone, Debug)]
pub(crate) struct DsmlReader {
    state: State,
    parameters: u32,
}

/// What the next part of the text was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum DsmlStep {
    /// More text is needed.
    Wait,
    /// A call of this function begins.
    Start(String),
    /// The next piece of its arguments; may be empty.
    Arguments(String),
    /// The block is over.
    Closed,
    /// Something that no block has: what is held is no part of it.
    Lost,
}

impl DsmlReader {
    pub(crate) fn new() -> DsmlReader {
        DsmlReader { state: State::Calls, parameters: 0 }
    }

    /// Takes the next part off the front of `held`.
    pub(crate) fn step(&mut self, held: &mut String) -> DsmlStep {
        match self.state {
            State::Calls => self.between(held, (INVOKE, State::Name), CLOSE),
            State::Parameters => self.between(held, (PARAMETER, State::Head), INVOKE_END),
            State::Name => match held.find("\">") {
                None => DsmlStep::Wait,
                Some(at) => {
                    let name = held[..at].to_owned();
                    held.drain(..at + 2);
                    (self.state, self.parameters) = (State::Parameters, 0);
                    DsmlStep::Start(name)
                }
            },
            State::Head => self.head(held),
            State::Text => self.text(held),
            State::Literal => match held.find(PARAMETER_END) {
                None => DsmlStep::Wait,
                Some(at) => {
                    let value = held[..at].trim();
                    let value = match serde_json::from_str::<Value>(value) {
                        Ok(_) => value.to_owned(),
                        Err(_) => Value::from(&held[..at]).to_string(),
                    };
                    held.drain(..at + PARAMETER_END.len());
                    self.state = State::Parameters;
                    DsmlStep::Arguments(value)
                }
            },
        }
    }

    /// What is left when the output ends here.
    pub(crate) fn finish(&self, held: &str) -> String {
        match self.state {
            State::Text => escaped(&held[..held.len() - marker::partial(held, PARAMETER_END)]),
            _ => String::new(),
        }
    }

    fn between(
        &mut self,
        held: &mut String,
        (open, inside): (&str, State),
        close: &str,
    ) -> DsmlStep {
        let space = held.len() - held.trim_start().len();
        held.drain(..space);
        if held.starts_with(open) {
            held.drain(..open.len());
            self.state = inside;
            return DsmlStep::Arguments(String::new());
        }
        if held.starts_with(close) {
            held.drain(..close.len());
            if self.state == State::Calls {
                return DsmlStep::Closed;
            }
            self.state = State::Calls;
            return DsmlStep::Arguments(if self.parameters == 0 { "{}" } else { "}" }.into());
        }
        match open.starts_with(held.as_str()) || close.starts_with(held.as_str()) {
            true => DsmlStep::Wait,
            false => DsmlStep::Lost,
        }
    }

    fn head(&mut self, held: &mut String) -> DsmlStep {
        let found = [(STRING, State::Text), (LITERAL, State::Literal)]
            .into_iter()
            .filter_map(|(kind, state)| Some((held.find(kind)?, kind, state)))
            .min_by_key(|found| found.0);
        let Some((at, kind, state)) = found else { return DsmlStep::Wait };
        let before = if self.parameters == 0 { "{" } else { ", " };
        let quote = if state == State::Text { "\"" } else { "" };
        let head = format!("{before}{}: {quote}", Value::from(&held[..at]));
        held.drain(..at + kind.len());
        self.state = state;
        self.parameters += 1;
        DsmlStep::Arguments(head)
    }

    fn text(&mut self, held: &mut String) -> DsmlStep {
        if let Some(at) = held.find(PARAMETER_END) {
            let piece = escaped(&held[..at]) + "\"";
            held.drain(..at + PARAMETER_END.len());
            self.state = State::Parameters;
            return DsmlStep::Arguments(piece);
        }
        let settled = held.len() - marker::partial(held, PARAMETER_END);
        if settled == 0 {
            return DsmlStep::Wait;
        }
        let piece = escaped(&held[..settled]);
        held.drain(..settled);
        DsmlStep::Arguments(piece)
    }
}

/// The inside of a JSON string.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
