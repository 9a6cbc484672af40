//! Hello and welcome.

use crate::connection::{ConnId, FrameReader, Stream, Writer};
use crate::inner::Inner;
use bytes::Bytes;
use soda_protocol::{
    Answer, Call, Credentials, Failure, Frame, FrameKind, Hello, LeaseWait, PROTOCOL_VERSION,
    PROTOCOL_VERSION_MIN, Push, Reply, Request, Role, SessionKey, SessionWelcome,
};
use soda_types::{ClientId, Monotonic};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A server that takes longer for an answer in the handshake is taken for gone.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    NotSoda(String),
    #[error("the session has ended")]
    SessionEnded,
}

/// A control connection with a session.
pub(crate) struct Established {
    pub(crate) reader: FrameReader,
    pub(crate) writer: Arc<Writer>,
    pub(crate) id: ConnId,
    pub(crate) welcome: SessionWelcome,
    /// Which run of the server this is.
    pub(crate) boot: [u8; 16],
    /// When Hello was sent: the session's lease counts from here.
    pub(crate) sent_at: Monotonic,
}

pub(crate) async fn open_control(
    inner: &Arc<Inner>,
    resume: Option<SessionKey>,
) -> Result<Established, HandshakeError> {
    let role = control(inner, inner.config.client_id, resume);
    let (mut reader, writer) = connect(inner).await?;
    let id = inner.link.control_opened(&writer);
    let sent_at = inner.now();
    let answer = exchange(inner, &mut reader, &writer, Call::Hello(hello(role))).await;
    let welcome = match answer {
        Ok((Answer::Welcome(welcome), _)) => {
            let session = welcome.session.map(|session| (session, welcome.boot));
            session.ok_or_else(|| HandshakeError::NotSoda("a welcome without a session".into()))
        }
        Ok(_) => Err(HandshakeError::NotSoda("hello was not answered by a welcome".into())),
        Err(error) => Err(error),
    };
    match welcome {
        Ok((welcome, boot)) => {
            inner.note_calendar(welcome.calendar);
            Ok(Established { reader, writer, id, welcome, boot, sent_at })
        }
        Err(error) => {
            writer.close();
            inner.link.connection_lost(id);
            Err(error)
        }
    }
}

pub(crate) fn control(inner: &Inner, client: ClientId, resume: Option<SessionKey>) -> Role {
    let config = &inner.config;
    let (name, volume) = (config.name.clone(), config.volume.clone());
    let (lease_term, widest_lease) = (config.lease_term, config.widest_lease());
    let lease_wait = config.lease_poll.map_or(LeaseWait::Notified, |_| LeaseWait::Polling);
    Role::Control { client, name, volume, resume, lease_term, widest_lease, lease_wait }
}

/// A data connection that has joined the session.
pub(crate) async fn open_data(
    inner: &Arc<Inner>,
    key: SessionKey,
) -> Result<(FrameReader, Arc<Writer>), HandshakeError> {
    let (mut reader, writer) = connect(inner).await?;
    match exchange(inner, &mut reader, &writer, Call::Hello(hello(Role::Data(key)))).await {
        Ok(_) => Ok((reader, writer)),
        Err(error) => {
            writer.close();
            Err(error)
        }
    }
}

/// A connection on which nobody waits for an answer any more: its writer would keep it open for ever.
struct GivenUp<'a>(&'a Writer);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// One request and its answer, outside the link: for the time when the session is not restored yet.
pub(crate) async fn exchange(
    inner: &Arc<Inner>,
    reader: &mut FrameReader,
    writer: &Writer,
    call: Call,
) -> Result<(Answer, Vec<soda_types::Grant>), HandshakeError> {
    let tag = inner.link.next_tag();
    inner.stats.sent(&call, 0);
    let request = Request { op: None, call };
    let frame = Frame::new(FrameKind::Request, tag, &request, Bytes::new())
        .map_err(|error| HandshakeError::NotSoda(error.to_string()))?;
    writer.send(&frame);
    let given_up = GivenUp(writer);
    let answered = tokio::time::timeout(PATIENCE, await_reply(inner, reader, tag)).await;
    std::mem::forget(given_up);
    answered.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
}

async fn await_reply(
    inner: &Arc<Inner>,
    reader: &mut FrameReader,
    tag: u64,
) -> Result<(Answer, Vec<soda_types::Grant>), HandshakeError> {
    use crate::connection::ReadError;
    loop {
        let frame = reader.next().await.map_err(|error| match error {
            ReadError::Closed => HandshakeError::Io(io::ErrorKind::ConnectionReset.into()),
            ReadError::Io(error) => HandshakeError::Io(error),
            ReadError::Frame(error) => HandshakeError::NotSoda(error.to_string()),
        })?;
        if frame.kind == FrameKind::Push
            && let Ok(push) = frame.message::<Push>()
        {
            inner.handle_push(push);
        }
        if frame.kind != FrameKind::Reply || frame.tag != tag {
            continue;
        }
        let reply: Reply = frame.message().map_err(|error| HandshakeError::NotSoda(error.to_string()))?;
        return match reply.result {
            Ok(answer) => Ok((answer, reply.grants)),
            Err(Failure::SessionEnded) => Err(HandshakeError::SessionEnded),
            Err(failure) => Err(HandshakeError::Refused(failure.to_string())),
        };
    }
}

pub(crate) async fn connect(inner: &Inner) -> Result<(FrameReader, Arc<Writer>), HandshakeError> {
    let connecting = inner.transport.connect(&inner.config.server);
    let stream = tokio::time::timeout(PATIENCE, connecting).await;
    let Stream { read, write } = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    Ok((FrameReader::new(read), Writer::start(write)))
}

pub(crate) fn hello(role: Role) -> Hello {
    Hello {
        protocol_min: PROTOCOL_VERSION_MIN,
        protocol_max: PROTOCOL_VERSION,
        software: concat!("soda ", env!("CARGO_PKG_VERSION")).into(),
        credentials: Credentials::None,
        role,
    }
}
