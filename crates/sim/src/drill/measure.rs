//! Running a drill: each layer alone, over the same seeds, beside its clean twin.

use super::layer::Layer;
use super::list::Drill;
use crate::books;
use crate::explorer::Explorer;
use crate::scene::{Scene, SceneError};
use crate::strike::{Sabotage, Strike};
use core::fmt;
use lockstep_device::DeviceError;
use lockstep_device::lab::Raw;
use lockstep_flow::AuditPart;
use lockstep_plan::drill::{Drilled, PlanFault, overlapped};
use lockstep_plan::{StepPlan, pack, prove};
use lockstep_pool::PoolError;
use std::time::{Duration, Instant};

/// Random orders of one run of the explorer.
const ORDERS: u64 = 12;
/// Runs on threads of one run of that layer, and the longest delay around an edge.
const THREADED: u64 = 4;
const DELAY_US: u32 = 40;
/// The replay that is struck first: prefill is over and decode has begun.
const FIRST: u64 = 6;
/// At the default audit rate: one step in this many.
const DEFAULT_RATE: u32 = 1000;

/// Why a drill could not be run.
#[derive(Debug)]
pub enum DrillError {
    /// The explorer's device.
    Device(DeviceError),
    /// The engine's scene.
    Scene(SceneError),
    /// The pool refused a run without a fault.
    Pool(PoolError),
}

impl fmt::Display for DrillError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DrillError::Device(e) => e.fmt(f),
            DrillError::Scene(e) => e.fmt(f),
            DrillError::Pool(e) => write!(f, "the pool without a fault: {e}"),
        }
    }
}

impl core::error::Error for DrillError {}

impl From<DeviceError> for DrillError {
    fn from(e: DeviceError) -> DrillError {
        DrillError::Device(e)
    }
}

impl From<SceneError> for DrillError {
    fn from(e: SceneError) -> DrillError {
        DrillError::Scene(e)
    }
}

/// How one run of a layer went.
#[derive(Clone, Copy, Default, Debug)]
struct Run {
    /// The fault was in place.
    struck: bool,
    /// Steps (for the explorer: orders) and time to the alarm.
    alarm: Option<(u64, Duration)>,
}

/// What a layer made of a drill.
#[derive(Clone, Debug)]
pub struct LayerResult {
    /// The layer.
    pub layer: Layer,
    /// Runs in which the fault was in place.
    pub runs: u64,
    /// Of those, with an alarm.
    pub detected: u64,
    /// Runs of the clean twin.
    pub clean_runs: u64,
    /// Of those, with an alarm.
    pub clean_alarms: u64,
    /// Median steps to the alarm: orders for explorer and threads, steps for lease and audit; 0 for
    /// the prover, which alarms before anything runs.
    pub steps: Option<u64>,
    /// Median time to the alarm, in milliseconds.
    pub ms: Option<f64>,
}

/// What all layers made of a drill.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The drill.
    pub drill: Drill,
    /// The first seed.
    pub seed: u64,
    /// Seeds.
    pub runs: u64,
    /// Seeds for which some layer alarmed.
    pub detected: u64,
    /// Of the seeds that the engine served, those whose clients saw other tokens or
    /// log-probabilities than those of the clean twin, with the audit off.
    pub corrupted: Option<u64>,
    /// By layer that was asked.
    pub layers: Vec<LayerResult>,
    /// Steps from the strike to the audit's first alarm at the default rate, for the first seed,
    /// where it came within about 2,400 steps.
    pub steps_at_default_rate: Option<u64>,
}

impl Measured {
    /// Layers that alarmed.
    pub fn caught_by(&self) -> Vec<Layer> {
        self.layers.iter().filter(|l| l.detected > 0).map(|l| l.layer).collect()
    }

    /// Alarms of clean twins, over all layers.
    pub fn clean_alarms(&self) -> u64 {
        self.layers.iter().map(|l| l.clean_alarms).sum()
    }

    /// Runs of clean twins, over all layers.
    pub fn clean_runs(&self) -> u64 {
        self.layers.iter().map(|l| l.clean_runs).sum()
    }

    /// True where a layer that is to see the fault sees it, and no clean twin alarms.
    pub fn holds(&self) -> bool {
        self.clean_alarms() == 0 && (self.detected > 0 || self.drill.beyond.is_some())
    }
}

