//! The recall protocol's sessions: records with near-duplicate keys, notes, a tag, reports through
//! tool calls, receipts. Counts are tokens of the recall model's tokenizer, by which the protocol
//! measures sessions; for other models they are a scale.

use super::code::{mask, spell};
use super::notes;
use super::rng::Rng;
use std::collections::HashSet;

/// What the protocol's system message says.
pub const SYSTEM: &str = "You keep records, one per line: key = value. When asked, call report \
                          once per key with its exact value, then confirm each value and its \
                          receipt.";

/// Tokens before the first turn: system message and tools as DeepSeek-V4's encoding writes them.
pub const PREFIX_TOKENS: i64 = 216;
/// Asked keys were last mentioned at least so many tokens earlier, where there are such.
const FAR_TOKENS: i64 = 160;
/// One key in so many is a near-duplicate of an earlier one.
const DUPLICATE_ONE_IN: u64 = 4;
const ASKS_MAX: u64 = 3;

/// What shapes a session, beside its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Tokens of the whole session, [`PREFIX_TOKENS`] included, at most.
    pub budget_tokens: i64,
    /// User turns; drawn from the seed where there is none.
    pub rounds: Option<u32>,
    /// Whether the assistant reasons before it answers, which takes tokens.
    pub thinks: bool,
}

/// A key with its value.
#[derive(Clone, Copy, Debug)]
struct Record {
    key: u64,
    key_pairs: u32,
    value: u64,
    value_pairs: u32,
}

/// What a user turn ends with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// `Report K1, K2.`: (key, value, receipt).
    Report(Vec<(String, String, String)>),
    /// `Which tag?`
    Tag(String),
    /// `Wait.`
    Wait,
}

/// A user turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Records, notes and the tag, each with its line's end.
    pub lines: String,
    /// What is asked.
    pub request: Request,
}

impl Turn {
    /// The user's message.
    pub fn message(&self) -> String {
        match &self.request {
            Request::Report(asked) => {
                let keys: Vec<&str> = asked.iter().map(|(key, ..)| key.as_str()).collect();
                format!("{}Report {}.", self.lines, keys.join(", "))
            }
            Request::Tag(_) => format!("{}Which tag?", self.lines),
            Request::Wait => format!("{}Wait.", self.lines),
        }
    }
}

/// A session as the protocol makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recall {
    /// User turns in order.
    pub turns: Vec<Turn>,
    /// Every key with its value, in order of appearance.
    pub records: Vec<(String, String)>,
}

/// The session of a seed. `asked` draws which keys are asked from another seed, so that two
/// sessions can share all of their lines and ask for different records.
pub fn session(seed: u64, shape: Shape, asked: Option<u64>) -> Recall {
    Builder::new(seed, shape, asked).build()
}

struct Builder {
    rng: Rng,
    asked: Option<Rng>,
    shape: Shape,
    tag: u64,
    records: Vec<Record>,
    /// Position after the last mention of each record, in tokens.
    mentioned: Vec<i64>,
    keys: HashSet<(u64, u32)>,
    turns: Vec<Turn>,
}

/// How many keys a turn asks for: 0 waits, -1 asks for the tag.
type Asks = i64;

impl Builder {
    fn new(seed: u64, shape: Shape, asked: Option<u64>) -> Builder {
        let mut rng = Rng::new(seed);
        let tag = rng.draw();
        Builder {
            rng,
            asked: asked.map(Rng::new),
            shape,
            tag,
            records: Vec::new(),
            mentioned: Vec::new(),
            keys: HashSet::new(),
            turns: Vec::new(),
        }
    }

    /// Most tokens that a turn takes beside its lines.
    fn cost(&self, asks: Asks) -> i64 {
        let (extra, each) = if self.shape.thinks { (12, 50) } else { (4, 45) };
        12 + extra + each * asks.max(0)
    }

