//! The first frame of a connection: whether it is welcome, and as which session's.

use crate::clock;
use crate::core::{Entry, Standing};
use crate::link::{Lane, Link};
use crate::net::{Backlog, Connection, Share};
use crate::random::random;
use crate::records::SessionRecord;
use crate::respond::{self, Leases};
use crate::session::Session;
use crate::shared::Shared;
use bytes::Bytes;
use soda_protocol::{
    Answer, Call, Failure, Frame, FrameError, FrameKind, Hello, LeaseWait, MAX_IO, PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN, Request, Role, SessionKey, SessionWelcome, Standing as WireStanding, Welcome,
};
use soda_storage::crash;
use soda_types::{ClientId, ObjectTerm, Scope, SessionId};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Whether another connection may stay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    Free,
    Full,
}

/// What a connection is after its hello.
#[derive(Debug)]
pub(crate) enum Accepted {
    Session(Arc<Link>),
    Admin,
}

/// Answers the first frame of a connection. What it becomes then has its welcome queued before anything else; a refusal is the
/// caller's to send.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    connection: &Connection,
    frame: &Frame,
    peer: SocketAddr,
    room: Room,
) -> Result<Accepted, Failure> {
    let tag = frame.tag;
    let hello = check_hello(shared, frame, room)?;
    let protocol = hello.protocol_max.min(PROTOCOL_VERSION);
    match hello.role {
        Role::Admin => {
            let welcome = welcome(shared, protocol, None);
            connection.outbox().push(respond::reply(
                tag,
                &respond::encode(&Ok(welcome)),
                Leases::NONE,
                Bytes::new(),
            ));
            Ok(Accepted::Admin)
        }
        Role::Data(key) => shared.attach_data(connection, tag, protocol, &key),
        Role::Control { client, name, volume, resume, lease_term, widest_lease, lease_wait } => {
            let hello = ControlHello {
                protocol,
                client,
                name,
                volume,
                resume,
                lease_term,
                widest_lease,
                lease_wait,
                peer,
            };
            shared.attach_control(connection, tag, hello).await
        }
    }
}

fn check_hello(shared: &Shared, frame: &Frame, room: Room) -> Result<Hello, Failure> {
    let refuse = |why: String| Err(Failure::Refused(why));
    let software = env!("CARGO_PKG_VERSION");
    let request: Result<Request, FrameError> = frame.message();
    let Ok(Request { call: Call::Hello(hello), .. }) = request else {
        return refuse(format!(
            "a connection starts with a hello that this server (soda {software}, protocol {PROTOCOL_VERSION_MIN} to \
             {PROTOCOL_VERSION}) understands; is the other side of another version?"
        ));
    };
    if frame.kind != FrameKind::Request || hello.protocol_min > hello.protocol_max {
        return refuse("a hello that makes no sense".to_owned());
    }
    if hello.protocol_min > PROTOCOL_VERSION || hello.protocol_max < PROTOCOL_VERSION_MIN {
        let older = if hello.protocol_min > PROTOCOL_VERSION { "server" } else { "client" };
        return refuse(format!(
            "no common protocol: the server (soda {software}) speaks {PROTOCOL_VERSION_MIN} to {PROTOCOL_VERSION}, the \
             client (soda {}) {} to {}. Update the {older}",
            hello.software, hello.protocol_min, hello.protocol_max
        ));
    }
    if room == Room::Full {
        return refuse(format!(
            "the server has its maximum of {} connections; unmount somewhere, or raise the limit",
            shared.config.limits.connections
        ));
    }
    Ok(hello)
}

/// What a control connection asked for.
struct ControlHello {
    /// The version that both sides speak.
    protocol: u16,
    client: ClientId,
    name: String,
    volume: String,
    resume: Option<SessionKey>,
    lease_term: Option<ObjectTerm>,
    widest_lease: Scope,
    lease_wait: LeaseWait,
    peer: SocketAddr,
}