/// Runs a drill over `runs` seeds from `seed` on.
///
/// # Errors
/// Something failed that the drill has not broken.
pub fn measure(drill: &Drill, runs: u64, seed: u64) -> Result<Measured, DrillError> {
    let seeds: Vec<u64> = (0..runs).map(|i| seed.wrapping_add(i)).collect();
    let mut hit = vec![false; seeds.len()];
    let mut layers = Vec::new();
    if let Some(fault) = drill.plan {
        let plan = overlapped(3, 4, 8);
        for layer in [Layer::Prover, Layer::Explorer, Layer::Threads] {
            let mut struck = |i: usize| of_plan(layer, Some(fault), &plan, seeds[i]);
            let faulty = (0..seeds.len()).map(&mut struck).collect::<Result<Vec<_>, _>>()?;
            let clean = seeds.iter().map(|s| of_plan(layer, None, &plan, *s));
            layers.push(sum(layer, &faulty, &clean.collect::<Result<Vec<_>, _>>()?, &mut hit));
        }
    }
    if let Some(fault) = drill.books {
        let run = |fault, seed| {
            let began = Instant::now();
            let refusal = books::run(fault, seed).map_err(DrillError::Pool)?;
            let alarm = refusal.steps.map(|steps| (steps, began.elapsed()));
            Ok::<Run, DrillError>(Run { struck: refusal.struck, alarm })
        };
        let faulty = seeds.iter().map(|s| run(Some(fault), *s)).collect::<Result<Vec<_>, _>>()?;
        let clean = seeds.iter().map(|s| run(None, *s)).collect::<Result<Vec<_>, _>>()?;
        layers.push(sum(Layer::Lease, &faulty, &clean, &mut hit));
    }
    let mut measured = Measured {
        drill: *drill,
        seed,
        runs,
        detected: 0,
        corrupted: None,
        layers,
        steps_at_default_rate: None,
    };
    if let Some(strike) = drill.strike {
        of_engine(strike(), &seeds, &mut measured, &mut hit)?;
    }
    measured.detected = hit.iter().filter(|h| **h).count() as u64;
    Ok(measured)
}

fn sum(layer: Layer, faulty: &[Run], clean: &[Run], hit: &mut [bool]) -> LayerResult {
    let mut alarms: Vec<(u64, Duration)> = Vec::new();
    for (run, hit) in faulty.iter().zip(hit).filter(|(r, _)| r.struck) {
        alarms.extend(run.alarm);
        *hit |= run.alarm.is_some();
    }
    let detected = alarms.len() as u64;
    let steps = median(alarms.iter().map(|a| a.0).collect());
    let ms = median(alarms.iter().map(|a| a.1.as_micros() as u64).collect());
    LayerResult {
        layer,
        runs: faulty.iter().filter(|r| r.struck).count() as u64,
        detected,
        clean_runs: clean.len() as u64,
        clean_alarms: clean.iter().filter(|r| r.alarm.is_some()).count() as u64,
        steps,
        ms: ms.map(|us| us as f64 / 1000.0),
    }
}

fn median(mut of: Vec<u64>) -> Option<u64> {
    of.sort_unstable();
    of.get(of.len() / 2).copied()
}

/// One run of a layer that looks at plans; without a fault, its clean twin.
fn of_plan(
    layer: Layer,
    fault: Option<PlanFault>,
    plan: &StepPlan,
    seed: u64,
) -> Result<Run, DrillError> {
    let drilled = match fault {
        None => Some(Drilled { plan: plan.clone(), packing: pack(plan), spot: String::new() }),
        Some(fault) => fault.seed(plan, seed),
    };
    let Some(drilled) = drilled else { return Ok(Run::default()) };
    let began = Instant::now();
    if layer == Layer::Prover {
        let refused = prove(drilled.plan, drilled.packing).is_err();
        let alarm = refused.then(|| (0, began.elapsed()));
        return Ok(Run { struck: fault.is_some(), alarm });
    }
    // A plan whose lanes wait for each other has no order to run in: both see that at once.
    let lies = fault == Some(PlanFault::UndeclaredScratch);
    let kernels = lies.then(|| plan.clone());
    let stuck = lockstep_plan::explore::Extension::random(&drilled.plan, 1, 0).is_none();
    let mut alarm = stuck.then(|| (1, began.elapsed()));
    if !stuck {
        let raw = Raw { plan: drilled.plan, packing: drilled.packing, kernels };
        let mut explorer = Explorer::new(raw)?;
        let tries = if layer == Layer::Explorer { ORDERS } else { THREADED };
        for i in 0..tries {
            let order = seed.wrapping_mul(tries).wrapping_add(i);
            let differs = match layer {
                Layer::Explorer => explorer.differs(order)?,
                _ => explorer.threads_differ(order, DELAY_US)?,
            };
            if differs == Some(true) {
                alarm = Some((i + 1, began.elapsed()));
                break;
            }
        }
    }
    Ok(Run { struck: fault.is_some(), alarm })
}

