//! What the audit found, as data and in words.

use super::trace::Trace;
use lockstep_device::DeviceError;
use lockstep_flow::{AuditMismatch, AuditPart, AuditPartUse, BucketKey, Micros, PageId};
use lockstep_pool::PoolError;

/// Evidence that is kept, at most, and kinds of mismatches that are told apart.
const KEPT_MAX: usize = 16;
const KINDS_MAX: usize = 64;

/// Where in a buffer a difference lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In this page.
    Page(u32),
    /// In the state of this sequence slot.
    Slot(u32),
    /// In this row.
    Row(u64),
    /// The buffer has none of these.
    Whole,
}

/// A compared point that differs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Point {
    /// The buffer's name.
    pub buffer: String,
    /// Where in it.
    pub place: Place,
    /// The first byte that differs, counted from the start of the place; unknown where digests
    /// were compared.
    pub byte: Option<u64>,
}

/// When a page's digest was compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A sequence took it from the prefix cache.
    Hit,
    /// A step was about to read it.
    Read,
    /// The sweep came by.
    Sweep,
}

/// What differs.
#[derive(Clone, PartialEq, Debug)]
pub enum Finding {
    /// A table entry.
    Table(PoolError),
    /// Replay and twin, at `point` first; `trace` is what running both op by op showed.
    Twin { point: Point, trace: Result<Trace, DeviceError>, requests: u32 },
    /// A closed page.
    Page { page: PageId, buffer: String, kept: u64, found: u64, seen: Seen },
    /// Two pages of the same tokens.
    Merge { own: PageId, known: PageId, buffer: String, of_own: u64, of_known: u64 },
    /// A chunk of a weight.
    Weight { name: String, offset: u64, bytes: u64, kept: u64, found: u64 },
}

/// A finding and the step it belongs to.
#[derive(Clone, PartialEq, Debug)]
pub struct Evidence {
    /// Number and bucket of the step, where one was checked.
    pub step: Option<(u64, BucketKey)>,
    /// What differs.
    pub finding: Finding,
}

/// The model's layer that a buffer belongs to: `layers.7.k_pages` is of 7.
pub fn layer_of(buffer: &str) -> Option<u32> {
    buffer.split('.').find_map(|part| part.parse().ok())
}

impl Finding {
    /// Which part found it.
    pub const fn part(&self) -> AuditPart {
        match self {
            Finding::Table(_) => AuditPart::Tables,
            Finding::Twin { .. } => AuditPart::Twin,
            Finding::Page { .. } | Finding::Merge { .. } => AuditPart::Pages,
            Finding::Weight { .. } => AuditPart::Weights,
        }
    }

    /// The layer where the difference begins.
    pub fn layer(&self) -> Option<u32> {
        match self {
            Finding::Table(_) => None,
            Finding::Twin { point, trace, .. } => match trace {
                Ok(Trace::Op { op, buffer, .. }) => layer_of(op).or_else(|| layer_of(buffer)),
                Ok(Trace::Input { .. } | Trace::Gone) | Err(_) => layer_of(&point.buffer),
            },
            Finding::Page { buffer, .. } | Finding::Merge { buffer, .. } => layer_of(buffer),
            Finding::Weight { name, .. } => layer_of(name),
        }
    }
}

impl core::fmt::Display for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Place::Page(page) => write!(f, " of page {page}"),
            Place::Slot(slot) => write!(f, " of slot {slot}"),
            Place::Row(row) => write!(f, " of row {row}"),
            Place::Whole => Ok(()),
        }
    }
}

impl core::fmt::Display for Point {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.byte {
            Some(byte) => write!(f, "{} differs at byte {byte}{}", self.buffer, self.place),
            None => write!(f, "{} differs in the bytes{}", self.buffer, self.place),
        }
    }
}

