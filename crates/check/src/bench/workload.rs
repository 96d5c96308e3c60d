//! What is asked: how long prompts and answers are, and what prompts have in common.

use super::seeded::Seeded;
use core::fmt;
use core::str::FromStr;

/// A shape of load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dataset {
    /// Every prompt and every answer of the asked length; no two prompts alike.
    Fixed,
    /// Lengths drawn like those of public chat logs; no two prompts alike.
    ShareGptLike,
    /// Conversations: each turn sends all that was said before and one message more.
    MultiTurn,
    /// Groups of prompts that begin alike, as behind one system prompt.
    SharedPrefix,
}

impl Dataset {
    /// All of them with their names.
    pub const NAMES: [(&'static str, Dataset); 4] = [
        ("fixed", Dataset::Fixed),
        ("sharegpt-like", Dataset::ShareGptLike),
        ("multi-turn", Dataset::MultiTurn),
        ("shared-prefix", Dataset::SharedPrefix),
    ];
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Dataset::NAMES.iter().find(|(_, d)| d == self).map_or("?", |(n, _)| n);
        f.write_str(name)
    }
}

/// No dataset has this name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownDataset {
    name: String,
}

impl fmt::Display for UnknownDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Dataset::NAMES.map(|(name, _)| name).join(", ");
        write!(f, "no dataset is called '{}'; there are: {names}", self.name)
    }
}

impl core::error::Error for UnknownDataset {}

impl FromStr for Dataset {
    type Err = UnknownDataset;

    fn from_str(name: &str) -> Result<Dataset, UnknownDataset> {
        let found = Dataset::NAMES.iter().find(|(n, _)| *n == name);
        found.map(|(_, d)| *d).ok_or_else(|| UnknownDataset { name: name.to_owned() })
    }
}

/// A dataset with its lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Workload {
    /// The shape.
    pub dataset: Dataset,
    /// Prompt tokens; of a turn's message in `multi-turn`, of prefix and rest in `shared-prefix`.
    pub input_tokens: u32,
    /// Output tokens.
    pub output_tokens: u32,
    /// Tokens that prompts of a group share.
    pub prefix_tokens: u32,
    /// Groups of `shared-prefix`.
    pub groups: u32,
    /// Turns of a conversation.
    pub turns: u32,
    /// Prompt and answer together, at most, where the server tells.
    pub context_tokens: Option<u32>,
}

/// One request to come: lengths, and the seeds of its prompt's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Prompt tokens in all; in a conversation, of this turn's message.
    pub input_tokens: u32,
    /// Output tokens.
    pub output_tokens: u32,
    /// How many of the prompt's tokens are the group's, and which group.
    pub prefix: Option<(u32, u64)>,
    /// The stream of random numbers that makes the rest.
    pub stream: u64,
}

/// Requests that follow one another: one, or the turns of a conversation.
pub type Session = Vec<Planned>;

/// Moments of the logarithm of lengths. Within the bounds below, means are then those which
/// SGLang's benchmark prints for its ShareGPT sample, 344 prompt and 219 output tokens; the spread
/// is wide, as chat logs are.
const SHAREGPT_INPUT: (f64, f64) = (5.29, 1.1);
const SHAREGPT_OUTPUT: (f64, f64) = (4.95, 1.0);
/// Bounds of drawn lengths.
const DRAWN_INPUT: (f64, f64) = (4.0, 2048.0);
const DRAWN_OUTPUT: (f64, f64) = (4.0, 1024.0);

impl Workload {
    /// The sessions of one run: `requests` in all, or as many whole conversations as that makes.
    pub fn plan(&self, requests: u32, seed: u64, run: u64) -> Vec<Session> {
        let mut lengths = Seeded::new(seed, run << 32);
        let turns = if self.dataset == Dataset::MultiTurn { self.turns.max(1) } else { 1 };
        let sessions = requests.div_ceil(turns);
        let mut number = run << 32;
        let mut session = |at: u32| -> Session {
            let mut one = || {
                number += 1;
                self.one(&mut lengths, at, number)
            };
            (0..turns).map(|_| one()).collect()
        };
        (0..sessions).map(&mut session).collect()
    }

    fn one(&self, lengths: &mut Seeded, at: u32, stream: u64) -> Planned {
        let (mut input, mut output, mut prefix) = (self.input_tokens, self.output_tokens, None);
        match self.dataset {
            Dataset::Fixed | Dataset::MultiTurn => {}
            Dataset::ShareGptLike => {
                input = draw(lengths, SHAREGPT_INPUT, DRAWN_INPUT);
                output = draw(lengths, SHAREGPT_OUTPUT, DRAWN_OUTPUT);
                if let Some(context) = self.context_tokens {
                    output = output.min((context / 2).max(1));
                    input = input.min(context.saturating_sub(output + 1).max(1));
                }
            }
            Dataset::SharedPrefix => {
                let group = u64::from(at % self.groups.max(1));
                prefix = Some((self.prefix_tokens.min(input.saturating_sub(1)), group));
            }
        }
        Planned { input_tokens: input, output_tokens: output, prefix, stream }
    }
}

fn draw(r: &mut Seeded, (mean, deviation): (f64, f64), (low, high): (f64, f64)) -> u32 {
    (mean + deviation * r.normal()).exp().clamp(low, high).round() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(dataset: Dataset) -> Workload {
        Workload {
            dataset,
            input_tokens: 100,
            output_tokens: 20,
            prefix_tokens: 60,
            groups: 3,
            turns: 4,
            context_tokens: Some(2048),
        }
    }

    #[test]
    fn names_are_read_back() {
        for (name, dataset) in Dataset::NAMES {
            assert_eq!(name.parse(), Ok(dataset));
            assert_eq!(dataset.to_string(), name);
        }
        let words = "chat".parse::<Dataset>().unwrap_err().to_string();
        assert!(words.contains("sharegpt-like"), "{words}");
    }

    #[test]
    fn runs_differ_and_seeds_repeat() {
        for (_, dataset) in Dataset::NAMES {
            let w = workload(dataset);
            assert_eq!(w.plan(40, 1, 5), w.plan(40, 1, 5));
            let streams = |run| -> Vec<u64> {
                w.plan(40, 1, run).iter().flatten().map(|p| p.stream).collect()
            };
            assert!(streams(1).iter().all(|s| !streams(2).contains(s)), "{dataset}");
            assert_eq!(w.plan(40, 1, 0).iter().flatten().count(), 40);
        }
    }

    #[test]
    fn drawn_lengths_have_the_means_of_the_sample_and_fit_the_context() {
        let mut w = workload(Dataset::ShareGptLike);
        let plan: Vec<Planned> = w.plan(20_000, 3, 0).concat();
        let mean = |f: fn(&Planned) -> u32| {
            plan.iter().map(|p| f64::from(f(p))).sum::<f64>() / plan.len() as f64
        };
        let (input, output) = (mean(|p| p.input_tokens), mean(|p| p.output_tokens));
        assert!((300.0..360.0).contains(&input) && (190.0..230.0).contains(&output));
        w.context_tokens = Some(128);
        let fits = |p: &Planned| p.input_tokens + p.output_tokens <= 128;
        assert!(w.plan(2000, 3, 0).iter().flatten().all(fits));
    }

    #[test]
    fn prefixes_are_the_groups() {
        let plan = workload(Dataset::SharedPrefix).plan(6, 1, 0).concat();
        let groups: Vec<_> = plan.iter().map(|p| p.prefix.unwrap()).collect();
        assert_eq!(groups, [(60, 0), (60, 1), (60, 2), (60, 0), (60, 1), (60, 2)]);
    }
}
