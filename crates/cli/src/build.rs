//! From a model's files to something that can be served: the one place where the rooms meet.

use crate::exit::{Exit, Failure};
use crate::lab::Lab;
use crate::resolve::ModelFiles;
use crate::{knob_fault, memory};
use indicatif::{ProgressBar, ProgressStyle};
use lockstep_device::Device;
use lockstep_engine::{Draft, EngineParts, Knobs, Late, Started};
use lockstep_flow::status::{DeviceFacts, ModelFacts};
use lockstep_flow::{OnMismatch, Settings};
use lockstep_model::{Model, SubPool};
use lockstep_plan::{IndexDtype, KvDtype, Summary, render_text, svg};
use lockstep_serve::Engine;
use lockstep_text::{GgufVocab, TextError, TextModel};
use lockstep_weights::{Checkpoint, VocabData};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::ScopedJoinHandle;

/// What serving needs.
pub struct Built {
    /// The step loop, running.
    pub engine: Arc<dyn Engine>,
    /// Tokenizer, chat template, grammars.
    pub text: Arc<TextModel>,
}

/// A plan as people and as machines read it.
pub struct ShownPlan {
    /// Ops, lanes, arena map, bytes saved.
    pub text: String,
    /// The same.
    pub json: serde_json::Value,
    /// Lanes, edges and the arena over time, as a picture.
    pub svg: String,
}

/// What the values of dummy weights follow from.
const DUMMY_SEED: u64 = 0;

fn bad_model(e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::BadModel, e)
}

/// Tokenizer and chat template.
pub fn open_text(checkpoint: &Checkpoint) -> Result<TextModel, Failure> {
    Ok(match checkpoint.vocab().map_err(bad_model)? {
        Some(vocab) => TextModel::from_gguf(gguf_vocab(vocab)).map_err(bad_model)?,
        None => {
            let folder = checkpoint.folder().ok_or_else(|| no_vocabulary(checkpoint))?;
            match TextModel::from_hf_dir(folder) {
                Err(TextError::NoTokenizer { .. }) => TextModel::for_ids(folder),
                opened => opened,
            }
            .map_err(bad_model)?
        }
    })
}

fn no_vocabulary(checkpoint: &Checkpoint) -> Failure {
    let file = checkpoint.path().display();
    bad_model(format!(
        "{file} has no tokenizer (its metadata lacks tokenizer.ggml.model): text cannot become \
         tokens; take a GGUF file that was made with its tokenizer, or a Hugging Face folder"
    ))
}

fn gguf_vocab(v: VocabData) -> GgufVocab {
    GgufVocab {
        model: v.model,
        pre: v.pre.unwrap_or_default(),
        tokens: v.tokens,
        token_types: v.token_types,
        scores: v.scores,
        merges: v.merges,
        bos: v.bos,
        eos: v.eos,
        unk: v.unk,
        pad: v.pad,
        eot: v.eot,
        eom: v.eom,
        add_bos: v.add_bos,
        add_space_prefix: v.add_space_prefix,
        chat_template: v.chat_template,
    }
}

fn open_checkpoint(settings: &Settings, files: &ModelFiles) -> Result<Checkpoint, Failure> {
    match settings.text("model.load-format") {
        "dummy" => Checkpoint::dummy(&files.path, DUMMY_SEED),
        _ => Checkpoint::open(&files.path),
    }
    .map_err(bad_model)
}

/// Builds everything that `serve` needs. Tokenizer and digest are made while the engine packs the
/// weights and proves its plans: start-up takes as long as the longer of the two.
pub fn build(settings: &Settings, files: &ModelFiles, lab: &Lab) -> Result<Built, Failure> {
    let checkpoint = Arc::new(open_checkpoint(settings, files)?);
    let device = lab.open(settings)?;
    let model = Model::new(Arc::clone(&checkpoint)).map_err(bad_model)?;
    check_memory(settings, &model)?;
    let mut text = None;
    let started = std::thread::scope(|scope| {
        let opening = scope.spawn(|| open_text(&checkpoint));
        let digest = scope.spawn(|| checkpoint.digest(1).to_string());
        start(settings, device, (model, lab.draft(), files.stands_in.as_deref()), || {
            let opened = join(opening);
            let eos = opened.as_ref().ok().map(|t| t.eos_tokens().to_vec());
            text = Some(opened);
            Some(Late { eos: eos?, weights_digest: Some(join(digest)) })
        })
    });
    // A text room that does not open is the reason for a start that was given up.
    let text = text.transpose()?;
    let engine = lab.attend(Arc::new(started?.handle));
    let text = Arc::new(text.expect("an engine starts after its text room has opened"));
    warn_of_template(&text);
    Ok(Built { engine, text })
}

