//! Greedy answers, one request at a time: what a server says when nothing else is asked of it.

use crate::fault::ChangeError;
use crate::web::Web;
use lockstep_check::client::{Client, Reading};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Prompts of unlike lengths.
const PROMPTS: [&str; 12] = [
    "The capital of France is",
    "Once upon a time there was a small dog who",
    "Water boils at",
    "List three colours of the rainbow and say where each of them can be seen in a garden in June:",
    "def fibonacci(n):",
    "In the year 1969, two people walked on the moon for the first time. What they said and did there",
    "The opposite of hot is",
    "A recipe for bread: take flour, water, salt and yeast. First",
    "7 times 8 is",
    "Dear Sir or Madam, I am writing to you because of the order that I placed on Monday. It",
    "The quick brown fox",
    "To make tea, one needs",
];

fn body(prompt: &str, tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
           "stream": true, "stream_options": {"include_usage": true}})
}

async fn client(web: &Web) -> Result<Client, ChangeError> {
    web.api().discover().await.map_err(|outcome| web.unreachable("/v1/models", outcome))
}

/// Asks for one token: a server is ready when it has answered something.
///
/// # Errors
/// It has not.
pub fn probe(web: &Web) -> Result<(), ChangeError> {
    web.runtime().block_on(async {
        let client = client(web).await?;
        let e = client.completions(&body(PROMPTS[0], 1), Reading::default()).await;
        let what = e.outcome.to_string();
        if e.is_done() { Ok(()) } else { Err(ChangeError::Answer { url: web.url().into(), what }) }
    })
}

/// One greedy answer to each prompt, one request at a time.
///
/// # Errors
/// A request is not answered.
pub fn sample(web: &Web, tokens: u32) -> Result<BTreeMap<String, String>, ChangeError> {
    web.runtime().block_on(async {
        let client = client(web).await?;
        let mut answers = BTreeMap::new();
        for prompt in PROMPTS {
            let e = client.completions(&body(prompt, tokens), Reading::default()).await;
            if !e.is_done() || e.text.is_empty() {
                let what =
                    if e.is_done() { "an empty answer".into() } else { e.outcome.to_string() };
                let what = format!("the prompt '{prompt}' gave {what}");
                return Err(ChangeError::Answer { url: web.url().into(), what });
            }
            answers.insert(prompt.to_owned(), e.text);
        }
        Ok(answers)
    })
}
