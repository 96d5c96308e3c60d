//! The judge: what an answer was, given what is right, what everybody else was told, and what the
//! same request gave alone.

mod compare;
mod form;
mod registry;
#[cfg(test)]
mod tests;
mod verdict;

pub use compare::{first_difference, slip};
pub use registry::Registry;
pub use verdict::{Corruption, Degenerate, Owner, Structural, TokenDifference, Verdict, Wrong};

use crate::dialogue::{Session, Want, candidates, distance};

/// Characters of what came back that a verdict holds; the answer itself is kept beside it.
const FOUND_CHARS_MAX: usize = 64;

/// A tool call as it came back.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Call {
    /// The tool's name.
    pub name: String,
    /// Its arguments, as text.
    pub arguments: String,
}

/// An answer that came to its end.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reply {
    /// The content.
    pub text: String,
    /// The reasoning, where the server tells it apart.
    pub reasoning: String,
    /// Tool calls in order.
    pub calls: Vec<Call>,
    /// `finish_reason`.
    pub finish: Option<String>,
}

impl Reply {
    /// All of it as one text, to compare and to show.
    pub fn transcript(&self) -> String {
        let mut text = String::new();
        if !self.reasoning.is_empty() {
            text.push_str(&format!("[{}]\n", self.reasoning));
        }
        text.push_str(&self.text);
        for call in &self.calls {
            text.push_str(&format!("\n{}({})", call.name, call.arguments));
        }
        text
    }
}

/// What is known when an answer is judged.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The session that asked.
    pub session: &'a Session,
    /// What is right.
    pub want: &'a Want,
    /// Whose code is whose.
    pub registry: &'a Registry,
    /// What the same request gave alone, if that was right.
    pub alone: Option<&'a Reply>,
    /// Whether the server claims that it gives the same alone and in a crowd.
    pub deterministic: bool,
}

/// Judges an answer. Damage of form first, then of codes, then a difference to the answer alone.
pub fn judge(reply: &Reply, known: Knowledge<'_>) -> Verdict {
    if let Some(corruption) = form::fault(reply) {
        return Verdict::Corrupted(corruption);
    }
    let verdict = match known.want {
        Want::Calls(calls) => judge_calls(reply, calls, known),
        Want::Codes(codes) => judge_codes(reply, codes, known),
        // Anything will do, but another session's code.
        Want::Words => match stranger(&all_codes(reply), "", known) {
            Some(swapped) => Verdict::Corrupted(swapped),
            None => Verdict::Ok,
        },
    };
    match (verdict, known.alone) {
        (verdict @ Verdict::Corrupted(_), _) => verdict,
        (verdict, Some(alone)) => difference(reply, alone, known.deterministic, verdict),
        (verdict, None) => verdict,
    }
}

/// A difference to the answer alone is damage where the server claims that there is none, and
/// where it is of a kind that no rewording makes.
fn difference(reply: &Reply, alone: &Reply, deterministic: bool, verdict: Verdict) -> Verdict {
    if deterministic {
        return match compare::first_difference(&alone.transcript(), &reply.transcript()) {
            Some(divergent) => Verdict::Corrupted(divergent),
            None => verdict,
        };
    }
    let is_wrong = verdict != Verdict::Ok;
    match compare::stutter(&alone.transcript(), &reply.transcript(), is_wrong) {
        Some(altered) => Verdict::Corrupted(altered),
        None => verdict,
    }
}

fn judge_calls(reply: &Reply, want: &[(String, String)], known: Knowledge<'_>) -> Verdict {
    if reply.calls.is_empty() {
        // Words instead of a call; somebody else's code in them is still somebody else's.
        let found = candidates(&reply.text);
        let expected = want.first().map_or("", |(_, value)| value);
        return match stranger(&found, expected, known) {
            Some(swapped) => Verdict::Corrupted(swapped),
            None if cut(reply) => Verdict::Wrong(Wrong::Length),
            None => Verdict::Wrong(Wrong::Form { expected: "a tool call" }),
        };
    }
    let found: Vec<(String, String)> =
        reply.calls.iter().filter_map(|c| form::arguments(&c.arguments)).collect();
    let expected: Vec<&str> = want.iter().flat_map(|(k, v)| [k.as_str(), v]).collect();
    let found: Vec<&str> = found.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]).collect();
    if expected == found {
        return Verdict::Ok;
    }
    mismatch(&expected, &found, reply, known)
}

