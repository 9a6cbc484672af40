use super::*;
use proptest::prelude::*;

pub(crate) fn message(operation: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(((abi::IN_HEADER_LEN + body.len()) as u32).to_ne_bytes());
    bytes.extend(operation.to_ne_bytes());
    bytes.extend(7u64.to_ne_bytes());
    bytes.extend(9u64.to_ne_bytes());
    bytes.extend([0; 16]);
    bytes.extend(body);
    bytes
}

fn parse(bytes: &[u8]) -> Result<Op<'_>, MalformedRequest> {
    let (operation, _, fields) = parse_header(bytes)?;
    Op::parse(operation, fields, SetXattrForm::Short)
}

#[test]
fn a_lookup_is_decoded() {
    let bytes = message(opcode::LOOKUP, b"name\0");
    let (_, header, _) = parse_header(&bytes).unwrap();
    assert_eq!((header.unique, header.node), (7, NodeId(9)));
    assert!(matches!(parse(&bytes), Ok(Op::Lookup { name: b"name" })));
}

/// What precedes the data, `size` bytes, of a write.
pub(crate) fn write_head(size: u32) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(3u64.to_ne_bytes());
    body.extend(4096u64.to_ne_bytes());
    body.extend(size.to_ne_bytes());
    body.extend(flag::WRITE_KILL_SUIDGID.to_ne_bytes());
    body.extend(u64::MAX.to_ne_bytes());
    body.extend(0o10001u32.to_ne_bytes());
    body.extend([0xff; 4]);
    body
}

#[test]
fn a_write_is_decoded() {
    let body = [&write_head(5)[..], b"hello"].concat();
    let bytes = message(opcode::WRITE, &body);
    let (_, _, fields) = parse_header(&bytes).unwrap();
    let (op, data) = parse_write(fields).unwrap();
    let Op::Write { handle: 3, offset: 4096, from_page_cache: false, kill_suid_sgid: true, flags: 0o10001 } =
        op
    else {
        panic!("{op:?}")
    };
    assert_eq!(&bytes[data], b"hello");
}

/// More than its size, and what the header says of extensions behind it, is not written to the file.
#[test]
fn what_follows_the_data_of_a_write_is_not_its_own() {
    let body = [&write_head(5)[..], b"hello and more 8 bytes.."].concat();
    let mut bytes = message(opcode::WRITE, &body);
    bytes[abi::EXTENSIONS_AT].copy_from_slice(&1u16.to_ne_bytes());
    let (_, _, fields) = parse_header(&bytes).unwrap();
    assert_eq!(fields.0.len(), body.len() - 8);
    let (_, data) = parse_write(fields).unwrap();
    assert_eq!(&bytes[data], b"hello");
    assert_eq!(parse_write_apart(Fields(&write_head(5)), 24).unwrap().1, 5);
    assert_eq!(parse_write_apart(Fields(&write_head(5)), 4).err(), Some(MalformedRequest::Short));
}

#[test]
fn nothing_short_is_accepted_and_nothing_panics() {
    for operation in 0..60 {
        for len in 0..140 {
            let bytes = message(operation, &vec![0xff; len]);
            let _ = parse(&bytes);
            for cut in 0..bytes.len() {
                assert!(parse_header(&bytes[..cut]).is_err());
            }
        }
    }
    assert_eq!(parse(&message(opcode::READ, &[0; 19])).err(), Some(MalformedRequest::Short));
    assert_eq!(parse(&message(opcode::LOOKUP, b"no end")).err(), Some(MalformedRequest::Short));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// A kernel does not send such things; whoever else holds the device must not bring the daemon down with them.
    #[test]
    fn random_messages_do_not_panic_and_nothing_outside_of_them_is_read(
        operation in prop_oneof![0u32..60, Just(opcode::STATX), any::<u32>()],
        body in proptest::collection::vec(prop_oneof![Just(0u8), Just(0xff), any::<u8>()], 0..200),
        extended in any::<bool>(),
        lie in prop_oneof![8 => Just(0i64), 1 => -200i64..200],
        extensions in prop_oneof![8 => Just(0u16), 1 => 0..30u16, 1 => any::<u16>()],
        available in prop_oneof![0usize..300, any::<usize>()],
    ) {
        let mut bytes = message(operation, &body);
        let claimed = (bytes.len() as i64 + lie).max(0) as u32;
        bytes[..4].copy_from_slice(&claimed.to_ne_bytes());
        bytes[abi::EXTENSIONS_AT].copy_from_slice(&extensions.to_ne_bytes());
        let form = if extended { SetXattrForm::Extended } else { SetXattrForm::Short };
        let Ok((operation, _, fields)) = parse_header(&bytes) else { return Ok(()) };
        prop_assert!(claimed as usize <= bytes.len());
        let size = body.get(16..20).map(|size| u32::from_ne_bytes(size.try_into().unwrap()) as usize);
        if let Ok((_, data)) = parse_write(fields) {
            prop_assert_eq!(Some(data.len()), size);
            prop_assert_eq!(data.start, abi::IN_HEADER_LEN + write_head(0).len());
            prop_assert!(data.end <= claimed as usize - usize::from(extensions) * 8);
        }
        if let Ok((_, taken)) = parse_write_apart(fields, available) {
            prop_assert!(Some(taken) == size && taken <= available);
        }
        match Op::parse(operation, fields, form) {
            Ok(Op::BatchForget { pairs }) => prop_assert_eq!(Op::forgets(pairs).count() * 16, pairs.len()),
            Ok(Op::Ioctl { data, .. }) => prop_assert!(data.len() + 32 <= body.len()),
            Ok(Op::Lookup { name } | Op::Unlink { name }) => prop_assert!(!name.contains(&0)),
            Ok(Op::SetXattr { name, value, .. }) => prop_assert!(name.len() + value.len() < body.len()),
            _ => {}
        }
    }
}

#[test]
fn an_ioctl_is_decoded() {
    let mut body = vec![0; 32];
    body[12..16].copy_from_slice(&0x4008_6602u32.to_ne_bytes());
    body[24..28].copy_from_slice(&4u32.to_ne_bytes());
    body[28..32].copy_from_slice(&9u32.to_ne_bytes());
    body.extend([1, 2, 3, 4, 5]);
    let bytes = message(opcode::IOCTL, &body);
    let Ok(Op::Ioctl { command: 0x4008_6602, data: [1, 2, 3, 4], len: 9 }) = parse(&bytes) else {
        panic!("{:?}", parse(&bytes))
    };
}

#[test]
fn now_wins_over_a_given_time() {
    let mut body = vec![0; 88];
    body[..4].copy_from_slice(&(fattr::MTIME | fattr::MTIME_NOW | fattr::SIZE).to_ne_bytes());
    body[16..24].copy_from_slice(&5u64.to_ne_bytes());
    let bytes = message(opcode::SETATTR, &body);
    let Ok(Op::SetAttr(request)) = parse(&bytes) else { panic!("not decoded") };
    assert_eq!(request.set.mtime, Some(SetTime::Now));
    assert_eq!(request.set.size, Some(5));
    assert_eq!(request.handle, None);
}
