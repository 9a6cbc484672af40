//! Answering recalls: the kernel's caches first, then our own, then the answer.
//!
//! While a recall is being worked on, what is cached is still served (with no validity), so that a reader which holds a
//! page or directory lock that the kernel's invalidation needs gets its answer. A recall that the kernel does not have
//! to hear of is answered by the task that read it, at once.

mod neighbours;
mod plan;
mod pool;

pub(crate) use pool::Pool;

use crate::behind::here::Origin;
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
    fid: Fid,
    epoch: Epoch,
    keep: Option<Mode>,
    began: Monotonic,
    plan: Plan,
    progress: Arc<Progress>,
    /// What else is lowered on this occasion.
    neighbours: Vec<Fid>,
}

impl Job {
    /// For whoever may answer it in the place of the thread that works on it.
    fn aside(&self) -> Job {
        Job { plan: Plan::default(), neighbours: Vec::new(), progress: Arc::clone(&self.progress), ..*self }
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
        let mut acks = Vec::new();
        for recall in recalls {
            self.stats.recalls.one();
            match self.begin_recall(recall) {
                Begun::Gone(ack) => {
                    self.stats.recalls_gone.one();
                    acks.push(ack);
                }
                Begun::Running => {}
                Begun::Job(job) if self.may_block(&job) => self.hand_on(job),
                Begun::Job(job) => match self.finish_recall(&job, Finish::IfDone) {
                    Finished::Answer(ack) => acks.push(ack),
                    Finished::Before => {}
                    Finished::NotYet(plan) => self.hand_on(Job { plan, ..job }),
                },
            }
        }
        self.acknowledge(acks);
    }

    fn may_block(&self, job: &Job) -> bool {
        let ahead = !crate::lock(&self.state).to_tell_first(job.fid).is_empty();
        ahead || job.plan.needs_kernel() || !job.neighbours.is_empty() || !self.answers.none_inside()
    }

    /// To a thread that may block.
    fn hand_on(self: &Arc<Inner>, job: Job) {
        self.take_back_changes(&job);
        self.watch_names(&job);
        self.watch_stuck(&job);
        let inner = Arc::clone(self);
        if crate::lock(&self.state).to_tell_first(job.fid).is_empty() {
            self.recall_pool.run(Box::new(move || inner.work_on(job)));
            return;
        }
        // Not in the pool: its threads are for what does not wait for the server.
        self.runtime.spawn(async move {
            inner.flush_for_recall(job.fid).await;
            let pool = inner.recall_pool.clone();
            pool.run(Box::new(move || inner.work_on(job)));
        });
    }

    fn begin_recall(self: &Arc<Inner>, recall: &Recall) -> Begun {
        let now = self.now();
        let mut state = crate::lock(&self.state);
        match state.peek(recall.fid).map(|inode| inode.origin) {
            // The answer to the digest that made it is on its way, with the lease that is meant. The server asks again.
            Some(Origin::Here) => return Begun::Running,
            Some(Origin::Told) => state.adopt_lease(now, recall),
            _ => {}
        }
        let step = state.holder.handle_recall(now, recall);
        let opens = state.existing(recall.fid).map_or(0, |inode| inode.opens);
        match step {
            RecallStep::AlreadyGone(mut ack) => {
                ack.in_use = if opens > 0 { InUse::Yes } else { InUse::No };
                if opens > 0 && ack.kept.is_none() {
                    state.inode(recall.fid).open_at_server = InUse::Yes;
                }
                Begun::Gone(ack)
            }
            // This client never says what a deep lease covers (`handle_reply_covered`), so nothing is.
            RecallStep::Working | RecallStep::DropPart { .. } => Begun::Running,
            RecallStep::Drop { fid, epoch, keep } => {
                state.inode(fid).recalling += 1;
                state.repin(fid);
                self.answers.bump();
                let plan = Plan::new(&mut state, now, fid, keep);
                if state.names_lock() == NamesLock::Directory {
                    state.note_contended(now, fid);
                }
                let neighbours = if keep == Some(Mode::Read) { state.take_unseen(fid) } else { Vec::new() };
                Begun::Job(Job { fid, epoch, keep, began: now, plan, progress: Arc::default(), neighbours })
            }
        }
    }

