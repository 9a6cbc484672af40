//! Data connections: each joins the session, and joins again when it breaks or the session is another one.

use crate::inner::{Inner, Phase};
use crate::session::arrivals::Channel;
use crate::session::{Backoff, Joinable, handshake::open_data, read_all};
use std::sync::Arc;
use tokio::sync::watch;

/// Keeps one data connection up until the client is closed.
pub(crate) async fn keep_data_connection(inner: Arc<Inner>, mut joinable: watch::Receiver<Joinable>) {
    let mut pause = Backoff::default();
    let (mut phase, mut away) = (inner.phase.subscribe(), inner.away.subscribe());
    loop {
        // While the server is gone the control connection finds out when it is back.
        let Ok(up) = phase.wait_for(|phase| *phase != Phase::Disconnected).await.map(|phase| *phase) else {
            return;
        };
        if up == Phase::Closed {
            return;
        }
        inner.until_at_home().await;
        let Some(key) = *joinable.borrow_and_update() else {
            if joinable.changed().await.is_err() {
                return;
            }
            continue;
        };
        let (mut reader, writer) = match open_data(&inner, key).await {
            Ok(opened) => opened,
            Err(error) => {
                tracing::debug!(%error, "no data connection");
                // At once when the control connection is back.
                tokio::select! {
                    () = pause.wait(&inner) => {}
                    _ = joinable.changed() => pause = Backoff::default(),
                }
                continue;
            }
        };
        pause = Backoff::default();
        let id = inner.link.data_up(&writer);
        tokio::select! {
            () = read_all(&inner, Channel::Data, &mut reader) => {}
            _ = joinable.wait_for(|other| *other != Some(key)) => {}
            _ = phase.wait_for(|phase| *phase == Phase::Closed) => {}
            _ = away.wait_for(|away| *away) => {}
        }
        writer.close();
        inner.link.connection_lost(id);
        if inner.is_closed() {
            return;
        }
        pause.wait(&inner).await;
    }
}
