//! Answering recalls: the kernel's caches first, then our own, then the answer.
//!
//! While a recall is being worked on, what is cached is still served (with no validity), so that a reader which holds a
//! page or directory lock that the kernel's invalidation needs gets its answer. A recall that the kernel does not have
//! to hear of is answered by the task that read it, at once.

mod idle;
mod neighbours;
mod plan;
mod pool;

pub(crate) use pool::Pool;

use crate::behind::here::Origin;
use crate::cache::State;
use crate::connection::link::Cancelled;
use crate::hooks::{NAMES_RUN_OUT, Names, NamesLock};
use crate::inner::{Inner, said_open};
use plan::Plan;
use soda_lease::holder::RecallStep;
use soda_protocol::Note;
use soda_types::{Epoch, Fid, InUse, Mode, Monotonic, Recall, RecallAck};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// For how long the kernel may be seen not to get on with it while own changes of the object wait behind the recall: this
/// or up to twice this.
const STUCK: Duration = Duration::from_secs(1);

/// Between a flush that failed and the next.
const FLUSH_AGAIN: Duration = Duration::from_millis(100);
/// How often the server hears that a flush is getting on.
const PROGRESS: Duration = Duration::from_secs(1);

/// A recall in progress.
#[derive(Debug)]
struct Job {
    /// The object that is asked for.
    fid: Fid,
    epoch: Epoch,
    of: Of,
    began: Monotonic,
    /// What has to be brought down for it.
    parts: Vec<Part>,
    progress: Arc<Progress>,
    /// What else is lowered on this occasion.
    neighbours: Vec<Fid>,
}

/// What is recalled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Of {
    /// The node lease on the object.
    Node,
    /// Part of the deep lease on this directory.
    Deep(Fid),
}

/// An inode whose caches are brought down.
#[derive(Clone, Debug)]
struct Part {
    fid: Fid,
    keep: Option<Mode>,
    plan: Plan,
}

impl Job {
    /// For whoever may answer it in the place of the thread that works on it.
    fn aside(&self) -> Job {
        let parts = self.parts.iter().map(|part| Part { plan: Plan::default(), ..*part }).collect();
        Job { parts, neighbours: Vec::new(), progress: Arc::clone(&self.progress), ..*self }
    }

    fn needs_kernel(&self) -> bool {
        self.parts.iter().any(|part| part.plan.needs_kernel())
    }
}

#[derive(Debug, Default)]
struct Progress {
    /// The kernel is being told.
    telling: AtomicBool,
    /// Answered, by whoever came first.
    done: AtomicBool,
}

impl Inner {
    pub(crate) fn handle_recalls(self: &Arc<Inner>, recalls: &[Recall]) {
        recalls.iter().for_each(|recall| self.stats.recalled(&recall.cause));
        self.work_on_recalls(recalls);
    }

    fn work_on_recalls(self: &Arc<Inner>, recalls: &[Recall]) {
        let mut acks = Vec::new();
        for recall in recalls {
            if recall.object.is_some() && self.defer(recall) {
                continue;
            }
            match self.begin_recall(recall) {
                Begun::Gone(ack) => {
                    self.stats.recalls_gone.one();
                    acks.push(ack);
                }
                Begun::Running => {}
                Begun::Job(job) if self.may_block(&job) => self.hand_on(job),
                Begun::Job(job) => match self.finish_recall(&job, Finish::IfDone) {
                    Finished::Answer(all) => acks.extend(all),
                    Finished::Before => {}
                    Finished::NotYet(parts) => self.hand_on(Job { parts, ..job }),
                },
            }
        }
        self.acknowledge(acks);
    }

    /// Part of a deep lease is asked for, and the answer to a digest that made something below is not here yet. It may have been
    /// lost with a connection, and the server believe that the deep lease covers what it made: no question about that part is
    /// answered before that is known.
    fn defer(self: &Arc<Inner>, recall: &Recall) -> bool {
        let Some(digest) = crate::lock(&self.state).behind.digest_under_way() else { return false };
        let (inner, recall) = (Arc::clone(self), recall.clone());
        self.runtime.spawn(async move {
            while crate::lock(&inner.state).behind.digest_under_way() == Some(digest) {
                let flushed = tokio::time::timeout(PROGRESS, inner.flush_all()).await;
                if matches!(flushed, Ok(Err(_))) {
                    tokio::time::sleep(FLUSH_AGAIN).await;
                }
            }
            inner.work_on_recalls(&[recall]);
        });
        true
    }

