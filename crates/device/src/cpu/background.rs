//! Threads that work beside the steps.

/// How far a background thread stands back: about a tenth of a core that a step wants too.
const NICE: libc::c_int = 10;

/// Lets the calling thread stand back behind the threads that run steps. Where the system refuses,
/// it does not: the work is the same.
pub fn stand_back() {
    // SAFETY: plain system calls on the calling thread's own number.
    unsafe {
        let thread = libc::syscall(libc::SYS_gettid);
        libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, NICE);
    }
}
