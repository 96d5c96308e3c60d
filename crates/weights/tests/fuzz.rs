//! Mutated model files: the readers answer with a model or with an error, never with a panic.
//!
//! Files are sound ones with bits flipped, bytes replaced, parts cut out, doubled or cut off, and
//! numbers overwritten with values that sit on edges. Half of the mutations fall into the header,
//! where they matter. Whatever opens is read to the last byte.
#![forbid(unsafe_code)]

mod common;

use std::sync::LazyLock;

use common::{GgufFile, TempFolder, fixture};
use lockstep_weights::{Checkpoint, ModelSpec, SourceFile, config_spec, safetensors};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Mutation {
    Flip { at: f64, bit: u8 },
    Set { at: f64, byte: u8 },
    Number { at: f64, value: u64, bytes: usize },
    Cut { at: f64, len: usize },
    Double { at: f64, len: usize },
    End { at: f64 },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let value = prop_oneof![
        (0u32..64).prop_map(|s| 1u64 << s),
        (0u32..64).prop_map(|s| (1u64 << s) - 1),
        (0u64..512).prop_map(|n| u64::MAX - n),
        0u64..1024,
        any::<u64>(),
    ];
    let at = 0.0..1.0f64;
    prop_oneof![
        3 => (at.clone(), 0u8..8).prop_map(|(at, bit)| Mutation::Flip { at, bit }),
        2 => (at.clone(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set { at, byte }),
        4 => (at.clone(), value, prop_oneof![Just(4usize), Just(8)])
            .prop_map(|(at, value, bytes)| Mutation::Number { at, value, bytes }),
        1 => (at.clone(), 1usize..64).prop_map(|(at, len)| Mutation::Cut { at, len }),
        1 => (at.clone(), 1usize..64).prop_map(|(at, len)| Mutation::Double { at, len }),
        1 => at.prop_map(|at| Mutation::End { at }),
    ]
}

/// Applies mutations; a position in the lower half of 0..1 falls into the header.
fn mutate(sound: &[u8], header: usize, mutations: &[Mutation]) -> Vec<u8> {
    let mut out = sound.to_vec();
    let place = |at: f64, len: usize| {
        let span = if at < 0.5 { header.min(len) } else { len };
        ((at * 2.0).fract() * span as f64) as usize
    };
    for m in mutations {
        let len = out.len();
        if len == 0 {
            break;
        }
        match *m {
            Mutation::Flip { at, bit } => out[place(at, len)] ^= 1 << bit,
            Mutation::Set { at, byte } => out[place(at, len)] = byte,
            Mutation::Number { at, value, bytes } => {
                let at = place(at, len);
                let end = (at + bytes).min(len);
                out[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            Mutation::Cut { at, len: cut } => {
                let at = place(at, len);
                out.drain(at..(at + cut).min(len));
            }
            Mutation::Double { at, len: part } => {
                let at = place(at, len);
                let copy = out[at..(at + part).min(len)].to_vec();
                out.splice(at..at, copy);
            }
            Mutation::End { at } => out.truncate(place(at, len)),
        }
    }
    out
}

/// Touches everything that a checkpoint gives out.
fn read_all(ckpt: &Checkpoint) {
    let sum: u64 =
        ckpt.tensors().map(|(_, t)| t.bytes.iter().map(|&b| u64::from(b)).sum::<u64>()).sum();
    std::hint::black_box(sum);
    for (role, t) in ckpt.tensors() {
        assert_eq!(
            t.bytes.len() as u64,
            t.format.bytes_for((t.rows * t.cols) as u64).unwrap(),
            "{role}"
        );
        std::hint::black_box(t.row(t.rows - 1));
    }
    let ModelSpec::Llama(spec) = ckpt.spec() else { panic!("a Llama") };
    assert!(spec.rope.inverse_frequencies().len() as u32 * 2 == spec.rope.rotary_dim);
    match ckpt.vocab() {
        Ok(Some(v)) => {
            let ids = [v.bos, v.eos, v.eot, v.eom, v.unk, v.sep, v.pad];
            assert!(ids.into_iter().flatten().all(|id| (id as usize) < v.tokens.len()));
        }
        Ok(None) => {}
        Err(e) => assert!(e.to_string().starts_with("mutated: "), "{e}"),
    }
}

fn open_gguf(bytes: Vec<u8>) {
    match Checkpoint::from_gguf(SourceFile::in_memory("mutated", bytes)) {
        Ok(ckpt) => read_all(&ckpt),
        Err(e) => assert!(e.to_string().starts_with("mutated: "), "{e}"),
    }
}

/// The file with every kind of metadata, and real files of several types.
static GGUF: LazyLock<Vec<(Vec<u8>, usize)>> = LazyLock::new(|| {
    let mut file = GgufFile::llama();
    file.add("rope_freqs.weight", &[8]);
    let mut out = vec![(file.bytes(), file.header().len())];
    for name in ["wide-Q4_K", "qwen2-BF16", "llama3-rope-F16"] {
        out.push((std::fs::read(fixture(&format!("gguf/{name}.gguf"))).unwrap(), 2000));
    }
    out
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_gguf_files(which in 0usize..4, mutations in prop::collection::vec(mutation(), 1..6)) {
        let (sound, header) = &GGUF[which];
        open_gguf(mutate(sound, *header, &mutations));
    }

    #[test]
    fn mutated_small_gguf_files(mutations in prop::collection::vec(mutation(), 1..3)) {
        let (sound, header) = &GGUF[0];
        open_gguf(mutate(sound, *header, &mutations));
    }

    #[test]
    fn arbitrary_bytes(tail in prop::collection::vec(any::<u8>(), 0..256)) {
        open_gguf([&b"GGUF\x03\0\0\0"[..], &tail].concat());
        let _ = safetensors::parse(&tail);
        let _ = config_spec(&tail);
    }

    #[test]
    fn mutated_safetensors_files(mutations in prop::collection::vec(mutation(), 1..6)) {
        static SOUND: LazyLock<Vec<u8>> =
            LazyLock::new(|| std::fs::read(fixture("qwen2/model.safetensors")).unwrap());
        let file = mutate(&SOUND, 2500, &mutations);
        if let Ok(tensors) = safetensors::parse(&file) {
            let mut at = tensors.first().map_or(file.len(), |t| t.range.start);
            for t in &tensors {
                assert_eq!(t.range.start, at, "no gap and no overlap");
                at = t.range.end;
            }
            assert_eq!(at, file.len());
        }
    }

    #[test]
    fn mutated_configs(mutations in prop::collection::vec(mutation(), 1..4)) {
        static SOUND: LazyLock<Vec<u8>> =
            LazyLock::new(|| std::fs::read(fixture("llama3-rope/config.json")).unwrap());
        match config_spec(&mutate(&SOUND, usize::MAX, &mutations)) {
            Ok(ModelSpec::Llama(spec)) => {
                assert!(spec.rope.inverse_frequencies().iter().all(|f| f.is_finite()));
            }
            Ok(_) => panic!("a Llama"),
            Err(e) => assert!(e.to_string().starts_with("config.json: "), "{e}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whole folders: one file of a sharded model is mutated.
    #[test]
    fn mutated_folders(which in 0usize..4, mutations in prop::collection::vec(mutation(), 1..4)) {
        const FILES: [&str; 4] = [
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        static FOLDER: LazyLock<TempFolder> = LazyLock::new(|| TempFolder::copy_of("fuzz", "qwen3"));
        let sound = std::fs::read(fixture("qwen3").join(FILES[which])).unwrap();
        FOLDER.write(FILES[which], mutate(&sound, 1500, &mutations));
        match Checkpoint::open(&FOLDER.0) {
            Ok(ckpt) => read_all(&ckpt),
            Err(e) => assert!(e.to_string().contains("lockstep-fuzz-"), "{e}"),
        }
        FOLDER.write(FILES[which], sound);
    }
}
