//! Hugging Face folders: `config.json`, and `model.safetensors` or the shards of its index.

mod config;
mod fault;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub(crate) use config::{Config, ConfigError, Keys};
pub use fault::ConfigFault;

use crate::error::{Found, WeightsError};
use crate::file::{SourceFile, open_regular};
use crate::safetensors::{self, SafeTensor};
use crate::spec::ModelSpec;

const CONFIG: &str = "config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

const CONFIG_BYTES_MAX: u64 = 1 << 20;
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// One opened shard.
pub(crate) struct Shard {
    pub file: SourceFile,
    pub tensors: Vec<SafeTensor>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The folder's configuration.
pub(crate) fn read_config(folder: &Path) -> Result<Config, WeightsError> {
    let path = folder.join(CONFIG);
    if !path.exists() {
        let path = folder.to_path_buf();
        return Err(WeightsError::NotAModel { path, found: Found::FolderWithoutConfig });
    }
    let config = read_json(&path, CONFIG_BYTES_MAX)?;
    let generation = folder.join(GENERATION_CONFIG);
    let generation =
        if generation.exists() { Some(read_json(&generation, CONFIG_BYTES_MAX)?) } else { None };
    Ok(Config { json: config, generation })
}

/// The facts that a `config.json` alone states, as if the weights had a separate head unless it
/// says otherwise.
pub fn config_spec(json: &[u8]) -> Result<ModelSpec, WeightsError> {
    let file = PathBuf::from(CONFIG);
    let json = serde_json::from_slice(json).map_err(|e| WeightsError::Config {
        file: file.clone(),
        fault: ConfigFault::Json { what: e.to_string() },
    })?;
    let config = Config { json, generation: None };
    config.model_spec(true).map_err(|e| e.at(file))
}

pub(crate) fn config_path(folder: &Path) -> PathBuf {
    folder.join(CONFIG)
}

/// Opens and checks every shard; a tensor is in exactly one, the one that the index says.
pub(crate) fn open_shards(folder: &Path) -> Result<Vec<Shard>, WeightsError> {
    let single = folder.join(WEIGHTS);
    if single.exists() {
        return Ok(vec![open_shard(&single)?]);
    }
    let index_path = folder.join(INDEX);
    if !index_path.exists() {
        let path = folder.to_path_buf();
        return Err(WeightsError::NotAModel { path, found: Found::FolderWithoutWeights });
    }
    let index: Index = read_json(&index_path, INDEX_BYTES_MAX)?;
    let fault = |fault| WeightsError::Config { file: index_path.clone(), fault };
    let mut names: Vec<&str> = Vec::new();
    for (tensor, shard) in &index.weight_map {
        let plain = Path::new(shard).file_name().is_some_and(|n| n == shard.as_str());
        if !plain || !shard.ends_with(".safetensors") {
            let (tensor, shard) = (tensor.clone(), shard.clone());
            return Err(fault(ConfigFault::ShardName { tensor, shard }));
        }
        names.push(shard);
    }
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(fault(ConfigFault::NoTensors));
    }
    let mut shards = Vec::with_capacity(names.len());
    for name in &names {
        shards.push(open_shard(&folder.join(name))?);
    }
    check_index(&index_path, &index, &names, &shards)?;
    Ok(shards)
}

fn check_index(
    path: &Path,
    index: &Index,
    names: &[&str],
    shards: &[Shard],
) -> Result<(), WeightsError> {
    let mut held: BTreeMap<&str, usize> = BTreeMap::new();
    for (s, shard) in shards.iter().enumerate() {
        for t in &shard.tensors {
            if let Some(first) = held.insert(&t.name, s) {
                return Err(WeightsError::TensorTwice {
                    first: shards[first].file.path().to_path_buf(),
                    second: shard.file.path().to_path_buf(),
                    name: t.name.clone(),
                });
            }
        }
    }
    for (tensor, shard) in &index.weight_map {
        if held.get(tensor.as_str()).is_none_or(|&s| names[s] != shard) {
            return Err(WeightsError::IndexLies {
                index: path.to_path_buf(),
                name: tensor.clone(),
                shard: shard.clone(),
            });
        }
    }
    Ok(())
}

fn open_shard(path: &Path) -> Result<Shard, WeightsError> {
    let file = SourceFile::open(path)?;
    let tensors = safetensors::parse(file.bytes())
        .map_err(|fault| WeightsError::Safetensors { file: path.to_path_buf(), fault })?;
    Ok(Shard { file, tensors })
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path, max: u64) -> Result<T, WeightsError> {
    let io = |source| WeightsError::Io { file: path.to_path_buf(), source };
    let fault = |fault| WeightsError::Config { file: path.to_path_buf(), fault };
    let (file, meta) = open_regular(path)?;
    let bytes = meta.len();
    if bytes > max {
        return Err(fault(ConfigFault::TooLarge { bytes, max }));
    }
    let mut text = Vec::with_capacity(bytes as usize);
    file.take(max).read_to_end(&mut text).map_err(io)?;
    serde_json::from_slice(&text).map_err(|e| fault(ConfigFault::Json { what: e.to_string() }))
}
