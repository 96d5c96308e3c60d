//! One choice of an answer: events become text, tool calls and log-probabilities.

use crate::error::ApiError;
use lockstep_flow::{EventKind, Failure, FinishReason, Token, TokenLogprob, Usage};
use lockstep_text::{OutputEvent, OutputParser, TextStream};

/// A piece of a tool call, in OpenAI's terms: the first one of a call has its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToolDelta {
    /// Which call of the choice.
    pub index: u32,
    /// The call's id and the function's name, once.
    pub begin: Option<(String, String)>,
    /// More of the arguments' JSON text.
    pub arguments: String,
}

/// Why a choice ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Finish {
    /// By itself, or at a stop string.
    Stop,
    /// At `max_tokens`.
    Length,
    /// With tool calls for the client to run.
    ToolCalls,
}

impl Finish {
    /// The word on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::ToolCalls => "tool_calls",
        }
    }
}

/// A token with its log-probabilities and where its text begins.
#[derive(Clone, PartialEq, Debug)]
pub struct Scored {
    /// The token and its alternatives.
    pub token: TokenLogprob,
    /// Characters of the choice's text before it.
    pub at_char: usize,
}

/// What an event added to a choice.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Delta {
    /// Text for the user.
    pub content: String,
    /// Text of the model's thinking.
    pub reasoning: String,
    /// Tool calls.
    pub tools: Vec<ToolDelta>,
    /// Tokens whose text is complete with this.
    pub scored: Vec<Scored>,
    /// Set in the last one.
    pub finish: Option<Finish>,
}

impl Delta {
    /// True where there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty()
            && self.reasoning.is_empty()
            && self.tools.is_empty()
            && self.scored.is_empty()
            && self.finish.is_none()
    }

    fn of(events: Vec<OutputEvent>) -> Delta {
        let mut delta = Delta::default();
        for event in events {
            match event {
                OutputEvent::Content(text) => delta.content.push_str(&text),
                OutputEvent::Reasoning(text) => delta.reasoning.push_str(&text),
                OutputEvent::ToolCallStart { index, id, name } => delta.tools.push(ToolDelta {
                    index,
                    begin: Some((id, name)),
                    arguments: String::new(),
                }),
                OutputEvent::ToolArguments { index, fragment } => match delta.tools.last_mut() {
                    Some(last) if last.index == index => last.arguments.push_str(&fragment),
                    _ => delta.tools.push(ToolDelta { index, begin: None, arguments: fragment }),
                },
            }
        }
        delta
    }

    /// Adds a later delta of the same choice.
    pub fn merge(&mut self, later: Delta) {
        self.content.push_str(&later.content);
        self.reasoning.push_str(&later.reasoning);
        for tool in later.tools {
            match self.tools.iter_mut().find(|t| t.index == tool.index) {
                Some(known) => known.arguments.push_str(&tool.arguments),
                None => self.tools.push(tool),
            }
        }
        self.scored.extend(later.scored);
        self.finish = later.finish.or(self.finish);
    }
}

/// The state of a choice while it is made.
pub struct Choice {
    text: TextStream,
    /// `None` takes all text as content.
    parser: Option<OutputParser>,
    /// Named tool choices end with `stop`, as OpenAI's do.
    tool_finish: Finish,
    wants_scores: bool,
    grammar_field: Option<&'static str>,
    chars: usize,
    prompt_scores: Vec<TokenLogprob>,
    /// Tokens whose text has not been sent yet.
    held: Vec<Scored>,
    usage: Usage,
    logprob_sum: f64,
    ended: bool,
}

/// What a choice needs to begin.
pub struct ChoiceStart {
    /// Its detokenizer.
    pub text: TextStream,
    /// Its parser; `None` takes all text as content.
    pub parser: Option<OutputParser>,
    /// How it ends where it made tool calls.
    pub tool_finish: Finish,
    /// Report log-probabilities.
    pub wants_scores: bool,
    /// The field that its grammar came from.
    pub grammar_field: Option<&'static str>,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
}

