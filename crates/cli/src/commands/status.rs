//! `soda status`: the server and the mounts of this machine.

use crate::admin::{Admin, server_or_default};
use crate::args::StatusArgs;
use crate::commands::{print, print_json};
use crate::control::{self, MountStatus};
use crate::error::CliError;
use crate::table::Table;
use crate::units::{show_duration, show_size};
use serde::Serialize;
use soda_protocol::ServerStatus;
use std::time::Duration;

#[derive(Debug, Serialize)]
struct Status {
    /// Absent: no server there, and none was named.
    server: Option<ServerStatus>,
    mounts: Vec<MountStatus>,
    /// In the kernel's table, but nobody answers for them.
    dead_mounts: Vec<String>,
}

pub(crate) fn run(arguments: &StatusArgs) -> Result<(), CliError> {
    let mounts = control::mounts();
    let status = Status {
        server: server_status(arguments.server.server.as_deref())?,
        dead_mounts: dead_mounts(&mounts)?,
        mounts,
    };
    match arguments.json {
        true => print_json(&status),
        false => print(&text(&status)),
    }
}

/// A server that was not named need not be there.
fn server_status(named: Option<&str>) -> Result<Option<ServerStatus>, CliError> {
    match Admin::connect(&server_or_default(named)?).and_then(|mut admin| admin.status()) {
        Err(error) if named.is_none() => {
            tracing::info!(%error, "no server");
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

fn dead_mounts(alive: &[MountStatus]) -> Result<Vec<String>, CliError> {
    let listed = soda_fuse::list_mounts().map_err(CliError::io("/proc/self/mountinfo"))?;
    let dead = listed.into_iter().filter(|entry| alive.iter().all(|mount| mount.dir != entry.dir));
    Ok(dead.map(|entry| entry.dir.display().to_string()).collect())
}

fn text(status: &Status) -> String {
    let mut out = match &status.server {
        Some(server) => server_text(server),
        None => "No server answers here (name one with --server HOST:PORT).\n".to_string(),
    };
    let mut table = Table::new(["mount", "volume", "connected", "requests", "waiting", "hits", "pid"]);
    for mount in &status.mounts {
        table.row([
            mount.dir.display().to_string(),
            mount.source.clone(),
            if mount.is_connected() { "yes".into() } else { "no".into() },
            mount.count("kernel_requests").to_string(),
            mount.count("kernel_waiting").to_string(),
            hit_ratio(&mount.counters),
            mount.pid.to_string(),
        ]);
    }
    if !table.is_empty() {
        out.push_str(&format!("\n{table}"));
    }
    for dead in &status.dead_mounts {
        out.push_str(&format!(
            "\n{dead}: its daemon does not answer. It is dead (`soda umount {dead}` takes the mount away), stopped, or another \
             user's.\n"
        ));
    }
    out
}

/// Of all look-ups, attributes, data and xattrs asked for, the part that needed no server.
pub(crate) fn hit_ratio(counters: &std::collections::BTreeMap<String, u64>) -> String {
    let sum = |suffix: &str| -> u64 {
        counters.iter().filter(|(name, _)| name.ends_with(suffix)).map(|(_, count)| count).sum()
    };
    let (hits, misses) = (sum("_hits"), sum("_misses"));
    match hits + misses {
        0 => "-".into(),
        all => format!("{:.1} %", hits as f64 * 100.0 / all as f64),
    }
}

fn server_text(server: &ServerStatus) -> String {
    let mut out = format!(
        "Server {} at {}, up {}\n  data {}\n  term {}, {} leases, {} waiting{}\n",
        server.software,
        server.listen,
        show_duration(server.uptime),
        server.data_dir,
        show_duration(server.term),
        server.leases,
        server.waiting,
        server
            .grace
            .map_or_else(String::new, |left| format!(", grace period for another {}", show_duration(left))),
    );
    for (name, stats) in &server.volumes {
        out.push_str(&format!(
            "  volume {name}: {} of {} free, {} inodes\n",
            show_size(stats.free_bytes),
            show_size(stats.total_bytes),
            stats.total_inodes.saturating_sub(stats.free_inodes),
        ));
    }
    let mut table =
        Table::new(["session", "client", "from", "connected", "lease", "leases", "open", "locks"]);
    for session in &server.sessions {
        table.row([
            session.session.to_string(),
            session.name.clone(),
            session.peer.clone(),
            session.connected.to_string(),
            match session.left {
                Duration::ZERO => "expired".into(),
                left => show_duration(left),
            },
            session.leases.to_string(),
            session.open.to_string(),
            session.locks.to_string(),
        ]);
    }
    if !table.is_empty() {
        out.push_str(&format!("\n{table}"));
    }
    out
}
