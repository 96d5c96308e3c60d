//! Generations on the step thread: one arrives, is flipped to between two steps, is watched, flipped
//! back from or retired. Everything here happens between two steps and takes microseconds; what
//! takes longer is done by the builder ([`crate::yard`]) or handed to a thread that drops it.

use crate::core::Core;
use crate::generation::Generation;
use crate::yard::Arrival;
use lockstep_device::{AwayArena, DeviceError, ExecId, Mode, Remains};
use lockstep_flow::generation::{GenerationError, GenerationState};
use lockstep_flow::{EngineStatus, Micros};
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// A manifest is compared once in so many steps, of one bucket after the other.
pub const MANIFEST_EVERY: u64 = 1024;

/// The time after a flip in which it can be undone by itself.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// When it closes.
    pub until: Micros,
    /// Findings of the audit, and manifests that differed, before the flip.
    pub findings: u64,
}

/// What generations took of the step thread since the last step.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spent {
    /// Which one.
    pub number: u64,
    work: Micros,
    canary: Micros,
    canaries: u64,
}

impl Spent {
    /// Adds a canary step.
    pub fn canary(&mut self, took: Micros) {
        self.canary = self.canary.max(took);
        self.canaries += 1;
    }

    /// Adds anything else.
    pub fn work(&mut self, took: Micros) {
        self.work.0 += took.0;
    }
}

impl Core {
    /// Counts the time since `began` as taken by a generation.
    pub fn spent_since(&mut self, number: u64, began: Micros) {
        let took = self.clock.now().since(began);
        self.spent.number = number;
        self.spent.work(took);
        if self.sched.is_idle() {
            // No step waits: what comes next is a gap of its own.
            self.note_gap();
        }
    }

    /// Puts what was taken since the last step into the generation's report.
    pub fn note_gap(&mut self) {
        let spent = core::mem::take(&mut self.spent);
        if spent.work.0 == 0 && spent.canaries == 0 {
            return;
        }
        self.spent.number = spent.number;
        self.shared.report(spent.number, |r| {
            r.gap.longest = r.gap.longest.max(spent.work);
            r.gap.longest_canary = r.gap.longest_canary.max(spent.canary);
            r.gap.canary_steps += spent.canaries;
        });
    }

    /// Takes a sealed generation over, and lends its arena back to its builder.
    pub fn install(
        &mut self,
        arrival: Arrival,
        reply: &Sender<Result<Box<dyn AwayArena>, String>>,
    ) {
        self.spent.number = arrival.blueprint.number;
        let lent = self.placed(arrival).and_then(|staged| {
            let arena = staged.arena;
            self.staged = Some(Box::new(staged));
            self.device.lend(arena)
        });
        // Where the builder has gone there is nobody to tell.
        if reply.send(lent.map_err(|e| e.to_string())).is_err() {
            self.discard_staged();
        }
    }

    /// A generation whose arenas have come to the device.
    pub(crate) fn placed(&mut self, arrival: Arrival) -> Result<Generation, DeviceError> {
        let Arrival { blueprint, order, main, shadow } = arrival;
        let (arena, execs) = self.device.install(main)?;
        let shadow = shadow.map(|shadow| self.device.install(shadow)).transpose()?;
        let (shadow, mut twins) = shadow.map_or((None, Vec::new()), |(a, t)| (Some(a), t));
        let mut placed: Vec<(ExecId, Option<ExecId>)> = vec![(ExecId(0), None); order.len()];
        twins.reverse();
        for (&bucket, exec) in order.iter().zip(execs) {
            let captured = blueprint.proven[bucket].mode == Mode::Captured;
            let twin = if captured && shadow.is_some() { twins.pop() } else { None };
            placed[bucket] = (exec, twin);
        }
        Ok(Generation::new(blueprint, (arena, shadow), &placed))
    }

