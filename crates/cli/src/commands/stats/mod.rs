//! `soda stats`: counters of the server and of this machine's mounts, live.

mod groups;
mod predicted;
mod screen;
mod show;

use crate::admin::{Admin, only_server};
use crate::answer::{BACKLOG, MountStatus};
use crate::args::StatsArgs;
use crate::commands::{Hits, print, print_json};
use crate::control;
use crate::error::CliError;
use crate::units::{count, show_duration, show_size};
use screen::Screen;
use serde::Serialize;
use show::Reading;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(crate) type Counters = BTreeMap<String, u64>;

/// By how much each has grown.
pub(crate) fn since(before: &Counters, after: &Counters) -> Counters {
    let before = |name: &str| before.get(name).copied().unwrap_or(0);
    after.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before(name)))).collect()
}

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
                let screen = Screen::of_output();
                let text = text(&sample, before, screen.map(|screen| screen.columns));
                match screen {
                    Some(screen) if !arguments.once => print(&screen.in_place_of_the_last(&text))?,
                    _ => print(&text)?,
                }
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
        let mount = control::mount_of(&entry).ok_or(CliError::Silent(entry.dir))?;
        sample.add(mount);
        return Ok(sample);
    }
    let named = arguments.server.server.as_deref();
    let mounts = control::mounts();
    let address = only_server(named, &mounts)?;
    mounts.into_iter().for_each(|mount| sample.add(mount));
    match Admin::connect(&address).and_then(|mut admin| admin.stats()) {
        Ok(counters) => {
            sample.0.insert(format!("{SERVER}{address}"), counters);
        }
        Err(error) if named.is_some() || sample.0.is_empty() => return Err(error),
        Err(error) => tracing::info!(%error, "no server"),
    }
    Ok(sample)
}

/// Before the address of a server, where a mount has its directory.
const SERVER: &str = "server ";

impl Sample {
    fn add(&mut self, mount: MountStatus) {
        self.0.insert(mount.dir.display().to_string(), mount.counters);
    }
}

/// `columns`: how wide a screen is, to put groups side by side.
fn text(sample: &Sample, before: Option<(Duration, &Sample)>, columns: Option<usize>) -> String {
    let mut out = String::new();
    for (who, counters) in &sample.0 {
        let earlier = before.and_then(|(time, sample)| Some((time, sample.0.get(who)?)));
        let reading = Reading { counters, earlier };
        let (hits, groups) = match who.starts_with(SERVER) {
            true => (Hits::of_server(counters), groups::of_server(reading)),
            false => (Hits::of_mount(counters), groups::of_mount(reading)),
        };
        out.push_str(&format!("{who}   cache hits {hits}{}\n\n", backlog_text(counters)));
        out.push_str(&screen::side_by_side(&groups, columns));
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
mod tests;
