//! What a change will do, before anything is touched.

mod around;

use crate::deployment::Deployment;
use crate::readback::{Readback, generation_buckets};
use crate::rules::{self, Effect};
use crate::target::{Kind, Launch, Target};
use lockstep_flow::decode_ladder;
use lockstep_flow::knobs::{self, Shapes};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// A setting that is to be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wish {
    /// The name as the server has it: a knob, or a flag without dashes; `env.NAME` for a variable.
    pub name: String,
    /// Its spellings on a command line.
    pub flags: Vec<String>,
    /// The value wanted.
    pub value: String,
}

/// Something the operator should know, or that stops the change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The rule's name.
    pub id: String,
    /// For the operator.
    pub words: String,
    /// Where it is known from.
    pub source: String,
    /// It cannot work.
    pub blocks: bool,
}

/// Memory that is asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Memory {
    /// Bytes of each new bucket, where they are known one by one.
    pub per_bucket: BTreeMap<u32, u64>,
    /// Bytes that the change takes while both settings are there.
    pub staging: Option<u64>,
    /// Bytes that stay taken, beyond the present ones.
    pub kept: Option<u64>,
    /// Bytes that are free now, where that can be known from here.
    pub free: Option<u64>,
    /// How the figures were found.
    pub method: String,
    /// What the method was off by in earlier records, in words.
    pub past_error: String,
}

/// The prediction.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// Name, value in force with its source, value wanted.
    pub settings: Vec<(String, Option<String>, Option<String>, String)>,
    /// Captured decode buckets now.
    pub buckets_before: Vec<u32>,
    /// And afterwards.
    pub buckets_after: Vec<u32>,
    /// Memory.
    pub memory: Memory,
    /// Seconds without service: 0 where it is live; `None` where no start was measured yet.
    pub downtime_seconds: Option<f64>,
    /// How that is known.
    pub downtime_method: String,
    /// Warnings and what stops it.
    pub findings: Vec<Finding>,
}

/// What a prediction is made from beside the read-back.
#[derive(Clone, Debug, Default)]
pub struct Grounds {
    /// The live generation's report, of our own server.
    pub generation: Option<Value>,
    /// Bytes of memory that are free on this machine, where the server is on it.
    pub free_bytes: Option<u64>,
    /// Predicted and measured bytes of earlier changes of this kind of server.
    pub past: Vec<(u64, u64)>,
    /// Seconds that earlier restarts of this target took.
    pub restarts: Vec<f64>,
    /// The router's other workers.
    pub around: Deployment,
    /// The program that holds the server's address on this machine.
    pub holder: Option<String>,
    /// Why the file that the change would write cannot be replaced, and the file.
    pub irreplaceable: Option<(String, PathBuf)>,
}

/// Predicts.
pub fn predict(target: &Target, r: &Readback, wishes: &[Wish], grounds: &Grounds) -> Prediction {
    let settings = wishes
        .iter()
        .map(|w| {
            let now = r.settings.get(&w.name);
            let source = now.and_then(|s| s.source.clone());
            (w.name.clone(), now.map(|s| s.value.clone()), source, w.value.clone())
        })
        .collect();
    let buckets_after = buckets_after(r, wishes);
    let memory = memory(r, &buckets_after, grounds);
    let live = target.launch == Launch::Live;
    let measured = grounds.restarts.iter().copied().reduce(f64::max);
    let mut p = Prediction {
        settings,
        buckets_before: r.buckets.clone(),
        buckets_after,
        memory,
        downtime_seconds: if live { Some(0.0) } else { measured },
        downtime_method: match (live, measured) {
            (true, _) => "live: a second generation beside the first, one store to flip".into(),
            (false, Some(_)) => {
                format!("the longest of {} earlier restarts of this target", grounds.restarts.len())
            }
            (false, None) => "by restart; no restart of this target was measured yet".into(),
        },
        findings: Vec::new(),
    };
    p.findings = findings(target, r, wishes, &p);
    p.findings.extend(around::findings(target, r, wishes, grounds));
    p.findings.extend(grounds.irreplaceable.iter().map(|(why, path)| Finding {
        id: "irreplaceable".into(),
        words: format!(
            "{} cannot be replaced ({why}), so the change could not be written there: its folder \
             has to be writable for whoever runs this{}",
            path.display(),
            if live { ", or --config names another settings file" } else { "" }
        ),
        source: "tried on this machine".into(),
        blocks: true,
    }));
    p
}

/// Those of `all` that `others` lacks. How many there are is the server's to say.
fn without(all: &[u32], others: &[u32]) -> Vec<u32> {
    let others: BTreeSet<u32> = others.iter().copied().collect();
    all.iter().copied().filter(|n| !others.contains(n)).collect()
}