    fn may_block(&self, job: &Job) -> bool {
        let ahead = !crate::lock(&self.state).untold(&job.parts).is_empty();
        ahead || job.needs_kernel() || !job.neighbours.is_empty() || !self.answers.none_inside()
    }

    /// To a thread that may block.
    fn hand_on(self: &Arc<Inner>, job: Job) {
        self.take_back_changes(&job);
        self.watch_names(&job);
        self.watch_stuck(&job);
        let inner = Arc::clone(self);
        if crate::lock(&self.state).untold(&job.parts).is_empty() {
            self.recall_pool.run(Box::new(move || inner.work_on(job)));
            return;
        }
        // Not in the pool: its threads are for what does not wait for the server.
        self.runtime.spawn(async move {
            inner.flush_for_recall(job.fid, &job.parts).await;
            let pool = inner.recall_pool.clone();
            pool.run(Box::new(move || inner.work_on(job)));
        });
    }

    fn begin_recall(self: &Arc<Inner>, recall: &Recall) -> Begun {
        let now = self.now();
        let asked = recall.object.unwrap_or(recall.fid);
        let mut state = crate::lock(&self.state);
        match state.peek(asked).map(|inode| inode.origin) {
            // The answer to the digest that made it is on its way, with the lease that is meant. The server asks again.
            Some(Origin::Here) => return Begun::Running,
            Some(Origin::Told) if recall.object.is_none() => state.adopt_lease(now, recall),
            _ => {}
        }
        let step = state.holder.handle_recall(now, recall);
        let opens = state.existing(asked).map_or(0, |inode| inode.opens);
        let (of, keep, inside) = match step {
            RecallStep::AlreadyGone(mut ack) => {
                ack.in_use = if opens > 0 { InUse::Yes } else { InUse::No };
                if opens > 0 && ack.kept.is_none() {
                    state.inode(asked).open_at_server = InUse::Yes;
                }
                return Begun::Gone(ack);
            }
            RecallStep::Working => return Begun::Running,
            RecallStep::Drop { fid, keep, .. } => (Of::Node, keep, vec![fid]),
            RecallStep::DropPart { lease, keep, inside, .. } => (Of::Deep(lease), keep, inside),
        };
        self.answers.bump();
        let mut parts = Vec::with_capacity(inside.len());
        for fid in inside {
            // What a node lease covers besides may stay.
            let keep = if of == Of::Node { keep } else { keep.max(state.holder.node_mode(fid)) };
            if keep == Some(Mode::Write) {
                continue;
            }
            state.inode(fid).recalling += 1;
            state.repin(fid);
            let plan = Plan::new(&mut state, now, fid, keep).for_cause(&recall.cause);
            if state.names_lock() == NamesLock::Directory {
                state.note_contended(now, fid);
            }
            parts.push(Part { fid, keep, plan });
        }
        let neighbours = if keep == Some(Mode::Read) { state.take_unseen(asked) } else { Vec::new() };
        let (fid, epoch, progress) = (asked, recall.epoch, Arc::default());
        Begun::Job(Job { fid, epoch, of, began: now, parts, progress, neighbours })
    }

    /// Own changes of a directory that wait at the server behind this recall hold the lock which the kernel needs to
    /// drop the directory's names. Look-ups do, too, but stay: a kernel that asks for a name again takes an error for
    /// "another inode by now", and what is mounted below would come loose. For them there is [`Inner::watch_names`].
    fn take_back_changes(self: &Arc<Inner>, job: &Job) {
        if self.hooks.names_lock() == NamesLock::None {
            return;
        }
        let dirs = job.parts.iter().filter(|part| part.plan.names.is_some());
        let tags: Vec<u64> = dirs.flat_map(|part| self.link.changing_names_of(part.fid)).collect();
        if tags.is_empty() {
            return;
        }
        let now = self.now();
        if !crate::lock(&self.state).send_back(now) {
            return;
        }
        for tag in tags {
            self.stats.names_cancelled.one();
            self.cancel(tag, Cancelled::ByRecall);
        }
    }

