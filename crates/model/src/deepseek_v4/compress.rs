//! A compressor's ops: values and gates of the step's tokens, kept, then pooled where a window
//! closes.

use super::state::Paged;
use super::{DeepSeekV4, Step, product, v4_on};
use crate::ModelError;
use crate::emit::Emit;
use lockstep_plan::v4::{CompressRows, StateStore, V4Op};
use lockstep_plan::{Axis, BufferId, LaneId};
use lockstep_weights::{Compression, Role, V4Place, V4Role};

/// Which of a layer's compressors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Of key-value rows.
    Core,
    /// Of index keys.
    Index,
}

/// A compressor's roles and pages.
struct Parts {
    kv: V4Role,
    gate: V4Role,
    ape: V4Role,
    norm: V4Role,
    state: Paged,
    rows: Paged,
    name: &'static str,
}

impl Which {
    const fn parts(self) -> Parts {
        match self {
            Which::Core => Parts {
                kv: V4Role::CompressKv,
                gate: V4Role::CompressGate,
                ape: V4Role::CompressApe,
                norm: V4Role::CompressNorm,
                state: Paged::State,
                rows: Paged::Rows,
                name: "compress",
            },
            Which::Index => Parts {
                kv: V4Role::IndexKv,
                gate: V4Role::IndexGate,
                ape: V4Role::IndexApe,
                norm: V4Role::IndexNorm,
                state: Paged::IndexState,
                rows: Paged::IndexRows,
                name: "index_compress",
            },
        }
    }
}

impl DeepSeekV4 {
    /// Returns the pages of the compressed rows.
    pub(super) fn compress(
        &self,
        e: &mut Emit<'_>,
        step: &Step,
        layer: u32,
        (which, lane): (Which, LaneId),
        row: BufferId,
    ) -> Result<BufferId, ModelError> {
        let (spec, compression) = (&self.spec, self.compression(layer));
        let place = V4Place::Layer(layer);
        let p = which.parts();
        let of = |paged: Paged| paged.row(spec, compression).expect("the layer is compressed");
        let ((cols, _), (dim, ratio)) = (of(p.state), of(p.rows));
        let (channels, d) = (cols / 2, spec.hidden);
        let parts = vec![
            e.part(Role::V4(place, p.kv), (channels, d, 0), None)?,
            e.part(Role::V4(place, p.gate), (channels, d, channels), None)?,
        ];
        let name = format!("{place}{}", p.name);
        let x = product(e, (lane, Axis::T), &format!("{name}_kv_gate"), (row, d), parts);
        let state = p.state.declare(e, spec, place);
        let write_slots = step.inputs.write_slots;
        let store = StateStore { x, cols, write_slots, pages: state };
        v4_on(e, lane, format!("{name}_store"), V4Op::StateStore(store));
        let rows = p.rows.declare(e, spec, place);
        let op = CompressRows {
            state,
            ratio,
            overlap: compression == Compression::C4,
            dim,
            ape: e.vector(Role::V4(place, p.ape), ratio * channels),
            norm: e.vector(Role::V4(place, p.norm), dim),
            eps_bits: spec.norm_eps.to_bits(),
            rope: step.ropes[1],
            tables: step.tables,
            write_slots,
            rows,
            code: p.rows.code(spec, e.shape),
        };
        v4_on(e, lane, format!("{name}_rows"), V4Op::CompressRows(op));
        Ok(rows)
    }
}
