//! Every way in which a Hugging Face folder can be wrong gets its own words.
#![forbid(unsafe_code)]

mod common;

use std::fs;

use common::{TempFolder, fixture, safetensors};
use lockstep_weights::safetensors::{SafetensorsFault, parse};
use lockstep_weights::{Checkpoint, ModelSpec, RopeScaling, SlidingWindow, config_spec};
use serde_json::{Value, json};

#[track_caller]
fn says(message: impl ToString, parts: &[&str]) {
    let message = message.to_string();
    for part in parts {
        assert!(message.contains(part), "`{message}` does not say `{part}`");
    }
}

#[track_caller]
fn header_says(header: &str, data_bytes: usize, parts: &[&str]) {
    says(parse(&safetensors(header, data_bytes)).unwrap_err(), parts);
}

#[test]
fn safetensors_headers() {
    says(parse(b"1234").unwrap_err(), &["truncated", "8 bytes", "has 4"]);
    says(parse(&[255; 64]).unwrap_err(), &["not a safetensors file", "100000000"]);
    says(parse(&[1, 0, 0, 1, 0, 0, 0, 0, b'{']).unwrap_err(), &["truncated"]);
    header_says("[]", 0, &["malformed", "object of tensors"]);
    header_says(r#"{"a":1}"#, 0, &["malformed"]);
    header_says(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, &["malformed"]);
    let one = |dtype: &str, shape: &str, range: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
    };
    header_says(&one("F31", "[1]", "[0,4]"), 4, &["`a`", "unknown type `F31`"]);
    header_says(&one("F32", "[2]", "[0,4]"), 4, &["`a`", "4 bytes", "need 8"]);
    header_says(&one("F32", "[2]", "[0,8]"), 4, &["`a`", "0 to 8", "4 bytes of data"]);
    header_says(&one("F32", "[1]", "[4,0]"), 4, &["`a`", "4 to 0"]);
    header_says(&one("F32", "[4294967296,4294967296]", "[0,4]"), 4, &["`a`", "overflows"]);
    header_says(&one("F4", "[1]", "[0,4]"), 4, &["`a`", "not whole bytes"]);
    header_says(&one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, &["`a`", "8 dimensions"]);
    header_says(&one("F32", "[1]", "[4,8]"), 8, &["4 bytes at data offset 0", "before tensor `a`"]);
    header_says(&one("F32", "[1]", "[0,4]"), 6, &["2 bytes after the last tensor"]);
    let two = |second: &str, range: &str| {
        let entry = |range| format!(r#"{{"dtype":"F32","shape":[1],"data_offsets":{range}}}"#);
        format!(r#"{{"a":{},"{second}":{}}}"#, entry("[0,4]"), entry(range))
    };
    header_says(&two("b", "[2,6]"), 6, &["`a` and `b` overlap at data offset 2"]);
    header_says(&two("a", "[4,8]"), 8, &["`a` is given twice"]);
    let sound = parse(&safetensors(&two("b", "[4,8]"), 8)).unwrap();
    assert_eq!((sound.len(), sound[1].range.len()), (2, 4));
    let empty = one("F32", "[0]", "[0,0]");
    assert_eq!(parse(&safetensors(&empty, 0)).unwrap().len(), 1);
}

/// The format's own crate and this reader agree on what a sound file is.
#[test]
fn agrees_with_the_safetensors_crate() {
    for file in ["llama/model.safetensors", "qwen3/model-00002-of-00002.safetensors"] {
        let bytes = fs::read(fixture(file)).unwrap();
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ours = parse(&bytes).unwrap();
        assert_eq!(ours.len(), theirs.len());
        for t in &ours {
            let view = theirs.tensor(&t.name).unwrap();
            let shape: Vec<u64> = view.shape().iter().map(|&d| d as u64).collect();
            assert_eq!((&t.shape, &bytes[t.range.clone()]), (&shape, view.data()), "{}", t.name);
        }
    }
    let flawed = safetensors(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#, 8);
    assert!(::safetensors::SafeTensors::deserialize(&flawed).is_err());
    assert!(matches!(parse(&flawed), Err(SafetensorsFault::Gap { .. })));
}

#[test]
fn folders() {
    let folder = TempFolder::new("folders");
    let open = || Checkpoint::open(&folder.0).unwrap_err();
    says(open(), &["no config.json", "GGUF file or a Hugging Face folder"]);
    folder.write("config.json", fs::read(fixture("llama/config.json")).unwrap());
    says(open(), &["neither model.safetensors nor", "convert"]);
    folder.write("model.safetensors", b"");
    says(open(), &["model.safetensors", "truncated"]);
    says(Checkpoint::open(&folder.0.join("model.safetensors")).unwrap_err(), &["give the folder"]);
    says(Checkpoint::open(&folder.0.join("config.json")).unwrap_err(), &["start as a GGUF file"]);
    says(Checkpoint::open(&folder.0.join("none")).unwrap_err(), &["none", "No such file"]);
}

#[test]
fn shards() {
    let folder = TempFolder::copy_of("shards", "qwen3");
    let name = "model.safetensors.index.json";
    let sound: Value = serde_json::from_slice(&fs::read(folder.0.join(name)).unwrap()).unwrap();
    Checkpoint::open(&folder.0).unwrap();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut index = sound.clone();
        change(&mut index["weight_map"]);
        folder.write(name, index.to_string());
        Checkpoint::open(&folder.0).unwrap_err()
    };
    let norm = "model.norm.weight";
    says(
        with(&|map| map[norm] = json!("../model.safetensors")),
        &["index.json", norm, "`../model"],
    );
    says(with(&|map| map[norm] = json!("..")), &["index.json", norm]);
    says(with(&|map| map[norm] = json!("absent.safetensors")), &["absent.safetensors", "No such"]);
    says(with(&|map| *map = json!({})), &["names no tensor"]);
    says(with(&|map| *map = json!([])), &["index.json", "malformed"]);
    says(with(&|map| map["ghost"] = map[norm].clone()), &["`ghost`", "does not hold it"]);
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let swap = |map: &mut Value| map[norm] = json!(if map[norm] == one { two } else { one });
    says(with(&swap), &[norm, "does not hold it"]);
    folder.write(name, sound.to_string());
    fs::copy(folder.0.join(one), folder.0.join(two)).unwrap();
    says(Checkpoint::open(&folder.0).unwrap_err(), &[two, "is in", one]);
}

#[test]
fn weights_that_do_not_fit_the_config() {
    let folder = TempFolder::copy_of("fit", "llama");
    let sound: Value =
        serde_json::from_slice(&fs::read(folder.0.join("config.json")).unwrap()).unwrap();
    let with = |key: &str, value: Value| {
        let mut config = sound.clone();
        config[key] = value;
        folder.write("config.json", config.to_string());
        Checkpoint::open(&folder.0)
    };
    says(with("num_hidden_layers", json!(3)).unwrap_err(), &["model.layers.2.input_layernorm"]);
    says(with("num_hidden_layers", json!(1)).unwrap_err(), &["model.layers.1.", "and 8 more"]);
    says(with("intermediate_size", json!(64)).unwrap_err(), &["mlp.", "[64, 64]"]);
    says(with("attention_bias", json!(true)).unwrap_err(), &["q_proj.bias", "missing"]);
    // A tied head makes the separate one a copy that is not read.
    let tied = with("tie_word_embeddings", json!(true)).unwrap();
    assert_eq!(tied.tensors().filter(|(_, t)| t.rows == 256).count(), 1);
    // Not said: the weights decide.
    let untied = with("tie_word_embeddings", Value::Null).unwrap();
    assert_eq!(untied.tensors().filter(|(_, t)| t.rows == 256).count(), 2);
}

fn config() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": [2, 7]
    })
}