    /// The kernel may never get the directory's lock before this recall is answered: whatever holds it may wait at the
    /// server for just that. But what the kernel was told before the recall it believes for a moment only, and since then
    /// it was told nothing: when the moment is over nothing old can be used any more, lock or no lock.
    fn watch_names(self: &Arc<Inner>, job: &Job) {
        if self.hooks.names_lock() == NamesLock::None || !self.concerns_names(job) {
            return;
        }
        let (inner, mut job) = (Arc::clone(self), job.aside());
        self.runtime.spawn(async move {
            tokio::time::sleep(NAMES_RUN_OUT).await;
            inner.flush_for_recall(job.fid, &job.parts).await;
            if job.progress.done.load(Ordering::Acquire) {
                return;
            }
            let runtime = inner.runtime.clone();
            // Not in the pool: all of its threads may be waiting for locks.
            runtime.spawn_blocking(move || {
                let now = inner.now();
                for part in &mut job.parts {
                    part.plan =
                        Plan::new(&mut crate::lock(&inner.state), now, part.fid, None).without_names();
                    part.plan.tell(&*inner.hooks, part.fid);
                }
                if let Finished::Answer(acks) = inner.finish_recall(&job, Finish::Now) {
                    tracing::debug!(fid = %job.fid, "recall answered when the kernel's names had run out");
                    inner.stats.recalls_run_out.one();
                    inner.acknowledge(acks);
                }
            });
        });
    }

    fn concerns_names(&self, job: &Job) -> bool {
        let mut state = crate::lock(&self.state);
        job.parts.iter().any(|part| state.existing(part.fid).is_some_and(|inode| inode.dir.is_some()))
    }

    /// The last resort against a deadlock through the kernel: an own change, a page that the kernel must write back before
    /// it can drop it, waits at the server behind this recall, whose invalidation waits for the change. Then the server
    /// gets its answer first. This machine may see the old state for the moment that the kernel still needs.
    fn watch_stuck(self: &Arc<Inner>, job: &Job) {
        let inner = Arc::clone(self);
        // Only these wait for something that a change of our own can hold.
        let can_be_stuck = job.parts.iter().any(|part| part.plan.data.is_some());
        let job = job.aside();
        let fid = job.fid;
        let mut was_telling = false;
        self.runtime.spawn(async move {
            loop {
                tokio::time::sleep(STUCK).await;
                if job.progress.done.load(Ordering::Acquire) {
                    return;
                }
                // For the whole of the last period, so that a slow machine is not taken for a stuck one.
                let stuck = can_be_stuck && was_telling;
                was_telling = job.progress.telling.load(Ordering::Acquire);
                let behind = {
                    let mut state = crate::lock(&inner.state);
                    job.parts.iter().any(|Part { fid, .. }| {
                        // Under a write lease own changes go ahead of the recall: they are not what it waits for.
                        let covered = state.holder.mode(*fid) == Some(Mode::Write);
                        !covered && state.existing(*fid).is_some_and(|inode| inode.changes > 0)
                    })
                };
                if stuck && behind {
                    tracing::warn!(%fid, "recall answered before the kernel: a change of its own waits for it");
                    inner.stats.recalls_forced.one();
                    if let Finished::Answer(acks) = inner.finish_recall(&job, Finish::Now) {
                        inner.acknowledge(acks);
                    }
                    return;
                }
            }
        });
    }

    fn work_on(self: &Arc<Inner>, mut job: Job) {
        let mut neighbours = std::mem::take(&mut job.neighbours);
        let may_go = |state: &State, fid: &Fid| state.may_give_back(*fid);
        let undurable = {
            let state = crate::lock(&self.state);
            let (may_go, undurable) = neighbours.into_iter().partition(|fid| may_go(&state, fid));
            neighbours = may_go;
            undurable
        };
        if self.concerns_names(&job) {
            neighbours = self.lower_first(neighbours);
        }
        self.answer(job);
        self.lower_all(&neighbours);
        self.lower_when_durable(undurable);
    }

