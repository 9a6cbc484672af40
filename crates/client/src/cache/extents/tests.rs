use super::*;
use soda_types::{Ino, VolumeId};

const V1: Version = Version(1);

fn fid() -> Fid {
    Fid::new(VolumeId(1), Ino(2))
}

fn bytes(len: usize, value: u8) -> Bytes {
    vec![value; len].into()
}

fn fill(memory: &mut Memory, range: Range<u64>, value: u8) -> Kept {
    let id = memory.begin_fetch(fid(), range.clone());
    memory.end_fetch(fid(), id, Some((V1, bytes((range.end - range.start) as usize, value))))
}

fn read(memory: &mut Memory, range: Range<u64>) -> Option<Vec<u8>> {
    match memory.find(fid(), range) {
        Found::All(chunks) => Some(chunks.concat()),
        Found::Missing(_) => None,
    }
}

#[test]
fn a_read_may_span_extents_and_holes_are_named() {
    let mut memory = Memory::new(1 << 20);
    fill(&mut memory, 0..100, 1);
    fill(&mut memory, 200..300, 3);
    assert_eq!(memory.find(fid(), 50..250), Found::Missing(100..200));
    assert_eq!(memory.missing(fid(), 50..400), vec![100..200, 300..400]);
    let id = memory.begin_fetch(fid(), 120..150);
    assert_eq!(memory.missing(fid(), 50..400), vec![100..120, 150..200, 300..400]);
    memory.end_fetch(fid(), id, None);
    fill(&mut memory, 100..200, 2);
    let all = read(&mut memory, 50..250).unwrap();
    assert_eq!((all.len(), all[49], all[50], all[149], all[150]), (200, 1, 2, 2, 3));
    assert_eq!(memory.bytes(), 300);
}

#[test]
fn data_with_a_gap_are_not_said_to_be_here() {
    let mut memory = Memory::new(1 << 20);
    assert_eq!(memory.version_of_all(fid()), None);
    fill(&mut memory, 100..300, 1);
    assert_eq!(memory.version_of_all(fid()), None, "its beginning is missing");
    fill(&mut memory, 0..50, 1);
    assert_eq!(memory.version_of_all(fid()), None, "something within");
    fill(&mut memory, 50..100, 1);
    assert_eq!(memory.version_of_all(fid()), Some(V1));
}

