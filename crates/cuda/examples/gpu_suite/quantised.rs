//! Matrices that stay as their file has them give the bits of those that are decoded when they are
//! loaded, in a fraction of the memory.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Outcome, Rng, gpu, greedy, model};
use lockstep_cuda::Probe;
use lockstep_engine::Knobs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FILES: [&str; 4] = ["wide-Q8_0", "wide-Q4_0", "wide-Q4_1", "wide-Q4_K"];

fn asks() -> Vec<Ask> {
    let mut rng = Rng(0x9a47);
    let one = |_| {
        let len = 1 + rng.below(300) as usize;
        Ask { prompt: rng.prompt(len, 256), params: greedy(24) }
    };
    (0..40).map(one).collect()
}

/// What came of the requests, and bytes of weights on the GPU.
fn answers(path: &Path, quantised: bool) -> (Vec<Outcome>, u64) {
    let knobs = Knobs {
        graph_max_bs: 40,
        running_max: 40,
        chunk_tokens: 512,
        kv_bytes: 256 << 20,
        context_tokens: 512,
        prefix_cache: false,
        audit_rate: 0,
        ..Knobs::default()
    };
    let mut device = gpu();
    assert!(device.set_quantised(quantised), "before anything is loaded, on Hopper");
    let probe = Arc::new(Probe::default());
    device.set_probe(probe.clone());
    let mut bed = Bed::new(Box::new(device), model(path, false), knobs, Keep::Rows);
    (bed.run(&asks(), 3), probe.captures().weight_bytes)
}

pub fn run(fixtures: &Path, real: Option<&Path>, table: &mut Table) {
    let tiny = FILES.map(|name| fixtures.join(format!("tiny/gguf/{name}.gguf")));
    for path in tiny.into_iter().chain(real.map(PathBuf::from)) {
        let (fused, fused_bytes) = answers(&path, true);
        let (decoded, decoded_bytes) = answers(&path, false);
        let rows: usize = fused.iter().map(|o| o.rows.len()).sum();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        table.verdict(
            fused == decoded && rows > 0,
            format!(
                "quantised {name}: the bits of decoded matrices in {rows} rows of logits; weights take \
                 {:.1} MiB, decoded {:.1}",
                fused_bytes as f64 / 1048576.0,
                decoded_bytes as f64 / 1048576.0
            ),
        );
    }
}
