use super::*;

#[test]
fn the_addresses_are_where_the_kernel_reads_them() {
    let mut room = Room::new(&Arc::default()).unwrap();
    let (base, vectors) = (room.address(), room.write_vectors());
    assert_eq!(vectors, base + VECTORS_AT as u64);
    let words = [0, 8, 16, 24].map(|at| u64_at(room.bytes(), VECTORS_AT + at));
    assert_eq!(words, [base, HEADER_LEN as u64, base + HEADER_SPACE as u64, PAYLOAD_LEN as u64]);
}

#[test]
fn a_room_is_at_the_place_of_another_only_once_that_is_gone() {
    let room = Room::new(&Arc::default()).unwrap();
    let address = room.address();
    let taken = Room::at(address, 1, &Arc::default()).unwrap_err();
    assert_eq!(Errno::from_io_error(&taken), Some(Errno::EXIST));
    drop(room);
    assert_eq!(Room::at(address, 1, &Arc::default()).unwrap().address(), address);
    assert_eq!(Room::at(0, 1, &Arc::default()).unwrap_err().kind(), io::ErrorKind::InvalidData);
}

#[test]
fn a_request_has_one_room() {
    let [one, other] =
        [Room::new(&Arc::default()).unwrap(), Room::new(&Arc::default()).unwrap()].map(|room| room.address());
    let mut claims = Claims::default();
    assert!(claims.room(0, 7, &Arc::default()).is_err(), "that one is none");
    let room = claims.room(one, 7, &Arc::default()).unwrap();
    assert_eq!(claims.room(other, 7, &Arc::default()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    assert_eq!(Errno::from_io_error(&claims.room(one, 8, &Arc::default()).unwrap_err()), Some(Errno::EXIST));
    assert_eq!((room.address(), claims.room(other, 8, &Arc::default()).unwrap().address()), (one, other));
}

/// More than any queue has.
const CROWD: usize = 1 << 20;

fn payload(room: &Room) -> &[u8] {
    &room.bytes()[HEADER_SPACE..]
}

#[test]
fn what_the_kernel_writes_stays_when_an_answer_is_taken_away() {
    const PAGE: usize = 64 << 10;
    let memory = Arc::default();
    let mut room = Room::new(&memory).unwrap();
    let parts = [&[1; PAGE][..], &[2; PAGE], &[3; PAGE]];
    room.put_payload(&parts, CROWD);
    assert!(room.is_on_file && payload(&room)[..3 * PAGE] == parts.concat());
    room.bytes_mut()[HEADER_SPACE + PAGE] = 7;
    memory.take_away(room.payload_address());
    let left = [0, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE].map(|at| payload(&room)[at]);
    assert_eq!(left, [0, 0, 7, 2, 0]);
    room.put_payload(&[b"small"], CROWD);
    assert!(!room.is_on_file && payload(&room)[..6] == *b"small\0");
    assert!(payload(&room).iter().skip(6).all(|byte| *byte == 0), "nothing of before");
}

/// The kernel as /dev/null, which gives back what it is lent.
#[test]
fn an_answer_is_taken_away_once_it_was_handed_over() {
    let device = Device::new(File::open("/dev/null").unwrap().into());
    let ring = IoUring::builder().build(8).unwrap();
    let mut loans = Loans::new(ring, device, 0);
    let mut room = Room::new(&Arc::default()).unwrap();
    room.put_payload(&[&[5; PAYLOAD_LEN]], CROWD);
    loans.commit(room);
    loans.let_pass();
    assert!(loans.has_passing(), "it is not with the kernel");
    loans.submit_all_but_a_ring().unwrap();
    loans.ring().submit().unwrap();
    loans.let_pass();
    let Some(Completion::Filled(room)) = loans.next() else { panic!() };
    assert!(!loans.has_passing() && payload(&room).iter().all(|byte| *byte == 0));
}

#[test]
fn of_a_crowd_of_large_requests_few_pages_stay() {
    const ROOMS: usize = 100;
    let memory = Arc::<EntryMemory>::default();
    let mut rooms: Vec<_> = (0..ROOMS).map(|_| Room::new(&memory).unwrap()).collect();
    for room in &mut rooms {
        room.note_payload(PAYLOAD_LEN);
        room.bytes_mut()[HEADER_SPACE..].fill(9);
    }
    for (number, room) in rooms.iter_mut().enumerate() {
        room.put_payload(&[b"done"], ROOMS - number);
        assert_eq!(payload(room)[..4], *b"done");
        let has_gone = payload(room)[PAYLOAD_LEN - 1] == 0;
        assert_eq!(has_gone, number < ROOMS - 64, "the last keep theirs: {number}");
    }
    assert!(!memory.is_too_much());
}
