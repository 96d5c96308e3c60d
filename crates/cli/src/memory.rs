//! How much memory this process may have.

/// Bytes of the machine's memory, or of the control group's share where that is less; `None`
/// where the system does not say.
pub fn bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| total_of(&text));
    let group = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

fn total_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A size as people read it; a pool is sized in bytes, a machine in GiB.
pub fn shown(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mib if mib < 1024.0 => format!("{mib:.1} MiB"),
        mib => format!("{:.1} GiB", mib / 1024.0),
    }
}

/// Words about a pool that the memory cannot hold beside the weights. Its pages are taken as
/// tokens fill them, so the process starts well and ends at some later time, with every request.
pub fn shortage(pool_bytes: u64, weight_bytes: u64, memory_bytes: u64) -> Option<String> {
    let needed = pool_bytes.saturating_add(weight_bytes);
    (needed > memory_bytes).then(|| {
        let most = memory_bytes.saturating_sub(weight_bytes) >> 20;
        format!(
            "the token pool of {} and the weights of {} are more than this machine's memory of {}: \
             once the pool fills, the system ends the server; set --kv-memory (pool.kv-memory) \
             well below {most}MiB",
            shown(pool_bytes),
            shown(weight_bytes),
            shown(memory_bytes)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read() {
        assert_eq!(total_of("MemTotal:       24617344 kB\nMemFree: 1 kB\n"), Some(24617344 << 10));
        assert_eq!(total_of("MemFree: 1 kB\n"), None);
        assert!(bytes().is_some_and(|b| b > 1 << 20));
    }

    /// `--kv-memory 1TiB` once started without a word on any machine.
    #[test]
    fn a_pool_beyond_the_memory_is_said_with_what_would_do() {
        let gib = 1u64 << 30;
        assert_eq!(shortage(8 * gib, gib, 16 * gib), None);
        let words = shortage(1 << 40, gib, 16 * gib).unwrap();
        assert!(words.contains("--kv-memory") && words.contains("below 15360MiB"), "{words}");
    }
}
