//! Answering recalls: what was done here and not told, then the kernel's caches, then our own, then the answer.
//!
//! ```text
//! handle_recalls ── begin ─┬─ gone: the lease is not here any more ──────────────────────────────┐
//!                          ├─ running: the first of two equal recalls answers                     │
//!                          └─ job ─┬─ nothing may block ────────────────────────────────┐         │
//!                                  └─ hand on ── flush ── tell the kernel ───────────── finish ── acknowledge
//!                                                  └──────────── not yet: overtaken ──────┘
//! ```
//!
//! *Where.* Each job is answered by the task that read the recall if nothing may block, else by a thread of the
//! [pool](crate::pool), after a task has flushed. Beside it stand those that cut the knots in which the kernel would wait for
//! ever ([`unblock`]): whoever is first to set [`Progress::done`] answers, and the others find it done.
//!
//! *Meanwhile.* While a recall is being worked on, what is cached is still served (with no validity), so that a reader
//! which holds a page or directory lock that the kernel's invalidation needs gets its answer.
//!
//! *Instead.* Who only wants attributes is told them while the lease stays ([`inquiries`]).
//!
//! *Not asked for.* Leases are also given back or lowered unasked ([`idle`], [`neighbours`], [`whole`]).

mod deep;
mod flush;
mod idle;
mod inquiries;
mod locks;
mod neighbours;
mod unblock;
mod whole;

