//! Calls into the grammar engine whose panics are errors.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call into the grammar engine failed.
pub(super) enum Fault {
    /// With an error; its words.
    Refused(String),
    /// With a panic, which inputs made for it can reach; its words.
    Panic(String),
}

impl Fault {
    pub(super) fn into_words(self) -> String {
        match self {
            Fault::Refused(what) | Fault::Panic(what) => what,
        }
    }
}

/// Runs a part of the grammar engine.
pub(super) fn guarded<T, E: Display>(f: impl FnOnce() -> Result<T, E>) -> Result<T, Fault> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(made) => made.map_err(|e| Fault::Refused(e.to_string())),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(Fault::Panic(text.unwrap_or("it failed").to_owned()))
        }
    }
}
