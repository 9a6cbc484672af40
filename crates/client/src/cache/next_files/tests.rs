use super::*;
use soda_types::{Ino, VolumeId};

const SIZE: u64 = 4096;

fn file(ino: u64) -> Fid {
    Fid::new(VolumeId(1), Ino(ino))
}

/// A directory of files by their numbers, in the order of their names, and who reads them. What is not fetched ahead is a round
/// trip.
struct Reader {
    next_files: NextFiles,
    dir: Fid,
    names: Vec<u64>,
    here: std::collections::BTreeSet<Fid>,
    fetched: usize,
    trips: usize,
}

impl Reader {
    fn of(names: impl IntoIterator<Item = u64>) -> Reader {
        let names = names.into_iter().collect();
        let here = Default::default();
        Reader { next_files: NextFiles::default(), dir: file(1), names, here, fetched: 0, trips: 0 }
    }

    fn read(&mut self, ino: u64) {
        let had = if self.here.contains(&file(ino)) { Had::UnderWay } else { Had::Nothing };
        self.trips += usize::from(had == Had::Nothing);
        let names = &self.names;
        self.next_files.note((self.dir, file(ino), SIZE), had, || Some(Orders::of(&listing(names))));
        self.here.insert(file(ino));
        let NextFiles { walks, credit, .. } = &mut self.next_files;
        let here = &self.here;
        let small = |fid: Fid| (!here.contains(&fid)).then_some(SIZE);
        let next = walks.last_mut().unwrap().next(credit, MOST_BYTES, small);
        self.next_files.weigh();
        self.fetched += next.len();
        self.here.extend(next);
    }
}

fn listing(names: &[u64]) -> Vec<Listed> {
    let listed = |ino: &u64| Listed {
        name: soda_types::Name::new(format!("{ino}").as_bytes()).unwrap(),
        fid: file(*ino),
        kind: FileKind::File,
    };
    names.iter().map(listed).collect()
}

#[test]
fn who_reads_in_the_order_of_names_is_waited_for_after_three_files() {
    // Numbers in no order.
    let mut reader = Reader::of((0..1000).map(|at| 100 + at * 617 % 1000));
    for ino in reader.names.clone() {
        reader.read(ino);
    }
    assert_eq!((reader.trips, reader.fetched), (3, 997));
}

#[test]
fn who_reads_in_the_order_of_numbers_is_waited_for_too() {
    let mut reader = Reader::of((0..1000).map(|at| 100 + at * 617 % 1000));
    for ino in 100..1100 {
        reader.read(ino);
    }
    assert!(reader.trips <= 4, "{}", reader.trips);
}

#[test]
fn for_who_reads_in_no_order_nothing_is_fetched() {
    let mut reader = Reader::of(100..1100);
    for at in 0..1000 {
        reader.read(100 + at * 617 % 1000);
    }
    assert_eq!((reader.trips, reader.fetched), (1000, 0));
}

#[test]
fn never_more_is_fetched_for_nothing_than_was_read() {
    let mut reader = Reader::of(100..9100);
    let (mut at, mut read) = (100, 0);
    // Some files in order, then far away.
    for round in 0..200 {
        for _ in 0..round % 11 {
            reader.read(at);
            read += 1;
            at += 1;
        }
        at = 100 + (at - 100 + 617) % 8000;
        let wasted = reader.fetched + reader.trips - read;
        assert!(wasted <= read, "{wasted} of {read} in round {round}");
    }
    assert!(reader.fetched > 0);
}

#[test]
fn who_leaves_most_of_them_out_gets_no_further_credit() {
    let mut reader = Reader::of(100..9100);
    for at in (100..9100).step_by(7) {
        reader.read(at);
    }
    let read = 9000 / 7 + 1;
    let wasted = reader.fetched + reader.trips - read;
    assert!(wasted <= read, "{wasted} of {read}");
}

#[test]
fn who_went_through_one_directory_need_not_begin_anew_in_the_next() {
    let mut reader = Reader::of(100..200);
    (100..200).for_each(|ino| reader.read(ino));
    for dir in 2..20 {
        let before = reader.trips;
        (reader.dir, reader.names) = (file(dir), (dir * 1000..dir * 1000 + 20).collect());
        (dir * 1000..dir * 1000 + 20).for_each(|ino| reader.read(ino));
        assert_eq!(reader.trips - before, 1, "directory {dir}");
    }
    // One file of each is no order.
    let (mut reads, before) = (0, reader.fetched);
    for dir in 100..400 {
        (reader.dir, reader.names) = (file(dir), (dir * 1000..dir * 1000 + 20).collect());
        reader.read(dir * 1000);
        reads += 1;
    }
    let wasted = (reader.fetched - before) as u64;
    assert!(wasted * (SIZE + EACH) <= MOST_BYTES && wasted < 2 * reads, "{wasted}");
}

#[test]
fn what_had_to_go_before_it_was_read_is_fetched_no_more() {
    let mut reader = Reader::of(100..1100);
    (100..120).for_each(|ino| reader.read(ino));
    assert!(reader.fetched > 10);
    let fetched = reader.fetched;
    reader.here.clear();
    reader.read(120);
    reader.read(121);
    assert_eq!(reader.fetched, fetched);
}

#[test]
fn what_is_known_of_the_order_in_directories_is_weighed_and_bounded() {
    const FILES: u64 = 1000;
    let mut reader = Reader::of([]);
    let mut weights = Vec::new();
    for dir in 1..=3 * MOST_WALKS as u64 {
        (reader.dir, reader.names) = (file(dir), (dir * FILES..(dir + 1) * FILES).collect());
        (dir * FILES..dir * FILES + 5).for_each(|ino| reader.read(ino));
        weights.push(reader.next_files.bytes());
    }
    let each = size_of::<Fid>() as u64 * 3;
    for (walks, weight) in (1..).zip(&weights[..MOST_WALKS]) {
        assert!((walks * FILES * each..walks * FILES * 150).contains(weight), "{weight} of {walks}");
    }
    let all = weights[MOST_WALKS - 1];
    assert!(weights[MOST_WALKS..].iter().all(|weight| weight.abs_diff(all) < all / 10), "{weights:?}");
}
