//! Digests: what a client did under its write leases, carried out here afterwards, whole or not at all.
//!
//! wait for the session's digests before it, with much data stored meanwhile ([`plan::ahead`]), and see whether the one was
//! applied that it comes after → plan and staging ([`plan`]) → wait until the medium has the data, without a place → ask the
//! table, which recalls nothing and refuses what is not covered by the session's write leases
//! → (wait for operations in progress) → carry out in one transaction with the reply ([`apply`]) → finish: the session gets write
//! leases on what it created, and decides about the locks of what it says that it does. A digest that is sent again gets the
//! stored reply and the leases once more: its client does not know that it was applied, and serves what it created as its own all
//! the while. Not so the right to decide about locks: it knows that it had that, and would have heard if it were asked back.

mod apply;
mod journal;
mod medium;
mod plan;

use super::ancestry::{ancestries, core_with_ancestries};
use super::change::{forget_reply_of, reply_record, store_failure};
use super::sync;
use crate::clock;
use crate::core::Verdict;
use crate::guard::Admission;
use crate::link::{Ahead, Arrived, Counted, Entered, Incoming, Link};
use crate::records;
use crate::respond;
use crate::rounds::Round;
use crate::session::{Kept, Progress};
use crate::shared::Shared;
use crate::sync::Asked;
use apply::{Applied, End};
use bytes::Bytes;
use journal::Part;
use medium::Waited;
use plan::{Plan, created};
use soda_lease::numbers::Taken;
use soda_lease::space::{Purpose, Taking};
use soda_lease::table::{Ancestors, Granted, OpKey};
use soda_protocol::{Answer, Call, Failure, Lsn, OpId, Record};
use soda_storage::{Table, crash};
use soda_types::{Epoch, Errno, Fid, FsError, FsResult, Version};
use soda_volume::{Redo, Staged};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::runtime::Handle;

/// How often it is looked, while the medium is waited for and somebody waits for what the session holds, whether the data may go
/// into the journal by now.
const LOOK: Duration = Duration::from_millis(20);

/// Whether the medium has the data of a digest, or it goes into the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Synced {
    Yes,
    No,
}

/// Carries out a digest that arrived, when those of its session that arrived before are over.
pub(super) fn start(shared: Arc<Shared>, incoming: Incoming) {
    let link = incoming.link.clone();
    let ahead = match &incoming.request.call {
        Call::Digest { records, .. } if link.digests.is_busy() => {
            plan::ahead(&shared, incoming.session(), records)
        }
        _ => None,
    };
    let entered = link.digests.enter(Arrived { incoming, ahead });
    match entered {
        Entered::Now(arrived) => {
            let turn = Turn::of(shared, &arrived.incoming);
            begin(arrived, turn);
        }
        Entered::Waits => {}
        Entered::Full(Arrived { incoming, .. }) => {
            let problem = "too many digests of this session wait for each other";
            super::turn_away(&shared, &incoming, Failure::Busy(problem.to_owned()));
        }
    }
}

/// The turn of one of a session's digests. Its end is the beginning of the next, and of the syncs that wait for it.
#[derive(Debug)]
struct Turn {
    shared: Arc<Shared>,
    link: Arc<Link>,
    op: Option<OpId>,
}

impl Turn {
    fn of(shared: Arc<Shared>, incoming: &Incoming) -> Turn {
        Turn { shared, link: incoming.link.clone(), op: incoming.request.op }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.op.into_iter().for_each(|op| sync::digest_is_over(&self.shared, &self.link, op));
        let next = self.link.digests.next();
        if let Some(arrived) = next {
            let shared = self.shared.clone();
            let turn = Turn::of(shared.clone(), &arrived.incoming);
            // While the server stops nobody is answered any more: the turn ends at once, and so do those of all others in line.
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move {
                    let _place = shared.places.enter().await;
                    begin(arrived, turn);
                });
            }
        }
    }
}

