//! The first Ctrl-C asks a measurement to end with what it has, the second one ends it at once.

use crate::exit::INTERRUPTED;

/// Calls `ask` at the first interrupt; exits at the second. Of a runtime's thread.
pub fn once(ask: impl FnOnce() + Send + 'static) {
    tokio::spawn(async move {
        // Where no interrupt can be had, the system ends the process as ever.
        if tokio::signal::ctrl_c().await.is_err() {
            return;
        }
        crate::out::complain(format_args!(
            "lockstep: ending with what is there; once more ends at once"
        ));
        ask();
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(i32::from(INTERRUPTED));
        }
    });
}
