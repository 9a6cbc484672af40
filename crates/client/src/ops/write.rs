//! Changes of data: write, append, fallocate, copy. Writes are made here, under the write lease ([`crate::behind`]), unless they
//! are too large or come too fast; the rest goes through to the server.

use crate::behind::here::NotHere;
use crate::behind::reserve::MadeRoom;
use crate::cache::extents::{COPY_WRITES_BELOW, WriteId, WriteOutcome};
use crate::cache::{OwnChange, State};
use crate::call::{Order, unexpected};
use crate::client::Client;
use crate::config::Consistency;
use crate::connection::Route;
use crate::inner::Arrived;
use crate::interface::Written;
use crate::log::streams::SMALL;
use crate::ops::OpenFile;
use crate::validity::Cached;
use bytes::Bytes;
use soda_lease::holder::Ticket;
use soda_protocol::{Allocate, Answer, Call, WriteAt};
use soda_types::{Attr, Errno, Fid, FsError, FsResult, KillPriv, Monotonic};
use std::future::Future;
use std::ops::Range;

/// An own change of data in progress.
pub(super) struct DataInFlight {
    fid: Fid,
    change: OwnChange,
    write: WriteId,
}

impl State {
    pub(super) fn begin_data(&mut self, now: Monotonic, fid: Fid, range: Range<u64>) -> DataInFlight {
        let change = self.begin_change(now, fid);
        self.doubt_capabilities(fid);
        DataInFlight { fid, change, write: self.memory.begin_write(fid, range) }
    }

    /// It failed: nothing was done.
    pub(super) fn data_failed(&mut self, flight: DataInFlight, error: &FsError) {
        self.end_change(flight.change);
        // After a lost session nobody knows.
        let unknown = error.errno == Errno::Io;
        let outcome = if unknown { WriteOutcome::Unknown } else { WriteOutcome::Unchanged };
        self.memory.end_write(flight.fid, flight.write, outcome);
    }

    /// It was done: `data` is what the file has there now, if that is known.
    pub(super) fn data_changed(
        &mut self,
        now: Monotonic,
        ticket: Ticket,
        flight: DataInFlight,
        attr: &Attr,
        range: Range<u64>,
        data: Option<(u64, Bytes)>,
    ) -> Cached<Attr> {
        let DataInFlight { fid, change, write } = flight;
        self.end_change(change);
        let enterable = self.enter(ticket, fid) && self.caches_under_leases();
        self.learn_attr(now, ticket, fid, attr);
        let outcome = if enterable {
            WriteOutcome::Changed { version: attr.data_version, data }
        } else {
            WriteOutcome::Unknown
        };
        self.memory.end_write(fid, write, outcome);
        self.changed(now, fid, None, Some(range));
        Cached { value: *attr, valid: self.attr_validity(now, fid, attr) }
    }

    /// From where on a change at the end of the file can reach.
    fn known_end(&mut self, now: Monotonic, fid: Fid) -> u64 {
        self.peek_attr(now, fid).map_or(0, |attr| attr.size)
    }
}

impl Client {
    /// Writes at an offset, or at the end of the file as the server knows it. More than the server takes at once
    /// ([`Client::max_io`]) goes in several steps, at the end of the file only as much: where the rest belongs is known when
    /// that is done, as others append, too. As with write(2), less than all is written also where a later step fails:
    /// [`Written::len`] says how much, and the next call why. [`Client::write_all`] goes on by itself.
    ///
    /// # Errors
    /// ENOSPC, EFBIG, EROFS; EIO if locks were lost. Nothing was written.
    pub async fn write(
        &self,
        file: &OpenFile,
        at: WriteAt,
        data: Bytes,
        kill: KillPriv,
    ) -> FsResult<Written> {
        self.inner.stats.op_write.one();
        self.check_loss(file)?;
        self.write_pieces(file, at, data, kill).await.map_err(|error| self.heard_of_loss(file, error))
    }

    /// As [`Client::write`], until all of `data` is written. At the end of the file the pieces follow one another, but other
    /// machines' may lie in between.
    ///
    /// # Errors
    /// As [`Client::write`]; what comes before the piece that failed is written.
    pub async fn write_all(
        &self,
        file: &OpenFile,
        mut at: WriteAt,
        mut data: Bytes,
        kill: KillPriv,
    ) -> FsResult<()> {
        loop {
            let Written { offset, len, .. } = self.write(file, at, data.clone(), kill).await?;
            data = data.slice((len as usize).min(data.len())..);
            match at {
                _ if data.is_empty() => return Ok(()),
                _ if len == 0 => return Err(FsError::new(Errno::Io, "the server wrote nothing")),
                WriteAt::Offset(_) => at = WriteAt::Offset(offset + len),
                WriteAt::Pages(_) => at = WriteAt::Pages(offset + len),
                WriteAt::End => {}
            }
        }
    }

