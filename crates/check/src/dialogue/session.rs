//! A session as it is sent: scripted messages, and what is right at each of its steps.
//!
//! The history of every request is the script, never the server's own words. So a request is the
//! same whether the server answered the one before well or badly, alone or in a crowd: each answer
//! is a trial of its own, and two answers to the same request can be compared.

use super::code::spell;
use super::recall::{self, Request, SYSTEM, Shape, Turn};
use super::rng::Rng;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// What a session talks about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// The recall protocol: tool calls, receipts, confirmations.
    Report,
    /// The same records, asked for in prose, without tools.
    Lookup,
    /// One code, to be repeated.
    Echo,
    /// A list of codes, to be repeated: an answer as long as is allowed.
    List,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Report, Kind::Lookup, Kind::Echo, Kind::List];

    /// Its word in reports and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Report => "report",
            Kind::Lookup => "lookup",
            Kind::Echo => "echo",
            Kind::List => "list",
        }
    }

    /// The kind of a name.
    pub fn find(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == name)
    }
}

/// The right answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Want {
    /// Calls of `report`, in order: (key, value).
    Calls(Vec<(String, String)>),
    /// These codes in this order, and no other value of anybody.
    Codes(Vec<String>),
    /// Any words; only their form can be judged.
    Words,
}

/// One request of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// So many of the session's messages are its history, the request included.
    pub messages: usize,
    /// What is right.
    pub want: Want,
}

/// A session.
#[derive(Clone, PartialEq, Debug)]
pub struct Session {
    /// Its number in the run.
    pub id: u32,
    /// What it talks about.
    pub kind: Kind,
    /// Makes it again, with [`Sizes`].
    pub seed: u64,
    /// The whole script.
    pub messages: Vec<Value>,
    /// What is asked, in order.
    pub steps: Vec<Step>,
    /// Every code that its script mentions.
    pub codes: BTreeSet<String>,
}

/// How long sessions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Tokens of records and notes that the longest session gathers.
    pub context_tokens: u32,
    /// User turns of a session.
    pub rounds: u32,
    /// Tokens of an answer, at most.
    pub answer_tokens_max: u32,
}

/// The tool that `report` sessions offer.
pub fn tools() -> Value {
    json!([{"type": "function", "function": {
        "name": "report",
        "description": "Report one record.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string"}, "value": {"type": "string"}},
            "required": ["key", "value"],
        },
    }}])
}

/// Tokens that a turn's request and answers take beside its lines, about.
const TURN_TOKENS: i64 = 200;
/// Tokens of a code in a tokenizer that does not know codes, about.
const CODE_TOKENS: u32 = 8;

/// Makes session `id` of a run. Lengths are unlike: the last of every eight is as long as is
/// allowed, the first a quarter of it. Sessions 2 and 3 of every four share their lines.
pub fn make(run_seed: u64, id: u32, kind: Kind, sizes: Sizes) -> Session {
    let family = if id % 4 == 3 { id - 1 } else { id };
    let seed = Rng::derive(run_seed, u64::from(family) + 1);
    let asked = (id % 4 == 3).then(|| Rng::derive(run_seed, 1 << 40 | u64::from(id)));
    let eighths = (2 + i64::from(family % 8)).min(8);
    let context = i64::from(sizes.context_tokens) * eighths / 8;
    let mut script = Script::new(kind);
    match kind {
        Kind::Report | Kind::Lookup => {
            let rounds = sizes.rounds.max(1);
            let overhead = recall::PREFIX_TOKENS + TURN_TOKENS * i64::from(rounds);
            let shape =
                Shape { budget_tokens: context + overhead, rounds: Some(rounds), thinks: false };
            let made = recall::session(seed, shape, asked);
            for turn in &made.turns {
                if kind == Kind::Report { script.report(turn) } else { script.lookup(turn) }
            }
            script.codes.extend(made.records.into_iter().flat_map(|(k, v)| [k, v]));
        }
        Kind::Echo => {
            let mut rng = Rng::new(asked.unwrap_or(seed));
            script.example(&mut rng);
            (0..sizes.rounds.max(1)).for_each(|_| script.echo(&mut rng));
        }
        Kind::List => {
            let mut rng = Rng::new(asked.unwrap_or(seed));
            let most = (sizes.answer_tokens_max / (CODE_TOKENS + 4)).clamp(2, 400);
            script.list(&mut rng, most * (2 + id % 3) / 4);
        }
    }
    script.finish(id, kind, seed)
}

fn echo_request(code: &str) -> String {
    format!("Repeat this code exactly: {code}")
}

/// A session that is being written.
struct Script {
    messages: Vec<Value>,
    steps: Vec<Step>,
    codes: BTreeSet<String>,
    calls: u32,
}

impl Script {
    fn new(kind: Kind) -> Script {
        let system = match kind {
            Kind::Report => SYSTEM,
            Kind::Lookup => {
                "You keep records, one per line: key = value. When asked for a key, answer with \
                 its exact value and nothing else."
            }
            Kind::Echo | Kind::List => "You repeat what you are given, exactly, and nothing else.",
        };
        Script {
            messages: vec![json!({"role": "system", "content": system})],
            steps: Vec::new(),
            codes: BTreeSet::new(),
            calls: 0,
        }
    }

    fn ask(&mut self, text: String, want: Want) {
        self.messages.push(json!({"role": "user", "content": text}));
        self.want(want);
    }

    fn want(&mut self, want: Want) {
        match &want {
            Want::Calls(calls) => {
                self.codes.extend(calls.iter().flat_map(|(k, v)| [k.clone(), v.clone()]));
            }
            Want::Codes(codes) => self.codes.extend(codes.iter().cloned()),
            Want::Words => {}
        }
        self.steps.push(Step { messages: self.messages.len(), want });
    }