    /// Nobody else may see it before the server knows what was done here.
    async fn flush_for_recall(self: &Arc<Inner>, asked: Fid, parts: &[Part]) {
        let mut digests = self.stats.digests.get();
        let mut began = None;
        loop {
            let untold = crate::lock(&self.state).untold(parts);
            if untold.is_empty() {
                if let Some(began) = began {
                    self.stats.recall_flush_took(self.now().since(began));
                }
                return;
            }
            if began.is_none() {
                began = Some(self.now());
                self.stats.recall_flushes(crate::lock(&self.state).behind.needed_for(&untold));
            }
            // It fails where the server has no room, which may change, or if all is lost: then nothing is ahead any more.
            let flushed = tokio::time::timeout(PROGRESS, self.flush(&untold)).await;
            if matches!(flushed, Ok(Err(_))) {
                tokio::time::sleep(FLUSH_AGAIN).await;
            }
            let now = self.stats.digests.get();
            if flushed.is_err() && std::mem::replace(&mut digests, now) != now {
                self.note(&Note::RecallProgress(vec![asked]));
            }
        }
    }

    fn answer(self: &Arc<Inner>, mut job: Job) {
        loop {
            self.answers.wait();
            if job.needs_kernel() {
                self.stats.recalls_kernel.one();
                job.progress.telling.store(true, Ordering::Release);
                job.parts.iter().for_each(|part| part.plan.tell(&*self.hooks, part.fid));
            }
            match self.finish_recall(&job, Finish::IfDone) {
                Finished::Answer(acks) => return self.acknowledge(acks),
                Finished::Before => return,
                Finished::NotYet(parts) => job.parts = parts,
            }
            // The server may have come back with less than it had.
            self.runtime.block_on(self.flush_for_recall(job.fid, &job.parts));
        }
    }

    /// The kernel holds nothing any more: brings our own caches down, and makes the answer.
    fn finish_recall(&self, job: &Job, finish: Finish) -> Finished {
        let used: Vec<InUse> = job.parts.iter().map(|part| self.hooks.in_use(part.fid)).collect();
        let now = self.now();
        let mut state = crate::lock(&self.state);
        let done = job.progress.done.load(Ordering::Acquire);
        if finish == Finish::IfDone && !done {
            let mut parts = job.parts.clone();
            let mut overtaken = false;
            for part in &mut parts {
                let plan = part.plan.overtaken(&mut state, now, part.fid);
                overtaken |= plan.is_some();
                part.plan = plan.unwrap_or_else(|| part.plan.clone().told());
            }
            if overtaken {
                return Finished::NotYet(parts);
            }
        }
        if !done && !state.untold(&job.parts).is_empty() {
            // Nobody may see it before the server knows what was done here.
            return Finished::NotYet(job.parts.clone());
        }
        if job.progress.done.swap(true, Ordering::AcqRel) {
            return Finished::Before;
        }
        let mut in_use = InUse::No;
        let mut acks = Vec::new();
        for (part, used) in job.parts.iter().zip(used) {
            let used = state.bring_down(part, used);
            if part.fid == job.fid {
                in_use = used;
            } else if used == InUse::Yes && part.keep.is_none() {
                acks.push(said_in_use(job.fid, part.fid));
            }
        }
        acks.push(match job.of {
            Of::Node => state.holder.finish_recall(now, job.fid, job.epoch, in_use),
            Of::Deep(lease) => state.holder.finish_part(lease, job.epoch, in_use),
        });
        job.parts.iter().for_each(|part| state.repin(part.fid));
        drop(state);
        self.stats.recall_took(now.since(job.began));
        Finished::Answer(acks)
    }

    fn acknowledge(&self, acks: Vec<RecallAck>) {
        if acks.is_empty() {
            return;
        }
        let said_open = said_open(&acks);
        self.note(&Note::RecallAcks(acks));
        self.close_overtaken(said_open);
    }

