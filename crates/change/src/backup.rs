//! Copies of files before they are changed, and putting files in place: byte for byte, with mode
//! and owner, all or nothing.

use crate::fault::ChangeError;
use crate::journal::sync_folder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// A file as it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backup {
    /// The file; no symbolic link.
    pub path: PathBuf,
    /// Its copy, `None` where there was no file.
    pub copy: Option<PathBuf>,
    /// SHA-256 of its bytes in hex; empty where there was none.
    pub sha256: String,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A file's digest in hex.
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads a file of at most `bytes_max` bytes.
///
/// # Errors
/// It cannot be read, is no plain file, or is larger.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ChangeError> {
    let fault = |why| ChangeError::Read { path: path.into(), why };
    let meta = std::fs::metadata(path).map_err(fault)?;
    if !meta.is_file() || meta.len() > bytes_max {
        let what = if meta.is_file() { "is too large" } else { "is no plain file" };
        return Err(fault(io::Error::new(io::ErrorKind::InvalidInput, what)));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|f| f.take(bytes_max).read_to_end(&mut bytes)).map_err(fault)?;
    Ok(bytes)
}

/// Copies `path` into `folder` with its mode and owner, and reads the copy back.
///
/// # Errors
/// The copy is not there in full; the file itself was not touched.
pub fn take(path: &Path, folder: &Path, bytes_max: u64) -> Result<Backup, ChangeError> {
    // Through a link the file behind it is what is changed.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let fault = |why| ChangeError::Backup { path: path.clone(), why };
    if !path.exists() {
        return Ok(Backup { path, copy: None, sha256: String::new(), mode: 0o644, uid: 0, gid: 0 });
    }
    let bytes = read(&path, bytes_max)?;
    let meta = std::fs::metadata(&path).map_err(fault)?;
    std::fs::create_dir_all(folder).map_err(fault)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut copy = folder.join(&name);
    for n in 2.. {
        if !copy.exists() {
            break;
        }
        copy = folder.join(format!("{name}.{n}"));
    }
    let owner = (meta.uid(), meta.gid());
    let mode = meta.mode() & 0o7777;
    let written = create(&copy, &bytes, mode, owner).and_then(|()| std::fs::read(&copy));
    let same = written.map(|back| back == bytes);
    if !matches!(same, Ok(true)) {
        let _ = std::fs::remove_file(&copy);
        let differs = || io::Error::new(io::ErrorKind::InvalidData, "the copy reads differently");
        return Err(fault(same.err().unwrap_or_else(differs)));
    }
    sync_folder(folder)?;
    let sha256 = digest(&bytes);
    Ok(Backup { path, copy: Some(copy), sha256, mode, uid: owner.0, gid: owner.1 })
}

/// Writes a new file that is there in full or not at all.
fn create(path: &Path, bytes: &[u8], mode: u32, (uid, gid): (u32, u32)) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let written = (|| {
        file.write_all(bytes)?;
        let is = file.metadata()?;
        if (is.uid(), is.gid()) != (uid, gid) {
            fchown(&file, Some(uid), Some(gid))?;
        }
        // After the owner: a change of owner takes the set-id bits away.
        file.set_permissions(Permissions::from_mode(mode))?;
        file.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(path);
    }
    written
}

/// Puts bytes in the place of a file in one step, with a mode and an owner: whoever reads sees the
/// old file or the new one, whatever happens.
///
/// # Errors
/// The old file is still there.
pub fn put(path: &Path, bytes: &[u8], mode: u32, owner: (u32, u32)) -> Result<(), ChangeError> {
    let fault = |why| ChangeError::Write { path: path.into(), why };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder.join(format!(".{name}.lockstep-{}", std::process::id()));
    let _ = std::fs::remove_file(&beside);
    create(&beside, bytes, mode, owner).map_err(fault)?;
    if let Err(why) = std::fs::rename(&beside, path) {
        let _ = std::fs::remove_file(&beside);
        return Err(fault(why));
    }
    sync_folder(folder)
}

/// Why [`put`] could not put a file in the place of `path`, as far as can be tried without
/// touching it; `None` where nothing speaks against it.
pub fn irreplaceable(path: &Path) -> Option<io::Error> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let other = |what: &str| Some(io::Error::other(what));
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let (mode, owner) = match std::fs::metadata(&path) {
        Ok(meta) if !meta.is_file() => return other("it is no plain file"),
        Ok(meta) => (meta.mode() & 0o7777, (meta.uid(), meta.gid())),
        Err(_) => (0o644, own),
    };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if is_mounted(&path, &mounts) {
        return other("it is mounted by itself, and nothing takes a mount's place");
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.lockstep-{}-try", std::process::id()));
    let tried = create(&beside, b"", mode, owner);
    let _ = std::fs::remove_file(&beside);
    tried.err()
}

