//! Where the audit meets the step loop: before a step reads, around its run, once it is complete,
//! and while nothing runs.

use super::evidence::{Evidence, Finding};
use super::pages::Checked;
use super::trace::first_op;
use super::twin::Step;
use crate::Knobs;
use crate::core::{Core, tables};
use lockstep_device::{DeviceError, ExecId};
use lockstep_flow::status::{Health, WaitReason};
use lockstep_flow::{AuditPart, Failure, Micros, OnMismatch};
use lockstep_pool::StepLease;

impl Core {
    /// Compares pages that the planned step is about to read. A page that fails is condemned, and
    /// the step goes without its readers; it also goes without rows that have to wait for the
    /// comparison of a long prefix, and there may be none then. Call it before the step is leased.
    ///
    /// # Errors
    /// The device has failed; every live request has been told.
    pub(crate) fn audit_reads(&mut self, now: Micros) -> Result<(), DeviceError> {
        if !self.audit.is_on(AuditPart::Pages) {
            return Ok(());
        }
        let Some(batch) = self.sched.planned_step() else { return Ok(()) };
        let began = self.clock.now();
        self.audit.pages.note_reads(self.sched.pool(), batch, now);
        let pool = self.sched.pool_mut();
        let checked = self.audit.pages.compare(self.device.as_mut(), pool, now);
        self.audit_spent(AuditPart::Pages, began);
        self.pages_checked(checked)?;
        for i in 0..self.audit.pages.postponed.len() {
            self.sched.postpone(self.audit.pages.postponed[i]);
        }
        Ok(())
    }

    /// The time since `began` was a part's.
    fn audit_spent(&mut self, part: AuditPart, began: Micros) {
        self.audit.findings.spent(part, self.clock.now().since(began));
    }

    /// Decides whether the planned step is audited.
    pub(crate) fn choose_audit(&mut self, at: usize, now: Micros) -> bool {
        self.audit.schedule.choose(at, now)
    }

    /// Nothing was left of the step that was chosen: the next one takes its place.
    pub(crate) fn put_audit_off(&mut self, chosen: bool) {
        if chosen {
            self.audit.schedule.put_off();
        }
    }

    /// In which executable the twin of a step runs, where it has one.
    pub(crate) fn twin_of(&self, at: usize, chosen: bool) -> Option<ExecId> {
        let twin = chosen && self.eager_reason(at).is_none() && self.audit.is_on(AuditPart::Twin);
        self.generation.buckets[at].twin.filter(|_| twin)
    }

    /// Audits the tables of a step, where it was chosen or its bucket is in doubt.
    pub(crate) fn audit_step(&mut self, at: usize, lease: &StepLease, chosen: bool) {
        self.audit.verdict = None;
        let tables = self.audit.is_on(AuditPart::Tables);
        if tables && (chosen || self.generation.buckets[at].quarantined) {
            self.audit_tables(at, lease);
        }
    }

    /// Compares the step's tables with what its lease stands for. One that differs is put right,
    /// and its bucket leaves service; from then on its tables are compared at every step.
    fn audit_tables(&mut self, at: usize, lease: &StepLease) {
        let began = self.clock.now();
        let bucket = &mut self.generation.buckets[at];
        let (mut step_tables, _) = tables(self.device.as_mut(), bucket.exec, &bucket.io);
        let bytes = step_tables.bytes();
        let found = self.sched.verify_tables(lease, &mut step_tables);
        self.audit.findings.checked(AuditPart::Tables, 1, bytes);
        if let Err(e) = found {
            let rewritten = self.sched.rewrite_tables(lease, &mut step_tables);
            rewritten.expect("the lease is the last one and its tables have had this shape");
            bucket.quarantined = true;
            let step = Some((lease.generation(), bucket.key));
            self.mismatch(Evidence { step, finding: Finding::Table(e) });
        }
        self.audit_spent(AuditPart::Tables, began);
    }