    async fn write_pieces(
        &self,
        file: &OpenFile,
        at: WriteAt,
        data: Bytes,
        kill: KillPriv,
    ) -> FsResult<Written> {
        if let Some(written) = self.write_behind(file, at, &data, kill).await? {
            return Ok(written);
        }
        let most = self.inner.max_io() as usize;
        let mut rest = data;
        let mut done = self.write_once(file, at, rest.split_to(rest.len().min(most)), kill).await?;
        while !rest.is_empty() {
            let next = done.offset + done.len;
            let at = match at {
                WriteAt::Pages(_) => WriteAt::Pages(next),
                WriteAt::Offset(_) => WriteAt::Offset(next),
                // Another machine's append may be there by now.
                WriteAt::End => return Ok(done),
            };
            let next = match self.write_once(file, at, rest.split_to(rest.len().min(most)), kill).await {
                Ok(next) => next,
                // As write(2): what was written counts.
                Err(_) => return Ok(done),
            };
            done = Written { offset: done.offset, len: done.len + next.len, attr: next.attr };
        }
        Ok(done)
    }

    async fn write_behind(
        &self,
        file: &OpenFile,
        at: WriteAt,
        data: &Bytes,
        kill: KillPriv,
    ) -> FsResult<Option<Written>> {
        if !self.inner.writes_behind() {
            return Ok(None);
        }
        // As it came it may be a small part of a large buffer.
        let data = if data.len() < COPY_WRITES_BELOW { Bytes::copy_from_slice(data) } else { data.clone() };
        let written = self.inner.here(file.fid(), |state, now, today| {
            file.check_locks(state).map_err(NotHere::Fails)?;
            state.write_here(now, today, file.fid(), at, &data, kill)
        });
        let written = written.await?;
        if let Some(written) = &written {
            self.inner.stats.bytes_written.add(written.len);
        }
        Ok(written)
    }

    async fn write_once(
        &self,
        file: &OpenFile,
        at: WriteAt,
        data: Bytes,
        kill: KillPriv,
    ) -> FsResult<Written> {
        self.again_with_room(|| self.write_through(file, at, data.clone(), kill)).await
    }

    /// An operation that takes space at the server; once more if some was kept for what is done here.
    async fn again_with_room<T, F: Future<Output = FsResult<T>>>(&self, work: impl Fn() -> F) -> FsResult<T> {
        match work().await {
            Err(error) if error.errno == Errno::NoSpace && self.inner.make_room().await == MadeRoom::Yes => {
                work().await
            }
            result => result,
        }
    }