    /// Every bucket has shown what it does: the generation can be flipped to.
    pub fn finish(&mut self, number: u64, arena: Box<dyn AwayArena>) -> Result<(), String> {
        self.release_canaries();
        let staged = self.staged.as_mut().filter(|g| g.number() == number);
        let staged = staged.ok_or("the staged generation is gone")?;
        self.device.install(arena).map_err(|e| e.to_string())?;
        staged.verified = true;
        self.moved(number, GenerationState::Verified);
        Ok(())
    }

    /// Gives a generation up that is being built.
    pub fn discard(&mut self, number: u64) -> Option<Remains> {
        let staged = self.staged.take_if(|g| g.number() == number)?;
        self.release_canaries();
        Some(self.uninstall(&staged))
    }

    /// As [`Core::discard`], where nobody waits for what is left.
    pub fn discard_staged(&mut self) {
        let Some(number) = self.staged.as_ref().map(|g| g.number()) else { return };
        if let Some(remains) = self.discard(number) {
            drop_elsewhere(remains);
        }
    }

    fn uninstall(&mut self, generation: &Generation) -> Remains {
        let main = self.device.uninstall(generation.arena);
        let shadow = generation.shadow.map(|shadow| self.device.uninstall(shadow));
        Box::new((main, shadow, generation.blueprint.clone()))
    }

    /// A move that the step thread has checked before.
    pub(crate) fn moved(&mut self, number: u64, to: GenerationState) {
        let now = self.clock.now();
        self.shared.report(number, |r| {
            if to == GenerationState::Verified {
                r.verified_at = Some(now);
            }
            r.advance(to, now).expect("the step thread makes legal moves only");
        });
    }

    /// Flips to a verified generation, or to the draining one: back, which opens a watch window
    /// only where one is asked for, or forward again, which is watched like the first time.
    pub fn flip(&mut self, number: u64, watch: Option<Micros>) -> Result<(), GenerationError> {
        self.refuse_while_held("flipped to")?;
        let is = |g: &Option<Box<Generation>>| g.as_ref().is_some_and(|g| g.number() == number);
        if is(&self.draining) {
            let forward = number > self.generation.number();
            self.flip_back(number, None)?;
            if forward {
                self.counters.rollbacks -= 1;
                self.counters.flips += 1;
            }
            if forward || watch.is_some() {
                self.open_watch(number, watch);
            }
            return Ok(());
        }
        if !is(&self.staged) || !self.staged.as_ref().is_some_and(|g| g.verified) {
            return Err(self.wrong_state(number, "flipped to"));
        }
        let next = self.staged.take().expect("just looked at");
        let before = self.generation.number();
        self.swap(next).map_err(|(next, e)| {
            self.staged = Some(next);
            e
        })?;
        self.moved(before, GenerationState::Draining);
        self.moved(number, GenerationState::Live);
        self.counters.flips += 1;
        self.open_watch(number, watch);
        Ok(())
    }

    /// True of the generation that served before the live one: what runs on a server that drains
    /// may still need it.
    pub fn is_the_way_back(&self, number: u64) -> bool {
        let before = |g: &Generation| g.number() == number && number < self.generation.number();
        self.draining.as_deref().is_some_and(before)
    }

    /// Watches the live generation `number` for `watch`, by default as long as its knobs say.
    fn open_watch(&mut self, number: u64, watch: Option<Micros>) {
        let now = self.clock.now();
        let default =
            Micros::from_millis(1000 * u64::from(self.generation.blueprint.knobs.watch_s));
        let until = Micros(now.0.saturating_add(watch.unwrap_or(default).0));
        self.watch = Some(Watch { until, findings: self.findings() });
        self.shared.report(number, |r| r.watched_until = Some(until));
        self.watch_over(now);
    }

    /// Flips back to the draining generation; `why` is the audit's reason, where it is the audit
    /// that asks.
    fn flip_back(&mut self, number: u64, why: Option<&str>) -> Result<(), GenerationError> {
        let next = self.draining.take().expect("the caller has looked");
        let before = self.generation.number();
        self.swap(next).map_err(|(next, e)| {
            self.draining = Some(next);
            e
        })?;
        self.watch = None;
        self.moved(before, GenerationState::Draining);
        self.moved(number, GenerationState::Live);
        self.shared.report(before, |r| {
            r.watched_until = None;
            r.reason = why.map(String::from).or(r.reason.take());
        });
        self.counters.rollbacks += 1;
        Ok(())
    }

