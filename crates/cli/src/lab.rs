//! The laboratory of a build with the feature `lab`: a server that does something wrong on purpose,
//! over real HTTP, and says so wherever it can be asked.

use crate::args::KnobFlags;
use crate::exit::{Exit, Failure};
use crate::out;
use lockstep_device::Device;
use lockstep_engine::{Draft, Handle, KnobChange, Submission};
use lockstep_flow::generation::{GenerationError, StageMode};
use lockstep_flow::status::{DeviceFacts, LabFault};
use lockstep_flow::{EngineStatus, Micros, Refusal, RequestId, Settings, Ticket, knobs};
use lockstep_serve::Engine;
use lockstep_sim::drill::{DRILLS, Drill, FaultyDraft, Often};
use lockstep_sim::{EVERY_STEP, StrikeLog};
use std::sync::{Arc, OnceLock};

/// This binary can do something wrong on purpose.
pub const BUILT: bool = true;

/// The word that lists the drills instead of naming one.
const LIST: &str = "list";
/// The knob of the audit's rate.
const AUDIT_RATE: &str = "audit.rate";

/// Flags of `serve`.
#[derive(clap::Args, Clone, Debug)]
pub struct LabArgs {
    /// Do what this drill does, while serving; `list` shows those that can be
    #[arg(long, value_name = "NAME")]
    pub lab_drill: Option<String>,
    /// The probability with which a step is hit, up to 1
    #[arg(long, value_name = "P", default_value = "1", value_parser = per_million, requires = "lab_drill")]
    pub lab_rate: u32,
    /// Steps that are hit, at most
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true, requires = "lab_drill")]
    pub lab_times: u64,
    /// Hit steps only while this generation or a later one serves, as a fault of a change does
    #[arg(long, value_name = "N", requires = "lab_drill")]
    pub lab_from_generation: Option<u64>,
    /// Chooses the steps, and where in them it hits
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub lab_seed: u64,
    /// With `off` nothing is audited, so that only clients can notice
    #[arg(long, value_name = "WORD", default_value = "on", value_parser = ["on", "off"])]
    pub lab_audit: String,
    /// Hand the prover plans with this drill's fault for every staged generation
    #[arg(long, value_name = "NAME")]
    pub lab_draft: Option<String>,
}

fn per_million(written: &str) -> Result<u32, String> {
    let wrong = || format!("'{written}' is no probability from 0.000001 to 1");
    let p: f64 = written.parse().map_err(|_| wrong())?;
    if !(1e-6..=1.0).contains(&p) {
        return Err(wrong());
    }
    Ok((p * f64::from(EVERY_STEP)).round() as u32)
}

/// What is done wrong.
pub struct Lab {
    drill: Option<Drill>,
    draft: Option<Drill>,
    often: Often,
    from: Option<u64>,
    log: OnceLock<Arc<StrikeLog>>,
}

impl Lab {
    /// What the flags ask for, with the knobs that come of them; `None` where they only asked for
    /// the list.
    ///
    /// # Errors
    /// A drill that does not exist or has no form in a server.
    pub fn of(args: &LabArgs, flags: &KnobFlags) -> Result<Option<(Lab, KnobFlags)>, Failure> {
        if args.lab_drill.as_deref() == Some(LIST) {
            list();
            return Ok(None);
        }
        let drill = args.lab_drill.as_deref().map(find).transpose()?;
        if let Some(Err(why)) = drill.map(|d| d.in_serving()) {
            let name = args.lab_drill.as_deref().unwrap_or_default();
            return Err(usage(format!("--lab-drill {name}: {why}; {}", there_are(can_serve))));
        }
        let draft = args.lab_draft.as_deref().map(find).transpose()?;
        if let Some(d) = draft.filter(|d| !can_draft(d)) {
            let why = "the prover is given no form of it that it could refuse";
            return Err(usage(format!("--lab-draft {}: {why}; {}", d.name, there_are(can_draft))));
        }
        let mut flags = flags.clone();
        if args.lab_audit == "off" {
            if flags.0.iter().any(|(knob, _)| knob.name == AUDIT_RATE) {
                return Err(usage("--lab-audit off and --audit-rate exclude each other".into()));
            }
            // Canary steps on a device that is wrong would notice too.
            for (name, value) in [(AUDIT_RATE, "0"), ("generations.verify-first", "false")] {
                let knob = knobs::find(name).expect("the registry has what a lab turns off");
                flags.0.push((knob, value.into()));
            }
        }
        let often =
            Often { per_million: args.lab_rate, times: args.lab_times, seed: args.lab_seed };
        banner(drill.as_ref(), draft.as_ref(), often, &args.lab_audit);
        let from = args.lab_from_generation;
        Ok(Some((Lab { drill, draft, often, from, log: OnceLock::new() }, flags)))
    }