fn begin(Arrived { incoming, ahead }: Arrived, turn: Turn) {
    let Some(op) = incoming.request.op else {
        return incoming.invalid("a digest needs a slot and a sequence");
    };
    if let Call::Digest { after: Some(before), .. } = incoming.request.call
        && turn.link.session.slots().progress(before) != Progress::Applied
    {
        return incoming.answer_undone(&Err(Failure::OutOfTurn));
    }
    let mut telling =
        Telling { incoming, op, staged: Vec::new(), asked: None, journal: None, taking: None, turn };
    match telling.prepare(ahead) {
        Ok((plan, None)) => telling.ask(plan),
        Ok((plan, Some(redo))) => drop(tokio::spawn(telling.sync_and_ask(plan, redo))),
        Err(failure) => telling.conclude(None, Conclusion::failed(failure)),
    }
}

/// Answers a digest that was answered before.
pub(crate) fn answer_again(shared: &Shared, incoming: &Incoming, encoded: &Bytes) {
    let Call::Digest { records, .. } = &incoming.request.call else { return };
    let made: Vec<Fid> = match postcard::from_bytes(encoded) {
        Ok(Ok::<Answer, Failure>(Answer::Digested { attrs })) => {
            let created: HashSet<Fid> = created(records).collect();
            let existed = attrs.into_iter().map(|(fid, _)| fid).filter(|fid| created.contains(fid));
            existed.filter(|fid| shared.volume.getattr(*fid).is_ok()).collect()
        }
        _ => Vec::new(),
    };
    let mut known = ancestries(shared, made.iter().copied());
    // Those that are not of now the table does not believe.
    let mut core = core_with_ancestries(shared, &mut known).unwrap_or_else(|| shared.core());
    let (now, session) = (core.now, incoming.session());
    let mut all = Granted::default();
    let known = known.into_iter().map(|(_, above)| above).chain(std::iter::repeat(Ancestors::Unknown));
    for (fid, above) in made.into_iter().zip(known) {
        let Granted { leases, covered } = core.table.made_before(now, session, fid, &above);
        all.leases.extend(leases);
        all.covered.extend(covered);
    }
    let leases = core.leases(session, all);
    core.send(&incoming.link.outbox, respond::reply(incoming.tag, encoded, &leases, Bytes::new()));
    core.settle();
}

/// A digest under way.
#[derive(Debug)]
struct Telling {
    incoming: Incoming,
    op: OpId,
    /// The data of its writes, in their order.
    staged: Vec<Staged>,
    /// The medium was asked ahead to have it.
    asked: Option<Asked>,
    journal: Option<Part>,
    taking: Option<Taking>,
    /// Dropped last: the next one finds the table and the slots as this one leaves them.
    turn: Turn,
}

/// The end of a digest.
struct Conclusion {
    result: Result<Answer, Failure>,
    /// `result`, encoded.
    encoded: Bytes,
    kept: Kept,
    applied: Applied,
}

impl Conclusion {
    fn failed(failure: Failure) -> Conclusion {
        let result = Err(failure);
        let encoded = respond::encode(&result);
        Conclusion { result, encoded, kept: Kept::InMemory, applied: Applied::default() }
    }
}

impl Telling {
    fn records(&self) -> &[Record] {
        match &self.incoming.request.call {
            Call::Digest { records, .. } => records,
            _ => &[],
        }
    }

    fn versions(&self) -> &[(Fid, Version, Version)] {
        match &self.incoming.request.call {
            Call::Digest { versions, .. } => versions,
            _ => &[],
        }
    }

    /// What it creates of which the session decides about the locks.
    fn locks(&self) -> &[Fid] {
        match &self.incoming.request.call {
            Call::Digest { locks, .. } => locks,
            _ => &[],
        }
    }

    fn shared(&self) -> &Shared {
        &self.turn.shared
    }