    /// The one store that a flip is: from here on steps run in `next`. What ran before is draining.
    pub(crate) fn swap(
        &mut self,
        mut next: Box<Generation>,
    ) -> Result<(), (Box<Generation>, GenerationError)> {
        self.put_off_own_canary();
        let (number, knobs) = (next.number(), &next.blueprint.knobs);
        let ladder = self.sched.set_ladder(next.keys(), knobs.running_max, knobs.chunk_tokens);
        if let Err(e) = ladder {
            return Err((next, GenerationError::Refused { number, why: e.to_string() }));
        }
        let counters = core::mem::take(&mut next.counters);
        let mut old = core::mem::replace(&mut self.generation, next);
        old.counters = core::mem::replace(&mut self.bucket_counters, counters);
        self.shared.live_generation.store(number, Ordering::Release);
        self.draining = Some(old);
        for bucket in &mut self.generation.buckets {
            bucket.checked = false;
        }
        let knobs = self.generation.blueprint.knobs.clone();
        self.eager = knobs.eager;
        self.audit_follow(&knobs);
        let live_max = knobs.running_max + self.yard.start.queued_max;
        self.shared.live_max.store(live_max, Ordering::Release);
        self.yard.set_live(self.generation.blueprint.clone());
        self.show_generation();
        self.deliver(None);
        Ok(())
    }

    /// Retires the draining generation, or a verified one that has not served.
    pub fn retire(&mut self, number: u64) -> Result<Remains, GenerationError> {
        self.refuse_while_held("retired")?;
        let is = |g: &Option<Box<Generation>>| g.as_ref().is_some_and(|g| g.number() == number);
        let now = self.clock.now();
        let retired = if is(&self.draining) {
            if let Some(watch) = self.watch.filter(|w| w.until > now) {
                return Err(GenerationError::Watched { number, left: watch.until.since(now) });
            }
            self.watch = None;
            self.draining.take()
        } else if is(&self.staged) && self.staged.as_ref().is_some_and(|g| g.verified) {
            self.staged.take()
        } else {
            return Err(self.wrong_state(number, "retired"));
        };
        let retired = retired.expect("just looked at");
        let remains = self.uninstall(&retired);
        self.moved(number, GenerationState::Retired);
        self.counters.retired += 1;
        Ok(remains)
    }

    /// While steps are held for a generation, it alone moves: the live one's arenas are gone.
    fn refuse_while_held(&self, asked: &'static str) -> Result<(), GenerationError> {
        let Some(number) = self.held.as_ref().map(|held| held.number) else { return Ok(()) };
        let status = self.shared.status();
        let report = status.generation_report(number);
        Err(GenerationError::State {
            number,
            state: report.map_or(GenerationState::Planned, |r| r.state),
            asked,
            would_work: "steps are held for it, and it is live by itself or rejected in a moment",
        })
    }

    /// Why a generation cannot be flipped to or retired now.
    fn wrong_state(&self, number: u64, asked: &'static str) -> GenerationError {
        let status = self.shared.status();
        let Some(report) = status.generation_report(number) else {
            return status.unknown_generation(number);
        };
        let state = report.state;
        let would_work = match state {
            GenerationState::Live if asked == "retired" => "flip to another one first",
            GenerationState::Live => "it serves already",
            s if s.is_on_its_way() => "wait until it is verified",
            _ => "its memory is given up; stage a new one",
        };
        GenerationError::State { number, state, asked, would_work }
    }

    /// What may call a flip back: the audit's findings and manifests that differ.
    fn findings(&self) -> u64 {
        self.audit.findings() + self.counters.manifest_mismatches
    }