    fn draw_asks(&mut self, used: i64) -> Vec<Asks> {
        let budget = self.shape.budget_tokens;
        let rounds = match self.shape.rounds {
            Some(rounds) => i64::from(rounds.max(1)),
            None => {
                let most = (budget - used).div_euclid(160).clamp(1, 40);
                2 + self.rng.below(most as u64) as i64
            }
        };
        let mut asks = Vec::new();
        for i in 0..rounds {
            let wait = self.rng.below(8) == 0 && 0 < i && i < rounds - 1;
            asks.push(if wait { 0 } else { 1 + self.rng.below(ASKS_MAX) as i64 });
        }
        let room =
            |b: &Self, asks: &[Asks]| budget - used - asks.iter().map(|a| b.cost(*a)).sum::<i64>();
        while room(self, &asks) < 0 && asks.len() > 1 {
            asks.pop();
        }
        if asks.len() > 1 {
            let at = 1 + self.rng.index(asks.len() - 1);
            asks[at] = -1;
        }
        asks
    }

    fn build(mut self) -> Recall {
        let used = PREFIX_TOKENS;
        let asks = self.draw_asks(used);
        let costs: i64 = asks.iter().map(|a| self.cost(*a)).sum();
        let room = self.shape.budget_tokens - used - costs - 4;
        let rounds = asks.len() as i64;
        let first =
            if rounds > 1 { room.min((room * 2).div_euclid(5).max(2 * FAR_TOKENS)) } else { room };
        let rest = (room - first).div_euclid((rounds - 1).max(1));
        let mut at = used;
        for (i, asks) in asks.into_iter().enumerate() {
            let share = if i == 0 { first } else { rest };
            let lines = self.lines(share, i == 0, &mut at);
            let request = self.request(asks, &mut at);
            self.turns.push(Turn { lines, request });
        }
        let records = self.records.iter().map(|r| (r.key(), r.value())).collect();
        Recall { turns: self.turns, records }
    }

    /// The lines of a turn: `share` tokens of records and notes, in the first turn the tag too.
    fn lines(&mut self, share: i64, with_tag: bool, at: &mut i64) -> String {
        let mut lines = String::new();
        let mut spent = 0;
        *at += 1;
        let mut tag_at = with_tag.then(|| (share * self.rng.below(100) as i64).div_euclid(100));
        let tag = format!("Tag {}.\n", spell(self.tag, 2));
        loop {
            if tag_at.is_some_and(|tag_at| spent >= tag_at) {
                lines.push_str(&tag);
                tag_at = None;
                *at += 4;
            }
            let tokens = if self.rng.below(5) < 2 && !self.records.is_empty() {
                let (text, tokens) = notes::draw(&mut self.rng);
                if spent + tokens > share {
                    break;
                }
                lines.push_str(&text);
                tokens
            } else {
                if spent + 9 > share && !self.records.is_empty() {
                    break;
                }
                let record = self.record();
                let tokens = i64::from(record.key_pairs + record.value_pairs + 2);
                self.mentioned.push(*at + tokens);
                lines.push_str(&format!("{} = {}\n", record.key(), record.value()));
                tokens
            };
            spent += tokens;
            *at += tokens;
        }
        if tag_at.is_some() {
            lines.push_str(&tag);
            *at += 4;
        }
        lines
    }

    fn record(&mut self) -> Record {
        let mut key_pairs = 2 + self.rng.below(2) as u32;
        let value_pairs = 3 + self.rng.below(2) as u32;
        let near = !self.records.is_empty() && self.rng.below(DUPLICATE_ONE_IN) == 0;
        let key = loop {
            let key = if near {
                let of = self.records[self.rng.index(self.records.len())];
                key_pairs = of.key_pairs;
                let symbol = self.rng.below(2 * u64::from(key_pairs));
                of.key ^ ((1 + self.rng.below(15)) << (60 - 4 * symbol))
            } else {
                self.rng.draw()
            };
            if self.keys.insert((mask(key, key_pairs), key_pairs)) {
                break key;
            }
        };
        let record = Record { key, key_pairs, value: self.rng.draw(), value_pairs };
        self.records.push(record);
        record
    }