    /// Plans, and stores the data of writes before anybody has to wait for it. `Some`: the medium has to have it first.
    fn prepare(&mut self, ahead: Option<Ahead>) -> Result<(Plan, Option<Redo>), Failure> {
        let shared = self.turn.shared.clone();
        let plan = plan::plan(&shared.volume, self.records(), self.versions())?;
        let whole = self.whole();
        let (session, locks) = (self.incoming.session(), self.locks().len());
        if locks > 0 && !shared.core().delegations.has_room_for(session, locks) {
            return Err(whole(FsError::new(Errno::TooBig, "more files' locks than a session decides about")));
        }
        let wanted = (plan.space, Purpose::Digest);
        self.taking = Some(shared.take_space(session, wanted).map_err(whole)?);
        let redo = journal::redo(plan.bytes);
        match ahead {
            Some(Ahead { staged, asked }) => (self.staged, self.asked) = (staged, Some(asked)),
            None => self.staged = plan::stage(&shared.volume, self.records(), redo)?,
        }
        if !self.staged.iter().any(Staged::has_chunks) {
            return Ok((plan, None));
        }
        // So a reply that survives a power cut means that all of the digest did: its client forgets the records then.
        let at_once = redo == Redo::Yes && plan.bytes <= journal::AT_ONCE;
        self.journal = if at_once { Part::take(&shared, plan.bytes) } else { None };
        Ok((plan, self.journal.is_none().then_some(redo)))
    }

    /// Goes on when the medium has the data. Meanwhile it has no place: who waits for a disk that does not end keeps nobody from
    /// what the store can do without.
    async fn sync_and_ask(mut self, plan: Plan, redo: Redo) {
        let shared = Arc::clone(&self.turn.shared);
        let _counted = Counted::new(&self.incoming.link);
        let synced = self.sync_data(redo, plan.bytes).await;
        let _place = shared.places.enter().await;
        match synced {
            Ok(Synced::Yes) => {
                shared.metrics.digest_syncs.add(1);
                self.staged.iter_mut().for_each(Staged::note_synced);
                self.ask(plan);
            }
            Ok(Synced::No) => self.ask(plan),
            Err(error) => {
                let failure = self.whole()(error);
                self.conclude(None, Conclusion::failed(failure));
            }
        }
    }

    /// Waits until the medium has the data, which has to take what others have written, as well; unless it is little, or somebody
    /// waits for what the session holds, or begins to: then it goes into the journal, if it may.
    async fn sync_data(&mut self, redo: Redo, bytes: u64) -> FsResult<Synced> {
        let link = Arc::clone(&self.incoming.link);
        let (shared, session) = (&self.turn.shared, link.session.id);
        let (journal, asked) = (&mut self.journal, self.asked.take());
        let instead = move || {
            let is_little = || bytes <= journal::AT_ONCE;
            let may = redo == Redo::Yes && (is_little() || shared.core().table.is_asked(session));
            *journal = if may { Part::take(shared, bytes) } else { None };
            journal.is_some()
        };
        match medium::wait((&shared.data_sync, asked), &shared.places, link.session.recalled(), LOOK, instead)
            .await
        {
            Waited::Instead => Ok(Synced::No),
            Waited::Synced(result) => result.map(|()| Synced::Yes),
            Waited::Left => {
                let _place = shared.places.enter().await;
                shared.volume.sync_data().map(|()| Synced::Yes)
            }
        }
    }

    /// A failure that no single record is to blame for.
    fn whole(&self) -> impl Fn(FsError) -> Failure + use<> {
        let lsn = self.first();
        move |error| Failure::Digest { lsn, error }
    }

    /// The record that is named where no single one is to blame.
    fn first(&self) -> Lsn {
        self.records().first().map_or(Lsn(0), |record| record.lsn)
    }

    /// Asks for admission, and goes on if it is given at once.
    fn ask(self, plan: Plan) {
        crash::point("server.digest-staged");
        let admission = self.admission(&plan);
        match admission {
            None => self.answer_unplaced(),
            Some(admission) => self.go_on(plan, admission),
        }
    }

    /// Its client sends it again.
    fn answer_unplaced(&self) {
        let problem = "it cannot be said where the inodes concerned lie";
        self.incoming.answer_undone(&Err(Failure::Busy(problem.to_owned())));
    }

