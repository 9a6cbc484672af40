//! One control connection, one question at a time: all that a replay needs. Recalls are not answered, only held off: the
//! goodbye at the end answers them all.

use crate::connection::{FrameReader, ReadError, Writer};
use crate::inner::Inner;
use crate::session::{connect, control, hello};
use bytes::Bytes;
use soda_oplog::segments::Header;
use soda_protocol::{
    Answer, Call, Failure, Frame, FrameKind, Note, OpId, Push, Reply, Request, Role, SessionWelcome,
};
use soda_types::Fid;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// So often the server hears that those who wait for what is replayed are not forgotten.
const PROGRESS: Duration = Duration::from_millis(500);
/// A server that is silent for longer is taken for gone.
const PATIENCE: Duration = Duration::from_secs(60);
const TRY_AGAIN: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error("{0}")]
    Broken(#[from] io::Error),
    #[error("{0}")]
    Failed(Failure),
    /// The server does not let anybody in now, or not this program: that says nothing of the session.
    #[error("{0}")]
    Refused(Failure),
}

pub(super) struct Wire {
    reader: FrameReader,
    writer: Arc<Writer>,
    last_tag: u64,
    recalled: Vec<Fid>,
}

impl Wire {
    /// Connects and goes on with the session that wrote a log, if the server still knows it.
    pub(super) async fn resume(inner: &Inner, header: &Header) -> Result<(Wire, SessionWelcome), WireError> {
        let (reader, writer) = connect(inner).await.map_err(io::Error::other)?;
        let mut wire = Wire { reader, writer, last_tag: 0, recalled: Vec::new() };
        let role = control(inner, header.client, Some(header.session));
        match wire.greet(role).await? {
            Answer::Welcome(welcome) => {
                let session = welcome.session.ok_or_else(|| not_soda("a welcome without a session"))?;
                Ok((wire, session))
            }
            _ => Err(not_soda("hello was not answered by a welcome").into()),
        }
    }

    /// Whether the server knows the session that wrote a log. Its key is a secret of the server that opened it, so that is the
    /// same server, whatever it is called. Nothing is begun or ended by that.
    pub(super) async fn knows(inner: &Inner, header: &Header) -> Result<bool, WireError> {
        let (reader, writer) = connect(inner).await.map_err(io::Error::other)?;
        let mut wire = Wire { reader, writer, last_tag: 0, recalled: Vec::new() };
        match wire.greet(Role::Data(header.session)).await {
            Ok(Answer::Welcome(_)) => Ok(true),
            Ok(_) => Err(not_soda("hello was not answered by a welcome").into()),
            Err(WireError::Failed(Failure::SessionEnded)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn greet(&mut self, role: Role) -> Result<Answer, WireError> {
        match self.ask(None, Call::Hello(hello(role))).await {
            Err(WireError::Failed(failure @ (Failure::Refused(_) | Failure::Unsupported(_)))) => {
                Err(WireError::Refused(failure))
            }
            answered => answered,
        }
    }

    /// Asks until there is an answer.
    pub(super) async fn ask(&mut self, op: Option<OpId>, call: Call) -> Result<Answer, WireError> {
        let request = Request { op, call };
        loop {
            let answered = tokio::time::timeout(PATIENCE, self.exchange(&request)).await;
            match answered.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())) {
                Err(WireError::Failed(Failure::Grace(_) | Failure::Busy(_) | Failure::InTheWay)) => {
                    tokio::time::sleep(TRY_AGAIN).await;
                }
                result => return result,
            }
        }
    }

    async fn exchange(&mut self, request: &Request) -> Result<Answer, WireError> {
        self.last_tag += 1;
        let tag = self.last_tag;
        let frame = Frame::new(FrameKind::Request, tag, request, Bytes::new());
        self.writer.send(&frame.map_err(io::Error::other)?);
        loop {
            let frame = self.next().await?;
            match frame.kind {
                FrameKind::Push => {
                    match frame.message() {
                        Ok(Push::Recalls(recalls)) => {
                            let asked = recalls.iter().map(|recall| recall.asked());
                            self.recalled.extend(asked);
                        }
                        Ok(Push::RecallLocks(recalls)) => {
                            self.recalled.extend(recalls.iter().map(|(fid, _)| *fid));
                        }
                        Ok(Push::Inquiries(_) | Push::Stopping) | Err(_) => {}
                    }
                    tell_progress(&self.writer, &self.recalled);
                }
                FrameKind::Reply if frame.tag == tag => {
                    let reply: Reply = frame.message().map_err(io::Error::other)?;
                    return reply.result.map_err(WireError::Failed);
                }
                _ => {}
            }
        }
    }

    async fn next(&mut self) -> io::Result<Frame> {
        let (writer, recalled) = (&self.writer, &self.recalled);
        let next = self.reader.next();
        tokio::pin!(next);
        loop {
            tokio::select! {
                frame = &mut next => return frame.map_err(|error| match error {
                    ReadError::Io(error) => error,
                    other => io::Error::other(other),
                }),
                () = tokio::time::sleep(PROGRESS) => tell_progress(writer, recalled),
            }
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.writer.close();
    }
}

fn tell_progress(writer: &Writer, recalled: &[Fid]) {
    if recalled.is_empty() {
        return;
    }
    if let Ok(frame) = Frame::new(FrameKind::Note, 0, &Note::RecallProgress(recalled.to_vec()), Bytes::new())
    {
        writer.send(&frame);
    }
}

fn not_soda(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
