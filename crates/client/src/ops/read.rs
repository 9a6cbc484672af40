//! Reading: memory, then the local disk, then the server; and ahead of the reader.

use crate::cache::State;
use crate::cache::disk::Extent;
use crate::cache::extents::{FetchId, Found, Kept};
use crate::cache::next_files::Had;
use crate::cache::readahead::{Plan, RANDOM_UNIT, UNIT, unit_end};
use crate::cache::reading::Asks;
use crate::call::{Order, Waiting, unexpected};
use crate::client::Client;
use crate::config::Consistency;
use crate::connection::Route;
use crate::inner::{Arrived, Inner};
use crate::ops::OpenFile;
use crate::ops::fetch::Said;
use bytes::Bytes;
use soda_lease::holder::Ticket;
use soda_protocol::{Answer, Call};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, Monotonic, Version};
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// So often a read tries to go through the cache before it asks the server for just its bytes.
const TRIES: u32 = 3;

/// Bytes of a file, in pieces as they lie in the cache.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReadData {
    chunks: Vec<Bytes>,
    version: Version,
}

impl ReadData {
    /// Which version of the file's data these bytes are of.
    pub fn version(&self) -> Version {
        self.version
    }

    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    pub fn len(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In one piece; copies if there are several.
    pub fn to_bytes(&self) -> Bytes {
        match self.chunks.as_slice() {
            [] => Bytes::new(),
            [only] => only.clone(),
            several => several.concat().into(),
        }
    }
}

/// How a read goes on.
enum Step {
    Done(ReadData),
    /// Somebody else is fetching parts of it.
    Join(Vec<oneshot::Receiver<()>>),
    /// Parts are on their way into the cache.
    Fetch(Fetches),
    /// A lease first; of a small file data come with it.
    Ask(Waiting<Said>),
    /// Straight from the server.
    Direct(Waiting<ReadData>),
    /// The server has to hear first what was written here.
    Settle,
}

/// Announced in the cache, still to be begun.
#[derive(Default)]
pub(super) struct Orders {
    server: Vec<(Range<u64>, FetchId, Ticket)>,
    disk: Vec<(Extent, FetchId)>,
    /// Wanted by who reads in order, who does not come back as a rule.
    in_order: bool,
}

/// Under way, whether or not anybody waits for them.
#[derive(Default)]
pub(super) struct Fetches {
    server: Vec<Waiting<()>>,
    disk: Vec<JoinHandle<()>>,
}

/// One read.
struct Wanted<'a> {
    file: &'a OpenFile,
    range: Range<u64>,
    /// What the server said just now, where it is asked each time.
    verified: Option<Attr>,
    plan: Option<Plan>,
    tries: u32,
}

impl Wanted<'_> {
    fn is_small(&self) -> bool {
        self.range.end - self.range.start <= RANDOM_UNIT
    }
}

impl Client {
    /// Reads [`Client::max_io`] bytes at most; less than that, and than asked for, only at the end of the file.
    ///
    /// # Errors
    /// EIO for data that is damaged on the server, ESTALE.
    pub async fn read(&self, file: &OpenFile, offset: u64, len: u32) -> FsResult<ReadData> {
        self.inner.stats.op_read.one();
        let end = offset.saturating_add(u64::from(len.min(self.inner.max_io())));
        let verified = match self.inner.config.consistency {
            Consistency::Verify => Some(self.inner.ask_attr(file.fid()).result().await?.value),
            _ => None,
        };
        let began = self.inner.now();
        let mut wanted = Wanted { file, range: offset..end, verified, plan: None, tries: 0 };
        loop {
            match self.inner.read_step(&mut wanted)? {
                Step::Done(data) => {
                    self.inner.stats.bytes_read.add(data.len() as u64);
                    return Ok(data);
                }
                Step::Settle => {
                    // Not through the cache: who writes all the time would have it change before it is read.
                    let (state, now) = self.inner.settled(&[file.fid()]).await?;
                    let data = self.inner.direct(state, now, &wanted).result().await?;
                    return self.came(file, data);
                }
                Step::Join(others) => {
                    for other in others {
                        self.inner.join(other).await?;
                    }
                }
                Step::Fetch(Fetches { server, disk }) => {
                    for load in disk {
                        // What could not be loaded is missing still.
                        let _ = load.await;
                    }
                    for fetch in server {
                        match fetch.result().await {
                            // What is damaged may lie beside what is wanted.
                            Err(error) if error.errno == Errno::Io && self.inner.has_time(began) => {
                                wanted.tries = TRIES;
                            }
                            fetched => fetched?,
                        }
                    }
                }
                Step::Ask(said) => drop(said.result().await?),
                Step::Direct(data) => return self.came(file, data.result().await?),
            }
            wanted.tries += 1;
        }
    }

