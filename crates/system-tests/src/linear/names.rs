//! The names in one directory, and the renames that two machines make at once.

use super::object::{Answer, Call, Operation};
use std::collections::BTreeMap;

/// The names in a directory, and what it depends on whether a rename that finds nothing to do may be answered with success.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Names {
    entries: BTreeMap<u8, u64>,
    /// The last rename that was made of each pair of names, as long as neither of them has been changed since.
    renamed: BTreeMap<(u8, u8), Renamed>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Renamed {
    by: u16,
    /// `None`: nobody knows when, or whether, it ended.
    returned: Option<u64>,
}

impl Names {
    /// Another client's rename of the same two names came just before, and overlaps `call` in time. Linux looks the two
    /// names up one after the other. If another machine makes the same rename in between, it finds one inode at both,
    /// which is no work and no error (SEMANTICS 9). Whatever happens to the names after that comes after `call` too.
    pub(super) fn were_just_renamed(&self, from: u8, to: u8, call: &Call) -> bool {
        self.renamed.get(&(from, to)).is_some_and(|made| {
            made.by != call.client && made.returned.is_none_or(|returned| call.called <= returned)
        })
    }

    pub(super) fn is_missing(&self, name: u8) -> bool {
        !self.entries.contains_key(&name)
    }

    /// Does what `call` asks for; says what one copy answers.
    pub(super) fn apply(&mut self, call: &Call) -> Answer {
        match &call.operation {
            Operation::Create { name, .. } if self.entries.contains_key(name) => Answer::Exists,
            Operation::Create { name, id } => {
                self.change(*name, Some(*id));
                Answer::Done
            }
            Operation::Remove { name } if self.entries.contains_key(name) => {
                self.change(*name, None);
                Answer::Done
            }
            Operation::RenameNew { to, .. } if self.entries.contains_key(to) => Answer::Exists,
            Operation::Rename { from, to } | Operation::RenameNew { from, to }
                if self.entries.contains_key(from) =>
            {
                self.rename(*from, *to, call);
                Answer::Done
            }
            Operation::Exchange { one, other }
                if self.entries.contains_key(one) && self.entries.contains_key(other) =>
            {
                let id = self.change(*one, self.entries.get(other).copied());
                self.change(*other, id);
                Answer::Done
            }
            Operation::Remove { .. }
            | Operation::Rename { .. }
            | Operation::RenameNew { .. }
            | Operation::Exchange { .. } => Answer::Missing,
            Operation::Lookup { name } => {
                self.entries.get(name).map_or(Answer::Missing, |id| Answer::Found(*id))
            }
            Operation::List => Answer::Names(self.entries.keys().copied().collect()),
            other => panic!("names have no {other:?}"),
        }
    }

    fn rename(&mut self, from: u8, to: u8, call: &Call) {
        let returned = call.returned.as_ref().map(|(returned, _)| *returned);
        let mut renamed = vec![((from, to), Renamed { by: call.client, returned })];
        // What came to `from` by a rename itself, has now come all the way.
        let earlier = self.renamed.iter().filter(|((_, through), _)| *through == from);
        renamed.extend(earlier.map(|((first, _), made)| ((*first, to), *made)));
        renamed.retain(|((first, last), _)| first != last);
        let id = self.change(from, None);
        self.change(to, id);
        self.renamed.extend(renamed);
    }

    /// What the name led to until now.
    fn change(&mut self, name: u8, leads_to: Option<u64>) -> Option<u64> {
        self.renamed.retain(|(from, to), _| *from != name && *to != name);
        match leads_to {
            Some(id) => self.entries.insert(name, id),
            None => self.entries.remove(&name),
        }
    }
}
