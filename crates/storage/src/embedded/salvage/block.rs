//! One block of a table: header, check sums, records.
//!
//! The format (lsm-tree 3.1: `table/block`, `table/data_block`, `table/index_block`): a header of 33 bytes (`LSM` 3, kind: u8,
//! xxh3-128 of what is stored: u128, its length: u32, its length when it is not compressed: u32, the low half of xxh3-64 of all
//! that: u32), then the content. Records follow one another up to a byte 255. The first of an interval has its whole key: `kind:
//! u8, seqno, key length, key, value length, value`; the others share the begin of that: `kind: u8, seqno, shared, rest length,
//! rest of the key, value length, value`. Deletions have no value. Numbers are LEB128 there, little-endian elsewhere. The last 31
//! bytes begin with the length of an interval and end with the number of records: u32.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

pub(super) const HEADER: usize = 33;

const MAGIC: [u8; 4] = *b"LSM\x03";
const TRAILER: usize = 31;
const END: u8 = 255;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Records,
    Index,
    Filter,
    Facts,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Compression {
    None,
    Lz4,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    sum: u128,
    /// Bytes that follow.
    pub(super) stored: u32,
    /// Bytes of the content.
    len: u32,
}

/// A record, or that there is none any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: Bytes,
    pub(super) seqno: u64,
    pub(super) value: Option<Bytes>,
}

/// Where a block of records is, by the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Handle {
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) last_key: Bytes,
}

impl Header {
    /// `None` if it is not what was written.
    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let bytes = bytes.get(..HEADER)?;
        let mut at = Reader { bytes, at: 0 };
        let magic: [u8; 4] = at.array()?;
        let kind = match at.byte()? {
            0 => Kind::Records,
            1 => Kind::Index,
            2 => Kind::Filter,
            3 => Kind::Facts,
            _ => return None,
        };
        let sum = u128::from_le_bytes(at.array()?);
        let stored = u32::from_le_bytes(at.array()?);
        let len = u32::from_le_bytes(at.array()?);
        let own_sum = u32::from_le_bytes(at.array()?);
        let is_sound = magic == MAGIC && own_sum == xxh3_128(&bytes[..HEADER - 4]) as u32;
        is_sound.then_some(Header { kind, sum, stored, len })
    }

    /// What was written, of what is stored; `None` if that is not it.
    pub(super) fn content(&self, stored: Bytes, compression: Compression) -> Option<Bytes> {
        if stored.len() != self.stored as usize || xxh3_128(&stored) != self.sum {
            return None;
        }
        match compression {
            Compression::None => (stored.len() == self.len as usize).then_some(stored),
            Compression::Lz4 => {
                let content = lz4_flex::decompress(&stored, self.len as usize).ok()?;
                (content.len() == self.len as usize).then(|| content.into())
            }
        }
    }
}

/// A whole block, as it is stored.
pub(super) fn whole(bytes: &Bytes, kind: Kind, compression: Compression) -> Option<Bytes> {
    let header = Header::decode(bytes).filter(|header| header.kind == kind)?;
    header.content(bytes.slice(HEADER..), compression)
}

/// The records of a block, in the order of keys, the newest of a key first.
pub(super) fn entries(content: &Bytes) -> Option<Vec<Entry>> {
    let trailer = content.get(content.len().checked_sub(TRAILER)?..)?;
    let interval = usize::from(trailer[0]);
    let count = u32::from_le_bytes(trailer[TRAILER - 4..].try_into().ok()?) as usize;
    if interval == 0 {
        return None;
    }
    let mut at = Reader { bytes: content, at: 0 };
    let mut entries = Vec::new();
    let mut head = Bytes::new();
    loop {
        let kind = at.byte()?;
        if kind == END {
            return (entries.len() == count).then_some(entries);
        }
        let is_put = match kind {
            0 => true,
            1 | 2 => false,
            _ => return None,
        };
        let seqno = at.number()?;
        let key = if entries.len().is_multiple_of(interval) {
            let len = at.number()?;
            head = at.slice(content, len)?;
            head.clone()
        } else {
            let shared = usize::try_from(at.number()?).ok()?;
            let rest = at.number()?;
            let rest = at.slice(content, rest)?;
            [head.get(..shared)?, &rest].concat().into()
        };
        let value = match is_put {
            true => {
                let len = at.number()?;
                Some(at.slice(content, len)?)
            }
            false => None,
        };
        entries.push(Entry { key, seqno, value });
    }
}

/// What a block of the index says.
pub(super) fn handles(content: &Bytes) -> Option<Vec<Handle>> {
    let mut at = Reader { bytes: content, at: 0 };
    let mut handles = Vec::new();
    loop {
        match at.byte()? {
            0 => {}
            END => return Some(handles),
            _ => return None,
        }
        let (offset, size, _seqno) = (at.number()?, at.number()?, at.number()?);
        let len = at.number()?;
        handles.push(Handle { offset, size, last_key: at.slice(content, len)? });
    }
}

/// Says of a key that it is not in a table, or may be (a Bloom filter).
#[derive(Clone, Debug)]
pub(super) struct Filter {
    bits: Bytes,
    /// How many bits.
    len: u64,
    hashes: u64,
}

impl Filter {
    pub(super) fn decode(content: &Bytes) -> Option<Filter> {
        let mut at = Reader { bytes: content, at: 0 };
        let (magic, kind, hash): ([u8; 4], u8, u8) = (at.array()?, at.byte()?, at.byte()?);
        let len = u64::from_le_bytes(at.array()?);
        let hashes = u64::from_le_bytes(at.array()?);
        let bits = content.slice(at.at..);
        let is_sound = magic == MAGIC && kind == 0 && hash == 0 && len > 0 && len <= bits.len() as u64 * 8;
        is_sound.then_some(Filter { bits, len, hashes })
    }

    pub(super) fn may_have(&self, key: &[u8]) -> bool {
        let mut first = xxhash_rust::xxh3::xxh3_64(key);
        let mut second = (first >> 32).wrapping_mul(0x517c_c1b7_2722_0a95);
        (1..=self.hashes).all(|number| {
            let bit = first % self.len;
            first = first.wrapping_add(second);
            second = second.wrapping_mul(number);
            self.bits[(bit / 8) as usize] & (0x80 >> (bit % 8)) != 0
        })
    }
}

/// Reads what may be anything.
pub(super) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    pub(super) fn array<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        self.take(LEN)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// LEB128.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// A part of `whole`, which this reads, without copying it.
    fn slice(&mut self, whole: &Bytes, len: u64) -> Option<Bytes> {
        let from = self.at;
        self.take(usize::try_from(len).ok()?)?;
        Some(whole.slice(from..self.at))
    }
}
