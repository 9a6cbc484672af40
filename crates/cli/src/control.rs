//! Each mount's daemon answers questions on a Unix socket in the runtime directory: one line of JSON in, one out.

mod runtime_dir;
mod socket;

pub(crate) use runtime_dir::{named_dir, runtime_dir};
pub(crate) use socket::ControlSocket;

use crate::answer::{BACKLOG, MountStatus, NotUnderstood, SyncAnswer};
use crate::binds;
use crate::ending::{self, LastWords, Listeners};
use crate::error::CliError;
use crate::log::LogView;
use crate::takeover::{self, Claims};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use soda_client::{ChangesView, Client};
use soda_fuse::{Monitor, MountEntry, Transport};
use soda_types::{Errno, Name};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

/// How long a daemon may take to answer what it need not ask the server for.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest question, bytes: a path of 4096, with each byte as a number of its own.
const LINE_MAX: u64 = 32 << 10;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Question {
    Status,
    Leases,
    /// How changes of what the names mean, from the mount's root, reach the server.
    Changes(Vec<Name>),
    /// Tell the server everything and have it made durable. Answered when that is done, whoever still listens.
    Sync,
    /// How the mount ends: answered when it has.
    Ending,
    /// Hand the mount over to who asks: see [`crate::takeover`].
    TakeOver(takeover::Claim),
}

/// The log of a mount's daemon.
pub(crate) fn log_path(mount: &Path) -> Result<PathBuf, CliError> {
    Ok(runtime_dir::made()?.join(format!("{}.log", file_name_of(mount))))
}

/// The path as one name, no two paths as the same: `/mnt/a-b` is `mnt-a%2Db`.
fn file_name_of(path: &Path) -> String {
    let mut name = String::new();
    for byte in path.as_os_str().as_bytes().iter().skip_while(|byte| **byte == b'/') {
        match byte {
            b'/' => name.push('-'),
            b'-' | b'%' | 0..=b' ' | 0x7f.. => name.push_str(&format!("%{byte:02X}")),
            byte => name.push(char::from(*byte)),
        }
    }
    name
}

/// Answers while it lives.
#[derive(Debug)]
pub(crate) struct ControlServer {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl ControlServer {
    /// If the socket cannot have its name the mount is served all the same.
    pub(crate) fn start(socket: ControlSocket, answers: Answers) -> ControlServer {
        let (path, listener, named) = socket.finish();
        if let Err(error) = named {
            tracing::error!(
                %error,
                "nobody finds the control socket {}: `soda` knows nothing of this mount, and umount(8) ends it",
                path.display()
            );
        }
        let answers = Arc::new(answers);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answers = answers.clone();
                tokio::spawn(async move {
                    if let Err(error) = answers.answer(stream).await {
                        tracing::debug!(%error, "control socket");
                    }
                });
            }
        });
        ControlServer { path, task }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What is known of a mount by those who serve it.
#[derive(Debug)]
pub(crate) struct Answers {
    pub dir: PathBuf,
    /// `HOST:PORT/VOLUME`
    pub source: String,
    /// `None`: the kernel's table of mounts cannot be read.
    pub device: Option<(u32, u32)>,
    pub options: String,
    pub log: Option<LogView>,
    pub transport: Transport,
    pub client: Arc<Client>,
    pub monitor: Monitor,
    pub ending: Listeners,
    pub claims: Claims,
}

impl Answers {
    async fn answer(&self, mut stream: tokio::net::UnixStream) -> std::io::Result<()> {
        use tokio::io::AsyncReadExt;
        let (read, mut write) = stream.split();
        let mut line = String::new();
        tokio::io::BufReader::new(read.take(LINE_MAX)).read_line(&mut line).await?;
        let answer = match serde_json::from_str(&line) {
            Ok(Question::Status) => serde_json::to_value(self.status()),
            Ok(Question::Leases) => serde_json::to_value(self.client.leases()),
            Ok(Question::Changes(path)) => serde_json::to_value(self.client.changes_of(&path)),
            Ok(Question::Sync) => serde_json::to_value(self.sync().await),
            Ok(Question::Ending) => return self.ending.clone().tell(&mut write).await,
            Ok(Question::TakeOver(claim)) => return self.claims.hand_on(claim, stream).await,
            Err(error) => Err(error),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => serde_json::to_value(NotUnderstood { error: error.to_string() })?,
        };
        write.write_all(format!("{answer}\n").as_bytes()).await
    }