#[test]
fn what_is_written_in_small_pieces_is_read_in_few() {
    let mut memory = Memory::new(1 << 20);
    let expected: Vec<u8> = (0..10_000).map(|at| (at % 251) as u8).collect();
    // Every second byte, then those between, then a few again.
    let order = (0..10_000).step_by(2).chain((1..10_000).step_by(2)).chain((0..10_000).step_by(7));
    for at in order {
        memory.write(fid(), at as u64, Bytes::copy_from_slice(&expected[at..=at]), V1);
    }
    let Found::All(chunks) = memory.find(fid(), 0..10_000) else { panic!("not all of it is there") };
    assert_eq!(chunks.concat(), expected);
    assert!(chunks.len() <= 10, "{} pieces", chunks.len());
    assert_eq!(memory.bytes(), 10_000);
    memory.clear(fid());
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn a_fetch_that_overlaps_an_own_write_is_not_entered() {
    let mut memory = Memory::new(1 << 20);
    fill(&mut memory, 0..100, 1);
    let before = memory.begin_fetch(fid(), 100..200);
    let write = memory.begin_write(fid(), 50..150);
    let after = memory.begin_fetch(fid(), 140..180);
    let beside = memory.begin_fetch(fid(), 150..170);
    assert_eq!(read(&mut memory, 0..50).unwrap().len(), 50);
    assert_eq!(read(&mut memory, 49..51), None);
    assert_eq!(memory.end_fetch(fid(), before, Some((V1, bytes(100, 9)))), Kept::No);
    let data = Some((50, bytes(100, 2)));
    memory.end_write(fid(), write, WriteOutcome::Changed { version: Version(2), data });
    assert_eq!(memory.end_fetch(fid(), after, Some((V1, bytes(40, 9)))), Kept::No);
    assert_eq!(memory.end_fetch(fid(), beside, Some((Version(2), bytes(20, 3)))), Kept::Yes);
    let all = read(&mut memory, 0..170).unwrap();
    assert_eq!((all[49], all[50], all[149], all[150]), (1, 2, 2, 3));
}

#[test]
fn overlapping_writes_at_once_leave_nothing_behind() {
    let mut memory = Memory::new(1 << 20);
    let first = memory.begin_write(fid(), 0..100);
    let second = memory.begin_write(fid(), 50..150);
    let outcome =
        |version, at| WriteOutcome::Changed { version: Version(version), data: Some((at, bytes(100, 7))) };
    memory.end_write(fid(), second, outcome(3, 50));
    assert_eq!(read(&mut memory, 50..150), None, "the first one may come before or after it");
    memory.end_write(fid(), first, outcome(2, 0));
    // Alone by now, but the server may have applied it before the other.
    assert_eq!(read(&mut memory, 50..100), None);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn another_version_drops_the_data() {
    let mut memory = Memory::new(1 << 20);
    fill(&mut memory, 0..100, 1);
    memory.revalidate(fid(), V1);
    assert!(read(&mut memory, 0..100).is_some());
    memory.revalidate(fid(), Version(2));
    assert_eq!(read(&mut memory, 0..100), None);
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn memory_is_bounded_and_the_oldest_goes_first() {
    let mut memory = Memory::new(30_000);
    fill(&mut memory, 0..10_000, 1);
    fill(&mut memory, 10_000..20_000, 2);
    fill(&mut memory, 20_000..30_000, 3);
    assert!(read(&mut memory, 0..10_000).is_some());
    fill(&mut memory, 30_000..40_000, 4);
    assert_eq!(memory.bytes(), 30_000);
    assert!(read(&mut memory, 0..10_000).is_some());
    assert_eq!(read(&mut memory, 10_000..20_000), None);
}

#[tokio::test]
async fn a_second_reader_waits_for_the_first_ones_fetch() {
    let mut memory = Memory::new(1 << 20);
    let id = memory.begin_fetch(fid(), 0..100);
    let waiting = memory.join_fetches(fid(), &(50..60)).remove(0);
    assert!(memory.join_fetches(fid(), &(100..160)).is_empty());
    memory.end_fetch(fid(), id, Some((V1, bytes(100, 1))));
    waiting.await.unwrap();
    assert!(read(&mut memory, 50..60).is_some());
}

#[test]
fn zeros_cost_no_memory_and_many_are_not_kept() {
    let mut memory = Memory::new(1 << 20);
    memory.write(fid(), 0, bytes(10_000, 1), V1);
    memory.zero(fid(), 10_000..500_000, V1);
    memory.write(fid(), 500_000, bytes(10_000, 2), V1);
    assert_eq!(memory.bytes(), 20_000);
    let all = read(&mut memory, 0..510_000).unwrap();
    assert!(all[10_000..500_000].iter().all(|byte| *byte == 0));
    assert_eq!((all[9_999], all[500_000]), (1, 2));
    memory.zero(fid(), 5_000..20_000, V1);
    assert_eq!((memory.bytes(), read(&mut memory, 4_999..5_001)), (15_000, Some(vec![1, 0])));
    memory.write(fid(), 100_000, bytes(10_000, 3), V1);
    assert_eq!(read(&mut memory, 109_999..110_001), Some(vec![3, 0]));
    memory.zero(fid(), 0..2 << 20, V1);
    assert_eq!((memory.bytes(), read(&mut memory, 0..1)), (0, None));
    let backwards = Range { start: 10, end: 5 };
    memory.write(fid(), 0, bytes(100, 4), V1);
    memory.zero(fid(), backwards, V1);
    assert_eq!(read(&mut memory, 0..100), Some(vec![4; 100]));
    memory.clear(fid());
    assert_eq!(memory.bytes(), 0);
}

#[test]
fn what_passes_goes_when_it_has_been_read_to_its_end() {
    const LEN: u64 = JOIN_UP_TO as u64 + 1;
    let mut memory = Memory::new(1 << 20);
    let extent = |number: u64| number * LEN..(number + 1) * LEN;
    let passing = 2 + MOST_PASSED as u64;
    for number in 0..passing + 1 {
        fill(&mut memory, extent(number), number as u8);
        if number < passing {
            memory.let_pass(fid(), number * LEN);
        }
    }
    let all = (passing + 1) * LEN;
    for _ in 0..3 {
        assert_eq!(read(&mut memory, 0..LEN - 1), Some(vec![0; LEN as usize - 1]));
    }
    assert_eq!(read(&mut memory, 0..2 * LEN).map(|data| data.len()), Some(2 * LEN as usize));
    assert_eq!(memory.bytes(), all, "the kernel may come again");
    // In its place is something else by now.
    memory.write(fid(), LEN, bytes(LEN as usize, 99), V1);
    for number in 2..passing {
        assert_eq!(read(&mut memory, extent(number)), Some(vec![number as u8; LEN as usize]));
    }
    assert_eq!(memory.missing(fid(), 0..all), vec![extent(0)]);
    assert_eq!(read(&mut memory, extent(1)), Some(vec![99; LEN as usize]));
    assert_eq!(memory.bytes(), all - LEN);
    // Room is made of the others as ever.
    for number in passing + 1..3000 {
        fill(&mut memory, extent(number), 1);
        assert!(memory.bytes() <= 1 << 20);
    }
    assert_eq!(read(&mut memory, extent(2)), None);
}