    /// Changes whose callers have gone: nobody will tell the kernel what they did, so it must not go on with what it has.
    pub(crate) fn drop_kernel_copies(self: &Arc<Inner>, state: &mut State, now: Monotonic, fids: &[Fid]) {
        self.answers.bump();
        let plans: Vec<(Fid, Plan)> =
            fids.iter().map(|fid| (*fid, Plan::new(state, now, *fid, None))).collect();
        let plans: Vec<_> = plans.into_iter().filter(|(_, plan)| plan.needs_kernel()).collect();
        if !plans.is_empty() {
            let inner = Arc::clone(self);
            self.recall_pool.run(Box::new(move || {
                inner.answers.wait();
                plans.iter().for_each(|(fid, plan)| plan.tell(&*inner.hooks, *fid));
            }));
        }
    }

    /// Leases that are gone without a recall: nobody waits for an answer, but the kernel must not go on using them.
    ///
    /// What is returned tells when the kernel has dropped them.
    pub(crate) fn drop_kernel_caches(self: &Arc<Inner>, fids: Vec<Fid>) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        let now = self.now();
        let mut plans = Vec::new();
        {
            let mut state = crate::lock(&self.state);
            self.answers.bump();
            for fid in fids {
                let plan = Plan::new(&mut state, now, fid, None);
                state.kernel_dropped(fid);
                state.void(fid);
                if plan.needs_kernel() {
                    plans.push((fid, plan));
                }
            }
        }
        if !plans.is_empty() {
            let inner = Arc::clone(self);
            self.recall_pool.run(Box::new(move || {
                inner.answers.wait();
                plans.iter().for_each(|(fid, plan)| plan.tell(&*inner.hooks, *fid));
                let _ = done.send(());
            }));
        }
        is_done
    }

    /// Everything the kernel holds, at once: the machine was suspended, and the kernel's time-outs stood still.
    pub(crate) fn drop_all_kernel_caches(self: &Arc<Inner>) {
        let fids: Vec<Fid> = crate::lock(&self.state).inodes().map(|(fid, _)| *fid).collect();
        let inner = Arc::clone(self);
        self.recall_pool.run(Box::new(move || {
            // Otherwise names run out by themselves, almost as soon.
            let names = inner.hooks.names_lock() == NamesLock::None;
            for fid in fids {
                inner.hooks.invalidate_attr(fid);
                if names && crate::lock(&inner.state).existing(fid).is_some_and(|inode| inode.dir.is_some()) {
                    inner.hooks.invalidate_names(fid, &Names::All);
                }
            }
        }));
    }
}

/// Whether a recall is answered although the kernel may not be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Finish {
    IfDone,
    Now,
}

enum Finished {
    /// The last one is the recall's own.
    Answer(Vec<RecallAck>),
    /// Somebody else has answered it.
    Before,
    /// The kernel has to be told of this, too.
    NotYet(Vec<Part>),
}

enum Begun {
    Gone(RecallAck),
    /// It is worked on already.
    Running,
    Job(Job),
}

impl State {
    /// What the server has to be told before these may be seen by others.
    fn untold(&self, parts: &[Part]) -> Vec<Fid> {
        parts.iter().flat_map(|part| self.to_tell_first(part.fid)).collect()
    }

    /// The kernel holds no more of it than may be kept: neither do we. Says whether it is in use.
    fn bring_down(&mut self, part: &Part, used: InUse) -> InUse {
        let Part { fid, keep, .. } = *part;
        if keep.is_none() {
            self.kernel_dropped(fid);
        }
        if keep.is_none() || self.inode(fid).changes > 0 {
            self.void(fid);
        }
        let inode = self.inode(fid);
        inode.recalling -= 1;
        // Others may see them before we hear of it.
        inode.uncovered_changes = inode.changes;
        let in_use = if inode.opens > 0 { InUse::Yes } else { used };
        if in_use == InUse::Yes && keep.is_none() {
            inode.open_at_server = InUse::Yes;
        }
        in_use
    }
}

/// Beside the answer about a directory: a file below it is open here, and nothing will be asked for it any more. No epoch: it
/// answers nothing.
fn said_in_use(asked: Fid, fid: Fid) -> RecallAck {
    RecallAck { fid: asked, epoch: Epoch(0), kept: None, in_use: InUse::Yes, uses: 0, object: Some(fid) }
}
