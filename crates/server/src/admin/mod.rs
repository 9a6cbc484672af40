//! What tools ask: `soda status`, `soda stats`, `soda lease ls`, `soda lease why`, `soda recover`; and the page for Prometheus.

mod locks;
mod paths;

use crate::call::ancestry::{ancestries, core_with_ancestries};
use crate::core::OWN_SESSION;
use crate::guard::CoreGuard;
use crate::memory::resident_memory;
use crate::metrics::{CallKind, Text};
use crate::net::{Backlog, Connection, Outbox, ReadError};
use crate::respond::{self, Leases};
use crate::shared::Shared;
use bytes::Bytes;
use paths::{paths_of, whereabouts};
use soda_lease::table::{Access, HolderInfo, Intent, Policy, Usage};
use soda_protocol::{
    AdminAnswer, AdminCall, Answer, BacklogReport, Call, DelegateInfo, Failure, Frame, FrameKind, HoleInfo,
    LeaseInfo, ObjectRef, ObjectUse, Request, ServerStatus, SessionBacklog, SessionInfo, WaitInfo, WhyInfo,
};
use soda_types::{Errno, Fid, FileKind, FsError, Grant, Mode, Scope, SessionId, Term};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Most leases in one answer.
const LEASES_MAX: u32 = 10_000;

/// Most objects in one answer.
const BUSIEST_MAX: u32 = 1000;

/// Serves a tool's connection to its end.
pub(crate) async fn serve(shared: Arc<Shared>, connection: Connection) -> ReadError {
    let outbox = connection.outbox().clone();
    let unsent_max = shared.config.limits.unsent_bytes;
    let backlog = Backlog::new(&shared.buffers);
    // Questions are answered one by one as they are read.
    let answer = move |frame, _| handle(&shared, &outbox, &frame);
    connection.serve(unsent_max, &backlog, None, answer).await
}

fn handle(shared: &Arc<Shared>, outbox: &Arc<Outbox>, frame: &Frame) -> ControlFlow<()> {
    if frame.kind != FrameKind::Request {
        return ControlFlow::Break(());
    }
    let tag = frame.tag;
    let call = match frame.message::<Request>() {
        Ok(Request { call: Call::Admin(call), .. }) => call,
        Ok(Request { call, .. }) => {
            let name = CallKind::from(&call).name();
            let failure = Failure::Unsupported(format!("{name}: not on an admin connection"));
            send(outbox, tag, &Err(failure));
            return ControlFlow::Continue(());
        }
        Err(error) => {
            send(outbox, tag, &Err(Failure::Unsupported(error.to_string())));
            return ControlFlow::Continue(());
        }
    };
    // Paths are searched for, which takes a while: others get another thread. One question of a connection at a time.
    tokio::task::block_in_place(|| {
        let started = std::time::Instant::now();
        let result = answer(shared, &call).map(Answer::Admin).map_err(Failure::Fs);
        shared.metrics.call(CallKind::Admin).latency.record(started.elapsed());
        send(outbox, tag, &result);
    });
    ControlFlow::Continue(())
}

fn send(outbox: &Outbox, tag: u64, result: &Result<Answer, Failure>) {
    outbox.push(respond::reply(tag, &respond::encode(result), Leases::NONE, Bytes::new()));
    outbox.flush();
}

fn answer(shared: &Shared, call: &AdminCall) -> Result<AdminAnswer, FsError> {
    match call {
        AdminCall::Status => shared.status().map(AdminAnswer::Status),
        AdminCall::Stats => Ok(AdminAnswer::Stats(shared.stats())),
        AdminCall::Leases { of, limit } => shared.leases(of.as_ref(), *limit).map(AdminAnswer::Leases),
        AdminCall::Busiest { limit } => Ok(AdminAnswer::Busiest(shared.busiest(*limit))),
        AdminCall::Writers(of) => Ok(AdminAnswer::Writers(shared.writers(of))),
        AdminCall::Locks { of, limit } => shared.locks(of, *limit).map(AdminAnswer::Locks),
        AdminCall::Paths(of) => Ok(AdminAnswer::Paths(whereabouts(&shared.volume, of))),
        AdminCall::Why(object) => shared.why(object).map(|why| AdminAnswer::Why(Box::new(why))),
    }
}

