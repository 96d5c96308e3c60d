//! A plain forward pass in f64, written for reading: the definition of what a spec means.

use std::path::Path;

use lockstep_weights::{Checkpoint, LayerRole, LlamaSpec, ModelSpec, Pairing, Role};
use serde_json::Value;

/// `reference.json` and `logits.f32` of a tiny model.
pub struct Reference {
    pub prompt: Vec<usize>,
    logits: Vec<f32>,
    cols: usize,
    first: usize,
    every: usize,
}

impl Reference {
    pub fn read(folder: &Path) -> Reference {
        let json: Value =
            serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
        let raw = std::fs::read(folder.join("logits.f32")).unwrap();
        let layout = &json["logits"];
        let int = |v: &Value| v.as_u64().unwrap() as usize;
        let reference = Reference {
            prompt: json["prompt"].as_array().unwrap().iter().map(int).collect(),
            logits: raw
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            cols: int(&layout["cols"]),
            first: int(&layout["first_position"]),
            every: int(&layout["every"]),
        };
        assert_eq!(reference.logits.len(), int(&layout["rows"]) * reference.cols);
        reference
    }

    pub fn worst_difference(&self, got: &[Vec<f64>]) -> f64 {
        let rows = self.logits.chunks_exact(self.cols).enumerate();
        rows.flat_map(|(r, want)| {
            want.iter()
                .zip(&got[self.first + r * self.every])
                .map(|(&w, &g)| (f64::from(w) - g).abs())
        })
        .fold(0.0, f64::max)
    }
}

/// What is done to an input row of every matrix before it is multiplied.
pub type Round = fn(&mut [f64]);

struct Matrix {
    cols: usize,
    data: Vec<f64>,
    round: Round,
}

impl Matrix {
    fn times(&self, x: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), self.cols);
        let mut x = x.to_vec();
        (self.round)(&mut x);
        self.data.chunks_exact(self.cols).map(|row| dot(row, &x)).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(x: &[f64], weight: &[f64], eps: f32) -> Vec<f64> {
    let scale = (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt().recip();
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

struct Model<'a> {
    ckpt: &'a Checkpoint,
    spec: &'a LlamaSpec,
    inv_freq: Vec<f32>,
    round: Round,
}

impl Model<'_> {
    fn maybe(&self, role: Role) -> Option<Matrix> {
        let t = self.ckpt.tensor(role)?;
        let data = t.decode().into_iter().map(f64::from).collect();
        Some(Matrix { cols: t.cols, data, round: self.round })
    }

    fn need(&self, role: Role) -> Matrix {
        self.maybe(role).unwrap_or_else(|| panic!("{role}"))
    }

    /// Projects each row, adds the bias, norms and rotates each head.
    fn heads(
        &self,
        layer: u32,
        roles: [LayerRole; 3],
        x: &[Vec<f64>],
        rotate: bool,
    ) -> Vec<Vec<f64>> {
        let [weight, bias, head_norm] = roles.map(|r| self.maybe(Role::Layer(layer, r)));
        let weight = weight.expect("a projection");
        let project = |(position, x): (usize, &Vec<f64>)| {
            let mut y = weight.times(x);
            if let Some(b) = &bias {
                add(&mut y, &b.data);
            }
            for head in y.chunks_exact_mut(self.spec.head_dim as usize).filter(|_| rotate) {
                if let Some(w) = &head_norm {
                    let normed = norm(head, &w.data, self.spec.norm_eps);
                    head.copy_from_slice(&normed);
                }
                self.rotate(head, position);
            }
            y
        };
        x.iter().enumerate().map(project).collect()
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let rope = &self.spec.rope;
        for (i, &f) in self.inv_freq.iter().enumerate() {
            let (a, b) = match rope.pairing {
                Pairing::Adjacent => (2 * i, 2 * i + 1),
                Pairing::Half => (i, i + self.inv_freq.len()),
            };
            let (sin, cos) = (position as f64 * f64::from(f)).sin_cos();
            let scale = f64::from(rope.attention_factor());
            let (x, y) = (head[a], head[b]);
            head[a] = (x * cos - y * sin) * scale;
            head[b] = (y * cos + x * sin) * scale;
        }
    }

    fn attend(&self, layer: u32, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
        use LayerRole::*;
        let spec = self.spec;
        let q = self.heads(layer, [AttnQ, AttnQBias, AttnQNorm], x, true);
        let k = self.heads(layer, [AttnK, AttnKBias, AttnKNorm], x, true);
        let v = self.heads(layer, [AttnV, AttnVBias, AttnVBias], x, false);
        let (dim, group) = (spec.head_dim as usize, (spec.heads / spec.kv_heads) as usize);
        let window = spec.sliding_window.filter(|w| layer >= w.first_layer);
        let window = window.map_or(usize::MAX, |w| w.tokens as usize);
        let mut out = vec![vec![0.0; spec.q_width() as usize]; x.len()];
        for (p, out) in out.iter_mut().enumerate() {
            let seen = (p + 1).saturating_sub(window)..p + 1;
            for (h, out) in out.chunks_exact_mut(dim).enumerate() {
                let (q, kv) = (&q[p][h * dim..][..dim], h / group * dim);
                let score = |t: usize| dot(q, &k[t][kv..][..dim]) / (dim as f64).sqrt();
                let scores: Vec<f64> = seen.clone().map(score).collect();
                let top = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                let total: f64 = weights.iter().sum();
                for (t, w) in seen.clone().zip(weights) {
                    let v = &v[t][kv..][..dim];
                    out.iter_mut().zip(v).for_each(|(o, v)| *o += w / total * v);
                }
            }
        }
        out
    }
}

/// Logits of every position of a prompt.
pub fn logits(ckpt: &Checkpoint, prompt: &[usize]) -> Vec<Vec<f64>> {
    logits_rounding(ckpt, prompt, |_| {})
}

/// As [`logits`], with every input row of a matrix rounded first.
pub fn logits_rounding(ckpt: &Checkpoint, prompt: &[usize], round: Round) -> Vec<Vec<f64>> {
    use LayerRole::*;
    let ModelSpec::Llama(spec) = ckpt.spec() else { panic!("a Llama") };
    let model = Model { ckpt, spec, inv_freq: spec.rope.inverse_frequencies(), round };
    let embed = model.need(Role::Embed);
    let mut x: Vec<Vec<f64>> =
        prompt.iter().map(|&t| embed.data[t * embed.cols..][..embed.cols].to_vec()).collect();
    for layer in 0..spec.layers {
        let need = |r| model.need(Role::Layer(layer, r));
        let (attn_norm, out, bias) =
            (need(AttnNorm), need(AttnO), model.maybe(Role::Layer(layer, AttnOBias)));
        let normed: Vec<_> = x.iter().map(|x| norm(x, &attn_norm.data, spec.norm_eps)).collect();
        for (x, attended) in x.iter_mut().zip(model.attend(layer, &normed)) {
            add(x, &out.times(&attended));
            if let Some(b) = &bias {
                add(x, &b.data);
            }
        }
        let (ffn_norm, gate, up, down) = (need(FfnNorm), need(FfnGate), need(FfnUp), need(FfnDown));
        for x in &mut x {
            let normed = norm(x, &ffn_norm.data, spec.norm_eps);
            let (g, u) = (gate.times(&normed), up.times(&normed));
            let inner: Vec<f64> =
                g.iter().zip(u).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(x, &down.times(&inner));
        }
    }
    let (final_norm, head) = (model.need(Role::FinalNorm), model.need(Role::Head));
    x.iter().map(|x| head.times(&norm(x, &final_norm.data, spec.norm_eps))).collect()
}
