//! The fields that both generation endpoints share.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, whole};
use crate::{plain, prepare};
use lockstep_flow::limits::{
    CHOICES_MAX, CONTEXT_TOKENS_MAX, LOGIT_BIAS_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX,
    STOP_TOKENS_MAX, VOCAB_MAX,
};
use lockstep_flow::{Refusal, SamplingParams, Seed, Token};
use lockstep_text::{StreamOptions, TextStream};
use serde_json::Value;

/// Bytes of a client-chosen request name (`rid`).
const RID_BYTES_MAX: usize = 128;

/// OpenAI's two names for the tokens of an answer, at most; the newer one wins.
const NEWER: &str = "max_completion_tokens";
const OLDER: &str = "max_tokens";

/// What a request may ask for as the tokens of its answer.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The most that the model can hold, prompt included.
    pub context_max_tokens: u32,
    /// Whether 0 is taken, which asks for the prompt alone.
    pub may_be_zero: bool,
    /// What lets 0 be taken, in words; empty where nothing does.
    pub zero: &'static str,
}

impl Limit {
    /// Takes a field. One that is more than the context, and that a machine can hold, is let
    /// through: what it says of it depends on the prompt.
    fn take(self, fields: &mut Fields, field: &str) -> Result<Option<u32>, ApiError> {
        let Some(value) = fields.take(field) else { return Ok(None) };
        let least = u64::from(!self.may_be_zero);
        match whole(&value) {
            Some(n) if (least..=u64::from(CONTEXT_TOKENS_MAX)).contains(&n) => Ok(Some(n as u32)),
            _ => {
                let Limit { context_max_tokens, zero, .. } = self;
                let expected = format!("a whole number from 1 to {context_max_tokens}{zero}");
                Err(fields.wrong(field, &expected, &value))
            }
        }
    }
}

/// What a request asks for beside its prompt.
#[derive(Debug)]
pub struct Common {
    /// `max_tokens` and `logprobs` are filled in by the endpoint.
    pub params: SamplingParams,
    /// As asked; `None` where the request names none.
    pub max_tokens: Option<u32>,
    /// The field that named it.
    pub max_tokens_field: &'static str,
    /// Choices a prompt.
    pub n: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Answer as server-sent events.
    pub stream: bool,
    /// A last chunk with the usage.
    pub include_usage: bool,
    /// The client's own name for the request, for `/abort_request`.
    pub rid: Option<String>,
    /// Leave special tokens out of the text.
    pub skip_special: bool,
    /// Keep the stop string that ended the text.
    pub include_stop: bool,
    /// Shares no prefix with other requests: it came with a salt for the cache.
    pub private: bool,
    /// Show tokens in log-probabilities as `token_id:N`.
    pub tokens_as_ids: bool,
}

impl Common {
    /// Takes the shared fields out of a body. `vocab` bounds token ids, `limit` says what
    /// `max_tokens` may be.
    pub fn take(fields: &mut Fields, vocab: u32, limit: Limit) -> Result<Common, ApiError> {
        let stream = fields.flag("stream")?.unwrap_or(false);
        let options = fields.object("stream_options")?;
        if options.is_some() && !stream {
            return Err(ApiError::field("stream_options", "is only allowed with stream: true"));
        }
        let include_usage = match options {
            Some(mut o) => {
                if o.flag("continuous_usage_stats")?.unwrap_or(false) {
                    let what = "is not supported here: include_usage sends the usage at the end";
                    return Err(ApiError::parameter(o.name("continuous_usage_stats"), what));
                }
                o.flag("include_usage")?.unwrap_or(false)
            }
            None => false,
        };
        let completion = limit.take(fields, NEWER)?;
        let max_tokens = limit.take(fields, OLDER)?;
        Ok(Common {
            params: sampling(fields, vocab)?,
            max_tokens: completion.or(max_tokens),
            max_tokens_field: if completion.is_some() { NEWER } else { OLDER },
            n: fields.count("n", 1, u64::from(CHOICES_MAX))?.unwrap_or(1) as u32,
            stop: stop_strings(fields)?,
            stream,
            include_usage,
            rid: rid(fields)?,
            skip_special: fields.flag("skip_special_tokens")?.unwrap_or(true),
            include_stop: include_stop(fields)?,
            private: salted(fields, "cache_salt")? | salted(fields, "extra_key")?,
            tokens_as_ids: fields.flag("return_tokens_as_token_ids")?.unwrap_or(false),
        })
    }

    /// The text of one choice, from its tokens. `keep` are special tokens that a parser looks for.
    pub fn text(&self, app: &App, keep: Vec<Token>) -> Result<TextStream, ApiError> {
        let options = StreamOptions {
            stop: self.stop.clone(),
            stop_from: self.params.min_tokens,
            include_stop: self.include_stop,
            skip_special: self.skip_special,
            keep,
            ..StreamOptions::default()
        };
        app.text.stream_with(options).map_err(|e| prepare::text_error("stop", &e))
    }
}

