//! `soda status`: the server and the mounts of this machine.

use crate::admin::{Admin, servers};
use crate::answer::MountStatus;
use crate::args::StatusArgs;
use crate::binds::{self, BindMount};
use crate::commands::{Hits, print, print_json, recover};
use crate::control;
use crate::error::CliError;
use crate::table::Table;
use crate::units::{count, parse_duration, parse_size, show_duration, show_size};
use serde::Serialize;
use soda_client::BacklogView;
use soda_client::recover::{KeptLog, LogState};
use soda_fuse::MountEntry;
use soda_protocol::{ServerStatus, SessionBacklog};
use std::time::Duration;

/// What to do about a server whose store has stopped.
pub(crate) const STOPPED_ADVICE: &str = "mend the server's disk, then start the server anew";

#[derive(Debug, Serialize)]
struct Status {
    /// The one that was named; else those of the mounts; else the usual one, if it is there.
    servers: Vec<Server>,
    mounts: Vec<MountStatus>,
    /// In the kernel's table, but nobody answers for them.
    dead_mounts: Vec<DeadMount>,
    /// What shows one of the mounts, dead or not, once more.
    bind_mounts: Vec<BindMount>,
    /// Logs of delayed writes that were not told.
    kept: Vec<KeptLog>,
}

/// As JSON just the directory.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct DeadMount {
    dir: String,
    /// `HOST:PORT/VOLUME`
    #[serde(skip)]
    source: String,
}

#[derive(Debug, Serialize)]
struct Server {
    /// `HOST:PORT`, as the mounts name it.
    address: String,
    /// Absent: nobody answers there, and it was not named.
    #[serde(flatten)]
    status: Option<ServerStatus>,
}

pub(crate) fn run(arguments: &StatusArgs) -> Result<(), CliError> {
    let mounts = control::mounts();
    let sorted = binds::sort(control::table()?, &mounts.iter().collect::<Vec<_>>());
    let named = arguments.address.as_deref().or(arguments.server.server.as_deref());
    let status = Status {
        servers: ask_all(servers(named, &mounts)?, named)?,
        dead_mounts: sorted.silent.into_iter().map(DeadMount::from).collect(),
        bind_mounts: sorted.binds,
        kept: recover::kept(&[])?,
        mounts,
    };
    match arguments.json {
        true => print_json(&status),
        false => print(&text(&status)),
    }
}

/// At once: one that is away makes nobody wait for it and then for the next.
fn ask_all(addresses: Vec<String>, named: Option<&str>) -> Result<Vec<Server>, CliError> {
    let threads: Vec<_> = addresses
        .into_iter()
        .map(|address| {
            let named = named.map(str::to_owned);
            std::thread::spawn(move || {
                Ok(Server { status: server_status(&address, named.as_deref())?, address })
            })
        })
        .collect();
    let failed = |_| Err(CliError::Failed("a thread that asks a server has failed".into()));
    threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect()
}

/// A server that was not named need not be there.
fn server_status(address: &str, named: Option<&str>) -> Result<Option<ServerStatus>, CliError> {
    match Admin::connect(address).and_then(|mut admin| admin.status()) {
        Err(error) if named.is_none() => {
            tracing::info!(%error, "no server");
            Ok(None)
        }
        answer => answer.map(Some),
    }
}

impl From<MountEntry> for DeadMount {
    fn from(entry: MountEntry) -> DeadMount {
        DeadMount { dir: entry.dir.display().to_string(), source: entry.source }
    }
}

