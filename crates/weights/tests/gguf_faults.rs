//! Every way in which a GGUF file can be wrong gets its own words: the file, the key or tensor,
//! what was found and what would work.
#![forbid(unsafe_code)]

mod common;

use common::{
    GgufFile, array_value, f32_value, raw_string, string_value, strings_value, u32_value,
};
use lockstep_weights::{Checkpoint, LayerRole, ModelSpec, Role, RopeScaling, SourceFile};

fn open(bytes: Vec<u8>) -> Result<Checkpoint, String> {
    let file = SourceFile::in_memory("lying.gguf", bytes);
    let ckpt = Checkpoint::from_gguf(file).map_err(|e| e.to_string())?;
    ckpt.vocab().map_err(|e| e.to_string())?;
    Ok(ckpt)
}

/// The message of a file that a change made wrong.
fn fault(change: impl Fn(&mut GgufFile)) -> String {
    let mut file = GgufFile::llama();
    change(&mut file);
    message(file.bytes())
}

fn message(bytes: Vec<u8>) -> String {
    let message = open(bytes).expect_err("the file is wrong");
    assert!(message.starts_with("lying.gguf: "), "{message}");
    message["lying.gguf: ".len()..].to_owned()
}

#[track_caller]
fn says(message: String, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
}

#[test]
fn the_file_that_the_tests_falsify_is_sound() {
    let ckpt = open(GgufFile::llama().bytes()).unwrap();
    let vocab = ckpt.vocab().unwrap().unwrap();
    assert_eq!((vocab.tokens.len(), vocab.merges.len(), vocab.add_bos), (8, 2, Some(true)));
    assert_eq!(ckpt.tensor(Role::Layer(0, LayerRole::AttnK)).unwrap().rows, 16);
    let mut v2 = GgufFile::llama();
    v2.version = 2;
    open(v2.bytes()).unwrap();
}

#[test]
fn headers() {
    says(message(b"ELF!".to_vec()), &["not a GGUF file", "`ELF!`"]);
    says(message(Vec::new()), &["not a GGUF file"]);
    says(message(b"GGU".to_vec()), &["not a GGUF file"]);
    says(fault(|f| f.version = 1), &["GGUF version 1", "2 and 3"]);
    says(fault(|f| f.version = 3u32.swap_bytes()), &["big-endian", "(version 3)", "little-endian"]);
    says(fault(|f| f.tensor_count = Some(u64::MAX)), &["the header", "18446744073709551615"]);
    says(fault(|f| f.metadata_count = Some(1 << 40)), &["the header", "1099511627776"]);
    says(fault(|f| f.tensor_count = Some(13)), &["tensor table entry 11"]);
}

#[test]
fn every_truncation_is_told() {
    let whole = GgufFile::llama().bytes();
    for len in 0..whole.len() {
        let message = message(whole[..len].to_vec());
        assert!(
            ["truncated", "not a GGUF", "at most", "beyond the file's end"]
                .iter()
                .any(|word| message.contains(word)),
            "{len}: {message}"
        );
    }
}