use crate::cache::State;
use crate::cache::inode::Origin;
use crate::inner::{Inner, Passed, said_open};
use crate::kernel::Plan;
use soda_lease::holder::{RecallStep, Scan};
use soda_protocol::Note;
use soda_types::{Cause, Epoch, Fid, InUse, LeasePart, Mode, Monotonic, Recall, RecallAck};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// A deep lease of which one object after the other is asked for.
    scan: Option<(Fid, Scan)>,
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
        Job { parts, neighbours: Vec::new(), scan: None, progress: Arc::clone(&self.progress), ..*self }
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
    pub(crate) fn handle_passed(self: &Arc<Inner>, passed: Passed) {
        if !passed.free.is_empty() {
            self.handle_recalls(&passed.free);
        }
        for (recall, fids) in passed.to_drop {
            let inner = Arc::clone(self);
            self.recall_pool.run(Box::new(move || {
                fids.into_iter().for_each(|fid| inner.hooks.invalidate_data(fid, 0..u64::MAX));
                inner.gate.dropped_for(&recall);
                inner.handle_recalls(&[recall]);
            }));
        }
    }

    fn handle_recalls(self: &Arc<Inner>, recalls: &[Recall]) {
        recalls.iter().for_each(|recall| self.stats.recalled(&recall.cause));
        self.work_on_recalls(recalls, Asked::JustNow);
    }

    fn work_on_recalls(self: &Arc<Inner>, recalls: &[Recall], asked: Asked) {
        let mut acks = Vec::new();
        for recall in recalls {
            if recall.part.is_some() && asked == Asked::JustNow && self.defer(recall) {
                continue;
            }
            match self.begin_recall(recall, asked) {
                Begun::Gone(ack) => {
                    self.stats.recalls_gone.one();
                    acks.push(ack);
                }
                Begun::Running => {}
                Begun::Uncovered(fids) => self.tell_uncovered(recall, fids),
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

    fn may_block(&self, job: &Job) -> bool {
        let ahead = crate::lock(&self.state).owes(&job.parts);
        let more = !job.neighbours.is_empty() || job.scan.is_some();
        ahead || job.needs_kernel() || more || !self.answers.none_inside()
    }

    /// To a thread that may block.
    fn hand_on(self: &Arc<Inner>, job: Job) {
        self.take_back_changes(&job);
        self.watch_names(&job);
        self.watch_stuck(&job);
        let inner = Arc::clone(self);
        if job.scan.is_none() && !crate::lock(&self.state).owes(&job.parts) {
            self.recall_pool.run(Box::new(move || inner.work_on(job)));
            return;
        }
        // Not in the pool: its threads are for what does not wait for the server.
        self.runtime.spawn(async move {
            inner.flush_for_recall(job.fid, &job.parts).await;
            inner.lower_whole(&job).await;
            let pool = inner.recall_pool.clone();
            pool.run(Box::new(move || inner.work_on(job)));
        });
    }

    fn begin_recall(self: &Arc<Inner>, recall: &Recall, since: Asked) -> Begun {
        let now = self.now();
        let asked = recall.asked();
        let mut state = crate::lock(&self.state);
        match state.peek(asked).map(|inode| inode.log.origin) {
            // The answer to the digest that made it is on its way, with the lease that is meant. The server asks again.
            Some(Origin::Here) => return Begun::Running,
            Some(Origin::Told) if recall.part.is_none() => state.adopt_lease(now, recall),
            _ => {}
        }
        if let Some(part) = recall.part.filter(|_| since != Asked::AfterTelling) {
            let uncovered = state.uncovered_ahead(part);
            if !uncovered.is_empty() {
                return Begun::Uncovered(uncovered);
            }
        }
        let step = if recall.part.is_some() && !state.may_disown(recall.fid) {
            state.holder.handle_recall_in_part(now, recall)
        } else {
            state.holder.handle_recall(now, recall)
        };
        let in_use = state.in_use(asked, InUse::No);
        let (of, keep, inside) = match step {
            RecallStep::AlreadyGone(mut ack) => {
                ack.in_use = in_use;
                if in_use == InUse::Yes && ack.kept.is_none() {
                    state.inode(asked).uses.open_at_server = InUse::Yes;
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
            state.inode(fid).kernel.recalling += 1;
            state.repin(fid);
            let plan = Plan::new(&mut state, now, fid, keep).for_cause(&recall.cause);
            // Too many of its objects were asked for one by one, perhaps only to be read: nobody changes the directory for that.
            if recall.cause != Cause::Reclaim {
                state.note_contended(now, fid, keep);
            }
            parts.push(Part { fid, keep, plan });
        }
        let neighbours = if keep == Some(Mode::Read) { state.take_unseen(asked) } else { Vec::new() };
        let (fid, epoch, progress) = (asked, recall.epoch, Arc::default());
        let scan = match of {
            Of::Deep(lease) => {
                let untold = state.behind.log.pending_count();
                state.holder.take_scan(lease, untold).map(|scan| (lease, scan))
            }
            Of::Node => None,
        };
        Begun::Job(Job { fid, epoch, of, began: now, parts, progress, neighbours, scan })
    }

    fn concerns_names(&self, job: &Job) -> bool {
        let mut state = crate::lock(&self.state);
        job.parts.iter().any(|part| state.existing(part.fid).is_some_and(|inode| inode.dir.is_some()))
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

    fn answer(self: &Arc<Inner>, mut job: Job) {
        loop {
            self.answers.wait(&*self.hooks);
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
        if !done && state.owes(&job.parts) {
            // Nobody may see it before the server knows what was done here.
            return Finished::NotYet(job.parts.clone());
        }
        if job.progress.done.swap(true, Ordering::AcqRel) {
            return Finished::Before;
        }
        let mut in_use = InUse::No;
        let mut acks = Vec::new();
        for (part, used) in job.parts.iter().zip(used) {
            state.note_shared(part.fid);
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
}

/// What has been told to the server since a question about part of a deep lease came. Each is done once: what the part covers is
/// told to nobody while the question is open, so what is made from then on has other leases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    JustNow,
    /// The digests that were under way then have their answers.
    AfterDigests,
    /// And what no lease covers has been told.
    AfterTelling,
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
    /// The server lacks something of these, which nothing covers here: it may take what is asked for, and was given back, or
    /// never came, or did not stay where they were moved, for what covers them.
    Uncovered(Vec<Fid>),
    Job(Job),
}

impl State {
    /// All of a deep lease may be disowned: it is held here, and then the question is about what was asked for, or nothing
    /// that has been made here can rest on it, as far as the server knows.
    fn may_disown(&self, lease: Fid) -> bool {
        let rests_on_it = || {
            self.behind.digest_under_way().is_some()
                || !self.uncovered_ahead(LeasePart::tree(lease)).is_empty()
        };
        self.holder.holds_deep(lease) || !rests_on_it()
    }

    /// The kernel holds no more of it than may be kept: neither do we. Says whether it is in use.
    fn bring_down(&mut self, part: &Part, used: InUse) -> InUse {
        let Part { fid, keep, .. } = *part;
        if keep.is_none() {
            self.kernel_dropped(fid);
        }
        if keep.is_none() || self.inode(fid).changes.unanswered > 0 {
            self.void(fid);
        }
        let inode = self.inode(fid);
        inode.kernel.recalling -= 1;
        // Others may see them before we hear of it.
        inode.changes.uncovered = inode.changes.unanswered;
        let in_use = self.in_use(fid, used);
        if in_use == InUse::Yes && keep.is_none() {
            self.inode(fid).uses.open_at_server = InUse::Yes;
        }
        in_use
    }
}

/// Beside the answer about a directory: a file below it is open here, and nothing will be asked for it any more. No epoch: it
/// answers nothing.
fn said_in_use(asked: Fid, fid: Fid) -> RecallAck {
    RecallAck {
        fid: asked,
        epoch: Epoch(0),
        kept: None,
        in_use: InUse::Yes,
        uses: 0,
        part: Some(LeasePart::object(fid)),
    }
}