impl core::fmt::Display for Finding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Finding::Table(e) => write!(f, "{e}"),
            Finding::Twin { point, trace, requests } => {
                write!(f, "replay and eager twin part ways: {point}; ")?;
                match trace {
                    Ok(trace) => write!(f, "{trace}")?,
                    Err(e) => write!(f, "running both op by op failed: {e}")?,
                }
                write!(f, "; {requests} requests ended for it")
            }
            Finding::Page { page, buffer, kept, found, seen } => {
                let seen = match seen {
                    Seen::Hit => "taken from the prefix cache",
                    Seen::Read => "about to be read by a step",
                    Seen::Sweep => "swept",
                };
                write!(
                    f,
                    "page {page} was {seen} and is not what it closed with: {buffer} has digest \
                     {found:016x}, closed with {kept:016x}"
                )
            }
            Finding::Merge { own, known, buffer, of_own, of_known } => write!(
                f,
                "pages {own} and {known} hold the same tokens and other bytes: {buffer} has \
                 digest {of_own:016x} in one and {of_known:016x} in the other"
            ),
            Finding::Weight { name, offset, bytes, kept, found } => write!(
                f,
                "weight {name} is not what was loaded: bytes {offset} to {} have digest \
                 {found:016x}, were loaded with {kept:016x}",
                offset + bytes
            ),
        }
    }
}

impl core::fmt::Display for Evidence {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: ", self.finding.part())?;
        if let Some((step, bucket)) = self.step {
            write!(f, "step {step} of bucket {bucket}: ")?;
        }
        write!(f, "{}", self.finding)
    }
}

/// Counts and findings.
#[derive(Debug)]
pub struct Findings {
    /// By part.
    pub parts: [AuditPartUse; AuditPart::ALL.len()],
    /// Mismatches by part, bucket and layer, the first kinds.
    pub kinds: Vec<AuditMismatch>,
    /// The first findings.
    pub evidence: Vec<Evidence>,
}

impl Findings {
    /// Nothing yet.
    pub fn new() -> Findings {
        let parts = [AuditPartUse::default(); AuditPart::ALL.len()];
        let (kinds, evidence) = (Vec::with_capacity(KINDS_MAX), Vec::with_capacity(KEPT_MAX));
        Findings { parts, kinds, evidence }
    }

    /// A part made `audits` checks over `bytes` bytes.
    pub fn checked(&mut self, part: AuditPart, audits: u64, bytes: u64) {
        let of = &mut self.parts[part as usize];
        of.audits += audits;
        of.bytes += bytes;
    }

    /// A part has had the step thread for so long.
    pub fn spent(&mut self, part: AuditPart, time: Micros) {
        self.parts[part as usize].time.0 += time.0;
    }

    /// A check found something.
    pub fn found(&mut self, evidence: Evidence) {
        let (part, layer) = (evidence.finding.part(), evidence.finding.layer());
        let bucket = evidence.step.map(|(_, bucket)| bucket);
        self.parts[part as usize].mismatches += 1;
        let same = |k: &&mut AuditMismatch| (k.part, k.bucket, k.layer) == (part, bucket, layer);
        if let Some(kind) = self.kinds.iter_mut().find(same) {
            kind.count += 1;
        } else if self.kinds.len() < KINDS_MAX {
            self.kinds.push(AuditMismatch { part, bucket, layer, count: 1 });
        }
        if self.evidence.len() < KEPT_MAX {
            self.evidence.push(evidence);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_read_from_names() {
        assert_eq!(layer_of("layers.7.k_pages"), Some(7));
        assert_eq!(layer_of("layers.29.attention_partial"), Some(29));
        assert_eq!(layer_of("logits"), None);
    }

    #[test]
    fn mismatches_are_counted_by_kind_and_the_first_are_kept() {
        let mut findings = Findings::new();
        for i in 0..100u32 {
            let buffer = format!("layers.{}.k_pages", i % 2);
            let (kept, found) = (1, 2);
            let finding = Finding::Page { page: PageId(i), buffer, kept, found, seen: Seen::Sweep };
            findings.found(Evidence { step: None, finding });
        }
        assert_eq!(findings.parts[AuditPart::Pages as usize].mismatches, 100);
        let counts: Vec<_> = findings.kinds.iter().map(|k| (k.layer, k.count)).collect();
        assert_eq!(counts, [(Some(0), 50), (Some(1), 50)]);
        assert_eq!(findings.evidence.len(), KEPT_MAX);
        let words = findings.evidence[0].to_string();
        assert!(words.starts_with("pages: page 0 was swept and is not what"), "{words}");
    }
}
