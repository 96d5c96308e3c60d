//! Stages with their needs, and the table that says how each ended.

use super::counts::Counts;
use crate::args::Stop;
use std::fmt::Write;
use std::time::Instant;

/// What a stage found: counts where it ran tests, a note where there is more to say.
#[derive(Debug, Default)]
pub struct Found {
    pub counts: Counts,
    pub note: String,
}

/// How a stage ended.
#[derive(Debug)]
enum End {
    Passed(Found),
    Failed(Found, String),
    NotRun(String),
}

/// A stage before it runs.
#[derive(Debug)]
pub struct Stage {
    name: &'static str,
    needs: &'static [&'static str],
    left_out: Option<String>,
}

impl Stage {
    pub fn new(name: &'static str) -> Stage {
        Stage { name, needs: &[], left_out: None }
    }

    /// Stages that must have passed.
    pub fn needs(mut self, needs: &'static [&'static str]) -> Stage {
        self.needs = needs;
        self
    }

    /// Runs only where `wanted`; else the table gives `why`.
    pub fn when(mut self, wanted: bool, why: &str) -> Stage {
        if !wanted {
            self.left_out = Some(format!("left out by {why}"));
        }
        self
    }
}

/// What has run so far.
#[derive(Debug, Default)]
pub struct Report {
    rows: Vec<Row>,
}

/// A stage that is over.
#[derive(Debug)]
struct Row {
    name: &'static str,
    end: End,
    seconds: f64,
}

impl Report {
    /// Runs a stage, unless it is left out or a stage that it needs has not passed.
    pub fn run(&mut self, stage: Stage, work: impl FnOnce() -> Result<Found, (Found, Stop)>) {
        let unmet = stage.needs.iter().find(|need| {
            !self.rows.iter().any(|r| r.name == **need && matches!(r.end, End::Passed(_)))
        });
        let end = match (stage.left_out, unmet) {
            (Some(why), _) => End::NotRun(why),
            (None, Some(need)) => End::NotRun(format!("needs '{need}', which has not passed")),
            (None, None) => {
                println!("\n== {}", stage.name);
                let start = Instant::now();
                let end = match work() {
                    Ok(found) => End::Passed(found),
                    Err((found, Stop::Failed(why) | Stop::Usage(why))) => {
                        eprintln!("{}: {why}", stage.name);
                        End::Failed(found, why)
                    }
                };
                let seconds = start.elapsed().as_secs_f64();
                self.rows.push(Row { name: stage.name, end, seconds });
                return;
            }
        };
        self.rows.push(Row { name: stage.name, end, seconds: 0.0 });
    }

    /// True where nothing failed and nothing is missing for want of a stage that failed. What was
    /// left out on the command line does not count against it.
    pub fn passed(&self) -> bool {
        !self.rows.is_empty()
            && self.rows.iter().all(|row| match &row.end {
                End::Passed(_) => true,
                End::Failed(..) => false,
                End::NotRun(why) => why.starts_with("left out"),
            })
    }

    /// The names of what failed.
    pub fn failures(&self) -> String {
        let failed: Vec<&str> = self
            .rows
            .iter()
            .filter(|row| matches!(row.end, End::Failed(..)))
            .map(|row| row.name)
            .collect();
        format!("failed: {}", failed.join(", "))
    }

    /// One row a stage.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{:<12} {:<8} {:>8} {:>8} {:>8} {:>9}  note\n",
            "stage", "result", "passed", "failed", "skipped", "seconds"
        );
        for Row { name, end, seconds } in &self.rows {
            let (word, found, note) = match end {
                End::Passed(found) => ("passed", Some(found), found.note.as_str()),
                End::Failed(found, why) => ("FAILED", Some(found), why.as_str()),
                End::NotRun(why) => ("not run", None, why.as_str()),
            };
            let number = |n: fn(&Counts) -> u64| match found {
                Some(found) if found.counts != Counts::default() => n(&found.counts).to_string(),
                _ => "-".into(),
            };
            let _ = writeln!(
                out,
                "{name:<12} {word:<8} {:>8} {:>8} {:>8} {seconds:>9.1}  {}",
                number(|c| c.passed),
                number(|c| c.failed),
                number(|c| c.skipped),
                note.lines().next().unwrap_or_default()
            );
        }
        out
    }

    /// The last line: the counts of all stages together.
    pub fn closing_line(&self) -> String {
        let total = self.rows.iter().fold(Counts::default(), |sum, row| match &row.end {
            End::Passed(found) | End::Failed(found, _) => sum.plus(found.counts),
            End::NotRun(_) => sum,
        });
        let seconds: f64 = self.rows.iter().map(|r| r.seconds).sum();
        let stages_not_run = self.rows.iter().filter(|r| matches!(r.end, End::NotRun(_))).count();
        format!(
            "test result: {}. {} passed; {} failed; {} ignored; {stages_not_run} stages not run; \
             {seconds:.0} s",
            if self.passed() { "ok" } else { "FAILED" },
            total.passed,
            total.failed,
            total.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(passed: u64) -> Found {
        Found { counts: Counts { passed, failed: 0, skipped: 0 }, note: String::new() }
    }

    #[test]
    fn a_failed_stage_fails_the_report_and_keeps_its_dependants_from_running() {
        let mut report = Report::default();
        report.run(Stage::new("a"), || Ok(found(2)));
        report.run(Stage::new("b").needs(&["a"]), || {
            Err((Found::default(), Stop::failed("it broke")))
        });
        report.run(Stage::new("c").needs(&["b"]), || unreachable!("its need failed"));
        assert!(!report.passed());
        let table = report.table();
        assert!(table.contains("FAILED") && table.contains("it broke"), "{table}");
        assert!(table.contains("needs 'b', which has not passed"), "{table}");
        assert_eq!(
            report.closing_line(),
            "test result: FAILED. 2 passed; 0 failed; 0 ignored; 1 stages not run; 0 s"
        );
        assert_eq!(report.failures(), "failed: b");
    }

    #[test]
    fn what_the_command_line_leaves_out_is_shown_and_does_not_fail() {
        let mut report = Report::default();
        report.run(Stage::new("a"), || Ok(found(1)));
        report.run(Stage::new("p").when(false, "--no-peer"), || unreachable!());
        assert!(report.passed());
        assert!(report.table().contains("left out by --no-peer"));
        assert!(report.closing_line().starts_with("test result: ok. 1 passed"));
    }

    #[test]
    fn an_empty_report_has_not_passed() {
        assert!(!Report::default().passed());
    }
}
