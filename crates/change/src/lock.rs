//! One change at a time: a lock that the system takes back when its holder ends, however it ends.

use crate::fault::ChangeError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;

/// The lock's name in the folder of records.
const FILE: &str = ".lock";

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a folder of records.
    ///
    /// # Errors
    /// Another process has it.
    pub fn take(records: &Path) -> Result<Lock, ChangeError> {
        let path = records.join(FILE);
        let fault = |why| ChangeError::Write { path: path.clone(), why };
        std::fs::create_dir_all(records).map_err(fault)?;
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(fault)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&mut file).take(64).read_to_string(&mut holder);
                let pid = holder.trim().parse().ok();
                return Err(ChangeError::Locked { records: records.into(), pid });
            }
            Err(TryLockError::Error(why)) => return Err(fault(why)),
        }
        // The number is for people; the lock is the system's.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Lock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;

    #[test]
    fn two_at_once_are_refused_and_the_first_named() {
        let records = folder("lock");
        let first = Lock::take(&records).unwrap();
        match Lock::take(&records) {
            Err(ChangeError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(first);
        Lock::take(&records).unwrap();
    }
}