    /// As [`Client::sync_all`], to who is told of a loss in words of its own.
    async fn sync(&self) -> SyncAnswer {
        match self.client.tell_all().await {
            Err(error) if error.errno != Errno::Io => error.into(),
            told => match self.client.check_all_losses() {
                Err(_) => SyncAnswer::Lost,
                Ok(()) => told.map_or_else(SyncAnswer::from, |()| SyncAnswer::Synced),
            },
        }
    }

    fn status(&self) -> MountStatus {
        let mut counters = self.client.stats().counters;
        if let Ok(Value::Object(mount)) = serde_json::to_value(self.monitor.stats()) {
            let figures = mount
                .into_iter()
                .filter_map(|(name, value)| Some((format!("kernel_{name}"), value.as_u64()?)));
            counters.extend(figures);
        }
        let session = self.client.session();
        let backlog = session.backlog;
        counters.extend(
            [
                ("records", backlog.records),
                ("bytes", backlog.bytes),
                ("age_ms", u64::try_from(backlog.age.as_millis()).unwrap_or(u64::MAX)),
                ("not_durable", backlog.not_durable),
            ]
            .map(|(name, figure)| (format!("{BACKLOG}{name}"), figure)),
        );
        counters.extend(
            [
                ("held_leases", session.leases as u64),
                ("cached_inodes", session.cached_inodes as u64),
                ("cached_bytes", session.cached_bytes),
                ("memory_bytes", soda_server::resident_memory()),
            ]
            .map(|(name, figure)| (name.to_owned(), figure)),
        );
        MountStatus {
            dir: self.dir.clone(),
            source: self.source.clone(),
            device: self.device,
            options: self.options.clone(),
            log: self.log.clone(),
            transport: Some(self.transport),
            pid: std::process::id(),
            session,
            counters,
        }
    }
}

/// A mount's daemon that answers.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub socket: PathBuf,
    /// What it said when it was found.
    pub status: MountStatus,
}

/// All mounts of this user whose daemons answer.
pub(crate) fn mounts() -> Vec<MountStatus> {
    daemons().into_iter().map(|daemon| daemon.status).collect()
}

/// The daemon that serves a mount.
pub(crate) fn mount_of(entry: &MountEntry) -> Option<MountStatus> {
    daemon_of(entry).map(|daemon| daemon.status)
}

/// As [`mount_of`], to ask it more.
pub(crate) fn daemon_of(entry: &MountEntry) -> Option<Daemon> {
    let mut looks = Looks::default();
    std::iter::from_fn(|| looks.next()).find_map(|found| answer_of(found, entry, Some(PATIENCE)))
}

/// Sockets of daemons, until there are no others: that of one that has just begun gets another name meanwhile.
#[derive(Debug, Default)]
struct Looks(HashSet<PathBuf>);

impl Looks {
    fn next(&mut self) -> Option<Vec<PathBuf>> {
        let found: Vec<_> = sockets().into_iter().filter(|socket| self.0.insert(socket.clone())).collect();
        (!found.is_empty()).then_some(found)
    }
}

/// The socket of the daemon that serves the mount on `dir`, for [`status`].
pub(crate) fn socket_of(dir: &Path) -> Option<PathBuf> {
    let entry = soda_fuse::find_mount(dir).ok()??;
    daemon_of(&entry).map(|daemon| daemon.socket)
}

/// Mounts in the kernel's table that none of those which answer serves, without bind mounts of them.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn silent<'a>(alive: impl Iterator<Item = &'a MountStatus>) -> Result<Vec<MountEntry>, CliError> {
    Ok(binds::sort(table()?, &alive.collect::<Vec<_>>()).silent)
}

/// Who has mounted it, if that was another user, such as `root`: where its daemon listens only that user knows.
pub(crate) fn stranger(mount: &MountEntry) -> Option<String> {
    let owner = mount.owner.filter(|owner| *owner != rustix::process::geteuid().as_raw())?;
    Some(if owner == 0 { "root".into() } else { format!("user {owner}") })
}