impl Choice {
    /// Before the first event.
    pub fn new(start: ChoiceStart) -> Choice {
        Choice {
            text: start.text,
            parser: start.parser,
            tool_finish: start.tool_finish,
            wants_scores: start.wants_scores,
            grammar_field: start.grammar_field,
            chars: 0,
            prompt_scores: Vec::new(),
            held: Vec::new(),
            usage: Usage { prompt_tokens: start.prompt_tokens, ..Usage::default() },
            logprob_sum: 0.0,
            ended: false,
        }
    }

    /// Takes an event. The second value says that the choice is complete although its sequence
    /// is not: a stop string ended it, and the engine has to be told. Of such a choice the last
    /// event is still to be given, for what drafts cost.
    pub fn take(&mut self, event: EventKind) -> Result<(Delta, bool), ApiError> {
        if self.ended {
            if let EventKind::Finished { usage, .. } | EventKind::Failed { usage, .. } = event {
                self.usage.drafted_tokens = usage.drafted_tokens;
                self.usage.accepted_tokens = usage.accepted_tokens;
            }
            return Ok((Delta::default(), false));
        }
        match event {
            EventKind::Started { cached_tokens } => {
                self.usage.cached_tokens = cached_tokens;
                Ok((Delta::default(), false))
            }
            EventKind::Prompt { entries, .. } => {
                self.prompt_scores.extend(entries);
                Ok((Delta::default(), false))
            }
            EventKind::Token { token, logprob, .. } => Ok(self.token(token, logprob)),
            EventKind::Finished { reason, usage } => {
                self.usage = usage;
                let finish = match reason {
                    FinishReason::Stop => Finish::Stop,
                    FinishReason::Length => Finish::Length,
                };
                Ok((self.end(finish), false))
            }
            EventKind::Failed { failure, usage } => {
                self.usage = usage;
                self.ended = true;
                if matches!(failure, Failure::Engine { .. } | Failure::Audit { .. }) {
                    tracing::error!("a request failed in the engine: {failure}");
                }
                Err(self.failed(failure))
            }
        }
    }

    /// A grammar that cannot be followed to its end is its sender's fault, and names its field.
    fn failed(&self, failure: Failure) -> ApiError {
        match (failure, self.grammar_field) {
            (Failure::Grammar(e), Some(field)) if e.is_of_the_grammar() => {
                ApiError::unsupported(field, format!("could not be followed further: {e}"))
            }
            (failure, _) => ApiError::Failed(failure),
        }
    }

    fn token(&mut self, token: Token, logprob: Option<TokenLogprob>) -> (Delta, bool) {
        self.usage.completion_tokens += 1;
        let at_char = self.chars;
        if let Some(scored) = logprob {
            self.logprob_sum += f64::from(scored.logprob);
            if self.wants_scores {
                self.held.push(Scored { token: scored, at_char });
            }
        }
        let increment = self.text.push(token);
        self.chars += increment.text.chars().count();
        let mut delta = self.parsed(increment.text);
        if increment.stopped.is_some() {
            delta.merge(self.end(Finish::Stop));
            return (delta, true);
        }
        if !delta.is_empty() {
            delta.scored = std::mem::take(&mut self.held);
        }
        (delta, false)
    }

    fn parsed(&mut self, text: String) -> Delta {
        match &mut self.parser {
            _ if text.is_empty() => Delta::default(),
            Some(parser) => Delta::of(parser.push(&text)),
            None => Delta { content: text, ..Delta::default() },
        }
    }

    fn end(&mut self, finish: Finish) -> Delta {
        self.ended = true;
        let rest = self.text.finish().text;
        let mut delta = self.parsed(rest);
        if let Some(parser) = &mut self.parser {
            delta.merge(Delta::of(parser.finish()));
        }
        delta.scored = std::mem::take(&mut self.held);
        let calls = self.parser.as_ref().map_or(0, OutputParser::tool_calls);
        let called = calls > 0 && finish == Finish::Stop;
        delta.finish = Some(if called { self.tool_finish } else { finish });
        delta
    }

    /// What it cost so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Log-probabilities of the prompt's tokens but the first, once they have come.
    pub fn prompt_scores(&self) -> &[TokenLogprob] {
        &self.prompt_scores
    }

    /// Mean log-probability of its tokens, by which `best_of` ranks.
    pub fn mean_logprob(&self) -> f64 {
        self.logprob_sum / f64::from(self.usage.completion_tokens.max(1))
    }
}
