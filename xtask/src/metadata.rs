//! The parts of `cargo metadata` that the rules read.

use crate::args::Stop;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What kind of dependency an edge is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Shipped.
    Normal,
    /// Of tests, examples and benches.
    Dev,
    /// Of a build script.
    Build,
}

/// A dependency as the manifest states it.
#[derive(Debug)]
pub struct Edge {
    /// The package's name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
}

/// One package of the graph.
#[derive(Debug)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// SPDX expression, where the manifest has one.
    pub licence: Option<String>,
    /// Where its manifest lies.
    pub manifest: PathBuf,
    /// True for members of the workspace.
    pub member: bool,
    /// What it states that it uses.
    pub edges: Vec<Edge>,
}

/// The dependency graph.
#[derive(Debug)]
pub struct Metadata {
    /// All packages, of every target.
    pub packages: Vec<Package>,
    /// Where cargo builds.
    pub target_dir: PathBuf,
}

impl Metadata {
    /// Asks cargo; `--locked`, so that a stale Cargo.lock is an error here.
    pub fn load(root: &Path) -> Result<Metadata, Stop> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let out = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked"])
            .current_dir(root)
            .output()
            .map_err(|e| Stop::failed(format!("cargo metadata did not start: {e}")))?;
        if !out.status.success() {
            return Err(Stop::failed(format!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&out.stderr).trim()
            )));
        }
        Metadata::parse(&String::from_utf8_lossy(&out.stdout))
    }

    /// Reads cargo's JSON.
    pub fn parse(json: &str) -> Result<Metadata, Stop> {
        let bad = |what: &str| Stop::failed(format!("cargo metadata: {what}"));
        let root: Value = serde_json::from_str(json).map_err(|e| bad(&e.to_string()))?;
        let members: Vec<&str> = root["workspace_members"]
            .as_array()
            .ok_or_else(|| bad("no workspace_members"))?
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let mut packages = Vec::new();
        for p in root["packages"].as_array().ok_or_else(|| bad("no packages"))? {
            let text = |key: &str| p[key].as_str().map(str::to_owned);
            let mut edges = Vec::new();
            for d in p["dependencies"].as_array().into_iter().flatten() {
                let name = d["name"].as_str().ok_or_else(|| bad("a nameless dependency"))?;
                let kind = match d["kind"].as_str() {
                    Some("dev") => Kind::Dev,
                    Some("build") => Kind::Build,
                    _ => Kind::Normal,
                };
                edges.push(Edge { name: name.into(), kind });
            }
            let id = text("id").unwrap_or_default();
            packages.push(Package {
                name: text("name").ok_or_else(|| bad("a nameless package"))?,
                licence: text("license"),
                manifest: text("manifest_path").unwrap_or_default().into(),
                member: members.contains(&id.as_str()),
                edges,
            });
        }
        let target_dir = root["target_directory"].as_str().ok_or_else(|| bad("no target dir"))?;
        Ok(Metadata { packages, target_dir: target_dir.into() })
    }

    /// The workspace's own packages.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| p.member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_has_its_rooms() {
        let metadata = Metadata::load(&crate::tree::root()).unwrap();
        let names: Vec<&str> = metadata.members().map(|p| p.name.as_str()).collect();
        assert!(names.contains(&"lockstep-flow") && names.contains(&"xtask"), "{names:?}");
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(Metadata::parse("{}").is_err());
        assert!(Metadata::parse("not json").is_err());
    }
}
