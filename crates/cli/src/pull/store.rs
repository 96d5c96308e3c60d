//! The local model store: a folder of verified files.

use super::catalogue::Known;
use super::progress::Progress;
use super::source::Why;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder.
#[derive(Clone, Debug)]
pub struct Store(PathBuf);

/// Held while a file of the store is worked on; the system lets it go with the process.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "held, not read")] File);

impl Store {
    /// `$LOCKSTEP_MODELS`, else `$XDG_CACHE_HOME/lockstep/models`, else
    /// `~/.cache/lockstep/models`. `None` where not even a home is known.
    pub fn locate(env: impl Fn(&str) -> Option<OsString>) -> Option<Store> {
        let set = env("LOCKSTEP_MODELS").filter(|v| !v.is_empty()).map(PathBuf::from);
        set.or_else(|| Store::cache(env).map(|c| c.join("models"))).map(Store)
    }

    /// Where everything lies that can be made again: `$XDG_CACHE_HOME/lockstep`, else
    /// `~/.cache/lockstep`.
    pub fn cache(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = |name: &str| env(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let base = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|h| h.join(".cache")));
        base.map(|c| c.join("lockstep"))
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.0
    }

    /// Where a model's verified file lies.
    pub fn path(&self, known: &Known) -> PathBuf {
        self.0.join(known.file)
    }

    /// Where a model's bytes gather.
    pub fn partial(&self, known: &Known) -> PathBuf {
        self.0.join(format!(".{}.partial", known.file))
    }

    /// Where pip puts a wheel.
    pub fn wheel_dir(&self, known: &Known) -> PathBuf {
        self.0.join(format!(".{}.wheel", known.file))
    }

    /// The lock of a model.
    pub fn lock_path(&self, known: &Known) -> PathBuf {
        self.0.join(format!(".{}.lock", known.file))
    }

    /// Where it stands that a model's file was found whole, and which file that was.
    fn mark_path(&self, known: &Known) -> PathBuf {
        self.0.join(format!(".{}.verified", known.file))
    }

    /// What of the file a mark holds: its digest, and what a change of its bytes would change too.
    /// The time of the last change of the inode cannot be set back as that of the content can.
    fn mark_of(&self, known: &Known) -> io::Result<String> {
        let m = fs::metadata(self.path(known))?;
        let times = [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()];
        Ok(format!("{} {} {} {times:?}\n", known.sha256, m.len(), m.ino()))
    }

    /// Verifies the model's file and notes that it was found whole.
    pub fn verify_and_mark(&self, known: &Known, progress: &Progress) -> Result<(), Why> {
        // Taken first: bytes that change while they are read belong to another mark.
        let mark = self.mark_of(known);
        self.verify(known, &self.path(known), progress)?;
        // Without a mark the file is read again next time; that is all.
        let _ = mark.and_then(|mark| fs::write(self.mark_path(known), mark));
        Ok(())
    }

    /// Notes that the file that was just put into place is whole.
    pub fn mark(&self, known: &Known) {
        let _ = self.mark_of(known).and_then(|mark| fs::write(self.mark_path(known), mark));
    }

    /// True where the file is the one that was found whole, unchanged since.
    pub fn is_marked(&self, known: &Known) -> bool {
        let mark = fs::read_to_string(self.mark_path(known));
        matches!((mark, self.mark_of(known)), (Ok(a), Ok(b)) if a == b)
    }

    /// Waits until nobody else works on the model. The lock's file stays: removing it would let
    /// two processes hold "the" lock on two files.
    pub fn lock(&self, known: &Known) -> io::Result<Lock> {
        let file = File::options().create(true).append(true).open(self.lock_path(known))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                crate::out::complain(format_args!(
                    "another process is fetching {}; waiting for it",
                    known.name
                ));
                file.lock()?;
            }
            Err(TryLockError::Error(e)) => return Err(e),
        }
        Ok(Lock(file))
    }

    /// Removes what a killed process may have left and nobody can continue.
    pub fn sweep(&self, known: &Known) {
        // What cannot be removed now is in the way later, and is named then.
        let _ = fs::remove_dir_all(self.wheel_dir(known));
        let partial = self.partial(known);
        if fs::metadata(&partial).is_ok_and(|m| m.len() > known.bytes) {
            self.discard(known);
        }
    }

    /// Drops the partial file.
    pub fn discard(&self, known: &Known) {
        let _ = fs::remove_file(self.partial(known));
    }

    /// Compares length and SHA-256.
    pub fn verify(&self, known: &Known, path: &Path, progress: &Progress) -> Result<(), Why> {
        let read = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => Why::NotThere,
            _ => Why::Read(e),
        };
        let meta = fs::metadata(path).map_err(read)?;
        if !meta.is_file() {
            return Err(Why::NotAFile);
        }
        let mut file = File::open(path).map_err(read)?;
        let bytes = meta.len();
        if bytes != known.bytes {
            return Err(Why::Length { found: bytes, expected: known.bytes });
        }
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = file.read(&mut buffer).map_err(Why::Read)?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
            progress.advance(n as u64);
        }
        let found: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        if found == known.sha256 {
            Ok(())
        } else {
            Err(Why::Digest { found, expected: known.sha256 })
        }
    }

    /// Moves the verified partial file into place, durably.
    pub fn publish(&self, known: &Known) -> io::Result<()> {
        let partial = self.partial(known);
        File::open(&partial)?.sync_all()?;
        fs::rename(&partial, self.path(known))?;
        File::open(&self.0)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_found_in_the_documented_order() {
        let at = |vars: &[(&str, &str)]| {
            let get =
                |name: &str| vars.iter().find(|(k, _)| *k == name).map(|(_, v)| OsString::from(v));
            Store::locate(get).map(|s| s.0.display().to_string())
        };
        let all = [("LOCKSTEP_MODELS", "m"), ("XDG_CACHE_HOME", "x"), ("HOME", "h")];
        assert_eq!(at(&all).as_deref(), Some("m"));
        assert_eq!(at(&all[1..]).as_deref(), Some("x/lockstep/models"));
        assert_eq!(at(&all[2..]).as_deref(), Some("h/.cache/lockstep/models"));
        assert_eq!(at(&[("LOCKSTEP_MODELS", ""), ("HOME", "h")]), at(&all[2..]));
        assert_eq!(at(&[]), None);
    }
}
