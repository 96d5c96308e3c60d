//! Rotary frequencies against those that `transformers` computes (`golden/make_rope.py`).
#![forbid(unsafe_code)]

use std::fs;

use lockstep_weights::{ModelSpec, config_spec};
use serde_json::Value;

/// A wrong ramp or a wrong context shows only in long texts, so every frequency is compared.
#[test]
fn frequencies_agree_with_transformers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/rope.json");
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let spec = config_spec(case["config"].to_string().as_bytes()).unwrap();
        let ModelSpec::Llama(spec) = spec else { panic!("{name}: a Llama") };
        let got = spec.rope.inverse_frequencies();
        let want: Vec<f64> =
            case["inv_freq"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert_eq!(got.len(), want.len(), "{name}");
        for (i, (&g, &w)) in got.iter().zip(&want).enumerate() {
            // The reference works in f32; a few of its roundings.
            assert!((f64::from(g) / w - 1.0).abs() < 6e-7, "{name}, pair {i}: {g} {w}");
        }
        let factor = f64::from(spec.rope.attention_factor());
        let want = case["attention_factor"].as_f64().unwrap();
        assert!((factor / want - 1.0).abs() < 1e-6, "{name}: {factor} {want}");
    }
}