/// All Soda mounts that the kernel lists.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn table() -> Result<Vec<MountEntry>, CliError> {
    soda_fuse::list_mounts().map_err(CliError::io("/proc/self/mountinfo"))
}

/// What one daemon says.
pub(crate) fn status(socket: &Path) -> Option<MountStatus> {
    serde_json::from_value(ask(socket, Question::Status, Some(PATIENCE))?).ok()
}

/// How a mount tells its server of changes of what the names mean, from its volume's root. `None`: its daemon does not answer.
pub(crate) fn changes(entry: &MountEntry, names: &[Name]) -> Option<ChangesView> {
    let question = Question::Changes(names.to_vec());
    serde_json::from_value(ask(&daemon_of(entry)?.socket, question, Some(PATIENCE))?).ok()
}

/// Waits until the daemon has synced, for ever if need be. `None`: it has ended.
pub(crate) fn sync(socket: &Path) -> Option<SyncAnswer> {
    serde_json::from_value(ask(socket, Question::Sync, None)?).ok()
}

/// Listens to a daemon until it has ended. `None`: it does not answer.
pub(crate) fn last_words(socket: &Path) -> Option<LastWords> {
    Some(ending::listen(BufReader::new(asked(socket, &Question::Ending, None)?)))
}

/// Those that answer. One that is stopped makes this wait, but no longer than for itself.
pub(crate) fn daemons() -> Vec<Daemon> {
    let mut looks = Looks::default();
    let found = std::iter::from_fn(|| looks.next()).flat_map(|found| answers(found, Some(PATIENCE)));
    let mut found: Vec<_> = found.collect();
    let named = |daemon: &Daemon| (daemon.status.dir.clone(), daemon.status.device, daemon.status.pid);
    found.sort_by_key(named);
    found.dedup_by_key(|daemon| named(daemon));
    found
}

/// Whether a daemon of this user serves the mount, though it may not answer.
pub(crate) fn has_socket(mount: &MountEntry) -> bool {
    let end = format!("-{}.sock", mount.device.1);
    sockets().iter().any(|socket| socket.to_string_lossy().ends_with(&end))
}

fn sockets() -> Vec<PathBuf> {
    let entries = runtime_dir::trusted().and_then(|dir| std::fs::read_dir(dir).ok());
    let entries = entries.into_iter().flatten();
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "sock")).collect()
}

/// All are asked at once, and come as they answer. Who has heard enough need not wait for the others.
fn answers(sockets: Vec<PathBuf>, patience: Option<Duration>) -> mpsc::Receiver<Daemon> {
    let (tell, told) = mpsc::channel();
    for socket in sockets {
        let tell = tell.clone();
        std::thread::spawn(move || {
            let answer = ask(&socket, Question::Status, patience)?;
            let status = serde_json::from_value(answer).ok()?;
            tell.send(Daemon { socket, status }).ok()
        });
    }
    told
}

/// Of the one that serves `entry`: no other is waited for once it has answered.
fn answer_of(sockets: Vec<PathBuf>, entry: &MountEntry, patience: Option<Duration>) -> Option<Daemon> {
    answers(sockets, patience).into_iter().find(|daemon| daemon.status.serves(entry))
}

