//! Which tensors an architecture has, with their shapes; matching a file's tensors to them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use crate::checkpoint::Entry;
use crate::error::WeightsError;
use crate::file::SourceFile;
use crate::role::{LayerRole, Role};
use crate::rope::RopeScaling;
use crate::spec::{LlamaSpec, ModelSpec};
use crate::v4;

/// Whose tensor names a file uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Container {
    Gguf,
    Safetensors,
}

/// Rows and columns of a role's tensor; one row for a vector. `None` where the model has none.
pub fn shape_of(spec: &LlamaSpec, role: Role) -> Option<[u64; 2]> {
    let (hidden, ffn, vocab) = (spec.hidden.into(), spec.ffn.into(), spec.vocab.into());
    let (q, kv, head_dim) = (spec.q_width().into(), spec.kv_width().into(), spec.head_dim.into());
    let vector = |there: bool, n: u64| there.then_some([1, n]);
    match role {
        Role::Embed => Some([vocab, hidden]),
        Role::FinalNorm => Some([1, hidden]),
        Role::Head => (!spec.tied_head).then_some([vocab, hidden]),
        Role::RopeFactors => match &spec.rope.scaling {
            RopeScaling::Factors(f) => Some([1, f.len() as u64]),
            _ => None,
        },
        Role::V4(..) => None,
        Role::Layer(n, _) if n >= spec.layers => None,
        Role::Layer(_, role) => match role {
            LayerRole::AttnNorm | LayerRole::FfnNorm => Some([1, hidden]),
            LayerRole::AttnQ => Some([q, hidden]),
            LayerRole::AttnK | LayerRole::AttnV => Some([kv, hidden]),
            LayerRole::AttnO => Some([hidden, q]),
            LayerRole::AttnQBias => vector(spec.attn_bias.q, q),
            LayerRole::AttnKBias => vector(spec.attn_bias.k, kv),
            LayerRole::AttnVBias => vector(spec.attn_bias.v, kv),
            LayerRole::AttnOBias => vector(spec.attn_bias.o, hidden),
            LayerRole::AttnQNorm | LayerRole::AttnKNorm => vector(spec.qk_norm, head_dim),
            LayerRole::FfnGate | LayerRole::FfnUp => Some([ffn, hidden]),
            LayerRole::FfnDown => Some([hidden, ffn]),
        },
    }
}

/// Every role of a model in canonical order, with its shape.
pub fn roles(spec: &LlamaSpec) -> impl Iterator<Item = (Role, [u64; 2])> + '_ {
    let layers = (0..spec.layers)
        .flat_map(|n| LayerRole::ALL.into_iter().map(move |role| Role::Layer(n, role)));
    core::iter::once(Role::Embed)
        .chain(layers)
        .chain([Role::FinalNorm, Role::Head, Role::RopeFactors])
        .filter_map(|role| shape_of(spec, role).map(|shape| (role, shape)))
}

/// Gives each tensor its role. Missing, extra and misshapen tensors are errors by name.
pub(crate) fn assign(
    path: &Path,
    spec: &ModelSpec,
    files: &[SourceFile],
    entries: Vec<Entry>,
    container: Container,
) -> Result<BTreeMap<Role, Entry>, WeightsError> {
    let spec = match spec {
        ModelSpec::Llama(spec) => spec,
        ModelSpec::DeepSeekV4(spec) => return v4::layout::assign(path, spec, files, entries),
    };
    let mut by_name: HashMap<String, Entry> =
        entries.into_iter().map(|e| (e.name.clone(), e)).collect();
    let mut out = BTreeMap::new();
    for (role, want) in roles(spec) {
        let name = match container {
            Container::Gguf => role.gguf_name(),
            Container::Safetensors => match role.hf_name() {
                Some(name) => name,
                None => continue,
            },
        };
        let Some(entry) = by_name.remove(&name) else {
            return Err(WeightsError::TensorMissing { path: path.to_path_buf(), role, name });
        };
        check_entry(&entry, want, files)?;
        out.insert(role, entry);
    }
    by_name.retain(|name, _| !is_derived(spec, name));
    // The first by name, so that the message does not depend on a hash's order.
    if let Some(extra) = by_name.values().min_by(|a, b| a.name.cmp(&b.name)) {
        return Err(WeightsError::TensorUnknown {
            file: files[extra.file].path().to_path_buf(),
            name: extra.name.clone(),
            count: by_name.len(),
        });
    }
    Ok(out)
}

pub(crate) fn check_entry(
    entry: &Entry,
    want: [u64; 2],
    files: &[SourceFile],
) -> Result<(), WeightsError> {
    let file = || files[entry.file].path().to_path_buf();
    if let Err(found) = &entry.format {
        let (name, found) = (entry.name.clone(), found.clone());
        return Err(WeightsError::TensorType { file: file(), name, found });
    }
    // Leading dimensions of 1 say nothing: a vector may be written as one row.
    let ones = entry.shape.iter().take_while(|&&d| d == 1).count();
    let tail = |ones: usize, shape: &[u64]| shape[ones.min(shape.len() - 1)..].to_vec();
    let same = !entry.shape.is_empty()
        && tail(ones, &entry.shape) == tail(want.iter().take_while(|&&d| d == 1).count(), &want);
    if !same {
        return Err(WeightsError::TensorShape {
            file: file(),
            name: entry.name.clone(),
            found: entry.shape.clone(),
            want: want.to_vec(),
        });
    }
    Ok(())
}

/// Tensors that some checkpoints hold although they follow from the rest: rotary frequencies as
/// older ones stored them, and the copy of the embedding where the head is tied.
fn is_derived(spec: &LlamaSpec, name: &str) -> bool {
    name.ends_with(".rotary_emb.inv_freq")
        || (spec.tied_head && Role::Head.hf_name().is_some_and(|head| head == name))
}
