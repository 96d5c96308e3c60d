//! The layers that can see a fault.

use core::fmt;
use lockstep_flow::AuditPart;

/// Who sees a fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layer {
    /// `prove`, before anything runs.
    Prover,
    /// Random orders of the plan, dead bytes poisoned.
    Explorer,
    /// Its lanes on real threads, delayed around edges.
    Threads,
    /// The pool, which refuses to sign.
    Lease,
    /// A part of the audit, while the engine serves.
    Audit(AuditPart),
    /// The engine itself: a result that no sound step gives ends the request with words.
    Engine,
}

impl Layer {
    /// Every layer.
    pub const ALL: [Layer; 9] = [
        Layer::Prover,
        Layer::Explorer,
        Layer::Threads,
        Layer::Lease,
        Layer::Audit(AuditPart::Tables),
        Layer::Audit(AuditPart::Twin),
        Layer::Audit(AuditPart::Pages),
        Layer::Audit(AuditPart::Weights),
        Layer::Engine,
    ];

    /// Its name in `lockstep drill` and `docs/drills.md`.
    pub const fn name(self) -> &'static str {
        match self {
            Layer::Prover => "prover",
            Layer::Explorer => "explorer",
            Layer::Threads => "threads",
            Layer::Lease => "lease",
            Layer::Audit(AuditPart::Tables) => "audit.tables",
            Layer::Audit(AuditPart::Twin) => "audit.twin",
            Layer::Audit(AuditPart::Pages) => "audit.pages",
            Layer::Audit(AuditPart::Weights) => "audit.weights",
            Layer::Engine => "engine",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
