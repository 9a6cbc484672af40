//! `soda lease ls` and `soda lease why`: who holds what, who waits for whom.

mod here;
mod locks;
#[cfg(test)]
mod tests;

use crate::admin::{Admin, server_or_default};
use crate::args::{LeaseCommand, LeaseLsArgs, LeaseWhyArgs};
use crate::commands::{print, print_json};
use crate::control;
use crate::error::CliError;
use crate::spec::Spec;
use crate::table::Table;
use crate::units::{count, show_duration, show_size};
use crate::within::in_mount;
use here::{Said, changes_text, covered_text, locks_text};
use locks::{delegate_text, held_text, lock_waits_text};
use serde::Serialize;
use soda_client::ChangesView;
use soda_fuse::MountEntry;
use soda_protocol::{LeaseInfo, LocksInfo, ObjectRef, SessionInfo, WaitInfo, WhyInfo};
use soda_types::{Mode, Name, Scope, SessionId};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Most file locks that are listed, and most who wait for one.
const LOCKS_MAX: u32 = 100;

pub(crate) fn run(command: &LeaseCommand) -> Result<(), CliError> {
    match command {
        LeaseCommand::Ls(arguments) => ls(arguments),
        LeaseCommand::Why(arguments) => why(arguments),
    }
}

fn ls(arguments: &LeaseLsArgs) -> Result<(), CliError> {
    let (server, object) = match &arguments.path {
        Some(path) => {
            let place = resolve(path)?;
            (place.server.clone(), Some(place.object()))
        }
        None => (server_or_default(arguments.server.server.as_deref())?, None),
    };
    let leases = Admin::connect(&server)?.leases(object, arguments.limit)?;
    match arguments.json {
        true => print_json(&leases),
        false if leases.is_empty() => print("No leases.\n"),
        false => print(&lease_table(&leases).to_string()),
    }
}

fn why(arguments: &LeaseWhyArgs) -> Result<(), CliError> {
    let place = resolve(&arguments.path)?;
    let told = ask_why(&place);
    let changes = place.mount.as_ref().and_then(|mount| control::changes(mount, &place.names));
    let (explained, no_answer) = explain(told, changes)?;
    match arguments.json {
        true => print_json(&explained)?,
        false => print(&explained.text())?,
    }
    no_answer
}

/// What the server says.
struct Answers {
    info: WhyInfo,
    /// `None`: it is of a version that does not tell.
    file_locks: Option<LocksInfo>,
    sessions: Vec<SessionInfo>,
}

fn ask_why(place: &Place) -> Result<Answers, CliError> {
    let mut admin = Admin::connect(&place.server)?;
    let info = admin.why(place.object())?;
    let file_locks = admin.locks(ObjectRef::Fid(info.fid), LOCKS_MAX)?;
    Ok(Answers { info, file_locks, sessions: admin.status()?.sessions })
}

/// With what is to be said after it.
///
/// # Errors
/// The server's, if there is nothing to say.
fn explain(
    told: Result<Answers, CliError>,
    changes: Option<ChangesView>,
) -> Result<(Explained, Result<(), CliError>), CliError> {
    let alone = |changes, is_silent| Explained {
        info: None,
        file_locks: None,
        is_silent,
        sessions: Vec::new(),
        changes: Some(changes),
    };
    match (told, changes) {
        (Ok(Answers { info, file_locks, sessions }), changes) => {
            let info = Some(info);
            Ok((Explained { info, file_locks, is_silent: false, sessions, changes }, Ok(())))
        }
        (Err(error @ CliError::Unreachable { .. }), Some(changes)) => Ok((alone(changes, true), Err(error))),
        // Made here: the server has not heard of it.
        (Err(CliError::Failed(_)), Some(changes)) if changes.waiting > 0 => {
            Ok((alone(changes, false), Ok(())))
        }
        (Err(error), _) => Err(error),
    }
}

/// What a path means.
struct Place {
    server: String,
    volume: String,
    names: Vec<Name>,
    /// Where it is mounted, if the path leads there.
    mount: Option<MountEntry>,
}

impl Place {
    fn object(&self) -> ObjectRef {
        ObjectRef::Path { volume: self.volume.clone(), names: self.names.clone() }
    }
}

/// A path in a mount of this machine, or `HOST:PORT/VOLUME/PATH`.
fn resolve(path: &Path) -> Result<Place, CliError> {
    if let Some((mount, rest)) = in_mount(path, &control::table()?)? {
        let spec: Spec = mount.source.parse().map_err(CliError::Usage)?;
        let names = names(&in_volume(mount, &rest)?)?;
        return Ok(Place { server: spec.server, volume: spec.volume, names, mount: Some(mount.clone()) });
    }
    from_spec(path).ok_or_else(|| {
        CliError::Usage(format!("{} is neither in a Soda mount nor HOST:PORT/VOLUME/PATH", path.display()))
    })
}

