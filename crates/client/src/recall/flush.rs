//! What was done here and not told goes to the server before a recall's answer.

use super::{Asked, Part};
use crate::cache::State;
use crate::connection::link::Cancelled;
use crate::inner::Inner;
use crate::kernel::Plan;
use soda_protocol::Note;
use soda_types::{Fid, Recall};
use std::sync::Arc;
use std::time::Duration;

/// Between a flush that failed and the next.
const FLUSH_AGAIN: Duration = Duration::from_millis(100);
/// How often the server hears that a flush is getting on.
const PROGRESS: Duration = Duration::from_secs(1);

impl Inner {
    /// Part of a deep lease is asked for, and the answer to a digest that made something below is not here yet. It may have been
    /// lost with a connection, and the server believe that the deep lease covers what it made: no question about that part is
    /// answered before that is known. Those that are begun later make nothing that the part covers.
    pub(super) fn defer(self: &Arc<Inner>, recall: &Recall) -> bool {
        let Some(digest) = crate::lock(&self.state).behind.digest_under_way() else { return false };
        let (inner, recall) = (Arc::clone(self), recall.clone());
        let mut digests = self.stats.digests.get();
        self.runtime.spawn(async move {
            while crate::lock(&inner.state).behind.is_under_way(digest) {
                match tokio::time::timeout(PROGRESS, inner.answered()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => tokio::time::sleep(FLUSH_AGAIN).await,
                    Err(_) => inner.report_progress(recall.asked(), &mut digests),
                }
            }
            inner.work_on_recalls(&[recall], Asked::AfterDigests);
        });
        true
    }

    /// The server hears that the flush is getting on, if anything was sent since the last time.
    fn report_progress(&self, asked: Fid, digests: &mut u64) {
        let now = self.stats.digests.get();
        if std::mem::replace(digests, now) != now {
            self.note(&Note::RecallProgress(vec![asked]));
        }
    }

    /// Part of a deep lease is asked for: with the answer the server would refuse what only that covers, as far as it knows, and
    /// nothing as far as is known here. So that goes first, and the lease holder hears of the question after it.
    pub(super) fn tell_uncovered(self: &Arc<Inner>, recall: &Recall, fids: Vec<Fid>) {
        let (inner, recall) = (Arc::clone(self), recall.clone());
        self.runtime.spawn(async move {
            let part = |fid: Fid| Part { fid, keep: None, plan: Plan::default() };
            let parts: Vec<Part> = fids.into_iter().map(part).collect();
            inner.flush_for_recall(recall.asked(), &parts).await;
            parts.iter().for_each(|part| crate::lock(&inner.state).note_shared(part.fid));
            inner.work_on_recalls(&[recall], Asked::AfterTelling);
        });
    }

    /// Nobody else may see it before the server knows what was done here.
    pub(super) async fn flush_for_recall(self: &Arc<Inner>, asked: Fid, parts: &[Part]) {
        let mut digests = self.stats.digests.get();
        let mut began = None;
        loop {
            let untold = crate::lock(&self.state).untold(parts);
            if untold.is_empty() {
                if crate::lock(&self.state).is_promised(fids_of(parts)) {
                    self.keep_promises(asked).await;
                    // The server may have come back with less than it had.
                    continue;
                }
                if let Some(began) = began {
                    self.stats.recall_flush_took(self.now().since(began));
                }
                return;
            }
            if began.is_none() {
                let (mut state, now) = self.locked();
                began = Some(now);
                state.behind.hurry(now);
                self.stats.recall_flushes(state.behind.needed_for(&untold));
            }
            // It fails where the server has no room, which may change, or if all is lost: then nothing is ahead any more.
            let flush = async {
                self.nothing_aside_of(&untold).await;
                self.flush(&untold).await
            };
            let flushed = tokio::time::timeout(PROGRESS, flush).await;
            if matches!(flushed, Ok(Err(_))) {
                tokio::time::sleep(FLUSH_AGAIN).await;
            }
            if flushed.is_err() {
                self.take_back_removals(&untold);
                self.report_progress(asked, &mut digests);
            }
        }
    }

    /// A removal for which data was set aside may wait at the server for whoever waits for this recall.
    fn take_back_removals(self: &Arc<Inner>, fids: &[Fid]) {
        let is_aside = |fid: &&Fid| crate::lock(&self.state).behind.aside_of(&[**fid]).is_some();
        for tag in fids.iter().filter(is_aside).flat_map(|fid| self.link.changing_a_name_of(*fid)) {
            self.cancel(tag, Cancelled::ByRecall);
        }
    }

    /// Has the server make durable what fsync has returned for. Who waits for that here is not the one who has been told that
    /// operations fail after a time: only what the server says can break a promise, or the end of the session.
    async fn keep_promises(self: &Arc<Inner>, asked: Fid) {
        let Some(durable) = self.make_durable() else {
            return crate::lock(&self.state).behind.break_promises();
        };
        let mut durable = std::pin::pin!(durable.result_at_last());
        loop {
            match tokio::time::timeout(PROGRESS, durable.as_mut()).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => {
                    tracing::error!(%error, "what fsync was content with this machine for is not on the server's disk");
                    return crate::lock(&self.state).behind.break_promises();
                }
                Err(_) => self.note(&Note::RecallProgress(vec![asked])),
            }
        }
    }
}

fn fids_of(parts: &[Part]) -> impl Iterator<Item = Fid> {
    parts.iter().map(|part| part.fid)
}

impl State {
    /// Others are let in to it: what the server has been told of it cannot be told again.
    pub(super) fn note_shared(&mut self, fid: Fid) {
        let told_in = self.peek(fid).map(|inode| inode.log.told_in);
        self.behind.note_shared(told_in.unwrap_or_default());
    }

    /// Whether the server has to be told of something of these before others may see them, or its disk to have it.
    pub(super) fn owes(&self, parts: &[Part]) -> bool {
        !self.untold(parts).is_empty() || self.is_promised(fids_of(parts))
    }

    /// What the server has to be told before these may be seen by others.
    pub(super) fn untold(&self, parts: &[Part]) -> Vec<Fid> {
        self.to_tell_first(parts.iter().map(|part| part.fid))
    }
}
