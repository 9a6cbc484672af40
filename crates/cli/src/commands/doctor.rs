//! `soda doctor`: what keeps this machine from mounting, or from mounting at its best, and what to do about it.

use crate::admin::{Admin, servers};
use crate::answer::MountStatus;
use crate::args::DoctorArgs;
use crate::commands::status::STOPPED_ADVICE;
use crate::commands::{print, print_json, recover};
use crate::control;
use crate::error::CliError;
use crate::options::MountOptions;
use crate::units::{count, show_duration, show_size};
use crate::user::is_machines_root;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde::Serialize;
use soda_client::recover::{KeptLog, LogState};
use soda_fuse::{Cores, MountEntry, Obstacle, RequestTimeout, Transport, TransportChoice};
use soda_protocol::ServerStatus;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEVICE: &str = "/dev/fuse";
/// What umount(8) runs for a mount of the type `fuse.soda`.
const UMOUNT_HELPER: &str = "/sbin/umount.fuse.soda";
/// The first Linux that needs none of the detours for older ones (docs/SEMANTICS.md, its end).
const BEST: (u32, u32) = (6, 16);
/// Older ones are not tested.
const OLDEST: (u32, u32) = (6, 1);
/// A server with a smaller part of its disk free, in percent, soon refuses writes.
const LITTLE_SPACE: u64 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Good,
    /// It works, not at its best.
    Fair,
    Bad,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    found: String,
    /// What to do; empty: nothing.
    advice: String,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Good, found: found.into(), advice: String::new() }
    }

    fn fair(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Fair, found: found.into(), advice: advice.into() }
    }

    fn bad(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Bad, found: found.into(), advice: advice.into() }
    }
}

pub(crate) fn run(arguments: &DoctorArgs) -> Result<(), CliError> {
    let mounts = control::mounts();
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let obstacles = soda_fuse::auto_obstacles();
    let mut findings = vec![
        device(Path::new(DEVICE), OpenOptions::new().read(true).write(true).open(DEVICE).map(drop)),
        privilege(),
        kernel(&release),
        io_uring(&obstacles),
        runtime(&control::runtime_dir()),
    ];
    if is_machines_root() {
        findings.push(unmounting(Path::new(UMOUNT_HELPER)));
    }
    if obstacles.is_empty() {
        findings.extend(mounts.iter().filter_map(left_behind));
    }
    findings.extend(RequestTimeout::of_this_machine().as_ref().map(timeout));
    findings.extend(dead(&mounts)?);
    let logs = recover::kept(&[])?;
    findings.push(kept(&logs, recover::now()));
    findings.extend(waiting(&logs, recover::now()));
    findings.extend(asked(arguments.server.server.as_deref(), &mounts)?);
    match arguments.json {
        true => print_json(&findings)?,
        false => print(&text(&findings))?,
    }
    match findings.iter().filter(|finding| finding.verdict == Verdict::Bad).count() {
        0 => Ok(()),
        1 => Err(CliError::Failed("one thing has to be mended".into())),
        several => Err(CliError::Failed(format!("{several} things have to be mended"))),
    }
}

/// What came of opening it.
fn device(path: &Path, opened: io::Result<()>) -> Finding {
    const WHAT: &str = "FUSE";
    let path = path.display();
    let Err(error) = opened else { return Finding::good(WHAT, format!("{path} can be opened")) };
    let (found, advice) = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS) => (
            format!("no permission to open {path}"),
            format!("mount as root, or open it to all users, as udev does: `chmod a+rw {path}` as root"),
        ),
        Some(Errno::PERM) => {
            (format!("no permission to open {path}"), "a container has to be given the device".into())
        }
        _ => (
            format!("{path}: {error}"),
            "`modprobe fuse` as root; a container has to be given the device".into(),
        ),
    };
    Finding::bad(WHAT, found, advice)
}

