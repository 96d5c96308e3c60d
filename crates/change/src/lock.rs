//! One change at a time: a lock that the system takes back when its holder ends, however it ends.

use crate::address::{host, is_here, port};
use crate::backup::digest;
use crate::fault::ChangeError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The lock's name in the folder of records.
const FILE: &str = ".lock";

/// Held until it is dropped.
#[derive(Debug)]
pub struct Lock {
    _files: [File; 2],
}

impl Lock {
    /// Takes the lock of a folder of records, and this user's lock of a server, whose other changes
    /// may have their records elsewhere.
    ///
    /// # Errors
    /// Another process has one of them.
    pub fn take(records: &Path, url: &str) -> Result<Lock, ChangeError> {
        let fault = |why| ChangeError::Write { path: records.into(), why };
        std::fs::create_dir_all(records).map_err(fault)?;
        let of_records = hold(&records.join(FILE), records)?;
        Ok(Lock { _files: [of_records, hold(&of_server(url), records)?] })
    }
}

/// Where changes of a server meet: one name for every spelling of its address.
fn of_server(url: &str) -> PathBuf {
    let here = if is_here(url) { "this machine".to_owned() } else { host(url) };
    let server = digest(format!("{here}:{}", port(url).unwrap_or(80)).as_bytes());
    let user = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("lockstep-change-{user}-{}.lock", &server[..16]))
}

fn hold(path: &Path, records: &Path) -> Result<File, ChangeError> {
    let fault = |why| ChangeError::Write { path: path.into(), why };
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    // Where everybody may write, somebody may have put a link in its place.
    if path.is_symlink() {
        return Err(fault(io::Error::new(io::ErrorKind::InvalidInput, "is a link")));
    }
    let mut file = options.open(path).map_err(fault)?;
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
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folder;
    use std::net::TcpListener;

    #[test]
    fn two_at_once_are_refused_and_the_first_named() {
        let records = folder("lock");
        // Ports of this test's own: locks of servers are shared with whatever else runs here.
        let sockets = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [a, b, c] = sockets.each_ref().map(|s| s.local_addr().unwrap().port());
        let first = Lock::take(&records, &format!("http://127.0.0.1:{a}")).unwrap();
        match Lock::take(&records, &format!("http://127.0.0.1:{b}")) {
            Err(ChangeError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        // Another folder of records, another spelling, the same server.
        let elsewhere = folder("lock-elsewhere");
        match Lock::take(&elsewhere, &format!("http://localhost:{a}/")) {
            Err(ChangeError::Locked { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        Lock::take(&elsewhere, &format!("http://localhost:{c}")).unwrap();
        drop(first);
        Lock::take(&records, &format!("http://127.0.0.1:{a}")).unwrap();
    }
}
