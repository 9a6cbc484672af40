//! Frames to a connection. The thread that sends writes into the socket itself: no hop for a message that fits. What the
//! socket does not take goes to a backlog that a task works off in order.

use bytes::{Buf, Bytes, BytesMut};
use soda_protocol::{Data, Frame};
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;
use tokio::sync::Notify;

pub(crate) struct Writer {
    out: Mutex<Out>,
    work: Notify,
    closed: Notify,
}

/// Pieces that are written at once: Linux takes 1,024 (writev(2)).
const SLICES_MAX: usize = 512;
/// Bytes of frames that are kept back at most.
const HELD_MAX: usize = 16 << 10;

struct Out {
    sink: Box<dyn AsyncWrite + Send + Unpin>,
    /// Frames that go ahead of the next one.
    held: BytesMut,
    backlog: VecDeque<Bytes>,
    backlog_bytes: usize,
    broken: bool,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer")
            .field("backlog_bytes", &crate::lock(&self.out).backlog_bytes)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// The task that works off the backlog ends with the connection or [`Writer::close`].
    pub(crate) fn start(sink: Box<dyn AsyncWrite + Send + Unpin>) -> Arc<Writer> {
        let out =
            Out { sink, held: BytesMut::new(), backlog: VecDeque::new(), backlog_bytes: 0, broken: false };
        let writer = Arc::new(Writer { out: Mutex::new(out), work: Notify::new(), closed: Notify::new() });
        tokio::spawn(Arc::clone(&writer).work_off());
        writer
    }

    /// Sends or queues. A broken connection takes frames into the void: its reader notices and everything without a
    /// reply is sent again on another one.
    pub(crate) fn send(&self, frame: &Frame) {
        let mut out = crate::lock(&self.out);
        let mut head = std::mem::take(&mut out.held);
        frame.encode_head(&mut head);
        self.put(&mut out, head.freeze(), frame.payload.clone());
    }

    /// Sends with the next frame and ahead of it, in one write, so that it wakes nobody of its own: to the receiver the
    /// order is as if it had been sent now. When nothing follows, [`Writer::send_held`] is to be called.
    pub(crate) fn hold(&self, frame: &Frame) {
        if frame.payload.len() >= HELD_MAX {
            return self.send(frame);
        }
        let mut out = crate::lock(&self.out);
        if out.broken {
            return;
        }
        frame.encode_head(&mut out.held);
        frame.payload.pieces().iter().for_each(|piece| out.held.extend_from_slice(piece));
        if out.held.len() >= HELD_MAX {
            self.put_held(&mut out);
        }
    }

    pub(crate) fn send_held(&self) {
        self.put_held(&mut crate::lock(&self.out));
    }

    fn put_held(&self, out: &mut Out) {
        let held = std::mem::take(&mut out.held);
        if !held.is_empty() {
            self.put(out, held.freeze(), Data::new());
        }
    }

    fn put(&self, out: &mut Out, mut head: Bytes, mut payload: Data) {
        if out.broken {
            return;
        }
        if out.backlog.is_empty() {
            let mut context = Context::from_waker(Waker::noop());
            while head.has_remaining() || !payload.is_empty() {
                let pieces = std::iter::once(&head).chain(payload.pieces());
                let slices: Vec<IoSlice<'_>> =
                    pieces.take(SLICES_MAX).map(|piece| IoSlice::new(piece)).collect();
                match Pin::new(&mut out.sink).poll_write_vectored(&mut context, &slices) {
                    Poll::Ready(Ok(written)) if written > 0 => {
                        let of_head = written.min(head.len());
                        head.advance(of_head);
                        payload.advance(written - of_head);
                    }
                    Poll::Ready(_) => {
                        out.broken = true;
                        return;
                    }
                    Poll::Pending => break,
                }
            }
        }
        let pieces = std::iter::once(&head).chain(payload.pieces());
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            out.backlog_bytes += piece.len();
            out.backlog.push_back(piece.clone());
        }
        if !out.backlog.is_empty() {
            self.work.notify_one();
        }
    }

    /// Bytes that wait: which of several connections is the least busy.
    pub(crate) fn backlog_bytes(&self) -> usize {
        crate::lock(&self.out).backlog_bytes
    }

    pub(crate) fn close(&self) {
        crate::lock(&self.out).broken = true;
        self.closed.notify_one();
    }

    async fn work_off(self: Arc<Writer>) {
        loop {
            tokio::select! {
                () = self.closed.notified() => break,
                () = self.work.notified() => {
                    tokio::select! {
                        () = self.closed.notified() => break,
                        result = poll_fn(|context| crate::lock(&self.out).poll_backlog(context)) => {
                            if result.is_err() {
                                break;
                            }
                        }
                    }
                }
            }
        }
        let mut out = crate::lock(&self.out);
        out.broken = true;
        out.held.clear();
        out.backlog.clear();
        out.backlog_bytes = 0;
        // Closes the stream's half of ours, so that the peer and our own reader see the end.
        let _ = Pin::new(&mut out.sink).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        out.sink = Box::new(tokio::io::sink());
    }
}

impl Out {
    fn poll_backlog(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(first) = self.backlog.front_mut() {
            match Pin::new(&mut self.sink).poll_write(context, first) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    first.advance(written);
                    self.backlog_bytes -= written;
                    if first.is_empty() {
                        self.backlog.pop_front();
                    }
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::FrameReader;
    use soda_protocol::FrameKind;

    #[tokio::test]
    async fn what_the_socket_does_not_take_follows_in_order() {
        let (near, far) = tokio::io::duplex(1000);
        let writer = Writer::start(Box::new(near));
        for tag in 0..50u64 {
            writer.send(&Frame::new(FrameKind::Request, tag, &1u8, vec![1u8; 400]).unwrap());
        }
        assert!(writer.backlog_bytes() > 0);
        let mut reader = FrameReader::new(Box::new(far));
        for tag in 0..50u64 {
            assert_eq!(reader.next().await.unwrap().tag, tag);
        }
        assert_eq!(writer.backlog_bytes(), 0);
        writer.close();
        assert!(reader.next().await.is_err());
    }
    #[tokio::test]
    async fn what_is_held_back_goes_ahead_of_the_next_frame() {
        let (near, far) = tokio::io::duplex(1 << 20);
        let writer = Writer::start(Box::new(near));
        let frame = |tag| Frame::new(FrameKind::Note, tag, &1u8, vec![1u8; 100]).unwrap();
        let mut reader = FrameReader::new(Box::new(far));
        writer.hold(&frame(1));
        writer.hold(&frame(2));
        {
            let mut next = std::pin::pin!(reader.next());
            let early = poll_fn(|context| Poll::Ready(next.as_mut().poll(context).is_ready())).await;
            assert!(!early, "it was sent of its own");
            writer.send(&frame(3));
            assert_eq!(next.await.unwrap().tag, 1);
        }
        assert_eq!(reader.next().await.unwrap().tag, 2);
        assert_eq!(reader.next().await.unwrap().tag, 3);
        writer.hold(&frame(4));
        writer.send_held();
        assert_eq!(reader.next().await.unwrap().tag, 4);
        // Many are not kept back.
        (0..HELD_MAX as u64 / 100).for_each(|tag| writer.hold(&frame(tag)));
        assert_eq!(reader.next().await.unwrap().tag, 0);
    }
}
