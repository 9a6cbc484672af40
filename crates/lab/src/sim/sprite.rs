//! Sprite (Nelson, Welch and Ousterhout 1988): the server hears of each open and close. It has the last writer's dirty data
//! brought back when somebody else opens (sequential write sharing), and turns caching off while one writes and another has the
//! file open (concurrent write sharing), until nobody has it open any more (so Baker et al. 1991 describe it).
//!
//! Names and attributes are not cached: the server is asked for each, and makes each change of names at once.

use super::{Book, Kind, Protocol, Source};
use crate::workload::{Event, OpenFor, SystemCall, Workload};
use std::collections::{BTreeMap, VecDeque};

/// Age after which clients write back what is dirty, seconds.
const WRITE_BACK: f64 = 30.0;

/// What the server knows of a file.
#[derive(Clone, Debug, Default)]
struct File {
    /// The version that it has.
    stored: u64,
    /// Opens of each client: (for reading, for writing).
    open: BTreeMap<usize, (u32, u32)>,
    /// Caching is off until nobody has it open any more.
    is_disabled: bool,
    /// Whose cache has what the server has not.
    dirty: Option<Dirty>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Dirty {
    client: usize,
    since: f64,
    bytes: u64,
}

pub(super) struct Sprite {
    files: Vec<File>,
    /// The version of each client's copy of each file.
    copies: Vec<Vec<Option<u64>>>,
    /// Since when files are dirty, in that order; some have been brought back meanwhile.
    ages: VecDeque<(f64, usize)>,
}

impl Sprite {
    pub(super) fn new(workload: &Workload) -> Sprite {
        let files = workload.files as usize;
        Sprite {
            files: vec![File::default(); files],
            copies: vec![vec![None; files]; workload.clients as usize],
            ages: VecDeque::new(),
        }
    }

    /// What the last writer has goes to the server.
    fn write_back(&mut self, book: &mut Book, file: usize) {
        let state = &mut self.files[file];
        if let Some(Dirty { client, bytes, .. }) = state.dirty.take() {
            book.exchange_with_data(Kind::Flush, bytes);
            state.stored = self.copies[client][file].unwrap_or(state.stored);
        }
    }

    /// Time passes: what is old enough is written back.
    fn advance(&mut self, book: &mut Book, until: f64) {
        while let Some((since, file)) =
            self.ages.front().copied().filter(|(since, _)| since + WRITE_BACK <= until)
        {
            self.ages.pop_front();
            if self.files[file].dirty.is_some_and(|dirty| dirty.since == since) {
                book.at(since + WRITE_BACK);
                self.write_back(book, file);
            }
        }
        book.at(until);
    }

    fn open(&mut self, book: &mut Book, event: &Event, mode: OpenFor) {
        book.messages(Kind::OpenClose, 2);
        let state = &self.files[event.file];
        let others: Vec<usize> =
            state.open.keys().copied().filter(|client| *client != event.client).collect();
        let writes = mode != OpenFor::Reading;
        let is_shared =
            !others.is_empty() && (writes || others.iter().any(|client| state.open[client].1 > 0));
        let disables = is_shared && !state.is_disabled;
        let brings_back = state.dirty.map(|dirty| dirty.client).filter(|writer| *writer != event.client);
        // Everybody who has it open is told to stop caching it; a writer among them writes back before it does.
        let mut told = if disables { others } else { Vec::new() };
        told.extend(brings_back.filter(|writer| !told.contains(writer)));
        book.messages(Kind::Recall, 2 * told.len() as u64);
        if brings_back.is_some() {
            self.write_back(book, event.file);
        }
        if disables {
            told.iter().for_each(|client| self.copies[*client][event.file] = None);
        }
        let state = &mut self.files[event.file];
        state.is_disabled |= disables;
        let opens = state.open.entry(event.client).or_default();
        if writes {
            opens.1 += 1;
        } else {
            opens.0 += 1;
        }
        // The answer has the version number, and whether it may be cached: an old copy is thrown away.
        let is_own = state.dirty.is_some();
        let copy = &mut self.copies[event.client][event.file];
        *copy = copy.filter(|have| !state.is_disabled && (is_own || *have == state.stored));
        book.opened(if told.is_empty() { 1 } else { 2 });
    }

    fn close(&mut self, book: &mut Book, event: &Event) {
        book.messages(Kind::OpenClose, 2);
        book.closed(1);
        let state = &mut self.files[event.file];
        if let Some((reading, writing)) = state.open.get_mut(&event.client) {
            if *writing > 0 {
                *writing -= 1;
            } else {
                *reading = reading.saturating_sub(1);
            }
        }
        state.open.retain(|_, (reading, writing)| *reading + *writing > 0);
        state.is_disabled &= !state.open.is_empty();
    }

    fn read(&mut self, book: &mut Book, event: &Event) {
        let state = &self.files[event.file];
        let copy = &mut self.copies[event.client][event.file];
        if let Some(have) = *copy {
            return book.read(event.file, have, Source::Cache, 0, 0.0);
        }
        book.exchange_with_data(Kind::Read, event.part);
        *copy = Some(state.stored).filter(|_| !state.is_disabled);
        book.read(event.file, state.stored, Source::Server, 1, 0.0);
    }

    fn write(&mut self, book: &mut Book, event: &Event) {
        let state = &mut self.files[event.file];
        if state.is_disabled {
            book.exchange_with_data(Kind::Write, event.part);
            state.stored = book.write(event.file, 1, 0.0);
            return;
        }
        self.copies[event.client][event.file] = Some(book.write(event.file, 0, 0.0));
        if let Some(dirty) = &mut state.dirty {
            dirty.bytes = dirty.bytes.max(event.part);
        } else {
            state.dirty = Some(Dirty { client: event.client, since: event.at, bytes: event.part });
            self.ages.push_back((event.at, event.file));
        }
    }

    /// Attributes of a file that another has written and not yet written back are that one's.
    fn look(&mut self, book: &mut Book, event: &Event) {
        book.exchange_with_data(Kind::Read, event.part);
        let state = &self.files[event.file];
        match state.dirty.map(|dirty| dirty.client) {
            Some(writer) => {
                let version = self.copies[writer][event.file].unwrap_or(state.stored);
                let is_own = writer == event.client;
                book.messages(Kind::Recall, if is_own { 0 } else { 2 });
                book.read(event.file, version, Source::Server, if is_own { 1 } else { 2 }, 0.0);
            }
            None => book.read(event.file, state.stored, Source::Server, 1, 0.0),
        }
    }
}

impl Protocol for Sprite {
    fn event(&mut self, book: &mut Book, event: &Event) {
        self.advance(book, event.at);
        match event.call {
            SystemCall::Open(mode) => self.open(book, event, mode),
            SystemCall::Read => self.read(book, event),
            SystemCall::Write => self.write(book, event),
            SystemCall::Close => self.close(book, event),
            SystemCall::Gone => {}
            SystemCall::Look => self.look(book, event),
            SystemCall::Change => {
                book.exchange_with_data(Kind::Write, event.part);
                let version = book.write(event.file, 1, 0.0);
                let state = &mut self.files[event.file];
                match state.dirty {
                    // The data that nobody else has seen are those of the file with its new attributes.
                    Some(dirty) => self.copies[dirty.client][event.file] = Some(version),
                    None => state.stored = version,
                }
            }
        }
    }

    fn end(&mut self, book: &mut Book) {
        self.advance(book, book.now);
        (0..self.files.len()).for_each(|file| self.write_back(book, file));
    }
}