/// Which wish sets the largest captured batch, if any.
fn ceiling(wishes: &[Wish]) -> Option<u32> {
    const NAMES: [&str; 4] = [
        "decode.graph-max-bs",
        "cuda-graph-max-bs",
        "cuda-graph-max-bs-decode",
        "max-cudagraph-capture-size",
    ];
    let wish = wishes.iter().find(|w| NAMES.contains(&w.name.as_str()))?;
    wish.value.parse().ok().filter(|n| *n <= 4096)
}

fn buckets_after(r: &Readback, wishes: &[Wish]) -> Vec<u32> {
    let Some(max) = ceiling(wishes) else { return r.buckets.clone() };
    let running = wishes.iter().find(|w| w.name == "sched.max-running-requests");
    let running = running.and_then(|w| w.value.parse().ok()).or(r.running_max);
    match r.kind {
        Kind::Lockstep => {
            decode_ladder(running.map_or(max, |m| max.min(u32::try_from(m).unwrap_or(max))))
        }
        Kind::Sglang => sglang_ladder(max),
        Kind::Vllm => vllm_ladder(max),
        Kind::LlamaCpp | Kind::OpenAi => Vec::new(),
    }
}

/// 1, 2, 4, 8, 12, then steps of 8 to 256, of 16 to 511, of 32 above; the maximum itself always.
fn sglang_ladder(max: u32) -> Vec<u32> {
    let steps = [1, 2, 4, 8, 12].into_iter().chain((16..=256).step_by(8));
    let steps = steps.chain((272..512).step_by(16)).chain((512..=4096).step_by(32));
    let mut ladder: Vec<u32> = steps.filter(|n| *n < max).collect();
    ladder.push(max);
    ladder
}

/// 1, 2, 4, then steps of 8 to 256, of 16 above.
fn vllm_ladder(max: u32) -> Vec<u32> {
    let steps = [1, 2, 4].into_iter().chain((8..=256).step_by(8)).chain((272..=4096).step_by(16));
    steps.filter(|n| *n <= max).collect()
}

fn memory(r: &Readback, after: &[u32], grounds: &Grounds) -> Memory {
    let mut m = Memory {
        free: grounds.free_bytes,
        past_error: past_error(&grounds.past),
        ..Memory::default()
    };
    let fresh = without(after, &r.buckets);
    if let Some(report) = &grounds.generation {
        let known = generation_buckets(report);
        m.per_bucket = fresh.iter().filter_map(|n| Some((*n, *known.get(n)?))).collect();
        let arena = report["arena_bytes"].as_u64().unwrap_or(0);
        let shadow = report["shadow_bytes"].as_u64().unwrap_or(0);
        m.staging = Some(arena + shadow);
        m.kept = Some(0);
        m.method = if fresh.is_empty() {
            "no new bucket; a staged generation has an arena of its own, taken for as large as the \
             live one's, until the old one is retired"
        } else {
            "every bucket's plan is proven and sized in the live generation, captured or not; all \
             buckets share one arena, so the staged generation takes as much again until the old \
             one is retired"
        }
        .into();
        return m;
    }
    let largest = (r.buckets.last(), after.last());
    if let (Some(graph), (Some(old), Some(new))) = (r.graph_bytes, largest)
        && new != old
    {
        let scaled = (graph as f64 * f64::from(*new) / f64::from(*old)) as u64;
        m.kept = Some(scaled.saturating_sub(graph));
        m.method = format!(
            "the {graph} bytes that {} buckets up to {old} take now, scaled by the largest batch: \
             an upper bound, since workspace of the largest shape dominates and smaller buckets \
             share its pool",
            r.buckets.len()
        );
    } else if let Some(graph) = r.graph_bytes.filter(|_| fresh.is_empty()) {
        m.kept = Some(0);
        m.method = format!("no new bucket: captures take the {graph} bytes that they take now");
    } else {
        m.method = "this server does not tell what its captures take".into();
    }
    m
}

fn past_error(past: &[(u64, u64)]) -> String {
    let errors: Vec<f64> = past
        .iter()
        .filter(|(_, measured)| *measured > 0)
        .map(|(predicted, measured)| *predicted as f64 / *measured as f64 - 1.0)
        .collect();
    match errors.iter().copied().reduce(|a, b| if b.abs() > a.abs() { b } else { a }) {
        None => "no earlier change to compare with".into(),
        Some(worst) => {
            format!("off by at most {:+.0}% in {} earlier changes", 100.0 * worst, errors.len())
        }
    }
}

