//! What becomes of the log when its session ends, or when the server comes back with less than it had.

use super::digest::Refusal;
use crate::cache::State;
use crate::cache::inode::{Inode, Origin};
use crate::config::{Fsync, WritePolicy};
use crate::crash;
use crate::inner::Inner;
use crate::log::Behind;
use crate::log::disk::keeper::Keeper;
use crate::log::disk::{Aside, DiskLog};
use crate::threads::blocking;
use soda_oplog::segments::{Header, Safety};
use soda_oplog::{Applied, Change, DigestId, Object, Place, Record};
use soda_protocol::{Lsn, OpId, SessionWelcome};
use soda_types::{
    Epoch, Errno, Fid, FsError, Grant, LeasePart, Mode, Monotonic, Recall, Scope, Sequence, Slot, Term,
    Version,
};
use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the kernel may take to drop what is not so any more.
const KERNEL_PATIENCE: Duration = Duration::from_secs(2);

/// Why a log is kept that the server had been told all of.
const BEFORE_DURABLE: &str =
    "the session has ended, and the server may have lost what it had been told before its disk had it";

/// Whether what is to be done on the local disk is done when this returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    AtOnce,
    /// By another thread: the disk may hang.
    Aside,
}

/// Changes that the server will never hear of.
#[derive(Debug)]
pub(crate) struct Lost {
    pub(crate) records: Vec<Record>,
    pub(crate) inodes: Vec<Fid>,
    /// Of the session that is lost, if it is.
    pub(crate) disk: Option<Arc<DiskLog>>,
    /// Where no disk has them.
    pub(crate) to_keep: Option<ToKeep>,
}

/// What it takes to keep changes that are in memory only.
#[derive(Debug)]
pub(crate) struct ToKeep {
    keeper: Arc<Keeper>,
    found_at: FoundAt,
}

/// The versions of inodes that the server had when records were made.
type FoundAt = HashMap<(Fid, Lsn), Version>;

impl State {
    /// The leases under which the log was written are gone: nothing of it may be applied any more. What it touched is
    /// forgotten, and the next write, fsync or close of each of these files fails.
    pub(crate) fn lose_log(&mut self, applied: Applied) -> Lost {
        let keeper = self.behind.keeper.take();
        let before = if keeper.is_some() { self.found_by_applied() } else { FoundAt::new() };
        let mut records = self.behind.log.abandon(applied);
        records.extend(self.behind.lose_aside());
        records.sort_unstable_by_key(|record| record.lsn);
        let to_keep = self.to_keep(keeper, &records, before);
        self.behind.under_way.clear();
        self.behind.restoring = None;
        self.behind.break_promises();
        self.behind.reserve.start_over();
        self.behind.before.clear();
        self.behind.moves.clear();
        self.behind.note_less();
        let ahead: Vec<Fid> =
            self.inodes().filter(|(_, inode)| inode.log.records > 0).map(|(fid, _)| *fid).collect();
        for fid in ahead {
            self.inode(fid).log.records = 0;
            self.repin(fid);
        }
        let lost = Lost { disk: self.behind.disk.take(), to_keep, ..self.forget_lost(records) };
        let error = FsError::new(Errno::Io, "delayed writes were lost with the session");
        self.behind.waiting.fail_all(&error);
        lost
    }

    /// As digests found them that were applied and may be lost.
    fn found_by_applied(&self) -> FoundAt {
        let mut found_at = FoundAt::new();
        for (id, record) in self.behind.log.undurable_by_digest() {
            let before = self.behind.before.get(&id).map(Vec::as_slice).unwrap_or_default();
            for fid in Behind::inodes_of(&record.change) {
                // They are in the order of their numbers.
                let found = before.binary_search_by_key(&fid, |(fid, _)| *fid).ok();
                found_at.extend(found.map(|place| ((fid, record.lsn), before[place].1)));
            }
        }
        found_at
    }

    /// `found_at`: of records that were applied. The others found what the server has said last.
    fn to_keep(
        &self,
        keeper: Option<Arc<Keeper>>,
        records: &[Record],
        mut found_at: FoundAt,
    ) -> Option<ToKeep> {
        let keeper = keeper?;
        for record in records {
            for fid in Behind::inodes_of(&record.change) {
                let told = self.peek(fid).map(|inode| inode.told).filter(|told| *told > Version(0));
                if let Some(told) = told {
                    found_at.entry((fid, record.lsn)).or_insert(told);
                }
            }
        }
        Some(ToKeep { keeper, found_at })
    }

