//! Golden vectors in safetensors files.

use lockstep_weights::safetensors;
use std::collections::HashMap;
use std::path::Path;

/// The tensors of a file: all of them 32-bit words.
pub struct Golden(HashMap<String, (Vec<usize>, Vec<u32>)>);

impl Golden {
    pub fn read(path: &Path) -> Golden {
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let tensors = safetensors::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
        let word = |b: &[u8]| u32::from_le_bytes(b.try_into().unwrap());
        let of = |t: safetensors::SafeTensor| {
            let words: Vec<u32> = bytes[t.range].chunks_exact(4).map(word).collect();
            let shape: Vec<usize> = t.shape.iter().map(|d| *d as usize).collect();
            assert_eq!(words.len(), shape.iter().product::<usize>(), "{} has words", t.name);
            (t.name, (shape, words))
        };
        Golden(tensors.into_iter().map(of).collect())
    }

    pub fn words(&self, name: &str) -> &[u32] {
        &self.0.get(name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// Row `i` as floats.
    pub fn floats(&self, name: &str, i: usize) -> Vec<f32> {
        self.row(name, i).iter().map(|w| f32::from_bits(*w)).collect()
    }

    pub fn row(&self, name: &str, i: usize) -> &[u32] {
        let (shape, words) = &self.0[name];
        let len: usize = shape[1..].iter().product();
        &words[i * len..][..len]
    }

    pub fn rows(&self, name: &str) -> usize {
        self.0[name].0[0]
    }
}
