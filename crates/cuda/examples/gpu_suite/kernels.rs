//! Kernels compiled at run time: NVRTC's give the bits of those that are built in, and a second
//! start takes them from the disk.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Outcome, Rng, gpu, gpu_with, greedy, model};
use lockstep_cuda::{CudaDevice, KernelSource};
use lockstep_engine::Knobs;
use std::path::Path;
use std::time::Instant;

fn answers(device: CudaDevice, path: &Path) -> Vec<Outcome> {
    let knobs = Knobs {
        graph_max_bs: 8,
        running_max: 8,
        chunk_tokens: 128,
        kv_bytes: 64 << 20,
        context_tokens: 512,
        prefix_cache: false,
        ..Knobs::default()
    };
    let mut rng = Rng(0xc0de);
    let one = |i: u32| Ask { prompt: rng.prompt(40 + 30 * i as usize, 256), params: greedy(32) };
    let asks: Vec<Ask> = (0..8).map(one).collect();
    Bed::new(Box::new(device), model(path, false), knobs, Keep::Rows).run(&asks, 3)
}

pub fn run(fixtures: &Path, table: &mut Table) {
    let about = match lockstep_cuda::compiler() {
        Ok(about) => about,
        Err(e) => return table.verdict(false, format!("kernels: {e}")),
    };
    let (major, minor) = about.version;
    let cache = std::env::temp_dir().join(format!("lockstep-kernels-{}", std::process::id()));
    let target = lockstep_cuda::target(gpu().capability());
    let timed = || {
        let start = Instant::now();
        let made = lockstep_cuda::compile(&target, Some(&cache));
        made.map(|made| (made.cubins.len(), made.kept, start.elapsed().as_secs_f64()))
    };
    let (first, again) = match (timed(), timed()) {
        (Ok(first), Ok(again)) => (first, again),
        (Err(e), _) | (_, Err(e)) => return table.verdict(false, format!("kernels: {e}")),
    };
    table.verdict(
        first.1 == 0 && again.1 == again.0,
        format!(
            "kernels: NVRTC {major}.{minor} compiles {} files for {target} in {:.1} s; again, {} of \
             them from the disk, in {:.2} s",
            first.0, first.2, again.1, again.2
        ),
    );
    let compiled = KernelSource::Compiled { cache: Some(cache.clone()) };
    for name in ["qwen3", "gguf/wide-Q4_1.gguf"] {
        let path = fixtures.join("tiny").join(name);
        let same = answers(gpu(), &path) == answers(gpu_with(&compiled), &path);
        let text = format!("kernels: {name}: NVRTC's give the bits of those that are built in");
        table.verdict(same, text);
    }
    // What cannot be deleted is in the folder for temporary files.
    let _ = std::fs::remove_dir_all(&cache);
}