    /// Bytes straight from the server.
    fn came(&self, file: &OpenFile, data: ReadData) -> FsResult<ReadData> {
        // The session may have ended while they were under way, and a new one asked again.
        file.check_locks(&mut crate::lock(&self.inner.state))?;
        self.inner.stats.bytes_read.add(data.len() as u64);
        Ok(data)
    }
}

impl Inner {
    fn read_step(self: &Arc<Inner>, wanted: &mut Wanted<'_>) -> FsResult<Step> {
        let fid = wanted.file.fid();
        let (mut state, now) = self.locked();
        wanted.file.check_locks(&mut state)?;
        let attr = wanted.verified.or_else(|| state.peek_attr(now, fid));
        let in_flight = state.memory.write_in_flight(fid, &wanted.range);
        let untold = state.is_ahead(&[fid]);
        let Some(attr) = attr.filter(|_| !in_flight && wanted.tries < TRIES) else {
            if untold {
                return Ok(Step::Settle);
            }
            return Ok(self.without_cache(state, now, wanted, in_flight));
        };
        let range = wanted.range.start..wanted.range.end.min(attr.size);
        if range.is_empty() {
            return Ok(Step::Done(ReadData { chunks: Vec::new(), version: attr.data_version }));
        }
        if self.config.consistency != Consistency::Lease {
            state.memory.revalidate(fid, attr.data_version);
        }
        let plan = wanted
            .plan
            .get_or_insert_with(|| crate::lock(&wanted.file.sequence).plan(range.clone(), attr.size))
            .clone();
        let found = state.memory.find(fid, range.clone());
        let mut ahead = Orders { in_order: true, ..Orders::default() };
        let mut wanted_now = Orders::default();
        if wanted.tries == 0 && !untold {
            self.plan_fetches(&mut state, now, (fid, &attr), plan.ahead, &mut ahead);
            let lengths = ahead.server.iter().map(|(range, ..)| range.end - range.start);
            self.stats.readahead_bytes.add(lengths.sum());
        }
        let step = match found {
            Found::All(chunks) => {
                if wanted.tries == 0 {
                    self.stats.data_hits.one();
                }
                state.inode(fid).note_fill();
                Step::Done(ReadData { chunks, version: attr.data_version })
            }
            Found::Missing(_) if untold => return Ok(Step::Settle),
            Found::Missing(missing) => {
                if wanted.tries == 0 {
                    self.stats.data_misses.one();
                }
                let missing = missing.start..range.end;
                let others = state.memory.join_fetches(fid, &missing);
                if others.is_empty() {
                    // What the disk has all of needs nothing from the server beside it.
                    let around = if self.all_on_disk((fid, &attr), &missing) { missing } else { plan.around };
                    self.plan_fetches(&mut state, now, (fid, &attr), around, &mut wanted_now);
                    Step::Fetch(Fetches::default())
                } else {
                    Step::Join(others)
                }
            }
        };
        let had = match &step {
            Step::Join(_) => Had::UnderWay,
            Step::Fetch(_) => Had::Nothing,
            _ => Had::InMemory,
        };
        let first = wanted.tries == 0 && !untold;
        let next_files = match first {
            true => self.plan_next_files(&mut state, now, (fid, &attr), &range, had),
            false => Vec::new(),
        };
        drop(state);
        // What is ahead goes on by itself.
        drop(self.begin(fid, ahead));
        let step = match step {
            Step::Fetch(_) => Step::Fetch(self.begin(fid, wanted_now)),
            other => other,
        };
        self.begin_next_files(next_files);
        Ok(step)
    }