#[test]
fn metadata() {
    let set = |key: &'static str, value: Vec<u8>| fault(move |f| f.set(key, value.clone()));
    says(set("x", vec![13, 0, 0, 0]), &["`x`", "value type 13", "0 to 12"]);
    says(set("x", vec![7, 0, 0, 0, 2]), &["`x`", "boolean", "found 2"]);
    says(
        set("x", [&8u32.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat()),
        &["truncated in the value of `x`", "18446744073709551615 bytes"],
    );
    let lie = [9u32.to_le_bytes(), 10u32.to_le_bytes()].concat();
    says(
        set("x", [lie, (1u64 << 61).to_le_bytes().to_vec()].concat()),
        &["the value of `x` counts"],
    );
    let nest = |n| {
        (0..n).fold(u32_value(1)[4..].to_vec(), |inner, depth| {
            let of = if depth == 0 { 4u32 } else { 9 };
            [&of.to_le_bytes()[..], &1u64.to_le_bytes(), &inner].concat()
        })
    };
    let array = |n| [9u32.to_le_bytes().to_vec(), nest(n)].concat();
    says(set("x", array(5)), &["`x`", "nested deeper than 4"]);
    let mut deep = GgufFile::llama();
    deep.set("x", array(4));
    open(deep.bytes()).unwrap();
    says(fault(|f| f.metadata.push(("general.name".into(), u32_value(0)))), &["given twice"]);
    says(set("general.alignment", u32_value(24)), &["general.alignment is 24", "power of two"]);
    says(set("general.alignment", u32_value(0)), &["general.alignment is 0"]);
    says(set("split.count", u32_value(3)), &["one of 3 shards", "llama-gguf-split --merge"]);
    says(
        set("llama.block_count", f32_value(1.0)),
        &["`llama.block_count` is an f32", "an integer"],
    );
    says(set("general.architecture", u32_value(1)), &["a u32", "a string"]);
    let bad = [&8u32.to_le_bytes()[..], &raw_string(b"\xff\xfe")].concat();
    says(set("general.name", bad), &["`general.name`", "not UTF-8", "offset"]);
}

#[test]
fn tensors() {
    let tensor = |change: fn(&mut common::GgufTensor)| {
        fault(move |f| change(f.tensor("blk.0.ffn_up.weight")))
    };
    let name = "`blk.0.ffn_up.weight`";
    says(tensor(|t| t.dims = vec![]), &[name, "0 dimensions", "1 to 4"]);
    says(tensor(|t| t.dims = vec![1; 5]), &[name, "5 dimensions"]);
    says(tensor(|t| t.dims = vec![32, 0]), &[name, "[32, 0]"]);
    says(tensor(|t| t.dims = vec![1 << 40, 1 << 40]), &[name, "overflows"]);
    says(tensor(|t| t.dims = vec![u64::MAX, 1]), &[name, "exceed"]);
    says(tensor(|t| t.kind = 10), &[name, "Q2_K (10)", "served are F32", "Q6_K"]);
    says(tensor(|t| t.kind = 77), &[name, "unknown (77)"]);
    says(tensor(|t| (t.kind, t.dims[0]) = (8, 33)), &[name, "33 elements", "Q8_0 blocks of 32"]);
    says(tensor(|t| t.offset += 4), &[name, "alignment 32"]);
    says(tensor(|t| t.offset = 1 << 60), &[name, "beyond the file's end"]);
    says(tensor(|t| t.offset = u64::MAX - 31), &[name, "beyond the file's end"]);
    says(tensor(|t| t.offset -= 32), &["`blk.0.ffn_gate.weight`", name, "overlap"]);
    says(tensor(|t| t.name = "output_norm.weight".into()), &["`output_norm.weight`", "twice"]);
    says(tensor(|t| t.name = "blk.7.ffn_up.weight".into()), &[name, "layers.0.ffn_up", "missing"]);
    says(fault(|f| f.add("blk.1.ffn_up.weight", &[32])), &["`blk.1.ffn_up.weight`", "not part of"]);
    says(
        fault(|f| f.tensor("blk.0.attn_k.weight").dims = vec![32, 8]),
        &["`blk.0.attn_k.weight`", "[8, 32]", "[16, 32]"],
    );
    says(fault(|f| f.tensors.clear()), &["`llama.vocab_size` is missing"]);
}

#[test]
fn architectures() {
    let set = |key: &'static str, value: Vec<u8>| fault(move |f| f.set(key, value.clone()));
    says(
        set("general.architecture", string_value("mamba")),
        &["architecture `mamba` is not served", "llama, mistral, qwen2, qwen3"],
    );
    says(fault(|f| f.remove("general.architecture")), &["`general.architecture` is missing"]);
    says(fault(|f| f.remove("llama.block_count")), &["`llama.block_count` is missing"]);
    says(set("llama.block_count", u32_value(u32::MAX)), &["layers is 4294967295", "1 to 1024"]);
    says(set("llama.block_count", u32_value(2)), &["layers.1.attn_norm", "missing"]);
    says(set("llama.attention.head_count", u32_value(0)), &["0"]);
    says(set("llama.attention.head_count_kv", u32_value(0)), &["kv_heads is 0"]);
    says(set("llama.attention.head_count_kv", u32_value(3)), &["2 query heads", "3 key-value"]);
    says(set("llama.rope.dimension_count", u32_value(17)), &["17 rotary dimensions"]);
    says(set("llama.expert_count", u32_value(8)), &["`llama.expert_count` is 8", "dense"]);
    says(set("llama.attention.layer_norm_rms_epsilon", f32_value(f32::NAN)), &["NaN"]);
    says(set("llama.rope.freq_base", f32_value(0.0)), &["rope theta is 0"]);
    says(set("llama.attention.value_length", u32_value(8)), &["attention.value_length` is 8"]);
    says(set("llama.rope.scaling.type", string_value("longrope")), &["`longrope`", "yarn"]);
    says(set("tokenizer.ggml.bos_token_id", u32_value(8)), &["8", "vocabulary of 8"]);
    let uneven = array_value(4, &[vec![2, 0, 0, 0], vec![1, 0, 0, 0]]);
    says(
        set("llama.attention.head_count_kv", uneven),
        &["head_count_kv", "differs between layers"],
    );
    let nine = strings_value(&["a"; 9]);
    says(set("tokenizer.ggml.tokens", nine), &["tokenizer.ggml.tokens", "9 entries", "8"]);
    let one = array_value(5, &[vec![1, 0, 0, 0]]);
    says(set("tokenizer.ggml.token_type", one), &["token_type", "1 entries", "8 are needed"]);
    says(set("tokenizer.ggml.tokens", u32_value(1)), &["a u32", "an array"]);
    let broken = array_value(8, &[raw_string(b"ok"), raw_string(b"\xc3")]);
    says(set("tokenizer.ggml.merges", broken), &["tokenizer.ggml.merges", "not UTF-8"]);
}

#[test]
fn llama3_factors_come_from_their_tensor() {
    let mut file = GgufFile::llama();
    file.add("rope_freqs.weight", &[8]);
    let ckpt = open(file.bytes()).unwrap();
    let ModelSpec::Llama(spec) = ckpt.spec() else { panic!("a Llama") };
    assert_eq!(spec.rope.scaling, RopeScaling::Factors(vec![1.0; 8]));
    assert_eq!(ckpt.tensor(Role::RopeFactors).unwrap().cols, 8);
    file.tensor("rope_freqs.weight").dims = vec![4];
    says(message(file.bytes()), &["rope scaling Factors"]);
    file.tensor("rope_freqs.weight").dims = vec![8];
    file.set("llama.rope.scaling.type", string_value("yarn"));
    says(message(file.bytes()), &["`yarn` together with rope_freqs.weight"]);
}

#[test]
fn per_layer_arrays_of_one_value_are_that_value() {
    let mut file = GgufFile::llama();
    file.set("llama.attention.head_count_kv", array_value(4, &[vec![1, 0, 0, 0]]));
    open(file.bytes()).unwrap();
}
