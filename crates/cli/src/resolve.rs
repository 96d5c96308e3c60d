//! From what `--model` says to files.

use crate::exit::{Exit, Failure};
use crate::pull::{self, KNOWN, Known, PullError, Store};
use lockstep_flow::Settings;
use lockstep_flow::settings::Source;
use std::path::{Path, PathBuf};

/// The files of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelFiles {
    /// A GGUF file or a Hugging Face folder.
    pub path: PathBuf,
    /// Its names, best first.
    pub aliases: Vec<String>,
    /// Of which model it takes the place, and why.
    pub stands_in: Option<String>,
}

/// Name of the project's own small model, which comes with it as the folder `models/recall`.
const RECALL: &str = "recall";

/// That folder: beside the program or above it (a build lies in the project's tree), else under
/// the current directory, else `recall` in the store, where a program that was installed alone
/// finds a copy.
pub fn recall(store: impl Fn() -> Result<Store, Failure>) -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|p| p.ancestors().skip(1).take(5));
    let places = above.map(|dir| dir.join("models").join(RECALL));
    let here = core::iter::once(Path::new("models").join(RECALL));
    let is_there = |folder: &PathBuf| folder.join("config.json").is_file();
    let stored = || Some(store().ok()?.dir().join(RECALL)).filter(is_there);
    places.chain(here).find(is_there).or_else(stored)
}

/// That it is nowhere.
pub fn no_recall() -> Failure {
    let words = "the model 'recall' comes with the project as the folder models/recall, which is \
                 neither near the program nor in the current directory nor, as recall, in the \
                 store; copy it to one of them, or name the folder";
    Failure::new(Exit::NoModel, words)
}

/// The project's own model, where nobody named a model and no source of the default one answers.
fn fallback(
    settings: &Settings,
    why: &PullError,
    store: impl Fn() -> Result<Store, Failure>,
) -> Option<ModelFiles> {
    let by_default = settings.get("model.path").source == Source::Default;
    let PullError::Nowhere { model, .. } = why else { return None };
    let path = recall(store).filter(|_| by_default)?;
    let why: Vec<String> = why.to_string().lines().map(|l| l.trim().to_string()).collect();
    let words = format!("serving {RECALL} instead of {model}: {}", why.join(" "));
    Some(ModelFiles { path, aliases: vec![RECALL.into()], stands_in: Some(words) })
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

/// The model that `lockstep pull` was asked for.
pub fn to_fetch(name: &str) -> Result<&'static Known, Failure> {
    if name == RECALL {
        let words = "recall comes with the project and is never fetched: serve it with \
                     `lockstep serve --model recall`";
        return Err(Failure::new(Exit::NoModel, words));
    }
    Known::find(name).ok_or_else(|| {
        let names: Vec<&str> = KNOWN.iter().map(|k| k.name).collect();
        let meant = Known::nearest(name).map(|n| format!("; did you mean '{n}'?"));
        let words = format!(
            "no model that can be fetched is called '{name}' ({}){}",
            names.join(", "),
            meant.unwrap_or_default()
        );
        Failure::new(Exit::NoModel, words)
    })
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
        return Ok(ModelFiles { path: path.into(), aliases: aliases(path), stands_in: None });
    }
    if name == RECALL {
        let path = recall(store).ok_or_else(no_recall)?;
        return Ok(ModelFiles { path, aliases: vec![RECALL.into()], stands_in: None });
    }
    let Some(known) = Known::find(name) else { return Err(unknown_model(name)) };
    let place = store()?;
    let path = place.path(known);
    if path.exists() {
        pull::check(known, &place).map_err(|why| {
            let words = format!(
                "{} is not the model {} any more: {why}; `lockstep pull` fetches it again",
                path.display(),
                known.name
            );
            Failure::new(Exit::BadModel, words)
        })?;
    } else {
        match pull::obtain(known, &place, None) {
            Ok(got) => crate::out::complain(format_args!(
                "{}: fetched ({}), SHA-256 verified",
                known.name, got.source
            )),
            Err(e) => {
                return fallback(settings, &e, store).ok_or_else(|| Failure {
                    detail: e.detail(),
                    ..Failure::new(Exit::NoModel, &e)
                });
            }
        }
    }
    let mut aliases = aliases(&path);
    aliases.insert(0, known.name.into());
    Ok(ModelFiles { path, aliases, stands_in: None })
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

    /// `pull recall` once said that recall was no known model, and named it among the known ones.
    #[test]
    fn what_pull_cannot_fetch_is_not_among_what_it_can() {
        let e = to_fetch("recall").unwrap_err();
        assert!(
            e.message.contains("never fetched") && e.message.contains("--model recall"),
            "{e:?}"
        );
        let e = to_fetch("smollm2").unwrap_err();
        assert!(!e.message.contains("recall"), "{}", e.message);
        assert_eq!(to_fetch(KNOWN[0].name).unwrap().name, KNOWN[0].name);
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