/// vLLM's and SGLang's names for keeping the stop string.
fn include_stop(fields: &mut Fields) -> Result<bool, ApiError> {
    let included = fields.flag("include_stop_str_in_output")?;
    let untrimmed = fields.flag("no_stop_trim")?;
    Ok(included.unwrap_or(false) || untrimmed.unwrap_or(false))
}

/// A salt keeps a request's prefix from others who do not know it. Pages are not kept by salt
/// here: a request with one shares none at all.
fn salted(fields: &mut Fields, field: &str) -> Result<bool, ApiError> {
    match fields.take(field) {
        None => Ok(false),
        Some(Value::String(salt)) => Ok(!salt.is_empty()),
        Some(Value::Array(salts)) if salts.iter().all(Value::is_string) => Ok(!salts.is_empty()),
        Some(_) => Err(ApiError::field(field, "must be a string")),
    }
}

fn rid(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let rid = fields.string("rid")?;
    match &rid {
        Some(r) if r.is_empty() || r.len() > RID_BYTES_MAX => Err(ApiError::field(
            "rid",
            format!("must have 1 to {RID_BYTES_MAX} bytes, found {}", r.len()),
        )),
        _ => Ok(rid),
    }
}

fn sampling(fields: &mut Fields, vocab: u32) -> Result<SamplingParams, ApiError> {
    let default = SamplingParams::default();
    let context = u64::from(CONTEXT_TOKENS_MAX);
    let params = SamplingParams {
        temperature: fields.number("temperature")?.unwrap_or(default.temperature),
        top_k: top_k(fields)?,
        top_p: fields.number("top_p")?.unwrap_or(default.top_p),
        min_p: fields.number("min_p")?.unwrap_or(default.min_p),
        repetition_penalty: fields
            .number("repetition_penalty")?
            .unwrap_or(default.repetition_penalty),
        presence_penalty: fields.number("presence_penalty")?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.number("frequency_penalty")?.unwrap_or(default.frequency_penalty),
        logit_bias: logit_bias(fields)?,
        seed: Seed(fields.bits64("seed")?.unwrap_or_else(crate::ids::random_seed)),
        min_tokens: fields.count("min_tokens", 0, context)?.unwrap_or(0) as u32,
        ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
        stop_tokens: stop_tokens(fields)?,
        ..default
    };
    let refused = |e| ApiError::Refused { refusal: Refusal::Sampling(e), param: "" };
    params.check(vocab).map_err(refused)?;
    Ok(params)
}

/// -1 and 0 both mean all tokens: the first is what vLLM and SGLang clients send.
fn top_k(fields: &mut Fields) -> Result<u32, ApiError> {
    let Some(value) = fields.take("top_k") else { return Ok(0) };
    if value.as_i64() == Some(-1) {
        return Ok(0);
    }
    match whole(&value) {
        Some(k) if k <= u64::from(VOCAB_MAX) => Ok(k as u32),
        _ => Err(ApiError::field(
            "top_k",
            format!("must be -1 or a whole number up to {VOCAB_MAX}, found {value}"),
        )),
    }
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(one) => vec![one],
    };
    if items.len() > STOP_STRINGS_MAX {
        let what = format!("may hold at most {STOP_STRINGS_MAX} strings, found {}", items.len());
        return Err(ApiError::field("stop", what));
    }
    let string = |item: Value| match item {
        Value::String(s) if (1..=STOP_STRING_BYTES_MAX).contains(&s.len()) => Ok(s),
        _ => Err(ApiError::field(
            "stop",
            format!(
                "must be a string, or an array of strings, of 1 to {STOP_STRING_BYTES_MAX} bytes each"
            ),
        )),
    };
    items.into_iter().map(string).collect()
}

fn stop_tokens(fields: &mut Fields) -> Result<Vec<Token>, ApiError> {
    let Some(items) = fields.array("stop_token_ids")? else { return Ok(Vec::new()) };
    if items.len() > STOP_TOKENS_MAX {
        let what = format!("may hold at most {STOP_TOKENS_MAX} ids, found {}", items.len());
        return Err(ApiError::field("stop_token_ids", what));
    }
    items.iter().map(|item| token_id(item, "stop_token_ids")).collect()
}

