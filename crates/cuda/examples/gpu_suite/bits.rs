//! Contract 1 on the GPU: the same bits alone and in company, captured and op by op, in any bucket,
//! prefilled whole or in chunks, with the audit looking at every step.

use crate::Table;
use crate::bed::{Ask, Bed, Keep, Outcome, Rng, gpu, greedy, model};
use lockstep_cuda::Probe;
use lockstep_engine::Knobs;
use lockstep_flow::{SamplingParams, Seed};
use lockstep_plan::KvDtype;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn knobs() -> Knobs {
    Knobs {
        graph_max_bs: 96,
        running_max: 96,
        // So many that attention of a chunk takes whole rows, and turns the queries that it reads.
        chunk_tokens: 2048,
        kv_bytes: 512 << 20,
        // Of checkpoints in f32 too: other pages take kernels that share nothing.
        kv_dtype: Some(KvDtype::F16),
        audit_rate: 0,
        prefix_cache: false,
        context_tokens: 1024,
        ..Knobs::default()
    }
}

/// Four query heads of 128 channels a KV head, seeded weights.
const WIDE_HEADS: &str = r#"{"model_type":"qwen3","hidden_act":"silu","rms_norm_eps":1e-6,
    "rope_theta":1000000.0,"max_position_embeddings":4096,"attention_bias":false,
    "torch_dtype":"bfloat16","bos_token_id":1,"eos_token_id":2,"hidden_size":512,
    "intermediate_size":768,"num_hidden_layers":2,"num_attention_heads":32,
    "num_key_value_heads":8,"head_dim":128,"vocab_size":256,"tie_word_embeddings":true}"#;

fn wide_heads() -> PathBuf {
    let folder = std::env::temp_dir().join("lockstep-wide-heads");
    let written = std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(folder.join("config.json"), WIDE_HEADS));
    written.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    folder
}

/// Prompts of 1 to `longest` tokens, every third one sampled.
fn asks(count: usize, longest: u32) -> Vec<Ask> {
    let mut rng = Rng(0xb175);
    (0..count)
        .map(|i| {
            let len = 1 + rng.below(longest) as usize;
            let prompt = rng.prompt(len, 256);
            let params = match i % 3 {
                0 => SamplingParams {
                    temperature: 0.8,
                    top_p: 0.9,
                    top_k: 40,
                    repetition_penalty: 1.1,
                    seed: Seed(i as u64),
                    logprobs: Some(3),
                    ..greedy(24)
                },
                _ => greedy(24),
            };
            Ask { prompt, params }
        })
        .collect()
}

fn compare(a: &[Outcome], b: &[Outcome]) -> Result<usize, String> {
    let mut rows = 0;
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        if a.tokens != b.tokens {
            return Err(format!("request {i}: tokens {:?} and {:?}", a.tokens, b.tokens));
        }
        for (position, row) in &a.rows {
            let Some(other) = b.rows.get(position) else { continue };
            let bits = |r: &[f32]| r.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            if bits(row) != bits(other) {
                return Err(format!("request {i}: logits differ at position {position}"));
            }
            rows += 1;
        }
    }
    if rows == 0 { Err("no rows".into()) } else { Ok(rows) }
}

/// Says whether any captured bucket has attention that turns its queries: else what is compared below is not that.
fn turning(name: &str, path: &Path, table: &mut Table) {
    let mut device = gpu();
    let probe = Arc::new(Probe::default());
    device.set_probe(probe.clone());
    let dummy = path.ends_with("lockstep-wide-heads");
    let _bed = Bed::new(Box::new(device), model(path, dummy), knobs(), Keep::Nothing);
    let all = probe.captures();
    table.verdict(
        all.turning > 0,
        format!("bits {name}: {} of {} captured kernels turn queries", all.turning, all.kernels),
    );
}

pub fn run(fixtures: &Path, table: &mut Table) {
    let tiny = fixtures.join("tiny");
    // Heads of 16 channels turn by halves, of 32 and 128 by halves with norms, of 64 by neighbours.
    let models = [
        ("llama", tiny.join("llama"), 32, 400),
        ("qwen3", tiny.join("qwen3"), 96, 400),
        ("wide-Q4_1", tiny.join("gguf/wide-Q4_1.gguf"), 32, 400),
        ("wide heads", wide_heads(), 96, 900),
    ];
    for (name, path, count, longest) in models {
        turning(name, &path, table);
        let bed_of = |change: &dyn Fn(&mut Knobs), (programmatic, fused): (bool, bool)| {
            let mut knobs = knobs();
            change(&mut knobs);
            let mut device = gpu();
            device.set_programmatic(programmatic);
            device.set_fused(fused);
            Bed::new(
                Box::new(device),
                model(&path, path.ends_with("lockstep-wide-heads")),
                knobs,
                Keep::Rows,
            )
        };
        let bed = |change: &dyn Fn(&mut Knobs), programmatic| bed_of(change, (programmatic, true));
        let asks = asks(count, longest);
        let whole = bed(&|_| {}, true).run(&asks, 3);
        let mut one = bed(&|_| {}, true);
        let alone: Vec<Outcome> =
            asks.iter().flat_map(|a| one.run(core::slice::from_ref(a), 0)).collect();
        let mut say = |what: &str, other: &[Outcome]| match compare(&whole, other) {
            Ok(rows) => table.verdict(true, format!("bits {name}: {what}, {rows} rows")),
            Err(e) => table.verdict(false, format!("bits {name}: {what}: {e}")),
        };
        say("together = alone", &alone);
        say("captured = op by op", &bed(&|k| k.eager = true, true).run(&asks, 3));
        say("whole = in chunks of 48", &bed(&|k| k.chunk_tokens = 48, true).run(&asks, 3));
        let few = bed(&|k| k.running_max = 7, true).run(&asks, 0);
        say("96 at a time = 7 at a time", &few);
        say("overlapped launches = strict ones", &bed(&|_| {}, false).run(&asks, 3));
        say("fused ops = single ones", &bed_of(&|_| {}, (true, false)).run(&asks, 3));
        let mut audited = bed(&|k| k.audit_rate = 1, true);
        say("with every step audited", &audited.run(&asks, 3));
        let audit = audited.status().audit;
        table.line(format!("     bits {name}: {audit:?}"));
    }
}