impl Shared {
    fn status(&self) -> Result<ServerStatus, FsError> {
        let stats = self.volume.statfs()?;
        let core = self.core();
        let now = core.now;
        let sessions = core.table.sessions(now).into_iter().filter(|info| info.session != OWN_SESSION);
        let sessions = sessions.filter_map(|info| {
            let entry = core.sessions.get(&info.session)?;
            Some(SessionInfo {
                session: info.session,
                name: entry.session.record.name.clone(),
                peer: entry.peer.clone(),
                connected: u32::from(entry.control.is_some())
                    + u32::try_from(entry.data.len()).unwrap_or(u32::MAX),
                left: info.left,
                leases: info.leases as u64,
                open: core.opens.count(info.session) as u64,
                locks: core.locks.count_of(info.session) as u64,
                backlog: entry.backlog.map(|(said, at)| SessionBacklog { said, ago: now.since(at) }),
            })
        });
        Ok(ServerStatus {
            software: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.started,
            uptime: now.since(self.started_at),
            data_dir: self.data_dir.display().to_string(),
            listen: self.local_addr.to_string(),
            term: self.config.term,
            grace: core.table.grace_left(now),
            volumes: vec![(self.volume.name().to_owned(), stats)],
            sessions: sessions.collect(),
            leases: core.table.len() as u64,
            waiting: core.table.waiting_count() as u64,
            stopped: self.volume.stopped(),
        })
    }

    /// Counters by name; those of the table have `lease.` before them, calls `calls.`.
    fn stats(&self) -> Vec<(String, u64)> {
        let mut stats = Vec::new();
        for kind in CallKind::ALL {
            let call = self.metrics.call(*kind);
            if call.latency.count() > 0 {
                let micros = u64::try_from(call.latency.sum().as_micros()).unwrap_or(u64::MAX);
                stats.push((format!("calls.{}", kind.name()), call.latency.count()));
                stats.push((format!("calls.{}.failed", kind.name()), call.failed.value()));
                stats.push((format!("calls.{}.total_us", kind.name()), micros));
            }
        }
        stats.extend(self.metrics.counters().into_iter().map(|(name, _, value)| (name.to_owned(), value)));
        let counters = self.core().table.counters().list();
        stats.extend(counters.into_iter().map(|(name, _, value)| (format!("lease.{name}"), value)));
        for (name, uses) in self.volume.cache_uses() {
            stats.push((format!("cache.{name}.hits"), uses.hits));
            stats.push((format!("cache.{name}.misses"), uses.misses));
        }
        stats.extend(self.gauges().into_iter().map(|(name, _, value)| (name.to_owned(), value)));
        stats
    }

    fn gauges(&self) -> Vec<(&'static str, &'static str, u64)> {
        let memory = resident_memory();
        let core = self.core();
        let now = core.now;
        let connected = core.sessions.values().filter(|entry| entry.control.is_some()).count();
        let untold = backlog_of_all(&core);
        vec![
            ("leases", "Leases held", core.table.len() as u64),
            ("lease_objects", "Objects the lease table knows", core.table.object_count() as u64),
            ("waiting", "Operations that wait for admission", core.table.waiting_count() as u64),
            ("sessions", "Sessions known", core.sessions.len() as u64),
            ("sessions_connected", "Sessions with a control connection", connected as u64),
            ("reserved_bytes", "Bytes that sessions have reserved", self.space.total()),
            ("request_bytes", "Bytes of requests that have no answer yet", self.intake.held()),
            ("connection_bytes", "Bytes in the buffers of all connections", self.buffers.held()),
            ("backlog_records", "Changes that clients have not told yet, as they said last", untold.records),
            ("backlog_bytes", "What those changes weigh, bytes", untold.bytes),
            ("backlog_oldest_ms", "How long the oldest of those changes has waited", millis(untold.age)),
            ("lock_waits", "Lock requests that wait", core.lock_waits.len() as u64),
            ("orphans", "Inodes without a name that are open", core.orphans.len() as u64),
            ("grace_ms", "What is left of the grace period", core.table.grace_left(now).map_or(0, millis)),
            (
                "connections_open",
                "Connections",
                self.connections.load(std::sync::atomic::Ordering::Relaxed) as u64,
            ),
            (
                "store_stopped",
                "1: the store takes no changes any more, until the server is started anew",
                u64::from(self.volume.stopped().is_some()),
            ),
            ("memory_bytes", "Bytes of memory that the server's process has", memory),
        ]
    }

