//! A file's claims do not make the readers reserve memory.
//!
//! A count of 2^40 strings in a file of 2 KB must be refused before anything is reserved for it.
//! Address space is what a reservation takes even when no page of it is touched, so this compares
//! the process's peak of address space (`VmPeak`) before and after every header field of sound
//! files was overwritten with large numbers. One test, alone in its process, so that nothing else
//! moves the peak.
#![forbid(unsafe_code)]

mod common;

use common::{GgufFile, fixture};
use lockstep_weights::{Checkpoint, SourceFile, config_spec, safetensors};

const SLACK_KIB: u64 = 16 << 10;

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmPeak:")).expect("VmPeak");
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn open_gguf(bytes: &[u8]) {
    if let Ok(ckpt) = Checkpoint::from_gguf(SourceFile::in_memory("claim", bytes.to_vec())) {
        let _ = ckpt.vocab();
    }
}

fn claims() -> impl Iterator<Item = u64> {
    [8, 16, 20, 22, 24, 26, 28, 31, 32, 33, 36, 40, 48, 56, 60, 61, 62, 63]
        .into_iter()
        .flat_map(|shift| [1u64 << shift, (1 << shift) + 7])
        .chain([u64::MAX])
}

#[test]
fn claims_reserve_no_memory() {
    let mut file = GgufFile::llama();
    file.add("rope_freqs.weight", &[8]);
    let (sound, header) = (file.bytes(), file.header().len());
    let tensors = std::fs::read(fixture("llama/model.safetensors")).unwrap();
    let config = std::fs::read_to_string(fixture("llama3-rope/config.json")).unwrap();
    open_gguf(&sound);
    safetensors::parse(&tensors).unwrap();
    let before = peak_kib();

    for claim in claims() {
        for at in 4..header {
            let mut lie = sound.clone();
            let end = (at + 8).min(lie.len());
            lie[at..end].copy_from_slice(&claim.to_le_bytes()[..end - at]);
            open_gguf(&lie);
            // The same in the four bytes that many fields have.
            let mut lie = sound.clone();
            lie[at..at + 4].copy_from_slice(&claim.to_le_bytes()[..4]);
            open_gguf(&lie);
        }
    }
    let json_end = 8 + u64::from_le_bytes(tensors[..8].try_into().unwrap()) as usize;
    let json = core::str::from_utf8(&tensors[8..json_end]).unwrap();
    for claim in claims() {
        for lie in with_each_number(json, claim) {
            let mut file = common::safetensors(&lie, 0);
            file.extend(&tensors[json_end..]);
            let _ = safetensors::parse(&file);
        }
        for lie in with_each_number(&config, claim) {
            let _ = config_spec(lie.as_bytes());
        }
    }
    let grown = peak_kib() - before;
    assert!(grown <= SLACK_KIB, "the peak of address space grew by {grown} KiB");
}

/// The text once for each of its numbers, with that one replaced.
fn with_each_number(text: &str, claim: u64) -> Vec<String> {
    let bytes = text.as_bytes();
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let start = |&i: &usize| digit(i) && (i == 0 || !digit(i - 1));
    let replace = |at: usize| {
        let end = (at..).find(|&i| !digit(i)).unwrap();
        format!("{}{claim}{}", &text[..at], &text[end..])
    };
    (0..bytes.len()).filter(start).map(replace).collect()
}
