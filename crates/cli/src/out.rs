//! Standard output and error, which a reader may close early (`lockstep plan show | head`).

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

/// Whether nobody reads standard output any more: what prints until it is told to stop ends then.
pub fn reader_is_gone() -> bool {
    READER_IS_GONE.load(Relaxed)
}

/// Prints `text` and a line's end. A reader that has gone away has what it wanted: what is still to
/// be done is done, and the process ends with the code that tells how.
pub fn line(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => READER_IS_GONE.store(true, Relaxed),
        Err(e) => {
            complain(format_args!("lockstep: standard output cannot be written: {e}"));
            std::process::exit(1);
        }
    }
}

/// Prints `text` and a line's end to standard error. Where nobody reads that any more there is
/// nobody to tell, and the exit code still says how it ended.
pub fn complain(text: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
