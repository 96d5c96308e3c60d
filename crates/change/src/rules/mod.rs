//! What is known of servers' settings, as data: by kind and version, each with its source.

use crate::readback::Readback;
use crate::target::Kind;
use serde::Deserialize;
use std::sync::LazyLock;

/// What a rule says of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Does nothing in this role.
    Dead,
    /// This version reads it as several flags, and does not start.
    Ambiguous,
    /// Works, and will be gone or means something else than it says.
    Deprecated,
    /// Batches will take another path of the code.
    CodePath,
    /// The KV pool shrinks.
    PoolLoss,
    /// Memory outside the pool is taken.
    Memory,
    /// Cannot be changed live.
    Restart,
}

/// A rule.
#[derive(Clone, Debug, Deserialize)]
pub struct Rule {
    /// Its name.
    pub id: String,
    kind: String,
    since: Option<String>,
    until: Option<String>,
    settings: Vec<String>,
    #[serde(default)]
    roles: Vec<String>,
    model: Option<String>,
    needs: Option<String>,
    unless: Option<String>,
    /// What it says.
    pub effect: Effect,
    /// Batch sizes at which the path changes.
    #[serde(default)]
    pub thresholds: Vec<u32>,
    /// For the operator.
    pub words: String,
    /// Where it is known from.
    pub source: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Name {
    kind: String,
    name: String,
    since: Option<String>,
    until: Option<String>,
    is: Option<String>,
    flags: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Book {
    names: Vec<Name>,
    rules: Vec<Rule>,
}

static BOOK: LazyLock<Book> = LazyLock::new(|| {
    let book = serde_json::from_str(include_str!("rules.json"));
    // The file is part of the program, and a test reads it.
    book.unwrap_or_else(|e| panic!("rules.json: {e}"))
});

/// Numbers of a version, `0.5.21.post1` as 0, 5, 21.
fn numbers(version: &str) -> Vec<u64> {
    let version = version.trim_start_matches('v');
    let number = |part: &str| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    version.split(['.', '-', '+']).map_while(number).collect()
}

/// A version that is unknown is taken for the newest.
fn is_in(version: &str, since: Option<&str>, until: Option<&str>) -> bool {
    let is = numbers(version);
    if is.is_empty() {
        return until.is_none();
    }
    since.is_none_or(|s| is >= numbers(s)) && until.is_none_or(|u| is < numbers(u))
}

/// A setting's own name and its flags for a server: portable names are those of Lockstep's knobs.
pub fn spelled(kind: Kind, version: &str, name: &str) -> (String, Vec<String>) {
    let known = BOOK.names.iter().find(|n| {
        n.kind == kind.as_str()
            && n.name == name
            && is_in(version, n.since.as_deref(), n.until.as_deref())
    });
    match known {
        Some(n) => (n.is.clone().unwrap_or_else(|| name.to_owned()), n.flags.clone()),
        None => {
            let bare = name.trim_start_matches('-');
            let flag = if kind == Kind::Lockstep {
                lockstep_flow::knobs::find(bare).map_or(bare, |k| k.flag)
            } else {
                bare
            };
            (bare.to_owned(), vec![format!("--{flag}")])
        }
    }
}

/// The rules that speak of a setting of a server.
pub fn about<'a>(r: &'a Readback, setting: &'a str) -> impl Iterator<Item = &'static Rule> + 'a {
    BOOK.rules
        .iter()
        .filter(move |rule| rule.holds(r) && rule.settings.iter().any(|s| s == setting))
}

/// Settings that any rule of this kind speaks of, to be looked for on a command line.
pub fn spoken_of(kind: Kind) -> impl Iterator<Item = &'static str> {
    let of_kind = BOOK.rules.iter().filter(move |r| r.kind == kind.as_str());
    of_kind.flat_map(|r| r.settings.iter().map(String::as_str))
}

