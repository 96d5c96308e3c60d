//! `lockstep drill overlap-race`: the bug that this project was started by, shown and closed.

use crate::args::DrillArgs;
use crate::exit::{Exit, Failure};
use crate::{build, out, resolve};
use indicatif::{ProgressBar, ProgressStyle};
use lockstep_flow::Token;
use lockstep_model::Model;
use lockstep_sim::race::{Answer, Race, RaceOutcome, Session, verdict};
use lockstep_text::TextModel;
use lockstep_weights::Checkpoint;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

/// Its name on the command line.
pub const NAME: &str = "overlap-race";
/// What it corrupts, in the list of drills.
pub const CORRUPTS: &str =
    "answers of concurrent sessions of the model recall, by overlapping lanes (runs alone)";
/// Sessions side by side.
const AT_ONCE: u32 = 8;
/// Hazards that are shown.
const HAZARDS_SHOWN: usize = 2;

/// One half of the drill, counted.
struct Half {
    sessions: usize,
    answers: usize,
    altered: usize,
    altered_sessions: usize,
    /// Altered answers that differ from the right one in nothing but codes.
    fluent: usize,
    /// Answers that never came.
    failed: usize,
    steps: u64,
    overlapped: u64,
    /// A session's name with the right answer and what came, fluent ones first.
    example: Option<(String, String, String)>,
}

/// Runs it.
pub fn run(args: &DrillArgs) -> Result<Exit, Failure> {
    let folder = resolve::recall(crate::store).ok_or_else(resolve::no_recall)?;
    let checkpoint = Arc::new(Checkpoint::open(&folder).map_err(bad)?);
    let text = build::open_text(&checkpoint)?;
    let sessions = sessions(&folder, args.sessions as usize)?;
    let model = || Model::new(Arc::clone(&checkpoint)).map_err(bad);
    let turns: usize = sessions.iter().map(|s| s.turns.len()).sum();
    let bar = ProgressBar::new(2 * turns as u64);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} answers {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let race = |by_issue_order| Race {
        seed: args.seed,
        at_once: AT_ONCE,
        odds: args.one_in,
        by_issue_order,
    };
    let half = |by_issue_order| {
        let before = bar.position();
        if !std::io::stderr().is_terminal() {
            let how = if by_issue_order { "packed by issue order, bypassed" } else { "as shipped" };
            out::complain(format_args!("{turns} answers, {how} ..."));
        }
        let mut progress = |done| bar.set_position(before + done);
        let outcome = race(by_issue_order).play(model()?, &sessions, &mut progress);
        Ok::<Half, Failure>(count(&sessions, &outcome.map_err(unexpected)?, &text))
    };
    let (faulty, shipped) = (half(true)?, half(false)?);
    bar.finish_and_clear();
    let hazards = verdict(&model()?, &race(true)).map_err(unexpected)?;
    let shown = hazards.iter().take(HAZARDS_SHOWN).map(ToString::to_string).collect();
    let report = Report {
        seed: args.seed,
        one_in: args.one_in,
        bad: faulty,
        shipped,
        hazards: hazards.len(),
        shown,
    };
    if args.json {
        out::line(report.to_json());
    } else if args.markdown {
        out::line(report.markdown().trim_end());
    } else {
        out::line(report.text().trim_end());
    }
    if report.holds() {
        return Ok(Exit::Done);
    }
    let words = "overlap-race: the bad plan altered nothing or was not refused, or the shipped \
                 plan altered an answer";
    Err(Failure::new(Exit::Missed, words))
}

fn bad(e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::BadModel, e)
}

fn unexpected(e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Unexpected, format!("the drill could not be run: {e}"))
}

/// The first sessions of the model's own, spread over the file so that long ones are among them.
fn sessions(folder: &Path, count: usize) -> Result<Vec<Session>, Failure> {
    let path = folder.join("cases.jsonl");
    let wrong = |what: &str| bad(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(&e.to_string()))?;
    let lines: Vec<&str> = text.lines().collect();
    let count = count.min(lines.len());
    let chosen = (0..count).map(|i| lines[i * lines.len() / count.max(1)]);
    chosen
        .map(|line| session(line).ok_or_else(|| wrong("not sessions with ids and turns")))
        .collect()
}

