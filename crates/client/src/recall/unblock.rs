//! What a recall may wait for in the kernel and never get, because it waits at the server behind this very recall; and how
//! each of these knots is cut.
//!
//! | the kernel waits for | held by | cut by |
//! | --- | --- | --- |
//! | a directory's lock | an own change of its names | [`Inner::take_back_changes`]: it walks its path anew |
//! | a directory's lock | a look-up, which cannot be sent back | [`Inner::watch_names`]: old names run out |
//! | a page | its write-back | [`Inner::watch_stuck`]: the answer goes first, and is counted as forced |

use super::{Finish, Finished, Job, Part};
use crate::connection::link::Cancelled;
use crate::hooks::{NAMES_RUN_OUT, NamesLock};
use crate::inner::Inner;
use crate::kernel::Plan;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// For how long the kernel may be seen not to get on with it while own changes of the object wait behind the recall: this
/// or up to twice this.
const STUCK: Duration = Duration::from_secs(1);

impl Inner {
    /// Own changes of a directory that wait at the server behind this recall hold the lock which the kernel needs to
    /// drop the directory's names. Look-ups do, too, but stay: a kernel that asks for a name again takes an error for
    /// "another inode by now", and what is mounted below would come loose. For them there is [`Inner::watch_names`].
    pub(super) fn take_back_changes(self: &Arc<Inner>, job: &Job) {
        if self.hooks.names_lock() == NamesLock::None {
            return;
        }
        let dirs = job.parts.iter().filter(|part| part.plan.concerns_names());
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
    pub(super) fn watch_names(self: &Arc<Inner>, job: &Job) {
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

    /// The last resort against a deadlock through the kernel: an own change, a page that the kernel must write back before
    /// it can drop it, waits at the server behind this recall, whose invalidation waits for the change. Then the server
    /// gets its answer first. This machine may see the old state for the moment that the kernel still needs.
    pub(super) fn watch_stuck(self: &Arc<Inner>, job: &Job) {
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
                        // Own changes that go ahead of the recall are not what it waits for.
                        let ahead = state.holder.is_exclusive(*fid);
                        !ahead && state.existing(*fid).is_some_and(|inode| inode.changes.unanswered > 0)
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
}
