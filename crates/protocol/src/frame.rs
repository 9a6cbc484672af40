//! The envelope of every message: a fixed header, a body, a raw payload, both check-summed.
//!
//! ```text
//! offset size  field (little-endian)
//!      0    2  magic 0x50DA
//!      2    1  kind (1 request, 2 reply, 3 push, 4 note)
//!      3    1  reserved, 0
//!      4    4  length of the body, bytes
//!      8    4  length of the payload, bytes
//!     12    8  tag: chosen by the sender of a request, repeated in its reply; else 0
//!     20    4  crc32c of the payload
//!     24    4  crc32c of bytes 0..24 and the body
//! ```
//! TCP's own sum is 16 bits wide and misses what a faulty switch or driver does; file data deserves better.

use crate::Data;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Serialize, de::DeserializeOwned};

/// Bytes of a header on the wire.
pub const HEADER_LEN: usize = 28;
/// Longest body, bytes. Bounds what a peer can make us allocate.
pub const MAX_BODY: u32 = 4 << 20;
/// Longest payload, bytes.
pub const MAX_PAYLOAD: u32 = 2 << 20;

const MAGIC: u16 = 0x50DA;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameKind {
    Request,
    Reply,
    Push,
    Note,
}

impl FrameKind {
    fn to_byte(self) -> u8 {
        match self {
            FrameKind::Request => 1,
            FrameKind::Reply => 2,
            FrameKind::Push => 3,
            FrameKind::Note => 4,
        }
    }

    fn from_byte(byte: u8) -> Option<FrameKind> {
        Some(match byte {
            1 => FrameKind::Request,
            2 => FrameKind::Reply,
            3 => FrameKind::Push,
            4 => FrameKind::Note,
            _ => return None,
        })
    }
}

/// What is wrong with bytes from the wire. The connection cannot go on after one of these, except [`FrameError::Body`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("not a Soda peer: the stream does not start with the magic number")]
    Magic,
    #[error("unknown kind of frame {0}")]
    Kind(u8),
    #[error("a body of {0} bytes is over the limit")]
    BodyTooLong(u32),
    #[error("a payload of {0} bytes is over the limit")]
    PayloadTooLong(u32),
    #[error("check sum of {0} does not match")]
    Checksum(&'static str),
    /// The frame is whole but its message is not understood: answer [`crate::Failure::Unsupported`] and go on.
    #[error("message not understood: {0}")]
    Body(String),
}

/// A checked header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    pub kind: FrameKind,
    pub tag: u64,
    pub body_len: u32,
    pub payload_len: u32,
    payload_crc: u32,
    body_crc: u32,
    raw_crc: u32,
}

impl FrameHeader {
    /// Checks everything that can be checked before the rest has arrived.
    pub fn parse(raw: &[u8; HEADER_LEN]) -> Result<FrameHeader, FrameError> {
        let u32_at = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        if u16::from_le_bytes([raw[0], raw[1]]) != MAGIC {
            return Err(FrameError::Magic);
        }
        let kind = FrameKind::from_byte(raw[2]).ok_or(FrameError::Kind(raw[2]))?;
        let (body_len, payload_len) = (u32_at(4), u32_at(8));
        if body_len > MAX_BODY {
            return Err(FrameError::BodyTooLong(body_len));
        }
        if payload_len > MAX_PAYLOAD {
            return Err(FrameError::PayloadTooLong(payload_len));
        }
        Ok(FrameHeader {
            kind,
            tag: u64::from(u32_at(12)) | u64::from(u32_at(16)) << 32,
            body_len,
            payload_len,
            payload_crc: u32_at(20),
            body_crc: u32_at(24),
            raw_crc: crc32c::crc32c(&raw[..24]),
        })
    }

    /// Bytes that follow the header.
    pub fn rest_len(&self) -> usize {
        self.body_len as usize + self.payload_len as usize
    }

