//! Protocols of other systems, as far as the papers tell them: what is asked of the server when, and who hears of a change.

use super::workload::{Event, OpenFor, SystemCall, Workload};
use super::{Book, Kind, Protocol};
use std::collections::BTreeMap;

/// Age after which Sprite's clients write back what is dirty, seconds (Nelson, Welch and Ousterhout 1988).
const SPRITE_AGE: f64 = 30.0;

/// A copy of a file at a client.
#[derive(Clone, Copy, Debug)]
struct Copy {
    version: u64,
    /// When it was last known to be right.
    checked: f64,
}

/// For how long [`Checking`] takes a copy for right.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Believed {
    /// Seconds after the last check; 0 asks at every read.
    For(f64),
    /// The same, and checked at each open whatever its age.
    CloseToOpen(f64),
}

/// NFS, and the paper's sSPRITE: the client asks whether its copy is right, the server remembers nobody.
pub(super) struct Checking {
    believed: Believed,
    copies: Vec<Vec<Option<Copy>>>,
}

impl Checking {
    pub(super) fn new(workload: &Workload, believed: Believed) -> Checking {
        Checking { believed, copies: vec![vec![None; workload.files as usize]; workload.clients as usize] }
    }

    /// Asks the server; fetches what has changed. Returns the exchanges that took.
    fn check(&mut self, book: &mut Book, event: &Event) -> u32 {
        let version = book.version(event.file);
        let copy = &mut self.copies[event.client][event.file];
        let same = copy.is_some_and(|copy| copy.version == version);
        *copy = Some(Copy { version, checked: event.at });
        match (same, self.believed) {
            (true, _) => book.messages(Kind::Validate, 2),
            // sSPRITE's read brings the new data with the answer.
            (false, Believed::For(_)) => book.exchange_with_data(Kind::Validate),
            (false, Believed::CloseToOpen(_)) => {
                book.messages(Kind::Validate, 2);
                book.exchange_with_data(Kind::Read);
                return 2;
            }
        }
        1
    }
}

impl Protocol for Checking {
    fn event(&mut self, book: &mut Book, event: &Event) {
        match event.call {
            SystemCall::Open(_) => {
                if let Believed::CloseToOpen(_) = self.believed {
                    let exchanges = self.check(book, event);
                    book.out.read_delay += f64::from(exchanges) * book.round_trip;
                }
            }
            SystemCall::Read => {
                let (Believed::For(age) | Believed::CloseToOpen(age)) = self.believed;
                let copy = self.copies[event.client][event.file];
                match copy
                    .filter(|copy| event.at - copy.checked < age || copy.checked == event.at && age > 0.0)
                {
                    Some(copy) => book.read(event.file, copy.version, 0, 0.0),
                    None => {
                        let exchanges = self.check(book, event);
                        book.read(event.file, book.version(event.file), exchanges, 0.0);
                    }
                }
            }
            SystemCall::Write => {
                book.exchange_with_data(Kind::Write);
                let before = book.version(event.file);
                let version = book.write(event.file, 1, 0.0);
                // The answer has the new attributes: a copy that was right is right.
                let copy = &mut self.copies[event.client][event.file];
                *copy =
                    copy.filter(|copy| copy.version == before).map(|_| Copy { version, checked: event.at });
            }
            SystemCall::Close => {}
        }
    }
}

/// How AFS knows whether a copy is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Validity {
    /// Version 1: asks at each open.
    TestAuth,
    /// Version 2: the server promises to tell.
    Callback,
}

/// AFS: whole files, session semantics.
pub(super) struct WholeFiles {
    validity: Validity,
    /// By client and file: the copy and whether it may be used.
    copies: Vec<Vec<Option<(u64, bool)>>>,
    /// Writes of open files that have not been stored.
    dirty: BTreeMap<(usize, usize), u64>,
}

impl WholeFiles {
    pub(super) fn new(workload: &Workload, validity: Validity) -> WholeFiles {
        let copies = vec![vec![None; workload.files as usize]; workload.clients as usize];
        WholeFiles { validity, copies, dirty: BTreeMap::new() }
    }

    fn open(&mut self, book: &mut Book, event: &Event) {
        let version = book.version(event.file);
        let copy = &mut self.copies[event.client][event.file];
        let known = match (self.validity, *copy) {
            (Validity::Callback, Some((_, true))) => return,
            (Validity::TestAuth, Some((have, _))) => {
                book.messages(Kind::Validate, 2);
                have == version
            }
            _ => false,
        };
        if !known {
            book.exchange_with_data(Kind::Transfer);
        }
        *copy = Some((version, true));
        book.out.read_delay += book.round_trip;
    }

    fn close(&mut self, book: &mut Book, event: &Event) {
        if self.dirty.remove(&(event.client, event.file)).is_none() {
            return;
        }
        book.exchange_with_data(Kind::Flush);
        // What was written to the local copy is what the others see from now on: the last one who stores wins.
        let version = book.write(event.file, 1, 0.0);
        for (client, copies) in self.copies.iter_mut().enumerate() {
            let copy = &mut copies[event.file];
            if client == event.client {
                *copy = Some((version, true));
            } else if let (Validity::Callback, Some((have, true))) = (self.validity, *copy) {
                book.messages(Kind::Recall, 2);
                *copy = Some((have, false));
            }
        }
    }
}