/// Says at start what would otherwise show as the end of the process under load, and refuses a pool
/// that is larger than all the memory there is.
fn check_memory(settings: &Settings, model: &Model) -> Result<(), Failure> {
    if settings.text("device.kind") != "cpu" {
        // A GPU's own memory is asked for at start, and refused there and then.
        return Ok(());
    }
    let failed = |e| knob_fault::of_engine(settings, e);
    let backend = crate::device::backend(settings)?;
    let backend = backend.as_ref();
    let shape = lockstep_engine::plan_shape(&knobs(settings), model, backend).map_err(failed)?;
    let pools = model.sub_pools(backend, &shape).map_err(bad_model)?;
    let page_bytes: u64 = pools.iter().map(SubPool::page_bytes).sum();
    let pool_bytes = page_bytes * u64::from(shape.pages);
    let Some(memory_bytes) = memory::bytes() else { return Ok(()) };
    if pool_bytes > memory_bytes {
        return Err(knob_fault::pool_beyond_memory(settings, pool_bytes, memory_bytes));
    }
    if let Some(words) = memory::shortage(pool_bytes, model.checkpoint_bytes(), memory_bytes) {
        tracing::warn!("{words}");
    }
    Ok(())
}

/// A server without a usable template serves completions; chats would be refused one by one.
fn warn_of_template(text: &TextModel) {
    let without = "chat requests are refused, and only /v1/completions serves";
    if text.is_ids_only() {
        tracing::warn!("{}", TextError::IdsOnly);
        return;
    }
    match (text.template_fault(), text.chat_template()) {
        (Some(fault), _) => {
            tracing::warn!("the model's chat template is of no use: {fault}; {without}")
        }
        (None, None) => tracing::warn!("the model has no chat template: {without}"),
        (None, Some(_)) => {}
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Model -> plans and proofs -> device -> a running engine.
fn start(
    settings: &Settings,
    (device, device_facts): (Box<dyn Device>, DeviceFacts),
    (model, draft, stands_in): (Model, Option<Arc<dyn Draft>>, Option<&str>),
    late: impl FnOnce() -> Option<Late>,
) -> Result<Started, Failure> {
    let bar = progress_bar(model.checkpoint_bytes());
    let parts = EngineParts {
        device,
        model_facts: model_facts(&model, settings, stands_in),
        model,
        eos: &[],
        knobs: knobs(settings),
        device_facts,
        progress: Box::new(|done, _| bar.set_position(done)),
        tap: None,
        draft,
    };
    let failed = |e| knob_fault::of_engine(settings, e);
    let started = lockstep_engine::start_with(parts, late).map_err(failed);
    bar.finish_and_clear();
    started
}

/// A bar on the terminal, shown only where loading takes longer than a moment.
fn progress_bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let style = "loading weights {bar:30} {bytes}/{total_bytes}";
    bar.set_style(ProgressStyle::with_template(style).expect("a fixed template"));
    bar
}

/// The engine's knobs out of the registry's values.
pub fn knobs(settings: &Settings) -> Knobs {
    let count = |name| u32::try_from(settings.number(name)).unwrap_or(u32::MAX);
    Knobs {
        graph_max_bs: count("decode.graph-max-bs"),
        running_max: count("sched.max-running-requests"),
        queued_max: count("sched.max-queued-requests"),
        chunk_tokens: count("sched.chunked-prefill-size"),
        prefix_cache: settings.flag("sched.prefix-cache"),
        kv_bytes: settings.number("pool.kv-memory"),
        kv_dtype: match settings.text("pool.kv-dtype") {
            "f32" => Some(KvDtype::F32),
            "f16" => Some(KvDtype::F16),
            "bf16" => Some(KvDtype::Bf16),
            "fp8" => Some(KvDtype::Fp8),
            _ => None,
        },
        index_dtype: match settings.text("pool.index-dtype") {
            "bf16" => IndexDtype::Bf16,
            "fp8" => IndexDtype::Fp8,
            "fp4" => IndexDtype::Fp4,
            _ => IndexDtype::F32,
        },
        lanes: count("decode.lanes"),
        pipelined: settings.flag("decode.pipelined"),
        drafts: count("decode.mtp-drafts"),
        context_tokens: count("model.context-length"),
        audit_rate: count("audit.rate"),
        on_mismatch: OnMismatch::of(settings.text("audit.on-mismatch")).unwrap_or_default(),
        eager: settings.flag("decode.eager"),
        watch_s: count("generations.watch"),
        staging_bytes: settings.number("generations.memory"),
        verify_first: settings.flag("generations.verify-first"),
        ..Knobs::default()
    }
}

fn model_facts(model: &Model, settings: &Settings, stands_in: Option<&str>) -> ModelFacts {
    let checkpoint = model.checkpoint();
    let spec = checkpoint.spec();
    let path = checkpoint.path();
    let stem = || path.file_stem().map_or("model".into(), |s| s.to_string_lossy().into_owned());
    let name = if spec.name().is_empty() { stem() } else { spec.name().to_string() };
    let context = match settings.number("model.context-length") {
        0 => spec.context_max(),
        n => n as u32,
    };
    let parameters = checkpoint.tensors().map(|(_, t)| (t.rows * t.cols) as u64).sum();
    ModelFacts {
        name,
        path: path.display().to_string(),
        architecture: spec.architecture().into(),
        quantization: quantization(checkpoint),
        vocab: spec.vocab(),
        context_max_tokens: context,
        parameters,
        weight_bytes: checkpoint.weight_bytes(),
        weights_digest: String::new(),
        stands_in: stands_in.unwrap_or_default().into(),
    }
}

/// The format that most of the weights' bytes have.
fn quantization(checkpoint: &Checkpoint) -> String {
    let mut bytes: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, t) in checkpoint.tensors() {
        let name = t.coding.map_or(t.format.name(), |c| c.name());
        *bytes.entry(name).or_default() += t.bytes.len();
    }
    let most = bytes.into_iter().max_by_key(|(_, n)| *n);
    most.map_or_else(String::new, |(name, _)| name.to_string())
}

