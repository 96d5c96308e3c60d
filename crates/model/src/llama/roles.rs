//! Which weights a model of these facts has.

use lockstep_weights::{LayerRole, LlamaSpec, Role};

/// Roles of all matrices, in load order.
pub fn matrices(spec: &LlamaSpec) -> Vec<Role> {
    use LayerRole::{AttnK, AttnO, AttnQ, AttnV, FfnDown, FfnGate, FfnUp};
    let mut roles = vec![Role::Embed];
    for layer in 0..spec.layers {
        let all = [AttnQ, AttnK, AttnV, AttnO, FfnGate, FfnUp, FfnDown];
        roles.extend(all.map(|r| Role::Layer(layer, r)));
    }
    if !spec.tied_head {
        roles.push(Role::Head);
    }
    roles
}

/// Roles of all vectors.
pub fn vectors(spec: &LlamaSpec) -> Vec<Role> {
    use LayerRole::{
        AttnKBias, AttnKNorm, AttnNorm, AttnOBias, AttnQBias, AttnQNorm, AttnVBias, FfnNorm,
    };
    let bias = spec.attn_bias;
    let wanted = [
        (true, AttnNorm),
        (true, FfnNorm),
        (bias.q, AttnQBias),
        (bias.k, AttnKBias),
        (bias.v, AttnVBias),
        (bias.o, AttnOBias),
        (spec.qk_norm, AttnQNorm),
        (spec.qk_norm, AttnKNorm),
    ];
    let mut roles = vec![Role::FinalNorm];
    for layer in 0..spec.layers {
        roles.extend(wanted.iter().filter(|w| w.0).map(|w| Role::Layer(layer, w.1)));
    }
    roles
}
