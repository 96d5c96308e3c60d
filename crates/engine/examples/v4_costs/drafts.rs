//! What drafts are worth on turns of the model's sessions.

use crate::bench::{Bench, Setting, sessions};
use lockstep_engine::LoopTurn;
use lockstep_flow::Token;
use std::path::Path;
use std::time::{Duration, Instant};

/// Turns that are played.
const TURNS: usize = 24;
/// Tokens of a prompt, at most: first turns.
const PROMPT_MAX: usize = 700;
/// Tokens of a turn, at least.
const TURN_MIN: usize = 30;

/// Plays the turns at each number of rows with each number of drafts.
pub fn run(folder: &Path, threads: u32, rows: &[u32]) {
    let turns = |s: &crate::bench::Session| -> Option<Vec<Token>> {
        let fits = |t: &&(usize, usize)| t.0 <= PROMPT_MAX && t.1 - t.0 >= TURN_MIN;
        s.turns.iter().find(fits).map(|t| s.ids[..t.0].to_vec())
    };
    let prompts: Vec<_> = sessions(folder).iter().filter_map(turns).take(TURNS).collect();
    println!("{} turns, {threads} threads\n", prompts.len());
    println!(
        "| rows | drafts a step | tok/s | steps | ms a step | tokens a row and step \
         | right of checked | eager |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for &running in rows {
        for drafts in 0..=4 {
            let setting = Setting { running, context: 1024, drafts, prefix_cache: true };
            let mut bench = Bench::new(folder, threads, setting);
            // Once for the prefix cache, the pages and the arenas.
            play(&mut bench, &prompts);
            let p = play(&mut bench, &prompts);
            println!(
                "| {running} | {drafts} | {:.0} | {} | {:.2} | {:.2} | {} of {} ({:.1}%) | {} |",
                p.tokens as f64 / p.took.as_secs_f64(),
                p.steps,
                1e3 * p.took.as_secs_f64() / p.steps.max(1) as f64,
                p.tokens as f64 / (p.steps * u64::from(running)) as f64,
                p.right,
                p.checked,
                100.0 * p.right as f64 / p.checked.max(1) as f64,
                p.eager,
            );
        }
    }
}

/// Steps that decoded on every row and did nothing else, and the drafts of all steps.
#[derive(Default)]
struct Played {
    steps: u64,
    tokens: u64,
    took: Duration,
    checked: u64,
    right: u64,
    /// Of the steps, those that no captured plan held.
    eager: u64,
}

fn play(bench: &mut Bench, prompts: &[Vec<Token>]) -> Played {
    for prompt in prompts {
        bench.submit(prompt.clone(), 200, false);
    }
    let begun = bench.counters();
    let mut played = Played::default();
    let mut before = begun;
    loop {
        let running = bench.handle.status().running;
        let began = Instant::now();
        if bench.turn() != LoopTurn::Stepped {
            break;
        }
        let (took, after) = (began.elapsed(), bench.counters());
        let decoded = after.decode_steps > before.decode_steps;
        if decoded && running == bench.setting.running {
            played.steps += 1;
            played.tokens += after.generated_tokens - before.generated_tokens;
            played.took += took;
            let captured = after.decode_steps_captured - before.decode_steps_captured;
            played.eager += u64::from(captured == 0);
        }
        before = after;
    }
    played.checked = before.drafted_tokens - begun.drafted_tokens;
    played.right = before.accepted_tokens - begun.accepted_tokens;
    played
}
