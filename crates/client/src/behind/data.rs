//! Data, here.

use super::here::{Here, Keeping, NotHere, Why};
use crate::cache::State;
use crate::config::WritePolicy;
use crate::ops::{KillPriv, Written};
use crate::validity::Cached;
use bytes::Bytes;
use soda_oplog::Change;
use soda_protocol::WriteAt;
use soda_types::semantics;
use soda_types::{Fid, FileKind, Monotonic, Timestamp};

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
        self.room_here(data.len())?;
        let moment = self.moment(calendar, &[&attr]);
        if offset >= attr.size {
            attr.allocated += len;
        }
        attr.written(end, moment);
        if kill == KillPriv::Kill {
            attr.drop_privileges();
        }
        self.memory.write(fid, offset, data.clone(), attr.data_version);
        self.set_attr_here(now, fid, attr);
        let kill_suid_sgid = kill == KillPriv::Kill;
        self.log_change(now, moment, Change::Write { fid, offset, data: data.clone(), kill_suid_sgid });
        self.changed(now, fid, None, Some(offset..end));
        Ok(Written { offset, len, attr: Cached { value: attr, valid: self.attr_validity(now, fid, &attr) } })
    }

    /// The last process has closed an inode without a name, of which the server has not heard everything: the log tells it.
    pub(crate) fn release_here(&mut self, now: Monotonic, calendar: Timestamp, fid: Fid) {
        let Some(attr) = self.peek(fid).and_then(|inode| inode.attr) else { return };
        let moment = self.moment(calendar, &[&attr]);
        self.inode(fid).keeping = Keeping::Closed;
        self.log_change(now, moment, Change::Release { fid });
    }
}