    async fn write_through(
        &self,
        file: &OpenFile,
        at: WriteAt,
        data: Bytes,
        kill: KillPriv,
    ) -> FsResult<Written> {
        let slot = self.slot().await?;
        let fid = file.fid();
        let len = data.len() as u64;
        let (route, ticket, flight) = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            file.check_changes(&state)?;
            file.check_locks(&mut state)?;
            let range = match at {
                WriteAt::Offset(offset) | WriteAt::Pages(offset) => {
                    offset..offset.checked_add(len).ok_or_else(|| FsError::from(Errno::FileTooBig))?
                }
                WriteAt::End => state.known_end(now, fid)..u64::MAX,
            };
            // The first write asks for the lease, on the connection that carries leases; what follows is only data.
            let no_lease =
                self.inner.config.consistency == Consistency::Lease && !state.covered_for_writing(now, fid);
            let route = if no_lease { Route::Control } else { Route::Data };
            let ticket = state.holder.begin_request(now);
            let flight = state.begin_data(now, fid, range);
            (route, ticket, flight)
        };
        let call = Call::Write { fid, at, kill_suid_sgid: kill.kills() };
        let order =
            Order { payload: data.clone().into(), route, ..Order::change(call, slot, ticket, vec![fid]) };
        let waiting = self.inner.send(order, move |arrived, result| {
            let ticket = arrived.ticket;
            let (state, now) = (&mut *arrived.state, arrived.now);
            let (offset, len, attr) = match written(result) {
                Ok(written) => written,
                Err(error) => {
                    state.data_failed(flight, &error);
                    return Err(error);
                }
            };
            if data.len() > SMALL {
                state.behind.stream_answered(now, fid);
            }
            let here = (len == data.len() as u64).then_some((offset, data));
            let attr = state.data_changed(now, ticket, flight, &attr, offset..offset + len, here);
            arrived.inner.stats.bytes_written.add(len);
            Ok(Written { offset, len, attr })
        });
        waiting.result().await
    }

    /// # Errors
    /// ENOSPC, EOPNOTSUPP, EFBIG.
    pub async fn fallocate(
        &self,
        file: &OpenFile,
        offset: u64,
        len: u64,
        how: Allocate,
        kill: KillPriv,
    ) -> FsResult<()> {
        self.inner.stats.op_allocate.one();
        let here = self.inner.here(file.fid(), |state, now, today| {
            file.check_locks(state).map_err(NotHere::Fails)?;
            state.allocate_here(now, today, file.fid(), offset..offset.saturating_add(len), how, kill)
        });
        if here.await?.is_some() {
            return Ok(());
        }
        let done = self.again_with_room(|| self.allocate(file, offset, len, how, kill)).await;
        done.map_err(|error| self.heard_of_loss(file, error))
    }

    async fn allocate(
        &self,
        file: &OpenFile,
        offset: u64,
        len: u64,
        how: Allocate,
        kill: KillPriv,
    ) -> FsResult<()> {
        let slot = self.slot().await?;
        let fid = file.fid();
        let (range, ticket, flight) = {
            let (mut state, now) = self.inner.settled(&[fid]).await?;
            file.check_changes(&state)?;
            file.check_locks(&mut state)?;
            let range = offset..offset.saturating_add(len);
            let ticket = state.holder.begin_request(now);
            let flight = state.begin_data(now, fid, range.clone());
            (range, ticket, flight)
        };
        let call = Call::Allocate { fid, offset, len, how, kill_suid_sgid: kill.kills() };
        let order = Order::change(call, slot, ticket, vec![fid]);
        let waiting = self
            .inner
            .send(order, move |arrived, result| end_data(arrived, flight, result, range).map(|_| ()));
        waiting.result().await
    }

    /// Copies; within the server, unless all of it is cached here. Returns how much: less at the end of the source.
    ///
    /// # Errors
    /// EINVAL for overlapping ranges of one file, ENOSPC.
    pub async fn copy_range(
        &self,
        from: (&OpenFile, u64),
        to: (&OpenFile, u64),
        len: u64,
        kill: KillPriv,
    ) -> FsResult<u64> {
        self.inner.stats.op_copy.one();
        let here = self.inner.here(to.0.fid(), |state, now, today| {
            from.0.check_locks(state).map_err(NotHere::Fails)?;
            to.0.check_locks(state).map_err(NotHere::Fails)?;
            state.copy_here(now, today, (from.0.fid(), from.1), (to.0.fid(), to.1), len, kill)
        });
        if let Some(copied) = here.await? {
            return Ok(copied);
        }
        let copied = self.again_with_room(|| self.copy(from, to, len, kill)).await;
        copied.map_err(|error| self.heard_of_loss(to.0, error))
    }

    async fn copy(
        &self,
        (from, from_offset): (&OpenFile, u64),
        (to, to_offset): (&OpenFile, u64),
        len: u64,
        kill: KillPriv,
    ) -> FsResult<u64> {
        let slot = self.slot().await?;
        let (range, ticket, flight) = {
            let (mut state, now) = self.inner.settled_unless_lost(&[from.fid(), to.fid()]).await?;
            to.check_changes(&state)?;
            from.check_locks(&mut state)?;
            to.check_locks(&mut state)?;
            let range = to_offset..to_offset.saturating_add(len);
            let ticket = state.holder.begin_request(now);
            let flight = state.begin_data(now, to.fid(), range.clone());
            (range, ticket, flight)
        };
        let kill_suid_sgid = kill.kills();
        let call =
            Call::CopyRange { from: from.fid(), from_offset, to: to.fid(), to_offset, len, kill_suid_sgid };
        let order = Order::change(call, slot, ticket, vec![to.fid()]);
        let waiting = self.inner.send(order, move |arrived, result| end_data(arrived, flight, result, range));
        waiting.result().await
    }
}

fn written(result: FsResult<(Answer, Bytes)>) -> FsResult<(u64, u64, Attr)> {
    match result?.0 {
        Answer::Written { offset, len, attr } => Ok((offset, len, attr)),
        other => unexpected(&other),
    }
}

/// The end of a change whose bytes are not known here. Returns how many it was about.
fn end_data(
    arrived: &mut Arrived<'_>,
    flight: DataInFlight,
    result: FsResult<(Answer, Bytes)>,
    range: Range<u64>,
) -> FsResult<u64> {
    let (state, now, ticket) = (&mut *arrived.state, arrived.now, arrived.ticket);
    let done = result.and_then(|(answer, _)| match answer {
        Answer::Written { len, attr, .. } => Ok((len, attr)),
        Answer::Changed { node: Some(node), .. } => Ok((range.end - range.start, node.attr)),
        other => unexpected(&other),
    });
    match done {
        Ok((len, attr)) => {
            state.data_changed(now, ticket, flight, &attr, range, None);
            Ok(len)
        }
        Err(error) => {
            state.data_failed(flight, &error);
            Err(error)
        }
    }
}
