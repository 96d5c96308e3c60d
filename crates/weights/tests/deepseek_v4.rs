//! DeepSeek-V4 folders: the facts of `config.json`, every tensor by its role, and words for what
//! is wrong with either.
#![forbid(unsafe_code)]

use lockstep_weights::{
    Checkpoint, Compression, DeepSeekV4Spec, ModelSpec, Role, RopeScaling, V4Part, V4Place, V4Role,
    config_spec,
};
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/dsv4-tiny")
}

fn spec(c: &Checkpoint) -> &DeepSeekV4Spec {
    let ModelSpec::DeepSeekV4(spec) = c.spec() else { panic!("{:?}", c.spec()) };
    spec
}

#[test]
fn a_folder_gives_its_facts_and_its_tensors() {
    let c = Checkpoint::open(&folder()).unwrap();
    let s = spec(&c);
    use Compression::{C4, C128, Window};
    assert_eq!(s.compression, [Window, Window, C4, C128, C4, C128, C4]);
    assert_eq!((s.layers, s.hidden, s.heads, s.head_dim, s.rotary_dim), (7, 128, 8, 64, 16));
    assert_eq!((s.streams, s.hash_layers, s.mtp_blocks, s.index_topk), (4, 2, 1, 8));
    assert_eq!((s.rope.theta, s.rope.scaling == RopeScaling::None), (1e4, true));
    assert_eq!(s.compress_rope.theta, 1.6e5);
    assert_eq!(s.compress_rope.attention_factor(), 1.0);
    let tensor = |place, role| c.tensor(Role::V4(place, role)).map(|t| (t.rows, t.cols));
    let layer = V4Place::Layer;
    assert_eq!(tensor(layer(2), V4Role::CompressApe), Some((4, 128)));
    assert_eq!(tensor(layer(3), V4Role::CompressApe), Some((128, 64)));
    assert_eq!(tensor(layer(3), V4Role::IndexApe), None);
    assert_eq!(tensor(layer(0), V4Role::RouterBias), None);
    assert_eq!(tensor(layer(6), V4Role::Expert(7, V4Part::Down)), Some((128, 64)));
    assert_eq!(tensor(V4Place::Mtp(0), V4Role::EmbedProj), Some((128, 128)));
    let table = c.expert_table(1).unwrap();
    assert_eq!(table.len(), 512 * 2);
    assert!(table.chunks(2).all(|e| e[0] < 8 && e[1] < 8 && e[0] != e[1]));
    assert_eq!(c.expert_table(2), None);
    assert_eq!(c.tensors().count(), 412);
}

/// The folder's configuration with one key changed.
fn with(key: &str, value: &str) -> String {
    let text = std::fs::read_to_string(folder().join("config.json")).unwrap();
    let mut json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
    json.insert(key.into(), serde_json::from_str(value).unwrap());
    let refused = config_spec(serde_json::to_string(&json).unwrap().as_bytes());
    refused.map_or_else(|e| e.to_string(), |_| "taken".into())
}

#[test]
fn a_configuration_of_another_computation_is_refused_in_words() {
    for (key, value, words) in [
        ("swiglu_limit", "10.0", "taken"),
        ("scoring_func", "\"softmax\"", "`scoring_func` is `softmax`; supported: sqrtsoftplus"),
        ("n_shared_experts", "2", "`n_shared_experts` is 2; supported: 1"),
        ("compress_ratios", "[0, 0, 8]", "a list of 3 entries"),
        (
            "compress_ratios",
            "[0, 0, 4, 128, 4, 128, 8, 0]",
            "an entry `8`; supported: 0, 4 and 128",
        ),
        ("compress_ratios", "[0, 0, 4, 128, 4, 128, 4, 4]", "a compressed prediction block"),
        ("compress_ratios", "\"all\"", "`compress_ratios` is missing"),
        ("hc_mult", "5", "hc_mult is 5; 1 to 4 are served"),
        ("num_experts_per_tok", "9", "num_experts_per_tok is 9; 1 to 8 are served"),
        ("o_groups", "3", "8 heads are not a multiple of 3 output groups"),
        ("qk_rope_head_dim", "48", "48 rotary dimensions"),
        ("rope_scaling", "{\"type\": \"linear\"}", "`rope_scaling.type` is `linear`"),
        ("swiglu_limit", "-1.0", "swiglu_limit is -1"),
        ("swiglu_limit", "null", "`swiglu_limit` is missing"),
        ("num_hidden_layers", "4000000000", "a list of 8 entries"),
        ("hidden_size", "0", "hidden is 0"),
    ] {
        let found = with(key, value);
        assert!(found.contains(words), "{key} {value}: {found}");
    }
}

