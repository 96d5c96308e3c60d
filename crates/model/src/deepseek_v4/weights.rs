//! Which weights the plans bind, and in which form.

use crate::emit::Formats;
use crate::{PlanShape, WeightLoad, WeightSource, rope};
use lockstep_plan::format::Format;
use lockstep_weights::{DeepSeekV4Spec, Role, V4Part, V4Place, V4Role, v4_roles};

/// Name of the rotation of layers without compressed rows.
pub const ROPE: &str = "rope";
/// Name of the rotation of layers with compressed rows.
pub const COMPRESS_ROPE: &str = "compress_rope";

/// Name of one matrix of every expert of a layer.
pub fn stack_name(place: V4Place, part: V4Part) -> String {
    let name = match part {
        V4Part::Gate => "w1",
        V4Part::Down => "w2",
        V4Part::Up => "w3",
    };
    format!("{place}ffn.experts.{name}")
}

/// True where the plans bind the tensor: of the prediction blocks the first, where it drafts.
fn is_bound(role: Role, shape: &PlanShape) -> bool {
    match role {
        Role::V4(V4Place::Mtp(block), _) => block == 0 && shape.drafts > 0,
        _ => true,
    }
}

/// True where the tensor is multiplied; the others are read as f32, or are tables of integers.
fn is_matrix(role: V4Role) -> bool {
    matches!(
        role,
        V4Role::WqA
            | V4Role::WqB
            | V4Role::Wkv
            | V4Role::WoA
            | V4Role::WoB
            | V4Role::CompressKv
            | V4Role::CompressGate
            | V4Role::IndexWqB
            | V4Role::IndexWeights
            | V4Role::IndexKv
            | V4Role::IndexGate
            | V4Role::Router
            | V4Role::Expert(..)
            | V4Role::Shared(_)
            | V4Role::EmbedProj
            | V4Role::StreamProj
    )
}

/// The format in which each matrix is multiplied. Experts of a layer share one, since their
/// matrices lie in one stack: the checkpoint's where they agree, f32 otherwise, which holds any.
pub fn formats(spec: &DeepSeekV4Spec, format_of: impl Fn(Role) -> Option<Format>) -> Formats {
    let roles = v4_roles(spec).into_iter().map(|(role, _)| role);
    Formats::of(roles, |role| match role {
        Role::V4(place, V4Role::Expert(_, part)) => {
            let pair = [part, if part == V4Part::Down { part } else { V4Part::Gate }];
            let pair = [pair[0], if part == V4Part::Gate { V4Part::Up } else { pair[1] }];
            let all = (0..spec.experts)
                .flat_map(|e| pair.map(|p| format_of(Role::V4(place, V4Role::Expert(e, p)))));
            let mut all = all.collect::<Option<Vec<Format>>>()?;
            all.dedup();
            Some(if all.len() == 1 { all[0] } else { Format::F32 })
        }
        role => format_of(role),
    })
}

/// Every weight buffer, in load order.
pub fn all(spec: &DeepSeekV4Spec, formats: &Formats, shape: &PlanShape) -> Vec<WeightLoad> {
    let mut out = Vec::new();
    for (role, _) in v4_roles(spec).into_iter().filter(|(role, _)| is_bound(*role, shape)) {
        let source = match role {
            Role::V4(place, V4Role::Expert(e, part)) => {
                if e == 0 {
                    out.push(stack(spec, formats, place, part));
                }
                continue;
            }
            Role::V4(V4Place::Layer(layer), V4Role::RouterTable) => {
                WeightSource::ExpertTable { layer, role }
            }
            Role::V4(_, r) if !is_matrix(r) => WeightSource::Vector { role },
            Role::FinalNorm => WeightSource::Vector { role },
            _ => WeightSource::Matrix { role },
        };
        out.push(WeightLoad { buffer: role.to_string(), source });
    }
    for (name, rope) in [(ROPE, &spec.rope), (COMPRESS_ROPE, &spec.compress_rope)] {
        let values = rope::exact_table(rope, shape.context_tokens);
        out.push(WeightLoad { buffer: name.into(), source: WeightSource::Values(values) });
    }
    out
}

fn stack(spec: &DeepSeekV4Spec, formats: &Formats, place: V4Place, part: V4Part) -> WeightLoad {
    let roles: Vec<Role> =
        (0..spec.experts).map(|e| Role::V4(place, V4Role::Expert(e, part))).collect();
    // A format that is missing is told when the plan is built.
    let format = formats.get(roles[0]).unwrap_or(Format::F32);
    let buffer = stack_name(place, part);
    WeightLoad { buffer, source: WeightSource::Stack { roles, format } }
}
