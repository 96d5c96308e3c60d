//! Which weights a plan binds, and what each is made of.

use lockstep_plan::format::Format;
use lockstep_weights::Role;

/// One weight buffer to fill at load.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightLoad {
    /// The buffer's name in every plan.
    pub buffer: String,
    /// What goes in.
    pub source: WeightSource,
}

/// What a weight buffer is made of.
#[derive(Clone, PartialEq, Debug)]
pub enum WeightSource {
    /// A matrix of the checkpoint, packed by the device.
    Matrix { role: Role },
    /// A vector of the checkpoint, as f32.
    Vector { role: Role },
    /// Matrices of the checkpoint one under the other, packed by the device as one of `format`.
    Stack { roles: Vec<Role>, format: Format },
    /// The experts of every token, where a table chooses those of a layer.
    ExpertTable { layer: u32, role: Role },
    /// Values computed here (RoPE tables).
    Values(Vec<f32>),
}

/// One sub-pool of the token pool: bytes that every page of it takes, over all layers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubPool {
    /// `full` for plain KV; others name their rows.
    pub name: String,
    /// State buffers whose pages move together, with the bytes of one page of each.
    pub buffers: Vec<(String, u64)>,
}

impl SubPool {
    /// Bytes of one page over all its buffers.
    pub fn page_bytes(&self) -> u64 {
        self.buffers.iter().map(|(_, bytes)| bytes).sum()
    }
}
