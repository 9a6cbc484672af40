//! Frames on their way to one peer: queued in the order of the table's decisions, written by whoever has time.
//!
//! Queuing is cheap and happens under the server's lock, so the order of replies and recalls is that of the decisions.
//! Writing happens outside of it: the thread that queued tries the socket at once (no hop to another task), and only
//! what the socket does not take is left to the connection's task.

use super::Budget;
use bytes::{Bytes, BytesMut};
use soda_protocol::Frame;
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

/// A payload up to this size is copied next to its header: cheaper than a part of its own.
const COPY_MAX: usize = 4096;
/// Parts per system call.
const PARTS_MAX: usize = 64;
/// Bytes encoded before the socket is tried.
const BATCH: usize = 256 << 10;
/// Bytes queued for a peer that does not read before it is given up. Requests stop being read long before; only what is
/// sent unasked can grow to this.
const UNSENT_MAX: usize = 128 << 20;

thread_local! {
    /// The connection that this thread will write to when it has done a turn of requests.
    static CORKED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// See [`Outbox::cork`]. Must not be kept across an await.
#[derive(Debug)]
pub(crate) struct Corked<'o>(&'o Outbox);

impl Drop for Corked<'_> {
    fn drop(&mut self) {
        CORKED.set(None);
        self.0.flush();
    }
}

pub(crate) struct Outbox {
    /// Unique in the life of the server.
    id: u64,
    stream: OwnedWriteHalf,
    queue: Mutex<VecDeque<Frame>>,
    wire: Mutex<Wire>,
    unsent: AtomicUsize,
    budget: Arc<Budget>,
    /// The socket is full: the connection's task waits for it, nobody else tries.
    blocked: AtomicBool,
    closed: AtomicBool,
    /// Wakes the connection's task: to wait for the socket, or to end.
    wake: Notify,
}

/// What has been encoded and not been written.
#[derive(Default)]
struct Wire {
    parts: VecDeque<Bytes>,
}

impl Outbox {
    pub(crate) fn new(id: u64, stream: OwnedWriteHalf, budget: &Arc<Budget>) -> Outbox {
        Outbox {
            id,
            stream,
            queue: Mutex::default(),
            wire: Mutex::default(),
            unsent: AtomicUsize::new(0),
            budget: Arc::clone(budget),
            blocked: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            wake: Notify::new(),
        }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Queues a frame; [`Outbox::flush`] sends it.
    pub(crate) fn push(&self, frame: Frame) {
        if self.is_closed() {
            return;
        }
        let before = self.unsent.fetch_add(size(&frame), Ordering::Relaxed);
        self.budget.take(size(&frame));
        if before > UNSENT_MAX {
            tracing::warn!(connection = self.id, "connection given up: its peer does not read");
            self.close();
            return;
        }
        if self.is_blocked() && self.budget.is_used_up() && !self.budget.allows(before, UNSENT_MAX) {
            let all = self.budget.held();
            tracing::warn!(
                connection = self.id,
                before,
                all,
                "connection given up: its peer does not read, and there is no \
                memory left for what waits"
            );
            self.close();
            return;
        }
        lock(&self.queue).push_back(frame);
    }

    /// Bytes queued and not taken by the socket.
    fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Relaxed)
    }

    /// Whether more of the peer's requests are to be read, whose answers it would have to read: `most` bytes of them may wait for
    /// it.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        self.budget.allows(self.unsent(), most)
    }

    /// Until the result is dropped, *this thread* writes nothing: it is at work on requests that arrived together, and
    /// writes all answers at the end. Other threads are not held back: a recall, or the answer to a renewal, does not wait for
    /// the end of a call.
    pub(crate) fn cork(&self) -> Corked<'_> {
        CORKED.set(Some(self.id));
        Corked(self)
    }

    /// Leaves the writing to the connection's own task.
    pub(crate) fn flush_later(&self) {
        self.wake.notify_one();
    }

    /// Writes as much as the socket takes without waiting. Any thread may call it, at any time.
    pub(crate) fn flush(&self) {
        if CORKED.get() != Some(self.id) {
            self.flush_now();
        }
    }

    /// As [`Outbox::flush`], also from a thread that is to write later ([`Outbox::cork`]).
    pub(crate) fn flush_now(&self) {
        while !self.blocked.load(Ordering::Acquire) {
            // Whoever holds the wire looks at the queue again after letting go, so nothing is left behind.
            let mut wire = match self.wire.try_lock() {
                Ok(wire) => wire,
                Err(TryLockError::WouldBlock) => return,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            };
            if let Err(error) = self.write(&mut wire) {
                // First: who is woken finds the wire taken, and nobody would write what is left on it.
                drop(wire);
                match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.blocked.store(true, Ordering::Release);
                        self.wake.notify_one();
                    }
                    _ => self.close(),
                }
                return;
            }
            drop(wire);
            if lock(&self.queue).is_empty() {
                return;
            }
        }
    }

    fn write(&self, wire: &mut Wire) -> io::Result<()> {
        loop {
            self.encode(wire);
            if wire.parts.is_empty() {
                return Ok(());
            }
            let slices: Vec<IoSlice<'_>> =
                wire.parts.iter().take(PARTS_MAX).map(|part| IoSlice::new(part)).collect();
            let taken = self.stream.try_write_vectored(&slices)?;
            self.unsent.fetch_sub(taken, Ordering::Relaxed);
            self.budget.give_back(taken);
            wire.advance(taken);
        }
    }

    /// Moves frames from the queue to the wire.
    fn encode(&self, wire: &mut Wire) {
        if wire.parts.len() >= PARTS_MAX {
            return;
        }
        let mut small = BytesMut::new();
        let mut batch = 0;
        while batch < BATCH {
            let Some(frame) = lock(&self.queue).pop_front() else { break };
            batch += size(&frame);
            frame.encode_head(&mut small);
            if frame.payload.len() <= COPY_MAX {
                frame.payload.pieces().iter().for_each(|piece| small.extend_from_slice(piece));
            } else {
                wire.parts.push_back(small.split().freeze());
                wire.parts.extend(frame.payload.pieces().iter().cloned());
            }
        }
        if !small.is_empty() {
            wire.parts.push_back(small.freeze());
        }
    }

    /// Whether the connection's task has to wait for the socket to take more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// The socket takes more.
    pub(crate) fn unblock(&self) {
        self.blocked.store(false, Ordering::Release);
        self.flush();
    }

    /// Ends the connection: what is queued is thrown away, its task stops.
    pub(crate) fn close(&self) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            lock(&self.queue).clear();
            if let Err(error) = rustix::net::shutdown(self.stream.as_ref(), rustix::net::Shutdown::Both) {
                tracing::debug!(connection = self.id, %error, "the socket was gone already");
            }
            self.wake.notify_one();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Returns when a blocked socket takes more, or is gone.
    pub(crate) async fn writable(&self) {
        if let Err(error) = self.stream.writable().await {
            tracing::debug!(connection = self.id, %error, "waiting for the socket");
            self.close();
        }
    }

    /// Returns when the connection's task has something else to do than to read.
    pub(crate) async fn woken(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.budget.give_back(self.unsent());
    }
}

