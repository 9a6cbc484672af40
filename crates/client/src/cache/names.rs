//! Names of one directory, present and absent, as known under its lease.

use super::handed::HandedDirectory;
use super::names_ahead::Asked;
use crate::hooks::{KERNEL_LAG, Names, NamesLock};
use serde::{Deserialize, Serialize};
use soda_types::{Fid, FileKind, Mode, Monotonic, Name};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// More than this in one call to the kernel is "all", if it can make all names void at once.
pub(crate) const MOST_NAMES_AT_ONCE: usize = 1024;

/// Where the kernel needs a directory's lock to drop its names, they stay out of its caches for so long after each recall: who
/// works in it with other machines asks for every name, and needs no lock.
const CONTENDED: Duration = Duration::from_secs(10);
/// A kernel that needs no lock can take the name of a directory back gently, without a moment in which whoever works in it has no
/// path, only when it has surely taken it in: so long after it was given.
const TAKEN_IN: Duration = Duration::from_secs(1);
/// So names of directories stay out of its caches for so long after each recall: then they are old enough at the next one,
/// unless that comes within a certain second. If it did, for [`CONTENDED`].
const QUIET: Duration = Duration::from_secs(2);

/// A sorted listing of a directory with no more names than this is kept for the next reader.
const MOST_SORTED: usize = 1 << 14;

/// One name of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    pub(crate) name: Name,
    pub(crate) fid: Fid,
    pub(crate) kind: FileKind,
}

/// All names of a directory, in order.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    pub(crate) listed: Arc<[Listed]>,
    pub(crate) edition: Edition,
}

/// Stands for what a complete directory held when it was listed: two are equal only if no name, `..` included, was made, changed,
/// removed or forgotten in between.
#[derive(Clone, Debug, Default)]
pub struct Edition(Arc<()>);

impl PartialEq for Edition {
    fn eq(&self, other: &Edition) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Edition {}

/// What is known of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Known {
    Present { fid: Fid, kind: FileKind },
    Absent,
}

/// What a name takes besides its bytes, roughly: its place in the table, with some slack, and in a sorted listing.
const NAME_BYTES: u64 = 208;

#[derive(Debug)]
struct Dentry {
    /// `None`: ask the server, even in a complete directory.
    known: Option<Known>,
    /// Own changes of this name that are not answered: meanwhile only the server knows.
    in_flight: u16,
    fetched: Monotonic,
    /// Until when the kernel may use its copy.
    kernel_until: Monotonic,
}

/// Whether names that are not in the table are known to be absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Complete {
    #[default]
    No,
    Yes,
}

#[derive(Debug, Default)]
pub(crate) struct Directory {
    /// By a keyed hash: whoever may write to a directory chooses its names.
    names: HashMap<Name, Dentry>,
    /// What the names take, bytes.
    bytes: u64,
    pub(crate) complete: Complete,
    /// All present names in order, as long as none of them changes.
    sorted: Option<Whole>,
    /// The kernel may hold names that are not in the table, until then.
    kernel_all_until: Monotonic,
    /// It holds none at all after that.
    kernel_any_until: Monotonic,
    /// When names were last dropped: answers to older questions are not entered any more.
    cleared: Monotonic,
    /// How often names were dropped: what was entered before is not there any more.
    times_cleared: u64,
    /// No validity for the kernel until then: other machines change the directory, too.
    contended_until: Monotonic,
    /// The same for names of directories only.
    subdirectories_contended_until: Monotonic,
    /// When the kernel was last given the name of a directory.
    subdirectory_given: Monotonic,
    /// Its names have been asked for, or it turned out too large: not again before that.
    pub(crate) learning_until: Monotonic,
    pub(super) asked: Asked,
    /// For `..`.
    parent: Option<Fid>,
    /// Inodes in it that this machine changed and nobody else has asked for since.
    pub(crate) unseen: Vec<Fid>,
}