fn judge_codes(reply: &Reply, want: &[String], known: Knowledge<'_>) -> Verdict {
    let expected: Vec<&str> = want.iter().map(String::as_str).collect();
    let found = candidates(&reply.text);
    let mut rest = found.iter();
    let in_order = expected.iter().all(|code| rest.any(|f| f == code));
    if in_order {
        // Right, unless something of somebody else came with it.
        return match stranger(&found, expected.first().copied().unwrap_or(""), known) {
            Some(swapped) => Verdict::Corrupted(swapped),
            None => Verdict::Ok,
        };
    }
    if found.is_empty() && !reply.calls.is_empty() {
        let first = expected.first().copied().unwrap_or("");
        return match stranger(&all_codes(reply), first, known) {
            Some(swapped) => Verdict::Corrupted(swapped),
            None => Verdict::Wrong(Wrong::Form { expected: "words" }),
        };
    }
    mismatch(&expected, &found, reply, known)
}

/// The codes of an answer's text and of its calls.
fn all_codes(reply: &Reply) -> Vec<&str> {
    let calls = reply.calls.iter().flat_map(|c| candidates(&c.arguments));
    candidates(&reply.text).into_iter().chain(calls).collect()
}

fn cut(reply: &Reply) -> bool {
    reply.finish.as_deref() == Some("length")
}

/// Another session's code among `found`.
fn stranger(found: &[&str], expected: &str, known: Knowledge<'_>) -> Option<Corruption> {
    found.iter().find_map(|code| {
        let id = known.registry.stranger(code, known.session)?;
        Some(Corruption::Swapped {
            expected: expected.into(),
            found: (*code).into(),
            of: Owner::Session(id),
        })
    })
}

/// Codes are missing or out of order: says how.
fn mismatch(expected: &[&str], found: &[&str], reply: &Reply, known: Knowledge<'_>) -> Verdict {
    let missing: Vec<&str> = expected.iter().copied().filter(|e| !found.contains(e)).collect();
    let extra: Vec<&str> = found.iter().copied().filter(|f| !expected.contains(f)).collect();
    let first = missing.first().or(expected.first()).copied().unwrap_or("");
    if let Some(swapped) = stranger(&extra, first, known) {
        return Verdict::Corrupted(swapped);
    }
    if let Some(found) = extra.iter().find(|code| known.session.codes.contains(**code)) {
        return Verdict::Corrupted(Corruption::Swapped {
            expected: first.into(),
            found: (*found).into(),
            of: Owner::Key,
        });
    }
    for code in &missing {
        if let Some(found) = extra.iter().find(|found| is_altered(code, found)) {
            return Verdict::Corrupted(Corruption::Altered {
                expected: (*code).into(),
                found: found.chars().take(FOUND_CHARS_MAX).collect(),
            });
        }
    }
    if cut(reply) {
        return Verdict::Wrong(Wrong::Length);
    }
    Verdict::Wrong(match extra.first() {
        Some(found) => Wrong::Other { expected: first.into(), found: (*found).into() },
        None => Wrong::Missing { expected: first.into() },
    })
}

/// Whether `found` is `code` with a few symbols changed, or a piece of it lost or doubled. Two codes
/// of the same length that share less than half are two codes.
fn is_altered(code: &str, found: &str) -> bool {
    let near = distance(code, found) <= (code.len() / 3).max(1);
    near || found.contains(code) && found.len() > code.len() || is_pieced(code, found)
}

/// Whether `found` is the beginning and the end of `code` with what was between them lost, or the
/// same piece in both of them, or what both were lost from. At least half of the code is there.
fn is_pieced(code: &str, found: &str) -> bool {
    let (c, f) = (code.as_bytes(), found.as_bytes());
    let begins = c.iter().zip(f).take_while(|(a, b)| a == b).count();
    let ends = c.iter().rev().zip(f.iter().rev()).take_while(|(a, b)| a == b).count();
    let is_half = c.len() != f.len() && 2 * f.len() >= c.len();
    is_half && (begins + ends >= f.len() || code.contains(found))
}
