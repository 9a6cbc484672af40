//! Replies. The result is encoded once: what is sent, kept in memory for a retry, and stored with the change are the same
//! bytes.

use bytes::{Bytes, BytesMut};
use soda_protocol::{Answer, Covered, Failure, Frame, FrameKind, MAX_BODY};
use soda_types::{Coverage, Errno, FsError, Grant};

/// What a reply says of leases.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Leases {
    pub(crate) grants: Vec<Grant>,
    pub(crate) covered: Vec<Covered>,
}

impl Leases {
    pub(crate) const NONE: &'static Leases = &Leases { grants: Vec::new(), covered: Vec::new() };

    pub(crate) fn of(grants: Vec<Grant>) -> Leases {
        Leases { grants, covered: Vec::new() }
    }

    /// Neighbours in one directory share their words.
    pub(crate) fn cover(&mut self, lease: Grant, covered: Coverage) {
        let Coverage { fid, root: _, mode, above } = covered;
        match self.covered.last_mut() {
            Some(last) if (last.lease.fid, last.mode, &last.above) == (lease.fid, mode, &above) => {
                last.fids.push(fid);
            }
            _ => self.covered.push(Covered { lease, mode, above, fids: vec![fid] }),
        }
    }
}

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

/// Whether an encoded result is an answer, not a failure.
pub(crate) fn is_ok(encoded: &Bytes) -> bool {
    // The number of the variant comes first, in postcard.
    encoded.first() == Some(&0)
}

fn too_long(len: usize) -> Result<Answer, Failure> {
    Err(Failure::Fs(FsError::new(Errno::TooBig, format!("the answer would be {len} bytes long"))))
}

/// The frame of a reply with an encoded result. (A `Reply` is its result followed by its grants and what is covered.)
pub(crate) fn reply(tag: u64, result: &Bytes, leases: &Leases, payload: Bytes) -> Frame {
    let body = if leases == Leases::NONE {
        let mut body = BytesMut::with_capacity(result.len() + 2);
        body.extend_from_slice(result);
        body.extend_from_slice(&[0, 0]);
        body.freeze()
    } else {
        let said = (&leases.grants, &leases.covered);
        let encoded = postcard::to_extend(&said, result.to_vec()).map(Bytes::from);
        encoded.unwrap_or_else(|error| {
            tracing::error!(%error, "leases could not be encoded");
            Bytes::new()
        })
    };
    Frame { kind: FrameKind::Reply, tag, body, payload: payload.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_protocol::Reply;
    use soda_types::{Epoch, Fid, Ino, Mode, Scope, Term, VolumeId};

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
            let mut deep = Leases::of(vec![grant; 300]);
            for ino in 1..4 {
                let fid = Fid::new(VolumeId(1), Ino(ino));
                let covered = Coverage { fid, root: grant.fid, mode: Mode::Read, above: vec![grant.fid] };
                deep.cover(grant, covered);
            }
            assert_eq!((deep.covered.len(), deep.covered[0].fids.len()), (1, 3), "said once");
            for leases in [Leases::default(), Leases::of(vec![grant]), deep] {
                let frame = reply(5, &encode(&result), &leases, Bytes::new());
                let Leases { grants, covered } = leases;
                let whole = Reply { result: result.clone(), grants, covered };
                assert_eq!(frame.message::<Reply>().unwrap(), whole);
                assert_eq!(frame.body, postcard::to_stdvec(&whole).unwrap());
            }
        }
    }

    #[test]
    fn an_answer_that_fits_no_frame_is_a_failure() {
        let long = Ok(Answer::Xattr(vec![0; MAX_BODY as usize]));
        let frame = reply(5, &encode(&long), Leases::NONE, Bytes::new());
        assert_eq!(frame.message::<Reply>().unwrap().result, Err(Failure::Fs(Errno::TooBig.into())));
    }
}
