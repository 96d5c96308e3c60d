//! Prompts of an exact length: token ids where the server takes them, else words that were
//! counted by the server beforehand.

use super::seeded::Seeded;
use super::workload::Planned;
use serde_json::Value;

/// How a server is given prompts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Form {
    /// Ids from `low..high`; the server adds `extra` of its own.
    Ids { low: u32, high: u32, extra: u32 },
    /// Words: `extra` tokens around them, and `per_word` for each.
    Words { extra: f64, per_word: f64 },
}

/// Common words; after a blank each is one token in the vocabularies of today's models.
const WORDS: [&str; 64] = [
    "the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with",
    "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "but", "not", "what",
    "all", "were", "we", "when", "your", "can", "said", "there", "use", "an", "each", "which",
    "do", "how", "their", "if", "will", "up", "other", "about", "out", "many", "then", "them",
    "these", "so", "some", "her", "would", "make", "like", "him", "into", "time", "has", "look",
    "two",
];

/// The stream of random numbers of a group's prefix.
const PREFIX_STREAM: u64 = 1 << 63;

/// `count` words.
pub fn words(r: &mut Seeded, count: u32) -> String {
    let mut text = String::with_capacity(count as usize * 5);
    for at in 0..count {
        if at > 0 {
            text.push(' ');
        }
        text.push_str(WORDS[r.within(0, WORDS.len() as u32) as usize]);
    }
    text
}

impl Form {
    /// The prompt of a planned request: an array of ids or a text.
    pub fn prompt(&self, planned: &Planned, seed: u64) -> Value {
        let (shared, group) = planned.prefix.unwrap_or((0, 0));
        let mut own = Seeded::new(seed, planned.stream);
        let mut common = Seeded::new(seed, PREFIX_STREAM | group);
        match *self {
            Form::Ids { low, high, extra } => {
                let all = planned.input_tokens.saturating_sub(extra).max(1);
                let shared = shared.min(all - 1);
                let mut ids = Vec::with_capacity(all as usize);
                ids.extend((0..shared).map(|_| Value::from(common.within(low, high))));
                ids.extend((shared..all).map(|_| Value::from(own.within(low, high))));
                Value::Array(ids)
            }
            Form::Words { extra, per_word } => {
                let of = |tokens: f64| (tokens / per_word).round().max(1.0) as u32;
                let all = of(f64::from(planned.input_tokens) - extra);
                let shared = of(f64::from(shared)).min(all);
                if planned.prefix.is_none() || shared == all {
                    return words(&mut own, all).into();
                }
                format!("{} {}", words(&mut common, shared), words(&mut own, all - shared)).into()
            }
        }
    }

    /// A form of words from two measurements: `(words, prompt tokens)`.
    pub fn calibrated(few: (u32, u64), many: (u32, u64)) -> Form {
        let tokens = many.1 as f64 - few.1 as f64;
        let per_word = (tokens / f64::from(many.0 - few.0)).max(0.1);
        Form::Words { extra: few.1 as f64 - per_word * f64::from(few.0), per_word }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(prefix: Option<(u32, u64)>, stream: u64) -> Planned {
        Planned { input_tokens: 50, output_tokens: 1, prefix, stream }
    }

    #[test]
    fn id_prompts_have_the_asked_length_and_share_what_they_should() {
        let form = Form::Ids { low: 100, high: 200, extra: 1 };
        let ids = |prefix, stream| form.prompt(&planned(prefix, stream), 9);
        let (a, b) = (ids(Some((20, 1)), 1), ids(Some((20, 1)), 2));
        let (a, b) = (a.as_array().unwrap(), b.as_array().unwrap());
        assert_eq!((a.len(), &a[..20], a[20..] == b[20..]), (49, &b[..20], false));
        assert!(a.iter().all(|id| (100..200).contains(&id.as_u64().unwrap())));
        assert_ne!(ids(Some((20, 2)), 1).as_array().unwrap()[..20], a[..20]);
        assert_eq!(ids(None, 3), ids(None, 3));
    }

    #[test]
    fn word_prompts_follow_the_calibration() {
        let form = Form::calibrated((32, 42), (160, 170));
        assert_eq!(form, Form::Words { extra: 10.0, per_word: 1.0 });
        let text = |prefix| form.prompt(&planned(prefix, 4), 9).as_str().unwrap().to_owned();
        assert_eq!(text(None).split(' ').count(), 40);
        assert_eq!(text(Some((10, 0))).split(' ').count(), 40);
    }
}
