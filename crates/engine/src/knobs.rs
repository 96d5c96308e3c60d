//! The engine's knobs as plain numbers, taken from the registry in `flow`.

use lockstep_flow::generation::{GenerationError, KnobInForce};
use lockstep_flow::knobs::{Knob, Shapes, Value};
use lockstep_flow::{AuditPart, Micros, OnMismatch};
use lockstep_plan::{IndexDtype, KvDtype};

/// What the engine is told (see `lockstep_flow::knobs::KNOBS` for meaning and bounds).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// `decode.graph-max-bs`.
    pub graph_max_bs: u32,
    /// `sched.max-running-requests`.
    pub running_max: u32,
    /// `sched.max-queued-requests`.
    pub queued_max: u32,
    /// `sched.chunked-prefill-size`, in tokens.
    pub chunk_tokens: u32,
    /// `sched.prefix-cache`.
    pub prefix_cache: bool,
    /// `pool.kv-memory`, in bytes.
    pub kv_bytes: u64,
    /// `pool.kv-dtype`; `None` is auto.
    pub kv_dtype: Option<KvDtype>,
    /// `pool.index-dtype`; auto is f32.
    pub index_dtype: IndexDtype,
    /// `decode.lanes`.
    pub lanes: u32,
    /// `decode.pipelined`.
    pub pipelined: bool,
    /// `decode.mtp-drafts`.
    pub drafts: u32,
    /// `model.context-length`, in tokens; 0 is the model's own.
    pub context_tokens: u32,
    /// `audit.rate`: one step in this many; 0 is off.
    pub audit_rate: u32,
    /// `audit.on-mismatch`.
    pub on_mismatch: OnMismatch,
    /// How long a digest that was found true counts before its page is compared again where it is
    /// read or swept; a pass over the weights takes twice as long at least. Zero: never.
    pub audit_proof_age: Micros,
    /// Of the pages that sequences have just taken from the prefix cache, bytes that are compared
    /// before one step; a row whose pages are more waits for the next steps. 16 MiB are about 1 ms
    /// of two cores.
    pub audit_hit_bytes: u64,
    /// Which parts of the audit are on, in the order of [`AuditPart::ALL`]: a drill asks each
    /// alone.
    pub audit_parts: [bool; AuditPart::ALL.len()],
    /// Every step op by op (tests and the isolation ladder).
    pub eager: bool,
    /// `generations.watch`, in seconds.
    pub watch_s: u32,
    /// `generations.memory`, in bytes: of the arenas of a staged generation, at most; 0 is what
    /// the machine has.
    pub staging_bytes: u64,
    /// `generations.verify-first`: the buckets of the first generation are verified while it
    /// serves. A loop that somebody else turns does not.
    pub verify_first: bool,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            graph_max_bs: 32,
            running_max: 256,
            queued_max: 1024,
            chunk_tokens: 512,
            prefix_cache: true,
            kv_bytes: 1 << 30,
            kv_dtype: None,
            index_dtype: IndexDtype::F32,
            lanes: 8,
            pipelined: true,
            drafts: 0,
            context_tokens: 0,
            audit_rate: 1000,
            on_mismatch: OnMismatch::Quarantine,
            audit_proof_age: Micros::from_millis(30_000),
            audit_hit_bytes: 16 << 20,
            audit_parts: [true; AuditPart::ALL.len()],
            eager: false,
            watch_s: 60,
            staging_bytes: 0,
            verify_first: true,
        }
    }
}