    fn say(&mut self, text: impl Into<String>) {
        self.messages.push(json!({"role": "assistant", "content": text.into()}));
    }

    fn report(&mut self, turn: &Turn) {
        let asked = match &turn.request {
            Request::Report(asked) => asked,
            Request::Tag(tag) => {
                self.ask(turn.message(), Want::Codes(vec![tag.clone()]));
                return self.say(format!("The tag is {tag}."));
            }
            Request::Wait => {
                self.ask(turn.message(), Want::Words);
                return self.say("Noted.");
            }
        };
        let pairs = asked.iter().map(|(k, v, _)| (k.clone(), v.clone())).collect();
        self.ask(turn.message(), Want::Calls(pairs));
        let mut calls = Vec::new();
        let mut results = Vec::new();
        for (key, value, receipt) in asked {
            self.calls += 1;
            let id = format!("call_{:04}", self.calls);
            let arguments = json!({"key": key, "value": value}).to_string();
            calls.push(json!({"id": id, "type": "function",
                "function": {"name": "report", "arguments": arguments}}));
            let content = format!("receipt {receipt}");
            results.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        self.messages.push(json!({"role": "assistant", "content": "", "tool_calls": calls}));
        self.messages.extend(results);
        let codes = asked.iter().flat_map(|(k, v, r)| [k.clone(), v.clone(), r.clone()]);
        self.want(Want::Codes(codes.collect()));
        let lines = asked.iter().map(|(k, v, r)| format!("{k} is {v}, receipt {r}"));
        self.say(format!("{}.", lines.collect::<Vec<_>>().join(".\n")));
    }

    fn lookup(&mut self, turn: &Turn) {
        let lines = &turn.lines;
        match &turn.request {
            Request::Report(asked) => {
                let (key, value, _) = &asked[0];
                let text = format!("{lines}What is the value of {key}?");
                self.ask(text, Want::Codes(vec![value.clone()]));
                self.say(value.clone());
            }
            Request::Tag(tag) => {
                self.ask(format!("{lines}Which tag?"), Want::Codes(vec![tag.clone()]));
                self.say(tag.clone());
            }
            Request::Wait => {
                self.ask(format!("{lines}Wait."), Want::Words);
                self.say("Noted.");
            }
        }
    }

    /// A first exchange that nobody asks for: the smallest models need to be shown.
    fn example(&mut self, rng: &mut Rng) {
        let code = spell(rng.draw(), 3);
        self.messages.push(json!({"role": "user", "content": echo_request(&code)}));
        self.codes.insert(code.clone());
        self.say(code);
    }

    fn echo(&mut self, rng: &mut Rng) {
        let code = spell(rng.draw(), 3 + rng.below(2) as u32);
        self.ask(echo_request(&code), Want::Codes(vec![code.clone()]));
        self.say(code);
    }

    fn list(&mut self, rng: &mut Rng, lines: u32) {
        let codes: Vec<String> = (0..lines.max(2)).map(|_| spell(rng.draw(), 4)).collect();
        let text = format!("Repeat this list exactly:\n{}", codes.join("\n"));
        self.ask(text, Want::Codes(codes.clone()));
        self.say(codes.join("\n"));
    }

    fn finish(self, id: u32, kind: Kind, seed: u64) -> Session {
        Session { id, kind, seed, messages: self.messages, steps: self.steps, codes: self.codes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const SIZES: Sizes = Sizes { context_tokens: 640, rounds: 3, answer_tokens_max: 400 };

    #[test]
    fn every_answer_is_in_its_history() {
        for kind in Kind::ALL {
            for id in 0..40 {
                let session = make(7, id, kind, SIZES);
                assert!(!session.steps.is_empty());
                assert_eq!(session, make(7, id, kind, SIZES));
                for step in &session.steps {
                    let history = session.messages[..step.messages]
                        .iter()
                        .map(Value::to_string)
                        .collect::<String>();
                    let codes = match &step.want {
                        Want::Calls(calls) => {
                            calls.iter().flat_map(|(k, v)| [k.clone(), v.clone()]).collect()
                        }
                        Want::Codes(codes) => codes.clone(),
                        Want::Words => Vec::new(),
                    };
                    for code in codes {
                        assert!(history.contains(&code), "{kind:?} {id}: {code}");
                        assert!(session.codes.contains(&code));
                    }
                }
            }
        }
    }

    /// A swapped answer is known by its code: no two sessions of different lines have one of six
    /// symbols or more in common.
    #[test]
    fn long_codes_belong_to_one_family_of_sessions() {
        let mut owner: HashMap<String, u32> = HashMap::new();
        for id in 0..400 {
            let family = if id % 4 == 3 { id - 1 } else { id };
            for code in make(11, id, Kind::Report, SIZES).codes.into_iter().filter(|c| c.len() > 6)
            {
                assert_eq!(*owner.entry(code.clone()).or_insert(family), family, "{code}");
            }
        }
    }

    #[test]
    fn lengths_are_unlike_and_two_of_four_share_their_lines() {
        let first_message = |id| make(3, id, Kind::Report, SIZES).messages[1].to_string();
        let lengths: BTreeSet<usize> = (0..8).map(|id| first_message(id).len() / 64).collect();
        assert!(lengths.len() > 3, "{lengths:?}");
        let shared = first_message(2)
            .bytes()
            .zip(first_message(3).bytes())
            .take_while(|(a, b)| a == b)
            .count();
        assert!(shared > 200, "{shared}");
        assert_ne!(first_message(2), first_message(3));
    }
}