    /// The page for Prometheus.
    pub(crate) fn metrics_page(&self) -> String {
        let mut text = Text::default();
        for (name, help, value) in self.gauges() {
            text.gauge(name, help, value);
        }
        for (name, help, value) in self.core().table.counters().list() {
            let full = format!("lease_{name}");
            match name.starts_with("longest_") {
                true => text.gauge(&full, help, value),
                false => text.counter(&full, help, value),
            }
        }
        if let Ok(stats) = self.volume.statfs() {
            text.gauge("volume_bytes", "Bytes the volume could hold", stats.total_bytes);
            text.gauge("volume_free_bytes", "Bytes that are free", stats.free_bytes);
            let used = stats.total_inodes.saturating_sub(stats.free_inodes);
            text.gauge("volume_inodes", "Inodes in use", used);
        }
        text.head("soda_cache_uses_total", "counter", "Look-ups in the server's caches");
        for (name, uses) in self.volume.cache_uses() {
            text.sample("soda_cache_uses_total", &format!("cache=\"{name}\",found=\"yes\""), uses.hits);
            text.sample("soda_cache_uses_total", &format!("cache=\"{name}\",found=\"no\""), uses.misses);
        }
        self.metrics.render(&mut text);
        text.into_string()
    }

    fn leases(&self, of: Option<&ObjectRef>, limit: u32) -> Result<Vec<LeaseInfo>, FsError> {
        let limit = limit.min(LEASES_MAX) as usize;
        let fid = of.map(|object| self.find(object)).transpose()?;
        let mut leases: Vec<LeaseInfo> = {
            let core = match fid {
                Some(fid) => self.core_that_knows(fid),
                None => self.core(),
            };
            match fid {
                Some(fid) => holders(&core, fid),
                None => {
                    let views = core.table.leases(core.now, limit).into_iter();
                    views.map(|view| lease_info(&core, view.grant, &view.holder)).collect()
                }
            }
        };
        leases.truncate(limit);
        leases.sort_by_key(|lease| (lease.grant.fid, lease.session));
        let paths = paths_of(&self.volume, leases.iter().map(|lease| lease.grant.fid));
        for lease in &mut leases {
            lease.path = paths.get(&lease.grant.fid).cloned();
        }
        Ok(leases)
    }

    fn busiest(&self, limit: u32) -> Vec<ObjectUse> {
        let mut busiest: Vec<ObjectUse> = {
            let core = self.core();
            let found = core.table.busiest(core.now, limit.min(BUSIEST_MAX) as usize).into_iter();
            let object = |(fid, usage): (Fid, Usage)| ObjectUse {
                fid,
                path: None,
                reads_per_s: usage.reads_per_s,
                writes_per_s: usage.writes_per_s,
                clients: usage.clients,
                is_leased: !matches!(
                    core.table.policy(core.now, fid),
                    Policy::NoLeases | Policy::TooManyWrites(_)
                ),
            };
            found.map(object).collect()
        };
        let paths = paths_of(&self.volume, busiest.iter().map(|object| object.fid));
        for object in &mut busiest {
            object.path = paths.get(&object.fid).cloned();
        }
        busiest
    }

    fn writers(&self, of: &[Fid]) -> Vec<u32> {
        let core = self.core();
        let of = of.iter().take(BUSIEST_MAX as usize);
        of.map(|fid| core.table.rates(core.now, *fid).map_or(0, |usage| usage.writers)).collect()
    }

    fn why(&self, object: &ObjectRef) -> Result<WhyInfo, FsError> {
        let fid = self.find(object)?;
        let attr = self.volume.getattr(fid)?;
        let path = paths_of(&self.volume, [fid]).remove(&fid);
        let mut core = self.core_that_knows(fid);
        let now = core.now;
        let name_of = |session| name_of(&core, session);
        let waiting = core.table.waiting(now, fid).into_iter().map(|wait| {
            let operation = core.waiting.get(&wait.op).map_or("unknown", |waiting| waiting.kind.name());
            WaitInfo {
                session: wait.session,
                name: name_of(wait.session),
                operation: operation.to_owned(),
                wants: match wait.intent {
                    Intent::Read => Mode::Read,
                    Intent::Change => Mode::Write,
                },
                waited: wait.waited,
                blocked_by: wait.blocked_by,
                at_most: wait.at_latest,
            }
        });
        let delegate = core.delegations.delegate(fid).map(|(session, recalled)| DelegateInfo {
            session,
            name: name_of(session),
            recalled_for: recalled.map(|since| now.since(since)),
        });
        let mut holes = holes(&core, fid);
        let usage = core.table.rates(now, fid);
        let mut holders = holders(&core, fid);
        for holder in holders.iter_mut().filter(|holder| holder.grant.fid == fid) {
            holder.path = path.clone();
        }
        let waiting = waiting.collect();
        let mut policy = core.table.policy(now, fid).to_string();
        if attr.kind != FileKind::Directory && core.table.may_inquire(now, OWN_SESSION, &Access::read(fid)) {
            policy += "; who only asks for attributes is told them by the holder";
        }
        drop(core);
        let deep = holders.iter().filter(|holder| holder.grant.fid != fid).map(|holder| holder.grant.fid);
        let roots = paths_of(&self.volume, deep.chain(holes.iter().map(|hole| hole.root)));
        for holder in holders.iter_mut().filter(|holder| holder.grant.fid != fid) {
            holder.path = roots.get(&holder.grant.fid).cloned();
        }
        for hole in &mut holes {
            hole.path = roots.get(&hole.root).cloned();
        }
        Ok(WhyInfo {
            fid,
            attr,
            holders,
            holes,
            lock_delegate: delegate,
            waiting,
            reads_per_s: usage.map_or(0.0, |usage| usage.reads_per_s),
            writes_per_s: usage.map_or(0.0, |usage| usage.writes_per_s),
            clients: usage.map_or(0, |usage| usage.clients),
            policy,
            path,
        })
    }

