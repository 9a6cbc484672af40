//! Who writes faster than the server takes it.
//!
//! Large writes are logged like small ones: nobody waits for the server, and what is soon overwritten is not told. But a long
//! stream would have to wait for it all the same, when as much is pending as may be; and by way of the log each MiB is made
//! durable at the server by itself before it is applied, and written to the local disk as well, if the log has a place there.
//! So the large writes of a file go through once a part of what may wait does, and go on to do so until none has come for a
//! while: the others wait then for what that file has in the log, and no more. Of a buffer that does not begin at a page Linux
//! hands a MiB on in two (direct IO): what is left of a large write goes the way that its beginning went, or the next one would
//! have to wait until the server has been told of it.
//!
//! Far from the server each write that goes through takes a round trip, while digests follow each other without waiting for
//! answers: there all is logged.

use super::Behind;
use crate::config::{WriteBehind, WritePolicy};
use soda_types::{Fid, Monotonic};
use std::ops::Range;
use std::time::Duration;

/// Smaller writes, in bytes, are logged however much waits.
pub(crate) const SMALL: usize = 128 << 10;
/// Up to this size, in bytes, they are, too, where they may be all of a small file...
const MIDDLE: u64 = 256 << 10;
/// ... which they are not from here on.
const LONG: u64 = 1 << 20;
/// Of the bytes that may wait, the part beyond which a stream goes through.
const PART: u64 = 4;
/// A file to which nothing large was written for so long is no stream any more.
const PAUSE: Duration = Duration::from_secs(1);
/// A file whose write has not been answered for so long beyond that is forgotten.
const LONGEST: Duration = Duration::from_secs(30);
/// Files that are remembered as streams.
const MOST: usize = 64;

/// Files whose large writes go through.
#[derive(Debug, Default)]
pub(super) struct Streams(Vec<Stream>);

#[derive(Debug)]
struct Stream {
    fid: Fid,
    /// It goes on until then.
    until: Monotonic,
    /// Where the last large write ended, if nothing has come after it.
    end: Option<u64>,
}

impl Streams {
    /// What goes on now.
    fn find(&mut self, now: Monotonic, fid: Fid) -> Option<&mut Stream> {
        self.0.iter_mut().find(|stream| stream.fid == fid && stream.until > now)
    }

    /// Whether a large write is of a stream; that goes on if it is.
    fn goes_on(&mut self, now: Monotonic, fid: Fid, range: &Range<u64>) -> bool {
        self.0.retain(|stream| stream.until + LONGEST > now);
        let stream = self.find(now, fid);
        stream.map(|stream| (stream.until, stream.end) = (now + PAUSE, Some(range.end))).is_some()
    }

    /// Whether a small write is what is left of a large one.
    fn is_rest(&mut self, now: Monotonic, fid: Fid, range: &Range<u64>) -> bool {
        self.find(now, fid).is_some_and(|stream| stream.end.take() == Some(range.start))
    }

    fn begin(&mut self, now: Monotonic, fid: Fid, range: &Range<u64>) {
        self.0.retain(|stream| stream.fid != fid);
        // One that is forgotten begins anew with the next write.
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Stream { fid, until: now + PAUSE, end: Some(range.end) });
    }

    fn answered(&mut self, now: Monotonic, fid: Fid) {
        let stream = self.0.iter_mut().find(|stream| stream.fid == fid);
        stream.into_iter().for_each(|stream| stream.until = now + PAUSE);
    }
}

impl Behind {
    /// Whether a write of these bytes goes to the server at once, since that has not been told of too much. Not where fsync
    /// is content with the log: then nobody wants to be kept waiting for the server, nor does all that was not told have to
    /// be on its disk before the next fsync returns.
    pub(crate) fn streams_past(&mut self, now: Monotonic, fid: Fid, range: &Range<u64>) -> bool {
        let WritePolicy::Behind(WriteBehind { max_bytes, .. }) = self.policy else { return false };
        if self.syncs_here() || self.window.is_far() {
            return false;
        }
        let len = range.end.saturating_sub(range.start);
        if len <= SMALL as u64 || (len <= MIDDLE && range.start < LONG) {
            return self.streams.is_rest(now, fid, range);
        }
        let untold = self.log.pending_data() + self.log.under_way_told();
        if self.streams.goes_on(now, fid, range) {
            return true;
        }
        let streams = untold + len > max_bytes / PART;
        if streams {
            self.streams.begin(now, fid, range);
        }
        streams
    }

