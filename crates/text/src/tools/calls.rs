//! Finds tool calls in the answer.
//!
//! White space in front of a mark and after a call belongs to the format, not to the content.
//! What turns out not to be a call is content, mark and all.

use super::ToolFormat;
use super::call::{CallReader, Step};
use super::dsml::{self, DsmlReader, DsmlStep};
use super::marker;
use super::parser::OutputEvent;

const HERMES_END: &str = "</tool_call>";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

#[derive(Clone, Debug)]
enum Mode {
    /// Content; a mark may come.
    Text,
    /// Nothing but white space has come; a call without a mark may.
    Start,
    /// Right after a mark.
    Opened,
    /// Between the calls of a list.
    List,
    /// In a name that stands before its arguments.
    Name(String),
    /// After such a name and what separates it: the arguments, nothing else.
    BareArguments(String),
    /// In a call.
    Call(Box<InCall>),
    /// In a block of DeepSeek-V4's calls.
    Dsml(DsmlReader),
    /// In arguments whose brackets do not match: all of it is arguments.
    Broken,
    /// After a call that a mark must close.
    Closing,
    /// After a call without a mark: another may follow.
    Next,
}

#[derive(Clone, Debug)]
struct InCall {
    reader: CallReader,
    started: bool,
    /// Any of its arguments have been passed on.
    passed: bool,
    then: After,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum After {
    Closing,
    List,
    Next,
    Text,
}

/// The state of one answer.
#[derive(Clone, Debug)]
pub(crate) struct CallParser {
    format: Option<ToolFormat>,
    functions: Vec<String>,
    id_seed: u64,
    mode: Mode,
    /// Text that no mode has taken yet.
    held: String,
    /// What has been taken for a call that has not begun: content, if it never does.
    doubtful: String,
    /// The calls are marked: any name is a call.
    marked: bool,
    count: u32,
    /// White space that follows belongs to the last call.
    after_call: bool,
    has_content: bool,
}

impl CallParser {
    pub(crate) fn new(
        format: Option<ToolFormat>,
        functions: Vec<String>,
        id_seed: u64,
    ) -> CallParser {
        let mode = match format {
            Some(ToolFormat::Llama3 | ToolFormat::Plain) => Mode::Start,
            _ => Mode::Text,
        };
        CallParser {
            format,
            functions,
            id_seed,
            mode,
            held: String::new(),
            doubtful: String::new(),
            marked: false,
            count: 0,
            after_call: false,
            has_content: false,
        }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    fn mark(&self) -> Option<&'static str> {
        match self.format? {
            ToolFormat::Hermes => Some("<tool_call>"),
            ToolFormat::Llama3 => Some("<|python_tag|>"),
            ToolFormat::Mistral => Some("[TOOL_CALLS]"),
            ToolFormat::Plain => None,
            ToolFormat::Dsml => Some(dsml::OPEN),
        }
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<OutputEvent>) {
        self.held.push_str(text);
        while self.advance(out) {}
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<OutputEvent>) {
        let held = std::mem::take(&mut self.held);
        match &self.mode {
            Mode::Broken => self.arguments(held, out),
            Mode::Call(call) if call.started => {}
            Mode::Dsml(reader) => {
                let fragment = reader.finish(&held);
                self.arguments(fragment, out);
            }
            _ => {
                let text = std::mem::take(&mut self.doubtful) + &held;
                self.content(&text, out);
            }
        }
        self.mode = Mode::Text;
    }

    /// Takes what the mode can of the held text; false where it needs more.
    fn advance(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        match std::mem::replace(&mut self.mode, Mode::Text) {
            Mode::Text => self.text(out),
            Mode::Start => self.start(out),
            Mode::Opened => self.opened(out),
            Mode::List => self.list(out),
            Mode::Name(name) => self.name(name, out),
            Mode::BareArguments(name) => {
                self.take_space();
                match self.held.chars().next() {
                    None => self.wait(Mode::BareArguments(name)),
                    Some('{') => self.begin(CallReader::of_arguments(name), After::Text),
                    Some(_) => self.not_a_call(out),
                }
            }
            Mode::Call(call) => self.call(call, out),
            Mode::Dsml(reader) => self.dsml(reader, out),
            Mode::Broken => self.broken(out),
            Mode::Closing => self.closing(),
            Mode::Next => self.next(),
        }
    }

