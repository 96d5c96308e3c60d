//! Where the models are, and what `transformers` says of the tiny ones.

use std::path::Path;

#[path = "../../../../tests/support/model_files.rs"]
mod model_files;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use model_files::{smollm2, tiny};

/// What `transformers` computed of a tiny model.
pub struct Reference {
    pub prompt: Vec<u32>,
    /// The greedy continuation.
    pub greedy: Vec<u32>,
    logits: Vec<f32>,
    cols: usize,
    first: u32,
    every: u32,
}

impl Reference {
    pub fn read(folder: &Path) -> Reference {
        let json = std::fs::read(folder.join("reference.json")).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let raw = std::fs::read(folder.join("logits.f32")).unwrap();
        let int = |v: &serde_json::Value| v.as_u64().unwrap() as u32;
        let ints = |key: &str| json[key].as_array().unwrap().iter().map(int).collect();
        let layout = &json["logits"];
        let float = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
        let reference = Reference {
            prompt: ints("prompt"),
            greedy: ints("greedy"),
            logits: raw.chunks_exact(4).map(float).collect(),
            cols: int(&layout["cols"]) as usize,
            first: int(&layout["first_position"]),
            every: int(&layout["every"]),
        };
        let rows = int(&layout["rows"]) as usize;
        assert_eq!(reference.logits.len(), rows * reference.cols);
        assert!(rows > 0 && !reference.greedy.is_empty());
        reference
    }

    /// Positions with reference logits.
    pub fn positions(&self) -> impl Iterator<Item = (u32, &[f32])> {
        let position = |(r, row)| (self.first + r as u32 * self.every, row);
        self.logits.chunks_exact(self.cols).enumerate().map(position)
    }

    /// Reference logits at a position.
    pub fn at(&self, position: u32) -> &[f32] {
        let (_, row) = self.positions().find(|(p, _)| *p == position).expect("a known position");
        row
    }

    /// The greatest distance between the reference and `logits(position)`.
    pub fn worst<'a>(&self, logits: impl Fn(u32) -> &'a [f32]) -> f32 {
        let worst_of = |(position, row): (u32, &[f32])| {
            let got = logits(position);
            assert_eq!(got.len(), row.len());
            row.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        self.positions().map(worst_of).fold(0.0, f32::max)
    }
}