/// A change of one knob, as the registry has parsed it.
pub type KnobChange = (&'static Knob, Value);

impl Knobs {
    /// The knobs that a generation has, and their values.
    pub fn of_generation(&self) -> [(&'static str, String); 6] {
        [
            ("decode.graph-max-bs", self.graph_max_bs.to_string()),
            ("decode.lanes", self.lanes.to_string()),
            ("decode.eager", self.eager.to_string()),
            ("sched.max-running-requests", self.running_max.to_string()),
            ("sched.chunked-prefill-size", self.chunk_tokens.to_string()),
            ("audit.rate", self.audit_rate.to_string()),
        ]
    }

    /// The same with what differs from `before`.
    pub fn in_force(&self, before: &Knobs) -> Vec<KnobInForce> {
        let both = self.of_generation().into_iter().zip(before.of_generation());
        both.map(|((name, value), (_, was))| {
            let was = Some(was).filter(|was| *was != value);
            KnobInForce { name, value, was }
        })
        .collect()
    }

    /// These knobs with changes, for a generation that can be flipped to while requests run.
    /// `start` are the knobs that the engine began with, and sized its state by.
    ///
    /// # Errors
    /// A knob that no live flip can change, with what would.
    pub fn with(&self, start: &Knobs, changes: &[KnobChange]) -> Result<Knobs, GenerationError> {
        let mut knobs = self.clone();
        for (knob, value) in changes {
            let number = match value {
                Value::Number(n) => u32::try_from(*n).unwrap_or(u32::MAX),
                Value::Text(_) | Value::Flag(_) => 0,
            };
            match knob.name {
                "decode.graph-max-bs" => knobs.graph_max_bs = number,
                "decode.lanes" => knobs.lanes = number,
                "decode.eager" => knobs.eager = *value == Value::Flag(true),
                "sched.max-running-requests" if number <= start.running_max => {
                    knobs.running_max = number;
                }
                "sched.max-running-requests" => return Err(too_many(knob, number, start)),
                "sched.chunked-prefill-size" => knobs.chunk_tokens = number,
                "audit.rate" => knobs.audit_rate = number,
                _ => return Err(not_live(knob)),
            }
        }
        Ok(knobs)
    }
}

fn too_many(knob: &'static Knob, found: u32, start: &Knobs) -> GenerationError {
    let what = format!(
        "is {found}, and the slots that were bound at the start are for {}: take at most that, or \
         restart with --{} {found}",
        start.running_max, knob.flag
    );
    GenerationError::Knob { name: knob.name, what }
}

/// Why a live flip cannot change a knob.
fn not_live(knob: &'static Knob) -> GenerationError {
    let why = match knob.shapes {
        Shapes::StateLayout => "changes where the state of running sequences lies",
        Shapes::Numerics => "changes bits, and running sequences would change theirs",
        Shapes::Process => "is fixed for the life of the process",
        Shapes::Plan | Shapes::Nothing => "is no part of a generation",
    };
    let what = format!("{why}: drain the server and restart it with --{}", knob.flag);
    GenerationError::Knob { name: knob.name, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_flow::knobs::find;

    fn change(name: &str, value: &str) -> KnobChange {
        let knob = find(name).unwrap_or_else(|| panic!("{name} is a knob"));
        (knob, knob.parse(value).unwrap_or_else(|e| panic!("{e}")))
    }

    #[test]
    fn a_change_says_what_differs_and_nothing_else() {
        let start = Knobs::default();
        let changes = [change("decode.graph-max-bs", "96"), change("decode.lanes", "8")];
        let knobs = start.with(&start, &changes).unwrap();
        assert_eq!(knobs, Knobs { graph_max_bs: 96, ..start.clone() });
        let differs: Vec<_> =
            knobs.in_force(&start).into_iter().filter(|k| k.was.is_some()).collect();
        let was = Some("32".into());
        assert_eq!(differs, [KnobInForce { name: "decode.graph-max-bs", value: "96".into(), was }]);
    }

    #[test]
    fn knobs_of_state_bits_and_process_are_refused_with_what_would_work() {
        let start = Knobs::default();
        let refused =
            |name, value| start.with(&start, &[change(name, value)]).unwrap_err().to_string();
        assert_eq!(
            refused("pool.kv-memory", "2GiB"),
            "pool.kv-memory changes where the state of running sequences lies: drain the server \
             and restart it with --kv-memory"
        );
        assert!(refused("pool.kv-dtype", "f32").contains("changes bits"));
        assert!(refused("device.threads", "1").contains("life of the process"));
        assert!(refused("sched.prefix-cache", "false").contains("no part of a generation"));
        assert_eq!(
            refused("sched.max-running-requests", "257"),
            "sched.max-running-requests is 257, and the slots that were bound at the start are \
             for 256: take at most that, or restart with --max-running-requests 257"
        );
    }

    #[test]
    fn the_registry_has_every_knob_of_a_generation() {
        let start = Knobs::default();
        for (name, value) in start.of_generation() {
            assert_eq!(start.with(&start, &[change(name, &value)]).unwrap(), start, "{name}");
        }
    }
}