    fn wait(&mut self, mode: Mode) -> bool {
        self.mode = mode;
        false
    }

    fn go(&mut self, mode: Mode) -> bool {
        self.mode = mode;
        true
    }

    fn begin(&mut self, reader: CallReader, then: After) -> bool {
        self.go(Mode::Call(Box::new(InCall { reader, started: false, passed: false, then })))
    }

    /// What was doubtful is content after all.
    fn not_a_call(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        let text = std::mem::take(&mut self.doubtful);
        self.content(&text, out);
        self.go(Mode::Text)
    }

    /// Moves leading white space of the held text to the doubtful.
    fn take_space(&mut self) {
        let space = self.held.len() - self.held.trim_start().len();
        self.take(space);
    }

    /// Moves the first `bytes` of the held text to the doubtful.
    fn take(&mut self, bytes: usize) {
        self.doubtful.extend(self.held.drain(..bytes));
    }

    fn text(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        let Some(mark) = self.mark() else {
            let all = std::mem::take(&mut self.held);
            self.content(&all, out);
            return false;
        };
        if let Some(at) = self.held.find(mark) {
            let content = self.held[..at].trim_end().len();
            let text: String = self.held.drain(..content).collect();
            self.content(&text, out);
            self.take(at - content + mark.len());
            self.marked = true;
            return self.go(Mode::Opened);
        }
        let settled = marker::settled(&self.held, &[mark]);
        let text: String = self.held.drain(..settled).collect();
        self.content(&text, out);
        false
    }

    fn start(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        self.take_space();
        let mark = self.mark().unwrap_or_default();
        match self.held.chars().next() {
            None => self.wait(Mode::Start),
            Some('{') => self.begin(CallReader::new(), After::Next),
            Some('[') if self.format == Some(ToolFormat::Plain) => {
                self.take(1);
                self.go(Mode::List)
            }
            Some(_) if mark.starts_with(&self.held) && self.held != mark => self.wait(Mode::Start),
            Some(_) if !mark.is_empty() && self.held.starts_with(mark) => self.go(Mode::Text),
            Some(_) => self.not_a_call(out),
        }
    }

    fn opened(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        self.take_space();
        if self.format == Some(ToolFormat::Dsml) {
            return if self.held.starts_with(dsml::INVOKE) {
                self.go(Mode::Dsml(DsmlReader::new()))
            } else if dsml::INVOKE.starts_with(&self.held) {
                self.wait(Mode::Opened)
            } else {
                self.not_a_call(out)
            };
        }
        let mistral = self.format == Some(ToolFormat::Mistral);
        let hermes = self.format == Some(ToolFormat::Hermes);
        match self.held.chars().next() {
            None => self.wait(Mode::Opened),
            Some('{') => {
                self.begin(CallReader::new(), if hermes { After::Closing } else { After::Next })
            }
            Some('[') if mistral => {
                self.take(1);
                self.go(Mode::List)
            }
            Some(c) if mistral && is_name(c) => self.go(Mode::Name(String::new())),
            Some(_) => self.not_a_call(out),
        }
    }

    fn dsml(&mut self, mut reader: DsmlReader, out: &mut Vec<OutputEvent>) -> bool {
        loop {
            match reader.step(&mut self.held) {
                DsmlStep::Wait => return self.wait(Mode::Dsml(reader)),
                DsmlStep::Start(name) => {
                    let index = self.count;
                    let id = call_id(self.format, self.id_seed, index);
                    out.push(OutputEvent::ToolCallStart { index, id, name });
                    self.count += 1;
                    self.doubtful.clear();
                }
                DsmlStep::Arguments(fragment) => self.arguments(fragment, out),
                DsmlStep::Closed | DsmlStep::Lost => {
                    self.after_call = true;
                    return self.go(Mode::Text);
                }
            }
        }
    }