/// The plan of one bucket, proven and packed, without an engine.
pub fn describe_plan(
    settings: &Settings,
    files: &ModelFiles,
    bucket: &str,
) -> Result<ShownPlan, Failure> {
    let checkpoint = open_checkpoint(settings, files)?;
    let model = Model::new(Arc::new(checkpoint)).map_err(bad_model)?;
    let knobs = knobs(settings);
    let failed = |e| knob_fault::of_engine(settings, e);
    let backend = crate::device::backend(settings)?;
    let backend = backend.as_ref();
    let shape = lockstep_engine::plan_shape(&knobs, &model, backend).map_err(failed)?;
    let keys = lockstep_engine::ladder(&knobs);
    let found = keys.iter().find(|(key, _)| key.to_string() == bucket);
    let Some(&key) = found else {
        let names: Vec<String> = keys.iter().map(|(key, _)| key.to_string()).collect();
        let what = format!("there is no bucket {bucket}; there are {}", names.join(", "));
        return Err(Failure::new(Exit::Usage, what));
    };
    let proven = lockstep_engine::prove_all(&model, backend, &shape, &[key]);
    let proven = proven.map_err(failed)?.remove(0).proven;
    let summary = Summary::of(&proven);
    Ok(ShownPlan {
        text: render_text(&proven),
        json: shown_json(&summary),
        svg: svg(proven.plan(), proven.packing(), &[]),
    })
}

fn shown_json(s: &Summary) -> serde_json::Value {
    let ops = s.ops.iter().map(|op| {
        serde_json::json!({
            "name": op.name, "kernel": op.kernel, "lane": op.lane,
            "reads": op.reads, "writes": op.writes,
        })
    });
    let arena = s.arena.iter().map(|line| {
        serde_json::json!({
            "name": line.name, "kind": line.kind, "offset": line.offset, "bytes": line.bytes,
            "alive": line.alive,
        })
    });
    serde_json::json!({
        "bucket": s.bucket,
        "digest": s.digest,
        "lanes": s.lanes.iter().map(|(name, ops)| serde_json::json!({"name": name, "ops": ops}))
            .collect::<Vec<_>>(),
        "edges": {
            "event": s.event_edges,
            "programmatic": s.programmatic_edges,
            "next_step": s.next_step_edges,
        },
        "weight_bytes": s.weight_bytes,
        "state_bytes": s.state_bytes,
        "arena_bytes": s.arena_bytes,
        "transient_bytes": s.pack.transient_bytes,
        "no_reuse_bytes": s.pack.no_reuse_bytes,
        "single_lane_bytes": s.pack.single_lane_bytes,
        "saved_bytes": s.pack.saved_bytes(),
        "overlap_bytes": s.pack.overlap_bytes(),
        "obligations": s.obligations,
        "ops": ops.collect::<Vec<_>>(),
        "arena": arena.collect::<Vec<_>>(),
    })
}