impl Rule {
    fn holds(&self, r: &Readback) -> bool {
        let has = |name: &String| r.command.contains(&format!("--{name}"));
        let plain = |text: &str| text.to_ascii_lowercase().replace(['_', ' '], "-");
        self.kind == r.kind.as_str()
            && is_in(&r.version, self.since.as_deref(), self.until.as_deref())
            && (self.roles.is_empty()
                || r.role.as_ref().is_some_and(|role| self.roles.contains(role)))
            && self.model.as_ref().is_none_or(|m| plain(&r.model).contains(m))
            && self.needs.as_ref().is_none_or(has)
            && !self.unless.as_ref().is_some_and(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sglang(version: &str, role: Option<&str>) -> Readback {
        let mut r = Readback::none(Kind::Sglang);
        r.version = version.into();
        r.role = role.map(str::to_owned);
        r
    }

    fn ids(r: &Readback, setting: &str) -> Vec<String> {
        about(r, setting).map(|rule| rule.id.clone()).collect()
    }

    #[test]
    fn every_rule_has_words_and_a_source_and_a_known_kind() {
        for rule in &BOOK.rules {
            assert!(Kind::parse(&rule.kind).is_some(), "{}", rule.id);
            assert!(rule.words.len() > 20 && rule.source.len() > 5, "{}", rule.id);
            assert!(!rule.settings.is_empty(), "{}", rule.id);
        }
    }

    #[test]
    fn a_queue_limit_does_nothing_on_a_disaggregated_worker() {
        let dead = "sglang-queue-limit-in-pd";
        assert_eq!(ids(&sglang("0.5.23", Some("decode")), "max-queued-requests"), [dead]);
        assert_eq!(ids(&sglang("0.5.11", Some("prefill")), "max-queued-requests"), [dead]);
        assert!(ids(&sglang("0.5.23", None), "max-queued-requests").is_empty());
    }

    #[test]
    fn the_graph_flag_is_alias_then_ambiguous() {
        let of = |version| ids(&sglang(version, None), "cuda-graph-max-bs");
        assert!(of("0.5.11").iter().all(|id| id == "sglang-graphs-shrink-the-pool"));
        assert!(of("0.5.16.post2").contains(&"sglang-graph-max-bs-deprecated".to_owned()));
        assert!(of("0.5.21").contains(&"sglang-graph-max-bs-ambiguous".to_owned()));
        assert!(of("").contains(&"sglang-graph-max-bs-ambiguous".to_owned()), "unknown is newest");
        let flag = |version| spelled(Kind::Sglang, version, "decode.graph-max-bs").1;
        assert_eq!(flag("0.5.11"), ["--cuda-graph-max-bs"]);
        assert_eq!(flag("0.5.23"), ["--cuda-graph-max-bs-decode"]);
    }

    #[test]
    fn the_overlap_rule_is_for_its_model_alone() {
        let mut r = sglang("0.5.23", Some("decode"));
        let overlap = "sglang-v4-overlap-forks".to_owned();
        assert!(!ids(&r, "cuda-graph-max-bs-decode").contains(&overlap));
        r.model = "deepseek-ai/DeepSeek-V4-Flash".into();
        assert!(ids(&r, "cuda-graph-max-bs-decode").contains(&overlap));
        r.command = "--mem-fraction-static 0.8".into();
        let found = ids(&r, "cuda-graph-max-bs-decode");
        assert!(found.contains(&"sglang-graphs-take-headroom".to_owned()), "{found:?}");
        assert!(!found.contains(&"sglang-graphs-shrink-the-pool".to_owned()), "{found:?}");
    }

    #[test]
    fn names_are_spelled_as_the_server_does() {
        assert_eq!(spelled(Kind::LlamaCpp, "b1", "parallel").1, ["--parallel", "-np"]);
        let (name, flags) = spelled(Kind::Lockstep, "", "decode.graph-max-bs");
        assert_eq!(
            (name.as_str(), flags),
            ("decode.graph-max-bs", vec!["--graph-max-bs".to_owned()])
        );
        assert_eq!(spelled(Kind::OpenAi, "", "--x").1, ["--x"]);
    }
}