fn session(line: &str) -> Option<Session> {
    let value: Value = serde_json::from_str(line).ok()?;
    let id = |v: &Value| Some(Token(u32::try_from(v.as_u64()?).ok()?));
    let ids = value["ids"].as_array()?.iter().map(id).collect::<Option<Vec<Token>>>()?;
    let turn = |v: &Value| {
        let at = |key: &str| usize::try_from(v[key].as_u64()?).ok();
        let (start, end) = (at("start")?, at("end")?);
        (0 < start && start < end && end <= ids.len()).then_some(start..end)
    };
    let turns = value["turns"].as_array()?.iter().map(turn).collect::<Option<Vec<_>>>()?;
    let name = value["id"].as_str()?.to_string();
    Some(Session { name, ids, turns })
}

fn count(sessions: &[Session], outcome: &RaceOutcome, text: &TextModel) -> Half {
    let right = |a: &Answer| sessions[a.session].answer(a.turn);
    let altered = |a: &&Answer| a.failure.is_none() && a.tokens != right(a);
    let words = |tokens: &[Token]| text.decode(tokens, false);
    let fluent = |a: &&Answer| skeleton(&words(&a.tokens)) == skeleton(&words(right(a)));
    let all: Vec<&Answer> = outcome.answers.iter().filter(altered).collect();
    let mut of_sessions: Vec<usize> = all.iter().map(|a| a.session).collect();
    of_sessions.dedup();
    let example = all.iter().find(|a| fluent(a)).or(all.first()).map(|a| {
        let name = format!("{}, turn {}", sessions[a.session].name, a.turn + 1);
        (name, words(right(a)), words(&a.tokens))
    });
    Half {
        sessions: sessions.len(),
        answers: outcome.answers.len(),
        altered: all.len(),
        altered_sessions: of_sessions.len(),
        fluent: all.iter().filter(|a| fluent(a)).count(),
        failed: outcome.answers.iter().filter(|a| a.failure.is_some()).count(),
        steps: outcome.steps,
        overlapped: outcome.overlapped,
        example,
    }
}

/// A text with its codes (runs of capitals and digits) taken out: what is left says whether it
/// reads as an answer of the model at all.
fn skeleton(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        let code = c.is_ascii_uppercase() || c.is_ascii_digit();
        match (code, out.ends_with('#')) {
            (true, true) => {}
            (true, false) => out.push('#'),
            (false, _) => out.push(c),
        }
    }
    out
}

/// The greatest rate of altered answers that 0 of `n` leaves possible, at 95%: the exact
/// (Clopper-Pearson) bound.
fn bound(n: usize) -> f64 {
    if n == 0 { 1.0 } else { 1.0 - 0.05f64.powf(1.0 / n as f64) }
}

/// What both halves came to, and the prover's words.
struct Report {
    seed: u64,
    one_in: u32,
    bad: Half,
    shipped: Half,
    hazards: usize,
    shown: Vec<String>,
}

impl Report {
    fn holds(&self) -> bool {
        let s = &self.shipped;
        self.bad.altered > 0 && self.hazards > 0 && s.altered + s.failed == 0 && s.answers > 0
    }

    fn lines(half: &Half) -> String {
        format!(
            "{} of {} answers altered, in {} of {} sessions; {} of them are fluent, wrong in codes \
             alone; {} failed; lanes overlapped in {} of {} steps",
            half.altered,
            half.answers,
            half.altered_sessions,
            half.sessions,
            half.fluent,
            half.failed,
            half.overlapped,
            half.steps,
        )
    }

    fn text(&self) -> String {
        let mut out = format!(
            "overlap-race, seed {}: {AT_ONCE} sessions of the recall model at once, greedy\n\n\
             arena packed by issue order, nothing proven:\n  {}\n",
            self.seed,
            Report::lines(&self.bad)
        );
        if let Some((name, right, came)) = &self.bad.example {
            let _ =
                writeln!(out, "  for example {name}\n    right: {right:?}\n    came:  {came:?}");
        }
        let _ = writeln!(out, "\nas shipped, overlap on:\n  {}", Report::lines(&self.shipped));
        if self.shipped.altered == 0 {
            let most = 100.0 * bound(self.shipped.answers);
            let n = self.shipped.answers;
            let _ = writeln!(out, "  0 in {n}: the rate is below {most:.2}% (95%, exact)");
        }
        let _ = writeln!(out, "\nthe prover on the bad plan: {} hazards, among them", self.hazards);
        for words in &self.shown {
            let _ = writeln!(out, "  {words}");
        }
        out
    }