fn text(status: &Status) -> String {
    let texts = status.servers.iter().map(|server| match &server.status {
        Some(status) => server_text(status),
        None => format!("No server answers at {} (name another with --server HOST:PORT).\n", server.address),
    });
    let mut out = texts.collect::<Vec<_>>().join("\n");
    let mut table =
        Table::new(["mount", "volume", "connected", "transport", "requests", "waiting", "hits", "pid"]);
    for mount in &status.mounts {
        table.row([
            mount.dir.display().to_string(),
            mount.source.clone(),
            if mount.is_connected() { "yes".into() } else { "no".into() },
            mount.transport.map_or_else(|| "-".into(), |transport| transport.to_string()),
            mount.count("kernel_requests").to_string(),
            mount.count("kernel_waiting").to_string(),
            Hits::of_mount(&mount.counters).to_string(),
            mount.pid.to_string(),
        ]);
    }
    for dead in &status.dead_mounts {
        let unknown = || "-".to_owned();
        let [transport, requests, waiting, hits, pid] = std::array::from_fn(|_| unknown());
        let (dir, source) = (dead.dir.clone(), dead.source.clone());
        table.row([dir, source, "no answer".into(), transport, requests, waiting, hits, pid]);
    }
    let behind = backlog_table(&status.mounts);
    for table in [table, bind_table(&status.bind_mounts), behind].iter().filter(|table| !table.is_empty()) {
        out.push_str(&format!("\n{table}"));
    }
    if !status.dead_mounts.is_empty() {
        out.push_str(
            "\nno answer: the mount's daemon is dead (`soda umount DIR` takes the mount away), stopped, or another user's.\n",
        );
    }
    out.push_str(&untold_text(&status.kept));
    out
}

/// What no mount has in hand.
fn untold_text(logs: &[KeptLog]) -> String {
    let mut out = String::new();
    let (kept, waiting): (Vec<&KeptLog>, Vec<&KeptLog>) =
        logs.iter().partition(|log| log.state == LogState::Kept);
    for (logs, is_kept) in [(kept, true), (waiting, false)] {
        if logs.is_empty() {
            continue;
        }
        let changes: usize = logs.iter().map(|log| log.records).sum();
        let is_one = changes == 1;
        let what = match (is_kept, is_one) {
            (true, _) => "and kept",
            (false, true) => "when its mount ended, and waits for the next one",
            (false, false) => "when their mounts ended, and wait for the next ones",
        };
        out.push_str(&format!(
            "\n{} of this machine {} not told to {} server {what}: see `soda recover ls`.\n",
            count(changes as u64, "delayed change"),
            if is_one { "was" } else { "were" },
            if is_one { "its" } else { "their" },
        ));
    }
    out
}

fn bind_table(binds: &[BindMount]) -> Table {
    let mut table = Table::new(["bind mount", "of", "path"]);
    for bind in binds {
        table.row([&bind.dir, &bind.of, &bind.path].map(|path| path.display().to_string()));
    }
    table
}

/// Of the mounts whose server hears of changes later, or that have some which its disk may lack.
fn backlog_table(mounts: &[MountStatus]) -> Table {
    let mut table =
        Table::new(["mount", "not told", "size", "oldest", "not durable", "dirty-age", "dirty-size", "lost"]);
    let shows =
        |mount: &&MountStatus| mount.writes_behind() || mount.session.backlog != BacklogView::default();
    for mount in mounts.iter().filter(shows) {
        let backlog = &mount.session.backlog;
        let option = |name: &str| mount.option(name).map(str::to_owned);
        table.row([
            mount.dir.display().to_string(),
            backlog.records.to_string(),
            show_size(backlog.bytes),
            if backlog.records == 0 { "-".into() } else { show_duration(backlog.age) },
            backlog.not_durable.to_string(),
            option("dirty-age")
                .and_then(|age| Some(show_duration(parse_duration(&age).ok()?)))
                .unwrap_or_else(|| "-".into()),
            option("dirty-size")
                .and_then(|size| Some(show_size(parse_size(&size).ok()?)))
                .unwrap_or_else(|| "-".into()),
            mount.count("lost_records").to_string(),
        ]);
    }
    table
}

