//! A change as a transaction: states, each announced in the journal, and back from any of them.

mod ask;
mod close;
mod lever;
mod live;
mod restart;
mod steps;
mod units;

pub use ask::{Ask, Done, begin, resume, roll_back, write_target};
pub use close::{close, is_there};
pub use live::pending_file;

use crate::address::is_here;
use crate::backup::Backup;
use crate::fault::ChangeError;
use crate::journal::{Journal, sync_folder};
use crate::predict::Wish;
use crate::target::{Kind, Target};
use crate::web::Web;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Everything that a step stands on.
pub struct Ground<'a> {
    /// The server and how it is started.
    pub target: &'a Target,
    /// Its endpoints.
    pub web: Web,
    /// The router's, where requests reach it through that alone.
    pub front: Option<Web>,
    /// What is wanted.
    pub wishes: Vec<Wish>,
    /// `decode.graph-max-bs=96`.
    pub title: String,
    /// The record's folder.
    pub folder: PathBuf,
    /// Its journal.
    pub journal: Journal,
    /// Told of what goes on.
    pub say: &'a mut dyn FnMut(&str),
}

impl Ground<'_> {
    /// Where requests go.
    pub fn requests(&self) -> &Web {
        self.front.as_ref().unwrap_or(&self.web)
    }

    /// Copies of files, from the journal.
    pub fn backups(&self) -> Vec<Backup> {
        let facts = self.journal.facts("backed_up").map(|f| &f["files"]);
        facts
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Backup::from_json)
            .collect()
    }

    /// Buckets that the prediction calls new.
    pub fn new_buckets(&self) -> Vec<u32> {
        let facts = self.journal.facts("proposed").map(|f| &f["new_buckets"]);
        let all = facts.and_then(Value::as_array).into_iter().flatten();
        all.filter_map(|n| u32::try_from(n.as_u64()?).ok()).collect()
    }

    /// Writes a file of the record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ChangeError> {
        write_file(&self.folder, name, bytes)
    }

    /// Writes a JSON file of the record.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_json(&self, name: &str, value: &Value) -> Result<(), ChangeError> {
        self.write(name, format!("{value:#}\n").as_bytes())
    }

    /// Reads a JSON file of the record.
    pub fn read_json(&self, name: &str) -> Option<Value> {
        let text = std::fs::read(self.folder.join(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// An error for what should be there and is not.
    pub fn lost(&self, what: &str) -> ChangeError {
        ChangeError::Answer {
            url: self.target.url.clone(),
            what: format!("{what} is not to be found"),
        }
    }
}

/// Writes a file of a record and waits for the disk.
pub(crate) fn write_file(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), ChangeError> {
    use std::io::Write;
    let (path, beside) = (folder.join(name), folder.join(format!(".{name}.new")));
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)
    };
    write().map_err(|why| {
        let _ = std::fs::remove_file(&beside);
        ChangeError::Write { path: path.clone(), why }
    })?;
    sync_folder(folder)
}

/// Bytes of memory that are free on this machine, where the server is on it and has its KV and its
/// captures there: SGLang and vLLM have them on a GPU.
pub fn free_bytes(target: &Target) -> Option<u64> {
    if !is_here(&target.url) || matches!(target.kind, Kind::Sglang | Kind::Vllm) {
        return None;
    }
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::{free_bytes, write_file};
    use crate::target::{Kind, Target};
    use crate::testing::folder;

    /// The host's 126 GB once stood as what was left for a vLLM's captures on a GPU.
    #[test]
    fn memory_of_the_host_is_none_of_a_gpu_s() {
        let of = |kind| free_bytes(&Target { kind, ..Target::direct("http://127.0.0.1:1") });
        assert!(of(Kind::LlamaCpp) > Some(0) && of(Kind::Lockstep) > Some(0));
        assert_eq!((of(Kind::Vllm), of(Kind::Sglang)), (None, None));
    }

    /// A full disk once left a page of 0 bytes where a whole one had been.
    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let dir = folder("write-file");
        write_file(&dir, "decision.md", b"old").unwrap();
        // Nothing can be created there.
        let beside = dir.join(".decision.md.new");
        std::fs::create_dir(&beside).unwrap();
        assert!(write_file(&dir, "decision.md", b"new").is_err());
        assert_eq!(std::fs::read(dir.join("decision.md")).unwrap(), b"old");
        std::fs::remove_dir(&beside).unwrap();
        write_file(&dir, "decision.md", b"new").unwrap();
        assert_eq!(std::fs::read(dir.join("decision.md")).unwrap(), b"new");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
    }
}