fn of_weights(strike: &Strike) -> bool {
    matches!(strike, Strike::WeightBit | Strike::WeightRepacked)
}

fn scene(strike: &Strike, seed: u64, on: bool) -> Scene {
    let lanes = matches!(strike, Strike::Plan(_));
    let sabotage = Sabotage {
        strike: strike.clone(),
        first: FIRST,
        times: u64::MAX,
        seed,
        per_million: crate::EVERY_STEP,
    };
    let once = matches!(
        strike,
        Strike::PageBit | Strike::WeightBit | Strike::WeightRepacked | Strike::StrayWrite
    );
    let times = if once { 1 } else { u64::MAX };
    Scene {
        seed,
        lanes,
        ties: *strike == Strike::TiesByArrival,
        sabotage: on.then_some(Sabotage { times, ..sabotage }),
        until_found: false,
        ..Scene::default()
    }
}

/// The audit's parts, each alone, on an engine that serves; and what clients would have seen
/// without it.
fn of_engine(
    strike: Strike,
    seeds: &[u64],
    measured: &mut Measured,
    hit: &mut [bool],
) -> Result<(), DrillError> {
    let mut corrupted = 0;
    let mut engine = (Vec::new(), Vec::new());
    for &seed in seeds {
        let off = |on| Scene { audit_rate: 0, ..scene(&strike, seed, on) }.play();
        let (clean, faulty) = (off(false)?, off(true)?);
        corrupted += u64::from(faulty.strikes > 0 && faulty.seen != clean.seen);
        let run = |o: &crate::Outcome| Run {
            struck: o.strikes > 0,
            alarm: (!o.failures.is_empty()).then_some((o.steps.saturating_sub(FIRST), o.took)),
        };
        engine.0.push(run(&faulty));
        engine.1.push(run(&clean));
    }
    measured.corrupted = Some(corrupted);
    // One clean twin with every part on: whichever alarms, alarms.
    let clean = seeds.iter().map(|s| scene(&strike, *s, false).play());
    let clean = clean.collect::<Result<Vec<_>, _>>()?;
    for part in AuditPart::ALL {
        let run = |o: &crate::Outcome| {
            let finding = o.findings.iter().find(|f| f.part == part);
            Run { struck: o.strikes > 0, alarm: finding.map(|f| (f.steps, f.after)) }
        };
        let alone = |seed: &u64| {
            let alone =
                Scene { parts: Some(part), until_found: true, ..scene(&strike, *seed, true) };
            // The sweep over weights takes its time beside steps.
            let swept = part == AuditPart::Weights && of_weights(&strike);
            let alone = if swept { Scene { requests: 12, tokens: 900, ..alone } } else { alone };
            Ok::<Run, DrillError>(run(&alone.play()?))
        };
        let faulty = seeds.iter().map(alone).collect::<Result<Vec<_>, _>>()?;
        let clean: Vec<Run> = clean.iter().map(run).collect();
        measured.layers.push(sum(Layer::Audit(part), &faulty, &clean, hit));
    }
    measured.layers.push(sum(Layer::Engine, &engine.0, &engine.1, hit));
    let audited =
        measured.layers.iter().any(|l| matches!(l.layer, Layer::Audit(_)) && l.detected > 0);
    if audited {
        // Long enough for the default rate to come round.
        let long = Scene {
            audit_rate: DEFAULT_RATE,
            until_found: true,
            requests: 12,
            tokens: 600,
            ..scene(&strike, measured.seed, true)
        };
        measured.steps_at_default_rate = long.play()?.findings.iter().map(|f| f.steps).min();
    }
    Ok(())
}