fn server_text(server: &ServerStatus) -> String {
    let mut out = format!(
        "Server {} at {}, up {}\n  data {}\n  term {}, {}, {} waiting{}\n",
        server.software,
        server.listen,
        show_duration(server.uptime),
        server.data_dir,
        show_duration(server.term),
        count(server.leases, "lease"),
        count(server.waiting, "operation"),
        server
            .grace
            .map_or_else(String::new, |left| format!(", grace period for another {}", show_duration(left))),
    );
    if let Some(cause) = &server.stopped {
        out.push_str(&format!("  changes are refused (EIO): {cause}\n  {STOPPED_ADVICE}\n"));
    }
    for (name, stats) in &server.volumes {
        out.push_str(&format!(
            "  volume {name}: {} of {} free, {}\n",
            show_size(stats.free_bytes),
            show_size(stats.total_bytes),
            count(stats.total_inodes.saturating_sub(stats.free_inodes), "inode"),
        ));
    }
    let mut table = Table::new([
        "session",
        "client",
        "from",
        "connected",
        "lease",
        "leases",
        "open",
        "locks",
        "not told",
        "size",
        "oldest",
        "said",
    ]);
    for session in &server.sessions {
        let [untold, size, oldest, ago] = backlog_cells(session.backlog.as_ref());
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
            untold,
            size,
            oldest,
            ago,
        ]);
    }
    if !table.is_empty() {
        out.push_str(&format!("\n{table}"));
    }
    out
}

