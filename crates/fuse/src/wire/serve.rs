//! From bytes to the [`Handler`]: what both transports have in common, and the threads that read the device.

use super::abi::{self, Fields};
use super::agreement::Agreement;
use super::buffers::BufferPool;
use super::descriptors::Descriptors;
use super::device::{Device, Received};
use super::entry_memory::QueueMemory;
use super::escort::{Cores, Hurry, Seat, escort};
use super::pause::Pause;
use super::request::{SetXattrForm, parse_header, parse_write, parse_write_apart};
use super::spare::Spare;
use super::uring::{HandedQueues, Leave, NotEmptied, Uring};
use super::{Handler, Header, MalformedRequest, Op, Reply, Request, Sink};
use bytes::Bytes;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use soda_client::Due;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use tokio::runtime::Handle;

/// The threads of a mount.
#[derive(Debug)]
pub struct Serving {
    threads: Vec<JoinHandle<()>>,
    ended: tokio::sync::watch::Receiver<bool>,
    hurry: Option<Arc<dyn Hurry>>,
    pauses: Vec<Arc<Pause>>,
    queues: Option<Leave>,
    descriptors: Arc<Descriptors>,
    readers: usize,
}

/// The threads that read the device.
#[derive(Clone, Copy, Debug)]
pub struct Readers {
    pub threads: usize,
    pub cores: Cores,
}

impl Serving {
    /// Resolves when the mount is gone.
    pub fn ended(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // An error means that the sender is gone, which is the end as well.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Of queues' entries; `None` over the device.
    pub(crate) fn queue_memory(&self) -> Option<QueueMemory> {
        self.queues.as_ref().map(Leave::memory)
    }

    /// From now on each thread that has handed a request on reads no other.
    pub fn begin_pause(&self) {
        self.pauses.iter().for_each(|pause| pause.begin());
        self.queues.iter().for_each(Leave::begin_rest);
    }

    /// Threads that still wait for a request, or may hand one on. Waits for each for so long at the most.
    pub fn reading(&self, at_most: Duration) -> usize {
        let reading: usize = self.pauses.iter().map(|pause| pause.reading(at_most)).sum();
        reading + self.queues.as_ref().map_or(0, |queues| queues.restless(at_most))
    }

    /// All go on.
    pub fn end_pause(&self) {
        self.queues.iter().for_each(Leave::end_rest);
        self.pauses.iter().for_each(|pause| pause.end());
    }

    /// Over io_uring: has somebody else look up a name in the root directory, which makes the kernel know a file, for
    /// [`Serving::empty_queues`]. Before the pause; returns when `look_up` does.
    pub fn show_decoy(&self, look_up: impl FnOnce(&str)) {
        if let Some(queues) = &self.queues {
            queues.show_decoy(look_up);
        }
    }

    /// Over io_uring: takes back what the kernel has of the queues, so that it gives nothing to this process any more. In a
    /// pause, when nothing is under way. Over the device there is nothing to be done.
    ///
    /// # Errors
    /// [`NotEmptied`], in this time.
    pub fn empty_queues(&self, limit: Duration) -> Result<(), NotEmptied> {
        self.queues.as_ref().map_or(Ok(()), |queues| queues.empty(limit))
    }

    /// Whether they are still empty: answers of this process give them entries.
    ///
    /// # Errors
    /// [`NotEmptied`].
    pub fn check_queues(&self) -> Result<(), NotEmptied> {
        self.queues.as_ref().map_or(Ok(()), Leave::check)
    }

    /// What another process needs to go on with the queues, once they are empty; `None` over the device.
    ///
    /// # Errors
    /// [`NotEmptied`].
    pub fn hand_over_queues(&self) -> Result<Option<HandedQueues>, NotEmptied> {
        self.queues.as_ref().map(Leave::to_pass_on).transpose()
    }

    /// Those of /dev/fuse, by which another process goes on; the one that the mount was made with comes first.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.descriptors.descriptors()
    }

    /// Threads that read /dev/fuse.
    pub fn readers(&self) -> usize {
        self.readers
    }

    pub fn join(self) {
        for thread in self.threads {
            // An error: it panicked, which ends the process.
            let _ = thread.join();
        }
    }
}