fn privilege() -> Finding {
    const WHAT: &str = "privilege";
    if rustix::process::geteuid().is_root() {
        return Finding::good(WHAT, "root mounts by itself");
    }
    let Some(helper) = in_path("fusermount3") else {
        return Finding::bad(
            WHAT,
            "not root, and no fusermount3",
            "install the package fuse3, or mount as root",
        );
    };
    let conf = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    match conf.lines().any(|line| line.trim() == "user_allow_other") {
        true => Finding::good(WHAT, format!("not root, mounts through {}", helper.display())),
        false => Finding::fair(
            WHAT,
            format!("not root, mounts through {}, for this user alone", helper.display()),
            "for allow_other: the line `user_allow_other` in /etc/fuse.conf",
        ),
    }
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| access(file, Access::EXEC_OK).is_ok())
}

fn kernel(release: &str) -> Finding {
    const WHAT: &str = "kernel";
    let found = format!("Linux {release}");
    match version(release) {
        Some(version) if version >= BEST => Finding::good(WHAT, found),
        Some(version) if version >= OLDEST => Finding::fair(
            WHAT,
            found,
            "from Linux 6.16 on it asks less often for names of directories; what else is different is at the end of \
             docs/SEMANTICS.md",
        ),
        _ => Finding::fair(WHAT, found, "Soda is tested by the rules of Linux 6.1 and later"),
    }
}

/// Of a release such as `6.1.0-18-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// What `transport=auto` takes for the mounts of who asks. Nobody needs io_uring, so nothing about it is bad.
fn io_uring(obstacles: &[Obstacle]) -> Finding {
    const WHAT: &str = "io_uring";
    let joined = |part: fn(&Obstacle) -> &str| {
        let parts: Vec<&str> = obstacles.iter().map(part).filter(|part| !part.is_empty()).collect();
        parts.join("; ")
    };
    if obstacles.is_empty() {
        const FOUND: &str = "the kernel's requests come over it to a mount that this user makes now. Leave fuse.enable_uring on \
            as long as one is there: switched off it can end those whose daemon the kernel was once short of memory for";
        return Finding::good(WHAT, FOUND);
    }
    let found = format!(
        "the kernel's requests come over /dev/fuse to a mount that this user makes now: {}",
        joined(|obstacle| &obstacle.what)
    );
    // What nobody can mend is as good as it gets.
    match obstacles.iter().any(|obstacle| obstacle.mend.is_empty()) {
        true => Finding::good(WHAT, found),
        false => Finding::fair(WHAT, found, joined(|obstacle| &obstacle.mend)),
    }
}

/// Of a mount that would be over io_uring if it were made now, and is not.
fn left_behind(mount: &MountStatus) -> Option<Finding> {
    let mut options = MountOptions::default();
    // A daemon of a newer version may have others.
    options.add(&mount.options).ok()?;
    let may_choose = options.transport == TransportChoice::Auto && options.cores == Cores::Free;
    (may_choose && mount.transport == Some(Transport::Dev)).then(|| {
        let dir = mount.dir.display();
        Finding::fair(
            "io_uring",
            format!("{dir} is over /dev/fuse: when it was made io_uring could not be had, its log says why"),
            format!("unmount {dir} and mount it again, when nobody uses it"),
        )
    })
}

/// Where daemons listen for the tools.
fn runtime(dir: &Path) -> Finding {
    const WHAT: &str = "daemons";
    let there = dir.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(dir);
    match access(there, Access::WRITE_OK) {
        Ok(()) => Finding::good(WHAT, format!("are asked through {}", dir.display())),
        Err(error) => Finding::bad(
            WHAT,
            format!("{} cannot be written: {error}", there.display()),
            "mounts listen there for `status`, `stats` and `umount`; SODA_RUNTIME_DIR names another place",
        ),
    }
}

fn unmounting(helper: &Path) -> Finding {
    const WHAT: &str = "umount(8)";
    if access(helper, Access::EXEC_OK).is_ok() {
        return Finding::good(WHAT, format!("waits until delayed writes are told, by {}", helper.display()));
    }
    let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/usr/local/bin/soda"));
    Finding::fair(
        WHAT,
        "does not wait until delayed writes are told; `soda umount` does",
        format!("for umount(8) and systemd: `ln -s {} {}`", program.display(), helper.display()),
    )
}

