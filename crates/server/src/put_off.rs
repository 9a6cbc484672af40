//! Calls about the locks of a file that wait until the session that decides about them alone has told of its locks.

use crate::link::{Counted, Incoming, Warned};
use soda_types::{Fid, Monotonic, SessionId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct PutOff {
    /// By file, in the order of arrival.
    calls: BTreeMap<(Fid, u64), Waiting>,
    of_session: BTreeMap<(SessionId, u64), Fid>,
}

#[derive(Debug)]
struct Waiting {
    call: Incoming,
    since: Monotonic,
    warned: Warned,
    _counted: Counted,
}

impl PutOff {
    pub(crate) fn push(&mut self, now: Monotonic, fid: Fid, call: Incoming) {
        self.of_session.insert((call.session(), call.order), fid);
        let counted = Counted::new(&call.link);
        let waiting = Waiting { since: now, warned: Warned::NotYet, _counted: counted, call };
        self.calls.insert((fid, waiting.call.order), waiting);
    }

    pub(crate) fn has_any(&self, fid: Fid) -> bool {
        self.calls.range((fid, 0)..=(fid, u64::MAX)).next().is_some()
    }

    pub(crate) fn take_first(&mut self, fid: Fid) -> Option<Incoming> {
        let key = self.calls.range((fid, 0)..=(fid, u64::MAX)).next().map(|(key, _)| *key)?;
        self.take(key)
    }

    /// Of each file the call that came first.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (Fid, &Incoming)> {
        let next_file = |((fid, _), _): &(&(Fid, u64), &Waiting)| {
            self.calls.range((Bound::Excluded((*fid, u64::MAX)), Bound::Unbounded)).next()
        };
        let firsts = std::iter::successors(self.calls.first_key_value(), next_file);
        firsts.map(|((fid, _), waiting)| (*fid, &waiting.call))
    }

    /// Those about one file, in the order of arrival, and since when they wait.
    pub(crate) fn of_file(&self, fid: Fid) -> impl Iterator<Item = (&Incoming, Monotonic)> {
        let calls = self.calls.range((fid, 0)..=(fid, u64::MAX));
        calls.map(|(_, waiting)| (&waiting.call, waiting.since))
    }

    /// The session does not want an answer any more.
    pub(crate) fn cancel(&mut self, session: SessionId, tag: u64) -> Option<Incoming> {
        let key = self.keys_of(session, |call| call.tag == tag).next()?;
        self.take(key)
    }

    pub(crate) fn forget(&mut self, session: SessionId, forget: impl Fn(&Incoming) -> bool) {
        let keys: Vec<_> = self.keys_of(session, forget).collect();
        for key in keys {
            drop(self.take(key));
        }
    }

    /// What the log has not heard of yet: the call, and for how long it has waited.
    pub(crate) fn warn_of(
        &mut self,
        now: Monotonic,
        long: Duration,
    ) -> impl Iterator<Item = (Fid, &Incoming, Duration)> {
        let new = move |waiting: &&mut Waiting| {
            waiting.warned == Warned::NotYet && now.since(waiting.since) >= long
        };
        let calls = self.calls.iter_mut().map(|((fid, _), waiting)| (*fid, waiting));
        calls.filter(move |(_, waiting)| new(waiting)).map(move |(fid, waiting)| {
            waiting.warned = Warned::Already;
            (fid, &waiting.call, now.since(waiting.since))
        })
    }

    fn keys_of(
        &self,
        session: SessionId,
        which: impl Fn(&Incoming) -> bool,
    ) -> impl Iterator<Item = (Fid, u64)> {
        let keys = self.of_session.range((session, 0)..=(session, u64::MAX));
        let keys = keys.map(|((_, order), fid)| (*fid, *order));
        keys.filter(move |key| self.calls.get(key).is_some_and(|waiting| which(&waiting.call)))
    }

    fn take(&mut self, key: (Fid, u64)) -> Option<Incoming> {
        let Waiting { call, .. } = self.calls.remove(&key)?;
        self.of_session.remove(&(call.session(), key.1));
        Some(call)
    }
}
