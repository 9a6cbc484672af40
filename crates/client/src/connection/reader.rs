//! Bytes from a connection, to checked frames.

use bytes::{BufMut, Bytes, BytesMut};
use soda_protocol::{Frame, FrameError, FrameHeader, HEADER_LEN};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// A frame whose rest is longer than this gets a buffer of exactly its size, so that what is cached of it holds no
/// memory but its own.
const OWN_BUFFER: usize = 8 << 10;
const BUFFER: usize = 32 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the connection is closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

pub(crate) struct FrameReader {
    source: Box<dyn AsyncRead + Send + Unpin>,
    buffer: BytesMut,
}

impl FrameReader {
    pub(crate) fn new(source: Box<dyn AsyncRead + Send + Unpin>) -> FrameReader {
        FrameReader { source, buffer: BytesMut::with_capacity(BUFFER) }
    }

    /// The next frame. An error is the end of the connection.
    pub(crate) async fn next(&mut self) -> Result<Frame, ReadError> {
        self.fill(HEADER_LEN).await?;
        let mut raw = [0; HEADER_LEN];
        raw.copy_from_slice(&self.buffer.split_to(HEADER_LEN));
        let header = FrameHeader::parse(&raw)?;
        let rest = if header.rest_len() > OWN_BUFFER {
            self.read_long(header.rest_len()).await?
        } else {
            self.fill(header.rest_len()).await?;
            self.buffer.split_to(header.rest_len()).freeze()
        };
        Ok(header.finish(rest)?)
    }

    async fn fill(&mut self, len: usize) -> Result<(), ReadError> {
        while self.buffer.len() < len {
            if self.buffer.capacity() < BUFFER / 2 {
                self.buffer.reserve(BUFFER);
            }
            if self.source.read_buf(&mut self.buffer).await? == 0 {
                return Err(ReadError::Closed);
            }
        }
        Ok(())
    }

    async fn read_long(&mut self, len: usize) -> Result<Bytes, ReadError> {
        let mut long = BytesMut::with_capacity(len);
        let have = self.buffer.len().min(len);
        long.extend_from_slice(&self.buffer.split_to(have));
        while long.len() < len {
            let missing = len - long.len();
            if self.source.read_buf(&mut (&mut long).limit(missing)).await? == 0 {
                return Err(ReadError::Closed);
            }
        }
        Ok(long.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::FrameKind;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn frames_arrive_whole_whatever_the_pieces() {
        let (mut far, near) = tokio::io::duplex(777);
        let payloads = [0usize, 1, 5000, 70_000, 300_000, 12];
        let frames: Vec<Frame> = payloads
            .iter()
            .map(|len| Frame::new(FrameKind::Reply, *len as u64, &7u32, vec![3u8; *len]).unwrap())
            .collect();
        let sent = frames.clone();
        let sender = tokio::spawn(async move {
            for frame in sent {
                let mut head = BytesMut::new();
                frame.encode_head(&mut head);
                far.write_all(&head).await.unwrap();
                far.write_all(&frame.payload.to_bytes()).await.unwrap();
            }
        });
        let mut reader = FrameReader::new(Box::new(near));
        for frame in frames {
            assert_eq!(reader.next().await.unwrap(), frame);
        }
        sender.await.unwrap();
        assert!(matches!(reader.next().await, Err(ReadError::Closed)));
    }
}
