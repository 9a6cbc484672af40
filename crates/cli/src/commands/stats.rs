//! `soda stats`: counters of the server and of this machine's mounts, live.

use crate::admin::{Admin, only_server};
use crate::args::StatsArgs;
use crate::commands::{hit_ratio, print, print_json};
use crate::control::{self, BACKLOG};
use crate::error::CliError;
use crate::table::Table;
use crate::units::{count, show_duration, show_size};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

type Counters = BTreeMap<String, u64>;

/// Counters at one moment, by who counts: `server HOST:PORT`, or a mount's directory.
#[derive(Clone, Debug, Default, Serialize)]
struct Sample(BTreeMap<String, Counters>);

pub(crate) fn run(arguments: &StatsArgs) -> Result<(), CliError> {
    let mut last: Option<(Instant, Sample)> = None;
    loop {
        let now = Instant::now();
        let sample = take(arguments)?;
        match arguments.json {
            true => print_json(&sample)?,
            false => {
                let before = last.as_ref().map(|(at, sample)| (now - *at, sample));
                let clear = !arguments.once && std::io::stdout().is_terminal();
                print(&format!("{}{}", if clear { "\x1b[H\x1b[2J" } else { "" }, text(&sample, before)))?;
            }
        }
        if arguments.once {
            return Ok(());
        }
        last = Some((now, sample));
        std::thread::sleep(arguments.interval.max(Duration::from_millis(10)));
    }
}

fn take(arguments: &StatsArgs) -> Result<Sample, CliError> {
    let mut sample = Sample::default();
    if let Some(dir) = &arguments.dir {
        let entry = soda_fuse::find_mount(dir).map_err(CliError::io(dir.display().to_string()))?;
        let entry = entry.ok_or_else(|| CliError::NotMounted(dir.clone()))?;
        let mount = control::mount_on(&entry.dir).ok_or(CliError::Silent(entry.dir))?;
        sample.0.insert(mount.dir.display().to_string(), mount.counters);
        return Ok(sample);
    }
    let named = arguments.server.server.as_deref();
    let mounts = control::mounts();
    let address = only_server(named, &mounts)?;
    for mount in mounts {
        sample.0.insert(mount.dir.display().to_string(), mount.counters);
    }
    match Admin::connect(&address).and_then(|mut admin| admin.stats()) {
        Ok(counters) => {
            sample.0.insert(format!("server {address}"), counters);
        }
        Err(error) if named.is_some() || sample.0.is_empty() => return Err(error),
        Err(error) => tracing::info!(%error, "no server"),
    }
    Ok(sample)
}

fn text(sample: &Sample, before: Option<(Duration, &Sample)>) -> String {
    let mut out = String::new();
    for (who, counters) in &sample.0 {
        out.push_str(&format!("{who}   cache hits {}{}\n", hit_ratio(counters), backlog_text(counters)));
        let mut table = Table::new(["counter", "total", "per second"]);
        for (name, value) in counters.iter().filter(|(name, value)| **value > 0 && !name.starts_with(BACKLOG))
        {
            let earlier = before.and_then(|(time, sample)| Some((time, *sample.0.get(who)?.get(name)?)));
            let rate = earlier.map(|(time, old)| value.saturating_sub(old) as f64 / time.as_secs_f64());
            table.row([
                name.clone(),
                value.to_string(),
                rate.map_or_else(String::new, |rate| format!("{rate:.0}")),
            ]);
        }
        out.push_str(&format!("{table}\n"));
    }
    out
}

/// What a mount has not told its server, unless that is nothing.
fn backlog_text(counters: &Counters) -> String {
    let figure = |name: &str| counters.get(&format!("{BACKLOG}{name}")).copied().unwrap_or(0);
    let mut out = String::new();
    if figure("records") > 0 {
        out.push_str(&format!(
            "   not told {}, {}, the oldest {}",
            count(figure("records"), "change"),
            show_size(figure("bytes")),
            show_duration(Duration::from_millis(figure("age_ms"))),
        ));
    }
    if figure("not_durable") > 0 {
        out.push_str(&format!("   not durable {}", count(figure("not_durable"), "change")));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(reads: u64) -> Sample {
        let counters = [("op_read", reads), ("data_hits", 1), ("data_misses", 1), ("op_write", 0)];
        let counters = counters.map(|(name, count)| (name.to_string(), count));
        Sample(BTreeMap::from([("/mnt".to_string(), Counters::from(counters))]))
    }

    #[test]
    fn a_backlog_stands_at_the_head() {
        let figures = [("records", 120), ("bytes", 1536), ("age_ms", 250), ("not_durable", 1)];
        let figures = figures.map(|(name, figure)| (format!("{BACKLOG}{name}"), figure));
        let sample = Sample(BTreeMap::from([("/mnt".to_string(), Counters::from(figures))]));
        let expected = "\
/mnt   cache hits -   not told 120 changes, 1.5 KiB, the oldest 250.0 ms   not durable 1 change
COUNTER  TOTAL  PER SECOND

";
        assert_eq!(text(&sample, None), expected);
    }

    #[test]
    fn rates_come_from_two_samples() {
        let first = "\
/mnt   cache hits 50.0 %
COUNTER      TOTAL  PER SECOND
data_hits        1
data_misses      1
op_read         10

";
        assert_eq!(text(&sample(10), None), first);
        let second = text(&sample(30), Some((Duration::from_secs(2), &sample(10))));
        assert!(second.contains("op_read         30          10\n"), "{second}");
    }
}