    /// The server has a write that went through: who writes was kept waiting until now, which is no pause of his.
    pub(crate) fn stream_answered(&mut self, now: Monotonic, fid: Fid) {
        self.streams.answered(now, fid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Fsync;
    use soda_oplog::Change;
    use soda_types::{Ino, Timestamp, VolumeId};

    const MIB: u64 = 1 << 20;

    fn fid(ino: u64) -> Fid {
        Fid::new(VolumeId(1), Ino(ino))
    }

    fn at(millis: u64) -> Monotonic {
        Monotonic::ZERO + Duration::from_millis(millis)
    }

    fn behind(policy: WriteBehind) -> Behind {
        Behind::new(WritePolicy::Behind(policy))
    }

    /// Writes a MiB if it does not go through. Returns whether it does.
    fn write(behind: &mut Behind, now: Monotonic, ino: u64, offset: u64) -> bool {
        let through = behind.streams_past(now, fid(ino), &(offset..offset + MIB));
        if !through {
            let data = vec![0; MIB as usize].into();
            let change = Change::Write { fid: fid(ino), offset, data, kill_suid_sgid: false };
            behind.log.append(now, Timestamp::new(1, 0), change);
        }
        through
    }

    #[test]
    fn a_stream_goes_through_until_it_pauses_and_others_are_logged() {
        let mut behind = behind(WriteBehind { max_bytes: 16 << 20, ..WriteBehind::default() });
        let through: Vec<bool> = (0..8).map(|block| write(&mut behind, at(block), 1, block << 20)).collect();
        assert_eq!(through, [false, false, false, false, true, true, true, true]);
        assert!(!behind.streams_past(at(8), fid(1), &(0..SMALL as u64)), "a small one");
        while let Some(digest) = behind.log.take(super::super::next::LIMITS) {
            behind.log.handle_applied(digest.id);
        }
        assert!(write(&mut behind, at(500), 1, 0), "it goes on");
        assert!(!write(&mut behind, at(500), 2, 0), "another file");
        assert!(write(&mut behind, at(1499), 1, 0));
        assert!(!write(&mut behind, at(2500), 1, 0), "it has paused");
    }

    #[test]
    fn what_is_left_of_a_large_write_goes_the_same_way() {
        const PAGE: u64 = 4096;
        let mut behind = behind(WriteBehind { max_bytes: 16 << 20, ..WriteBehind::default() });
        let rest =
            |behind: &mut Behind, now, ino, from| behind.streams_past(now, fid(ino), &(from..from + PAGE));
        for block in 0..4 {
            assert!(
                !write(&mut behind, at(0), 1, block * MIB) && !rest(&mut behind, at(0), 1, (block + 1) * MIB)
            );
        }
        for block in 5..9 {
            assert!(write(&mut behind, at(block), 1, block * MIB));
            assert!(!rest(&mut behind, at(block), 2, (block + 1) * MIB), "of another file");
            assert!(rest(&mut behind, at(block), 1, (block + 1) * MIB));
            assert!(!rest(&mut behind, at(block), 1, (block + 1) * MIB + PAGE), "once");
        }
        assert!(write(&mut behind, at(9), 1, 9 * MIB));
        assert!(!rest(&mut behind, at(9), 1, 0) && !rest(&mut behind, at(9), 1, 10 * MIB), "elsewhere first");
        assert!(write(&mut behind, at(10), 1, 10 * MIB));
        assert!(!rest(&mut behind, at(1010), 1, 11 * MIB), "it has paused");
    }

    #[test]
    fn small_files_are_no_streams() {
        let mut behind = behind(WriteBehind { max_bytes: 0, ..WriteBehind::default() });
        let mut streams = |ino, from: u64, len| behind.streams_past(at(0), fid(ino), &(from..from + len));
        assert!(!streams(1, 0, MIDDLE) && !streams(1, MIDDLE, MIDDLE));
        assert!(streams(1, LONG, MIDDLE) && streams(2, 0, MIDDLE + 1));
        assert!(!streams(3, LONG, SMALL as u64));
    }

    #[test]
    fn far_from_the_server_nothing_goes_through() {
        let mut behind = behind(WriteBehind { max_bytes: 0, ..WriteBehind::default() });
        behind.window.begin_connection(Duration::from_millis(20));
        assert!(!write(&mut behind, at(0), 1, 0));
        behind.window.begin_connection(Duration::from_micros(200));
        assert!(write(&mut behind, at(0), 1, 0));
        behind.window.begin_connection(Duration::from_millis(20));
        assert!(!write(&mut behind, at(10), 1, MIB), "by another way now");
    }

    #[test]
    fn who_waits_for_the_server_does_not_pause() {
        let mut behind = behind(WriteBehind { max_bytes: 0, ..WriteBehind::default() });
        assert!(write(&mut behind, at(0), 1, 0));
        assert!(write(&mut behind, at(10), 2, 0), "another file");
        behind.policy = WritePolicy::Behind(WriteBehind { max_bytes: 1 << 30, ..WriteBehind::default() });
        behind.stream_answered(at(5000), fid(1));
        assert!(write(&mut behind, at(5500), 1, 1 << 20));
        assert!(!write(&mut behind, at(5500), 2, 1 << 20), "that one is not answered");
    }

    #[test]
    fn what_is_overwritten_does_not_wait() {
        let policy = WriteBehind { max_bytes: 16 << 20, digest_bytes: 1 << 20, ..WriteBehind::default() };
        let mut behind = behind(policy);
        assert!((0..100).all(|round| !write(&mut behind, at(round), 1, 0)));
        assert!(behind.due_at().is_some_and(|due| due > at(100)), "nor is it told before its time");
        assert!(!write(&mut behind, at(100), 1, 1 << 20));
        assert_eq!(behind.due_at(), Some(Monotonic::ZERO), "more is told at once");
    }

    #[test]
    fn nobody_waits_for_the_server_where_the_local_disk_is_enough() {
        let policy = WriteBehind { max_bytes: 16 << 20, fsync: Fsync::Local, ..WriteBehind::default() };
        let mut behind = behind(policy);
        assert!((0..16).all(|block| !write(&mut behind, at(block), 1, block << 20)));
    }

    #[test]
    fn not_all_files_that_ever_were_streams_are_remembered() {
        let mut behind = behind(WriteBehind { max_bytes: 0, ..WriteBehind::default() });
        assert!((0..1000).all(|ino| write(&mut behind, at(0), ino, 0)));
        assert_eq!(behind.streams.0.len(), MOST);
    }
}
