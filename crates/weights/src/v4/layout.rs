//! Which tensors a DeepSeek-V4 model has, with their shapes; matching a file's tensors to them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::coded;
use super::role::{HyperRole, V4Part, V4Place, V4Role};
use super::spec::{Compression, DeepSeekV4Spec};
use crate::checkpoint::Entry;
use crate::error::WeightsError;
use crate::file::SourceFile;
use crate::layout::check_entry;
use crate::role::Role;
use lockstep_plan::format::Format;

/// Rows and columns of a role's tensor; one row for a vector. `None` where the model has none.
pub fn shape_of(spec: &DeepSeekV4Spec, place: V4Place, role: V4Role) -> Option<[u64; 2]> {
    let d = u64::from(spec.hidden);
    let (head_dim, q_lora) = (u64::from(spec.head_dim), u64::from(spec.q_lora));
    let index_dim = u64::from(spec.index_head_dim);
    let (experts, ffn) = (u64::from(spec.experts), u64::from(spec.ffn));
    let (compression, hashed, mtp) = match place {
        V4Place::Top => return head_shape(spec, role),
        V4Place::Layer(n) => (*spec.compression.get(n as usize)?, spec.is_hashed(n), false),
        V4Place::Mtp(n) if n < spec.mtp_blocks => (Compression::Window, false, true),
        V4Place::Mtp(_) => return None,
    };
    let ratio = compression.ratio().map(u64::from);
    let channels = head_dim * u64::from(compression.overlap());
    let indexed = compression == Compression::C4;
    let when = |there: bool, shape: [u64; 2]| there.then_some(shape);
    let outputs = u64::from(spec.hyper_outputs());
    let group_width = u64::from(spec.q_width() / spec.o_groups);
    let groups = u64::from(spec.o_groups) * u64::from(spec.o_lora);
    let part = |part| match part {
        V4Part::Gate | V4Part::Up => [ffn, d],
        V4Part::Down => [d, ffn],
    };
    match role {
        V4Role::HyperHead(_) if mtp => head_shape(spec, role),
        V4Role::HyperHead(_) => None,
        V4Role::HyperAttn(h) | V4Role::HyperFfn(h) => Some(match h {
            HyperRole::Fn => [outputs, u64::from(spec.stream_width())],
            HyperRole::Base => [1, outputs],
            HyperRole::Scale => [1, 3],
        }),
        V4Role::AttnNorm | V4Role::FfnNorm => Some([1, d]),
        V4Role::WqA => Some([q_lora, d]),
        V4Role::QNorm => Some([1, q_lora]),
        V4Role::WqB => Some([u64::from(spec.q_width()), q_lora]),
        V4Role::Wkv => Some([head_dim, d]),
        V4Role::KvNorm => Some([1, head_dim]),
        V4Role::Sink => Some([1, u64::from(spec.heads)]),
        V4Role::WoA => Some([groups, group_width]),
        V4Role::WoB => Some([d, groups]),
        V4Role::CompressKv | V4Role::CompressGate => when(ratio.is_some(), [channels, d]),
        V4Role::CompressNorm => when(ratio.is_some(), [1, head_dim]),
        V4Role::CompressApe => ratio.map(|m| [m, channels]),
        V4Role::IndexWqB => when(indexed, [u64::from(spec.index_heads) * index_dim, q_lora]),
        V4Role::IndexWeights => when(indexed, [u64::from(spec.index_heads), d]),
        V4Role::IndexKv | V4Role::IndexGate => when(indexed, [2 * index_dim, d]),
        V4Role::IndexNorm => when(indexed, [1, index_dim]),
        V4Role::IndexApe => when(indexed, [4, 2 * index_dim]),
        V4Role::Router => Some([experts, d]),
        V4Role::RouterBias => when(!hashed, [1, experts]),
        V4Role::RouterTable => {
            when(hashed, [u64::from(spec.vocab), u64::from(spec.experts_per_token)])
        }
        V4Role::Expert(e, p) => when(u64::from(e) < experts, part(p)),
        V4Role::Shared(p) => Some(part(p)),
        V4Role::EmbedProj | V4Role::StreamProj => when(mtp, [d, d]),
        V4Role::EmbedNorm | V4Role::StreamNorm | V4Role::BlockNorm => when(mtp, [1, d]),
    }
}

fn head_shape(spec: &DeepSeekV4Spec, role: V4Role) -> Option<[u64; 2]> {
    match role {
        V4Role::HyperHead(HyperRole::Fn) => Some([spec.streams.into(), spec.stream_width().into()]),
        V4Role::HyperHead(HyperRole::Base) => Some([1, spec.streams.into()]),
        V4Role::HyperHead(HyperRole::Scale) => Some([1, 1]),
        _ => None,
    }
}