    /// With ancestries that are of now: under a deep lease is only what is known to be below it.
    fn admission(&self, plan: &Plan) -> Option<Admission> {
        let shared = self.shared();
        let mut known = ancestries(shared, plan.held());
        let mut core = core_with_ancestries(shared, &mut known)?;
        let unknown = known.iter().any(|(_, above)| *above == Ancestors::Unknown);
        (!unknown).then(|| core.admit_covered(self.incoming.asker(), plan.covered(known)))
    }

    fn go_on(self, plan: Plan, admission: Admission) {
        match admission {
            Admission::Admitted(key) => self.carry_out(key, &plan),
            Admission::Waits(key, verdict) => {
                tokio::spawn(async move {
                    let (shared, link) = (self.turn.shared.clone(), self.incoming.link.clone());
                    link.waiting.fetch_add(1, Ordering::Relaxed);
                    // The sender is dropped only when the server stops.
                    if let Ok(verdict) = verdict.await {
                        let _place = shared.places.enter().await;
                        self.follow(key, verdict, &plan);
                    }
                    link.waiting.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Admission::SessionEnded => self.conclude(None, Conclusion::failed(Failure::SessionEnded)),
            Admission::NotHeld(fid) => self.conclude(None, Conclusion::failed(self.not_held(fid))),
            Admission::Unplaced => self.answer_unplaced(),
        }
    }

    fn follow(self, key: OpKey, verdict: Verdict, plan: &Plan) {
        match verdict {
            Verdict::Admitted => self.carry_out(key, plan),
            Verdict::SessionEnded => self.conclude(None, Conclusion::failed(Failure::SessionEnded)),
            Verdict::NotHeld(fid) => self.conclude(None, Conclusion::failed(self.not_held(fid))),
            Verdict::Unplaced => self.answer_unplaced(),
            Verdict::Cancelled => {
                // The client does not want it any more.
                self.incoming.answer_undone(&Err(Failure::Fs(Errno::Interrupted.into())));
            }
        }
    }

    fn not_held(&self, fid: Fid) -> Failure {
        let touches = |record: &&Record| plan::inodes(record).any(|touched| touched == fid);
        let lsn = self.records().iter().find(touches).map_or(self.first(), |record| record.lsn);
        let context = format!("the session holds no write lease on {fid} (any more)");
        Failure::Digest { lsn, error: FsError::new(Errno::Stale, context) }
    }

    fn carry_out(mut self, key: OpKey, plan: &Plan) {
        crash::point("server.digest-admitted");
        if self.incoming.link.session.has_ended() {
            return self.conclude(Some(key), Conclusion::failed(Failure::SessionEnded));
        }
        let conclusion = self.run(plan).unwrap_or_else(Conclusion::failed);
        self.conclude(Some(key), conclusion);
    }

    /// Makes the changes and commits them together with the reply.
    fn run(&mut self, plan: &Plan) -> Result<Conclusion, Failure> {
        let (shared, link) = (self.turn.shared.clone(), self.incoming.link.clone());
        let (shared, session) = (&*shared, &*link.session);
        let first = self.first();
        let whole = |error| Failure::Digest { lsn: first, error };
        let mut numbers = session.numbers();
        let mut taken = Taken::default();
        let mut txn = shared.volume.begin(clock::calendar());
        let staged = std::mem::take(&mut self.staged);
        let users = apply::Users::of(shared, session.id, self.records());
        let mut applied =
            apply::apply(&mut txn, self.records(), staged, &users, |ino| numbers.take(&mut taken, ino))?;
        apply::set_versions(&mut txn, plan, self.versions()).map_err(whole)?;
        applied.attrs = apply::attributes(&txn, plan).map_err(whole)?;
        let result = Ok(Answer::Digested { attrs: std::mem::take(&mut applied.attrs) });
        let encoded = respond::encode(&result);
        let mut record = reply_record(shared, session, self.op, encoded.clone());
        // Its data is on the medium already, or in the journal with it.
        record.round = Round::default();
        txn.put_extra(Table::Reply, &records::reply_key(session.id, self.op.slot), records::encode(&record));
        for (block, numbers) in taken.blocks() {
            let key = records::numbers_key(session.id, block);
            txn.put_extra(Table::Reservation, &key, records::encode(numbers));
        }
        if let Some(left) = self.taking.as_ref().and_then(Taking::left) {
            txn.put_extra(Table::Reservation, &records::space_key(session.id), records::encode(&left));
        }
        crash::point("server.digest-applied");
        shared.write_ends();
        txn.commit().map_err(whole)?;
        self.taking.iter().for_each(Taking::used);
        numbers.committed(taken);
        drop(numbers);
        crash::point("server.digest-committed");
        shared.metrics.commits.add(1);
        shared.metrics.digests.add(1);
        shared.metrics.digest_records.add(self.records().len() as u64);
        shared.metrics.digest_bytes.add(plan.bytes);
        shared.note_change();
        if session.has_ended() {
            // Fenced while the digest was under way. It stays: whoever waits for its objects comes after it.
            forget_reply_of(shared, session.id, self.op);
            shared.forget_reservations(session.id);
        }
        Ok(Conclusion { result, encoded, kept: Kept::InStore(record.round), applied })
    }

    /// Ends the call: the reply leaves with the leases on what was created.
    fn conclude(&self, key: Option<OpKey>, conclusion: Conclusion) {
        let Conclusion { result, encoded, mut kept, applied } = conclusion;
        let incoming = &self.incoming;
        let shared = self.shared();
        if let Err(Failure::Digest { lsn, error }) = &result {
            log_trouble(shared, incoming, *lsn, error);
            kept = store_failure(shared, &incoming.link.session, self.op, &encoded);
        }
        let mut core = shared.core();
        let (now, session) = (core.now, incoming.session());
        let granted =
            key.map_or_else(Granted::default, |key| core.table.finish_covered_tree(now, key, &applied.tree));
        // Before anybody else is admitted to what names the files. Of an ended session they would stay for ever.
        if !incoming.link.session.has_ended() {
            let made = self.locks().iter().filter(|fid| applied.has_made(**fid));
            let epoch = Epoch(self.op.sequence.0);
            made.for_each(|fid| core.delegations.enter_made(*fid, session, epoch));
        }
        for (fid, end) in applied.ends {
            match end {
                End::Named => drop(core.orphans.remove(&fid)),
                End::Kept => {
                    core.orphans.insert(fid);
                    if !incoming.link.session.has_ended() {
                        core.opens.add(session, fid, incoming.order);
                    }
                    core.drop_if_unused(fid);
                }
                End::KeptForOthers => {
                    core.orphans.insert(fid);
                    core.opens.close(session, fid, incoming.order);
                    core.drop_if_unused(fid);
                }
                End::Gone => {
                    core.orphans.remove(&fid);
                    core.opens.close(session, fid, incoming.order);
                    core.give_up_lease(session, fid);
                }
            }
        }
        let leases = core.leases(session, granted);
        core.send(&incoming.link.outbox, respond::reply(incoming.tag, &encoded, &leases, Bytes::new()));
        let waiters = incoming.link.session.slots().done(self.op, encoded.clone(), kept);
        for waiter in waiters {
            // Sent again while it was under way, so the first connection is gone, and the grants with it.
            core.send(&waiter.outbox, respond::reply(waiter.tag, &encoded, &leases, Bytes::new()));
        }
        core.settle();
        incoming.count(&result);
    }
}

/// A client that keeps the rules is never told of a failure: what it did it has done.
fn log_trouble(shared: &Shared, incoming: &Incoming, lsn: Lsn, error: &FsError) {
    if shared.troubles.digests.may_say(clock::monotonic()) {
        tracing::error!(session = %incoming.session(), %lsn, %error, "a digest cannot be applied");
    }
    if error.errno == Errno::NoSpace {
        shared.janitor.want_space();
    }
}
