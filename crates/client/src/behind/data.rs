//! Data, here.

use super::here::{Here, NotHere};
use crate::cache::State;
use crate::cache::extents::Found;
use crate::cache::inode::Keeping;
use crate::config::WritePolicy;
use crate::interface::Written;
use crate::validity::Cached;
use crate::why::Why;
use bytes::Bytes;
use soda_oplog::Change;
use soda_protocol::{Allocate, WriteAt};
use soda_types::semantics;
use soda_types::{Attr, Fid, FileKind, KillPriv, Monotonic, SetAttr, Timestamp};
use std::ops::Range;

/// More than this, in bytes, is copied within the server: none of it travels.
const LARGEST_COPY: usize = 256 << 10;

/// At least what a file has allocated when this range was written. Where its holes are only the server knows: as much as can
/// be in one is counted, for who finds less than a file's length may take all of it for a hole (tar(1) with `--sparse`).
fn allocated_by(attr: &Attr, range: &Range<u64>) -> u64 {
    let beyond = range.end.saturating_sub(range.start.max(attr.size));
    let inside = range.end - range.start - beyond;
    let in_holes = inside.min(attr.size.saturating_sub(attr.allocated));
    attr.allocated + beyond + in_holes
}

impl State {
    /// `data` is kept as it is: nothing but these bytes should be alive for it.
    pub(crate) fn write_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        at: WriteAt,
        data: &Bytes,
        kill: KillPriv,
    ) -> Here<Written> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return Err(Why::Policy.into()) };
        if data.len() > policy.largest_write {
            return Err(Why::Large.into());
        }
        let mut attr = self.attr_here(now, fid)?;
        if attr.kind != FileKind::File || data.is_empty() {
            return Err(Why::Kind.into());
        }
        let offset = match at {
            WriteAt::Offset(offset) | WriteAt::Pages(offset) => offset,
            WriteAt::End => attr.size,
        };
        let len = data.len() as u64;
        let end = semantics::checked_end(offset, len).map_err(NotHere::Fails)?;
        if self.behind.streams_past(now, fid, &(offset..end)) {
            return Err(Why::Large.into());
        }
        self.room_here(now, data.len())?;
        let moment = self.moment(calendar, &[&attr]);
        let gap = attr.size..offset;
        attr.allocated = allocated_by(&attr, &(offset..end));
        attr.written(end, moment);
        if kill.kills() {
            attr.drop_privileges();
        }
        self.memory.write(fid, offset, data.clone(), attr.data_version);
        self.memory.zero(fid, gap, attr.data_version);
        self.set_attr_here(now, fid, attr);
        self.drop_capabilities(now, fid);
        let kill_suid_sgid = kill.kills();
        self.log_change(
            now,
            moment,
            Change::Write { fid, offset, data: data.clone().into(), kill_suid_sgid },
        );
        self.changed(now, fid, None, Some(offset..end));
        Ok(Written { offset, len, attr: Cached { value: attr, valid: self.attr_validity(now, fid, &attr) } })
    }

    /// fallocate(2).
    pub(crate) fn allocate_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        fid: Fid,
        range: Range<u64>,
        how: Allocate,
        kill: KillPriv,
    ) -> Here<()> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return Err(Why::Policy.into()) };
        // More is set aside only after more has been asked for.
        let (len, most) = (range.end - range.start, policy.space() / 2);
        let mut attr = self.attr_here(now, fid)?;
        if attr.kind != FileKind::File || len == 0 {
            return Err(Why::Kind.into());
        }
        semantics::checked_end(range.start, len).map_err(NotHere::Fails)?;
        let (reaches, empties) = match how {
            Allocate::Extend => (range.end, false),
            Allocate::KeepSize => (0, false),
            Allocate::PunchHole | Allocate::ZeroRangeKeepSize => (0, true),
            Allocate::ZeroRange => (range.end, true),
        };
        let change = Change::Allocate { fid, offset: range.start, len, how };
        let space = change.space();
        if space > most {
            return Err(Why::Large.into());
        }
        // The log has no word for it as one step: privileges go first.
        let mut unprivileged = attr;
        unprivileged.drop_privileges();
        let drop_privileges = SetAttr { kill_suid_sgid: true, ..SetAttr::default() };
        let drops = kill.kills() && unprivileged.perm != attr.perm;
        let first = drops.then_some(Change::SetAttr { fid, set: drop_privileges });
        self.space_here(now, space + first.as_ref().map_or(0, Change::space))?;
        if let Some(first) = first {
            let moment = self.moment(calendar, &[&attr]);
            attr.set(&drop_privileges, moment);
            self.log_change(now, moment, first);
        }
        let moment = self.moment(calendar, &[&attr]);
        let (before, gone) = (attr.size, range.start.min(attr.size)..range.end.min(attr.size));
        attr.written(reaches, moment);
        if empties {
            // At most this is left; the server's answer to the digest says what is.
            attr.allocated = attr.allocated.min(attr.size - (gone.end - gone.start));
            self.memory.zero(fid, range.start..range.end.min(attr.size), attr.data_version);
        }
        self.memory.rename_version(fid, attr.data_version);
        self.memory.zero(fid, before..attr.size, attr.data_version);
        self.set_attr_here(now, fid, attr);
        self.drop_capabilities(now, fid);
        self.log_change(now, moment, change);
        self.changed(now, fid, None, Some(range));
        Ok(())
    }

    /// copy_file_range(2) of what the cache has all of: it is logged as the write of these bytes. Returns how many.
    pub(crate) fn copy_here(
        &mut self,
        now: Monotonic,
        calendar: Timestamp,
        (from, offset): (Fid, u64),
        (to, to_offset): (Fid, u64),
        len: u64,
        kill: KillPriv,
    ) -> Here<u64> {
        let WritePolicy::Behind(policy) = &self.behind.policy else { return Err(Why::Policy.into()) };
        let most = policy.largest_write.min(LARGEST_COPY) as u64;
        let source = self.peek_attr(now, from).ok_or(Why::Unknown)?;
        let len = len.min(source.size.saturating_sub(offset));
        if len > most {
            return Err(Why::Large.into());
        }
        let range = offset..offset + len;
        let overlaps = from == to && offset < to_offset.saturating_add(len) && to_offset < range.end;
        // Holes stay holes: the server knows them.
        let holes = source.allocated < source.size;
        if source.kind != FileKind::File || len == 0 || overlaps || holes {
            return Err(Why::Kind.into());
        }
        if self.memory.write_in_flight(from, &range) {
            return Err(Why::Contended.into());
        }
        let Found::All(pieces) = self.memory.find(from, range) else { return Err(Why::Unknown.into()) };
        let data = Bytes::from(pieces.concat());
        let at = WriteAt::Offset(to_offset);
        Ok(self.write_here(now, calendar, to, at, &data, kill)?.len)
    }

    /// The last process has closed an inode without a name, of which the server has not heard everything: the log tells it.
    pub(crate) fn release_here(&mut self, now: Monotonic, calendar: Timestamp, fid: Fid) {
        let Some(attr) = self.peek(fid).and_then(|inode| inode.attr) else { return };
        let moment = self.moment(calendar, &[&attr]);
        self.inode(fid).log.keeping = Keeping::Closed;
        self.log_change(now, moment, Change::Release { fid });
    }
}