/// Every role of a model with its shape.
pub fn roles(spec: &DeepSeekV4Spec) -> Vec<(Role, [u64; 2])> {
    let (vocab, hidden) = (u64::from(spec.vocab), u64::from(spec.hidden));
    let mut out = vec![
        (Role::Embed, [vocab, hidden]),
        (Role::FinalNorm, [1, hidden]),
        (Role::Head, [vocab, hidden]),
    ];
    let places = core::iter::once(V4Place::Top)
        .chain((0..spec.layers).map(V4Place::Layer))
        .chain((0..spec.mtp_blocks).map(V4Place::Mtp));
    for place in places {
        let experts = (0..spec.experts)
            .flat_map(|e| V4Part::ALL.into_iter().map(move |p| V4Role::Expert(e, p)));
        let all = V4Role::fixed().chain(experts);
        out.extend(all.filter_map(|r| shape_of(spec, place, r).map(|s| (Role::V4(place, r), s))));
    }
    out
}

/// The name of a role's tensor as DeepSeek's releases write it.
fn tensor_name(role: Role) -> String {
    match role {
        Role::Embed => "embed.weight".into(),
        Role::Head => "head.weight".into(),
        Role::FinalNorm => "norm.weight".into(),
        Role::V4(place, role) => role.tensor_name(place),
        Role::Layer(..) | Role::RopeFactors => unreachable!("a role of the Llama family"),
    }
}

/// Gives each tensor its role. Missing, extra and misshapen tensors are errors by name.
pub(crate) fn assign(
    path: &Path,
    spec: &DeepSeekV4Spec,
    files: &[SourceFile],
    entries: Vec<Entry>,
) -> Result<BTreeMap<Role, Entry>, WeightsError> {
    let mut by_name: HashMap<String, Entry> =
        entries.into_iter().map(|e| (e.name.clone(), e)).collect();
    let mut out = BTreeMap::new();
    for (role, want) in roles(spec) {
        let name = tensor_name(role);
        let Some(mut entry) = by_name.remove(&name) else {
            return Err(WeightsError::TensorMissing { path: path.to_path_buf(), role, name });
        };
        let mut want = want;
        if matches!(role, Role::V4(_, V4Role::RouterTable)) {
            want = integers(&mut entry, want, files)?;
        }
        if entry.format.is_err() && want[0] > 1 {
            coded::take(&mut by_name, &mut entry, want, files)?;
        }
        check_entry(&entry, want, files)?;
        if matches!(role, Role::V4(_, V4Role::RouterTable)) {
            check_table(&entry, spec, files)?;
        }
        out.insert(role, entry);
    }
    // Prediction blocks may carry copies of what they share with the model.
    by_name.retain(|name, _| !is_copy(name));
    if let Some(extra) = by_name.values().min_by(|a, b| a.name.cmp(&b.name)) {
        return Err(WeightsError::TensorUnknown {
            file: files[extra.file].path().to_path_buf(),
            name: extra.name.clone(),
            count: by_name.len(),
        });
    }
    Ok(out)
}

fn is_copy(name: &str) -> bool {
    let tail = name.strip_prefix("mtp.").and_then(|rest| rest.split_once('.'));
    tail.is_some_and(|(_, tail)| {
        matches!(tail, "embed.weight" | "emb.tok_emb.weight" | "head.weight")
    })
}

/// Takes a table of integers as 32-bit words, one or two for each: only [`table_entry`] looks
/// into them.
fn integers(
    entry: &mut Entry,
    [rows, cols]: [u64; 2],
    files: &[SourceFile],
) -> Result<[u64; 2], WeightsError> {
    let words = match &entry.format {
        Err(t) if t == "I32" => 1,
        Err(t) if t == "I64" => 2,
        other => {
            let found = match other {
                Ok(format) => format.to_string(),
                Err(name) => name.clone(),
            };
            return Err(WeightsError::TableType {
                file: files[entry.file].path().to_path_buf(),
                name: entry.name.clone(),
                found,
            });
        }
    };
    if entry.shape == [rows, cols] {
        entry.format = Ok(Format::F32);
        entry.shape[1] *= words;
        return Ok([rows, cols * words]);
    }
    Err(WeightsError::TensorShape {
        file: files[entry.file].path().to_path_buf(),
        name: entry.name.clone(),
        found: entry.shape.clone(),
        want: vec![rows, cols],
    })
}

/// The integers of a table that [`integers`] took.
pub(crate) fn table(bytes: &[u8], entries: usize) -> Vec<u64> {
    let width = bytes.len() / entries.max(1);
    let of = |b: &[u8]| match width {
        8 => u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
        _ => u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]])),
    };
    bytes.chunks_exact(width.max(4)).map(of).collect()
}

fn check_table(
    entry: &Entry,
    spec: &DeepSeekV4Spec,
    files: &[SourceFile],
) -> Result<(), WeightsError> {
    let file = &files[entry.file];
    let entries = spec.vocab as usize * spec.experts_per_token as usize;
    let ids = table(&file.bytes()[entry.range.clone()], entries);
    let bad = ids.iter().position(|&id| id >= u64::from(spec.experts));
    match bad {
        None => Ok(()),
        Some(at) => Err(WeightsError::TableEntry {
            file: file.path().to_path_buf(),
            name: entry.name.clone(),
            token: at as u64 / u64::from(spec.experts_per_token),
            found: ids[at],
            experts: spec.experts,
        }),
    }
}