    fn markdown(&self) -> String {
        let mut out = format!(
            "## The bug that started this, reproduced and closed\n\n\
             `lockstep drill {NAME} --sessions {} --seed {} --one-in {}`: the tool-calling recall model \
             (DeepSeek-V4's architecture, top-16 of its compressed rows), {AT_ONCE} sessions at \
             once, each turn greedy after the right history, on the product's engine and kernels. \
             One decode step in {} runs the plan's six lanes in a random order that its edges \
             allow; prefill never does. A session alone fits no window: what is asked for lies at \
             least 160 tokens back, among more rows than are selected.\n\n\
             | arena | answers | altered | of them fluent | failed | sessions touched | steps with overlap |\n\
             |---|---|---|---|---|---|---|\n",
            self.bad.sessions, self.seed, self.one_in, self.one_in
        );
        let halves =
            [("packed by issue order, unproven", &self.bad), ("as shipped", &self.shipped)];
        for (name, h) in halves {
            let _ = writeln!(
                out,
                "| {name} | {} | {} | {} | {} | {} of {} | {} of {} |",
                h.answers,
                h.altered,
                h.fluent,
                h.failed,
                h.altered_sessions,
                h.sessions,
                h.overlapped,
                h.steps
            );
        }
        let n = self.shipped.answers;
        let _ = writeln!(
            out,
            "\nAs shipped: {} in {n}; 0 in {n} bounds the rate below {:.2}% (95%, exact). *Fluent*: \
             the answer differs from the right one in codes alone, so that nothing but the right \
             answer gives it away.",
            self.shipped.altered,
            100.0 * bound(n)
        );
        if let Some((name, right, came)) = &self.bad.example {
            let _ = writeln!(
                out,
                "\nFor example {name}. Right:\n\n```\n{}\n```\n\nCame:\n\n```\n{}\n```",
                right.trim(),
                came.trim()
            );
        }
        let _ = writeln!(
            out,
            "\nThe prover refuses that plan with {} hazards before anything runs, among them:\n",
            self.hazards
        );
        for words in &self.shown {
            let _ = writeln!(out, "- {words}");
        }
        out
    }

    fn to_json(&self) -> Value {
        let half = |h: &Half| {
            json!({
                "sessions": h.sessions,
                "answers": h.answers,
                "altered": h.altered,
                "altered_sessions": h.altered_sessions,
                "fluent": h.fluent,
                "failed": h.failed,
                "steps": h.steps,
                "overlapped_steps": h.overlapped,
                "example": h.example.as_ref().map(|(name, right, came)| {
                    json!({"session": name, "right": right, "came": came})
                }),
            })
        };
        let shipped = &self.shipped;
        let clean = shipped.altered + shipped.failed == 0;
        json!({
            "name": NAME,
            "seed": self.seed,
            "at_once": AT_ONCE,
            "one_step_in": self.one_in,
            "packed_by_issue_order": half(&self.bad),
            "as_shipped": half(shipped),
            "as_shipped_rate_below": clean.then(|| bound(shipped.answers)),
            "prover": {"hazards": self.hazards, "first": self.shown},
            "holds": self.holds(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skeleton_keeps_everything_but_codes() {
        assert_eq!(skeleton("48GH is XDW6DHYD, receipt GXKK."), "# is #, receipt #.");
        assert_eq!(skeleton("9H is XD."), skeleton("48GH is Q."));
        assert_ne!(skeleton("48GH is X."), skeleton("48GH was X."));
    }

    #[test]
    fn the_bound_of_no_failure_is_exact() {
        assert!((bound(1) - 0.95).abs() < 1e-12);
        assert!((bound(59) - 0.0495).abs() < 1e-4, "the rule of 59");
        assert!((1.0 - bound(700)).powi(700) - 0.05 < 1e-9);
    }
}