    /// Own changes of a directory that wait at the server behind this recall hold the lock which the kernel needs to
    /// drop the directory's names. Look-ups do, too, but stay: a kernel that asks for a name again takes an error for
    /// "another inode by now", and what is mounted below would come loose. For them there is [`Inner::watch_names`].
    fn take_back_changes(self: &Arc<Inner>, job: &Job) {
        if job.plan.names.is_none() || self.hooks.names_lock() == NamesLock::None {
            return;
        }
        let tags = self.link.changing_names_of(job.fid);
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
        let of_directory =
            crate::lock(&self.state).existing(job.fid).is_some_and(|inode| inode.dir.is_some());
        if !of_directory || self.hooks.names_lock() == NamesLock::None {
            return;
        }
        let (inner, mut job) = (Arc::clone(self), job.aside());
        self.runtime.spawn(async move {
            tokio::time::sleep(NAMES_RUN_OUT).await;
            inner.flush_for_recall(job.fid).await;
            if job.progress.done.load(Ordering::Acquire) {
                return;
            }
            let runtime = inner.runtime.clone();
            // Not in the pool: all of its threads may be waiting for locks.
            runtime.spawn_blocking(move || {
                let now = inner.now();
                job.plan = Plan::new(&mut crate::lock(&inner.state), now, job.fid, None).without_names();
                job.plan.tell(&*inner.hooks, job.fid);
                if let Finished::Answer(ack) = inner.finish_recall(&job, Finish::Now) {
                    tracing::debug!(fid = %job.fid, "recall answered when the kernel's names had run out");
                    inner.stats.recalls_run_out.one();
                    inner.acknowledge(vec![ack]);
                }
            });
        });
    }

