//! The one call of this room that the compiler cannot check: mapping a file.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap, MmapOptions};

/// Maps a whole file, privately and read-only.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: every byte is valid as `u8`, and nothing writes through the mapping. What the
    // compiler cannot see is another process that truncates the file (reads then raise SIGBUS) or
    // writes into it (bytes change under a shared reference). The rule documented at
    // `SourceFile::open`, that model files are replaced by rename, excludes both; the weights'
    // digest is the check that it was kept.
    let map = unsafe { MmapOptions::new().map_copy_read_only(file)? };
    // Read-ahead is a hint: loading goes on without it.
    let _ = map.advise(Advice::WillNeed);
    Ok(map)
}