    fn request(&mut self, asks: Asks, at: &mut i64) -> Request {
        let mut asked: Vec<usize> = Vec::new();
        for _ in 0..asks.max(0) {
            let far = |j: &usize| *at - self.mentioned[*j] >= FAR_TOKENS;
            let mut pool: Vec<usize> = (0..self.records.len()).filter(far).collect();
            if pool.is_empty() {
                pool = (0..self.records.len()).collect();
            }
            let drawn = self.rng.index(pool.len());
            let j = match &mut self.asked {
                Some(rng) => pool[rng.index(pool.len())],
                None => pool[drawn],
            };
            if !asked.contains(&j) {
                asked.push(j);
            }
        }
        let receipts: Vec<u64> = asked.iter().map(|_| self.rng.draw()).collect();
        *at += self.tail_tokens(asks, &asked);
        for j in &asked {
            self.mentioned[*j] = *at;
        }
        match asks {
            -1 => Request::Tag(spell(self.tag, 2)),
            0 => Request::Wait,
            _ => Request::Report(
                asked
                    .iter()
                    .zip(receipts)
                    .map(|(j, r)| (self.records[*j].key(), self.records[*j].value(), spell(r, 2)))
                    .collect(),
            ),
        }
    }

    /// Tokens from the request to the end of the assistant's answer, by the protocol's encoding.
    fn tail_tokens(&self, asks: Asks, asked: &[usize]) -> i64 {
        // Opening an assistant turn; thinking also has a mark more and its few words.
        let opening = |words: i64| if self.shape.thinks { 3 + words } else { 2 };
        if asks < 0 {
            return 1 + opening(1) + 1 + 2 + 2;
        }
        if asks == 0 {
            return 1 + opening(1) + 2;
        }
        let n = asked.len() as i64;
        let pairs = |f: fn(&Record) -> u32| -> i64 {
            asked.iter().map(|j| i64::from(f(&self.records[*j]))).sum()
        };
        let (keys, values) = (pairs(|r| r.key_pairs), pairs(|r| r.value_pairs));
        let list = keys + n - 1;
        let calls = 4 + 18 * n + keys + values + 4;
        let results = 1 + 3 * n + (n - 1) + 1;
        let confirmed = keys + values + 4 * n + (n - 1) + 2;
        1 + list + 1 + opening(list + 2) + calls + results + opening(1) + confirmed
    }
}

impl Record {
    fn key(&self) -> String {
        spell(self.key, self.key_pairs)
    }

    fn value(&self) -> String {
        spell(self.value, self.value_pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn cases() -> Vec<Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/recall/cases.jsonl");
        let text = std::fs::read_to_string(path).expect("the recall model's sessions");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Every published session comes out of its seed, message for message.
    #[test]
    fn published_sessions_come_out_of_their_seeds() {
        let cases = cases();
        assert!(cases.len() >= 74);
        for case in cases {
            let shape = Shape {
                budget_tokens: case["budget"].as_i64().unwrap(),
                rounds: None,
                thinks: case["mode"] == "think",
            };
            let made = session(case["seed"].as_u64().unwrap(), shape, None);
            let messages = case["messages"].as_array().unwrap();
            let of_role = |role: &str, field: &str| -> Vec<String> {
                let mine = messages.iter().filter(|m| m["role"] == role);
                mine.map(|m| m[field].as_str().unwrap().to_owned()).collect()
            };
            let users: Vec<String> = made.turns.iter().map(Turn::message).collect();
            assert_eq!(users, of_role("user", "content"), "{}", case["id"]);
            let mut receipts = Vec::new();
            for turn in &made.turns {
                if let Request::Report(asked) = &turn.request {
                    receipts.extend(asked.iter().map(|(.., r)| format!("receipt {r}")));
                }
            }
            assert_eq!(receipts, of_role("tool", "content"), "{}", case["id"]);
            assert_eq!(SYSTEM, messages[0]["content"]);
        }
    }

    #[test]
    fn other_asks_of_the_same_lines() {
        let shape = Shape { budget_tokens: 1200, rounds: Some(3), thinks: false };
        let (a, b) = (session(5, shape, None), session(5, shape, Some(9)));
        assert_eq!(a.turns[0].lines, b.turns[0].lines);
        assert_ne!(a, b);
        assert_eq!(a.turns.len(), 3);
        assert_eq!(a, session(5, shape, None));
    }

    #[test]
    fn no_shape_breaks_the_generator() {
        for budget in [-5, 0, 230, 300, 600, 5000] {
            for rounds in [None, Some(0), Some(1), Some(7)] {
                let shape = Shape { budget_tokens: budget, rounds, thinks: budget == 600 };
                for seed in 0..20 {
                    assert!(!session(seed, shape, Some(seed)).turns.is_empty());
                }
            }
        }
    }
}
