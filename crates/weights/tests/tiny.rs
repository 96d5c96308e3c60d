//! The tiny models of `fixtures/tiny`: facts and tensors from both containers, and a plain f64
//! forward pass that must reproduce the reference logits from what the readers give.
#![forbid(unsafe_code)]

#[path = "tiny/forward.rs"]
mod forward;
#[path = "../../../tests/support/model_files.rs"]
mod model_files;

use lockstep_flow::Token;
use lockstep_plan::format::Format;
use lockstep_weights::{
    AttnBias, Checkpoint, Family, LayerRole, LlamaSpec, ModelSpec, Pairing, Role, RopeScaling,
    SlidingWindow,
};

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&tiny(name)).unwrap_or_else(|e| panic!("{e}"))
}

fn spec(ckpt: &Checkpoint) -> &LlamaSpec {
    let ModelSpec::Llama(spec) = ckpt.spec() else { panic!("a Llama") };
    spec
}

use model_files::tiny;

const FOLDERS: [&str; 6] = ["llama", "llama3-rope", "mistral", "mistral-window", "qwen2", "qwen3"];
const FLOAT_FILES: [(&str, &str); 6] = [
    ("llama-F32", "llama"),
    ("llama-F16", "llama"),
    ("llama3-rope-F16", "llama3-rope"),
    ("mistral-window-F16", "mistral-window"),
    ("qwen2-BF16", "qwen2"),
    ("qwen3-F16", "qwen3"),
];
const QUANTISED: [Format; 8] = [
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q4_K,
    Format::Q5_K,
    Format::Q6_K,
];

#[test]
fn folders_state_their_facts() {
    for name in FOLDERS {
        let ckpt = open(name);
        let s = spec(&ckpt);
        assert_eq!((s.layers, s.hidden, s.heads, s.kv_heads), (2, 64, 4, 2), "{name}");
        assert_eq!((s.ffn, s.vocab, s.context_max), (128, 256, 1024), "{name}");
        assert_eq!((s.bos, s.eos.as_slice()), (Some(Token(1)), &[Token(2)][..]), "{name}");
        assert_eq!(s.rope.pairing, Pairing::Half, "{name}");
        assert_eq!(ckpt.folder(), Some(tiny(name).as_path()));
        assert_eq!(ckpt.vocab().unwrap(), None);
    }
    let families = FOLDERS.map(|name| spec(&open(name)).family);
    let (l, m) = (Family::Llama, Family::Mistral);
    assert_eq!(families, [l, l, m, m, Family::Qwen2, Family::Qwen3]);

    let ckpt = open("llama3-rope");
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_context: 128,
    };
    assert_eq!((&spec(&ckpt).rope.scaling, spec(&ckpt).rope.theta), (&llama3, 500_000.0));
    assert_eq!((spec(&ckpt).head_dim, spec(&ckpt).tied_head), (32, true));

    let window = Some(SlidingWindow { tokens: 96, first_layer: 0 });
    assert_eq!(spec(&open("mistral-window")).sliding_window, window);
    assert_eq!(spec(&open("mistral")).sliding_window, None);
    let qkv = AttnBias { q: true, k: true, v: true, o: false };
    assert_eq!(spec(&open("qwen2")).attn_bias, qkv);
    assert_eq!(spec(&open("qwen3")).attn_bias, AttnBias::default());
    assert!(spec(&open("qwen3")).qk_norm && !spec(&open("qwen2")).qk_norm);
    assert_eq!(spec(&open("mistral")).dtype_hint.as_deref(), Some("bfloat16"));
}

/// The rows of q and k in a `llama` GGUF file are permuted within each head; everything else is
/// the same tensor, whatever the float format.
#[test]
fn gguf_files_hold_the_folders_weights() {
    for (file, folder) in FLOAT_FILES {
        let (gguf, hf) = (open(&format!("gguf/{file}.gguf")), open(folder));
        let (g, h) = (spec(&gguf), spec(&hf));
        let permuted = g.rope.pairing == Pairing::Adjacent;
        assert_eq!(permuted, matches!(h.family, Family::Llama | Family::Mistral), "{file}");
        assert_eq!((g.layers, g.heads, g.kv_heads, g.head_dim), (2, 4, 2, h.head_dim), "{file}");
        assert_eq!((g.tied_head, g.attn_bias, g.qk_norm), (h.tied_head, h.attn_bias, h.qk_norm));
        assert_eq!((g.sliding_window, g.norm_eps), (h.sliding_window, h.norm_eps), "{file}");
        for (a, b) in g.rope.inverse_frequencies().iter().zip(h.rope.inverse_frequencies()) {
            assert!((a / b - 1.0).abs() < 1e-6, "{file}: frequency {a} {b}");
        }
        for (role, want) in hf.tensors() {
            let got = gguf.tensor(role).unwrap();
            assert_eq!((got.rows, got.cols), (want.rows, want.cols), "{file} {role}");
            let (got, mut want) = (got.decode(), want.decode());
            if permuted && matches!(role, Role::Layer(_, LayerRole::AttnQ | LayerRole::AttnK)) {
                want = adjacent(&want, g.head_dim as usize, g.hidden as usize);
            }
            assert!(got == want, "{file} {role}");
        }
    }
}

/// Rows of each head from halves to adjacent pairs.
fn adjacent(rows: &[f32], head_dim: usize, cols: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows.len());
    for head in rows.chunks_exact(head_dim * cols) {
        for r in 0..head_dim {
            let from = r / 2 + r % 2 * head_dim / 2;
            out.extend_from_slice(&head[from * cols..][..cols]);
        }
    }
    out
}

#[test]
fn quantised_files_open_with_every_type() {
    for format in QUANTISED {
        let ckpt = open(&format!("gguf/wide-{format}.gguf"));
        let formats: Vec<Format> =
            ckpt.tensors().filter(|(_, t)| t.rows > 1).map(|(_, t)| t.format).collect();
        assert_eq!(formats, [format; 8], "{format}");
    }
}

/// Everything that the readers state, in one number: a plain forward pass over their tensors and
/// facts gives the reference logits.
#[test]
fn a_plain_forward_pass_reproduces_the_references() {
    let mut cases: Vec<(String, String)> =
        FOLDERS.iter().map(|n| (n.to_string(), n.to_string())).collect();
    cases.extend(FLOAT_FILES.iter().map(|(f, n)| (format!("gguf/{f}.gguf"), n.to_string())));
    cases.extend(
        QUANTISED.iter().map(|f| (format!("gguf/wide-{f}.gguf"), format!("gguf/wide-{f}"))),
    );
    for (model, reference) in cases {
        let ckpt = open(&model);
        let reference = forward::Reference::read(&tiny(&reference));
        let got = forward::logits(&ckpt, &reference.prompt);
        let worst = reference.worst_difference(&got);
        assert!(worst < 1e-4, "{model}: {worst}");
    }
}

#[test]
fn digests_see_bytes_roles_and_formats_only() {
    // The F16 and F32 files differ in format; a file and a copy of it do not.
    let f32_digest = open("gguf/llama-F32.gguf").digest(2);
    assert_ne!(f32_digest, open("gguf/llama-F16.gguf").digest(2));
    assert_eq!(f32_digest, open("gguf/llama-F32.gguf").digest(1));
    let mut bytes = std::fs::read(tiny("gguf/llama-F32.gguf")).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let file = lockstep_weights::SourceFile::in_memory("flipped", bytes);
    assert_ne!(f32_digest, Checkpoint::from_gguf(file).unwrap().digest(1));
}
