//! Standard output that a reader may close early (`lockstep plan show | head`).

use std::io::{ErrorKind, Write};

/// Prints `text` and a line's end. A reader that has gone away has what it wanted: the process
/// ends as if all had been read.
pub fn line(text: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(e) => {
            eprintln!("lockstep: standard output cannot be written: {e}");
            std::process::exit(1);
        }
    }
}
