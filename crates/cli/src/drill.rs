//! `lockstep drill`.

use crate::args::DrillArgs;
use crate::exit::{Exit, Failure};
use crate::{out, overlap_race};
use lockstep_flow::settings::nearest;
use lockstep_sim::drill::{self, DRILLS, Drill, DrillError, Measured, measure};
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The command that makes the page again.
fn command(args: &DrillArgs, only: &[String]) -> String {
    let mut words = format!("lockstep drill --runs {}", args.runs);
    if args.seed != 1 {
        words += &format!(" --seed {}", args.seed);
    }
    only.iter().for_each(|name| words += &format!(" --only {name}"));
    words + " --markdown"
}

/// Runs drills and says what saw them.
pub fn run(args: &DrillArgs) -> Result<Exit, Failure> {
    let only: Vec<String> = args.only.iter().chain(&args.name).cloned().collect();
    if only.iter().any(|name| name == overlap_race::NAME) {
        if only.len() > 1 || args.list || args.svg.is_some() {
            let words = "overlap-race runs alone and is not drawn; --list without a name has it";
            return Err(Failure::new(Exit::Usage, words));
        }
        return overlap_race::run(args);
    }
    let chosen = choose(&only)?;
    if args.list {
        return list(&chosen, only.is_empty(), args.json);
    }
    if let Some(folder) = &args.svg {
        return pictures(&chosen, folder, args);
    }
    let measured = measure_all(&chosen, u64::from(args.runs), args.seed)?;
    if args.json {
        out::line(Value::Array(measured.iter().map(to_json).collect()));
    } else if args.markdown {
        out::line(drill::markdown(&measured, &command(args, &only)).trim_end());
    } else {
        out::line(drill::table(&measured).trim_end());
    }
    Ok(verdict(&measured))
}

/// What the process ends with. The report is out by now, and says it too: where machines read it
/// there is no second document.
fn verdict(measured: &[Measured]) -> Exit {
    let broken: Vec<&str> = measured.iter().filter(|m| !m.holds()).map(|m| m.drill.name).collect();
    if broken.is_empty() {
        return Exit::Done;
    }
    let words = "missed by every layer that is to see it, or its clean twin alarms";
    crate::out::complain(format_args!("lockstep: {}: {words}", broken.join(", ")));
    Exit::Missed
}

fn choose(only: &[String]) -> Result<Vec<Drill>, Failure> {
    if only.is_empty() {
        return Ok(DRILLS.to_vec());
    }
    let find = |name: &String| {
        DRILLS.iter().find(|d| d.name == name).copied().ok_or_else(|| {
            let names: Vec<&str> =
                DRILLS.iter().map(|d| d.name).chain([overlap_race::NAME]).collect();
            let near = nearest(name, names.iter().copied());
            let near = near.map(|n| format!(" did you mean '{n}'?")).unwrap_or_default();
            let names = names.join(", ");
            let message = format!("no drill is called '{name}';{near} there are: {names}");
            Failure::new(Exit::Usage, message)
        })
    };
    only.iter().map(find).collect()
}

fn list(chosen: &[Drill], is_whole: bool, json: bool) -> Result<Exit, Failure> {
    let drills = chosen.iter().map(|d| (d.name, d.corrupts, Some(d.seen_in)));
    // It runs apart from the others, and is in the list all the same.
    let apart = is_whole.then_some((overlap_race::NAME, overlap_race::CORRUPTS, None));
    let all = drills.chain(apart);
    if json {
        let entry = |(name, corrupts, seen_in): (&str, &str, Option<&str>)| json!({"name": name, "corrupts": corrupts, "seen_in": seen_in});
        out::line(Value::Array(all.map(entry).collect()));
    } else {
        let lines: Vec<String> =
            all.map(|(name, corrupts, _)| format!("{name:33} {corrupts}")).collect();
        out::page(&lines.join("\n"), 34);
    }
    Ok(Exit::Done)
}