    /// The core, whose lease table knows which deep leases reach the inode, also where no call has been about it.
    fn core_that_knows(&self, fid: Fid) -> CoreGuard<'_> {
        let mut ancestries = ancestries(self, [fid]);
        let mut core = core_with_ancestries(self, &mut ancestries).unwrap_or_else(|| self.core());
        for (fid, place) in &ancestries {
            core.table.learn_place(*fid, place);
        }
        core
    }

    fn find(&self, object: &ObjectRef) -> Result<Fid, FsError> {
        match object {
            ObjectRef::Fid(fid) => Ok(*fid),
            ObjectRef::Path { volume, names } => {
                if volume != self.volume.name() {
                    return Err(FsError::new(Errno::NoEntry, format!("there is no volume {volume:?}")));
                }
                names.iter().try_fold(self.volume.root(), |parent, name| {
                    let found = self.volume.resolve(parent, name)?;
                    let missing = || FsError::new(Errno::NoEntry, format!("there is no {name:?} on the way"));
                    found.map(|(fid, _)| fid).ok_or_else(missing)
                })
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What all sessions together have not told; what was waiting when they said so has waited since. What a client says may be any
/// number.
fn backlog_of_all(core: &CoreGuard<'_>) -> BacklogReport {
    let said = core.sessions.values().filter_map(|entry| entry.backlog);
    said.filter(|(report, _)| report.records > 0).fold(BacklogReport::default(), |all, (report, at)| {
        BacklogReport {
            records: all.records.saturating_add(report.records),
            bytes: all.bytes.saturating_add(report.bytes),
            age: all.age.max(report.age.saturating_add(core.now.since(at))),
        }
    })
}

fn name_of(core: &CoreGuard<'_>, session: SessionId) -> String {
    let entry = core.sessions.get(&session);
    entry.map_or_else(|| "the server itself".to_owned(), |entry| entry.session.record.name.clone())
}

fn holes(core: &CoreGuard<'_>, fid: Fid) -> Vec<HoleInfo> {
    let found = core.table.deep_holders_without(core.now, fid).into_iter();
    let hole = |(grant, holder, kept): (Grant, HolderInfo, Option<Mode>)| {
        let LeaseInfo { holder: name, .. } = lease_info(core, grant, &holder);
        HoleInfo {
            session: holder.session,
            holder: name,
            root: grant.fid,
            path: None,
            mode: grant.mode,
            kept,
        }
    };
    found.map(hole).collect()
}

fn holders(core: &CoreGuard<'_>, fid: Fid) -> Vec<LeaseInfo> {
    let holders = core.table.holders(core.now, fid).into_iter();
    let leases = holders.map(|holder| {
        let grant = core.table.lease(holder.session, fid).unwrap_or(Grant {
            fid,
            scope: Scope::Node,
            mode: holder.mode,
            epoch: holder.epoch,
            term: Term::Session,
        });
        lease_info(core, grant, &holder)
    });
    let deep = core.table.deep_holders(core.now, fid).into_iter();
    let deep = deep.map(|(grant, holder)| lease_info(core, grant, &holder));
    leases.chain(deep).collect()
}

fn lease_info(core: &CoreGuard<'_>, grant: Grant, holder: &HolderInfo) -> LeaseInfo {
    let name = core.sessions.get(&holder.session).map(|entry| entry.session.record.name.clone());
    let holes = match grant.scope {
        Scope::Node => 0,
        Scope::Subtree => core.table.holes(holder.session, grant.fid).len() as u64,
    };
    LeaseInfo {
        grant,
        session: holder.session,
        holder: name.unwrap_or_default(),
        path: None,
        recalled_for: holder.recalled_for,
        held_for: holder.held_for,
        holes,
    }
}