    fn list(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        self.take_space();
        match self.held.chars().next() {
            None => self.wait(Mode::List),
            Some('{') => self.begin(CallReader::new(), After::List),
            Some(',') if self.doubtful.trim_end().is_empty() => {
                self.held.drain(..1);
                self.go(Mode::List)
            }
            Some(']') if self.doubtful.trim_end().is_empty() => {
                self.held.drain(..1);
                self.doubtful.clear();
                self.go(Mode::Text)
            }
            Some(_) => self.not_a_call(out),
        }
    }

    fn name(&mut self, mut name: String, out: &mut Vec<OutputEvent>) -> bool {
        let end = self.held.find(|c| !is_name(c)).unwrap_or(self.held.len());
        name.push_str(&self.held[..end]);
        self.take(end);
        if self.held.is_empty() {
            return self.wait(Mode::Name(name));
        }
        if self.held.starts_with(ARGS) {
            self.take(ARGS.len());
            return self.go(Mode::BareArguments(name));
        }
        // An id that the model gives is skipped: ids are ours.
        if self.held.starts_with(CALL_ID) {
            let Some(at) = self.held.find(ARGS) else { return self.wait(Mode::Name(name)) };
            self.take(at + ARGS.len());
            return self.go(Mode::BareArguments(name));
        }
        if ARGS.starts_with(&self.held) || CALL_ID.starts_with(&self.held) {
            return self.wait(Mode::Name(name));
        }
        match self.held.trim_start().chars().next() {
            None => self.wait(Mode::Name(name)),
            Some('{') => self.go(Mode::BareArguments(name)),
            Some(_) => self.not_a_call(out),
        }
    }

    fn call(&mut self, mut call: Box<InCall>, out: &mut Vec<OutputEvent>) -> bool {
        let held = std::mem::take(&mut self.held);
        for (at, c) in held.char_indices() {
            let step = call.reader.step(c);
            let after = at + c.len_utf8();
            if !call.started {
                self.doubtful.push(c);
                self.try_start(&mut call, step, out);
            }
            match step {
                Step::More => continue,
                Step::Done if call.started => {
                    self.pass(&mut call, out);
                    if !call.passed {
                        self.arguments("{}".into(), out);
                    }
                    self.after_call = true;
                    self.held = held[after..].to_owned();
                    return self.go(match call.then {
                        After::Closing => Mode::Closing,
                        After::List => Mode::List,
                        After::Next => Mode::Next,
                        After::Text => Mode::Text,
                    });
                }
                Step::Failed if call.started => {
                    self.pass(&mut call, out);
                    self.after_call = true;
                    let inside = call.reader.is_in_arguments();
                    self.held = held[if inside { after } else { at }..].to_owned();
                    return self.go(if inside { Mode::Broken } else { Mode::Closing });
                }
                Step::Done => {
                    self.held = held[after..].to_owned();
                    return self.not_a_call(out);
                }
                Step::Failed => {
                    // The character may be the first of a mark.
                    self.doubtful.pop();
                    self.held = held[at..].to_owned();
                    return self.not_a_call(out);
                }
            }
        }
        if call.started {
            self.pass(&mut call, out);
        }
        self.wait(Mode::Call(call))
    }