fn pictures(chosen: &[Drill], folder: &Path, args: &DrillArgs) -> Result<Exit, Failure> {
    let failed = |path: &Path, e: std::io::Error| {
        Failure::new(Exit::Unexpected, format!("{} cannot be written: {e}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|e| failed(folder, e))?;
    let (mut written, mut lost) = (Vec::new(), None);
    for d in chosen {
        let Some(svg) = drill::picture(d, args.seed) else { continue };
        let path = folder.join(format!("{}.svg", d.name));
        if let Err(e) = std::fs::write(&path, svg) {
            lost = lost.or(Some(failed(&path, e)));
            continue;
        }
        match args.json {
            true => written.push(json!({"name": d.name, "path": path})),
            false => out::line(path.display()),
        }
    }
    if args.json {
        out::line(Value::Array(written));
        // The list is out by now: where machines read it there is no second document.
        if let Some(failure) = lost {
            out::complain(format_args!("lockstep: {}", failure.message));
            return Ok(failure.exit);
        }
        return Ok(Exit::Done);
    }
    lost.map_or(Ok(Exit::Done), Err)
}

/// Where a drill's result goes.
type Slot = Mutex<Option<Result<Measured, DrillError>>>;

/// Shares the drills among the cores; the order of the list stays.
fn measure_all(chosen: &[Drill], runs: u64, seed: u64) -> Result<Vec<Measured>, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Vec<Slot> = chosen.iter().map(|_| Mutex::new(None)).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..cores.min(chosen.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(d) = chosen.get(i) else { return };
                    let result = measure(d, runs, seed);
                    *results[i].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        show_progress(&done, chosen.len(), began);
    });
    let take = |r: Slot| {
        let result = r.into_inner().unwrap_or_else(PoisonError::into_inner);
        result
            .expect("every drill was measured")
            .map_err(|e| Failure::new(Exit::Unexpected, format!("a drill could not be run: {e}")))
    };
    results.into_iter().map(take).collect()
}

/// On a terminal, once it has taken two seconds.
fn show_progress(done: &AtomicUsize, total: usize, began: Instant) {
    let bar = indicatif::ProgressBar::hidden();
    bar.set_length(total as u64);
    let style = indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} drills");
    bar.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()));
    while done.load(Ordering::Relaxed) < total {
        std::thread::sleep(Duration::from_millis(50));
        if std::io::stderr().is_terminal() && began.elapsed() > Duration::from_secs(2) {
            if bar.is_hidden() {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            bar.set_position(done.load(Ordering::Relaxed) as u64);
        }
    }
    bar.finish_and_clear();
}

fn to_json(m: &Measured) -> Value {
    let rate = |n: u64, of: u64| if of == 0 { Value::Null } else { json!(n as f64 / of as f64) };
    let layer = |l: &drill::LayerResult| {
        json!({
            "layer": l.layer.name(),
            "runs": l.runs,
            "detected": l.detected,
            "rate": rate(l.detected, l.runs),
            "clean_twin_runs": l.clean_runs,
            "clean_twin_alarms": l.clean_alarms,
            "steps_to_detection": l.steps,
            "ms_to_detection": l.ms,
        })
    };
    json!({
        "name": m.drill.name,
        "corrupts": m.drill.corrupts,
        "seen_in": m.drill.seen_in,
        "caught_by": m.caught_by().iter().map(|l| l.name()).collect::<Vec<_>>(),
        "runs": m.runs,
        "detected": m.detected,
        "clean_twin_runs": m.clean_runs(),
        "clean_twin_alarms": m.clean_alarms(),
        "corrupted": m.corrupted,
        "steps_to_detection_at_default_rate": m.steps_at_default_rate,
        "left_to": m.drill.beyond,
        "holds": m.holds(),
        "seed": m.seed,
        "layers": m.layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(detected: u64) -> Measured {
        Measured {
            drill: DRILLS[0],
            seed: 1,
            runs: 2,
            detected,
            corrupted: None,
            layers: Vec::new(),
            steps_at_default_rate: None,
        }
    }

    /// `drill --json` once printed an error after its report: two documents on standard output.
    #[test]
    fn a_missed_drill_is_an_exit_code_and_no_second_document() {
        assert_eq!(verdict(&[measured(2)]), Exit::Done);
        assert_eq!(verdict(&[measured(2), measured(0)]), Exit::Missed);
    }
}