/// As many threads as shall read the device, for [`read_device`].
///
/// # Errors
/// One cannot be started.
pub(crate) fn spare_readers(threads: usize) -> io::Result<Vec<Spare>> {
    (0..threads).map(|number| Spare::start(&format!("fuse-{number}"))).collect()
}

/// Starts threads that read the device until the mount is gone; then the queues of `uring`, if there are any, end too.
///
/// # Errors
/// A thread cannot be started.
pub(super) fn serve_device<H: Handler>(
    descriptors: &Arc<Descriptors>,
    readers: Readers,
    dispatcher: &Dispatcher<H>,
    uring: Option<&Uring>,
    runtime: &Handle,
) -> io::Result<Serving> {
    let threads = spare_readers(readers.threads)?;
    Ok(read_device(descriptors, (threads, readers.cores), dispatcher, uring, runtime))
}

/// As [`serve_device`], with threads that are there.
pub(super) fn read_device<H: Handler>(
    descriptors: &Arc<Descriptors>,
    (threads, cores): (Vec<Spare>, Cores),
    dispatcher: &Dispatcher<H>,
    uring: Option<&Uring>,
    runtime: &Handle,
) -> Serving {
    let (escort, supervise) = match cores {
        Cores::Follow => Some(escort(threads.len())),
        Cores::Free => None,
    }
    .unzip();
    let readers = threads.len();
    let alive = Arc::new(AtomicUsize::new(readers));
    let pause = Arc::new(Pause::new(alive.clone(), uring.map(Uring::bell)));
    let (ended, when_ended) = tokio::sync::watch::channel(false);
    let ended = Arc::new(ended);
    let queues = uring.map(Uring::queues).unwrap_or_default();
    let begin = |(number, thread): (usize, Spare)| {
        let (device, descriptors) = (descriptors.of_reader(number).clone(), descriptors.clone());
        let (dispatcher, pause) = (dispatcher.clone(), pause.clone());
        let (runtime, alive, ended, queues) = (runtime.clone(), alive.clone(), ended.clone(), queues.clone());
        let escort = escort.clone();
        thread.run(move || {
            let _context = runtime.enter();
            let seat = escort.as_ref().map(|escort| Seat::take(escort, number));
            Worker { device, descriptors, dispatcher, seat, pause }.run();
            if alive.fetch_sub(1, Ordering::AcqRel) == 1 {
                queues.iter().for_each(|queue| queue.end());
                escort.inspect(|escort| escort.end());
                ended.send_replace(true);
            }
        })
    };
    let mut threads: Vec<_> = threads.into_iter().enumerate().map(begin).collect();
    if let Some(supervise) = supervise {
        match thread::Builder::new().name("fuse-escort".into()).spawn(supervise) {
            Ok(supervisor) => threads.push(supervisor),
            Err(error) => tracing::debug!(%error, "the threads that answer do not follow who asks"),
        }
    }
    let hurry = escort.map(|escort| -> Arc<dyn Hurry> { escort });
    let (pauses, descriptors) = (vec![pause], descriptors.clone());
    Serving { threads, ended: when_ended, hurry, pauses, queues: None, descriptors, readers }
}

impl Serving {
    /// Other threads that read the same descriptors. They end when these end.
    pub(super) fn join_later(&mut self, other: Serving) {
        self.threads.extend(other.threads);
        self.pauses.extend(other.pauses);
        self.readers += other.readers;
        self.hurry = self.hurry.take().or(other.hurry);
    }

    /// Those of its threads that may hold up a recall.
    pub(crate) fn hurry(&self) -> Option<Arc<dyn Hurry>> {
        self.hurry.clone()
    }

    /// The threads of queues.
    pub(super) fn add(&mut self, threads: Vec<JoinHandle<()>>, hurry: Arc<dyn Hurry>, queues: Leave) {
        self.threads.extend(threads);
        self.hurry = Some(hurry);
        self.queues = Some(queues);
    }
}

/// Decodes requests and hands them on.
#[derive(Debug)]
pub(super) struct Dispatcher<H> {
    handler: Arc<H>,
    pub(super) pool: Arc<BufferPool>,
    form: SetXattrForm,
}