    /// The session has ended, and the server is still the process that applied its digests: the log will know nothing of them
    /// any more, but a power cut can still take them. `slot`: the digests'.
    pub(crate) fn note_undurable(&mut self, slot: Slot) {
        let records = self.behind.log.undurable_records();
        let touched: BTreeSet<Fid> = records.flat_map(|record| Behind::inodes_of(&record.change)).collect();
        self.unsynced.note_digested(touched, slot, self.behind.log.last_lsn());
    }

    /// What is pending of inodes that no lease covers can never be applied: somebody else may have changed them. It is lost, with
    /// all that depends on it. `refused`: a digest that the server would not apply; if it lacks no lease that is known
    /// here, the record that it was refused for goes.
    pub(crate) fn give_up_uncovered(&mut self, refused: Option<&Refusal>) -> Lost {
        let mut touched = BTreeSet::new();
        let pending = self.behind.log.pending();
        pending.for_each(|record| touched.extend(Behind::inodes_of(&record.change)));
        let uncovered = |fid: &&Fid| {
            let at_server = self.peek(**fid).is_none_or(|inode| inode.log.origin == Origin::AtServer);
            at_server && !self.holder.is_exclusive(**fid)
        };
        let uncovered: Vec<Fid> = touched.iter().filter(uncovered).copied().collect();
        let mut records = self.behind.log.give_up(&uncovered);
        if let Some(refusal) = refused.filter(|_| records.is_empty()) {
            records = self.behind.log.give_up_record(refusal.record);
        }
        if let Some(refusal) = refused.filter(|_| records.is_empty()) {
            // It was left out as one that cancels out: then all that it was sent with.
            records = self.behind.log.give_up(&refusal.touched);
        }
        self.lose_records(records)
    }

    /// Inodes that the server knows and lacks something of, and that no lease covers, if they may belong to the part of a deep
    /// lease. With all below it that may be any: then the whole log is looked through.
    pub(crate) fn uncovered_ahead(&self, part: LeasePart) -> Vec<Fid> {
        let touched: BTreeSet<Fid> = match part.scope {
            Scope::Node => self.is_ahead(&[part.fid]).then_some(part.fid).into_iter().collect(),
            Scope::Subtree => {
                let pending = self.behind.log.pending();
                pending.flat_map(|record| Behind::inodes_of(&record.change)).collect()
            }
        };
        let uncovered = |fid: &Fid| {
            let is_known = self.peek(*fid).is_none_or(|inode| inode.log.origin != Origin::Here);
            is_known && !self.holder.is_exclusive(*fid)
        };
        touched.into_iter().filter(uncovered).collect()
    }

    /// What to claim of a new run of the server beside the leases held: what the server was told of, and lacks something of, and
    /// whose lease never came. Nobody else was let in to it.
    pub(crate) fn told_ahead(&self) -> Vec<Grant> {
        let told = |inode: &Inode| inode.log.origin == Origin::Told && inode.log.records > 0;
        let all = self.inodes().filter(|(fid, inode)| told(inode) && !self.holder.is_exclusive(**fid));
        let (scope, mode, epoch, term) = (Scope::Node, Mode::Write, Epoch(1), Term::Session);
        all.map(|(fid, _)| Grant { fid: *fid, scope, mode, epoch, term }).collect()
    }

    /// The server has lost changes of these inodes that were not in the log, each after the record that is named with it.
    fn give_up_on_top(&mut self, changed: &[(Fid, Lsn)]) -> Lost {
        let records = self.behind.log.give_up_after(changed);
        self.lose_records(records)
    }

    fn lose_records(&mut self, records: Vec<Record>) -> Lost {
        self.end_moves(self.behind.log.last_lsn());
        self.count_records();
        if let Some(disk) = self.behind.disk.as_ref().filter(|_| !records.is_empty()) {
            disk.push_given_up(&records);
        }
        let to_keep = self.to_keep(self.behind.keeper.clone(), &records, FoundAt::new());
        let lost = Lost { to_keep, ..self.forget_lost(records) };
        self.behind.note_less();
        if !lost.records.is_empty() {
            self.behind.waiting.note_given_up(&self.behind.log);
        }
        lost
    }

