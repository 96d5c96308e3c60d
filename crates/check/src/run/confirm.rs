//! A second look at damage on servers whose numbers depend on the batch: where the model itself was
//! undecided, another token is a close call, not damage.

use super::answer::Answer;
use super::finding::may_be_close_call;
use super::load::{Bench, Prefix};
use crate::client::{Reading, Token};
use crate::judge::{Verdict, Wrong, slip};
use serde_json::json;

/// Nats between the token that was chosen and all others, from which on no rounding of sums turns
/// it. Servers that batch differently differ by some hundredths of a nat, quantised ones by tenths.
const CLEAR_NATS: f64 = 1.0;

/// Asks again, alone and with probabilities, for every answer that may be a close call; what is one
/// becomes wrong but plausible. Returns how many there were. A server that tells no probabilities
/// excuses nothing that the model can do, and everything else.
pub async fn close_calls(bench: &Bench, answers: &mut [Answer]) -> u64 {
    let mut found = 0;
    for answer in answers.iter_mut().filter(|a| may_be_close_call(&a.verdict)) {
        let can_do = answer.is_evidence;
        let why = match bench.stop.unless(margin(bench, answer)).await {
            Some(Some(margin)) if margin.nats < CLEAR_NATS => {
                found += 1;
                format!("alone it was decided by {:.2} nats", margin.nats)
            }
            Some(Some(margin)) if can_do || margin.is_exact => continue,
            Some(None) if can_do => continue,
            Some(_) => "the model cannot do this alone, and nothing shows how it decided".into(),
            // Nobody may say now that it is more than a close call.
            None => "ended before it was looked at again".into(),
        };
        let what = format!("{}; {why}", answer.verdict);
        answer.verdict = Verdict::Wrong(Wrong::Weak { what });
        answer.is_evidence = false;
    }
    found
}

/// How clearly the model alone decides for its answer.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Margin {
    /// Between the token that it takes and all others together.
    nats: f64,
    /// Of the very token where the damaged answer leaves this one, from which it differs by no more
    /// than a slip; else the least of all, or of another answer.
    is_exact: bool,
}

/// How clearly the model alone decides for its answer, where the damaged one leaves it.
async fn margin(bench: &Bench, answer: &Answer) -> Option<Margin> {
    let session = &bench.sessions[answer.session as usize];
    let mut body = bench.body(session, answer.step, false, &Prefix::Cached);
    // One alternative there, a flag here: each endpoint's own way to ask for the token's own.
    body["logprobs"] = if bench.prompts.is_some() { json!(1) } else { json!(true) };
    let exchange = bench.exchange(&body, Reading::default()).await;
    if !exchange.is_done() {
        return None;
    }
    let damaged = answer.reply.as_ref()?;
    let same = exchange.text.bytes().zip(damaged.text.bytes()).take_while(|(a, b)| a == b).count();
    let mut margin = at_or_least(&exchange.tokens, &exchange.text, same)?;
    // A model that says something else each time was not sure of anything.
    margin.is_exact &= slip(&exchange.text, &damaged.text).is_some();
    Some(margin)
}

/// The margin of the token at byte `at` of `text`; the least of all where tokens and text do not
/// fit together, as with tool calls. Nothing where every token is said to be certain: that is what
/// greedy sampling made of the probabilities.
fn at_or_least(tokens: &[Token], text: &str, at: usize) -> Option<Margin> {
    if tokens.iter().filter_map(|t| t.logprob).all(|p| p >= 0.0) {
        return None;
    }
    let nats = |t: &Token| t.logprob.map(margin_nats);
    let fits = tokens.iter().map(|t| t.text.len()).sum::<usize>() >= text.len()
        && text.len() > at
        && tokens.iter().map(|t| t.text.as_str()).collect::<String>().starts_with(text);
    if fits {
        let mut end = 0;
        let token = tokens.iter().find(|t| {
            end += t.text.len();
            end > at
        });
        return token.and_then(nats).map(|nats| Margin { nats, is_exact: true });
    }
    let least = tokens.iter().filter_map(nats).reduce(f64::min);
    least.map(|nats| Margin { nats, is_exact: false })
}

/// Nats by which a token of this log-probability beats all others together.
fn margin_nats(logprob: f64) -> f64 {
    let rest = -f64::exp_m1(logprob.min(0.0));
    if rest <= 0.0 { f64::INFINITY } else { logprob - rest.ln() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, p: f64) -> Token {
        Token { id: None, text: text.into(), logprob: Some(p.ln()) }
    }

    #[test]
    fn margins_are_of_the_token_at_the_difference() {
        let tokens = [token("48", 0.99), token("GH", 0.6), token(" is", 0.999)];
        let near = |found: Option<Margin>, p: f64, is_exact: bool| {
            let found = found.unwrap();
            assert_eq!(found.is_exact, is_exact);
            assert!((found.nats - (p / (1.0 - p)).ln()).abs() < 1e-9, "{found:?}");
        };
        near(at_or_least(&tokens, "48GH is", 3), 0.6, true);
        near(at_or_least(&tokens, "48GH is", 5), 0.999, true);
        // Tokens of a tool call; and an answer that was left at its end.
        near(at_or_least(&tokens, "", 0), 0.6, false);
        near(at_or_least(&tokens, "48GH is", 7), 0.6, false);
        assert_eq!(at_or_least(&[], "a", 0), None);
        assert_eq!(at_or_least(&[token("a", 1.0), token("b", 1.0)], "ab", 1), None);
        assert_eq!(margin_nats(0.0), f64::INFINITY);
    }
}
