//! The audit as operators see it: which parts there are, what each has checked, what it found.

use crate::{BucketKey, Micros};
use core::fmt;

/// A part of the audit. Each sees what the others cannot (docs/numerics.md).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AuditPart {
    /// What a step was given, against the pool's books.
    Tables,
    /// A replay against its eager twin, as bits.
    Twin,
    /// Closed pages against the digests taken when they closed.
    Pages,
    /// Weights against the digests taken when they were loaded.
    Weights,
}

impl AuditPart {
    /// Every part, in the order of [`AuditUse::parts`].
    pub const ALL: [AuditPart; 4] =
        [AuditPart::Tables, AuditPart::Twin, AuditPart::Pages, AuditPart::Weights];

    /// The label's value in `/metrics`.
    pub const fn as_str(self) -> &'static str {
        match self {
            AuditPart::Tables => "tables",
            AuditPart::Twin => "twin",
            AuditPart::Pages => "pages",
            AuditPart::Weights => "weights",
        }
    }
}

impl fmt::Display for AuditPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a mismatch does beside being counted and kept (`audit.on-mismatch`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum OnMismatch {
    /// What failed leaves service: the bucket runs eagerly, the page is read by nobody. Wrong
    /// weights stop the engine, for nothing can go around them.
    #[default]
    Quarantine,
    /// Nothing new is taken either.
    Stop,
}

impl OnMismatch {
    /// The word in `audit.on-mismatch`.
    pub const fn as_str(self) -> &'static str {
        match self {
            OnMismatch::Quarantine => "quarantine",
            OnMismatch::Stop => "stop",
        }
    }

    /// The policy that the word names.
    pub fn of(word: &str) -> Option<OnMismatch> {
        [OnMismatch::Quarantine, OnMismatch::Stop].into_iter().find(|p| p.as_str() == word)
    }
}

/// What a part has done since the start: the proof that its checks ran.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AuditPartUse {
    /// Checks: steps for `tables` and `twin`, page groups for `pages`, chunks for `weights`.
    pub audits: u64,
    /// Bytes compared or hashed for them.
    pub bytes: u64,
    /// Time of the step thread that they took, those while nothing ran included.
    pub time: Micros,
    /// Checks that found a difference.
    pub mismatches: u64,
}

/// Mismatches of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AuditMismatch {
    /// Which part found them.
    pub part: AuditPart,
    /// The bucket of the step, where a step was checked.
    pub bucket: Option<BucketKey>,
    /// The model's layer, where what differs first belongs to one.
    pub layer: Option<u32>,
    /// How many.
    pub count: u64,
}

/// The audit's settings, counts and findings.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AuditUse {
    /// One step in this many is audited; 0 is off.
    pub rate: u32,
    /// What a mismatch does.
    pub on_mismatch: OnMismatch,
    /// By part, in the order of [`AuditPart::ALL`].
    pub parts: [AuditPartUse; AuditPart::ALL.len()],
    /// Digests of page groups taken when they closed.
    pub pages_closed: u64,
    /// Bytes hashed for those.
    pub closed_bytes: u64,
    /// Closed page groups whose digest is kept now.
    pub pages_covered: u32,
    /// Page groups that failed and that nobody is given while there are others.
    pub pages_set_aside: u32,
    /// Times that a row waited for a later step because the pages that it had taken from the prefix
    /// cache were more than one step compares.
    pub waits: u64,
    /// Times the sweep has been over every covered page.
    pub page_sweeps: u64,
    /// Times the sweep has been over every weight.
    pub weight_sweeps: u64,
    /// Mismatches by part, bucket and layer; the first kinds only.
    pub mismatches: Vec<AuditMismatch>,
    /// What was found, in words; the first findings only.
    pub evidence: Vec<String>,
}

impl AuditUse {
    /// What `part` has done.
    pub fn part(&self, part: AuditPart) -> AuditPartUse {
        self.parts[part as usize]
    }
}

/// The audits of one bucket in the live generation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BucketAudit {
    /// Its steps that were audited.
    pub audits: u64,
    /// Of those, how many differed.
    pub mismatches: u64,
    /// When the last one was, on the engine's clock; `None` before the first.
    pub last: Option<Micros>,
}

impl BucketAudit {
    /// Time since the last audit; `None` before the first.
    pub fn age(&self, now: Micros) -> Option<Micros> {
        self.last.map(|last| now.since(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_stand_in_the_order_of_their_counts() {
        for (i, part) in AuditPart::ALL.into_iter().enumerate() {
            assert_eq!(part as usize, i);
        }
    }

    #[test]
    fn policies_have_words() {
        for policy in [OnMismatch::Quarantine, OnMismatch::Stop] {
            assert_eq!(OnMismatch::of(policy.as_str()), Some(policy));
        }
        assert_eq!(OnMismatch::of("ignore"), None);
    }

    #[test]
    fn an_age_needs_an_audit() {
        let none = BucketAudit::default();
        assert_eq!(none.age(Micros(9)), None);
        assert_eq!(BucketAudit { last: Some(Micros(4)), ..none }.age(Micros(9)), Some(Micros(5)));
    }
}
