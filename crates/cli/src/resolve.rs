//! From what `--model` says to files.

use crate::exit::{Exit, Failure};
use crate::pull::{self, KNOWN, Known, Store};
use lockstep_flow::Settings;
use std::path::{Path, PathBuf};

/// The files of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFiles {
    /// A GGUF file or a Hugging Face folder.
    pub path: PathBuf,
    /// Its names, best first.
    pub aliases: Vec<String>,
}

/// Name of the project's own small model, which comes with it as the folder `models/recall`.
const RECALL: &str = "recall";

/// That folder: beside the program or above it (a build lies in the project's tree), else under
/// the current directory.
fn recall() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|p| p.ancestors().skip(1).take(5));
    let places = above.map(|dir| dir.join("models").join(RECALL));
    let here = core::iter::once(Path::new("models").join(RECALL));
    places.chain(here).find(|folder| folder.join("config.json").is_file())
}

fn no_recall() -> Failure {
    let words = "the model 'recall' comes with the project as the folder models/recall, which is \
                 neither near the program nor in the current directory; name the folder";
    Failure::new(Exit::NoModel, words)
}

/// No model of that name, and which there are.
pub fn unknown_model(name: &str) -> Failure {
    let names: Vec<&str> = KNOWN.iter().map(|k| k.name).chain([RECALL]).collect();
    let meant = match Known::nearest(name) {
        Some(nearest) => format!("; did you mean '{nearest}'?"),
        None => String::new(),
    };
    let words = format!(
        "'{name}' is neither a file, nor a folder, nor a known model ({}){meant}",
        names.join(", ")
    );
    Failure::new(Exit::NoModel, words)
}

/// A pipe, a device or a socket: it cannot be mapped, and opening it may never end.
fn no_model_file(path: &Path) -> Failure {
    let words = format!(
        "{} is neither a file nor a folder; --model takes a GGUF file, a Hugging Face folder, or a \
         known model's name",
        path.display()
    );
    Failure::new(Exit::BadModel, words)
}

/// Finds the model that the settings name, fetching it where it is known and not there.
pub fn model(
    settings: &Settings,
    store: impl Fn() -> Result<Store, Failure>,
) -> Result<ModelFiles, Failure> {
    let name = settings.text("model.path");
    let path = Path::new(name);
    if let Ok(meta) = std::fs::metadata(path) {
        if !meta.is_file() && !meta.is_dir() {
            return Err(no_model_file(path));
        }
        return Ok(ModelFiles { path: path.into(), aliases: aliases(path) });
    }
    if name == RECALL {
        let path = recall().ok_or_else(no_recall)?;
        return Ok(ModelFiles { path, aliases: vec![RECALL.into()] });
    }
    let Some(known) = Known::find(name) else { return Err(unknown_model(name)) };
    let store = store()?;
    let path = store.path(known);
    if path.exists() {
        pull::check(known, &store).map_err(|why| {
            let words = format!(
                "{} is not the model {} any more: {why}; `lockstep pull` fetches it again",
                path.display(),
                known.name
            );
            Failure::new(Exit::BadModel, words)
        })?;
    } else {
        pull::obtain(known, &store, None)
            .map_err(|e| Failure { detail: e.detail(), ..Failure::new(Exit::NoModel, &e) })?;
    }
    let mut aliases = aliases(&path);
    aliases.insert(0, known.name.into());
    Ok(ModelFiles { path, aliases })
}

/// The file's name without and with its ending.
fn aliases(path: &Path) -> Vec<String> {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let stem = if path.is_dir() { absolute.file_name() } else { absolute.file_stem() };
    let parts = [stem, absolute.file_name()];
    let mut names: Vec<String> =
        parts.into_iter().flatten().map(|p| p.to_string_lossy().into_owned()).collect();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_flow::settings::Source;

    fn named(name: &str) -> Settings {
        let mut settings = Settings::default();
        let knob = lockstep_flow::knobs::find("model.path").unwrap();
        settings.set(knob, name, Source::Flag).unwrap();
        settings
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let none = || -> Result<Store, Failure> { panic!("the store is not asked") };
        let e = model(&named("smollm2-135m-instrct"), none).unwrap_err();
        assert_eq!(e.exit, Exit::NoModel);
        assert!(e.message.contains("did you mean 'smollm2-135m-instruct'?"), "{}", e.message);
    }

    #[test]
    fn recall_comes_with_the_project() {
        let none = || -> Result<Store, Failure> { panic!("the store is not asked") };
        let found = model(&named("recall"), none).unwrap();
        assert_eq!(found.aliases, ["recall"]);
        assert!(found.path.join("model.safetensors.index.json").is_file(), "{found:?}");
    }

    #[test]
    fn a_path_is_taken_as_it_is() {
        let none = || -> Result<Store, Failure> { panic!("the store is not asked") };
        let found = model(&named("Cargo.toml"), none).unwrap();
        assert_eq!(found.path, Path::new("Cargo.toml"));
        assert_eq!(found.aliases, ["Cargo", "Cargo.toml"]);
        assert_eq!(model(&named("../cli/src"), none).unwrap().aliases, ["src"]);
    }
}
