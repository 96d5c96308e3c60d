//! The tokenizer files of a Hugging Face model folder.

use crate::TextError;
use lockstep_flow::Token;
use serde_json::Value;
use std::path::Path;
use tokenizers::AddedToken;

/// A `tokenizer.json` of a 256k vocabulary has about 35 MB.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// What a model folder says about text.
pub(crate) struct HfFolder {
    pub(crate) tokenizer_json: Vec<u8>,
    pub(crate) decoder: Value,
    config: Value,
    special_tokens_map: Value,
    generation_config: Value,
    model_config: Value,
    template_file: Option<String>,
    template_json: Value,
}

impl HfFolder {
    /// Reads the files of `dir`; all but `tokenizer.json` may be missing.
    pub(crate) fn read(dir: &Path) -> Result<HfFolder, TextError> {
        let no_tokenizer = || TextError::NoTokenizer { dir: dir.to_owned() };
        let tokenizer_json = read(&dir.join("tokenizer.json"))?.ok_or_else(no_tokenizer)?;
        let definition = parse(&dir.join("tokenizer.json"), &tokenizer_json)?;
        let json = |name: &str| -> Result<Value, TextError> {
            let path = dir.join(name);
            read(&path)?.map_or(Ok(Value::Null), |bytes| parse(&path, &bytes))
        };
        let template = dir.join("chat_template.jinja");
        let template_file = read(&template)?
            .map(|bytes| {
                let kind = std::io::ErrorKind::InvalidData;
                String::from_utf8(bytes).map_err(|_| TextError::Read { path: template, kind })
            })
            .transpose()?;
        Ok(HfFolder {
            tokenizer_json,
            decoder: definition["decoder"].clone(),
            config: json("tokenizer_config.json")?,
            special_tokens_map: json("special_tokens_map.json")?,
            generation_config: json("generation_config.json")?,
            model_config: json("config.json")?,
            template_file,
            template_json: json("chat_template.json")?,
        })
    }

    /// The spelling of `bos_token`, `eos_token`, `unk_token` or `pad_token`.
    pub(crate) fn special(&self, name: &str) -> Option<&str> {
        [&self.config[name], &self.special_tokens_map[name]].into_iter().find_map(spelling)
    }

    /// The ids in `eos_token_id` of generation_config.json, else of config.json.
    pub(crate) fn eos_ids(&self) -> Vec<Token> {
        eos_ids(&self.generation_config, &self.model_config)
    }

    /// As [`HfFolder::eos_ids`], of a folder that needs no tokenizer.
    pub(crate) fn eos_of(dir: &Path) -> Result<Vec<Token>, TextError> {
        let [generation, model] = ["generation_config.json", "config.json"].map(|name| {
            let path = dir.join(name);
            read(&path)?.map_or(Ok(Value::Null), |bytes| parse(&path, &bytes))
        });
        Ok(eos_ids(&generation?, &model?))
    }

    /// The chat template: `chat_template.jinja` before `chat_template.json` before
    /// `tokenizer_config.json`; of several named ones the one called `default`.
    pub(crate) fn chat_template(&self) -> Option<String> {
        if let Some(text) = &self.template_file {
            return Some(text.clone());
        }
        let sources = [&self.template_json["chat_template"], &self.config["chat_template"]];
        sources.into_iter().find_map(|source| match source {
            Value::String(text) => Some(text.clone()),
            Value::Array(list) => {
                let default = list.iter().find(|t| t["name"] == "default")?;
                default["template"].as_str().map(str::to_owned)
            }
            _ => None,
        })
    }

    /// Adds what tokenizer_config.json declares and tokenizer.json lacks: tokens of
    /// `added_tokens_decoder`, and the special flag of the named special tokens.
    pub(crate) fn add_tokens(&self, inner: &mut tokenizers::Tokenizer) -> Result<(), TextError> {
        let known = inner.get_added_tokens_decoder();
        let mut add = Vec::new();
        if let Value::Object(declared) = &self.config["added_tokens_decoder"] {
            for (id, token) in declared {
                let text = token["content"].as_str().unwrap_or_default();
                let missing = id.parse().is_ok_and(|id: u32| !known.contains_key(&id));
                // The library numbers new tokens itself, so only ids that it would choose fit.
                if missing && !text.is_empty() && inner.token_to_id(text).is_some() {
                    let special = token["special"].as_bool().unwrap_or(false);
                    add.push(AddedToken::from(text, special));
                }
            }
        }
        for name in ["bos_token", "eos_token", "unk_token", "pad_token"] {
            let Some(text) = self.special(name) else { continue };
            let is_special = known.values().any(|t| t.content == text && t.special);
            if !is_special && inner.token_to_id(text).is_some() {
                add.push(AddedToken::from(text, true));
            }
        }
        inner.add_tokens(add).map_err(super::refused)?;
        Ok(())
    }

    /// What encoding puts before a text, found by comparing with and without.
    pub(crate) fn prefix(&self, inner: &tokenizers::Tokenizer) -> Result<Vec<Token>, TextError> {
        let bos = self.special("bos_token").and_then(|text| inner.token_to_id(text)).map(Token);
        match self.config["add_bos_token"].as_bool() {
            Some(true) => return Ok(bos.into_iter().collect()),
            Some(false) => return Ok(Vec::new()),
            None => {}
        }
        let ids = |special| inner.encode_fast("a", special).map_err(super::refused);
        let (with, without) = (ids(true)?, ids(false)?);
        let (with, without) = (with.get_ids(), without.get_ids());
        let at = with.windows(without.len().max(1)).position(|w| w == without).unwrap_or(0);
        Ok(with[..at].iter().copied().map(Token).collect())
    }
}

fn eos_ids(generation: &Value, model: &Value) -> Vec<Token> {
    let ids = |v: &Value| -> Vec<Token> {
        let list = v.as_array().map_or(std::slice::from_ref(v), Vec::as_slice);
        list.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok().map(Token)).collect()
    };
    let first = ids(&generation["eos_token_id"]);
    if first.is_empty() { ids(&model["eos_token_id"]) } else { first }
}

fn spelling(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    let error = |e: std::io::Error| TextError::Read { path: path.to_owned(), kind: e.kind() };
    match std::fs::metadata(path) {
        Ok(meta) if meta.len() > FILE_BYTES_MAX => Err(TextError::FileTooLarge {
            path: path.to_owned(),
            bytes: meta.len(),
            max_bytes: FILE_BYTES_MAX,
        }),
        // Opening a named pipe would wait for a writer, which may never come.
        Ok(meta) if !meta.is_file() => Err(TextError::NotAFile { path: path.to_owned() }),
        Ok(_) => std::fs::read(path).map(Some).map_err(error),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(error(e)),
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Value, TextError> {
    serde_json::from_slice(bytes).map_err(|e| TextError::NotJson {
        path: path.to_owned(),
        line: e.line(),
        column: e.column(),
    })
}
