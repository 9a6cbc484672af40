//! fsync: who asks waits for the medium, and before that, if it was sent along with a digest, for the end of that.

use crate::link::{Counted, Incoming, Link};
use crate::session::Progress;
use crate::shared::Shared;
use soda_protocol::{Answer, Call, Failure, OpId};
use std::sync::Arc;

/// Answers when everything is durable that was changed by now, or, along with a digest, when that is applied.
pub(crate) fn start(shared: &Arc<Shared>, incoming: Incoming) {
    let Call::Sync { after: Some(digest), .. } = incoming.request.call else { return sync(shared, incoming) };
    if let Err(busy) = incoming.link.may_wait() {
        return incoming.answer(&Err(busy));
    }
    let link = incoming.link.clone();
    let sync = (incoming, Counted::new(&link));
    let progress = || link.session.slots().progress(digest);
    if let Some(((incoming, _), progress)) = link.digests.wait_behind(digest, sync, progress) {
        go_on(shared, incoming, progress);
    }
}

/// The digest is over, or as if it had never come: whoever waits for it goes on.
pub(super) fn digest_is_over(shared: &Arc<Shared>, link: &Link, digest: OpId) {
    let waiting = link.digests.take_those_behind(digest);
    if waiting.is_empty() {
        return;
    }
    let progress = link.session.slots().progress(digest);
    waiting.into_iter().for_each(|(incoming, _)| go_on(shared, incoming, progress));
}

fn go_on(shared: &Arc<Shared>, incoming: Incoming, digest: Progress) {
    match digest {
        Progress::Applied => sync(shared, incoming),
        // Under way: its client has sent it once more, which is another attempt.
        Progress::UnderWay | Progress::No => incoming.answer(&Err(Failure::OutOfTurn)),
    }
}

fn sync(shared: &Arc<Shared>, incoming: Incoming) {
    shared.sync.request(move |result| {
        incoming.answer(&result.map(|()| Answer::Done).map_err(Failure::Fs));
    });
}