/// The path in the volume of what is `rest` below a mount's directory.
fn in_volume(mount: &MountEntry, rest: &Path) -> Result<PathBuf, CliError> {
    if mount.root.as_os_str().as_bytes().ends_with(b"//deleted") {
        let dir = mount.dir.display();
        return Err(CliError::Failed(format!("what {dir} is a bind mount of was removed: it has no path")));
    }
    Ok(mount.root.join(rest))
}

fn from_spec(path: &Path) -> Option<Place> {
    let text = path.to_str()?;
    let mut parts = text.splitn(3, '/');
    // Without a port it would look like a path that was mistyped.
    let server = parts.next().filter(|server| server.contains(':'))?;
    let spec: Spec = format!("{server}/{}", parts.next()?).parse().ok()?;
    let names = names(Path::new(parts.next().unwrap_or(""))).ok()?;
    Some(Place { server: spec.server, volume: spec.volume, names, mount: None })
}

fn names(path: &Path) -> Result<Vec<Name>, CliError> {
    path.components()
        .filter(|component| !matches!(component, Component::CurDir | Component::RootDir))
        .map(|component| {
            Name::new(component.as_os_str().as_bytes())
                .map_err(|error| CliError::Usage(format!("{}: {error}", path.display())))
        })
        .collect()
}

