//! One act of the demo: what is done, how long it took, and what went over the wire for it.

use super::cell::Machine;
use crate::commands::print;
use crate::error::CliError;
use crate::units::show_duration;
use std::time::Instant;

/// What a machine had sent, and had been asked to give up, at one moment.
#[derive(Clone, Copy, Default)]
struct Traffic {
    messages: u64,
    recalls: u64,
}

impl Traffic {
    /// A machine that is stopped sends nothing.
    fn of(machine: &Machine) -> Option<Traffic> {
        let status = machine.status()?;
        Some(Traffic { messages: status.messages(), recalls: status.count("recalls") })
    }
}

pub(super) fn headline(text: &str) -> Result<(), CliError> {
    print(&format!("{text:<62}{:>9}   {:<16}{}\n", "TOOK", "MESSAGES", "LEASES GIVEN UP"))
}

/// Does `work` and prints a line about it.
pub(super) fn play<T>(
    machines: &[Machine; 2],
    title: &str,
    work: impl FnOnce() -> std::io::Result<T>,
) -> Result<T, CliError> {
    let before = machines.each_ref().map(Traffic::of);
    let start = Instant::now();
    let value = work().map_err(CliError::io(title.trim_end_matches(':').to_string()))?;
    let took = show_duration(start.elapsed());
    let (mut messages, mut recalls) = (Vec::new(), Vec::new());
    for (machine, before) in machines.iter().zip(before) {
        let (Some(before), Some(after)) = (before, Traffic::of(machine)) else { continue };
        let note = |list: &mut Vec<String>, before: u64, after: u64| match after.saturating_sub(before) {
            0 => {}
            some => list.push(format!("{} {some}", machine.name)),
        };
        note(&mut messages, before.messages, after.messages);
        note(&mut recalls, before.recalls, after.recalls);
    }
    if messages.is_empty() {
        messages.push("none".into());
    }
    let line = format!("  {title:<60}{took:>9}   {:<16}{}", messages.join("  "), recalls.join("  "));
    print(&format!("{}\n", line.trim_end()))?;
    Ok(value)
}

/// More about the last act.
pub(super) fn note(text: &str) -> Result<(), CliError> {
    print(&text.lines().map(|line| format!("      {line}").trim_end().to_owned() + "\n").collect::<String>())
}
