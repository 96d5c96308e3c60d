//! How much memory the machine has left: a mapping alone never fails, touching it would.

use crate::DeviceError;
use std::fs;

/// Of what is free, this much is taken at most: the rest is for everybody else's next allocation.
const SHARE_PERCENT: u64 = 90;

/// Refuses an arena that does not fit into the memory that is free now.
///
/// # Errors
/// What was asked for.
pub fn check(bytes: u64, what: &str) -> Result<(), DeviceError> {
    let left = |free: u64| free / 100 * SHARE_PERCENT;
    match free_bytes().map(left) {
        Some(left) if bytes > left => {
            let what = format!("{what}, where {left} bytes can be taken");
            Err(DeviceError::OutOfMemory { what, bytes })
        }
        _ => Ok(()),
    }
}

/// Free memory of the machine or of the control group, whichever is less; `None` where neither
/// says.
fn free_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|t| available(&t));
    let group = || {
        let read = |name| fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
        let max: u64 = read("memory.max")?.trim().parse().ok()?;
        let used: u64 = read("memory.current")?.trim().parse().ok()?;
        let cached = read("memory.stat").and_then(|t| stat(&t, "inactive_file")).unwrap_or(0);
        Some(max.saturating_sub(used.saturating_sub(cached)))
    };
    [machine, group()].into_iter().flatten().min()
}

/// `MemAvailable` of `/proc/meminfo`, which counts in KiB.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// One number of `memory.stat`.
fn stat(text: &str, name: &str) -> Option<u64> {
    let value = |l: &str| l.strip_prefix(name)?.trim().parse().ok();
    text.lines().find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_read_as_it_writes() {
        let text = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemTotal: 5 kB\n"), None);
        assert_eq!(stat("anon 5\ninactive_file 77\n", "inactive_file"), Some(77));
    }

    #[test]
    fn more_than_there_is_is_refused_with_what_would_fit() {
        if free_bytes().is_some() {
            let e = check(1 << 60, "an arena").unwrap_err();
            assert!(e.to_string().contains("bytes can be taken"), "{e}");
            check(4096, "an arena").unwrap();
        }
    }
}