impl Wire {
    fn advance(&mut self, mut taken: usize) {
        while taken > 0 {
            let Some(first) = self.parts.front_mut() else { return };
            if first.len() > taken {
                let _ = first.split_to(taken);
                return;
            }
            taken -= first.len();
            self.parts.pop_front();
        }
    }
}

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").field("id", &self.id).field("unsent", &self.unsent()).finish_non_exhaustive()
    }
}

fn size(frame: &Frame) -> usize {
    soda_protocol::HEADER_LEN + frame.body.len() + frame.payload.len()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::FrameKind;
    use std::pin::pin;
    use std::task::{Context, Poll, Wake, Waker};
    use tokio::net::{TcpListener, TcpStream};

    /// Looks whether the wire can be had at the moment in which it is woken.
    struct Looks(Arc<Outbox>, Mutex<Option<bool>>);

    impl Wake for Looks {
        fn wake(self: Arc<Looks>) {
            let is_free = self.0.wire.try_lock().is_ok();
            *lock(&self.1) = Some(is_free);
        }
    }

    /// The connection's task may run before the thread that wakes it goes on. If the wire is taken then it leaves the rest to
    /// the other thread, which leaves it to the task: a reply would stay half sent until something else is said.
    #[tokio::test]
    async fn who_is_to_wait_for_the_socket_is_woken_when_the_wire_is_free() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let _peer = TcpStream::connect(listener.local_addr()?).await?;
        let (_read, write) = listener.accept().await?.0.into_split();
        let budget = Arc::new(Budget::new(u64::MAX));
        let outbox = Arc::new(Outbox::new(1, write, &budget));
        let looks = Arc::new(Looks(Arc::clone(&outbox), Mutex::default()));
        let waker = Waker::from(Arc::clone(&looks));
        let mut woken = pin!(outbox.woken());
        assert_eq!(woken.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Pending);
        // More than any socket takes while nobody reads.
        let payload = Bytes::from(vec![0; 1 << 20]);
        for tag in 0..64 {
            let body = Bytes::new();
            outbox.push(Frame { kind: FrameKind::Reply, tag, body, payload: payload.clone().into() });
        }
        // The runtime has to see that the socket takes something first.
        outbox.writable().await;
        outbox.flush();
        assert!(outbox.is_blocked() && outbox.unsent() > 0);
        assert_eq!(*lock(&looks.1), Some(true), "the wire was taken");
        assert_eq!(budget.held(), outbox.unsent() as u64);
        Ok(())
    }
}
