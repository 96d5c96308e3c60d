//! A model file's bytes: mapped read-only, or in memory.

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};

use crate::error::WeightsError;
use crate::mmap;

/// Opens a regular file. Anything else is refused before it is opened: opening a named pipe waits
/// for a writer, which may never come.
pub(crate) fn open_regular(path: &Path) -> Result<(File, Metadata), WeightsError> {
    let io = |source| WeightsError::Io { file: path.to_path_buf(), source };
    let meta = std::fs::metadata(path).map_err(io)?;
    if !meta.is_file() {
        return Err(WeightsError::NotAFile { file: path.to_path_buf() });
    }
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    Ok((file, meta))
}

/// The bytes of one file and the name that errors give it.
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl SourceFile {
    /// Maps a file read-only. An empty file gives empty bytes.
    ///
    /// The file must stay as it is while it is mapped: a model file is replaced by renaming a new
    /// one over it, never by writing into it.
    pub fn open(path: &Path) -> Result<SourceFile, WeightsError> {
        let io = |source| WeightsError::Io { file: path.to_path_buf(), source };
        let (file, meta) = open_regular(path)?;
        let bytes = if meta.len() == 0 {
            Bytes::Owned(Vec::new())
        } else {
            Bytes::Mapped(mmap::map(&file).map_err(io)?)
        };
        Ok(SourceFile { path: path.to_path_buf(), bytes })
    }

    /// Bytes that are already in memory, under a name for errors.
    pub fn in_memory(name: impl Into<PathBuf>, bytes: Vec<u8>) -> SourceFile {
        SourceFile { path: name.into(), bytes: Bytes::Owned(bytes) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Owned(vec) => vec,
        }
    }
}