    /// Announces the call once it is certain: its name has come and so has the beginning of its
    /// arguments, or its end where a mark says that it is a call.
    fn try_start(&mut self, call: &mut InCall, step: Step, out: &mut Vec<OutputEvent>) {
        let whole = step == Step::Done && self.marked;
        let Some(name) = call.reader.name() else { return };
        let known =
            self.marked || self.functions.is_empty() || self.functions.iter().any(|f| f == name);
        if !known || step == Step::Failed || !(call.reader.has_arguments() || whole) {
            return;
        }
        let index = self.count;
        let id = call_id(self.format, self.id_seed, index);
        out.push(OutputEvent::ToolCallStart { index, id, name: name.to_owned() });
        self.count += 1;
        call.started = true;
        self.doubtful.clear();
    }

    /// Passes on the arguments that are ready.
    fn pass(&mut self, call: &mut InCall, out: &mut Vec<OutputEvent>) {
        let fragment = call.reader.take_ready();
        call.passed |= !fragment.is_empty();
        self.arguments(fragment, out);
    }

    fn broken(&mut self, out: &mut Vec<OutputEvent>) -> bool {
        let end = (self.format == Some(ToolFormat::Hermes)).then_some(HERMES_END);
        let found = end.and_then(|end| Some((self.held.find(end)?, end)));
        if let Some((at, end)) = found {
            let fragment: String = self.held.drain(..at).collect();
            self.held.drain(..end.len());
            self.arguments(fragment, out);
            return self.go(Mode::Text);
        }
        let hold = end.map_or(0, |end| marker::partial(&self.held, end));
        let fragment: String = self.held.drain(..self.held.len() - hold).collect();
        self.arguments(fragment, out);
        self.wait(Mode::Broken)
    }

    fn closing(&mut self) -> bool {
        self.take_space();
        if self.format != Some(ToolFormat::Hermes) {
            return self.go(Mode::Text);
        }
        if self.held.starts_with(HERMES_END) {
            self.held.drain(..HERMES_END.len());
            self.doubtful.clear();
            return self.go(Mode::Text);
        }
        if HERMES_END.starts_with(&self.held) {
            return self.wait(Mode::Closing);
        }
        self.doubtful.clear();
        self.go(Mode::Text)
    }

    fn next(&mut self) -> bool {
        self.take_space();
        self.doubtful.clear();
        match self.held.chars().next() {
            None => self.wait(Mode::Next),
            Some(';') => {
                self.held.drain(..1);
                self.go(Mode::Next)
            }
            Some('{') => self.begin(CallReader::new(), After::Next),
            Some(_) => self.go(Mode::Text),
        }
    }

    fn content(&mut self, text: &str, out: &mut Vec<OutputEvent>) {
        let text = if self.after_call { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        // Content on both sides of a call does not run together.
        let gap = if self.after_call && self.has_content { "\n" } else { "" };
        self.after_call = false;
        self.has_content = true;
        match out.last_mut() {
            Some(OutputEvent::Content(last)) => last.extend([gap, text]),
            _ => out.push(OutputEvent::Content([gap, text].concat())),
        }
    }

    fn arguments(&mut self, fragment: String, out: &mut Vec<OutputEvent>) {
        let Some(index) = self.count.checked_sub(1).filter(|_| !fragment.is_empty()) else {
            return;
        };
        match out.last_mut() {
            Some(OutputEvent::ToolArguments { fragment: last, .. }) => last.push_str(&fragment),
            _ => out.push(OutputEvent::ToolArguments { index, fragment }),
        }
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// `call_` and 24 letters or digits; Mistral's templates want exactly nine.
fn call_id(format: Option<ToolFormat>, seed: u64, index: u32) -> String {
    const DIGITS: &[u8] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let (mut id, length) = match format {
        Some(ToolFormat::Mistral) => (String::new(), 9),
        _ => ("call_".to_owned(), 24),
    };
    // SplitMix64: distinct seeds and indices give unrelated digits.
    let mut x = seed ^ u64::from(index).wrapping_mul(0xd1b5_4a32_d192_ed03);
    for _ in 0..length {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = x;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        id.push(DIGITS[((z ^ (z >> 31)) % 62) as usize] as char);
    }
    id
}
