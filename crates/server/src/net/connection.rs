//! Reading frames of one peer. One task per connection: it reads, hands each frame on, and writes the answers of those that
//! arrived together with one system call.

use super::{Awaited, Backlog, Budget, Held, Outbox, SHORT, Share};
use bytes::BytesMut;
use soda_protocol::{Frame, FrameError, FrameHeader, FrameKind, HEADER_LEN};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

/// Room for reading when nothing is known about what comes.
const READ_MIN: usize = 4 << 10;
/// A longer frame's memory is not kept for the next one: most connections are idle most of the time.
const KEEP_MAX: usize = 64 << 10;
/// Frames handled before other tasks get their turn.
const TURN: usize = 128;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: OwnedReadHalf,
    buffer: BytesMut,
    /// Header of the frame whose rest is being read.
    header: Option<FrameHeader>,
    /// What was taken for it.
    held: Option<Held>,
    outbox: Arc<Outbox>,
    max_frame: usize,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("a frame of {0} bytes before the hello")]
    TooLong(usize),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the peer closed the connection")]
    Closed,
}

impl Connection {
    pub(crate) fn new(id: u64, stream: TcpStream, max_frame: usize, budget: &Arc<Budget>) -> Connection {
        let (read, write) = stream.into_split();
        Connection {
            stream: read,
            buffer: BytesMut::new(),
            header: None,
            held: None,
            outbox: Arc::new(Outbox::new(id, write, budget)),
            max_frame,
        }
    }

    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    pub(crate) fn allow_frames_of(&mut self, max_frame: usize) {
        self.max_frame = max_frame;
    }

    /// The next frame, however long it takes.
    pub(crate) async fn next_frame(&mut self) -> Result<Frame, ReadError> {
        loop {
            if let Taken::Frame(frame, _) = self.take_frame(None)? {
                return Ok(frame);
            }
            self.read().await?;
        }
    }

    /// Hands every frame to `handle` until the peer or the server ends the connection. Reads nothing more while over
    /// `unsent_max` bytes wait for a peer that does not read, or too much of what was read waits to be done (less of both while
    /// all connections together have much); and of a long request only the header before `long` has room for it. Without `long`
    /// all is read.
    pub(crate) async fn serve(
        mut self,
        unsent_max: usize,
        backlog: &Backlog,
        long: Option<&Share>,
        mut handle: impl FnMut(Frame, Option<Held>) -> ControlFlow<()>,
    ) -> ReadError {
        let outbox = self.outbox.clone();
        let error = loop {
            let turn = {
                let _corked = outbox.cork();
                self.take_turn(unsent_max, backlog, long, &mut handle)
            };
            match turn {
                Err(error) => break error,
                Ok(_) if outbox.is_closed() => break ReadError::Closed,
                Ok(Turn::More) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(Turn::Long(share, bytes)) => {
                    tokio::select! {
                        biased;
                        () = outbox.woken() => {}
                        () = outbox.writable(), if outbox.is_blocked() => outbox.unblock(),
                        () = share.room(bytes) => {}
                    }
                    continue;
                }
                // What was written or done meanwhile made room.
                Ok(Turn::Full) if outbox.has_room(unsent_max) && backlog.has_room() => continue,
                Ok(Turn::Full | Turn::Idle) => {}
            }
            let peer_reads = outbox.has_room(unsent_max);
            let may_read = peer_reads && backlog.has_room();
            if !peer_reads && !outbox.is_blocked() {
                // Another thread is writing at this moment.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                () = outbox.woken() => {}
                () = outbox.writable(), if outbox.is_blocked() => outbox.unblock(),
                read = self.read(), if may_read => if let Err(error) = read { break error },
            }
        };
        outbox.close();
        error
    }

    fn take_turn<'s>(
        &mut self,
        unsent_max: usize,
        backlog: &Backlog,
        long: Option<&'s Share>,
        handle: &mut impl FnMut(Frame, Option<Held>) -> ControlFlow<()>,
    ) -> Result<Turn<'s>, ReadError> {
        for _ in 0..TURN {
            if self.outbox.is_closed() || !self.outbox.has_room(unsent_max) || !backlog.has_room() {
                return Ok(Turn::Full);
            }
            let (frame, held) = match self.take_frame(long)? {
                Taken::Frame(frame, held) => (frame, held),
                Taken::Part => return Ok(Turn::Idle),
                Taken::Long(share, bytes) => return Ok(Turn::Long(share, bytes)),
            };
            if handle(frame, held).is_break() {
                return Err(ReadError::Closed);
            }
        }
        Ok(Turn::More)
    }

    fn take_frame<'s>(&mut self, long: Option<&'s Share>) -> Result<Taken<'s>, ReadError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let Some(raw) = self.buffer.first_chunk::<HEADER_LEN>() else { return Ok(Taken::Part) };
                let header = FrameHeader::parse(raw)?;
                if header.rest_len() > self.max_frame {
                    return Err(ReadError::TooLong(header.rest_len()));
                }
                let _ = self.buffer.split_to(HEADER_LEN);
                self.header = Some(header);
                header
            }
        };
        if let Some(share) = long
            && self.held.is_none()
            && header.kind == FrameKind::Request
            && header.rest_len() > SHORT
        {
            self.held = share.try_take(header.rest_len(), Awaited::No);
            if self.held.is_none() {
                return Ok(Taken::Long(share, header.rest_len()));
            }
        }
        if self.buffer.len() < header.rest_len() {
            return Ok(Taken::Part);
        }
        self.header = None;
        let rest = self.buffer.split_to(header.rest_len()).freeze();
        if self.buffer.is_empty() && rest.len() > KEEP_MAX {
            self.buffer = BytesMut::new();
        }
        Ok(Taken::Frame(header.finish(rest)?, self.held.take()))
    }

    async fn read(&mut self) -> Result<(), ReadError> {
        let rest = self.header.map_or(0, |header| header.rest_len().saturating_sub(self.buffer.len()));
        self.buffer.reserve(rest.max(READ_MIN));
        match self.stream.read_buf(&mut self.buffer).await? {
            0 => Err(ReadError::Closed),
            _ => Ok(()),
        }
    }
}

/// What is there of the next frame.
#[derive(Debug)]
enum Taken<'s> {
    /// All, with what was taken for it.
    Frame(Frame, Option<Held>),
    Part,
    /// The header of one for which there is no room.
    Long(&'s Share, usize),
}

#[derive(Clone, Copy, Debug)]
enum Turn<'s> {
    /// Frames may be left.
    More,
    /// The next one is so long, and there is no room for it.
    Long(&'s Share, usize),
    /// Frames may be left; first the peer has to read.
    Full,
    /// Nothing to do until something arrives or leaves.
    Idle,
}