/// What a session has not told its server, and how long ago it said so.
fn backlog_cells(backlog: Option<&SessionBacklog>) -> [String; 4] {
    let Some(SessionBacklog { said, ago }) = backlog else { return std::array::from_fn(|_| "-".into()) };
    let oldest = if said.records == 0 { "-".into() } else { show_duration(said.age) };
    [said.records.to_string(), show_size(said.bytes), oldest, format!("{} ago", show_duration(*ago))]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::mount_status;
    use soda_protocol::{BacklogReport, SessionInfo};
    use soda_types::{FsStats, SessionId, Timestamp};

    fn server() -> ServerStatus {
        let stats = FsStats { total_bytes: 4 << 30, free_bytes: 3 << 30, total_inodes: 100, free_inodes: 99 };
        let session = SessionInfo {
            session: SessionId(1),
            name: "one:/mnt".into(),
            peer: "127.0.0.1:1".into(),
            connected: 3,
            left: Duration::ZERO,
            leases: 1,
            open: 2,
            locks: 0,
            backlog: None,
        };
        ServerStatus {
            software: "soda 1".into(),
            started: Timestamp::new(0, 0),
            uptime: Duration::from_secs(61),
            data_dir: "/srv".into(),
            listen: "127.0.0.1:2".into(),
            term: Duration::from_secs(10),
            grace: None,
            volumes: vec![("main".into(), stats)],
            sessions: vec![session],
            leases: 1,
            waiting: 0,
            stopped: None,
        }
    }

    fn answering() -> Server {
        Server { address: "127.0.0.1:2".into(), status: Some(server()) }
    }

    fn silent() -> Server {
        Server { address: "h:1".into(), status: None }
    }

    #[test]
    fn each_server_of_several_is_shown() {
        let status = Status {
            servers: vec![answering(), silent()],
            mounts: Vec::new(),
            dead_mounts: Vec::new(),
            bind_mounts: Vec::new(),
            kept: Vec::new(),
        };
        let text = text(&status);
        assert!(text.starts_with("Server soda 1 at 127.0.0.1:2, up"), "{text}");
        assert!(
            text.ends_with("\n\nNo server answers at h:1 (name another with --server HOST:PORT).\n"),
            "{text}"
        );
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["servers"][0]["listen"], "127.0.0.1:2");
        assert_eq!(json["servers"][1], serde_json::json!({ "address": "h:1" }));
    }

    #[test]
    fn a_server_and_its_mounts() {
        let status = Status {
            servers: vec![answering()],
            mounts: vec![mount_status()],
            dead_mounts: vec![DeadMount { dir: "/old".into(), source: "h:1/main".into() }],
            bind_mounts: vec![BindMount { dir: "/srv/x".into(), of: "/mnt".into(), path: "/x".into() }],
            kept: Vec::new(),
        };
        let expected = "\
Server soda 1 at 127.0.0.1:2, up 1m01s
  data /srv
  term 10.0 s, 1 lease, 0 operations waiting
  volume main: 3.0 GiB of 4.0 GiB free, 1 inode

SESSION  CLIENT    FROM         CONNECTED  LEASE    LEASES  OPEN  LOCKS  NOT TOLD  SIZE  OLDEST  SAID
s1       one:/mnt  127.0.0.1:1          3  expired       1     2      0  -         -     -       -

MOUNT  VOLUME            CONNECTED  TRANSPORT  REQUESTS  WAITING  HITS    PID
/mnt   127.0.0.1:2/main  yes        uring            12        0  75.0 %   77
/old   h:1/main          no answer  -          -         -        -       -

BIND MOUNT  OF    PATH
/srv/x      /mnt  /x

no answer: the mount's daemon is dead (`soda umount DIR` takes the mount away), stopped, or another user's.
";
        assert_eq!(text(&status), expected);
        assert_eq!(serde_json::to_value(&status).unwrap()["dead_mounts"], serde_json::json!(["/old"]));
    }

    #[test]
    fn a_server_that_refuses_changes_says_why() {
        let text = server_text(&ServerStatus { stopped: Some("the disk is gone".into()), ..server() });
        assert!(text.contains("\n  changes are refused (EIO): the disk is gone\n  mend"), "{text}");
    }

    #[test]
    fn what_clients_elsewhere_have_not_told() {
        let backlog = |records, bytes, age| SessionBacklog {
            said: BacklogReport { records, bytes, age },
            ago: Duration::from_millis(1200),
        };
        let cells = |backlog: SessionBacklog| backlog_cells(Some(&backlog));
        let some = cells(backlog(120, 1536, Duration::from_millis(250)));
        assert_eq!(some, ["120", "1.5 KiB", "250.0 ms", "1.2 s ago"]);
        assert_eq!(cells(backlog(0, 0, Duration::ZERO)), ["0", "0 B", "-", "1.2 s ago"]);
        let json = serde_json::to_value(backlog(1, 2, Duration::ZERO)).unwrap();
        assert_eq!((&json["said"]["records"], &json["said"]["bytes"]), (&1.into(), &2.into()));
    }

    #[test]
    fn what_a_mount_has_not_told_its_server() {
        let mut behind = mount_status();
        behind.options = "hard,write=behind,dirty-age=1000000us,dirty-size=67108864".into();
        behind.session.backlog =
            BacklogView { records: 120, bytes: 1536, age: Duration::from_millis(250), not_durable: 7 };
        let mut idle = MountStatus { dir: "/idle".into(), ..behind.clone() };
        idle.session.backlog = BacklogView::default();
        let through = MountStatus { options: "hard,write=through".into(), ..mount_status() };
        let expected = "\
MOUNT  NOT TOLD  SIZE     OLDEST    NOT DURABLE  DIRTY-AGE  DIRTY-SIZE  LOST
/mnt        120  1.5 KiB  250.0 ms            7      1.0 s    64.0 MiB     0
/idle         0      0 B  -                   0      1.0 s    64.0 MiB     0
";
        assert_eq!(backlog_table(&[behind, through, idle]).to_string(), expected);
    }

    #[test]
    fn nothing_here() {
        let status = Status {
            servers: vec![silent()],
            mounts: Vec::new(),
            dead_mounts: Vec::new(),
            bind_mounts: Vec::new(),
            kept: Vec::new(),
        };
        assert_eq!(text(&status), "No server answers at h:1 (name another with --server HOST:PORT).\n");
        let log = KeptLog {
            name: "1".into(),
            dir: "/c".into(),
            state: LogState::Kept,
            kept_at: Duration::ZERO,
            client: String::new(),
            why: String::new(),
            server: String::new(),
            volume: String::new(),
            records: 3,
            bytes: 0,
            damage: None,
            beyond_damage: 0,
            disk_bytes: 0,
        };
        let waits = KeptLog { state: LogState::Waiting, records: 1, ..log.clone() };
        assert_eq!(
            untold_text(&[waits]),
            "\n1 delayed change of this machine was not told to its server when its mount ended, and waits for the next one: see \
             `soda recover ls`.\n"
        );
        let kept = text(&Status { kept: vec![log], ..status });
        assert!(
            kept.ends_with("3 delayed changes of this machine were not told to their server and kept: see `soda recover ls`.\n"),
            "{kept}"
        );
    }
}