    /// What these changes touched is forgotten: the caches show what will never be.
    fn forget_lost(&mut self, records: Vec<Record>) -> Lost {
        let touched: BTreeSet<Fid> =
            records.iter().flat_map(|record| Behind::inodes_of(&record.change)).collect();
        for record in &records {
            self.doubt_names(&record.change);
            record.change.creates().into_iter().for_each(|fid| self.delegate.forget_made(fid));
        }
        for fid in &touched {
            if self.is_ahead(&[*fid]) {
                // What is still to be told of its names is kept: only they know. How it is otherwise the server says when it has
                // been told.
                self.memory.clear(*fid);
                self.inode(*fid).attr = None;
                self.forget_xattrs(*fid);
                self.unsynced.note_lost(*fid);
                continue;
            }
            self.void(*fid);
            self.memory.clear(*fid);
            let inode = self.inode(*fid);
            inode.log.origin = Origin::AtServer;
            inode.seen = Version(0);
            self.repin(*fid);
            self.unsynced.note_lost(*fid);
        }
        Lost { records, inodes: touched.into_iter().collect(), disk: None, to_keep: None }
    }

    /// What a lost change made of names is not so; what they mean at the server is to be asked.
    fn doubt_names(&mut self, change: &Change) {
        for (object, _) in change.touches() {
            if let Object::Name(Place { directory, name }) = object
                && let Some(dir) = self.existing(directory).and_then(|inode| inode.dir.as_mut())
            {
                dir.doubt(&name);
            }
        }
    }

    /// A recall has told of the lease on an inode that was made here.
    pub(crate) fn adopt_lease(&mut self, now: Monotonic, recall: &Recall) {
        self.holder.adopt(now, recall);
        let holding = self.holder.holding(recall.fid);
        let inode = self.inode(recall.fid);
        inode.log.origin = Origin::AtServer;
        inode.holding = holding;
    }

    /// A lease has come. If the inode was made here and the one that came with that was lost, nobody waits for it any more.
    pub(crate) fn note_leased(&mut self, fid: Fid) {
        let is_held = self.holder.holding(fid).is_some();
        let waits = |inode: &Inode| inode.log.origin == Origin::Told && inode.log.records == 0;
        if is_held && self.peek(fid).is_some_and(waits) {
            self.inode(fid).log.origin = Origin::AtServer;
            self.repin(fid);
        }
    }

    /// The server has again what it had deleted, and lacks other changes of it, too: nobody else can have had it since, so the
    /// lease that went with it covers them still.
    pub(crate) fn hold_what_is_there_again(&mut self) {
        let removed: Vec<Fid> =
            self.behind.log.pending().filter_map(|record| Behind::removed_by(&record.change)).collect();
        for fid in removed {
            let was_deleted = std::mem::take(&mut self.inode(fid).log.deleted);
            if was_deleted && self.holder.mode(fid).is_none() {
                self.holder.hold_again(fid);
            }
        }
    }

    /// The server has started anew and says what its store has of the digests. What it lacks is pending again: what it had
    /// applied, of which the number of records is returned, and what has no answer. That may rest on what was lost of others, or
    /// of what went through: what a reclaim finds to be without a lease is given up, and only of what is pending.
    pub(crate) fn restore_log(&mut self, now: Monotonic, stored: DigestId) -> usize {
        let lacks = DigestId(stored.0 + 1);
        let (log, before) = (&self.behind.log, self.behind.log.pending_count());
        let in_doubt = log.under_way_records_from(lacks).count();
        // Numbers that were given up stand for nothing.
        if !log.has_undurable_from(lacks) && in_doubt == 0 {
            return 0;
        }
        self.digests_lost(now, lacks);
        self.behind.log.pending_count() - before - in_doubt
    }
}

impl Inner {
    /// After a reclaim: leases that were given back before the server lost what had been told it for them are gone.
    pub(crate) fn give_up_uncovered(self: &Arc<Inner>) {
        let lost = crate::lock(&self.state).give_up_uncovered(None);
        let why = "the server came back without them, and somebody else may have changed the files";
        self.report_loss(lost, why, Keep::Aside);
    }