/// Writes the tiny model with its router table changed by `edit`, and opens it.
fn opened_with_table(name: &str, edit: impl Fn(&mut [u8])) -> String {
    let dir = std::env::temp_dir().join(format!("lockstep-v4-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(folder().join("config.json"), dir.join("config.json")).unwrap();
    let mut bytes = std::fs::read(folder().join("model.safetensors")).unwrap();
    let tensors = lockstep_weights::safetensors::parse(&bytes).unwrap();
    let table = tensors.iter().find(|t| t.name == "layers.1.ffn.gate.tid2eid").unwrap();
    edit(&mut bytes[table.range.clone()]);
    std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
    let opened = Checkpoint::open(&dir).map(drop).map_err(|e| e.to_string());
    std::fs::remove_dir_all(&dir).unwrap();
    opened.map_or_else(|e| e, |()| "opened".into())
}

#[test]
fn a_table_that_names_no_expert_is_refused_with_its_token() {
    assert_eq!(opened_with_table("sound", |_| {}), "opened");
    let found = opened_with_table("unsound", |t| t[4 * 7..][..4].copy_from_slice(&[8, 0, 0, 0]));
    let words = "`layers.1.ffn.gate.tid2eid` sends token 3 to expert 8; there are 8";
    assert!(found.contains(words), "{found}");
}

/// A tensor to be written: name, type, shape, bytes.
type Written = (String, &'static str, Vec<u64>, Vec<u8>);

/// The tiny model's tensors, to be changed and written.
fn tensors() -> Vec<Written> {
    let bytes = std::fs::read(folder().join("model.safetensors")).unwrap();
    let tensors = lockstep_weights::safetensors::parse(&bytes).unwrap();
    let dtype = |d: &str| if d == "F32" { "F32" } else { "I32" };
    let of = |t: lockstep_weights::safetensors::SafeTensor| {
        (t.name, dtype(&t.dtype), t.shape, bytes[t.range].to_vec())
    };
    tensors.into_iter().map(of).collect()
}

fn opened(name: &str, tensors: &[Written]) -> Result<Checkpoint, String> {
    let dir = std::env::temp_dir().join(format!("lockstep-v4-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(folder().join("config.json"), dir.join("config.json")).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let range = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": range});
        header.insert(name.clone(), entry);
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    let opened = Checkpoint::open(&dir).map_err(|e| e.to_string());
    // The mapping outlives the name.
    std::fs::remove_dir_all(&dir).unwrap();
    opened
}

/// Puts other bytes of another type in place of a tensor.
fn replace(
    tensors: &mut [Written],
    name: &str,
    dtype: &'static str,
    shape: &[u64],
    bytes: Vec<u8>,
) {
    let at = tensors.iter_mut().find(|t| t.0 == name).unwrap();
    *at = (name.into(), dtype, shape.to_vec(), bytes);
}

fn codes(n: usize, salt: u32) -> Vec<u8> {
    let mut x = salt;
    (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // No NaN of E4M3.
            (x >> 24) as u8 & !(u8::from(x >> 24 & 127 == 127))
        })
        .collect()
}

/// The native checkpoint's FP8 matrices, MXFP4 experts and (other releases') NVFP4 experts.
#[test]
fn matrices_of_few_bits_are_decoded_exactly() {
    use lockstep_plan::format::Format;
    use lockstep_weights::narrow::{e2m1, e4m3, e8m0};
    let mut all = tensors();
    let (fp8, mx, nv) = (codes(64 * 128, 1), codes(64 * 64, 2), codes(64 * 64, 3));
    let (mx_scales, nv_scales) = (vec![120u8; 64 * 4], codes(64 * 8, 4));
    let expert = |layer: u32, tail: &str| format!("layers.{layer}.ffn.experts.5.w1.{tail}");
    replace(&mut all, "layers.0.attn.wq_a.weight", "F8_E4M3", &[64, 128], fp8.clone());
    all.push(("layers.0.attn.wq_a.scale".into(), "F8_E8M0", vec![1, 1], vec![122]));
    replace(&mut all, &expert(2, "weight"), "I8", &[64, 64], mx.clone());
    all.push((expert(2, "scale"), "F8_E8M0", vec![64, 4], mx_scales));
    replace(&mut all, &expert(3, "weight"), "U8", &[64, 64], nv.clone());
    all.push((expert(3, "weight_scale"), "F8_E4M3", vec![64, 8], nv_scales.clone()));
    all.push((expert(3, "weight_scale_2"), "F32", vec![], 0.013f32.to_le_bytes().to_vec()));
    all.push((expert(3, "input_scale"), "F32", vec![], 1f32.to_le_bytes().to_vec()));
    let c = opened("coded", &all).unwrap();
    let tensor = |layer, role| c.tensor(Role::V4(V4Place::Layer(layer), role)).unwrap();

    let t = tensor(0, V4Role::WqA);
    assert_eq!((t.format, t.rows, t.cols), (Format::BF16, 64, 128));
    let want: Vec<f32> = fp8.iter().map(|&b| e4m3(b) * e8m0(122)).collect();
    assert_eq!(t.decode(), want);
    let mut again = vec![0.0; want.len()];
    lockstep_plan::format::decode_blocks(t.format, &t.elements(), &mut again);
    assert_eq!(again, want, "BF16 holds every one of them");

    let t = tensor(2, V4Role::Expert(5, V4Part::Gate));
    let low_first = |codes: &[u8]| -> Vec<f32> {
        codes.iter().flat_map(|b| [e2m1(b & 15), e2m1(b >> 4)]).collect()
    };
    let want: Vec<f32> = low_first(&mx).into_iter().map(|v| v * e8m0(120)).collect();
    assert_eq!((t.format, t.decode()), (Format::BF16, want.clone()));
    lockstep_plan::format::decode_blocks(t.format, &t.elements(), &mut again);
    assert_eq!(again, want);

    let t = tensor(3, V4Role::Expert(5, V4Part::Gate));
    let scale = |i: usize| e4m3(nv_scales[i / 128 * 8 + i % 128 / 16]);
    let values = low_first(&nv).into_iter().enumerate();
    let want: Vec<f32> = values.map(|(i, v)| v * scale(i) * 0.013).collect();
    assert_eq!((t.format, t.decode()), (Format::F32, want));

    // What the scales are enters the digest.
    let digest = c.digest(1);
    let at = all.iter().position(|t| t.0 == "layers.0.attn.wq_a.scale").unwrap();
    all[at].3 = vec![123];
    assert_ne!(opened("coded-again", &all).unwrap().digest(1), digest);
    all[at].1 = "U8";
    let found = opened("coded-type", &all).unwrap_err();
    assert!(
        found.contains("`layers.0.attn.wq_a.scale` have type U8; F8_E8M0 is needed"),
        "{found}"
    );
    all.remove(at);
    let found = opened("coded-bare", &all).unwrap_err();
    assert!(found.contains("needs its scales `layers.0.attn.wq_a.scale`"), "{found}");
}

/// Every scale and element code is either decoded or refused with its place: no NaN gets in.
#[test]
fn codes_that_stand_for_no_number_are_refused_with_their_place() {
    let fp8 = |elements: Vec<u8>, scale: u8| {
        let mut all = tensors();
        replace(&mut all, "layers.0.attn.wq_a.weight", "F8_E4M3", &[64, 128], elements);
        all.push(("layers.0.attn.wq_a.scale".into(), "F8_E8M0", vec![1, 1], vec![scale]));
        opened("codes", &all).map(drop)
    };
    let sound = codes(64 * 128, 1);
    for code in [0, 2, 3, 122, 246, 247, 254, 255u8] {
        let taken = fp8(sound.clone(), code);
        assert_eq!(taken.is_ok(), (3..=246).contains(&code), "{code}: {taken:?}");
    }
    for nan in [0x7f, 0xff] {
        let mut elements = sound.clone();
        elements[128 * 5 + 17] = nan;
        let found = fp8(elements, 122).unwrap_err();
        let words = format!("`layers.0.attn.wq_a.weight` has code {nan:#04x} at row 5, column 17");
        assert!(found.contains(&words) && found.contains("E4M3"), "{found}");
    }
    let expert = |tail: &str| format!("layers.2.ffn.experts.5.w1.{tail}");
    let mx = |code: u8| {
        let mut all = tensors();
        replace(&mut all, &expert("weight"), "I8", &[64, 64], codes(64 * 64, 2));
        let mut scales = vec![120u8; 64 * 4];
        scales[4 * 9 + 2] = code;
        all.push((expert("scale"), "F8_E8M0", vec![64, 4], scales));
        opened("codes", &all).map(drop)
    };
    assert!(mx(0).is_ok() && mx(252).is_ok());
    let found = mx(255).unwrap_err();
    assert!(found.contains("has code 0xff at row 9, column 2; as E8M0"), "{found}");
    let nv = |code: u8, global: f32| {
        let mut all = tensors();
        replace(&mut all, &expert("weight"), "U8", &[64, 64], codes(64 * 64, 3));
        let mut scales = codes(64 * 8, 4);
        scales[8 * 3 + 1] = code;
        all.push((expert("weight_scale"), "F8_E4M3", vec![64, 8], scales));
        let global = global.to_le_bytes().to_vec();
        all.push((expert("weight_scale_2"), "F32", vec![], global));
        opened("codes", &all).map(drop)
    };
    assert!(nv(0x7e, 0.5).is_ok());
    assert!(nv(0x7f, 0.5).unwrap_err().contains("has code 0x7f at row 3, column 1; as E4M3"));
    let found = nv(0x7e, f32::NAN).unwrap_err();
    assert!(
        found.contains("the scale `layers.2.ffn.experts.5.w1.weight_scale_2` is NaN"),
        "{found}"
    );
}
