//! Protocols of other systems, as far as the papers tell them: what is asked of the server when, and who hears of a change.

use super::{Book, Kind, Protocol, Source};
use crate::workload::{Event, OpenFor, SystemCall, Workload};
use std::collections::BTreeSet;

/// The paper's sSPRITE: the version number is asked for at each read, and the answer brings what is new. The server remembers
/// nobody.
pub(super) struct CheckEachRead {
    copies: Vec<Vec<Option<u64>>>,
    /// What the server has.
    stored: Vec<u64>,
}

impl CheckEachRead {
    pub(super) fn new(workload: &Workload) -> CheckEachRead {
        let files = workload.files as usize;
        CheckEachRead { copies: vec![vec![None; files]; workload.clients as usize], stored: vec![0; files] }
    }
}

impl Protocol for CheckEachRead {
    fn event(&mut self, book: &mut Book, event: &Event) {
        let stored = &mut self.stored[event.file];
        let copy = &mut self.copies[event.client][event.file];
        match event.call {
            SystemCall::Open(_) => book.opened(0),
            SystemCall::Close => book.closed(0),
            SystemCall::Gone => {}
            SystemCall::Read | SystemCall::Look => {
                let had = *copy == Some(*stored);
                let (bytes, source) = if had { (0, Source::Cache) } else { (event.part, Source::Server) };
                book.exchange_with_data(Kind::Validate, bytes);
                *copy = Some(*stored);
                book.read(event.file, *stored, source, 1, 0.0);
            }
            SystemCall::Write | SystemCall::Change => {
                book.exchange_with_data(Kind::Write, event.part);
                let version = book.write(event.file, 1, 0.0);
                *copy = copy.filter(|had| had == stored).map(|_| version);
                *stored = version;
            }
        }
    }
}

/// What an NFS client has of a file.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The version that its attributes are of, and when they came.
    attributes: u64,
    came: f64,
    /// The version of what is cached.
    data: Option<u64>,
}

/// NFS: the client asks whether its copy is right, at each open and when its attributes are old. The server remembers nobody.
pub(super) struct Nfs {
    known: Vec<Vec<Option<Known>>>,
    /// What the server has.
    stored: Vec<u64>,
    /// For how many seconds attributes of each object are believed.
    believed: Vec<f64>,
}

impl Nfs {
    pub(super) fn new(workload: &Workload, believed: Vec<f64>) -> Nfs {
        let files = workload.files as usize;
        Nfs { known: vec![vec![None; files]; workload.clients as usize], stored: vec![0; files], believed }
    }

    /// GETATTR.
    fn ask(&mut self, book: &mut Book, event: &Event) -> Known {
        book.messages(Kind::Validate, 2);
        let known = &mut self.known[event.client][event.file];
        let data = known.and_then(|known| known.data);
        *known.insert(Known { attributes: self.stored[event.file], came: event.at, data })
    }

    /// What is known and believed, or asked for; and the round trips that took.
    fn attributes(&mut self, book: &mut Book, event: &Event) -> (Known, u32) {
        let known = self.known[event.client][event.file];
        match known.filter(|known| event.at - known.came < self.believed[event.file]) {
            Some(known) => (known, 0),
            None => (self.ask(book, event), 1),
        }
    }

    fn read(&mut self, book: &mut Book, event: &Event) {
        let (known, exchanges) = self.attributes(book, event);
        if event.part == 0 {
            let source = if exchanges == 0 { Source::Cache } else { Source::Server };
            return book.read(event.file, known.attributes, source, exchanges, 0.0);
        }
        if known.data == Some(known.attributes) {
            return book.read(event.file, known.attributes, Source::Cache, exchanges, 0.0);
        }
        // READ answers with attributes, too.
        book.exchange_with_data(Kind::Read, event.part);
        let stored = self.stored[event.file];
        self.known[event.client][event.file] =
            Some(Known { attributes: stored, came: event.at, data: Some(stored) });
        book.read(event.file, stored, Source::Server, exchanges + 1, 0.0);
    }
}

impl Protocol for Nfs {
    fn event(&mut self, book: &mut Book, event: &Event) {
        match event.call {
            SystemCall::Open(_) => {
                self.ask(book, event);
                book.opened(1);
            }
            SystemCall::Close => book.closed(0),
            SystemCall::Gone => {}
            SystemCall::Read | SystemCall::Look => self.read(book, event),
            SystemCall::Write | SystemCall::Change => {
                book.exchange_with_data(Kind::Write, event.part);
                let version = book.write(event.file, 1, 0.0);
                let before = std::mem::replace(&mut self.stored[event.file], version);
                // The answer has the attributes of before and after: a copy that was right is right.
                if let Some(known) = &mut self.known[event.client][event.file] {
                    let data = known.data.filter(|had| *had == before).map(|_| version);
                    *known = Known { attributes: version, came: event.at, data };
                }
            }
        }
    }
}