    /// Runs the step to its end, and its twin.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn run_beside_twin(
        &mut self,
        at: usize,
        twin: ExecId,
        lease: &StepLease,
        now: Micros,
    ) -> Result<(), DeviceError> {
        let bucket = self.generation.buckets[at].clone();
        let batch = self.sched.oldest_step().expect("a step is in flight");
        let step = Step { bucket: &bucket, twin, batch, lease };
        let began = self.clock.now();
        self.audit.twin.prepare(self.device.as_mut(), &step, self.sched.pool())?;
        let prepared = self.clock.now();
        self.run(at, lease)?;
        let ran = self.clock.now();
        let batch = self.sched.oldest_step().expect("a step is in flight");
        let step = Step { bucket: &bucket, twin, batch, lease };
        let point = self.audit.twin.compare(self.device.as_mut(), &step)?;
        let compared = self.audit.twin.compared;
        self.audit.findings.checked(AuditPart::Twin, 1, compared);
        let cost = Micros(prepared.since(began).0 + self.clock.now().since(ran).0);
        self.audit.findings.spent(AuditPart::Twin, cost);
        self.audit.schedule.audited(at, now, cost, point.is_some());
        if let Some(point) = point {
            let trace = first_op(self.device.as_mut(), &step, &self.audit.twin);
            let requests = self.audit.twin.suspect_rows();
            let finding = Finding::Twin { point, trace, requests };
            self.audit.verdict = Some(failure(&finding));
            self.generation.buckets[at].quarantined = true;
            let step = Some((lease.generation(), bucket.key));
            self.mismatch(Evidence { step, finding });
        }
        Ok(())
    }

    /// Takes the digests of pages that have just closed and goes on with the sweeps. Call it once
    /// a step is complete and before the next is planned.
    ///
    /// # Errors
    /// The device has failed; every live request has been told.
    pub(crate) fn audit_complete(&mut self, now: Micros) -> Result<(), DeviceError> {
        if self.audit.rate == 0 {
            return Ok(());
        }
        if self.audit.is_on(AuditPart::Pages) {
            let began = self.clock.now();
            let pool = self.sched.pool_mut();
            let checked = self.audit.pages.take_closed(self.device.as_mut(), pool, now);
            self.audit_spent(AuditPart::Pages, began);
            self.pages_checked(checked)?;
        }
        self.audit_sweep(false, now)
    }

    /// Another generation is live: the audit goes on with its buckets and knobs. Where it is turned
    /// on, pages that have closed before have no digest; where it is turned off, none is kept.
    pub(crate) fn audit_follow(&mut self, knobs: &Knobs) {
        let before = self.audit.page_digest_words();
        self.audit.follow(knobs, &self.generation);
        let words = self.audit.page_digest_words();
        if words != before {
            self.sched.pool_mut().keep_digests(words);
        }
        let (rate, on_mismatch) = (self.audit.rate, self.audit.on_mismatch);
        self.shared.update(|status| {
            (status.audit.rate, status.audit.on_mismatch) = (rate, on_mismatch);
        });
    }

    /// The sweeps, while nothing runs. A device that fails here fails the engine.
    pub(crate) fn audit_idle(&mut self) {
        let now = self.clock.now();
        if self.audit.rate == 0 {
            return;
        }
        if let Err(e) = self.audit_sweep(true, now) {
            self.fail(&e.to_string());
        }
    }

    fn audit_sweep(&mut self, idle: bool, now: Micros) -> Result<(), DeviceError> {
        if self.audit.is_on(AuditPart::Pages) {
            let began = self.clock.now();
            let pool = self.sched.pool_mut();
            let checked = self.audit.pages.sweep(self.device.as_mut(), pool, idle, now);
            self.audit_spent(AuditPart::Pages, began);
            self.pages_checked(checked)?;
        }
        if !self.audit.is_on(AuditPart::Weights) {
            return Ok(());
        }
        let began = self.clock.now();
        let swept = self.audit.weights.sweep(self.device.as_mut(), idle, now);
        self.audit_spent(AuditPart::Weights, began);
        let (audits, bytes, finding) = swept.map_err(|e| self.device_failed(e))?;
        self.audit.findings.checked(AuditPart::Weights, audits, bytes);
        if let Some(finding) = finding {
            // Every step reads the weights, captured or eager: nothing can go around them.
            let failure = failure(&finding);
            self.mismatch(Evidence { step: None, finding });
            self.close_for(&failure);
            self.abort_all(&failure);
            self.audit.weights.stop();
        }
        Ok(())
    }

    /// Counts page checks and condemns what failed.
    fn pages_checked(&mut self, checked: Result<Checked, DeviceError>) -> Result<(), DeviceError> {
        let checked = checked.map_err(|e| self.device_failed(e))?;
        self.audit.findings.checked(AuditPart::Pages, checked.audits, checked.bytes);
        if !checked.failed.is_empty() {
            // A page that a step in flight may touch could not be set aside.
            self.ground(WaitReason::Audit)?;
        }
        for (page, finding) in checked.failed {
            let failure = failure(&finding);
            self.mismatch(Evidence { step: None, finding });
            self.sched.condemn_page(page, &failure);
            self.deliver(None);
        }
        Ok(())
    }

    /// Keeps evidence, and follows the policy.
    fn mismatch(&mut self, evidence: Evidence) {
        let failure = failure(&evidence.finding);
        self.audit.findings.found(evidence);
        if self.audit.on_mismatch == OnMismatch::Stop {
            self.close_for(&failure);
        }
    }

    /// Takes nothing new from now on, for all to see. What runs goes on.
    fn close_for(&mut self, failure: &Failure) {
        let why = failure.to_string();
        self.shared.close(&why);
        self.sched.close(why.clone());
        self.shared.update(|status| status.health = Health::Failed { why });
    }

    fn device_failed(&mut self, e: DeviceError) -> DeviceError {
        self.crash(None, e)
    }
}

fn failure(finding: &Finding) -> Failure {
    Failure::Audit { part: finding.part(), what: finding.to_string() }
}
