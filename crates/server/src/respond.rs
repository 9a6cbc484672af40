//! Replies. The result is encoded once: what is sent, kept in memory for a retry, and stored with the change are the same
//! bytes.

use bytes::{Bytes, BytesMut};
use soda_protocol::{Answer, Failure, Frame, FrameKind, MAX_BODY};
use soda_types::{Errno, FsError, Grant};

/// Encodes a result for [`reply`].
pub(crate) fn encode(result: &Result<Answer, Failure>) -> Bytes {
    match postcard::to_stdvec(result) {
        Ok(bytes) if bytes.len() < MAX_BODY as usize / 2 => bytes.into(),
        Ok(bytes) => encode(&too_long(bytes.len())),
        // Plain data into memory: there is no way to fail.
        Err(error) => {
            tracing::error!(%error, "an answer could not be encoded");
            Bytes::new()
        }
    }
}

fn too_long(len: usize) -> Result<Answer, Failure> {
    Err(Failure::Fs(FsError::new(Errno::TooBig, format!("the answer would be {len} bytes long"))))
}

/// The frame of a reply with an encoded result. (A `Reply` is its result followed by its grants.)
pub(crate) fn reply(tag: u64, result: &Bytes, grants: &[Grant], payload: Bytes) -> Frame {
    let body = if grants.is_empty() {
        let mut body = BytesMut::with_capacity(result.len() + 1);
        body.extend_from_slice(result);
        body.extend_from_slice(&[0]);
        body.freeze()
    } else {
        let encoded = postcard::to_extend(grants, result.to_vec()).map(Bytes::from);
        encoded.unwrap_or_else(|error| {
            tracing::error!(%error, "grants could not be encoded");
            Bytes::new()
        })
    };
    Frame { kind: FrameKind::Reply, tag, body, payload }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::Reply;
    use soda_types::{Epoch, Fid, Mode, Scope, Term};

    #[test]
    fn the_parts_make_a_reply() {
        let grant = Grant {
            fid: Fid::default(),
            scope: Scope::Node,
            mode: Mode::Write,
            epoch: Epoch(7),
            term: Term::Session,
        };
        let results = [
            Ok(Answer::Done),
            Ok(Answer::Target(vec![1, 2, 3])),
            Err(Failure::Fs(FsError::new(Errno::NoEntry, "no such name"))),
            Err(Failure::SessionEnded),
        ];
        for result in results {
            for grants in [vec![], vec![grant], vec![grant; 300]] {
                let frame = reply(5, &encode(&result), &grants, Bytes::new());
                let whole = Reply { result: result.clone(), grants };
                assert_eq!(frame.message::<Reply>().unwrap(), whole);
                assert_eq!(frame.body, postcard::to_stdvec(&whole).unwrap());
            }
        }
    }

    #[test]
    fn an_answer_that_fits_no_frame_is_a_failure() {
        let long = Ok(Answer::Xattr(vec![0; MAX_BODY as usize]));
        let frame = reply(5, &encode(&long), &[], Bytes::new());
        assert_eq!(frame.message::<Reply>().unwrap().result, Err(Failure::Fs(Errno::TooBig.into())));
    }
}