impl Directory {
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// What the names take in memory, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add(&mut self, name: &Name, dentry: Dentry) {
        if self.names.insert(name.clone(), dentry).is_none() {
            self.bytes += bytes_of(name);
        }
    }

    /// What is known here; `None`: ask the server. `fetched_after` is for caching by time only.
    pub(crate) fn find(&self, name: &Name, fetched_after: Monotonic) -> Option<Known> {
        match self.names.get(name) {
            Some(dentry) if dentry.in_flight > 0 || dentry.fetched < fetched_after => None,
            Some(dentry) => dentry.known,
            None => (self.complete == Complete::Yes).then_some(Known::Absent),
        }
    }

    /// An answer to a question that was sent at `sent`.
    pub(crate) fn learn(&mut self, now: Monotonic, sent: Monotonic, name: &Name, known: Known) {
        if self.cleared >= sent {
            return;
        }
        match self.names.get_mut(name) {
            // An own change came in between: the answer may be from before it.
            Some(dentry) if dentry.in_flight > 0 || dentry.fetched >= sent => {}
            Some(dentry) => {
                if dentry.known != Some(known) {
                    self.sorted = None;
                }
                dentry.known = Some(known);
                dentry.fetched = now;
            }
            None => {
                self.sorted = None;
                self.add(name, Dentry::new(Some(known), now));
            }
        }
    }

    /// An own change of the name is about to be sent.
    pub(crate) fn begin_change(&mut self, now: Monotonic, name: &Name) {
        self.sorted = None;
        let bytes = &mut self.bytes;
        let dentry = self.names.entry(name.clone()).or_insert_with(|| {
            *bytes += bytes_of(name);
            Dentry::new(None, now)
        });
        dentry.in_flight += 1;
        if dentry.in_flight > 1 {
            // Which of them will be the last, the answers do not tell.
            dentry.known = None;
        }
        dentry.fetched = now;
    }

    /// Whether an own change of the name is at the server.
    pub(crate) fn is_changing(&self, name: &Name) -> bool {
        self.names.get(name).is_some_and(|dentry| dentry.in_flight > 0)
    }

    /// The change is answered: `outcome` is what the name is now, `None` if that is not known.
    pub(crate) fn end_change(&mut self, now: Monotonic, name: &Name, outcome: Option<Known>) {
        self.sorted = None;
        let Some(dentry) = self.names.get_mut(name) else { return };
        let alone = dentry.in_flight == 1;
        dentry.in_flight = dentry.in_flight.saturating_sub(1);
        dentry.known = outcome.filter(|_| alone);
        dentry.fetched = now;
        let useless =
            dentry.known.is_none() && dentry.in_flight == 0 && dentry.kernel_until == Monotonic::ZERO;
        if useless && self.complete == Complete::No {
            self.names.remove(name);
            self.bytes -= bytes_of(name);
            // Answers to questions from before must not take its place.
            self.cleared = now;
        }
    }

    /// What the name means from now on, by a change that was made here.
    pub(crate) fn set(&mut self, now: Monotonic, name: &Name, known: Known) {
        self.sorted = None;
        match self.names.get_mut(name) {
            Some(dentry) => {
                dentry.known = Some(known);
                dentry.fetched = now;
            }
            None => self.add(name, Dentry::new(Some(known), now)),
        }
    }

    /// What is known of the name is wrong.
    pub(crate) fn doubt(&mut self, name: &Name) {
        self.sorted = None;
        if let Some(dentry) = self.names.get_mut(name) {
            dentry.known = None;
        }
    }

    /// Whether the kernel may keep what it is told of the name now; notes that it does.
    pub(crate) fn give(&mut self, now: Monotonic, name: &Name, known: Known, until: Monotonic) -> bool {
        let is_directory = matches!(known, Known::Present { kind: FileKind::Directory, .. });
        if self.contended_until > now || (is_directory && self.subdirectories_contended_until > now) {
            return false;
        }
        if is_directory {
            self.subdirectory_given = now;
        }
        self.given_to_kernel(now, name, until);
        true
    }

    /// The directory is recalled: other machines want it, and change it unless `keep` stays here.
    pub(crate) fn note_contended(&mut self, now: Monotonic, lock: NamesLock, keep: Option<Mode>) {
        match lock {
            NamesLock::Directory => self.contended_until = now + CONTENDED,
            NamesLock::None if keep.is_some() => {}
            NamesLock::None => {
                let given = self.subdirectory_given;
                let too_new = given > Monotonic::ZERO && given + TAKEN_IN > now;
                let until = now + if too_new { CONTENDED } else { QUIET };
                self.subdirectories_contended_until = self.subdirectories_contended_until.max(until);
            }
        }
    }

    /// Notes that the kernel may keep what it was told of the name.
    pub(crate) fn given_to_kernel(&mut self, now: Monotonic, name: &Name, until: Monotonic) {
        self.kernel_any_until = self.kernel_any_until.max(until);
        match self.names.get_mut(name) {
            Some(dentry) => dentry.kernel_until = dentry.kernel_until.max(until),
            None => {
                let known = (self.complete == Complete::Yes).then_some(Known::Absent);
                let dentry = Dentry { kernel_until: until, ..Dentry::new(known, now) };
                self.add(name, dentry);
            }
        }
    }

    /// Until when the kernel may use what it was told of the name.
    pub(crate) fn kernel_until(&self, name: &Name) -> Monotonic {
        self.told_until(name).max(self.kernel_all_until)
    }

    /// Until when the kernel may use what it was told of just this name.
    pub(crate) fn told_until(&self, name: &Name) -> Monotonic {
        self.names.get(name).map_or(Monotonic::ZERO, |dentry| dentry.kernel_until)
    }

    pub(crate) fn kernel_holds_names(&self, now: Monotonic) -> bool {
        self.kernel_any_until > Monotonic::ZERO && self.kernel_any_until + KERNEL_LAG > now
    }

    /// What the kernel may still hold; more than `at_once` of them are "all".
    pub(crate) fn kernel_names(&self, now: Monotonic, at_once: usize) -> Option<Names> {
        if self.kernel_all_until + KERNEL_LAG > now && self.kernel_all_until > Monotonic::ZERO {
            return Some(Names::All);
        }
        let held =
            |dentry: &Dentry| dentry.kernel_until > Monotonic::ZERO && dentry.kernel_until + KERNEL_LAG > now;
        let mut found: Vec<Name> =
            self.names.iter().filter(|(_, dentry)| held(dentry)).map(|(name, _)| name.clone()).collect();
        match found.len() {
            0 => None,
            count if count <= at_once => {
                found.sort_unstable();
                Some(Names::These(found))
            }
            _ => Some(Names::All),
        }
    }

    /// The kernel was told to forget everything that it held up to now.
    pub(crate) fn kernel_dropped(&mut self) {
        (self.kernel_all_until, self.kernel_any_until) = (Monotonic::ZERO, Monotonic::ZERO);
        for dentry in self.names.values_mut() {
            dentry.kernel_until = Monotonic::ZERO;
        }
    }

    /// As [`Directory::clear`] while the lease goes on: answers to questions from before must not be entered any more.
    pub(crate) fn shed(&mut self, now: Monotonic) {
        self.clear();
        self.cleared = now;
    }

    /// Nothing is known any more, except what the kernel may hold and which names are in flight.
    pub(crate) fn clear(&mut self) {
        self.times_cleared += 1;
        self.forget_asked();
        self.complete = Complete::No;
        self.parent = None;
        self.sorted = None;
        let kept_by_kernel = self.names.values().map(|dentry| dentry.kernel_until).max().unwrap_or_default();
        self.kernel_all_until = self.kernel_all_until.max(kept_by_kernel);
        self.names.retain(|_, dentry| dentry.in_flight > 0);
        self.names.shrink_to_fit();
        self.bytes = self.names.keys().map(bytes_of).sum();
        for dentry in self.names.values_mut() {
            dentry.known = None;
            dentry.kernel_until = Monotonic::ZERO;
        }
    }

    pub(crate) fn times_cleared(&self) -> u64 {
        self.times_cleared
    }

    /// When names were last dropped.
    pub(crate) fn cleared(&self) -> Monotonic {
        self.cleared
    }

    /// The directory that `..` means.
    pub(crate) fn parent(&self) -> Option<Fid> {
        self.parent
    }

    pub(crate) fn set_parent(&mut self, parent: Fid) {
        if self.parent != Some(parent) {
            self.sorted = None;
            self.parent = Some(parent);
        }
    }

    /// What another process is to know of it.
    pub(super) fn hand_over(&self) -> HandedDirectory {
        let settled = |dentry: &Dentry| dentry.known.filter(|_| dentry.in_flight == 0);
        let known = |(name, dentry): (&Name, &Dentry)| Some((name.clone(), settled(dentry)?));
        let names: Vec<(Name, Known)> = self.names.iter().filter_map(known).collect();
        // A name that is not known here must not be taken for absent there.
        let complete = if names.len() == self.names.len() { self.complete } else { Complete::No };
        HandedDirectory { complete, parent: self.parent, names }
    }

    pub(super) fn handed(now: Monotonic, handed: HandedDirectory) -> Directory {
        let HandedDirectory { complete, parent, names } = handed;
        let mut dir = Directory { complete, parent, ..Directory::default() };
        names.iter().for_each(|(name, known)| dir.add(name, Dentry::new(Some(*known), now)));
        dir
    }

    /// Whether a listing of all names is made once for all readers, as long as none changes.
    pub(crate) fn keeps_listing(&self) -> bool {
        self.complete == Complete::Yes && self.names.len() <= MOST_SORTED
    }

    /// As [`Directory::list`], but only what need not be made.
    pub(crate) fn listed(&self) -> Option<&Whole> {
        self.sorted.as_ref().filter(|_| self.complete == Complete::Yes)
    }

    /// All present names in order, if they are all known: `None` otherwise.
    pub(crate) fn list(&mut self) -> Option<Whole> {
        if self.complete == Complete::No {
            return None;
        }
        if let Some(sorted) = &self.sorted {
            return Some(sorted.clone());
        }
        let mut all = Vec::with_capacity(self.names.len());
        for (name, dentry) in &self.names {
            match (dentry.in_flight, dentry.known) {
                (0, Some(Known::Present { fid, kind })) => all.push(Listed { name: name.clone(), fid, kind }),
                (0, Some(Known::Absent)) => {}
                _ => return None,
            }
        }
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let sorted = Whole { listed: all.into(), edition: Edition::default() };
        if sorted.listed.len() <= MOST_SORTED {
            self.sorted = Some(sorted.clone());
        }
        Some(sorted)
    }
}