impl Shared {
    fn attach_data(
        self: &Arc<Self>,
        connection: &Connection,
        tag: u64,
        protocol: u16,
        key: &SessionKey,
    ) -> Result<Accepted, Failure> {
        let mut core = self.core();
        let now = core.now;
        let entry = core.sessions.get_mut(&key.session).filter(|entry| entry.session.is_proved_by(key));
        entry.ok_or(Failure::SessionEnded)?;
        core.table.handle_traffic(now, key.session).map_err(|_| Failure::SessionEnded)?;
        let entry = core.sessions.get_mut(&key.session).ok_or(Failure::SessionEnded)?;
        let session = entry.session.clone();
        entry.data.push(connection.outbox().clone());
        let standing = entry.standing.on_wire();
        let welcome = welcome(self, protocol, Some(self.session_welcome(&session, standing)));
        let outbox = connection.outbox().clone();
        core.send(&outbox, respond::reply(tag, &respond::encode(&Ok(welcome)), Leases::NONE, Bytes::new()));
        drop(core);
        Ok(Accepted::Session(self.link(session, connection, Lane::Data)))
    }

    async fn attach_control(
        self: &Arc<Self>,
        connection: &Connection,
        tag: u64,
        hello: ControlHello,
    ) -> Result<Accepted, Failure> {
        if hello.volume != self.volume.name() {
            let (wanted, have) = (&hello.volume, self.volume.name());
            return Err(Failure::Refused(format!(
                "there is no volume {wanted:?} here; this server has {have:?}"
            )));
        }
        let resumed = hello.resume.as_ref().and_then(|key| self.resume(connection, tag, key, &hello));
        if let Some(session) = resumed {
            return Ok(Accepted::Session(self.link(session, connection, Lane::Control)));
        }
        let _place = self.places.enter().await;
        let session = self.open_session(connection, tag, &hello)?;
        Ok(Accepted::Session(self.link(session, connection, Lane::Control)))
    }

    /// Goes on with a session over a new connection; `None` if it has ended.
    fn resume(
        &self,
        connection: &Connection,
        tag: u64,
        key: &SessionKey,
        hello: &ControlHello,
    ) -> Option<Arc<Session>> {
        let mut core = self.core();
        let now = core.now;
        let entry = core.sessions.get(&key.session).filter(|entry| entry.session.is_proved_by(key))?;
        let session = entry.session.clone();
        core.table.handle_traffic(now, session.id).ok()?;
        core.table.set_object_term(session.id, hello.lease_term);
        core.table.set_widest(session.id, hello.widest_lease);
        session.set_lease_wait(hello.lease_wait);
        let entry = core.sessions.get_mut(&key.session)?;
        let older = entry.control.replace(connection.outbox().clone());
        entry.silent_since = None;
        entry.peer = hello.peer.to_string();
        let standing = entry.standing.on_wire();
        if let Some(older) = older {
            core.forget_lock_waits_on(session.id, older.id());
            older.close();
        }
        self.metrics.sessions_resumed.add(1);
        tracing::info!(session = %session.id, name = session.record.name, peer = %hello.peer, ?standing, "session goes on");
        let welcome = welcome(self, hello.protocol, Some(self.session_welcome(&session, standing)));
        let outbox = connection.outbox().clone();
        core.send(&outbox, respond::reply(tag, &respond::encode(&Ok(welcome)), Leases::NONE, Bytes::new()));
        core.table.handle_reconnect(now, session.id);
        core.recall_locks_again(session.id);
        core.settle();
        crash::point("server.session-resumed");
        Some(session)
    }

