//! The logs that crashed clients left in the cache directory: sent to the server before a new client begins its own life.
//!
//! A session outlives the connection of its client by courtesy, and with it its leases: until somebody needs them, nobody
//! has seen what they cover. So the replay goes on with the *session* of the log (its key lies in the log), tells the
//! server what remains, in the order of the log and each digest under its identity, has it made durable, and says goodbye.
//! The new client then opens a session of its own, with empty caches: there is no moment at which it would have to
//! know what the other one had cached.
//!
//! What the server has is found by three facts: the log says of each digest that it is about to be sent before it is; the
//! server's welcome says which digest its store has last; and a digest that is sent again is the same operation to it.
//!
//! | the session | what is done |
//! | --- | --- |
//! | goes on | the digests without an answer are sent again, then the rest; if there is nothing to tell it is ended all the same: nobody waits for its leases |
//! | goes on in a new run of the server | what the server lost is to be sent again, too, if nothing in between went through to the server; the leases are reclaimed, each at the version that the log knows |
//! | is over: somebody needed its leases | nothing is applied; the log is kept for people (`soda recover`) |
//!
//! If the server has no room for it, or its disk fails, the mount fails: the log stays where it is, and so does the session,
//! which is what lets the next mount tell it. So does it if the server refuses the hello (it has its maximum of connections, or
//! speaks another version): then this mount fails for that, too.
//!
//! Several mounts may share a cache directory, and start at once. Each looks after one log at a time, and begins no life of its
//! own before all of its volume are told, whoever tells them (`left`).
//!
//! Kept is also what the server refuses for good, with all that comes after it; and a log that is damaged, or that lacks its end
//! (after a power cut of this machine the server may have heard of more than the log says).

mod left;
mod wire;

pub(crate) use left::replay_left;