fn bytes_of(name: &Name) -> u64 {
    NAME_BYTES + name.as_bytes().len() as u64
}

impl Dentry {
    fn new(known: Option<Known>, now: Monotonic) -> Dentry {
        Dentry { known, in_flight: 0, fetched: now, kernel_until: Monotonic::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use soda_types::{Ino, VolumeId};

    fn name(text: &str) -> Name {
        Name::try_from(text).unwrap()
    }

    fn at(secs: u64) -> Monotonic {
        Monotonic::from_nanos(secs * 1_000_000_000)
    }

    fn file(ino: u64) -> Known {
        Known::Present { fid: Fid::new(VolumeId(1), Ino(ino)), kind: FileKind::File }
    }

    #[test]
    fn names_that_collide_in_one_directory_do_not_in_another() {
        use std::hash::BuildHasher;
        let hash = |dir: &Directory| dir.names.hasher().hash_one(name("chosen by anybody"));
        assert_ne!(hash(&Directory::default()), hash(&Directory::default()));
    }

    #[test]
    fn names_of_directories_are_old_enough_to_be_taken_back_gently() {
        let mut dir = Directory::default();
        let below = Known::Present { fid: Fid::new(VolumeId(1), Ino(9)), kind: FileKind::Directory };
        assert!(dir.give(at(1), &name("d"), below, at(99)));
        dir.note_contended(at(5), NamesLock::None, None);
        assert!(!dir.give(at(6), &name("d"), below, at(99)), "may be too new at the next recall");
        assert!(dir.give(at(6), &name("f"), file(7), at(99)), "nobody works in a file");
        assert!(dir.give(at(7), &name("d"), below, at(99)));
        dir.note_contended(at(7), NamesLock::None, Some(Mode::Read));
        assert!(dir.give(at(7), &name("d"), below, at(99)), "nothing was taken back");
        dir.note_contended(at(7), NamesLock::None, None);
        assert!(!dir.give(at(16), &name("d"), below, at(99)), "it was too new");
        assert!(dir.give(at(17), &name("d"), below, at(99)));
    }

    #[test]
    fn only_a_complete_directory_knows_what_is_absent() {
        let mut dir = Directory::default();
        assert_eq!(dir.find(&name("a"), at(0)), None);
        dir.learn(at(2), at(1), &name("a"), file(7));
        assert_eq!(dir.find(&name("a"), at(0)), Some(file(7)));
        assert!(dir.list().is_none());
        dir.complete = Complete::Yes;
        assert_eq!(dir.find(&name("b"), at(0)), Some(Known::Absent));
        assert_eq!(dir.list().unwrap().listed.len(), 1);
    }

    #[test]
    fn names_are_weighed_as_they_come_and_go() {
        let weigh = |dir: &Directory| dir.names.keys().map(bytes_of).sum::<u64>();
        let (a, long) = (name("a"), name(&"l".repeat(255)));
        let mut dir = Directory::default();
        dir.learn(at(2), at(1), &a, file(7));
        dir.learn(at(4), at(3), &a, file(8));
        dir.begin_change(at(5), &long);
        dir.begin_change(at(5), &long);
        dir.set(at(6), &a, Known::Absent);
        dir.given_to_kernel(at(6), &name("b"), at(9));
        assert_eq!((dir.len(), dir.bytes()), (3, weigh(&dir)));
        assert!(dir.bytes() > 3 * NAME_BYTES + 255);
        dir.clear();
        assert_eq!((dir.len(), dir.bytes()), (1, bytes_of(&long)), "it is in flight");
        dir.end_change(at(7), &long, None);
        dir.end_change(at(8), &long, None);
        assert_eq!((dir.len(), dir.bytes()), (0, 0));
    }

    #[test]
    fn a_listing_is_made_once_and_anew_when_a_name_changes() {
        let texts =
            |whole: Whole| -> Vec<Name> { whole.listed.iter().map(|listed| listed.name.clone()).collect() };
        let mut dir = Directory { complete: Complete::Yes, ..Directory::default() };
        dir.learn(at(2), at(1), &name("b"), file(2));
        dir.learn(at(2), at(1), &name("a"), file(1));
        let first = dir.list().unwrap();
        dir.learn(at(4), at(3), &name("a"), file(1));
        dir.given_to_kernel(at(4), &name("absent"), at(9));
        assert_eq!(dir.listed().map(|whole| &whole.edition), Some(&first.edition));
        assert_eq!(dir.list().unwrap().edition, first.edition);
        assert_eq!(texts(first.clone()), [name("a"), name("b")]);
        dir.learn(at(6), at(5), &name("a"), file(7));
        assert!(dir.listed().is_none());
        assert_eq!(dir.list().unwrap().listed[0].fid.ino, Ino(7));
        assert_ne!(dir.list().unwrap().edition, first.edition);
        let second = dir.list().unwrap();
        dir.set_parent(Fid::new(VolumeId(1), Ino(5)));
        assert_ne!(dir.list().unwrap().edition, second.edition, "`..` is another one");
        let third = dir.list().unwrap();
        dir.set_parent(Fid::new(VolumeId(1), Ino(5)));
        assert_eq!(dir.list().unwrap().edition, third.edition);
        dir.begin_change(at(7), &name("b"));
        assert!(dir.list().is_none());
        dir.end_change(at(8), &name("b"), Some(Known::Absent));
        assert_eq!(texts(dir.list().unwrap()), [name("a")]);
        dir.learn(at(9), at(8), &name("c"), file(3));
        assert_eq!(texts(dir.list().unwrap()), [name("a"), name("c")]);
        dir.clear();
        assert!(dir.list().is_none() && dir.listed().is_none());
    }

    #[test]
    fn an_answer_from_before_an_own_change_is_not_entered() {
        let mut dir = Directory::default();
        dir.begin_change(at(2), &name("a"));
        dir.learn(at(3), at(1), &name("a"), file(7));
        assert_eq!(dir.find(&name("a"), at(0)), None, "in flight");
        dir.end_change(at(4), &name("a"), Some(Known::Absent));
        dir.learn(at(5), at(1), &name("a"), file(7));
        assert_eq!(dir.find(&name("a"), at(0)), Some(Known::Absent));
        dir.shed(at(6));
        dir.learn(at(7), at(1), &name("a"), file(7));
        assert_eq!(dir.find(&name("a"), at(0)), None, "asked before the names were dropped");
    }

    #[test]
    fn two_changes_of_a_name_at_once_leave_it_unknown() {
        let mut dir = Directory { complete: Complete::Yes, ..Directory::default() };
        dir.begin_change(at(1), &name("a"));
        dir.begin_change(at(1), &name("a"));
        dir.end_change(at(2), &name("a"), Some(file(1)));
        assert_eq!(dir.find(&name("a"), at(0)), None);
        dir.end_change(at(3), &name("a"), Some(Known::Absent));
        assert_eq!(dir.list().map(|all| all.listed.len()), Some(0));
    }

    #[test]
    fn a_failed_change_in_a_complete_directory_is_asked_again() {
        let mut dir = Directory { complete: Complete::Yes, ..Directory::default() };
        dir.begin_change(at(1), &name("a"));
        dir.end_change(at(2), &name("a"), None);
        assert_eq!(dir.find(&name("a"), at(0)), None);
        assert!(dir.list().is_none());
        assert_eq!(dir.find(&name("b"), at(0)), Some(Known::Absent));
    }

    #[test]
    fn the_kernel_is_only_told_of_names_that_it_may_hold() {
        let mut dir = Directory { complete: Complete::Yes, ..Directory::default() };
        assert_eq!(dir.kernel_names(at(1), 9), None);
        assert!(!dir.kernel_holds_names(at(1)));
        dir.given_to_kernel(at(1), &name("a"), at(9));
        dir.learn(at(2), at(1), &name("b"), file(2));
        assert_eq!(dir.kernel_names(at(2), 9), Some(Names::These(vec![name("a")])));
        assert!(dir.kernel_holds_names(at(2)));
        assert_eq!(dir.kernel_names(at(11), 9), None);
        assert!(!dir.kernel_holds_names(at(11)));
        dir.clear();
        assert_eq!(dir.kernel_names(at(4), 9), Some(Names::All));
        assert!(dir.kernel_holds_names(at(4)), "whatever is known of them here");
        dir.kernel_dropped();
        assert_eq!(dir.kernel_names(at(4), 9), None);
        assert!(!dir.kernel_holds_names(at(4)));
    }
}
