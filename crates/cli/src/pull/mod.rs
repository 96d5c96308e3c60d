//! Fetching a model into the store, whatever happens on the way.
//!
//! One process at a time works on a file (a lock that ends with its process); bytes go to a
//! partial file beside the final one; only a verified file is renamed into place. So a kill, a
//! full disk or a second `pull` at any moment leaves either no model or the right one.

mod catalogue;
mod fetch;
mod pip;
mod progress;
mod source;
mod store;

pub use catalogue::{DEFAULT_MODEL, KNOWN, Known};
pub use source::{PullError, Why};
pub use store::Store;

use progress::Progress;
use source::{Attempt, Source};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where a model lies now, and how it came there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obtained {
    /// The verified file.
    pub path: PathBuf,
    /// Where it came from.
    pub source: &'static str,
}

/// Makes sure that the store has the model. `from` names a file to take it from instead of
/// looking for it.
pub fn obtain(
    known: &'static Known,
    store: &Store,
    from: Option<&Path>,
) -> Result<Obtained, PullError> {
    let io = |doing: &'static str, path: &Path, why: io::Error| PullError::Store {
        doing,
        path: path.into(),
        why,
    };
    fs::create_dir_all(store.dir()).map_err(|why| io("creating", store.dir(), why))?;
    let path = store.path(known);
    let lock = match store.lock(known) {
        Ok(lock) => Some(lock),
        // Nobody changes what is in a store that cannot be written.
        Err(why) if is_closed(&why) && path.exists() => None,
        Err(why) => return Err(io("locking", &store.lock_path(known), why)),
    };
    if lock.is_some() {
        store.sweep(known);
    }
    let mut tried = Vec::new();
    if let Some(file) = from {
        // Named by hand, so it counts even where the store needs nothing of it.
        let progress = Progress::bytes("verifying", known.bytes);
        if let Err(why) = store.verify(known, file, &progress) {
            let tried = vec![Attempt { source: Source::Path(file.into()), why }];
            return Err(PullError::Nowhere { model: known.name, needed_bytes: known.bytes, tried });
        }
    }
    if path.exists() {
        let progress = Progress::bytes("verifying", known.bytes);
        match store.verify_and_mark(known, &progress) {
            Ok(()) => return Ok(Obtained { path, source: "store" }),
            Err(why) if lock.is_none() => {
                let tried = vec![Attempt { source: Source::Store(path), why }];
                let needed_bytes = known.bytes;
                return Err(PullError::Nowhere { model: known.name, needed_bytes, tried });
            }
            Err(why) => {
                progress.note(&format!("{} is damaged ({why}); fetching again", path.display()));
                fs::remove_file(&path).map_err(|why| io("removing", &path, why))?;
                tried.push(Attempt { source: Source::Store(path.clone()), why });
            }
        }
    } else {
        tried.push(Attempt { source: Source::Store(path.clone()), why: Why::NotThere });
    }
    let sources = match from {
        Some(file) => vec![Source::Path(file.into())],
        None => Source::of(known),
    };
    for source in sources {
        let resumed = store.partial(known).exists();
        let mut result = attempt(known, store, &source);
        if resumed && matches!(result, Err(Why::Digest { .. } | Why::Length { .. })) {
            // What was continued may have begun as another file: once more, from the start.
            result = attempt(known, store, &source);
        }
        match result {
            Ok(()) => return Ok(Obtained { path, source: source.kind() }),
            Err(why) => {
                let full = why.is_disk_full();
                tried.push(Attempt { source, why });
                if full {
                    break;
                }
            }
        }
    }
    Err(PullError::Nowhere { model: known.name, needed_bytes: known.bytes, tried })
}

/// True of a folder that this process may only read.
fn is_closed(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied)
}

/// Makes sure that the file in the store is the model still. A file that was found whole is not
/// read again until it has changed.
pub fn check(known: &Known, store: &Store) -> Result<(), Why> {
    if store.is_marked(known) {
        return Ok(());
    }
    let progress = Progress::bytes("verifying", known.bytes);
    store.verify_and_mark(known, &progress)
}

/// Fills the partial file from one source, verifies it and moves it into place.
fn attempt(known: &Known, store: &Store, source: &Source) -> Result<(), Why> {
    let partial = store.partial(known);
    let done = source.fill(known, store, &partial).and_then(|()| {
        let progress = Progress::bytes("verifying", known.bytes);
        store.verify(known, &partial, &progress)
    });
    match done {
        Ok(()) => {
            store.publish(known).map_err(Why::Write)?;
            store.mark(known);
            Ok(())
        }
        // What a broken transfer left is continued next time; anything else is of no use.
        Err(why @ Why::BrokeOff { .. }) => Err(why),
        Err(why) => {
            store.discard(known);
            Err(why)
        }
    }
}