    /// True where [`Core::watch_over`] would do something, which takes a moment between two steps.
    pub fn watch_acts(&self, now: Micros) -> bool {
        self.watch.is_some_and(|w| self.findings() > w.findings || now >= w.until)
    }

    /// Around each step and while there is none: looks whether the new generation has failed, or
    /// its window has closed.
    pub fn watch_over(&mut self, now: Micros) {
        let Some(watch) = self.watch else { return };
        if self.findings() > watch.findings {
            self.flip_back_by_audit();
        } else if now >= watch.until {
            self.watch = None;
            self.shared.report(self.generation.number(), |r| r.watched_until = None);
        }
    }

    fn flip_back_by_audit(&mut self) {
        let bad = self.generation.number();
        let Some(back) = self.draining.as_ref().map(|g| g.number()) else {
            self.watch = None;
            return;
        };
        let why = format!("a finding in its watch window; flipped back to generation {back}");
        if self.flip_back(back, Some(&why)).is_err() {
            self.watch = None;
            return;
        }
        self.counters.rollbacks_by_audit += 1;
        self.shared.rejected.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now();
        self.shared.report(bad, |r| r.reject(why, now));
        if let Some(bad) = self.draining.take() {
            let remains = self.uninstall(&bad);
            drop_elsewhere(remains);
        }
    }

    /// Compares the manifest of a live bucket; one that differs leaves service. Takes no memory
    /// unless it does.
    pub fn check_manifest(&mut self, at: usize) {
        let bucket = &mut self.generation.buckets[at];
        bucket.checked = true;
        self.shared.manifest_checks.fetch_add(1, Ordering::Relaxed);
        if let Err(e) = self.device.check_manifest(bucket.exec) {
            bucket.quarantined = true;
            self.counters.manifest_mismatches += 1;
            let why = format!("bucket {}: {e}", bucket.key);
            self.shared.report(self.generation.blueprint.number, |r| r.reason = Some(why));
        }
    }

    /// The manifests that are due: after a flip one bucket a step until all were compared, then
    /// one now and again.
    pub fn check_manifests(&mut self) {
        let n = self.generation.buckets.len();
        let at = self.generation.check_next % n;
        if !self.generation.buckets[at].checked
            || self.counters.steps.is_multiple_of(MANIFEST_EVERY)
        {
            self.check_manifest(at);
            self.generation.check_next = at + 1;
        } else if self.generation.check_next < n {
            self.generation.check_next += 1;
        }
    }

    /// Shows what belongs to the live generation as a whole.
    pub fn show_generation(&self) {
        let generation = &self.generation;
        let knobs = &generation.blueprint.knobs;
        self.shared.update(|status: &mut EngineStatus| {
            status.generation = generation.number();
            status.running_max = knobs.running_max;
            status.chunked_prefill_tokens = knobs.chunk_tokens;
            status.device.arena_bytes = generation.arena_bytes;
            status.buckets = crate::status::buckets(generation);
        });
    }

    /// Steps of every generation that is there, into their reports.
    pub fn publish_generations(&self, status: &mut EngineStatus) {
        let live = (self.generation.number(), &self.bucket_counters[..]);
        let others = [&self.draining, &self.staged].into_iter().flatten();
        let others = others.map(|g| (g.number(), &g.counters[..]));
        for (number, counters) in core::iter::once(live).chain(others) {
            let (steps, captured): (u64, u64) = Generation::steps(counters);
            if let Some(r) = status.generations.iter_mut().find(|r| r.number == number) {
                (r.steps, r.captured_steps) = (steps, captured);
            }
        }
        let memory = self.device.memory();
        status.arenas.bytes = memory.arena_bytes;
        status.arenas.arenas = memory.arenas;
        status.arenas.executables = memory.executables;
    }
}

/// Drops what takes time on a thread of its own; where there is none to be had, here.
fn drop_elsewhere(remains: Remains) {
    let dropped = std::thread::Builder::new().name("remains".into());
    drop(dropped.spawn(move || drop(remains)));
}
