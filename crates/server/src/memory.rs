//! How much memory a process has, as Linux counts it.

/// Bytes that this process has in memory (VmRSS of proc(5)); 0 where that is not known.
pub fn resident_memory() -> u64 {
    std::fs::read_to_string("/proc/self/status").ok().and_then(|status| resident(&status)).unwrap_or(0)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_some() {
        assert!(resident_memory() > 100 << 10);
        assert_eq!(resident("VmPeak:\t 9 kB\nVmRSS:\t    1234 kB\n"), Some(1234 << 10));
        assert_eq!(resident("VmRSS:\t1 pages\n"), None);
    }
}