impl<H> Clone for Dispatcher<H> {
    fn clone(&self) -> Self {
        Dispatcher { handler: self.handler.clone(), pool: self.pool.clone(), form: self.form }
    }
}

impl<H: Handler> Dispatcher<H> {
    pub(super) fn new(handler: Arc<H>, agreement: &Agreement) -> Dispatcher<H> {
        Dispatcher { handler, pool: Arc::default(), form: agreement.setxattr_form() }
    }

    /// See [`Handler::arrived`].
    pub(super) fn arrived(&self, due: Due) {
        self.handler.arrived(due);
    }

    /// See [`Handler::look_up`].
    pub(super) fn look_up(&self, name: &str) {
        self.handler.look_up(name);
    }

    /// See [`Handler::abandon`].
    pub(super) fn abandon(&self) {
        self.handler.abandon();
    }

    /// A request that is no write.
    fn request(&self, (operation, header, fields): (u32, Header, Fields<'_>), reply: Reply) {
        match Op::parse(operation, fields, self.form) {
            Ok(op) => self.handler.handle(Request { header, op, payload: Bytes::new() }, reply),
            Err(error) => refuse(operation, error, reply),
        }
    }

    fn write(&self, header: Header, write: Write, reply: Reply) {
        match write {
            Ok((op, payload)) => self.handler.handle(Request { header, op, payload }, reply),
            Err(error) => refuse(abi::opcode::WRITE, error, reply),
        }
    }

    /// Takes what it needs of the last part of a request, which is apart from the rest in `message`: a write's data are copied
    /// to a place of their own, all else behind the rest. Then `payload` is not needed any more.
    pub(super) fn assemble(&self, message: &mut Vec<u8>, payload: &[u8]) -> Assembled {
        if operation_of(message) != abi::opcode::WRITE {
            message.extend_from_slice(payload);
            return Assembled::Whole;
        }
        // The message says how long it is with its data, and with what extends its header, which is behind these.
        let head = (message.len() as u32).to_ne_bytes();
        message[..head.len()].copy_from_slice(&head);
        let extensions = message.get_mut(abi::EXTENSIONS_AT).map_or(0, |words| {
            let count = words.first_chunk().map_or(0, |words| u16::from_ne_bytes(*words));
            words.fill(0);
            usize::from(count) * 8
        });
        let available = payload.len().saturating_sub(extensions);
        let parsed = parse_header(message).and_then(|(_, _, fields)| parse_write_apart(fields, available));
        Assembled::Write(parsed.map(|(op, size)| (op, self.pool.copy(&payload[..size]))))
    }

    pub(super) fn dispatch(&self, message: &[u8], assembled: Assembled, reply: Reply) {
        match (assembled, parse_header(message)) {
            (_, Err(error)) => refuse(0, error, reply),
            (Assembled::Whole, Ok(parsed)) => self.request(parsed, reply),
            (Assembled::Write(write), Ok((_, header, _))) => self.write(header, write, reply),
        }
    }
}

/// With its data, which are apart.
type Write = Result<(Op<'static>, Bytes), MalformedRequest>;

/// A request that came in parts.
pub(super) enum Assembled {
    Whole,
    Write(Write),
}

fn operation_of(message: &[u8]) -> u32 {
    message.get(4..8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn refuse(operation: u32, error: MalformedRequest, reply: Reply) {
    match error {
        // The kernel asks for what older daemons do not know and remembers the answer.
        MalformedRequest::Unknown(_) => {
            tracing::debug!(operation, "operation not implemented");
            reply.raw_error(Errno::NOSYS.raw_os_error());
        }
        MalformedRequest::Short => {
            tracing::error!(operation, "malformed request of the kernel");
            reply.raw_error(Errno::IO.raw_os_error());
        }
    }
}

struct Worker<H> {
    device: Arc<Device>,
    /// All of the mount, `device` among them.
    descriptors: Arc<Descriptors>,
    dispatcher: Dispatcher<H>,
    seat: Option<Seat>,
    pause: Arc<Pause>,
}

impl<H: Handler> Worker<H> {
    fn run(self) {
        let mut buffer = self.dispatcher.pool.take();
        loop {
            let waited = self.pause.await_message(&self.device);
            self.pause.keep();
            match waited.and_then(|()| self.device.try_to_receive(&mut buffer)) {
                Ok(Received::Message(len)) => buffer = self.dispatch(buffer, len),
                Ok(Received::Nothing) => {}
                Ok(Received::Unmounted) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot read from the FUSE device");
                    return;
                }
            }
        }
    }

    /// Gives back a buffer for the next request.
    fn dispatch(&self, buffer: Vec<u8>, len: usize) -> Vec<u8> {
        let (operation, header, fields) = match parse_header(&buffer[..len]) {
            Ok(parsed) => parsed,
            Err(error) => {
                // There is no number to answer to.
                tracing::error!(%error, len, "dropped a message of the kernel");
                return buffer;
            }
        };
        if let Some(seat) = &self.seat {
            seat.request(header.tid);
        }
        let sink: Arc<dyn Sink> = match operation {
            // Its answer is about another request, which any thread may have read.
            abi::opcode::INTERRUPT => self.descriptors.clone(),
            _ => self.device.clone(),
        };
        let reply = Reply::new(header.unique, sink);
        if operation != abi::opcode::WRITE {
            self.dispatcher.request((operation, header, fields), reply);
            return buffer;
        }
        let (write, buffer) = match parse_write(fields) {
            Ok((op, data)) => {
                let (payload, buffer) = self.dispatcher.pool.detach(buffer, data);
                (Ok((op, payload)), buffer)
            }
            Err(error) => (Err(error), buffer),
        };
        self.dispatcher.write(header, write, reply);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::super::Unique;
    use super::super::request::tests::{message, write_head};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Mutex;

    /// Keeps what is written.
    #[derive(Debug, Default)]
    struct Written(Mutex<Vec<Bytes>>);

    impl Handler for Written {
        fn handle(&self, request: Request<'_>, _: Reply) {
            if let Op::Write { .. } = request.op {
                self.0.lock().unwrap().push(request.payload);
            }
        }
    }

    #[derive(Debug)]
    struct Nowhere;

    impl Sink for Nowhere {
        fn send(&self, _: Unique, _: i32, _: &[&[u8]]) -> io::Result<()> {
            Ok(())
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// What comes in parts, over io_uring, is taken as what comes whole: of a write its own data and no more.
        #[test]
        fn random_requests_in_parts_do_not_panic_and_are_taken_as_whole_ones(
            operation in prop_oneof![3 => Just(abi::opcode::WRITE), 1 => 0u32..60],
            size in prop_oneof![3 => 0u32..60, 1 => any::<u32>()],
            arguments in prop_oneof![3 => Just(40usize), 1 => 0usize..60],
            payload in proptest::collection::vec(any::<u8>(), 0..100),
            cut in prop_oneof![8 => Just(0usize), 1 => 0usize..50],
            extensions in 0u16..3,
        ) {
            let mut head = write_head(size);
            head.resize(arguments, 0);
            let payload = [&payload[..], &[0xee; 16][..usize::from(extensions) * 8]].concat();
            let mut whole = message(operation, &[&head[..], &payload].concat());
            let mut parts = message(operation, &head);
            for message in [&mut whole, &mut parts] {
                message[abi::EXTENSIONS_AT].copy_from_slice(&extensions.to_ne_bytes());
            }
            parts.truncate(parts.len().saturating_sub(cut));
            let taken = Dispatcher::new(Arc::<Written>::default(), &Agreement::of_linux_6_18());
            let assembled = taken.assemble(&mut parts, &payload);
            taken.dispatch(&parts, assembled, Reply::new(1, Arc::new(Nowhere)));
            let expected = match parse_header(&whole).map(|(_, _, fields)| parse_write(fields)) {
                Ok(Ok((_, data))) if operation == abi::opcode::WRITE => vec![whole[data].to_vec()],
                _ => Vec::new(),
            };
            if arguments == 40 && cut == 0 {
                prop_assert_eq!(&*taken.handler.0.lock().unwrap(), &expected);
            }
        }
    }
}
