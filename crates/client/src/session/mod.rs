//! The session's life: hello, renewal, reconnecting, reclaiming after a restart of the server, and what happens when it
//! is lost.

mod arrivals;
mod data;
mod handshake;
mod resume;
mod suspend;
mod tick;

pub(crate) use data::keep_data_connection;
pub(crate) use handshake::{Established, HandshakeError, connect, control, exchange, hello, open_control};
pub(crate) use suspend::watch_suspend;
pub(crate) use tick::{keep_house, watch_idle, watch_overruns};

use crate::connection::FrameReader;
use crate::inner::{Inner, Phase};
use arrivals::Channel;
use resume::Restarted;
use soda_protocol::{FrameKind, Push, Reply, SessionKey};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// The session that data connections join.
pub(crate) type Joinable = Option<SessionKey>;

/// Keeps the control connection up until the client is closed.
pub(crate) async fn supervise(inner: Arc<Inner>, first: Established, joinable: watch::Sender<Joinable>) {
    let mut next = Some(first);
    let mut key = None;
    let mut boot = None;
    // Since the session was last restored, in however many attempts.
    let mut restarted_meanwhile = Restarted::No;
    let mut pause = Backoff::default();
    while !inner.is_closed() {
        inner.until_at_home().await;
        let established = match next.take() {
            Some(established) => established,
            None if inner.is_closed() => return,
            None => match open_control(&inner, key).await {
                Ok(established) => established,
                Err(error) => {
                    tracing::debug!(server = inner.config.server, %error, "no connection");
                    pause.wait(&inner).await;
                    continue;
                }
            },
        };
        if *inner.away.borrow() {
            // The client has let go meanwhile. Nothing that comes here may be answered any more: whoever follows it has its
            // leases. (One that lets go after this line sees the connection, and waits for its end.)
            established.writer.close();
            inner.link.connection_lost(established.id);
            continue;
        }
        let Established { mut reader, writer, id, welcome, boot: this_boot, sent_at } = established;
        let restarted = boot.replace(this_boot).is_some_and(|before| before != this_boot);
        let restarted = if restarted { Restarted::Yes } else { Restarted::No };
        if restarted == Restarted::Yes {
            restarted_meanwhile = Restarted::Yes;
        }
        key = Some(welcome.key);
        *crate::lock(&inner.key) = key;
        let restored = resume::restore(&inner, &mut reader, &writer, &welcome, sent_at, restarted).await;
        match restored {
            Ok(()) => {
                if std::mem::replace(&mut restarted_meanwhile, Restarted::No) == Restarted::Yes {
                    crate::lock(&inner.state).forget_unheld();
                }
                pause = Backoff::within(welcome.term);
                resume::let_go_on(&inner, id, welcome.key, &joinable);
                inner.phase.send_if_modified(|phase| set_unless_closed(phase, Phase::Connected));
                resume::after_restore(&inner, welcome.standing);
                serve_control(&inner, &mut reader).await;
                inner.phase.send_if_modified(|phase| set_unless_closed(phase, Phase::Disconnected));
            }
            Err(error) => {
                tracing::warn!(server = inner.config.server, %error, "the session could not be restored")
            }
        }
        writer.close();
        inner.link.connection_lost(id);
        if !inner.is_closed() {
            inner.stats.reconnects.one();
            pause.wait(&inner).await;
        }
    }
}

/// Reads until the connection breaks, the server says that the session has ended, or the client is closed.
async fn serve_control(inner: &Arc<Inner>, reader: &mut FrameReader) {
    let (mut phase, mut away) = (inner.phase.subscribe(), inner.away.subscribe());
    // Said about the connection before: not about this one.
    let _ = tokio::time::timeout(Duration::ZERO, inner.session_ended.notified()).await;
    tokio::select! {
        biased;
        _ = away.wait_for(|away| *away) => {}
        _ = phase.wait_for(|phase| *phase == Phase::Closed) => {}
        () = inner.session_ended.notified() => tracing::warn!("the server has ended the session"),
        () = read_all(inner, Channel::Control, reader) => {}
    }
}

async fn read_all(inner: &Arc<Inner>, channel: Channel, reader: &mut FrameReader) {
    loop {
        let frame = match reader.next().await {
            Ok(frame) => frame,
            Err(error) => {
                tracing::debug!(server = inner.config.server, %error, "connection lost");
                return;
            }
        };
        match frame.kind {
            FrameKind::Reply => match frame.message::<Reply>() {
                Ok(reply) => inner.handle_reply(channel, frame.tag, reply, frame.payload.to_bytes()),
                Err(error) => {
                    tracing::error!(%error, "a reply that is not understood");
                    return;
                }
            },
            FrameKind::Push => match frame.message::<Push>() {
                Ok(push) => inner.handle_push(push),
                Err(error) => tracing::warn!(%error, "a message that is not understood"),
            },
            FrameKind::Request | FrameKind::Note => tracing::warn!("a server must not send requests"),
        }
    }
}

fn set_unless_closed(phase: &mut Phase, to: Phase) -> bool {
    let change = *phase != Phase::Closed && *phase != to;
    if change {
        *phase = to;
    }
    change
}

/// Growing pauses between attempts, spread so that many clients do not come back at the same moment.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
    jitter: RandomState,
    attempts: u32,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { next: FIRST_PAUSE, longest: LONGEST_PAUSE, jitter: RandomState::new(), attempts: 0 }
    }
}

impl Backoff {
    /// Of a client with a session of this term. A server that has restarted waits little longer than that for those whom it knew:
    /// whoever is alive must have tried it by then more than once.
    fn within(term: Duration) -> Backoff {
        Backoff { longest: LONGEST_PAUSE.min(term / 4).max(FIRST_PAUSE), ..Backoff::default() }
    }

    /// Ends early when the client is closed.
    pub(crate) async fn wait(&mut self, inner: &Inner) {
        let pause = self.advance();
        let mut phase = inner.phase.subscribe();
        let _ = tokio::time::timeout(pause, phase.wait_for(|phase| *phase == Phase::Closed)).await;
    }

    fn advance(&mut self) -> Duration {
        self.attempts += 1;
        // Between one half and the whole of the pause.
        let spread = self.jitter.hash_one(self.attempts) % 512;
        let pause = self.next / 2 + self.next / 1024 * u32::try_from(spread).unwrap_or(0);
        self.next = (self.next * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_differ() {
        let mut backoff = Backoff::default();
        let pauses: Vec<Duration> = (0..20).map(|_| backoff.advance()).collect();
        assert!(pauses[0] <= FIRST_PAUSE);
        assert!(pauses[19] <= LONGEST_PAUSE && pauses[19] >= LONGEST_PAUSE / 2);
        assert!(pauses[12..].windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn who_has_a_short_term_tries_a_restarted_server_several_times_in_it() {
        let term = Duration::from_secs(2);
        let mut backoff = Backoff::within(term);
        assert!((0..20).map(|_| backoff.advance()).all(|pause| pause <= term / 4));
        let mut backoff = Backoff::within(Duration::from_secs(10));
        assert!((0..20).map(|_| backoff.advance()).max() > Some(Duration::from_secs(1)));
    }
}