    /// Checks the sums and splits what followed the header.
    pub fn finish(self, mut rest: Bytes) -> Result<Frame, FrameError> {
        assert_eq!(rest.len(), self.rest_len(), "caller read another length than the header says");
        let body = rest.split_to(self.body_len as usize);
        if crc32c::crc32c_append(self.raw_crc, &body) != self.body_crc {
            return Err(FrameError::Checksum("a message"));
        }
        if crc32c::crc32c(&rest) != self.payload_crc {
            return Err(FrameError::Checksum("file data"));
        }
        Ok(Frame { kind: self.kind, tag: self.tag, body, payload: rest.into() })
    }
}

/// One message with its payload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    pub kind: FrameKind,
    pub tag: u64,
    pub body: Bytes,
    /// In one piece, if it was received.
    pub payload: Data,
}

impl Frame {
    /// # Errors
    /// [`FrameError::BodyTooLong`] if the message does not fit; nothing else.
    pub fn new<M: Serialize>(
        kind: FrameKind,
        tag: u64,
        message: &M,
        payload: impl Into<Data>,
    ) -> Result<Frame, FrameError> {
        let payload = payload.into();
        let body = postcard::to_stdvec(message).map_err(|error| FrameError::Body(error.to_string()))?;
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        if len > MAX_BODY {
            return Err(FrameError::BodyTooLong(len));
        }
        if payload.len() > MAX_PAYLOAD as usize {
            return Err(FrameError::PayloadTooLong(u32::try_from(payload.len()).unwrap_or(u32::MAX)));
        }
        Ok(Frame { kind, tag, body: body.into(), payload })
    }

    /// Appends header and body to `out`; the payload is to be sent right after, from where it lies.
    pub fn encode_head(&self, out: &mut BytesMut) {
        out.reserve(HEADER_LEN + self.body.len());
        let mut head = [0u8; HEADER_LEN];
        head[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        head[2] = self.kind.to_byte();
        head[4..8].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        head[8..12].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[12..20].copy_from_slice(&self.tag.to_le_bytes());
        let payload_crc =
            self.payload.pieces().iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece));
        head[20..24].copy_from_slice(&payload_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..24]), &self.body);
        head[24..28].copy_from_slice(&crc.to_le_bytes());
        out.put_slice(&head);
        out.put_slice(&self.body);
    }

    /// # Errors
    /// [`FrameError::Body`] for what this build does not understand, trailing bytes included.
    pub fn message<M: DeserializeOwned>(&self) -> Result<M, FrameError> {
        let (message, rest) =
            postcard::take_from_bytes(&self.body).map_err(|error| FrameError::Body(error.to_string()))?;
        if !rest.is_empty() {
            return Err(FrameError::Body(format!("{} bytes too many", rest.len())));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Call, Request};

    fn bytes_of(frame: &Frame) -> Vec<u8> {
        let mut out = BytesMut::new();
        frame.encode_head(&mut out);
        out.extend_from_slice(&frame.payload.to_bytes());
        out.to_vec()
    }

    fn parse(bytes: &[u8]) -> Result<Frame, FrameError> {
        let header = FrameHeader::parse(bytes[..HEADER_LEN].try_into().unwrap())?;
        header.finish(Bytes::copy_from_slice(&bytes[HEADER_LEN..]))
    }

    #[test]
    fn a_frame_comes_back_as_it_went() {
        let request = Request { op: None, call: Call::Renew };
        let frame = Frame::new(FrameKind::Request, 77, &request, Bytes::from_static(b"data")).unwrap();
        let back = parse(&bytes_of(&frame)).unwrap();
        assert_eq!(back, frame);
        assert_eq!(back.message::<Request>().unwrap(), request);
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let request = Request { op: None, call: Call::Renew };
        let frame = Frame::new(FrameKind::Request, 77, &request, Bytes::from_static(b"data")).unwrap();
        let good = bytes_of(&frame);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let header = FrameHeader::parse(bad[..HEADER_LEN].try_into().unwrap());
            let Ok(header) = header else { continue };
            if header.rest_len() == bad.len() - HEADER_LEN {
                assert!(header.finish(Bytes::copy_from_slice(&bad[HEADER_LEN..])).is_err(), "bit {bit}");
            }
        }
    }
}
