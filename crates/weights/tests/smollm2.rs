//! The default model's real file: facts, tensors, vocabulary, digests.
#![forbid(unsafe_code)]

#[path = "../../../tests/support/model_files.rs"]
mod model_files;

use lockstep_flow::Token;
use lockstep_plan::format::Format;
use lockstep_weights::{
    Checkpoint, Family, LayerRole, ModelSpec, Pairing, Role, RopeScaling, file_sha256,
};

use model_files::smollm2 as model;

const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

#[test]
fn the_default_model_opens_with_its_facts() {
    let ckpt = Checkpoint::open(&model()).unwrap();
    let ModelSpec::Llama(spec) = ckpt.spec() else { panic!("a Llama") };
    assert_eq!((spec.family, spec.layers, spec.hidden), (Family::Llama, 30, 576));
    assert_eq!((spec.heads, spec.kv_heads, spec.head_dim), (9, 3, 64));
    assert_eq!((spec.ffn, spec.vocab, spec.context_max), (1536, 49152, 8192));
    assert_eq!((spec.rope.theta, spec.rope.rotary_dim), (100_000.0, 64));
    assert_eq!((spec.rope.pairing, &spec.rope.scaling), (Pairing::Adjacent, &RopeScaling::None));
    assert_eq!((spec.norm_eps, spec.tied_head, spec.qk_norm), (1e-5, true, false));
    assert_eq!((spec.bos, spec.eos.as_slice()), (Some(Token(1)), &[Token(2)][..]));
    assert_eq!(spec.sliding_window, None);

    let embed = ckpt.tensor(Role::Embed).unwrap();
    assert_eq!((embed.format, embed.rows, embed.cols), (Format::Q8_0, 49152, 576));
    assert_eq!(ckpt.tensor(Role::Head), Some(embed), "the head is tied");
    let down = ckpt.tensor(Role::Layer(29, LayerRole::FfnDown)).unwrap();
    assert_eq!((down.format, down.rows, down.cols), (Format::Q4_1, 576, 1536));
    assert_eq!(down.row_bytes(), 1536 / 32 * 20);
    assert_eq!(ckpt.tensor(Role::Layer(0, LayerRole::AttnQBias)), None);
    assert_eq!(ckpt.tensors().count(), 2 + 30 * 9);
    assert!(ckpt.weight_bytes() > 96_000_000);
    // A trained norm's weights are of one size, with a few strays: a wrong offset would show.
    let norm = ckpt.tensor(Role::FinalNorm).unwrap().decode();
    assert_eq!(norm.len(), 576);
    assert!(norm.iter().filter(|v| (1.4..2.1).contains(*v)).count() > 500);
}

#[test]
fn the_default_models_vocabulary_is_read() {
    let vocab = Checkpoint::open(&model()).unwrap().vocab().unwrap().unwrap();
    assert_eq!((vocab.model.as_str(), vocab.pre.as_deref()), ("gpt2", Some("smollm")));
    assert_eq!((vocab.tokens.len(), vocab.token_types.len()), (49152, 49152));
    assert_eq!((vocab.bos, vocab.eos), (Some(1), Some(2)));
    assert_eq!(vocab.tokens[1], "<|im_start|>");
    assert!(vocab.merges.len() > 48_000 && vocab.merges.iter().all(|m| m.contains(' ')));
    assert!(vocab.chat_template.unwrap().contains("<|im_start|>"));
}

#[test]
fn digests_do_not_depend_on_threads() {
    let path = model();
    assert_eq!(file_sha256(&path).unwrap().to_string(), SHA256);
    let one = Checkpoint::open(&path).unwrap().digest(1);
    let three = Checkpoint::open(&path).unwrap().digest(3);
    assert_eq!(one, three);
}
