//! From a model's files to something that can be served: the one place where the rooms meet.

use crate::exit::{Exit, Failure};
use crate::resolve::ModelFiles;
use lockstep_flow::Settings;
use lockstep_serve::Engine;
use lockstep_text::{GgufVocab, TextModel};
use lockstep_weights::{Checkpoint, VocabData};
use std::path::Path;
use std::sync::Arc;

/// What serving needs.
pub struct Built {
    /// The step loop, running.
    pub engine: Arc<dyn Engine>,
    /// Tokenizer, chat template, grammars.
    pub text: Arc<TextModel>,
}

/// What an engine is made of.
pub struct EngineSpec<'a> {
    /// Every knob.
    pub settings: &'a Settings,
    /// The weights, open.
    pub checkpoint: Checkpoint,
    /// The text room's part, for the tokens that end a text.
    pub text: Arc<TextModel>,
}

/// A plan as people and as machines read it.
pub struct ShownPlan {
    /// Ops, lanes, arena map, bytes saved.
    pub text: String,
    /// The same.
    pub json: serde_json::Value,
}

fn bad_model(e: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::BadModel, e)
}

/// Opens the weights and everything of the text room.
fn open(files: &ModelFiles) -> Result<(Checkpoint, Arc<TextModel>), Failure> {
    let checkpoint = Checkpoint::open(&files.path).map_err(bad_model)?;
    let text = match checkpoint.vocab().map_err(bad_model)? {
        Some(vocab) => TextModel::from_gguf(gguf_vocab(vocab)).map_err(bad_model)?,
        None => {
            let folder = checkpoint.folder().unwrap_or_else(|| Path::new("."));
            TextModel::from_hf_dir(folder).map_err(bad_model)?
        }
    };
    Ok((checkpoint, Arc::new(text)))
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

/// Builds everything that `serve` needs.
pub fn build(settings: &Settings, files: &ModelFiles) -> Result<Built, Failure> {
    let (checkpoint, text) = open(files)?;
    let spec = EngineSpec { settings, checkpoint, text: Arc::clone(&text) };
    let engine = build_engine(spec)?;
    Ok(Built { engine, text })
}

/// Weights -> model -> plans and proofs -> device -> a running engine.
fn build_engine(spec: EngineSpec<'_>) -> Result<Arc<dyn Engine>, Failure> {
    let EngineSpec { settings, checkpoint, text } = spec;
    let _ = (settings, checkpoint.weight_bytes(), text.eos_tokens());
    Err(Failure::new(Exit::Unexpected, "this build has no engine yet"))
}

/// The plan of one bucket, proven and packed, without an engine.
pub fn describe_plan(
    settings: &Settings,
    files: &ModelFiles,
    bucket: &str,
) -> Result<ShownPlan, Failure> {
    let (checkpoint, _text) = open(files)?;
    let _ = (settings, checkpoint.weight_bytes(), bucket);
    let (text, json) = (String::new(), serde_json::Value::Null);
    let _ = ShownPlan { text, json };
    Err(Failure::new(Exit::Unexpected, "this build has no plans yet"))
}
