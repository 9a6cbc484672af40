//! Which core a caller is on says which queue of io_uring its requests come to.

use rustix::thread::CpuSet;
use std::fs;
use std::path::PathBuf;

/// The cores that this process may use.
pub(crate) fn allowed_cores() -> Vec<usize> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect()
}

/// Keeps this thread there.
pub(crate) fn run_on(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// A core that the machine does without until this is dropped.
pub(crate) struct Away(PathBuf);

impl Away {
    pub(crate) fn take(core: usize) -> Away {
        let switch = PathBuf::from(format!("/sys/devices/system/cpu/cpu{core}/online"));
        fs::write(&switch, "0").unwrap();
        Away(switch)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        fs::write(&self.0, "1").unwrap();
    }
}