fn findings(target: &Target, r: &Readback, wishes: &[Wish], p: &Prediction) -> Vec<Finding> {
    let mut all = Vec::new();
    for wish in wishes {
        for rule in rules::about(r, &wish.name) {
            let live = target.launch == Launch::Live;
            let blocks = match rule.effect {
                Effect::Ambiguous => true,
                Effect::Restart => live,
                _ => false,
            };
            if rule.effect == Effect::Restart && !live {
                continue;
            }
            let mut words = rule.words.clone();
            if rule.effect == Effect::CodePath {
                words.push_str(&code_path(rule.thresholds.as_slice(), p));
            }
            all.push(Finding { id: rule.id.clone(), words, source: rule.source.clone(), blocks });
        }
        if r.settings.get(&wish.name).is_some_and(|s| s.value == wish.value) {
            all.push(own("no-change", format!("{} is {} already", wish.name, wish.value), true));
        }
        if r.kind == Kind::Lockstep {
            all.extend(knob_findings(target, r, wish));
        }
    }
    for name in rules::spoken_of(r.kind).filter(|n| !wishes.iter().any(|w| w.name == *n)) {
        let flag = format!("--{name}");
        if r.command.split([' ', '=']).any(|w| w == flag) {
            for rule in rules::about(r, name) {
                if matches!(rule.effect, Effect::Dead | Effect::Ambiguous | Effect::Deprecated) {
                    let (id, words, source) =
                        (rule.id.clone(), rule.words.clone(), rule.source.clone());
                    let finding = Finding { id, words, source, blocks: false };
                    if !all.contains(&finding) {
                        all.push(finding);
                    }
                }
            }
        }
    }
    all.extend(bucket_findings(r, wishes, p));
    all.extend(memory_findings(target, p));
    if target.launch == Launch::Unknown {
        let words = "how this server is started is unknown; say it in a target (launch.method)";
        all.push(own("launch-unknown", words.into(), true));
    }
    all
}

fn own(id: &str, words: String, blocks: bool) -> Finding {
    Finding { id: id.into(), words, source: "read back from the server".into(), blocks }
}

fn code_path(thresholds: &[u32], p: &Prediction) -> String {
    let fresh = p.new_buckets();
    let mut words = String::new();
    for threshold in thresholds {
        let (below, above): (Vec<u32>, Vec<u32>) =
            fresh.iter().copied().partition(|n| n <= threshold);
        // Writing to a String cannot fail.
        let _ = write!(
            words,
            " At a threshold of {threshold}: new buckets {below:?} fork, {above:?} do not."
        );
    }
    words
}

/// What the registry of our own knobs says.
fn knob_findings(target: &Target, r: &Readback, wish: &Wish) -> Vec<Finding> {
    let mut all = Vec::new();
    let Some(knob) = knobs::find(&wish.name) else {
        return all;
    };
    let live_too = ["decode.eager", "audit.rate"].contains(&knob.name);
    if target.launch == Launch::Live && knob.shapes == Shapes::Process && !live_too {
        let words =
            format!("{} is fixed for the life of the process: it needs a restart", knob.name);
        all.push(own("restart-only", words, true));
    }
    if target.launch == Launch::Live && target.config.is_none() {
        let words = "the server does not tell its settings file, or is on another machine: the \
                     next start will have the old value unless it is written there (--config)";
        all.push(own("not-written", words.into(), false));
    }
    let flag = format!("--{}", knob.flag);
    if target.launch == Launch::Live && r.command.split([' ', '=']).any(|w| w == flag) {
        let words = format!(
            "the command line that started this server has {flag}, which beats the settings file: \
             the next start will have the old value unless {flag} is changed or taken out there"
        );
        all.push(own("flag-beats-file", words, false));
    }
    if r.settings.get(knob.name).is_some_and(|s| s.source.as_deref() == Some("env")) {
        let words = format!(
            "{} comes from the environment, which beats the settings file: the next start will have the old value unless it is changed there",
            knob.name
        );
        all.push(own("environment-beats-file", words, false));
    }
    all
}

fn bucket_findings(r: &Readback, wishes: &[Wish], p: &Prediction) -> Vec<Finding> {
    let mut all = Vec::new();
    let wanted = |names: &[&str]| {
        let wish = wishes.iter().find(|w| names.contains(&w.name.as_str()))?;
        wish.value.parse::<u64>().ok()
    };
    let running = wanted(&["sched.max-running-requests", "max-running-requests", "max-num-seqs"]);
    if let (Some(running), Some(largest)) = (running.or(r.running_max), p.buckets_after.last())
        && running > u64::from(*largest)
    {
        all.push(Finding {
            id: "running-above-largest-bucket".into(),
            words: format!(
                "up to {running} sequences run and the largest captured bucket is {largest}: \
                 larger batches run eagerly, which is slower, so requests stay longer, batches \
                 grow, and the server can stay there"
            ),
            source: "SGLang #33483: 46 such transitions seen, none recovered".into(),
            blocks: false,
        });
    }
    let fresh = p.new_buckets();
    if !fresh.is_empty() && !p.buckets_before.is_empty() {
        let words = format!(
            "batches of {fresh:?} run eagerly now and will be captured: another path of the code, \
             which the gate must reach in every one of these buckets"
        );
        all.push(own("code-path", words, false));
    }
    let gone = without(&p.buckets_before, &p.buckets_after);
    if !gone.is_empty() && !p.buckets_after.is_empty() {
        let words = format!("batches of {gone:?} are captured now and will run eagerly or padded");
        all.push(own("buckets-lost", words, false));
    }
    all
}

