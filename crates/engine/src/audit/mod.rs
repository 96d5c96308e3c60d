//! The audit: what runs is checked while it serves, in four parts, because no single one sees
//! everything.
//!
//! - *Tables* ([`steps`]): what a step was given, against what its lease stands for.
//! - *Twin* ([`twin`], [`trace`]): a step that was chosen beforehand runs again op by op in a
//!   shadow arena; outputs and every written page are compared as bits. Where they differ, both
//!   run once more side by side, and the first op that differs is named.
//! - *Pages* ([`pages`]): a page group has a digest from the moment it closes. It is compared when
//!   a sequence takes the page from the prefix cache, while steps read it, by a sweep, and with
//!   the page that takes its place where two sequences computed the same tokens.
//! - *Weights* ([`weights`]): digests taken at load, compared by a slow sweep.
//!
//! [`schedule`] says when, [`evidence`] keeps what was found. Nothing in here is allocated by a
//! step that finds nothing.

mod evidence;
mod pages;
mod schedule;
mod steps;
mod trace;
mod twin;
mod weights;

use crate::Knobs;
use crate::generation::Generation;
use evidence::Findings;
use lockstep_device::{Device, DeviceError, PageBuffer};
use lockstep_flow::{AuditPart, AuditPartUse, EngineStatus, Failure, Micros, OnMismatch};
use lockstep_plan::{BufferKind, StateKind, StepPlan};
use pages::Pages;
use schedule::Schedule;
use twin::Twin;
use weights::Weights;

/// The audit's schedule, working memory and findings.
pub struct Audit {
    rate: u32,
    parts: [bool; AuditPart::ALL.len()],
    /// See [`Knobs::audit_proof_age`].
    age: Micros,
    on_mismatch: OnMismatch,
    schedule: Schedule,
    twin: Twin,
    pages: Pages,
    weights: Weights,
    findings: Findings,
    /// What the rows of the last step that differ end with.
    verdict: Option<Failure>,
}

impl Audit {
    /// An audit of a generation; its memory is taken here.
    pub fn new(knobs: &Knobs, generation: &Generation) -> Audit {
        let buckets = &generation.buckets;
        let largest = |of: fn(&lockstep_flow::BucketKey) -> u32| {
            buckets.iter().map(|b| of(&b.key)).max().unwrap_or(0) as usize
        };
        let (rows, tokens) = (largest(|k| k.seqs), largest(|k| k.tokens));
        let rate = knobs.audit_rate;
        let age = if rate == 1 { Micros(0) } else { knobs.audit_proof_age };
        let plan = buckets.first().filter(|_| rate > 0).map(|b| b.proven.plan());
        let page_buffers = plan.map(page_buffers).unwrap_or_default();
        let slot_buffers = plan.map(slot_buffers).unwrap_or_default();
        Audit {
            rate,
            parts: knobs.audit_parts,
            age,
            on_mismatch: knobs.on_mismatch,
            schedule: Schedule::new(rate, buckets.len()),
            twin: Twin::new(&page_buffers, slot_buffers, rows, tokens),
            pages: Pages::new(
                (age, knobs.audit_hit_bytes),
                page_buffers,
                generation.blueprint.shape.pages as usize,
                rows,
            ),
            weights: Weights::default(),
            findings: Findings::new(),
            verdict: None,
        }
    }

    /// Takes the digests of all weights, once they are loaded.
    ///
    /// # Errors
    /// The device's.
    pub fn take_weights(
        &mut self,
        device: &mut dyn Device,
        generation: &Generation,
    ) -> Result<(), DeviceError> {
        // Also where the audit is off: a generation that turns it on finds them here.
        let plans = generation.buckets.iter().map(|b| b.proven.plan());
        self.weights = Weights::take(device, Micros(2 * self.age.0), plans)?;
        Ok(())
    }

    /// Words of a page's digest; 0 where no page has one.
    pub fn page_digest_words(&self) -> usize {
        self.pages.words()
    }

    /// Goes on with another generation, whose buckets have not been audited yet, at its knobs'
    /// rate and policy. Takes the memory that its steps need.
    fn follow(&mut self, knobs: &Knobs, generation: &Generation) {
        let next = Audit::new(knobs, generation);
        let before = core::mem::replace(self, next);
        self.findings = before.findings;
        self.weights = before.weights.every(Micros(2 * self.age.0));
        self.pages.resume(&before.pages);
    }

    /// What row `row` of the step that has just run ends with, where its result is not to be
    /// trusted.
    pub fn verdict(&self, row: usize) -> Option<Failure> {
        let suspect = self.twin.suspects.get(row).copied().unwrap_or(false);
        self.verdict.clone().filter(|_| suspect)
    }

    /// True where `part` looks at anything.
    fn is_on(&self, part: AuditPart) -> bool {
        self.rate > 0 && self.parts[part as usize]
    }

    /// What `part` has done.
    pub fn part(&self, part: AuditPart) -> AuditPartUse {
        self.findings.parts[part as usize]
    }

    /// Checks of all parts that found a difference.
    pub fn findings(&self) -> u64 {
        self.findings.parts.iter().map(|p| p.mismatches).sum()
    }

    /// Shows counts and findings.
    pub fn publish(&self, status: &mut EngineStatus) {
        for (to, from) in status.buckets.iter_mut().zip(self.schedule.buckets()) {
            to.audit = *from;
        }
        let to = &mut status.audit;
        to.parts = self.findings.parts;
        to.pages_closed = self.pages.closed;
        to.closed_bytes = self.pages.closed_bytes;
        to.waits = self.pages.waits;
        to.page_sweeps = self.pages.sweeps;
        to.weight_sweeps = self.weights.sweeps;
        for (i, from) in self.findings.kinds.iter().enumerate() {
            match to.mismatches.get_mut(i) {
                Some(to) => *to = *from,
                None => to.mismatches.push(*from),
            }
        }
        for evidence in self.findings.evidence.iter().skip(to.evidence.len()) {
            to.evidence.push(evidence.to_string());
        }
    }
}

/// The buffers of a page group, in plan order.
fn page_buffers(plan: &StepPlan) -> Vec<PageBuffer> {
    let of = |b: &lockstep_plan::Buffer| match b.kind {
        BufferKind::State(StateKind::Pages { page_bytes }) => {
            Some(PageBuffer { name: b.name.clone(), page_bytes })
        }
        _ => None,
    };
    plan.buffers.iter().filter_map(of).collect()
}

/// State by slots: name and bytes of one slot.
fn slot_buffers(plan: &StepPlan) -> Vec<(String, usize)> {
    let of = |b: &lockstep_plan::Buffer| match b.kind {
        BufferKind::State(StateKind::Slots { slot_bytes }) => {
            Some((b.name.clone(), slot_bytes as usize))
        }
        _ => None,
    };
    plan.buffers.iter().filter_map(of).collect()
}