fn spec_with(changes: &[(&str, Value)]) -> Result<lockstep_weights::LlamaSpec, String> {
    let mut config = config();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    match config_spec(config.to_string().as_bytes()) {
        Ok(ModelSpec::Llama(spec)) => Ok(spec),
        Ok(_) => panic!("a Llama"),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn configs() {
    let fault = |key: &str, value: Value| spec_with(&[(key, value)]).unwrap_err();
    says(fault("model_type", json!("gemma3")), &["config.json", "`gemma3`", "llama, mistral"]);
    says(fault("model_type", Value::Null), &["`model_type` is missing"]);
    says(fault("hidden_act", json!("gelu")), &["`hidden_act` is `gelu`", "silu"]);
    says(fault("mlp_bias", json!(true)), &["mlp_bias"]);
    says(fault("quantization_config", json!({})), &["quantization_config", "GGUF"]);
    says(fault("architectures", json!(["LlamaModel"])), &["LlamaModel", "ForCausalLM"]);
    says(fault("hidden_size", json!(-64)), &["`hidden_size` is `-64`", "an integer"]);
    says(fault("hidden_size", json!(1u64 << 40)), &["hidden_size"]);
    says(fault("num_hidden_layers", json!(0)), &["layers is 0"]);
    says(fault("num_attention_heads", json!(0)), &["heads is 0"]);
    says(fault("vocab_size", json!(1 << 24)), &["vocab is 16777216", "1 to 1048576"]);
    says(fault("eos_token_id", json!("x")), &["eos_token_id", "a token id or a list"]);
    says(fault("eos_token_id", json!(256)), &["eos token id 256", "vocabulary of 256"]);
    says(fault("partial_rotary_factor", json!(0.5)), &["partial_rotary_factor", "0.5"]);
    says(fault("rope_scaling", json!({"type": "dynamic", "factor": 2.0})), &["`dynamic`", "yarn"]);
    says(fault("rope_scaling", json!({"type": "linear"})), &["`rope_scaling.factor` is missing"]);
    says(fault("rope_scaling", json!({"type": "linear", "factor": -1.0})), &["rope scaling"]);
    says(fault("rope_theta", json!(1.0)), &["rope theta is 1"]);
    says(config_spec(b"{").unwrap_err(), &["config.json", "malformed"]);
    let deep = "[".repeat(100_000);
    says(config_spec(deep.as_bytes()).unwrap_err(), &["config.json", "malformed"]);
}

#[test]
fn defaults_are_those_of_the_family() {
    let spec = spec_with(&[]).unwrap();
    assert_eq!((spec.head_dim, spec.rope.theta, spec.eos.len()), (16, 10_000.0, 2));
    assert_eq!((spec.rope.scaling, spec.sliding_window), (RopeScaling::None, None));
    let llama = spec_with(&[("num_key_value_heads", Value::Null)]).unwrap();
    assert_eq!(llama.kv_heads, 4);
    let mistral = spec_with(&[("model_type", json!("mistral"))]).unwrap();
    let window = |tokens, first_layer| Some(SlidingWindow { tokens, first_layer });
    assert_eq!(mistral.sliding_window, window(4096, 0));
    let qwen2 = |more: &[(&str, Value)]| {
        let changes = [&[("model_type", json!("qwen2")), ("sliding_window", json!(128))], more];
        spec_with(&changes.concat()).unwrap()
    };
    assert_eq!(qwen2(&[]).sliding_window, None);
    assert!(qwen2(&[]).attn_bias.q && !qwen2(&[]).attn_bias.o);
    let on = ("use_sliding_window", json!(true));
    let from = |n: u32| ("max_window_layers", json!(n));
    assert_eq!(qwen2(&[on.clone(), from(3)]).sliding_window, window(128, 3));
    assert_eq!(qwen2(&[on, from(4)]).sliding_window, None);
}