/// Delayed writes that were not told to their server: they stay until somebody decides, and take space.
fn kept(logs: &[KeptLog], now: Duration) -> Finding {
    const WHAT: &str = "delayed writes";
    let logs: Vec<&KeptLog> = logs.iter().filter(|log| log.state == LogState::Kept).collect();
    if logs.is_empty() {
        return Finding::good(WHAT, "none are kept for `soda recover`");
    }
    let (size, age) = size_and_age(&logs, now);
    let found = format!(
        "{} kept that no server was told of, {size}, the oldest for {age}",
        count(logs.len() as u64, "log")
    );
    Finding::fair(
        WHAT,
        found,
        "`soda recover ls`; then `soda recover apply`, `show --save DIR` or `drop` each",
    )
}

/// Those that the next mount tells: until then only this machine has them.
fn waiting(logs: &[KeptLog], now: Duration) -> Option<Finding> {
    let logs: Vec<&KeptLog> = logs.iter().filter(|log| log.state == LogState::Waiting).collect();
    let first = logs.first()?;
    let changes: usize = logs.iter().map(|log| log.records).sum();
    let (size, age) = size_and_age(&logs, now);
    let found = format!(
        "{} in {} of mounts that have ended wait to be told, {size}, the oldest for {age}",
        count(changes as u64, "change"),
        count(logs.len() as u64, "log")
    );
    let advice = format!(
        "mount {}/{} again with the same cache-dir, which tells the server; `soda recover ls` lists them all",
        first.server, first.volume
    );
    Some(Finding::fair("delayed writes", found, advice))
}

fn size_and_age(logs: &[&KeptLog], now: Duration) -> (String, String) {
    let size: u64 = logs.iter().map(|log| log.disk_bytes).sum();
    let oldest = logs.iter().map(|log| log.kept_at).min().unwrap_or(now);
    let age = Duration::from_secs(now.saturating_sub(oldest).as_secs());
    (show_size(size), show_duration(age))
}

/// Waits that are nothing unusual here end the mount then.
fn timeout(timeout: &RequestTimeout) -> Finding {
    Finding::fair("time limit", timeout.to_string(), timeout.advice())
}

fn dead(mounts: &[MountStatus]) -> Result<Vec<Finding>, CliError> {
    Ok(control::silent(mounts.iter())?.into_iter().map(|entry| unanswered(&entry)).collect())
}

fn unanswered(mount: &MountEntry) -> Finding {
    const WHAT: &str = "mount";
    let dir = mount.dir.display();
    match control::stranger(mount) {
        Some(owner) => Finding::good(WHAT, format!("{dir}: belongs to {owner}, not looked at")),
        None => Finding::bad(
            WHAT,
            format!("{dir}: its daemon does not answer"),
            format!("it is dead or stopped; if it is dead, `soda umount {dir}`"),
        ),
    }
}

/// The servers of the mounts, or the one that is named. Without any of these there is none to judge.
fn asked(named: Option<&str>, mounts: &[MountStatus]) -> Result<Vec<Finding>, CliError> {
    if named.is_none() && mounts.is_empty() {
        return Ok(Vec::new());
    }
    let addresses = servers(named, mounts)?;
    Ok(addresses
        .iter()
        .map(|address| match Admin::connect(address).and_then(|mut admin| admin.status()) {
            Ok(status) => server(address, &status),
            Err(error) => Finding::bad("server", error.to_string(), ""),
        })
        .collect())
}

fn server(address: &str, status: &ServerStatus) -> Finding {
    const WHAT: &str = "server";
    if let Some(cause) = &status.stopped {
        let found = format!("{address} takes no changes any more: {cause}");
        return Finding::bad(WHAT, found, STOPPED_ADVICE);
    }
    let full =
        status.volumes.iter().find(|(_, space)| space.free_bytes < space.total_bytes / 100 * LITTLE_SPACE);
    match full {
        None => Finding::good(WHAT, format!("{address} answers ({})", status.software)),
        Some((volume, space)) => Finding::fair(
            WHAT,
            format!(
                "{address}: {} of {} free for {volume}",
                show_size(space.free_bytes),
                show_size(space.total_bytes)
            ),
            "writes are refused (ENOSPC) when it is full: make room on the server's disk",
        ),
    }
}

fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Good => "good",
            Verdict::Fair => "fair",
            Verdict::Bad => "BAD ",
        };
        let _ = writeln!(text, "{:<width$}  {verdict}  {}", finding.what, finding.found);
        if !finding.advice.is_empty() {
            let _ = writeln!(text, "{:<width$}        {}", "", finding.advice);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::mount_status;

    #[test]
    fn kernels_are_judged_by_their_numbers() {
        let of = |release: &str| kernel(release).verdict;
        assert_eq!(of("6.18.44"), Verdict::Good);
        assert_eq!(of("7.0-rc1"), Verdict::Good);
        assert_eq!(of("6.1.0-18-amd64"), Verdict::Fair);
        assert!(kernel("5.10.0").advice.contains("6.1"));
        assert!(kernel("strange").advice.contains("6.1"));
    }

    #[test]
    fn what_is_not_there_is_bad_and_says_what_to_do() {
        let finding = device(Path::new("/dev/no-such-device"), Err(Errno::NOENT.into()));
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(
            finding.found.contains("/dev/no-such-device") && finding.advice.contains("modprobe"),
            "{finding:?}"
        );
        let text = text(&[finding, Finding::good("kernel", "Linux 6.18")]);
        assert_eq!(text.lines().count(), 3);
        assert!(text.ends_with("kernel  good  Linux 6.18\n"), "{text}");
    }

    #[test]
    fn a_device_that_is_closed_is_no_missing_module() {
        for errno in [Errno::ACCESS, Errno::PERM] {
            let finding = device(Path::new(DEVICE), Err(errno.into()));
            assert_eq!(finding.verdict, Verdict::Bad);
            assert_eq!(finding.found, "no permission to open /dev/fuse");
            assert!(!finding.advice.contains("modprobe") && !finding.advice.is_empty(), "{finding:?}");
        }
        assert_eq!(device(Path::new(DEVICE), Ok(())).verdict, Verdict::Good);
    }

    #[test]
    fn what_is_kept_is_said_with_its_size_and_age() {
        assert_eq!(kept(&[], Duration::ZERO).verdict, Verdict::Good);
        let log = |at, disk_bytes| KeptLog {
            name: "1".into(),
            dir: "/c/oplog/kept/1".into(),
            state: LogState::Kept,
            kept_at: Duration::from_secs(at),
            client: "host:/mnt".into(),
            why: "why".into(),
            server: "127.0.0.1:2".into(),
            volume: "main".into(),
            records: 3,
            bytes: 1,
            damage: None,
            beyond_damage: 0,
            disk_bytes,
        };
        let finding = kept(&[log(100, 1024), log(40, 2048)], Duration::from_secs(101));
        assert_eq!(finding.verdict, Verdict::Fair);
        assert_eq!(finding.found, "2 logs kept that no server was told of, 3.0 KiB, the oldest for 1m01s");
        assert_eq!(waiting(&[log(100, 1024)], Duration::from_secs(101)), None);
        let left = KeptLog { state: LogState::Waiting, ..log(40, 2048) };
        let logs = [log(100, 1024), left.clone()];
        assert!(kept(&logs, Duration::from_secs(101)).found.starts_with("1 log kept"));
        assert_eq!(kept(&[left], Duration::ZERO).verdict, Verdict::Good);
        let finding = waiting(&logs, Duration::from_secs(101)).unwrap();
        assert_eq!(
            finding.found,
            "3 changes in 1 log of mounts that have ended wait to be told, 2.0 KiB, the oldest for 1m01s"
        );
        assert!(finding.advice.starts_with("mount 127.0.0.1:2/main again"));
    }

    #[test]
    fn umount_waits_with_a_helper_only() {
        let dir = tempfile::tempdir().unwrap();
        let helper = dir.path().join("umount.fuse.soda");
        let without = unmounting(&helper);
        assert_eq!(without.verdict, Verdict::Fair);
        assert!(without.advice.ends_with(&format!(" {}`", helper.display())), "{}", without.advice);
        std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &helper).unwrap();
        assert_eq!(unmounting(&helper).verdict, Verdict::Good);
    }

    #[test]
    fn mounts_of_others_are_not_judged() {
        let mut mount = control::tests::entry(45, "/", "/mnt");
        assert_eq!(unanswered(&mount).verdict, Verdict::Bad);
        mount.owner = None;
        assert_eq!(unanswered(&mount).verdict, Verdict::Bad);
        mount.owner = Some(rustix::process::geteuid().as_raw() + 1);
        let finding = unanswered(&mount);
        assert_eq!(finding.verdict, Verdict::Good);
        assert!(finding.found.contains("belongs to user ") && finding.found.contains("not looked at"));
    }

    #[test]
    fn io_uring_says_why_not_and_what_to_do() {
        let obstacle = |what: &str, mend: &str| Obstacle { what: what.into(), mend: mend.into() };
        let taken = io_uring(&[]).found;
        assert!(taken.contains("come over it") && taken.contains("Leave fuse.enable_uring on"), "{taken}");
        let two = io_uring(&[obstacle("it is switched off", "echo Y"), obstacle("no way back", "LimitNICE")]);
        assert_eq!(two.verdict, Verdict::Fair);
        assert!(
            two.found.contains("/dev/fuse") && two.found.ends_with("now: it is switched off; no way back")
        );
        assert_eq!(two.advice, "echo Y; LimitNICE");
        let old = io_uring(&[obstacle("the kernel has none", "")]);
        assert_eq!((old.verdict, old.advice.as_str()), (Verdict::Good, ""));
    }

    #[test]
    fn a_mount_that_was_made_before_io_uring_could_be_had_is_named() {
        let over = |transport, options: &str| {
            let options = options.to_owned();
            left_behind(&MountStatus { transport, options, dir: "/m".into(), ..mount_status() })
        };
        let named = over(Some(Transport::Dev), "hard").expect("it is named");
        assert!(
            named.verdict == Verdict::Fair && named.found.starts_with("/m is over /dev/fuse"),
            "{named:?}"
        );
        let others = [
            over(Some(Transport::Uring), "hard"),
            over(Some(Transport::Dev), "hard,transport=dev"),
            over(Some(Transport::Dev), "hard,cores=follow"),
            over(None, "hard"),
        ];
        assert_eq!(others, [None, None, None, None]);
    }

    #[test]
    fn a_time_limit_on_requests_is_told_with_what_to_do() {
        let set_by = vec!["fs.fuse.default_request_timeout".to_owned()];
        let finding = timeout(&RequestTimeout { after: std::time::Duration::from_secs(60), set_by });
        assert_eq!(finding.verdict, Verdict::Fair);
        assert!(finding.found.contains("60s"), "{finding:?}");
        assert!(finding.advice.contains("fs.fuse.default_request_timeout=0"), "{finding:?}");
    }

    #[test]
    fn a_server_without_room_is_told() {
        let mut status = ServerStatus {
            software: "soda".into(),
            started: soda_types::Timestamp::new(0, 0),
            uptime: std::time::Duration::ZERO,
            data_dir: String::new(),
            listen: String::new(),
            term: std::time::Duration::ZERO,
            grace: None,
            volumes: vec![(
                "main".into(),
                soda_types::FsStats { total_bytes: 1000, free_bytes: 50, total_inodes: 0, free_inodes: 0 },
            )],
            sessions: Vec::new(),
            leases: 0,
            waiting: 0,
            stopped: None,
        };
        assert_eq!(server("host:1", &status).verdict, Verdict::Good);
        status.volumes[0].1.free_bytes = 49;
        assert_eq!(server("host:1", &status).verdict, Verdict::Fair);
        status.stopped = Some("input/output error".into());
        let finding = server("host:1", &status);
        assert_eq!(finding.verdict, Verdict::Bad);
        assert!(finding.found.contains("input/output error"), "{finding:?}");
    }
}
