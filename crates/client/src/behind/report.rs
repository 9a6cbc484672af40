//! What the server is told about the backlog, for tools: along with what it is sent anyway.

use crate::inner::Inner;
use soda_protocol::{BacklogReport, Note};
use std::time::Duration;

impl Inner {
    /// Goes with the next request. `said`: what this caller said last, of which nothing new need not be said again.
    pub(crate) fn report_backlog(&self, said: &mut Option<BacklogReport>) {
        if !self.writes_behind() {
            return;
        }
        let report = {
            let (state, now) = self.locked();
            let backlog = state.behind.backlog(now);
            BacklogReport { records: backlog.records, bytes: backlog.bytes, age: backlog.age }
        };
        if said.replace(report) != Some(report) {
            self.send_report(report);
        }
    }

    /// With a digest: what is left when the server has applied it.
    pub(super) fn report_rest(&self) {
        let (state, now) = self.locked();
        let log = &state.behind.log;
        let report = BacklogReport {
            records: log.pending_count() as u64,
            bytes: log.pending_bytes(),
            age: log.oldest_pending().map_or(Duration::ZERO, |oldest| now.since(oldest)),
        };
        drop(state);
        self.send_report(report);
    }

    fn send_report(&self, report: BacklogReport) {
        let note = Note::Backlog(report);
        self.stats.noted(&note);
        self.link.hold(&note);
    }
}