/// A JSON number as a token id; whether the vocabulary has it is checked where the vocabulary is.
pub fn token_id(value: &Value, field: &str) -> Result<Token, ApiError> {
    match value.as_u64() {
        Some(id) if id <= u64::from(u32::MAX) => Ok(Token(id as u32)),
        _ => Err(ApiError::field(field, "must hold token ids: whole numbers from 0")),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(Token, f32)>, ApiError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let map = map.into_map();
    if map.len() > LOGIT_BIAS_MAX {
        let what = format!("may hold at most {LOGIT_BIAS_MAX} entries, found {}", map.len());
        return Err(ApiError::field("logit_bias", what));
    }
    let entry = |(key, bias): (String, Value)| match (plain::number(&key), bias.as_f64()) {
        (Some(id), Some(bias)) => Ok((Token(id), bias as f32)),
        _ => Err(ApiError::field("logit_bias", "must map token ids to numbers")),
    };
    let mut bias: Vec<(Token, f32)> = map.into_iter().map(entry).collect::<Result<_, _>>()?;
    bias.sort_by_key(|(token, _)| *token);
    Ok(bias)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<Common, ApiError> {
        match body {
            Value::Object(map) => {
                let limit = Limit { context_max_tokens: 256, may_be_zero: false, zero: "" };
                Common::take(&mut Fields::new(map), 100, limit)
            }
            _ => panic!("an object"),
        }
    }

    #[test]
    fn defaults_are_the_openai_ones() {
        let c = take(json!({})).unwrap();
        assert_eq!((c.n, c.stream, c.max_tokens), (1, false, None));
        assert_eq!((c.params.temperature, c.params.top_p, c.params.top_k), (1.0, 1.0, 0));
        let other = take(json!({})).unwrap();
        assert_ne!(c.params.seed, other.params.seed);
    }

    #[test]
    fn every_bad_field_is_named() {
        for (field, value) in [
            ("temperature", json!("1")),
            ("temperature", json!(-0.1)),
            ("temperature", json!(1e39)),
            ("top_p", json!(0)),
            ("top_p", json!(1.01)),
            ("top_k", json!(-2)),
            ("top_k", json!(0.5)),
            ("min_p", json!(2)),
            ("presence_penalty", json!(2.5)),
            ("frequency_penalty", json!([])),
            ("repetition_penalty", json!(0)),
            ("repetition_penalty", json!(1e-38)),
            ("repetition_penalty", json!(1e-45)),
            ("repetition_penalty", json!(10.5)),
            ("seed", json!("x")),
            ("seed", json!(1e30)),
            ("n", json!(0)),
            ("n", json!(1_000_000)),
            ("stop", json!([1])),
            ("stop", json!("")),
            ("stop", json!(vec!["a"; 17])),
            ("stop_token_ids", json!([-1])),
            ("stop_token_ids", json!([100])),
            ("logit_bias", json!({"x": 1})),
            ("logit_bias", json!({"100": 1})),
            ("logit_bias", json!({"1": 101})),
            ("max_tokens", json!(-5)),
            ("max_tokens", json!(0)),
            ("max_tokens", json!(1e12)),
            ("max_completion_tokens", json!("many")),
            ("stream", json!("yes")),
            ("stream_options", json!({"include_usage": true})),
            ("min_tokens", json!(-1)),
            ("ignore_eos", json!(1)),
            ("rid", json!("")),
            ("no_stop_trim", json!("yes")),
            ("cache_salt", json!([1])),
        ] {
            let e = take(json!({ field: value.clone() })).unwrap_err();
            assert_eq!(e.status(), 400, "{field} {value}: {e}");
            assert_eq!(e.to_json()["error"]["param"], field, "{field} {value}: {e}");
        }
    }

    /// "+5" and "05" were once token 5 again, beside "5".
    #[test]
    fn a_bias_names_its_token_in_one_way() {
        let bias = |key: &str| take(json!({"logit_bias": {key: 1}}));
        assert_eq!(bias("5").unwrap().params.logit_bias, [(Token(5), 1.0)]);
        assert_eq!(bias("0").unwrap().params.logit_bias, [(Token(0), 1.0)]);
        for key in ["+5", "05", "00", "-0", " 5", "5 ", "5.0", ""] {
            assert_eq!(bias(key).unwrap_err().to_json()["error"]["param"], "logit_bias", "{key:?}");
        }
    }

    #[test]
    fn a_salt_keeps_a_request_to_itself() {
        assert!(!take(json!({})).unwrap().private);
        assert!(!take(json!({"cache_salt": ""})).unwrap().private);
        assert!(take(json!({"cache_salt": "s"})).unwrap().private);
        assert!(take(json!({"extra_key": ["a", "b"]})).unwrap().private);
        assert!(take(json!({"cache_salt": 5})).is_err());
        assert!(take(json!({"no_stop_trim": true})).unwrap().include_stop);
    }

    #[test]
    fn the_newer_name_of_max_tokens_wins() {
        let c = take(json!({"max_tokens": 5, "max_completion_tokens": 7})).unwrap();
        assert_eq!((c.max_tokens, c.max_tokens_field), (Some(7), "max_completion_tokens"));
        assert_eq!(take(json!({"top_k": -1})).unwrap().params.top_k, 0);
    }
}
