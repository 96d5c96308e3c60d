//! A model: its facts, its plans and its weights, whatever the architecture.

use crate::{DeepSeekV4, Llama, ModelError, PlanShape, SubPool, WeightLoad, WeightSource};
use lockstep_flow::{BucketKey, Token};
use lockstep_plan::format::Format;
use lockstep_plan::{
    Backend, IndexDtype, KvDtype, StepPlan, Unsupported, WeightData, seed_of, unit_scale,
};
use lockstep_weights::{Checkpoint, ModelSpec};
use std::sync::Arc;

/// An opened checkpoint with the builder of its plans.
#[derive(Clone, Debug)]
pub struct Model {
    checkpoint: Arc<Checkpoint>,
    builder: Builder,
}

#[derive(Clone, Debug)]
enum Builder {
    Llama(Llama),
    DeepSeekV4(DeepSeekV4),
}

/// Refuses rows that only DeepSeek-V4 has kernels for.
fn refuse_rows(backend: &dyn Backend, shape: &PlanShape) -> Result<(), ModelError> {
    let asked = match (shape.kv_dtype, shape.index_dtype) {
        (KvDtype::F32 | KvDtype::F16, IndexDtype::F32) => return Ok(()),
        (KvDtype::F32 | KvDtype::F16, _) => "index keys, of a model without an indexer",
        (KvDtype::Bf16, _) => "key-value rows of this architecture as bf16",
        (KvDtype::Fp8, _) => "key-value rows of this architecture as fp8",
    };
    let supported = "pool.kv-dtype f32 or f16, and no pool.index-dtype".into();
    let device = backend.name();
    Err(ModelError::Unsupported(Unsupported { device, asked: asked.into(), supported }))
}

impl Model {
    /// The model of a checkpoint.
    ///
    /// # Errors
    /// No plan builder has its architecture.
    pub fn new(checkpoint: Arc<Checkpoint>) -> Result<Model, ModelError> {
        let format = |role| checkpoint.tensor(role).map(|t| t.format);
        let builder = match checkpoint.spec() {
            ModelSpec::Llama(spec) => Builder::Llama(Llama::new(spec.clone(), format)),
            ModelSpec::DeepSeekV4(spec) => {
                Builder::DeepSeekV4(DeepSeekV4::new(spec.clone(), format))
            }
            _ => return Err(ModelError::Architecture),
        };
        Ok(Model { checkpoint, builder })
    }

    /// What it was opened from.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Vocabulary size in tokens.
    pub fn vocab(&self) -> u32 {
        self.checkpoint.spec().vocab()
    }

    /// Tokens that end a turn.
    pub fn eos(&self) -> &[Token] {
        self.checkpoint.spec().eos()
    }

    /// The model's own context, in tokens.
    pub fn context_max(&self) -> u32 {
        self.checkpoint.spec().context_max()
    }

    /// True where KV is kept as f32 unless a knob says otherwise: where every weight is f32, and
    /// where the architecture pools and scores what it keeps.
    pub fn keeps_f32(&self) -> bool {
        match &self.builder {
            Builder::Llama(_) => self.checkpoint.tensors().all(|(_, t)| t.format == Format::F32),
            Builder::DeepSeekV4(_) => true,
        }
    }

    /// The step plan of `bucket`.
    ///
    /// # Errors
    /// The device lacks a kernel, or the checkpoint a weight.
    pub fn plan(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
        bucket: BucketKey,
    ) -> Result<StepPlan, ModelError> {
        match &self.builder {
            Builder::Llama(m) => m.plan(backend, shape, bucket),
            Builder::DeepSeekV4(m) => m.plan(backend, shape, bucket),
        }
    }

    /// The sub-pools of the token pool.
    ///
    /// # Errors
    /// The device lacks a kernel for its attention.
    pub fn sub_pools(
        &self,
        backend: &dyn Backend,
        shape: &PlanShape,
    ) -> Result<Vec<SubPool>, ModelError> {
        match &self.builder {
            Builder::Llama(_) if shape.drafts > 0 => {
                Err(ModelError::NoDrafts { asked: shape.drafts })
            }
            Builder::Llama(m) => {
                refuse_rows(backend, shape)?;
                m.sub_pools(backend, shape)
            }
            Builder::DeepSeekV4(m) => m.sub_pools(backend, shape),
        }
    }

