//! The cores of the machine, and which of them this process may use.

use rustix::thread::CpuSet;
use std::io;
use std::ops::RangeInclusive;
use std::thread;

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Number of cores that the machine can have; the kernel has a queue for each.
pub(super) fn possible() -> io::Result<u16> {
    listed(POSSIBLE)?
        .and_then(|cores| count(&cores))
        .ok_or_else(|| io::Error::other(format!("{POSSIBLE} cannot be understood")))
}

/// `None`: more than there can be.
fn count(cores: &[RangeInclusive<u16>]) -> Option<u16> {
    let len = |range: &RangeInclusive<u16>| (range.end() - range.start()).checked_add(1);
    cores.iter().try_fold(0u16, |sum, range| sum.checked_add(len(range)?))
}

/// Whether callers can be on a core.
pub(super) fn is_online(core: u16) -> bool {
    matches!(listed(ONLINE), Ok(Some(cores)) if cores.iter().any(|range| range.contains(&core)))
}

/// A core that callers can be on and no thread of this process, as where a cpuset keeps it from that.
///
/// # Errors
/// No thread could be started, or the list cannot be read.
pub(super) fn forbidden() -> io::Result<Option<u16>> {
    let online = listed(ONLINE)?.ok_or_else(|| io::Error::other(format!("{ONLINE} cannot be understood")))?;
    first_forbidden(online)
}

fn first_forbidden(cores: Vec<RangeInclusive<u16>>) -> io::Result<Option<u16>> {
    // In a thread of its own, which is moved about. What this one may use at the moment need not be all that it might.
    let look = move || cores.into_iter().flatten().find(|core| run_on(*core).is_err());
    let looking = thread::Builder::new().name("fuse-cores".into()).spawn(look)?;
    Ok(looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

fn listed(file: &str) -> io::Result<Option<Vec<RangeInclusive<u16>>>> {
    Ok(parse(std::fs::read_to_string(file)?.trim()))
}

/// `0-3,8`.
fn parse(list: &str) -> Option<Vec<RangeInclusive<u16>>> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some(first..=last)
    };
    list.split(',').map(range).collect()
}

/// Keeps this thread on a core.
pub(super) fn run_on(core: u16) -> io::Result<()> {
    let core = usize::from(core);
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        assert_eq!(parse("0"), Some(vec![0..=0]));
        assert_eq!(parse("0-3,8,10-11"), Some(vec![0..=3, 8..=8, 10..=11]));
        for bad in ["", "a", "3-1", "0-", "0-65536"] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        let possible = possible().unwrap();
        assert!((0..possible).any(is_online) && !is_online(u16::MAX));
    }

    proptest::proptest! {
        #[test]
        fn random_lists_do_not_panic(list in "[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?){0,3}|[-,0-9a ]{0,12}") {
            if let Some(cores) = parse(&list) {
                let all = cores.iter().map(|range| usize::from(range.end() - range.start()) + 1).sum::<usize>();
                proptest::prop_assert_eq!(count(&cores), u16::try_from(all).ok());
            }
        }
    }

    #[test]
    fn a_core_that_cannot_be_used_is_found() {
        let allowed = rustix::thread::sched_getaffinity(None).unwrap();
        let own = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap() as u16;
        assert_eq!(first_forbidden(vec![own..=own]).unwrap(), None);
        assert_eq!(first_forbidden(vec![own..=own, 60_000..=60_001]).unwrap(), Some(60_000));
        assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), allowed);
    }
}