    /// The last resort against a deadlock through the kernel: an own change, a page that the kernel must write back before
    /// it can drop it, waits at the server behind this recall, whose invalidation waits for the change. Then the server
    /// gets its answer first. This machine may see the old state for the moment that the kernel still needs.
    fn watch_stuck(self: &Arc<Inner>, job: &Job) {
        let inner = Arc::clone(self);
        // Only these wait for something that a change of our own can hold.
        let can_be_stuck = job.plan.data.is_some();
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
                    // Under a write lease own changes go ahead of the recall: they are not what it waits for.
                    let covered = state.holder.mode(fid) == Some(Mode::Write);
                    !covered && state.existing(fid).is_some_and(|inode| inode.changes > 0)
                };
                if stuck && behind {
                    tracing::warn!(%fid, "recall answered before the kernel: a change of its own waits for it");
                    inner.stats.recalls_forced.one();
                    if let Finished::Answer(ack) = inner.finish_recall(&job, Finish::Now) {
                        inner.acknowledge(vec![ack]);
                    }
                    return;
                }
            }
        });
    }

    fn work_on(self: &Arc<Inner>, mut job: Job) {
        let mut neighbours = std::mem::take(&mut job.neighbours);
        let may_go = |state: &crate::cache::State, fid: &Fid| state.may_give_back(*fid);
        let undurable = {
            let state = crate::lock(&self.state);
            let (may_go, undurable) = neighbours.into_iter().partition(|fid| may_go(&state, fid));
            neighbours = may_go;
            undurable
        };
        let of_directory =
            crate::lock(&self.state).existing(job.fid).is_some_and(|inode| inode.dir.is_some());
        if of_directory {
            neighbours = self.lower_first(neighbours);
        }
        self.answer(job);
        self.lower_all(&neighbours);
        self.lower_when_durable(undurable);
    }

    /// Nobody else may see it before the server knows what was done here.
    async fn flush_for_recall(self: &Arc<Inner>, fid: Fid) {
        let mut digests = self.stats.digests.get();
        loop {
            let untold = crate::lock(&self.state).to_tell_first(fid);
            if untold.is_empty() {
                return;
            }
            // It fails where the server has no room, which may change, or if all is lost: then nothing is ahead any more.
            let flushed = tokio::time::timeout(PROGRESS, self.flush(&untold)).await;
            if matches!(flushed, Ok(Err(_))) {
                tokio::time::sleep(FLUSH_AGAIN).await;
            }
            let now = self.stats.digests.get();
            if flushed.is_err() && std::mem::replace(&mut digests, now) != now {
                self.note(&Note::RecallProgress(vec![fid]));
            }
        }
    }

    fn answer(self: &Arc<Inner>, mut job: Job) {
        loop {
            self.answers.wait();
            if job.plan.needs_kernel() {
                self.stats.recalls_kernel.one();
                job.progress.telling.store(true, Ordering::Release);
                job.plan.tell(&*self.hooks, job.fid);
            }
            match self.finish_recall(&job, Finish::IfDone) {
                Finished::Answer(ack) => return self.acknowledge(vec![ack]),
                Finished::Before => return,
                Finished::NotYet(plan) => job.plan = plan,
            }
            // The server may have come back with less than it had.
            self.runtime.block_on(self.flush_for_recall(job.fid));
        }
    }

    /// The kernel holds nothing any more: brings our own caches down, and makes the answer.
    fn finish_recall(&self, job: &Job, finish: Finish) -> Finished {
        let Job { fid, epoch, keep, began, .. } = *job;
        let asked_hooks = self.hooks.in_use(fid);
        let now = self.now();
        let mut state = crate::lock(&self.state);
        if finish == Finish::IfDone
            && !job.progress.done.load(Ordering::Acquire)
            && let Some(plan) = job.plan.overtaken(&mut state, now, fid)
        {
            return Finished::NotYet(plan);
        }
        if !job.progress.done.load(Ordering::Acquire) && !state.to_tell_first(fid).is_empty() {
            // Nobody may see it before the server knows what was done here.
            return Finished::NotYet(job.plan.clone());
        }
        if job.progress.done.swap(true, Ordering::AcqRel) {
            return Finished::Before;
        }
        if keep.is_none() {
            state.kernel_dropped(fid);
        }
        if keep.is_none() || state.inode(fid).changes > 0 {
            state.void(fid);
        }
        let inode = state.inode(fid);
        inode.recalling -= 1;
        // Others may see them before we hear of it.
        inode.uncovered_changes = inode.changes;
        let in_use = if inode.opens > 0 { InUse::Yes } else { asked_hooks };
        if in_use == InUse::Yes && keep.is_none() {
            inode.open_at_server = InUse::Yes;
        }
        let ack = state.holder.finish_recall(now, fid, epoch, in_use);
        state.repin(fid);
        drop(state);
        self.stats.recall_took(now.since(began));
        Finished::Answer(ack)
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
    pub(crate) fn drop_kernel_copies(
        self: &Arc<Inner>,
        state: &mut crate::cache::State,
        now: Monotonic,
        fids: &[Fid],
    ) {
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

    /// Gives leases back that were not used for a while.
    pub(crate) fn release_idle(self: &Arc<Inner>, idle: Duration) {
        let now = self.now();
        let fids = crate::lock(&self.state).holder.idle(now, idle);
        if fids.is_empty() {
            return;
        }
        let inner = Arc::clone(self);
        self.recall_pool.run(Box::new(move || inner.give_back(fids)));
    }

    fn give_back(self: &Arc<Inner>, fids: Vec<Fid>) {
        let mut acks = Vec::new();
        for fid in fids {
            let now = self.now();
            let plan = {
                let mut state = crate::lock(&self.state);
                let may_go = state.may_give_back(fid);
                let Some(inode) = state.existing(fid) else {
                    acks.extend(state.holder.release(now, fid));
                    continue;
                };
                if inode.recalling > 0 || inode.changes > 0 || !may_go {
                    continue;
                }
                inode.recalling += 1;
                self.answers.bump();
                Plan::new(&mut state, now, fid, None)
            };
            self.answers.wait();
            plan.tell(&*self.hooks, fid);
            let asked_hooks = self.hooks.in_use(fid);
            let mut state = crate::lock(&self.state);
            state.kernel_dropped(fid);
            state.void(fid);
            let inode = state.inode(fid);
            inode.recalling -= 1;
            let in_use = if inode.opens > 0 { InUse::Yes } else { asked_hooks };
            if let Some(ack) = state.holder.release(now, fid) {
                if in_use == InUse::Yes {
                    state.inode(fid).open_at_server = InUse::Yes;
                }
                acks.push(RecallAck { in_use, ..ack });
            }
            state.repin(fid);
        }
        self.release(acks);
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
    Answer(RecallAck),
    /// Somebody else has answered it.
    Before,
    /// The kernel has to be told of this, too.
    NotYet(Plan),
}

enum Begun {
    Gone(RecallAck),
    /// It is worked on already.
    Running,
    Job(Job),
}