fn lease_table(leases: &[LeaseInfo]) -> Table {
    let mut table = Table::new(["object", "lease", "held for", "session", "holder", "recall", "path"]);
    for lease in leases {
        table.row([
            lease.grant.fid.to_string(),
            scope_text(lease),
            show_duration(lease.held_for),
            lease.session.to_string(),
            lease.holder.clone(),
            recall_text(lease),
            lease.path.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    table
}

/// What the server says of an object, and of the sessions that have to do with it; and this machine's mount.
#[derive(Serialize)]
struct Explained {
    /// `None`: the server has not heard of it, or does not answer.
    #[serde(flatten)]
    info: Option<WhyInfo>,
    /// `None`: the server has not heard of it, or is of a version that does not tell.
    file_locks: Option<LocksInfo>,
    #[serde(skip)]
    is_silent: bool,
    #[serde(skip)]
    sessions: Vec<SessionInfo>,
    /// `None`: the path does not lead into a mount of this machine whose daemon answers.
    changes: Option<ChangesView>,
}

impl Explained {
    /// From what is asked most often to what explains it: who waits, who holds it, whether caching it pays.
    fn text(&self) -> String {
        let explained = |changes: &ChangesView| {
            format!(
                "lease   {}\nwrites  {}\nlocks   {}\n",
                covered_text(changes, self.said()),
                changes_text(changes),
                locks_text(changes, self.said()),
            )
        };
        let changes = self.changes.as_ref().map(explained).unwrap_or_default();
        match self.said() {
            Said::That(info) => format!("{}{changes}", self.server_text(info)),
            Said::HasNotHeardOfIt => {
                format!("It was made here, and the server has not heard of it yet.\n\n{changes}")
            }
            Said::NoAnswer => format!("What this machine knows of it by itself:\n\n{changes}\n"),
        }
    }

    fn said(&self) -> Said<'_> {
        match &self.info {
            Some(info) => Said::That(info),
            None if self.is_silent => Said::NoAnswer,
            None => Said::HasNotHeardOfIt,
        }
    }

    fn is_covered_deep(&self) -> bool {
        let own = self.changes.as_ref().and_then(|changes| changes.lease);
        own.is_some_and(|lease| lease.scope == Scope::Subtree)
    }

    fn server_text(&self, info: &WhyInfo) -> String {
        let mut out = format!(
            "{} ({} {}, {})\n\n",
            info.path.as_deref().unwrap_or("an object without a known path"),
            format!("{:?}", info.attr.kind).to_lowercase(),
            info.fid,
            show_size(info.attr.size),
        );
        info.waiting.iter().for_each(|wait| out.push_str(&wait_text(wait, info, self)));
        match &self.file_locks {
            Some(locks) if !locks.waiting.is_empty() => out.push_str(&lock_waits_text(locks, info)),
            _ if info.waiting.is_empty() => out.push_str("Nobody waits for it.\n"),
            _ => {}
        }
        match info.holders.is_empty() {
            // The table of the server need not know what deep leases cover.
            true if self.is_covered_deep() => out.push_str("\nNobody holds a lease on it alone.\n"),
            true => out.push_str("\nNobody holds a lease on it: whoever reads it asks the server.\n"),
            false => out.push_str(&format!("\n{}", holder_table(&info.holders))),
        }
        match &self.file_locks {
            Some(locks) => out.push_str(&held_text(locks)),
            None => out.push_str("\nThe server is of a version that does not tell of file locks.\n"),
        }
        out.push_str(&format!("\nlately  {}\npolicy  {}\n", usage_text(info), info.policy));
        // Else it is said with what this machine does.
        if let (None, Some(delegate)) = (&self.changes, &info.lock_delegate) {
            out.push_str(&format!("locks   {}\n", delegate_text(delegate)));
        }
        out
    }

    /// `at_most`: the wait's. It is for a holder that goes on renewing; one that does not is waited for until its session ends.
    fn blocker_text(&self, info: &WhyInfo, session: SessionId, at_most: Option<Duration>) -> String {
        let left = self.sessions.iter().find(|status| status.session == session).map(|status| status.left);
        let left = left.map(|left| format!("\n    If it is gone: {} more.", show_duration(left)));
        let at_most = at_most.map(|time| {
            format!("\n    If it is there and does not answer: at most {} more.", show_duration(time))
        });
        let ends = left.into_iter().chain(at_most).collect::<String>();
        match info.holders.iter().find(|holder| holder.session == session) {
            Some(LeaseInfo { holder, grant, recalled_for: Some(since), .. }) => format!(
                "  {holder} was asked {} ago to give its {} lease up, and has not answered.{ends}\n",
                show_duration(*since),
                mode_text(grant.mode)
            ),
            Some(LeaseInfo { holder, grant, .. }) => {
                format!(
                    "  {holder} holds a {} lease, and is about to be asked for it.\n",
                    mode_text(grant.mode)
                )
            }
            None => format!("  An operation of session {session} on it is under way.\n"),
        }
    }
}

fn mode_text(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "read",
        Mode::Write => "write",
    }
}

fn wait_text(wait: &WaitInfo, info: &WhyInfo, explained: &Explained) -> String {
    let mut out = format!(
        "{} waits to {}: {} so far{}.\n",
        wait.name,
        wait.operation,
        show_duration(wait.waited),
        wait.at_most.map_or_else(String::new, |left| format!(", at most {} more", show_duration(left))),
    );
    out.push_str(match wait.wants {
        Mode::Read => "  To read it, nobody else may be changing it.\n",
        Mode::Write => "  To change it, nobody else may have it cached.\n",
    });
    if wait.blocked_by.is_empty() {
        out.push_str(
            "  Nobody is in its way. A server that was restarted lets nothing begin before its clients are back, or their \
             time is over.\n",
        );
    }
    wait.blocked_by.iter().for_each(|session| {
        out.push_str(&explained.blocker_text(info, *session, wait.at_most));
    });
    out
}

fn holder_table(holders: &[LeaseInfo]) -> Table {
    let mut table = Table::new(["holder", "lease", "held for", "recall", "session"]);
    for lease in holders {
        table.row([
            lease.holder.clone(),
            reach_text(lease),
            show_duration(lease.held_for),
            recall_text(lease),
            lease.session.to_string(),
        ]);
    }
    table
}

/// A lease in few words: how it reaches, its mode and its epoch.
fn scope_text(lease: &LeaseInfo) -> String {
    let text = format!("{} {}", lease.grant.mode, lease.grant.epoch);
    match lease.grant.scope {
        Scope::Node => text,
        Scope::Subtree => format!("deep {text}, {}", count(lease.holes, "hole")),
    }
}

/// The same to who looks at one object.
fn reach_text(lease: &LeaseInfo) -> String {
    let mode = mode_text(lease.grant.mode);
    let root = lease.path.clone().unwrap_or_else(|| lease.grant.fid.to_string());
    match lease.grant.scope {
        Scope::Node => mode.to_owned(),
        Scope::Subtree => format!("{mode}, of all below {root}; {}", count(lease.holes, "hole")),
    }
}

fn recall_text(lease: &LeaseInfo) -> String {
    lease.recalled_for.map_or_else(|| "-".into(), |time| format!("no answer for {}", show_duration(time)))
}

/// What reached the server lately: reads that a cache answered are not among it. Equation (8) of the SODA paper compares R/W
/// with N-1, for reads that are independent of each other; the server's policy counts hits and recalls, and is told beside
/// it.
fn usage_text(info: &WhyInfo) -> String {
    let (reads, writes) = (info.reads_per_s, info.writes_per_s);
    let rates = format!(
        "{reads:.2} reads/s and {writes:.2} writes/s came to the server, from {}",
        count(info.clients, "client")
    );
    match writes > 0.0 {
        true => format!("{rates}: R/W {:.1}, N-1 {}", reads / writes, info.clients.saturating_sub(1)),
        false => rates,
    }
}
