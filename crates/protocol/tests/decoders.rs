//! Every decoder that reads the wire is fed garbage, and good messages with damage: it may refuse, it may not panic,
//! allocate without bound, or read a message that is not there.

// The helpers of tests are tests.
#![allow(clippy::unwrap_used)]

mod samples;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use samples::{Message, fid, name, samples};
use soda_protocol::*;

/// Decodes a body as each kind of message; what decodes must encode again.
fn decode_all(body: Bytes) {
    let frame = |kind| Frame { kind, tag: 0, body: body.clone(), payload: Bytes::new().into() };
    if let Ok(message) = frame(FrameKind::Request).message::<Request>() {
        postcard::to_stdvec(&message).unwrap();
    }
    if let Ok(message) = frame(FrameKind::Reply).message::<Reply>() {
        postcard::to_stdvec(&message).unwrap();
    }
    if let Ok(message) = frame(FrameKind::Push).message::<Push>() {
        postcard::to_stdvec(&message).unwrap();
    }
    if let Ok(message) = frame(FrameKind::Note).message::<Note>() {
        postcard::to_stdvec(&message).unwrap();
    }
}

#[test]
fn every_variant_has_a_sample() {
    assert_eq!(samples::missing(), Vec::<String>::new());
}

#[test]
fn samples_come_back_and_truncations_are_refused() {
    for message in samples() {
        let body = message.encode();
        for len in 0..body.len() {
            decode_all(Bytes::copy_from_slice(&body[..len]));
            let cut = Bytes::copy_from_slice(&body[..len]);
            let cut = Frame { kind: message.kind(), tag: 1, body: cut, payload: Bytes::new().into() };
            assert!(Message::decode(&cut).is_err(), "{len} bytes of {message:?}");
        }
        let whole = Frame { kind: message.kind(), tag: 1, body: body.into(), payload: Bytes::new().into() };
        assert_eq!(Message::decode(&whole).unwrap(), message);
    }
}

#[test]
fn bytes_after_a_message_are_refused() {
    let mut body = postcard::to_stdvec(&Request { op: None, call: Call::Renew }).unwrap();
    body.push(0);
    let frame = Frame { kind: FrameKind::Request, tag: 0, body: body.into(), payload: Bytes::new().into() };
    assert!(matches!(frame.message::<Request>(), Err(FrameError::Body(_))));
}

#[test]
fn a_name_with_a_slash_is_refused_on_the_wire() {
    let good = Request { op: None, call: Call::Lookup { parent: fid(1), name: name("a") } };
    let mut body = postcard::to_stdvec(&good).unwrap();
    let at = body.len() - 1;
    assert_eq!(body[at], b'a');
    body[at] = b'/';
    let frame = Frame { kind: FrameKind::Request, tag: 0, body: body.into(), payload: Bytes::new().into() };
    assert!(matches!(frame.message::<Request>(), Err(FrameError::Body(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn garbage_headers_are_refused(raw in any::<[u8; HEADER_LEN]>()) {
        prop_assume!(raw[0..2] != [0xDA, 0x50]);
        prop_assert_eq!(FrameHeader::parse(&raw), Err(FrameError::Magic));
    }

    #[test]
    fn lengths_are_bounded(kind in 0u8..6, body in 0u32..3 * MAX_BODY, payload in 0u32..3 * MAX_PAYLOAD) {
        let mut raw = [0u8; HEADER_LEN];
        raw[0..4].copy_from_slice(&[0xDA, 0x50, kind, 0]);
        raw[4..8].copy_from_slice(&body.to_le_bytes());
        raw[8..12].copy_from_slice(&payload.to_le_bytes());
        let fits = (1..=4).contains(&kind) && body <= MAX_BODY && payload <= MAX_PAYLOAD;
        prop_assert_eq!(FrameHeader::parse(&raw).is_ok(), fits);
    }

    #[test]
    fn garbage_bodies_never_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        decode_all(body.into());
    }

    #[test]
    fn damaged_messages_never_panic(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let samples = samples();
        let mut body = samples[which.index(samples.len())].encode();
        for (at, value) in damage {
            let at = at.index(body.len());
            body[at] = value;
        }
        decode_all(body.into());
    }

    #[test]
    fn damage_in_transit_is_noticed(flips in proptest::collection::vec(any::<prop::sample::Index>(), 1..8)) {
        let request = Request { op: None, call: Call::Lookup { parent: fid(1), name: name("abc") } };
        let frame = Frame::new(FrameKind::Request, 5, &request, Bytes::from(vec![9; 64])).unwrap();
        let mut bytes = BytesMut::new();
        frame.encode_head(&mut bytes);
        bytes.extend_from_slice(&frame.payload.to_bytes());
        let good = bytes.clone();
        for flip in flips {
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assume!(bytes != good);
        let head: [u8; HEADER_LEN] = bytes[..HEADER_LEN].try_into().unwrap();
        if let Ok(header) = FrameHeader::parse(&head)
            && header.rest_len() == bytes.len() - HEADER_LEN
        {
            prop_assert!(header.finish(bytes.freeze().slice(HEADER_LEN..)).is_err());
        }
    }
}