    /// Says what was lost, and keeps it for recovery. What was given up while its log on the local disk goes on is always put
    /// aside by another thread: until then it is in that.
    pub(crate) fn report_loss(self: &Arc<Inner>, lost: Lost, why: &str, keep: Keep) {
        if lost.records.is_empty() {
            if let Some(disk) = lost.disk {
                self.on_disk(keep, move || disk.remove());
            }
            return;
        }
        self.stats.lost_records.add(lost.records.len() as u64);
        let Lost { records, inodes, disk: ended, to_keep } = lost;
        let goes_on = crate::lock(&self.state).behind.disk().cloned();
        let (inner, why, count, touched) = (Arc::clone(self), why.to_owned(), records.len(), inodes.len());
        match (ended, goes_on, to_keep) {
            (Some(disk), ..) => self.on_disk(keep, move || {
                inner.say_lost(count, touched, &why, disk.keep(&why));
            }),
            // All of the log is read for it.
            (None, Some(disk), _) => drop(self.runtime.spawn_blocking(move || {
                let aside = disk.keep_apart(records, &why);
                inner.say_lost(count, touched, &why, Some(aside));
            })),
            (None, None, Some(ToKeep { keeper, found_at })) => {
                let work = move || {
                    let found_at = |fid, lsn| found_at.get(&(fid, lsn)).copied();
                    let kept = blocking(|| keeper.keep(&records, found_at, &why));
                    if let Err(error) = &kept {
                        tracing::error!(%error, "what is lost could not be kept");
                    }
                    inner.say_lost(count, touched, &why, kept.ok().map(Aside::Kept));
                };
                match keep {
                    Keep::AtOnce => work(),
                    // Until it is done it is nowhere else: the end of the client waits for it.
                    Keep::Aside => {
                        let mut keeping = crate::lock(&self.keeping);
                        while keeping.try_join_next().is_some() {}
                        keeping.spawn_blocking_on(work, &self.runtime);
                    }
                }
            }
            (None, None, None) => inner.say_lost(count, touched, &why, None),
        }
        let gone = {
            let (mut state, now) = self.locked();
            // Of names that are still ahead only the caches know.
            let (ahead, gone): (Vec<Fid>, _) = inodes.iter().partition(|fid| state.is_ahead(&[**fid]));
            self.drop_kernel_copies(&mut state, now, &ahead);
            gone
        };
        drop(self.drop_kernel_caches(gone));
    }

    /// The session has ended, and the server had been told all of its log. But fsync has returned for some of it because this
    /// disk has it, and the server's may lack that: so the log stays until that has it, too. If the power goes there before, it
    /// is kept for recovery.
    pub(crate) fn remove_when_durable(self: &Arc<Inner>, disk: Arc<DiskLog>) {
        let inner = Arc::clone(self);
        let before = crate::lock(&self.state).unsynced.heard_of_all();
        let synced = self.make_durable();
        drop(self.runtime.spawn(async move {
            let synced = match synced {
                Some(synced) => synced.result().await.is_ok(),
                None => false,
            };
            // Where the server has come back with less, this speaks of what it has now.
            let is_there = synced && crate::lock(&inner.state).unsynced.heard_of_all() == before;
            let saying = Arc::clone(&inner);
            inner.on_disk(Keep::Aside, move || match is_there {
                true => disk.remove(),
                false => saying.say_kept(disk.keep(BEFORE_DURABLE)),
            });
        }));
    }

    fn say_kept(&self, aside: Option<Aside>) {
        if let Some(Aside::Kept(_)) = aside {
            self.stats.kept_logs.one();
        }
        tracing::error!(kept = where_kept(aside), "{BEFORE_DURABLE}");
    }

    fn on_disk(&self, keep: Keep, work: impl FnOnce() + Send + 'static) {
        match keep {
            Keep::AtOnce => work(),
            Keep::Aside => drop(self.runtime.spawn_blocking(work)),
        }
    }

    fn say_lost(&self, records: usize, inodes: usize, why: &str, aside: Option<Aside>) {
        if let Some(Aside::Kept(_)) = aside {
            self.stats.kept_logs.one();
        }
        let kept = where_kept(aside);
        tracing::error!(
            records,
            inodes,
            why,
            kept,
            "delayed writes were lost: the next write, fsync or close of each file concerned fails"
        );
    }

    /// Now and then: of what was lost when there was no room on the local disk.
    pub(crate) fn keep_what_was_lost(self: &Arc<Inner>, disk: &Arc<DiskLog>) {
        if !disk.has_more_to_keep() {
            return;
        }
        let (inner, disk) = (Arc::clone(self), Arc::clone(disk));
        drop(self.runtime.spawn_blocking(move || {
            for kept in disk.keep_the_rest() {
                inner.stats.kept_logs.one();
                tracing::warn!(?kept, "what was lost before is put aside, see `soda recover`");
            }
        }));
    }

