//! The project's files: those that git tracks or would track.

use crate::args::Stop;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One file, by its path from the root with forward slashes.
#[derive(Debug)]
pub struct File {
    /// Path from the root.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// The text; `None` where the file is not UTF-8 or holds a NUL.
    pub text: Option<String>,
}

/// Every file of the project, in path order.
#[derive(Debug, Default)]
pub struct Tree {
    /// The files.
    pub files: Vec<File>,
}

/// The workspace's root: where this crate's parent lies.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map_or_else(|| here.clone(), Path::to_path_buf)
}

impl Tree {
    /// Reads what git lists: tracked files and new ones that are not ignored.
    pub fn load(root: &Path) -> Result<Tree, Stop> {
        let out = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .map_err(|e| Stop::failed(format!("git ls-files did not start: {e}; install git")))?;
        if !out.status.success() {
            return Err(Stop::failed(format!(
                "git ls-files failed in {}: {}; run from a git checkout",
                root.display(),
                String::from_utf8_lossy(&out.stderr).trim()
            )));
        }
        let listed = String::from_utf8_lossy(&out.stdout);
        let mut paths: Vec<&str> = listed.split('\0').filter(|p| !p.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            // Deleted but not yet committed: git still lists it.
            let Ok(data) = std::fs::read(root.join(path)) else { continue };
            files.push(File::new(path, data));
        }
        Ok(Tree { files })
    }

    /// The text of one file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|f| f.path == path)?.text.as_deref()
    }

    /// Files that are text, with their text.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|f| Some((f.path.as_str(), f.text.as_deref()?)))
    }

    /// A tree of these texts.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(p, t)| File::new(p, t.as_bytes().to_vec())).collect();
        Tree { files }
    }
}

impl File {
    /// A file from its bytes.
    pub fn new(path: &str, data: Vec<u8>) -> File {
        let bytes = data.len() as u64;
        let text = if data.contains(&0) { None } else { String::from_utf8(data).ok() };
        File { path: path.into(), bytes, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_projects_own_tree_has_its_manifest_and_its_binary_files_have_no_text() {
        let tree = Tree::load(&root()).unwrap();
        assert!(tree.text("Cargo.toml").unwrap().contains("[workspace]"));
        assert!(File::new("a.bin", vec![1, 0, 2]).text.is_none());
        assert!(File::new("b.bin", vec![0xff, 0xfe]).text.is_none());
        assert_eq!(File::new("c.txt", b"c".to_vec()).text.as_deref(), Some("c"));
    }
}