fn memory_findings(target: &Target, p: &Prediction) -> Vec<Finding> {
    let wanted = p.memory.staging.or(p.memory.kept);
    let (Some(free), Some(wanted)) = (p.memory.free, wanted) else { return Vec::new() };
    let left = free.saturating_sub(wanted);
    if wanted > free || left < target.reserve_bytes {
        let words = format!(
            "{wanted} bytes are asked for, {free} are free and {} must stay free",
            target.reserve_bytes
        );
        return vec![own("memory-under-reserve", words, true)];
    }
    Vec::new()
}

impl Prediction {
    /// New captured buckets.
    pub fn new_buckets(&self) -> Vec<u32> {
        without(&self.buckets_after, &self.buckets_before)
    }

    /// Reasons why it cannot work.
    pub fn blockers(&self) -> Vec<String> {
        self.findings.iter().filter(|f| f.blocks).map(|f| f.words.clone()).collect()
    }

    /// For the record and `--json`.
    pub fn to_json(&self) -> Value {
        let settings: Vec<Value> = self
            .settings
            .iter()
            .map(|(name, from, source, to)| {
                json!({"name": name, "from": from, "source": source, "to": to})
            })
            .collect();
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|f| json!({"id": f.id, "words": f.words, "source": f.source, "blocks": f.blocks}))
            .collect();
        let per_bucket: serde_json::Map<String, Value> =
            self.memory.per_bucket.iter().map(|(n, b)| (n.to_string(), json!(b))).collect();
        json!({
            "settings": settings,
            "buckets": {"before": self.buckets_before, "after": self.buckets_after,
                        "new": self.new_buckets()},
            "memory": {
                "per_bucket_bytes": per_bucket, "staging_bytes": self.memory.staging,
                "kept_bytes": self.memory.kept, "free_bytes": self.memory.free,
                "method": self.memory.method, "past_error": self.memory.past_error,
            },
            "downtime": {"seconds": self.downtime_seconds, "method": self.downtime_method},
            "findings": findings,
        })
    }

    /// For people.
    pub fn page(&self) -> String {
        let mut p = String::new();
        for (name, from, source, to) in &self.settings {
            let from = from.as_deref().unwrap_or("(not told)");
            let source = source.as_ref().map_or(String::new(), |s| format!(" ({s})"));
            let _ = writeln!(p, "setting   {name}: {from}{source} -> {to}");
        }
        let fresh = self.new_buckets();
        if fresh.is_empty() {
            let _ = writeln!(p, "buckets   none new");
        } else {
            let list: Vec<String> = fresh.iter().map(u32::to_string).collect();
            let _ = writeln!(p, "buckets   {} new: {}", fresh.len(), list.join(" "));
        }
        let m = &self.memory;
        let mib = |b: Option<u64>| {
            b.map_or("unknown".into(), |b| format!("{:.1} MiB", b as f64 / f64::from(1 << 20)))
        };
        let (staging, kept, free) = (mib(m.staging), mib(m.kept), mib(m.free));
        let left = m.free.zip(m.staging.or(m.kept)).map(|(f, taken)| f.saturating_sub(taken));
        let _ = writeln!(
            p,
            "memory    {staging} while staged, {kept} more kept; {free} free here, {} then left",
            mib(left)
        );
        if !m.per_bucket.is_empty() {
            let one = |(n, b): (&u32, &u64)| format!("decode-{n} {}", mib(Some(*b)));
            let all: Vec<String> = m.per_bucket.iter().map(one).collect();
            let _ = writeln!(p, "          of the shared arena: {}", all.join(", "));
        }
        let _ = writeln!(p, "          method: {}", m.method);
        let _ = writeln!(p, "          past error: {}", m.past_error);
        let seconds = self.downtime_seconds.map_or("unknown".into(), |s| format!("{s:.1} s"));
        let _ = writeln!(p, "downtime  {seconds} ({})", self.downtime_method);
        for f in &self.findings {
            let sign = if f.blocks { "STOP" } else { "note" };
            let _ = writeln!(p, "{sign:<9} {}: {}\n          source: {}", f.id, f.words, f.source);
        }
        p
    }
}

#[cfg(test)]
mod tests;