    /// The server has lost changes of these inodes that had gone through to it: what was cached of them is not so, and what was
    /// done here on top of that cannot be done any more. To be called when what it lost of the log is pending again.
    pub(crate) async fn forget_lost_changes(self: &Arc<Inner>, changed: Vec<(Fid, Lsn)>) {
        if changed.is_empty() {
            return;
        }
        let lost = {
            let (mut state, _) = self.locked();
            // Only the log knows what is still to be told of them: nobody may ask the server before it is.
            let untold = state.behind.log.first_pending().is_some();
            state.behind.restoring = untold.then(|| state.behind.log.last_lsn());
            state.give_up_on_top(&changed)
        };
        let why = "they were done on top of changes that the server has lost in a power cut";
        self.report_loss(lost, why, Keep::Aside);
        let dropped = self.drop_kernel_caches(changed.into_iter().map(|(fid, _)| fid).collect());
        let _ = tokio::time::timeout(KERNEL_PATIENCE, dropped).await;
    }

    /// Waits until the server has been told again what it lost: with `soft`, too, nothing else goes before that. Errors of that
    /// are those of who waits for it.
    pub(crate) async fn restored(self: &Arc<Inner>) {
        let lsn = self.locked().0.behind.restoring;
        if let Some(lsn) = lsn
            && let Err(error) = self.told_at_last_up_to(lsn).await
        {
            tracing::warn!(%error, "not all that the server lost could be told again");
        }
        self.locked().0.behind.restoring.take_if(|restoring| Some(*restoring) == lsn);
    }

    /// A session has begun: its log goes to the local disk, if there is a cache directory. Until it is there changes go through.
    /// If there is none, what the session loses is kept where the client was told.
    pub(crate) fn begin_disk_log(&self, welcome: &SessionWelcome, keep: Keep) {
        let WritePolicy::Behind(policy) = self.config.write_policy() else { return };
        let slots = self.slots.digest_slots();
        let mut state = crate::lock(&self.state);
        state.behind.begin_session(slots);
        let Some(slots) = slots else { return };
        let header = Header {
            server: self.config.server.clone(),
            volume: self.config.volume.clone(),
            client: self.config.client_id,
            session: welcome.key,
            digest: OpId { slot: slots.first, sequence: Sequence(state.behind.last_digest().0) },
            slots: slots.count,
        };
        let Some(dir) = &self.config.cache.dir else {
            let keeper = |dir: &PathBuf| Arc::new(Keeper::new(dir, &self.config.name, header));
            state.behind.keeper = self.config.keep_lost_in.as_ref().map(keeper);
            return;
        };
        let safety = match policy.fsync {
            Fsync::Server => Safety::ProcessCrash,
            Fsync::Local => Safety::PowerCut,
        };
        let disk = Arc::new(DiskLog::new(dir, &self.config.name, header, safety, policy.max_bytes));
        state.behind.begin_disk(Some(Arc::clone(&disk)));
        drop(state);
        // Without room changes go through.
        self.on_disk(keep, move || {
            let _ = disk.begin_session();
            crash::point("client.session-begun");
        });
    }

    /// Before anything else is sent to a server that has started anew.
    pub(crate) fn restore_digests(self: &Arc<Inner>, welcome: &SessionWelcome) {
        let Some(slots) = self.slots.digest_slots() else { return };
        let stored = DigestId(slots.stored(welcome).0);
        let (mut state, now) = self.locked();
        state.behind.reserve.note_another_run();
        let again = state.restore_log(now, stored);
        if again > 0 {
            state.behind.restoring = Some(state.behind.log.last_lsn());
        }
        // Under the same lock: what is sent from here on is not of those.
        let taken = self.link.take_digests(slots, stored.0 + 1);
        taken.into_iter().for_each(|pending| state.holder.fail_request(pending.ticket));
        state.behind.unanswered.retain(|id| *id <= stored);
        let disk = state.behind.disk().cloned();
        drop(state);
        // After the reclaim this is the same session for whoever finds the log: it must not believe that the server has them.
        let _ = disk.map(|disk| disk.write());
        if again > 0 {
            tracing::warn!(again, "the server lost delayed writes in a power cut: they are sent again");
        }
    }
}

fn where_kept(aside: Option<Aside>) -> String {
    match aside {
        Some(Aside::Kept(dir)) => format!("{} (see `soda recover`)", dir.display()),
        Some(Aside::Left(dir)) => format!("{}, where it was (see `soda recover`)", dir.display()),
        Some(Aside::Here) => "the operation log, until there is room to put them aside".to_owned(),
        None => "nowhere: they are gone".to_owned(),
    }
}