use crate::crash;
use crate::error::ConnectError;
use crate::inner::Inner;
use crate::log::disk::place::{Note, Place};
use crate::log::disk::{GIVEN_UP, inodes_of};
use crate::log::next::LIMITS;
use soda_oplog::segments::{self, Digested, Entry, Found, Safety, SegmentError, Segments};
use soda_oplog::{DigestId, Log, Lsn, Record, coalesce};
use soda_protocol::{Answer, Call, Failure, OpId, Reclaim, ReclaimStep, SessionWelcome, Standing};
use soda_types::{Epoch, Errno, Fid, FsError, Grant, Mode, Monotonic, Scope, Sequence, Term, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use wire::{Wire, WireError};

/// How long a replay is tried against a server that is away.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same of one that is full, or whose disk fails: others may give space back.
const PATIENCE_WITH_FULL: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(200);
/// Leases in one message.
const RECLAIM_BATCH: usize = 8192;

async fn replay_place(inner: &Arc<Inner>, place: Place) -> Result<BTreeSet<Fid>, ConnectError> {
    let mut touched = BTreeSet::new();
    let why = match segments::read(place.dir()) {
        Ok(None) => {
            place.remove();
            return Ok(touched);
        }
        Ok(Some(found)) => {
            if !left::is_of_this_volume(inner, &found.header).await? {
                leave_alone(place.dir(), &found);
                return Ok(touched);
            }
            let server = &inner.config.server;
            touched.extend(found.records().into_iter().flat_map(|record| inodes_of(&record.change)));
            match replay(inner, &place, &found).await {
                Ok(records) => {
                    if records > 0 {
                        tracing::info!(
                            records,
                            "the server has been told what a client that crashed had not"
                        );
                    }
                    inner.stats.replayed.add(records as u64);
                    crash::point("client.replay-over");
                    if found.given_up.is_empty() {
                        place.remove();
                        return Ok(touched);
                    }
                    GIVEN_UP.to_owned()
                }
                Err(Stop::Unreachable(cause)) => {
                    let server = server.clone();
                    return Err(ConnectError::Unreachable { server, cause });
                }
                Err(Stop::Refused(reason)) => {
                    let server = server.clone();
                    return Err(ConnectError::Refused { server, reason });
                }
                Err(Stop::NoRoom { records, reason }) => {
                    let (server, dir) = (server.clone(), place.dir().display().to_string());
                    return Err(ConnectError::NoRoom { server, records, reason, dir });
                }
                Err(Stop::Keep(_)) if found.records().is_empty() && found.damage.is_none() => {
                    place.remove();
                    return Ok(touched);
                }
                Err(Stop::Keep(why)) => why,
            }
        }
        Err(error @ (SegmentError::NotALog { .. } | SegmentError::Damaged { .. })) => error.to_string(),
        Err(error @ (SegmentError::TooNew { .. } | SegmentError::Io { .. })) => {
            tracing::error!(%error, "an operation log that was left cannot be read: it stays where it is");
            return Ok(touched);
        }
    };
    keep(inner, place, &why);
    Ok(touched)
}

/// It is another server's, as it seems. Its client may have been told that what is in it is safe.
fn leave_alone(dir: &Path, found: &Found) {
    let (server, volume, changes) = (&found.header.server, &found.header.volume, found.records().len());
    if changes > 0 || found.damage.is_some() {
        tracing::warn!(
            ?dir,
            server,
            volume,
            changes,
            "delayed writes of another server wait in the cache directory: they are told when that is mounted with it; `soda \
             recover` lists them, and can apply or drop them"
        );
    }
}

fn keep(inner: &Inner, place: Place, why: &str) {
    inner.stats.kept_logs.one();
    let client = place.client().unwrap_or_else(|| inner.config.name.clone());
    match place.keep(&Note::new(&client, why)) {
        Ok(kept) => tracing::error!(
            ?kept,
            why,
            "delayed writes of a client that crashed are not applied: they are kept, see `soda recover`"
        ),
        Err(error) => tracing::error!(%error, why, "delayed writes of a client that crashed are not applied"),
    }
}

/// Why a log is not replayed.
enum Stop {
    Unreachable(std::io::Error),
    /// The server does not let this client in.
    Refused(String),
    NoRoom {
        records: usize,
        reason: String,
    },
    Keep(String),
}

/// Why an attempt did not come to its end.
enum Halt {
    /// The connection broke.
    Broken(std::io::Error),
    /// The server has no room now, or its disk fails.
    NoRoom(String),
    /// It does not let this client in.
    Refused(String),
    Keep(String),
}

impl Halt {
    fn keep(why: impl Into<String>) -> Halt {
        Halt::Keep(why.into())
    }
}

impl From<WireError> for Halt {
    fn from(error: WireError) -> Halt {
        match error {
            WireError::Broken(error) => Halt::Broken(error),
            WireError::Refused(failure) => Halt::Refused(failure.to_string()),
            WireError::Failed(Failure::SessionEnded) => Halt::keep(SESSION_ENDED),
            WireError::Failed(Failure::Fs(error)) if is_for_now(&error) => Halt::NoRoom(error.to_string()),
            WireError::Failed(failure) => Halt::keep(failure.to_string()),
        }
    }
}

/// Whether the server may take later what it does not take now.
fn is_for_now(error: &FsError) -> bool {
    matches!(error.errno, Errno::NoSpace | Errno::Io)
}

const SESSION_ENDED: &str = "the session has ended: somebody else needed what it had leases on, or the server restarted and this \
                             client was not back within its grace period";

const CANNOT_NOTE: &str = "how far a replay comes cannot be written to the local disk";

/// Returns how many records were told.
async fn replay(inner: &Arc<Inner>, place: &Place, found: &Found) -> Result<usize, Stop> {
    if let Some(damage) = &found.damage {
        let (file, offset) = (damage.file.display(), damage.offset);
        return Err(Stop::Keep(format!("the log is damaged: {file} at byte {offset}")));
    }
    let began = inner.now();
    let mut found = found.clone();
    loop {
        let records = found.records().len();
        let (why, last, patience) = match Attempt::begin(inner, place, &found).run().await {
            Ok(records) => return Ok(records),
            Err(Halt::Keep(why)) => return Err(Stop::Keep(why)),
            Err(Halt::Refused(reason)) => return Err(Stop::Refused(reason)),
            Err(Halt::Broken(error)) => (error.to_string(), Stop::Unreachable(error), PATIENCE),
            Err(Halt::NoRoom(reason)) => {
                (reason.clone(), Stop::NoRoom { records, reason }, PATIENCE_WITH_FULL)
            }
        };
        // Who had nothing to tell need not be waited for.
        if records == 0 || inner.now().since(began) > patience {
            return Err(last);
        }
        tracing::warn!(why, "what a client that crashed had not told the server is tried again");
        tokio::time::sleep(PAUSE).await;
        // The log is what knows how far it came.
        found = match segments::read(place.dir()) {
            Ok(Some(found)) if found.damage.is_none() => found,
            Ok(_) => return Err(Stop::Keep("the log is damaged".to_owned())),
            Err(error) => return Err(Stop::Keep(error.to_string())),
        };
    }
}

struct Attempt<'a> {
    inner: &'a Arc<Inner>,
    found: &'a Found,
    /// Notes how far it came. `None`: the local disk has no room. Should this client crash, too, the server will be known to
    /// have heard of more than the log says.
    segments: Option<Segments>,
    told: usize,
}

