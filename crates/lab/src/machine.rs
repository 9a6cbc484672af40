//! When and where something was measured: figures of two machines, or of a busy and an idle one, are not to be compared.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// A development build takes more time for the same.
const BUILD: &str = if cfg!(debug_assertions) { "development" } else { "release" };

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// UTC, as `2026-11-26 02:03`.
    pub date: String,
    pub kernel: String,
    pub processor: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// What others than the lab and its servers and mounts used of the processors meanwhile, as `3 %`. Empty: not known.
    #[serde(default)]
    pub others: String,
    /// Of Soda, and how the lab was built.
    pub version: String,
}

impl Machine {
    /// This one, now. What the kernel does not tell is left empty.
    pub fn now() -> Machine {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let cpu = text("/proc/cpuinfo");
        let processor = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            date: date(seconds),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor.map_or_else(String::new, |(_, name)| name.trim().to_owned()),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            others: String::new(),
            version: format!("{} ({BUILD} build)", env!("CARGO_PKG_VERSION")),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { date, kernel, processor, cores, others, version } = self;
        write!(f, "{date} UTC, Soda {version}, Linux {kernel}, {processor}, {cores} cores")?;
        if others.is_empty() { Ok(()) } else { write!(f, "; others used {others} of them meanwhile") }
    }
}

/// A stretch of time, for what others did in it. The load average would be of no use: it is of the minute before, which in a
/// series is the lab's own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch(Option<Used>);

/// Clock ticks since the start of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Used {
    /// Of all processors: those that worked, and all.
    busy: u64,
    all: u64,
    /// Of this process and all its descendants that have ended and were waited for.
    own: u64,
}

impl Stretch {
    pub(crate) fn begin() -> Stretch {
        Stretch(Used::now())
    }

    /// By now, once servers and mounts have ended: they are children.
    pub(crate) fn others(self) -> String {
        let (Some(before), Some(after)) = (self.0, Used::now()) else { return String::new() };
        before.others(after).map_or_else(String::new, |part| format!("{part:.0} %"))
    }
}

impl Used {
    fn now() -> Option<Used> {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        Used::of(&text("/proc/stat")?, &text("/proc/self/stat")?)
    }

    /// Of proc(5)'s `stat` of the machine and of a process.
    fn of(machine: &str, process: &str) -> Option<Used> {
        let numbers = |text: &str| -> Vec<u64> {
            text.split_whitespace().map(|number| number.parse().unwrap_or(0)).collect()
        };
        // user nice system idle iowait irq softirq steal; what guests use is in user.
        let of_all = numbers(machine.lines().next()?.strip_prefix("cpu ")?);
        let all: u64 = of_all.iter().take(8).sum();
        let idle: u64 = of_all.iter().skip(3).take(2).sum();
        // After the name in parentheses: state is field 3; utime, stime, cutime, cstime are 14 to 17.
        let own = numbers(process.rsplit_once(')')?.1).into_iter().skip(11).take(4).sum();
        Some(Used { busy: all - idle, all, own })
    }

    /// Per cent of all processors. `None`: no time has passed.
    fn others(self, after: Used) -> Option<f64> {
        let all = after.all.checked_sub(self.all).filter(|all| *all > 0)?;
        let own = after.own.saturating_sub(self.own);
        let others = after.busy.saturating_sub(self.busy).saturating_sub(own);
        Some(100.0 * others as f64 / all as f64)
    }
}

/// Of seconds since 1970, without leap seconds, as `2026-11-26 22:05` (Hinnant, "chrono-compatible low-level date algorithms").
pub fn date(seconds: u64) -> String {
    let (minutes, days) = (seconds / 60 % (24 * 60), seconds / 86_400);
    // Years begin in March, so that a leap day is the last of one; eras have 400 of them.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_leap_days() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(951_868_800 - 60), "2000-02-29 23:59");
        assert_eq!(date(951_868_800), "2000-03-01 00:00");
        assert_eq!(date(1_795_658_580), "2026-11-26 02:03");
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_processor() {
        let machine = Machine::now();
        assert!(machine.cores > 0 && !machine.kernel.is_empty(), "{machine}");
        assert!(machine.to_string().contains(env!("CARGO_PKG_VERSION")), "{machine}");
        assert!(Used::now().is_some(), "this kernel has no /proc/stat");
    }

    #[test]
    fn what_the_lab_and_its_children_use_is_none_of_others() {
        let machine = |user: u64, idle: u64| format!("cpu  {user} 0 100 {idle} 50 0 10 0 7 0\ncpu0 1 2 3\n");
        let process = |own: u64, children: u64| {
            format!("12 (a name) with) S 1 1 1 0 -1 4194304 9 9 9 9 {own} 5 {children} 5 20 0 8 0 77\n")
        };
        let used = |machine: String, process: String| Used::of(&machine, &process).expect("numbers");
        let before = used(machine(1000, 5000), process(100, 200));
        // 800 of 1000 ticks were busy, 300 of them here and 400 in children that have ended.
        let after = used(machine(1800, 5200), process(400, 600));
        assert_eq!(before.others(after).map(f64::round), Some(10.0));
        assert_eq!(before.others(before), None);
        // Ticks are rounded: not less than nothing.
        assert_eq!(before.others(used(machine(1800, 5200), process(400, 1600))), Some(0.0));
    }
}
