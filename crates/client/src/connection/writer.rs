//! Frames to a connection. The thread that sends writes into the socket itself: no hop for a message that fits. What the
//! socket does not take goes to a backlog that a task works off in order.

use bytes::{Buf, Bytes, BytesMut};
use soda_protocol::Frame;
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

struct Out {
    sink: Box<dyn AsyncWrite + Send + Unpin>,
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
        let out = Out { sink, backlog: VecDeque::new(), backlog_bytes: 0, broken: false };
        let writer = Arc::new(Writer { out: Mutex::new(out), work: Notify::new(), closed: Notify::new() });
        tokio::spawn(Arc::clone(&writer).work_off());
        writer
    }

    /// Sends or queues. A broken connection takes frames into the void: its reader notices and everything without a
    /// reply is sent again on another one.
    pub(crate) fn send(&self, frame: &Frame) {
        let mut head = BytesMut::new();
        frame.encode_head(&mut head);
        let mut out = crate::lock(&self.out);
        if out.broken {
            return;
        }
        let (mut head, mut payload) = (head.freeze(), frame.payload.clone());
        if out.backlog.is_empty() {
            let mut context = Context::from_waker(Waker::noop());
            while head.has_remaining() || payload.has_remaining() {
                let slices = [IoSlice::new(&head), IoSlice::new(&payload)];
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
        for piece in [head, payload] {
            if !piece.is_empty() {
                out.backlog_bytes += piece.len();
                out.backlog.push_back(piece);
            }
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
            writer.send(&Frame::new(FrameKind::Request, tag, &1u8, vec![1u8; 400].into()).unwrap());
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
}