impl<'a> Attempt<'a> {
    fn begin(inner: &'a Arc<Inner>, place: &Place, found: &'a Found) -> Attempt<'a> {
        let mut header = found.header.clone();
        header.digest.sequence = found.last_digest;
        let segments = Segments::create(place.dir(), header, Safety::PowerCut);
        let segments = segments.map_err(|error| tracing::warn!(%error, "{CANNOT_NOTE}")).ok();
        Attempt { inner, found, segments, told: 0 }
    }

    async fn run(mut self) -> Result<usize, Halt> {
        let (mut wire, welcome) = Wire::resume(self.inner, &self.found.header).await?;
        crash::point("client.replay-resumed");
        let result = match welcome.standing {
            Standing::New => Err(Halt::keep(SESSION_ENDED)),
            Standing::Resumed | Standing::Reclaim => self.tell(&mut wire, &welcome).await,
        };
        // Whoever waits for its leases need not any more. What is to be told later is told under them.
        if !matches!(result, Err(Halt::Broken(_) | Halt::NoRoom(_))) {
            let _ = wire.ask(None, Call::Goodbye).await;
        }
        result.map(|()| self.told)
    }

    async fn tell(&mut self, wire: &mut Wire, welcome: &SessionWelcome) -> Result<(), Halt> {
        let slots = self.found.header.digest_slots();
        let stored = slots.stored(welcome);
        if stored > self.found.last_digest {
            return Err(Halt::keep(format!(
                "the log lacks its end: it knows {} digests, the server has been told {}",
                self.found.last_digest.0, stored.0
            )));
        }
        let Left { again, pending } = self.left(welcome.standing, stored);
        if let Some(fid) = self.rests_on_what_is_lost(&pending) {
            return Err(Halt::keep(format!("the server has lost a change of {fid} that was not in the log")));
        }
        if welcome.standing == Standing::Reclaim {
            self.reclaim(wire, &pending).await?;
        }
        for digest in again {
            self.send(wire, digest.op, digest.records).await?;
        }
        let mut log = Log::after(DigestId(self.found.last_digest.0));
        pending.into_values().for_each(|record| log.restore(Monotonic::ZERO, record));
        while let Some(digest) = log.take(LIMITS) {
            let op = slots.op(Sequence(digest.id.0));
            self.note(&Entry::Sent { op, lsns: digest.lsns });
            crash::point("client.replay-noted");
            self.send(wire, op, digest.records).await?;
            log.handle_applied(digest.id);
        }
        wire.ask(None, Call::Sync { fid: welcome.root, after: None }).await?;
        // After the goodbye nobody can ask the server any more what it has.
        self.note(&Entry::Durable { up_to: Sequence(log.last_digest().0) });
        crash::point("client.replay-told");
        Ok(())
    }

    /// What the server, which has the digests up to `stored`, lacks.
    fn left(&mut self, standing: Standing, stored: Sequence) -> Left {
        let found = self.found;
        let is_lost = |digest: &&Digested| digest.op.sequence > stored;
        let lost: Vec<&Digested> = found.applied.iter().filter(is_lost).collect();
        // In a run of the server that has lost something, or that has just begun, nothing of the old session is under way: what
        // its store has no answer to is not done. To the rest it says again what came of it.
        let all_may_be_done = standing == Standing::Resumed && lost.is_empty();
        let (again, undone): (Vec<&Digested>, Vec<&Digested>) =
            found.sent.iter().partition(|sent| all_may_be_done || sent.op.sequence <= stored);
        if !lost.is_empty() || !undone.is_empty() {
            self.note(&Entry::Lost { from: Sequence(stored.0 + 1) });
        }
        let lost = lost.into_iter().chain(undone).flat_map(|digest| &digest.records);
        let pending = lost.chain(&found.pending).map(|record| (record.lsn, record.clone())).collect();
        Left { again: again.into_iter().cloned().map(coalesced).collect(), pending }
    }

    /// An inode with records that are to be sent before and after a change that went through to the server: that came after the
    /// first, so the server has lost it, too.
    fn rests_on_what_is_lost(&self, pending: &BTreeMap<Lsn, Record>) -> Option<Fid> {
        let touches = |fid: Fid, record: &Record| inodes_of(&record.change).any(|touched| touched == fid);
        let is_lost = |(fid, lsn): &&(Fid, Lsn)| {
            let before = pending.range(..*lsn).any(|(_, record)| touches(*fid, record));
            before && pending.contains_key(lsn)
        };
        self.found.through.iter().find(is_lost).map(|(fid, _)| *fid)
    }

    /// The server has started anew: it has to know what the log was written under.
    async fn reclaim(&self, wire: &mut Wire, pending: &BTreeMap<Lsn, Record>) -> Result<(), Halt> {
        let mut first = BTreeMap::new();
        for record in pending.values() {
            for fid in inodes_of(&record.change) {
                first.entry(fid).or_insert(record.lsn);
            }
        }
        for record in pending.values() {
            if let Some(fid) = record.change.creates() {
                first.remove(&fid);
            }
        }
        let claim = |(fid, lsn): (Fid, Lsn)| {
            let (scope, mode, epoch, term) = (Scope::Node, Mode::Write, Epoch(1), Term::Session);
            let version = self.found.version_before(fid, lsn).unwrap_or(Version(0));
            (Grant { fid, scope, mode, epoch, term }, version)
        };
        let claims: Vec<(Grant, Version)> = first.into_iter().map(claim).collect();
        for batch in claims.chunks(RECLAIM_BATCH) {
            let held = self.claim(wire, batch.to_vec(), ReclaimStep::More).await?;
            if let Some((missing, _)) = batch.iter().zip(held).find_map(|(claim, held)| match held {
                Some(_) => None,
                None => Some((claim.0.fid, claim.1)),
            }) {
                return Err(Halt::keep(format!(
                    "the server started anew, and {missing} is not as it was, or somebody else has it"
                )));
            }
        }
        self.claim(wire, Vec::new(), ReclaimStep::Last).await?;
        Ok(())
    }

    async fn claim(
        &self,
        wire: &mut Wire,
        leases: Vec<(Grant, Version)>,
        step: ReclaimStep,
    ) -> Result<Vec<Option<Grant>>, Halt> {
        let reclaim = Reclaim { leases, open: Vec::new(), locks: Vec::new(), step };
        match wire.ask(None, Call::Reclaim(reclaim)).await? {
            Answer::Reclaimed { leases: held, .. } => Ok(held),
            _ => Err(Halt::keep("the server does not answer as one of Soda does")),
        }
    }

    /// One digest, of which the log says that it is sent.
    async fn send(&mut self, wire: &mut Wire, op: OpId, records: Vec<Record>) -> Result<(), Halt> {
        let count = records.len();
        // The processes that had locks are gone.
        let (versions, locks, data) = (Vec::new(), Vec::new(), Vec::new());
        let call = Call::Digest { records, data, versions, after: None, locks };
        match wire.ask(Some(op), call).await {
            Ok(Answer::Digested { attrs }) => {
                crash::point("client.replay-answered");
                let versions = attrs.iter().map(|(fid, attr)| (*fid, attr.version)).collect();
                self.note(&Entry::AppliedAs { sequence: op.sequence, versions });
                self.told += count;
                Ok(())
            }
            Ok(_) => Err(Halt::keep("the server does not answer as one of Soda does")),
            Err(WireError::Failed(Failure::Digest { lsn, error })) => {
                self.note(&Entry::Lost { from: op.sequence });
                match is_for_now(&error) {
                    true => Err(Halt::NoRoom(error.to_string())),
                    false => Err(Halt::keep(format!("the server refuses {lsn}: {error}"))),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    fn note(&mut self, entry: &Entry) {
        let Some(segments) = &mut self.segments else { return };
        segments.append(entry);
        // On the disk: what the server has been told it must not be told again under another identity.
        if let Err(error) = segments.sync() {
            tracing::warn!(%error, "{CANNOT_NOTE}");
            self.segments = None;
        }
    }
}

/// What the server lacks.
struct Left {
    /// It may have these, and answers them once more.
    again: Vec<Digested>,
    pending: BTreeMap<Lsn, Record>,
}

/// As it was sent.
fn coalesced(digest: Digested) -> Digested {
    Digested { records: coalesce(digest.records), ..digest }
}