    /// Announces what is missing of a range, to be loaded from the local disk or, where that has not got it, fetched.
    pub(super) fn plan_fetches(
        &self,
        state: &mut State,
        now: Monotonic,
        (fid, attr): (Fid, &Attr),
        range: Range<u64>,
        orders: &mut Orders,
    ) {
        if range.is_empty() {
            return;
        }
        for missing in state.memory.missing(fid, range) {
            let mut at = missing.start;
            while at < missing.end {
                let unit = at..unit_end(at).min(missing.end);
                let extent = self.disk.get().and_then(|disk| disk.first_in(fid, disk_version(attr), &unit));
                at = match extent {
                    Some(extent) if extent.range().start <= at => {
                        let id = state.memory.begin_fetch(fid, extent.range());
                        orders.disk.push((extent, id));
                        extent.range().end
                    }
                    other => {
                        let end = other.map_or(unit.end, |extent| extent.range().start);
                        let id = state.memory.begin_fetch(fid, at..end);
                        orders.server.push((at..end, id, state.holder.begin_request(now)));
                        end
                    }
                };
            }
        }
    }

    fn all_on_disk(&self, (fid, attr): (Fid, &Attr), range: &Range<u64>) -> bool {
        let Some(disk) = self.disk.get() else { return false };
        let mut at = range.start;
        while at < range.end {
            let Some(extent) = disk.find(fid, disk_version(attr), at) else { return false };
            at = extent.range().end;
        }
        true
    }

    /// Not under the lock of the caches.
    pub(super) fn begin(self: &Arc<Inner>, fid: Fid, orders: Orders) -> Fetches {
        let server = orders.server.into_iter().map(|(range, id, ticket)| self.fetch(fid, range, id, ticket));
        let server = server.collect();
        let in_order = orders.in_order;
        let load = |(extent, id): &(Extent, FetchId)| Load {
            inner: Arc::clone(self),
            extent: *extent,
            id: *id,
            in_order,
        };
        // Of many small pieces not each takes a thread.
        let unit = |(extent, _): &(Extent, FetchId)| extent.range().start / UNIT;
        let by_unit = orders.disk.chunk_by(|one, next| unit(one) == unit(next));
        let batches = by_unit.map(|batch| batch.iter().map(load).collect::<Vec<_>>());
        let begun =
            batches.map(|loads| self.runtime.spawn_blocking(|| loads.into_iter().for_each(Load::run)));
        Fetches { server, disk: begun.collect() }
    }

    fn fetch(self: &Arc<Inner>, fid: Fid, range: Range<u64>, id: FetchId, ticket: Ticket) -> Waiting<()> {
        let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let call = Call::Read { fid, offset: range.start, len };
        let order = Order { route: Route::Data, ..Order::question(call, ticket) };
        self.send(order, move |arrived, result| match data_of(result, len) {
            Ok((attr, bytes)) => {
                enter(arrived, fid, (range.start, id), &attr, bytes);
                Ok(())
            }
            Err(error) => {
                arrived.state.memory.end_fetch(fid, id, None);
                Err(error)
            }
        })
    }

    /// No lease, or an own write is under way, or the cache does not hold still.
    fn without_cache(
        self: &Arc<Inner>,
        state: MutexGuard<'_, State>,
        now: Monotonic,
        wanted: &Wanted<'_>,
        in_flight: bool,
    ) -> Step {
        let fid = wanted.file.fid();
        let leases = self.config.consistency != Consistency::Verify;
        if wanted.tries == 0 && !wanted.is_small() && leases && !in_flight {
            drop(state);
            return Step::Ask(self.ask(fid, Asks::Data));
        }
        Step::Direct(self.direct(state, now, wanted))
    }

    /// Just the bytes that are wanted.
    fn direct(
        self: &Arc<Inner>,
        mut state: MutexGuard<'_, State>,
        now: Monotonic,
        wanted: &Wanted<'_>,
    ) -> Waiting<ReadData> {
        let (fid, range) = (wanted.file.fid(), wanted.range.clone());
        let in_flight = state.memory.write_in_flight(fid, &range);
        if wanted.tries == 0 {
            self.stats.data_misses.one();
        }
        // A small read brings the lease along, on the connection that carries leases.
        let route = if wanted.is_small() && !in_flight { Route::Control } else { Route::Data };
        let id = state.memory.begin_fetch(fid, range.clone());
        state.inode(fid).note_fill();
        let ticket = state.holder.begin_request(now);
        drop(state);
        let len = u32::try_from(range.end - range.start).unwrap_or(u32::MAX);
        let call = Call::Read { fid, offset: range.start, len };
        let order = Order { route, ..Order::question(call, ticket) };
        self.send(order, move |arrived, result| match data_of(result, len) {
            Ok((attr, bytes)) => {
                enter(arrived, fid, (range.start, id), &attr, bytes.clone());
                let chunks = if bytes.is_empty() { Vec::new() } else { vec![bytes] };
                Ok(ReadData { chunks, version: attr.data_version })
            }
            Err(error) => {
                arrived.state.memory.end_fetch(fid, id, None);
                Err(error)
            }
        })
    }

