//! A writer of small GGUF and safetensors files that may lie.
#![allow(dead_code)]

use std::path::PathBuf;

/// A GGUF file in parts, each of which a test can falsify before [`GgufFile::bytes`].
#[derive(Clone)]
pub struct GgufFile {
    pub magic: [u8; 4],
    pub version: u32,
    pub tensor_count: Option<u64>,
    pub metadata_count: Option<u64>,
    /// Key and encoded type and value.
    pub metadata: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<GgufTensor>,
    pub data_bytes: u64,
}

#[derive(Clone)]
pub struct GgufTensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub kind: u32,
    pub offset: u64,
}

pub fn u32_value(v: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), v.to_le_bytes()].concat()
}

pub fn f32_value(v: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), v.to_le_bytes()].concat()
}

pub fn raw_string(s: &[u8]) -> Vec<u8> {
    [&(s.len() as u64).to_le_bytes()[..], s].concat()
}

pub fn string_value(s: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &raw_string(s.as_bytes())].concat()
}

/// An array of values of a type id, of which `items` are already encoded.
pub fn array_value(of: u32, items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = [9u32.to_le_bytes(), of.to_le_bytes()].concat();
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| out.extend(item));
    out
}

pub fn strings_value(items: &[&str]) -> Vec<u8> {
    let items: Vec<_> = items.iter().map(|s| raw_string(s.as_bytes())).collect();
    array_value(8, &items)
}

impl GgufFile {
    /// A sound Llama of one layer: width 32, 2 heads, 8 tokens, with a vocabulary.
    pub fn llama() -> GgufFile {
        let mut file = GgufFile {
            magic: *b"GGUF",
            version: 3,
            tensor_count: None,
            metadata_count: None,
            metadata: Vec::new(),
            tensors: Vec::new(),
            data_bytes: 0,
        };
        file.set("general.architecture", string_value("llama"));
        file.set("general.name", string_value("fault"));
        for (key, v) in [
            ("context_length", 64),
            ("embedding_length", 32),
            ("block_count", 1),
            ("feed_forward_length", 32),
            ("attention.head_count", 2),
            ("attention.head_count_kv", 1),
            ("rope.dimension_count", 16),
        ] {
            file.set(&format!("llama.{key}"), u32_value(v));
        }
        file.set("llama.attention.layer_norm_rms_epsilon", f32_value(1e-5));
        file.set("tokenizer.ggml.model", string_value("gpt2"));
        file.set("tokenizer.ggml.tokens", strings_value(&["a", "b", "c", "d", "e", "f", "g", "h"]));
        let types: Vec<_> = (0..8u32).map(|_| 1i32.to_le_bytes().to_vec()).collect();
        file.set("tokenizer.ggml.token_type", array_value(5, &types));
        file.set("tokenizer.ggml.merges", strings_value(&["a b", "c d"]));
        file.set("tokenizer.ggml.bos_token_id", u32_value(1));
        file.set("tokenizer.ggml.eos_token_id", u32_value(2));
        file.set("tokenizer.ggml.add_bos_token", [&7u32.to_le_bytes()[..], &[1]].concat());
        for (name, dims) in [
            ("token_embd.weight", &[32u64, 8][..]),
            ("blk.0.attn_norm.weight", &[32]),
            ("blk.0.attn_q.weight", &[32, 32]),
            ("blk.0.attn_k.weight", &[32, 16]),
            ("blk.0.attn_v.weight", &[32, 16]),
            ("blk.0.attn_output.weight", &[32, 32]),
            ("blk.0.ffn_norm.weight", &[32]),
            ("blk.0.ffn_gate.weight", &[32, 32]),
            ("blk.0.ffn_up.weight", &[32, 32]),
            ("blk.0.ffn_down.weight", &[32, 32]),
            ("output_norm.weight", &[32]),
        ] {
            file.add(name, dims);
        }
        file
    }

    /// Adds an F32 tensor behind the others.
    pub fn add(&mut self, name: &str, dims: &[u64]) {
        let (name, dims, offset) = (name.to_owned(), dims.to_vec(), self.data_bytes);
        self.data_bytes += (dims.iter().product::<u64>() * 4).next_multiple_of(32);
        self.tensors.push(GgufTensor { name, dims, kind: 0, offset });
    }

    pub fn set(&mut self, key: &str, value: Vec<u8>) {
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
    }

    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    pub fn tensor(&mut self, name: &str) -> &mut GgufTensor {
        self.tensors.iter_mut().find(|t| t.name == name).expect("a tensor of that name")
    }

    pub fn header(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.metadata_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            out.extend(raw_string(key.as_bytes()));
            out.extend(value);
        }
        for t in &self.tensors {
            out.extend(raw_string(t.name.as_bytes()));
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.header();
        out.resize(out.len().next_multiple_of(32), 0);
        // Ones, so that norms and rope factors are sound values.
        (0..self.data_bytes / 4).for_each(|_| out.extend(1f32.to_le_bytes()));
        out
    }
}

/// A safetensors file of a header's text and zeroes.
pub fn safetensors(header: &str, data_bytes: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data_bytes, 0);
    out
}

#[path = "../../../../tests/support/model_files.rs"]
mod model_files;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub use model_files::tiny as fixture;

/// A folder of its own that is removed when the test ends.
pub struct TempFolder(pub PathBuf);

impl TempFolder {
    pub fn new(name: &str) -> TempFolder {
        let path = std::env::temp_dir().join(format!("lockstep-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        TempFolder(path)
    }

    /// The fixture folder's files, copied.
    pub fn copy_of(name: &str, fixture_name: &str) -> TempFolder {
        let folder = TempFolder::new(name);
        for entry in std::fs::read_dir(fixture(fixture_name)).unwrap() {
            let from = entry.unwrap().path();
            std::fs::copy(&from, folder.0.join(from.file_name().unwrap())).unwrap();
        }
        folder
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).unwrap();
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
