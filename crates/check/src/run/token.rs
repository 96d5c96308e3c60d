//! The first token in which a divergent answer leaves the one alone, by the server's tokenizer.

use super::answer::Answer;
use super::load::Bench;
use crate::calibration::Basis;
use crate::client::Client;
use crate::judge::{Corruption, Reply, TokenDifference, Verdict};
use serde_json::{Value, json};
use std::sync::PoisonError;

/// Answers that are looked at, at most: what is known of these is known of the others.
const ANSWERS_MAX: usize = 32;

/// Names the tokens of divergent answers, in the order in which they were asked for. A server that
/// does not tell tokens ends it: where the texts part is said in any case.
pub async fn name(bench: &Bench, answers: &mut [Answer]) {
    let divergent = answers.iter_mut().filter_map(|a| {
        let texts = texts(bench, a)?;
        match &mut a.verdict {
            Verdict::Corrupted(Corruption::Divergent { token, .. }) => Some((texts, token)),
            _ => None,
        }
    });
    for ((alone, found), token) in divergent.take(ANSWERS_MAX) {
        let both = async {
            Some((tokens(&bench.client, &alone).await?, tokens(&bench.client, &found).await?))
        };
        let Some(Some((alone, found))) = bench.stop.unless(both).await else { return };
        *token = first_difference(&alone, &found);
    }
}

/// Where the answer is not the one alone: that part of both.
fn texts(bench: &Bench, answer: &Answer) -> Option<(String, String)> {
    let calibration = bench.calibration.read().unwrap_or_else(PoisonError::into_inner);
    let alone = match calibration.basis(answer.session, answer.step) {
        Basis::Right(alone) | Basis::Weak(alone) => alone,
        Basis::None => return None,
    };
    parts(alone, answer.reply.as_ref()?)
}

fn parts(alone: &Reply, found: &Reply) -> Option<(String, String)> {
    let words = [(&alone.reasoning, &found.reasoning), (&alone.text, &found.text)];
    let calls = alone.calls.iter().zip(&found.calls).map(|(a, f)| (&a.arguments, &f.arguments));
    let mut pairs = words.into_iter().chain(calls);
    pairs.find(|(a, f)| a != f).map(|(a, f)| (a.clone(), f.clone()))
}

/// A text's token ids; `None` where the server does not tell them.
async fn tokens(client: &Client, text: &str) -> Option<Vec<u64>> {
    let mut body = json!({"prompt": text, "add_special_tokens": false});
    if let Some(model) = &client.target().model {
        body["model"] = model.as_str().into();
    }
    let reply = client.post("/tokenize", &body).await.ok().filter(|r| r.status == 200)?;
    reply.json()?["tokens"].as_array()?.iter().map(Value::as_u64).collect()
}

fn first_difference(alone: &[u64], found: &[u64]) -> Option<TokenDifference> {
    let at = alone.iter().zip(found).take_while(|(a, f)| a == f).count();
    let (alone, found) = (alone.get(at).copied(), found.get(at).copied());
    (alone != found).then_some(TokenDifference { at, alone, found })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Call;

    #[test]
    fn the_first_token_that_differs_is_named_and_an_end_is_none() {
        let at = |at, alone, found| Some(TokenDifference { at, alone, found });
        assert_eq!(first_difference(&[1, 2, 3], &[1, 5, 3]), at(1, Some(2), Some(5)));
        assert_eq!(first_difference(&[1], &[1, 5]), at(1, None, Some(5)));
        assert_eq!(first_difference(&[], &[]), None);
        assert_eq!(first_difference(&[4], &[4]), None);
    }

    #[test]
    fn the_part_that_differs_may_be_a_call() {
        let reply = |text: &str, arguments: &str| Reply {
            text: text.into(),
            calls: vec![Call { name: "report".into(), arguments: arguments.into() }],
            ..Reply::default()
        };
        let (alone, found) = (reply("a", "{1}"), reply("a", "{2}"));
        assert_eq!(parts(&alone, &found), Some(("{1}".into(), "{2}".into())));
        assert_eq!(parts(&alone, &reply("b", "{2}")), Some(("a".into(), "b".into())));
        assert_eq!(parts(&alone, &alone), None);
    }
}