    /// State by slots: name and bytes of one slot.
    pub fn slot_states(&self) -> Vec<(String, u64)> {
        match &self.builder {
            Builder::Llama(m) => m.slot_states(),
            Builder::DeepSeekV4(m) => m.slot_states(),
        }
    }

    fn weights(&self, shape: &PlanShape) -> Vec<WeightLoad> {
        match &self.builder {
            Builder::Llama(m) => m.weights(shape),
            Builder::DeepSeekV4(m) => m.weights(shape),
        }
    }

    /// Gives every weight that the plans bind to `load`, by buffer name, with the bytes of the
    /// checkpoint that are behind it.
    ///
    /// # Errors
    /// What `load` says, or a weight that the checkpoint lacks.
    pub fn load<E: From<ModelError>>(
        &self,
        shape: &PlanShape,
        mut load: impl FnMut(&str, WeightData<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let tensor = |role| self.checkpoint.tensor(role).ok_or(ModelError::MissingWeight { role });
        if let Some(seed) = self.checkpoint.seed() {
            return self.load_seeded(shape, seed, load);
        }
        for WeightLoad { buffer, source } in self.weights(shape) {
            match source {
                WeightSource::Values(values) => load(&buffer, WeightData::F32(&values), 0)?,
                WeightSource::Vector { role } => {
                    let t = tensor(role)?;
                    load(&buffer, WeightData::F32(&t.decode()), t.bytes.len() as u64)?;
                }
                WeightSource::Matrix { role } => {
                    let t = tensor(role)?;
                    let (n, k) = (t.rows as u32, t.cols as u32);
                    let (format, elements) = (t.format, t.elements());
                    let matrix = WeightData::Matrix { format, n, k, bytes: &elements };
                    load(&buffer, matrix, t.bytes.len() as u64)?;
                }
                WeightSource::Stack { roles, format } => {
                    let (mut bytes, mut stored, mut n, mut k) = (Vec::new(), 0, 0, 0);
                    for role in roles {
                        let t = tensor(role)?;
                        (n, k) = (n + t.rows as u32, t.cols as u32);
                        stored += t.bytes.len() as u64;
                        if t.format == format {
                            bytes.extend_from_slice(&t.elements());
                        } else {
                            t.decode().iter().for_each(|v| bytes.extend(v.to_le_bytes()));
                        }
                    }
                    load(&buffer, WeightData::Matrix { format, n, k, bytes: &bytes }, stored)?;
                }
                WeightSource::ExpertTable { layer, role } => {
                    let bytes = tensor(role)?.bytes.len() as u64;
                    let table = self.checkpoint.expert_table(layer);
                    let table = table.ok_or(ModelError::MissingWeight { role })?;
                    load(&buffer, WeightData::U32(&table), bytes)?;
                }
            }
        }
        Ok(())
    }

    /// As [`Model::load`], for a checkpoint without bytes: seeded matrices, norms of 1, biases of 0.
    fn load_seeded<E: From<ModelError>>(
        &self,
        shape: &PlanShape,
        seed: u64,
        mut load: impl FnMut(&str, WeightData<'_>, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        for WeightLoad { buffer, source } in self.weights(shape) {
            match source {
                WeightSource::Values(values) => load(&buffer, WeightData::F32(&values), 0)?,
                WeightSource::Matrix { role } | WeightSource::Vector { role } => {
                    let tensor = self.checkpoint.tensor(role);
                    let t = tensor.ok_or(ModelError::MissingWeight { role })?;
                    if t.rows == 1 {
                        let values = vec![if role.is_bias() { 0.0 } else { 1.0 }; t.cols];
                        load(&buffer, WeightData::F32(&values), 0)?;
                        continue;
                    }
                    let (n, k) = (t.rows as u32, t.cols as u32);
                    let (seed, scale) = (seed_of(seed, &buffer), unit_scale(k));
                    load(&buffer, WeightData::Seeded { n, k, seed, scale }, 0)?;
                }
                // Only of architectures that `Checkpoint::dummy` refuses.
                WeightSource::Stack { .. } | WeightSource::ExpertTable { .. } => {
                    return Err(ModelError::Architecture.into());
                }
            }
        }
        Ok(())
    }

    /// Bytes of all weights in the checkpoint.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.checkpoint.tensors().map(|(_, t)| t.bytes.len() as u64).sum()
    }
}