/// How AFS knows whether a copy is right.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Validity {
    /// Version 1: asks at each open, and for attributes each time.
    TestAuth,
    /// Version 2: the server promises to tell.
    Callback,
}

/// What an AFS client has of a file.
#[derive(Clone, Copy, Default, Debug)]
struct Whole {
    /// The version of its copy on disk.
    data: Option<u64>,
    /// The version that it takes for the server's.
    known: u64,
    /// The server has promised to tell of changes, and has told of none.
    is_promised: bool,
    /// It was fetched when it was opened, and not read since.
    is_fresh: bool,
}

/// AFS: whole files, session semantics. What is written to the local copy is what others see once it is closed; the last one who
/// stores wins, and what another has written meanwhile is lost.
pub(super) struct WholeFiles {
    validity: Validity,
    copies: Vec<Vec<Whole>>,
    /// What the server has.
    stored: Vec<u64>,
    /// Open files that have been written, by client and file.
    dirty: BTreeSet<(usize, usize)>,
}

impl WholeFiles {
    pub(super) fn new(workload: &Workload, validity: Validity) -> WholeFiles {
        let files = workload.files as usize;
        let copies = vec![vec![Whole::default(); files]; workload.clients as usize];
        WholeFiles { validity, copies, stored: vec![0; files], dirty: BTreeSet::new() }
    }

    /// Makes the copy right, and returns the round trips that took.
    fn open(&mut self, book: &mut Book, event: &Event, needs_data: bool) -> u32 {
        let stored = self.stored[event.file];
        let is_dirty = self.dirty.contains(&(event.client, event.file));
        let copy = &mut self.copies[event.client][event.file];
        if is_dirty {
            // Open already, and written: that is the copy which is used.
            return 0;
        }
        let mut exchanges = 0;
        let asks = match self.validity {
            // There is nothing to ask about where there is no copy.
            Validity::TestAuth => copy.data.is_some() || !needs_data,
            Validity::Callback => !copy.is_promised && !needs_data,
        };
        if asks {
            book.messages(Kind::Validate, 2);
            exchanges += 1;
            copy.known = stored;
        }
        let is_right = copy.data == Some(copy.known) && (asks || copy.is_promised);
        if needs_data && !is_right {
            book.exchange_with_data(Kind::Transfer, event.size);
            exchanges += 1;
            (copy.data, copy.known) = (Some(stored), stored);
            copy.is_fresh = true;
        }
        copy.is_promised = self.validity == Validity::Callback;
        exchanges
    }

    /// Attributes or names.
    fn look(&mut self, book: &mut Book, event: &Event) {
        let exchanges = self.open(book, event, event.part > 0);
        let source = if exchanges == 0 { Source::Cache } else { Source::Server };
        let copy = &mut self.copies[event.client][event.file];
        copy.is_fresh = false;
        book.read(event.file, copy.known, source, exchanges, 0.0);
    }

    /// The server has another version from now on, and says so to whom it has promised that.
    fn publish(&mut self, book: &mut Book, event: &Event, version: u64) {
        self.stored[event.file] = version;
        let copy = &mut self.copies[event.client][event.file];
        (copy.known, copy.is_promised) = (version, self.validity == Validity::Callback);
        for (client, copies) in self.copies.iter_mut().enumerate() {
            let copy = &mut copies[event.file];
            if client != event.client && copy.is_promised {
                book.messages(Kind::Recall, 2);
                copy.is_promised = false;
            }
        }
    }
}

impl Protocol for WholeFiles {
    fn event(&mut self, book: &mut Book, event: &Event) {
        match event.call {
            SystemCall::Open(mode) => {
                let exchanges = self.open(book, event, mode != OpenFor::Replacing);
                book.opened(exchanges);
            }
            SystemCall::Read => {
                let copy = &mut self.copies[event.client][event.file];
                let source = if std::mem::take(&mut copy.is_fresh) { Source::Server } else { Source::Cache };
                book.read(event.file, copy.data.unwrap_or(0), source, 0, 0.0);
            }
            SystemCall::Write => {
                let version = book.write(event.file, 0, 0.0);
                let copy = &mut self.copies[event.client][event.file];
                (copy.data, copy.known) = (Some(version), version);
                self.dirty.insert((event.client, event.file));
            }
            SystemCall::Gone => {}
            SystemCall::Close => {
                if !self.dirty.remove(&(event.client, event.file)) {
                    return book.closed(0);
                }
                book.exchange_with_data(Kind::Flush, event.size);
                let version = self.copies[event.client][event.file].data.unwrap_or(0);
                self.publish(book, event, version);
                book.closed(1);
            }
            SystemCall::Look => self.look(book, event),
            SystemCall::Change => {
                book.exchange_with_data(Kind::Write, event.part);
                let version = book.write(event.file, 1, 0.0);
                let copy = &mut self.copies[event.client][event.file];
                let was_right = copy.data == Some(self.stored[event.file]);
                copy.data = copy.data.filter(|_| was_right).map(|_| version);
                self.publish(book, event, version);
            }
        }
    }
}
