//! Standard output and error, which a reader may close early (`lockstep plan show | head`).

use std::io::{ErrorKind, Write};

/// Prints `text` and a line's end. A reader that has gone away has what it wanted: the process
/// ends as if all had been read.
pub fn line(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
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
