//! When and where something was measured: figures of two machines, or of a busy and an idle one, are not to be compared.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// UTC, as `2026-11-26 02:03`.
    pub date: String,
    pub kernel: String,
    pub processor: String,
    /// Processors that this process may use.
    pub cores: usize,
    /// The load average of the minute before.
    pub load: String,
    /// Of Soda.
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
            load: text("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { date, kernel, processor, cores, load, version } = self;
        write!(
            f,
            "{date} UTC, Soda {version}, Linux {kernel}, {processor}, {cores} cores, load {load} before"
        )
    }
}

/// Of seconds since 1970, without leap seconds (Hinnant, "chrono-compatible low-level date algorithms").
fn date(seconds: u64) -> String {
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
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && !machine.load.is_empty(), "{machine}");
        assert!(machine.to_string().contains(env!("CARGO_PKG_VERSION")), "{machine}");
    }
}