/// Whether `/proc/self/mountinfo` has a mount right there; its fifth field is where.
fn is_mounted(path: &Path, mounts: &str) -> bool {
    mounts.lines().any(|l| l.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}

impl Backup {
    /// Puts new bytes in place, with the old file's mode and owner.
    ///
    /// # Errors
    /// The old file is still there.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), ChangeError> {
        let here = (self.uid, self.gid);
        let owner = if self.copy.is_some() { here } else { self.new_owner() };
        put(&self.path, bytes, self.mode, owner)
    }

    /// A file that was not there belongs to whoever runs this.
    fn new_owner(&self) -> (u32, u32) {
        (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
    }

    /// Puts the file back as it was, and reads it back.
    ///
    /// # Errors
    /// The copy is damaged, or the file cannot be written.
    pub fn restore(&self) -> Result<(), ChangeError> {
        let Some(copy) = &self.copy else {
            if self.path.exists() {
                let fault = |why| ChangeError::Write { path: self.path.clone(), why };
                std::fs::remove_file(&self.path).map_err(fault)?;
            }
            return Ok(());
        };
        let bytes =
            std::fs::read(copy).map_err(|why| ChangeError::Read { path: copy.clone(), why })?;
        if digest(&bytes) != self.sha256 {
            return Err(ChangeError::Damaged { path: copy.clone() });
        }
        self.replace(&bytes)?;
        if self.is_in_place() {
            Ok(())
        } else {
            Err(ChangeError::Damaged { path: self.path.clone() })
        }
    }

    /// True where the file is as it was: bytes, mode and owner.
    pub fn is_in_place(&self) -> bool {
        let Some(_) = &self.copy else { return !self.path.exists() };
        let bytes = std::fs::read(&self.path).is_ok_and(|b| digest(&b) == self.sha256);
        bytes
            && std::fs::metadata(&self.path).is_ok_and(|m| {
                (m.mode() & 0o7777, m.uid(), m.gid()) == (self.mode, self.uid, self.gid)
            })
    }

    /// True where the file holds what these facts of the journal say was written to it.
    pub fn holds(&self, facts: Option<&Value>) -> bool {
        let said = facts.and_then(|f| f["sha256_after"].as_str());
        let is = std::fs::read(&self.path).map(|b| digest(&b));
        said.is_some_and(|said| is.is_ok_and(|is| is == said))
    }

    /// For the journal.
    pub fn to_json(&self) -> Value {
        json!({"path": self.path, "copy": self.copy, "sha256": self.sha256, "mode": self.mode,
               "uid": self.uid, "gid": self.gid})
    }

    /// From the journal.
    pub fn from_json(v: &Value) -> Option<Backup> {
        let number = |name: &str| v[name].as_u64().and_then(|n| u32::try_from(n).ok());
        Some(Backup {
            path: v["path"].as_str()?.into(),
            copy: v["copy"].as_str().map(PathBuf::from),
            sha256: v["sha256"].as_str()?.into(),
            mode: number("mode")?,
            uid: number("uid")?,
            gid: number("gid")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    #[test]
    fn a_file_comes_back_with_its_bytes_and_mode() {
        let dir = folder("backup");
        let path = dir.join("serve.sh");
        let bytes = b"#!/bin/sh\nexec s --parallel 4\n\xff\0";
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o751)).unwrap();
        let link = dir.join("link.sh");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let backup = take(&link, &dir.join("backup"), 1 << 20).unwrap();
        assert_eq!(backup.path, path.canonicalize().unwrap(), "the file behind the link");
        let copy = backup.copy.as_ref().unwrap();
        assert_eq!(std::fs::metadata(copy).unwrap().mode() & 0o7777, 0o751);
        assert!(backup.is_in_place());
        backup.replace(b"new").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o751);
        assert!(!backup.is_in_place());
        assert_eq!(Backup::from_json(&backup.to_json()).as_ref(), Some(&backup));
        backup.restore().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_file_that_was_not_there_goes_again() {
        let dir = folder("backup-none");
        let backup = take(&dir.join("lockstep.toml"), &dir.join("backup"), 1 << 20).unwrap();
        assert_eq!(backup.copy, None);
        backup.replace(b"x = 1\n").unwrap();
        assert!(!backup.is_in_place());
        backup.restore().unwrap();
        assert!(backup.is_in_place());
    }

    /// That a settings file cannot be replaced was once found out when the change was to be kept.
    #[test]
    fn what_cannot_be_replaced_is_known_without_touching_it() {
        let dir = folder("irreplaceable");
        let path = dir.join("lockstep.toml");
        assert!(irreplaceable(&path).is_none(), "it is not there yet");
        std::fs::write(&path, "old").unwrap();
        assert!(irreplaceable(&path).is_none());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "nothing is left behind");
        for (path, words) in [
            (dir.as_path(), "no plain file"),
            (Path::new("/proc/lockstep.toml"), ""),
            (&dir.join("nowhere/lockstep.toml"), "No such file"),
        ] {
            let why = irreplaceable(path).unwrap_or_else(|| panic!("{}", path.display()));
            assert!(why.to_string().contains(words), "{why}");
        }
        let mounts = "36 35 98:0 /a /etc/lockstep.toml rw - ext4 /dev/root rw\n";
        assert!(is_mounted(Path::new("/etc/lockstep.toml"), mounts));
        assert!(!is_mounted(Path::new("/etc"), mounts));
    }

    #[test]
    fn a_damaged_copy_is_not_put_back() {
        let dir = folder("backup-damaged");
        let path = dir.join("a");
        std::fs::write(&path, "old").unwrap();
        let backup = take(&path, &dir.join("backup"), 1 << 20).unwrap();
        std::fs::write(backup.copy.as_ref().unwrap(), "0ld").unwrap();
        std::fs::write(&path, "new").unwrap();
        assert!(matches!(backup.restore(), Err(ChangeError::Damaged { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }
}