    /// Opens a new session; it is in the journal when this returns.
    fn open_session(
        &self,
        connection: &Connection,
        tag: u64,
        hello: &ControlHello,
    ) -> Result<Arc<Session>, Failure> {
        self.make_room_for_a_session()?;
        let cannot = |cause: String| Failure::Refused(format!("the session could not be stored: {cause}"));
        let record = SessionRecord {
            client: hello.client,
            secret: random().map_err(|error| cannot(error.to_string()))?,
            name: hello.name.chars().take(256).collect(),
            opened: clock::calendar(),
        };
        let id = self.register_session(&record).map_err(|error| cannot(error.to_string()))?;
        let mut core = self.core();
        let now = core.now;
        let session = Arc::new(Session::new(id, record, self.config.limits.slots));
        let mut entry = Entry::new(session.clone(), Standing::Current, now);
        entry.control = Some(connection.outbox().clone());
        entry.silent_since = None;
        entry.peer = hello.peer.to_string();
        core.sessions.insert(id, entry);
        core.table.open_session(now, id);
        core.table.set_object_term(id, hello.lease_term);
        core.table.set_widest(id, hello.widest_lease);
        session.set_lease_wait(hello.lease_wait);
        self.metrics.sessions_opened.add(1);
        tracing::info!(session = %id, name = session.record.name, client = %hello.client, peer = %hello.peer, "session opened");
        let welcome = welcome(self, hello.protocol, Some(self.session_welcome(&session, WireStanding::New)));
        let outbox = connection.outbox().clone();
        core.send(&outbox, respond::reply(tag, &respond::encode(&Ok(welcome)), Leases::NONE, Bytes::new()));
        core.settle();
        Ok(session)
    }

    /// # Errors
    /// All sessions that there may be are in use.
    fn make_room_for_a_session(&self) -> Result<(), Failure> {
        let most = self.config.limits.sessions;
        let mut core = self.core();
        let now = core.now;
        if core.sessions.len() < most {
            return Ok(());
        }
        // In a grace period nobody has been away for long.
        let is_away = |id: &SessionId| core.grace_left().is_none() && core.table.is_expired(now, *id);
        let away = core.sessions.iter().filter(|(id, _)| is_away(id));
        let away = away.filter_map(|(id, entry)| Some((entry.silent_since?, *id))).min();
        let Some((since, session)) = away else {
            return Err(Failure::Refused(format!(
                "the server has its maximum of {most} sessions, and all of them are in use; unmount somewhere"
            )));
        };
        tracing::warn!(%session, away_for = ?now.since(since), most,
            "session forgotten: its client is away, and there may be no more sessions");
        core.table.close_session(now, session);
        core.end_session(session);
        core.settle();
        Ok(())
    }

    fn link(&self, session: Arc<Session>, connection: &Connection, lane: Lane) -> Arc<Link> {
        let outbox = connection.outbox().clone();
        let share = Share::new(&self.intake, &session.account);
        // Nothing is carried out any more for one that has ended meanwhile.
        let digests = self.core().sessions.get(&session.id).map(|entry| entry.digests.clone());
        Arc::new(Link {
            session,
            digests: digests.unwrap_or_default(),
            outbox,
            share,
            lane,
            waiting: AtomicUsize::new(0),
            waiting_max: self.config.limits.waiting_per_connection,
            backlog: Backlog::new(&self.buffers),
            metrics: self.metrics.clone(),
        })
    }

    fn session_welcome(&self, session: &Session, standing: WireStanding) -> SessionWelcome {
        SessionWelcome {
            key: session.key(),
            standing,
            root: self.volume.root(),
            term: self.config.term,
            slots: self.config.limits.slots,
            max_io: MAX_IO,
            stored: session.slots().stored(),
            calendar: clock::calendar(),
        }
    }
}

impl Standing {
    fn on_wire(self) -> WireStanding {
        match self {
            Standing::Current => WireStanding::Resumed,
            Standing::Reclaiming => WireStanding::Reclaim,
        }
    }
}

fn welcome(shared: &Shared, protocol: u16, session: Option<SessionWelcome>) -> Answer {
    Answer::Welcome(Welcome {
        protocol,
        software: env!("CARGO_PKG_VERSION").to_owned(),
        boot: shared.boot,
        session,
    })
}
