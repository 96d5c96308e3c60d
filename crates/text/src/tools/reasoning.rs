//! Splits `<think>..</think>` from the answer.

use super::marker;

/// How a model marks its reasoning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReasoningMarks {
    /// Opens the reasoning.
    pub start: &'static str,
    /// Closes it.
    pub end: &'static str,
}

impl ReasoningMarks {
    /// DeepSeek-R1, Qwen3 and most others.
    pub const THINK: ReasoningMarks = ReasoningMarks { start: "<think>", end: "</think>" };
    /// Mistral's reasoning models.
    pub const MISTRAL: ReasoningMarks = ReasoningMarks { start: "[THINK]", end: "[/THINK]" };

    /// What the template of a model says it uses.
    pub fn sniff(template: &str) -> Option<ReasoningMarks> {
        [Self::THINK, Self::MISTRAL].into_iter().find(|m| template.contains(m.end))
    }

    /// True where a rendered prompt ends inside the reasoning, so that the output starts there.
    pub fn opened_by(&self, prompt: &str) -> bool {
        prompt.trim_end().ends_with(self.start)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Nothing but white space has come.
    Start,
    /// Inside, and nothing of the reasoning has come.
    Opened,
    /// Past the opening mark; white space before the reasoning is dropped.
    Begun,
    Inside,
    /// Reasoning is over; white space before the answer is dropped.
    Closed,
    Answer,
}

/// Splits a text that comes in pieces. White space around the marks belongs to neither side.
#[derive(Clone, Debug)]
pub(crate) struct Splitter {
    marks: Option<ReasoningMarks>,
    state: State,
    held: String,
}

impl Splitter {
    pub(crate) fn new(marks: Option<ReasoningMarks>, opened: bool) -> Splitter {
        let state = match marks {
            Some(_) if opened => State::Opened,
            Some(_) => State::Start,
            None => State::Answer,
        };
        Splitter { marks, state, held: String::new() }
    }

    /// Appends what is settled to `reasoning` and `answer`.
    pub(crate) fn push(&mut self, text: &str, reasoning: &mut String, answer: &mut String) {
        let Some(marks) = self.marks else {
            answer.push_str(text);
            return;
        };
        self.held.push_str(text);
        loop {
            let held = self.held.trim_start();
            match self.state {
                State::Answer => {
                    answer.push_str(&self.held);
                    self.held.clear();
                    return;
                }
                State::Begun | State::Closed if held.is_empty() => {
                    self.held.clear();
                    return;
                }
                State::Begun | State::Closed => {
                    self.held = held.to_owned();
                    let begun = self.state == State::Begun;
                    self.state = if begun { State::Inside } else { State::Answer };
                }
                State::Start | State::Opened => {
                    if let Some(rest) = held.strip_prefix(marks.start) {
                        self.held = rest.to_owned();
                        self.state = State::Begun;
                    } else if marks.start.starts_with(held) {
                        return;
                    } else if self.state == State::Start {
                        self.state = State::Answer;
                    } else {
                        self.held = held.to_owned();
                        self.state = State::Inside;
                    }
                }
                State::Inside => {
                    if let Some(at) = self.held.find(marks.end) {
                        reasoning.push_str(self.held[..at].trim_end());
                        self.held.drain(..at + marks.end.len());
                        self.state = State::Closed;
                    } else {
                        let settled = marker::settled(&self.held, &[marks.end]);
                        reasoning.push_str(&self.held[..settled]);
                        self.held.drain(..settled);
                        return;
                    }
                }
            }
        }
    }

    /// The text ended.
    pub(crate) fn finish(&mut self, reasoning: &mut String, answer: &mut String) {
        match self.state {
            State::Start | State::Answer => answer.push_str(&self.held),
            State::Opened => reasoning.push_str(self.held.trim()),
            State::Inside => reasoning.push_str(self.held.trim_end()),
            State::Begun | State::Closed => {}
        }
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(opened: bool, pieces: &[&str]) -> (String, String) {
        let mut s = Splitter::new(Some(ReasoningMarks::THINK), opened);
        let (mut r, mut a) = (String::new(), String::new());
        for p in pieces {
            s.push(p, &mut r, &mut a);
        }
        s.finish(&mut r, &mut a);
        (r, a)
    }

    fn pair(r: &str, a: &str) -> (String, String) {
        (r.into(), a.into())
    }

    #[test]
    fn reasoning_comes_apart_from_the_answer() {
        assert_eq!(run(false, &["<think>\nwhy", " not\n</think>\n\nyes"]), pair("why not", "yes"));
        assert_eq!(run(true, &["why</th", "ink>yes\n"]), pair("why", "yes\n"));
        assert_eq!(run(true, &["<think>why</think>yes"]), pair("why", "yes"));
        assert_eq!(run(false, &[" no <think>x</think>"]), pair("", " no <think>x</think>"));
        assert_eq!(run(false, &["<think>cut off </th"]), pair("cut off </th", ""));
        assert_eq!(run(false, &["<thi"]), pair("", "<thi"));
        assert_eq!(run(false, &["<think></think>x"]), pair("", "x"));
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same(
            parts in proptest::collection::vec(prop_oneof![
                Just("<think>"), Just("</think>"), Just("\n"), Just(" "), Just("a"), Just("</"), Just("<t"), Just("é")
            ], 0..12),
            opened in any::<bool>(),
            cuts in proptest::collection::vec(0..4usize, 0..40),
        ) {
            let text = parts.concat();
            let whole = run(opened, &[&text]);
            let chars: Vec<String> = text.chars().map(String::from).collect();
            let mut rest = &chars[..];
            let mut pieces = Vec::new();
            for cut in cuts {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                pieces.push(now.concat());
                rest = later;
            }
            pieces.push(rest.concat());
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(run(opened, &pieces), whole);
        }
    }
}