    /// The device, with the drill's fault in it. It stays well until [`Lab::begin`].
    ///
    /// # Errors
    /// As the device's own, and a device that no drill has a form for.
    pub fn open(&self, settings: &Settings) -> Result<(Box<dyn Device>, DeviceFacts), Failure> {
        let Some(drill) = &self.drill else { return crate::device::open(settings) };
        if settings.text("device.kind") == "cuda" {
            return Err(usage("--lab-drill runs on --device cpu alone".into()));
        }
        let (device, facts) = crate::device::cpu(settings)?;
        let device = drill.serve_on(device, self.often).map_err(|why| usage(why.into()))?;
        let _ = self.log.set(device.log());
        Ok((Box::new(device), facts))
    }

    /// Who makes the plans, where that is to go wrong.
    pub fn draft(&self) -> Option<Arc<dyn Draft>> {
        let fault = self.draft.as_ref()?.plan?;
        Some(Arc::new(FaultyDraft { fault, seed: self.often.seed }))
    }

    /// An engine whose status says what is done wrong.
    pub fn attend(&self, engine: Arc<Handle>) -> Arc<dyn Engine> {
        let (Some(drill), Some(log)) = (&self.drill, self.log.get()) else { return engine };
        let (drill, per_million, log) = (drill.name, self.often.per_million, log.clone());
        Arc::new(LabEngine { inner: engine, drill, per_million, from: self.from, log })
    }

    /// From here on the fault is there.
    pub fn begin(&self) {
        if let Some(log) = self.log.get() {
            // The first generation serves now.
            log.rest(self.from.is_some_and(|from| from > 1));
        }
    }
}

fn usage(message: String) -> Failure {
    Failure::new(Exit::Usage, message)
}

fn can_serve(d: &Drill) -> bool {
    d.in_serving().is_ok()
}

/// What a kernel does behind its plan's back is nothing that a plan could say.
fn can_draft(d: &Drill) -> bool {
    use lockstep_plan::drill::PlanFault;
    d.plan.is_some_and(|fault| fault != PlanFault::UndeclaredScratch)
}

fn there_are(which: fn(&Drill) -> bool) -> String {
    let names: Vec<&str> = DRILLS.iter().filter(|d| which(d)).map(|d| d.name).collect();
    format!("there are: {}", names.join(", "))
}

fn find(name: &str) -> Result<Drill, Failure> {
    let found = DRILLS.iter().find(|d| d.name == name).copied();
    found.ok_or_else(|| usage(format!("no drill is called '{name}'; {}", there_are(can_serve))))
}

fn list() {
    for d in DRILLS {
        match d.in_serving() {
            Ok(_) => out::line(format_args!("{:33} {}", d.name, d.corrupts)),
            Err(why) => out::line(format_args!("{:33} not in a server: {why}", d.name)),
        }
    }
}

/// Said first, and as an error: nobody is to serve users with this by mistake.
fn banner(drill: Option<&Drill>, draft: Option<&Drill>, often: Often, audit: &str) {
    tracing::error!("################ LAB BUILD: NOT FOR USERS ################");
    if let Some(d) = drill {
        tracing::error!(
            event = "lab",
            drill = d.name,
            per_million = often.per_million,
            seed = often.seed,
            "this server does {} on purpose, in {} steps of a million (seed {}, audit {audit}): it \
             corrupts {}",
            d.name,
            often.per_million,
            often.seed,
            d.corrupts,
        );
    }
    if let Some(d) = draft {
        tracing::error!(
            event = "lab",
            draft = d.name,
            "staged generations are planned with {}",
            d.name
        );
    }
    tracing::error!("##########################################################");
}

/// The engine, with a status that owns up.
struct LabEngine {
    inner: Arc<Handle>,
    drill: &'static str,
    per_million: u32,
    from: Option<u64>,
    log: Arc<StrikeLog>,
}

impl Engine for LabEngine {
    fn submit_all(&self, submissions: Vec<Submission>) -> Result<Vec<Ticket>, Refusal> {
        self.inner.submit_all(submissions)
    }

    fn cancel(&self, id: RequestId) {
        self.inner.cancel(id);
    }

    fn status(&self) -> EngineStatus {
        let mut status = self.inner.status();
        status.lab = Some(LabFault {
            drill: self.drill.into(),
            per_million: self.per_million,
            strikes: self.log.strikes(),
            replays: self.log.replays(),
        });
        status
    }

    fn now(&self) -> Micros {
        self.inner.now()
    }

    fn stage(&self, changes: &[KnobChange], mode: StageMode) -> Result<u64, GenerationError> {
        self.inner.stage_as(changes, mode)
    }

    fn flip(&self, number: u64, watch: Option<Micros>) -> Result<(), GenerationError> {
        self.inner.flip(number, watch)?;
        if let Some(from) = self.from {
            self.log.rest(number < from);
        }
        Ok(())
    }

    fn retire(&self, number: u64) -> Result<(), GenerationError> {
        self.inner.retire(number)
    }

    fn drain(&self) {
        self.inner.drain();
    }

    fn shutdown(&self) {
        self.inner.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_probability() {
        assert_eq!(per_million("1"), Ok(EVERY_STEP));
        assert_eq!(per_million("0.001"), Ok(1000));
        for wrong in ["0", "-1", "1.5", "x", "NaN", "inf", ""] {
            assert!(per_million(wrong).is_err(), "{wrong}");
        }
    }
}