/// `None`: it does not answer.
fn ask(socket: &Path, question: Question, patience: Option<Duration>) -> Option<Value> {
    let mut line = String::new();
    BufReader::new(asked(socket, &question, patience)?).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// Where the answer comes. `None`: nobody is there. A socket that nobody listens on any more is removed.
pub(crate) fn asked(socket: &Path, question: &Question, patience: Option<Duration>) -> Option<UnixStream> {
    let stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            let _ = std::fs::remove_file(socket);
            return None;
        }
        Err(_) => return None,
    };
    stream.set_read_timeout(patience).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    let question = serde_json::to_string(question).ok()?;
    (&stream).write_all(format!("{question}\n").as_bytes()).ok()?;
    Some(stream)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use soda_client::{ClientStanding, SessionView};
    use soda_types::SessionId;
    use std::collections::BTreeMap;

    pub(crate) fn entry(minor: u32, root: &str, dir: &str) -> MountEntry {
        MountEntry {
            dir: dir.into(),
            root: root.into(),
            source: "127.0.0.1:2/main".into(),
            device: (0, minor),
            owner: Some(rustix::process::geteuid().as_raw()),
        }
    }

    /// A mount's daemon, connected, with nothing to tell.
    pub(crate) fn mount_status() -> MountStatus {
        let session = SessionView {
            server: "127.0.0.1:2".into(),
            volume: "main".into(),
            session: Some(SessionId(1)),
            standing: ClientStanding::Connected,
            left: Duration::ZERO,
            connections: 1,
            waiting: 0,
            leases: 0,
            cached_inodes: 0,
            cached_bytes: 0,
            metadata_bytes: 0,
            open_files: 0,
            locks: 0,
            delegated_locks: 0,
            unsynced: 0,
            unheard_losses: false,
            backlog: soda_client::BacklogView::default(),
        };
        let counters = [("attr_hits", 3), ("attr_misses", 1), ("kernel_requests", 12)];
        MountStatus {
            dir: "/mnt".into(),
            source: "127.0.0.1:2/main".into(),
            device: Some((0, 45)),
            options: "hard".into(),
            log: None,
            transport: Some(Transport::Uring),
            pid: 77,
            session,
            counters: BTreeMap::from(counters.map(|(name, count)| (name.to_string(), count))),
        }
    }

    #[test]
    fn options_are_found_by_name() {
        let options = "hard,write=behind,dirty-age=1us".into();
        let mount = MountStatus { options, ..mount_status() };
        assert!(mount.writes_behind());
        assert_eq!((mount.option("dirty-age"), mount.option("dirty")), (Some("1us"), None));
        assert!(!mount_status().writes_behind());
    }

    /// A daemon that answers once, with this.
    fn daemon(dir: &Path, name: &str, status: &MountStatus) -> PathBuf {
        let path = dir.join(name);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answer = serde_json::to_string(status).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            (&stream).write_all(format!("{answer}\n").as_bytes()).unwrap();
        });
        path
    }

    #[test]
    fn a_daemon_serves_what_has_its_device() {
        let mut status = mount_status();
        assert!(status.made(&entry(45, "/", "/mnt")) && status.serves(&entry(45, "/sub", "/elsewhere")));
        assert!(!status.made(&entry(45, "/sub", "/mnt")) && !status.made(&entry(45, "/", "/elsewhere")));
        assert!(!status.serves(&entry(46, "/", "/mnt")), "a later one on the same directory");
        status.device = None;
        assert!(status.serves(&entry(45, "/", "/mnt")) && !status.serves(&entry(45, "/", "/elsewhere")));
    }

    #[test]
    fn a_frozen_daemon_holds_nobody_up_who_asks_another() {
        let dir = tempfile::tempdir().unwrap();
        let frozen = dir.path().join("mount-1-1.sock");
        let _connected_and_never_answered = std::os::unix::net::UnixListener::bind(&frozen).unwrap();
        let alive = daemon(dir.path(), "mount-2-2.sock", &mount_status());
        let (tell, told) = mpsc::channel();
        // Without a limit: whoever waits for the frozen one does so for ever.
        std::thread::spawn(move || {
            let found = answer_of(vec![frozen, alive], &entry(45, "/", "/mnt"), None);
            tell.send(found.map(|daemon| daemon.status.dir)).unwrap();
        });
        let found = told.recv_timeout(Duration::from_secs(60)).expect("an answer");
        assert_eq!(found.as_deref(), Some(Path::new("/mnt")));
    }

    #[test]
    fn mounts_have_logs_of_their_own() {
        let paths = ["/a/b", "/a-b", "/a/-b", "/a-/b", "/a%2Db", "/mnt/soda", "/mnt/so da"];
        let names: std::collections::BTreeSet<String> =
            paths.iter().map(|path| file_name_of(Path::new(path))).collect();
        assert_eq!(names.len(), paths.len(), "{names:?}");
        assert_eq!(file_name_of(Path::new("/mnt/soda")), "mnt-soda");
        assert_eq!(file_name_of(Path::new("/mnt/my-data")), "mnt-my%2Ddata");
    }
}