impl Protocol for WholeFiles {
    fn event(&mut self, book: &mut Book, event: &Event) {
        match event.call {
            SystemCall::Open(_) => self.open(book, event),
            SystemCall::Read => {
                let version = self.copies[event.client][event.file].map_or(0, |(version, _)| version);
                book.read(event.file, version, 0, 0.0);
            }
            SystemCall::Write => {
                *self.dirty.entry((event.client, event.file)).or_default() += 1;
            }
            SystemCall::Close => self.close(book, event),
        }
    }
}

/// Who has a file open in Sprite, and who has written it last.
#[derive(Clone, Debug, Default)]
struct SpriteFile {
    /// Opens of each client: (for reading, for writing).
    open: BTreeMap<usize, (u32, u32)>,
    /// Caching is off until nobody has it open any more.
    disabled: bool,
    /// The client whose cache has what the server has not, and since when.
    dirty: Option<(usize, f64)>,
}

/// Sprite: the server hears of each open and close. It has the last writer's dirty data brought back when somebody else opens
/// (sequential write sharing), and turns caching off while one writes and another has the file open (concurrent).
pub(super) struct Sprite {
    files: Vec<SpriteFile>,
    copies: Vec<Vec<Option<u64>>>,
}

impl Sprite {
    pub(super) fn new(workload: &Workload) -> Sprite {
        let files = vec![SpriteFile::default(); workload.files as usize];
        Sprite { files, copies: vec![vec![None; workload.files as usize]; workload.clients as usize] }
    }

    /// What is older than half a minute has been written back meanwhile.
    fn age(&mut self, book: &mut Book, file: usize, now: f64) {
        let state = &mut self.files[file];
        if state.dirty.is_some_and(|(_, since)| now - since >= SPRITE_AGE) {
            state.dirty = None;
            book.exchange_with_data(Kind::Flush);
        }
    }

    fn open(&mut self, book: &mut Book, event: &Event, mode: OpenFor) {
        let state = &mut self.files[event.file];
        book.messages(Kind::OpenClose, 2);
        let mut exchanges = 1;
        if state.dirty.is_some_and(|(writer, _)| writer != event.client) {
            state.dirty = None;
            book.messages(Kind::Recall, 2);
            book.exchange_with_data(Kind::Flush);
            exchanges += 1;
        }
        let others = state.open.iter().filter(|(client, _)| **client != event.client);
        let (mut readers, mut writers) = (0, 0);
        for (_, (reading, writing)) in others {
            readers += reading;
            writers += writing;
        }
        if !state.disabled && (writers > 0 || mode == OpenFor::Writing && readers > 0) {
            state.disabled = true;
            // Everybody who has it open is told to stop caching it.
            let told = state.open.keys().filter(|client| **client != event.client).count() as u64;
            book.messages(Kind::Recall, 2 * told);
            exchanges += 1;
        }
        if state.disabled {
            for copies in &mut self.copies {
                copies[event.file] = None;
            }
        }
        let opens = state.open.entry(event.client).or_default();
        match mode {
            OpenFor::Reading => opens.0 += 1,
            OpenFor::Writing => opens.1 += 1,
        }
        // The answer has the version number: an old copy is thrown away.
        let version = book.version(event.file);
        let copy = &mut self.copies[event.client][event.file];
        *copy = copy.filter(|have| *have == version);
        book.out.read_delay += f64::from(exchanges) * book.round_trip;
    }
}

impl Protocol for Sprite {
    fn event(&mut self, book: &mut Book, event: &Event) {
        self.age(book, event.file, event.at);
        match event.call {
            SystemCall::Open(mode) => self.open(book, event, mode),
            SystemCall::Read => {
                let version = book.version(event.file);
                if self.files[event.file].disabled {
                    book.exchange_with_data(Kind::Read);
                    return book.read(event.file, version, 1, 0.0);
                }
                match self.copies[event.client][event.file] {
                    Some(have) => book.read(event.file, have, 0, 0.0),
                    None => {
                        book.exchange_with_data(Kind::Read);
                        self.copies[event.client][event.file] = Some(version);
                        book.read(event.file, version, 1, 0.0);
                    }
                }
            }
            SystemCall::Write => {
                if self.files[event.file].disabled {
                    book.exchange_with_data(Kind::Write);
                    book.write(event.file, 1, 0.0);
                    return;
                }
                let version = book.write(event.file, 0, 0.0);
                self.copies[event.client][event.file] = Some(version);
                let state = &mut self.files[event.file];
                state.dirty = state.dirty.or(Some((event.client, event.at)));
            }
            SystemCall::Close => {
                book.messages(Kind::OpenClose, 2);
                let state = &mut self.files[event.file];
                if let Some((reading, writing)) = state.open.get_mut(&event.client) {
                    if *writing > 0 {
                        *writing -= 1;
                    } else {
                        *reading = reading.saturating_sub(1);
                    }
                }
                state.open.retain(|_, (reading, writing)| *reading + *writing > 0);
                state.disabled &= !state.open.is_empty();
            }
        }
    }

    fn end(&mut self, book: &mut Book) {
        for state in &mut self.files {
            if state.dirty.take().is_some() {
                book.exchange_with_data(Kind::Flush);
            }
        }
    }
}
