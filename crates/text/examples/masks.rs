//! What grammars cost on this machine: `masks MODEL.gguf`.
//!
//! For every grammar of the tests' table, ordinary and hostile: the time to compile it with its
//! first mask, and the longest call of the step thread into it (a mask, or a token moved past)
//! over walks of its outputs.

use lockstep_flow::{Token, TokenMask};
use lockstep_text::{Encode, TextModel};
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../tests/suite/table.rs"]
mod table;

#[path = "../tests/suite/vocab.rs"]
mod vocab;

use vocab::vocab_of;

type Failure = Box<dyn std::error::Error>;

/// Tokens of a walk, at most.
const WALK_TOKENS: usize = 300;
/// Drawn walks of a grammar.
const WALKS: u64 = 3;

fn timed<T>(f: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let value = f();
    (value, start.elapsed())
}

#[derive(Default)]
struct Cost {
    masks: u32,
    total: Duration,
    mask_most: Duration,
    accept_most: Duration,
    ends: Vec<String>,
}

impl Cost {
    fn end(&mut self, how: impl Into<String>) {
        let how = how.into();
        if !self.ends.contains(&how) {
            self.ends.push(how);
        }
    }

    /// Walks until the grammar is complete or fails, taking each token from `next`.
    fn walk(
        &mut self,
        grammar: &mut dyn TokenMask,
        words: &mut [u32],
        mut next: impl FnMut(&[u32]) -> Option<Token>,
    ) {
        for _ in 0..WALK_TOKENS {
            let (filled, took) = timed(|| grammar.fill(words));
            self.masks += 1;
            self.total += took;
            self.mask_most = self.mask_most.max(took);
            if let Err(e) = filled {
                return self.end(e.to_string());
            }
            let Some(token) = next(words) else { return self.end("the text's end") };
            let (accepted, took) = timed(|| {
                let accepted = grammar.accept(token);
                accepted.map(|()| grammar.is_complete())
            });
            self.accept_most = self.accept_most.max(took);
            match accepted {
                Ok(false) => {}
                Ok(true) => return self.end("complete"),
                Err(e) => return self.end(e.to_string()),
            }
        }
        self.end("cut");
    }
}

/// Draws among the allowed tokens; every third one from those that close or open something, so
/// that strings end.
fn draw(model: &TextModel, x: &mut u64, words: &[u32]) -> Option<Token> {
    let bits = |(i, w): (usize, &u32)| {
        let w = *w;
        (0..32).filter(move |b| w >> b & 1 == 1).map(move |b| Token(i as u32 * 32 + b))
    };
    let all: Vec<Token> = words.iter().enumerate().flat_map(bits).collect();
    let marks = |t: &&Token| model.token_bytes(**t).iter().any(|b| b"\"{}[],:".contains(b));
    let structural: Vec<Token> = all.iter().filter(marks).copied().collect();
    *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let from =
        if (*x >> 20).is_multiple_of(3) && !structural.is_empty() { &structural } else { &all };
    from.get((*x >> 33) as usize % from.len().max(1)).copied()
}

fn measure(model: &TextModel, case: &table::Case) {
    let mut words = vec![0u32; model.vocab_size().div_ceil(32) as usize];
    let (compiled, compile) = timed(|| model.grammar(&case.spec, None));
    let mut cost = Cost::default();
    let first = match compiled {
        Err(e) => {
            println!("{:<34} {:>9.1?}  refused: {:.140}", case.name, compile, e.to_string());
            return;
        }
        Ok(grammar) => grammar,
    };
    let mut fresh = Some(first);
    let mut take = || fresh.take().map_or_else(|| model.grammar(&case.spec, None), Ok);
    for text in &case.texts {
        let Ok(tokens) = model.encode(text, Encode::TEXT) else { continue };
        let mut tokens = tokens.into_iter();
        let Ok(mut grammar) = take() else { continue };
        cost.walk(&mut *grammar, &mut words, |_| tokens.next());
    }
    for seed in 0..WALKS {
        let mut x = seed;
        let Ok(mut grammar) = take() else { continue };
        cost.walk(&mut *grammar, &mut words, |words| draw(model, &mut x, words));
    }
    println!(
        "{:<34} {:>9.1?} {:>9.1?} {:>9.1?} {:>9.1?} {:>5}  {:.100}",
        case.name,
        compile,
        cost.total / cost.masks.max(1),
        cost.mask_most,
        cost.accept_most,
        cost.masks,
        cost.ends.join("; "),
    );
}

fn main() -> Result<(), Failure> {
    let path = std::env::args_os().nth(1).ok_or("usage: masks MODEL.gguf [PART OF A NAME]")?;
    let only = std::env::args().nth(2).unwrap_or_default();
    let model = TextModel::from_gguf(vocab_of(Path::new(&path))?)?;
    // What all grammars share is built with the first one.
    drop(model.grammar(&lockstep_text::GrammarSpec::JsonObject, None)?);
    for (title, cases) in [("ordinary", table::ordinary()), ("hostile", table::hostile())] {
        println!(
            "{title:<34} {:>9} {:>9} {:>9} {:>9} {:>5}  ends",
            "compile", "mask", "most", "accept", "masks"
        );
        for case in cases.iter().filter(|c| c.name.contains(&only)) {
            // Deep sources recurse; the server gives a compilation the same room.
            let run = || measure(&model, case);
            std::thread::scope(|scope| {
                let room = std::thread::Builder::new().stack_size(1 << 30);
                room.spawn_scoped(scope, run).map(|thread| thread.join().ok())
            })?;
        }
    }
    Ok(())
}