    /// Whether what began then may go on: a `soft` mount has a limit.
    fn has_time(&self, began: Monotonic) -> bool {
        self.patience().is_none_or(|patience| self.now().since(began) < patience)
    }

    /// Waits for somebody else's fetch.
    async fn join(&self, other: oneshot::Receiver<()>) -> FsResult<()> {
        let Some(patience) = self.patience() else {
            let _ = other.await;
            return Ok(());
        };
        let timed = {
            let _context = self.runtime.enter();
            tokio::time::timeout(patience, other)
        };
        let waited = timed.await.map(|_| ());
        waited.map_err(|_| FsError::new(Errno::Io, "ETIMEDOUT: the server did not answer in time (soft)"))
    }
}

/// A piece on its way from the local disk. Dropped, it is not on its way any more.
struct Load {
    inner: Arc<Inner>,
    extent: Extent,
    id: FetchId,
    in_order: bool,
}

impl Load {
    /// Into memory, if it is still what is wanted when it is there. Blocks.
    fn run(self) {
        let (inner, fid) = (&self.inner, self.extent.fid());
        let Some(disk) = inner.disk.get() else { return };
        let Some(bytes) = disk.read(&self.extent) else { return };
        inner.stats.disk_hits.one();
        let passes = self.in_order && disk.may_pass(&self.extent);
        let (mut state, now) = inner.locked();
        let current = match inner.config.consistency {
            Consistency::Lease => state.peek_attr(now, fid),
            _ => state.existing(fid).and_then(|inode| inode.attr),
        };
        let fresh = current.filter(|attr| disk_version(attr) == self.extent.version());
        let entered = fresh.map(|attr| (attr.data_version, bytes));
        if state.memory.end_fetch(fid, self.id, entered) == Kept::Yes && passes {
            state.memory.let_pass(fid, self.extent.range().start);
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        crate::lock(&self.inner.state).memory.end_fetch(self.extent.fid(), self.id, None);
    }
}

/// What the local disk calls a version: after a power cut of the server data versions may be used again, but not at the
/// same nanosecond.
fn disk_version(attr: &Attr) -> Version {
    let mtime =
        (attr.mtime.secs() as u64).wrapping_mul(1_000_000_007).wrapping_add(u64::from(attr.mtime.nanos()));
    Version(attr.data_version.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ mtime)
}

fn data_of(result: FsResult<(Answer, Bytes)>, len: u32) -> FsResult<(Attr, Bytes)> {
    match result? {
        (Answer::Data { attr }, bytes) if bytes.len() <= len as usize => Ok((attr, bytes)),
        (Answer::Data { .. }, _) => Err(FsError::new(Errno::Io, "the server sent more than was asked for")),
        (other, _) => unexpected(&other),
    }
}

/// Bytes from the server into the caches, if the lease (or another mode's rule) allows it.
pub(super) fn enter(
    arrived: &mut Arrived<'_>,
    fid: Fid,
    (offset, id): (u64, FetchId),
    attr: &Attr,
    bytes: Bytes,
) {
    let (state, now, ticket) = (&mut *arrived.state, arrived.now, arrived.ticket);
    let enterable = state.enter(ticket, fid);
    state.learn_attr(now, ticket, fid, attr);
    if arrived.inner.config.consistency != Consistency::Lease {
        state.memory.revalidate(fid, attr.data_version);
    }
    let entered = enterable.then(|| (attr.data_version, bytes.clone()));
    let kept = state.memory.end_fetch(fid, id, entered);
    if kept == Kept::Yes
        && let Some(disk) = arrived.inner.disk.get()
        && let Some(work) = disk.keep(fid, disk_version(attr), offset, bytes)
    {
        arrived.inner.runtime.spawn_blocking(work);
    }
}
