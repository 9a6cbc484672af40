//! What programs do next, by what they believe that names mean.

use super::Delayed;
use crate::client::Client;
use crate::context::Context;
use crate::deed::{Deed, is_directory};
use crate::layout::Tree;
use crate::message::Call;
use crate::register::{Content, Object, Register};

/// What a program does next.
#[derive(Clone, Debug)]
pub(in crate::client) enum Plan {
    Call(Call),
    Sync(Object),
}

/// Most names of a file.
const MOST_NAMES: u8 = 4;

impl Client {
    pub(in crate::client) fn choose_delayed(&mut self, context: &mut Context) -> Plan {
        if context.config.layout().tree == Tree::Deep {
            return self.choose_in_tree(context);
        }
        let Some(delayed) = &mut self.delayed else { return Plan::Sync(0) };
        let objects: Vec<Object> =
            (0..Object::from(context.config.objects)).chain(delayed.known.iter().copied()).collect();
        let pick = |context: &mut Context| Register {
            object: context.rng.pick(&objects),
            cell: context.rng.below(u64::from(context.config.cells)) as u8,
        };
        let at = pick(context);
        if context.rng.chance(1, context.config.fsync_every) {
            return Plan::Sync(at.object);
        }
        if context.rng.below(100) >= context.config.changes_percent {
            // Not at directories: what they name the server may never have heard of.
            let looks = !is_directory(at.object) && context.rng.chance(1, 2);
            return Plan::Call(if looks { Call::Look(at) } else { Call::Read(at) });
        }
        if !is_directory(at.object) {
            return Plan::Call(Call::Do(Deed::Write(at)));
        }
        let deed = match delayed.view.get(&at) {
            Some(Content::Blank) => {
                delayed.last_object += 2;
                let is_file = context.rng.chance(2, 3);
                Some(Deed::Create { at, object: delayed.last_object + Object::from(is_file) })
            }
            Some(Content::Names(object)) => {
                let to = pick(context);
                let replaced = match delayed.view.get(&to) {
                    Some(Content::Blank) => Some(None),
                    Some(Content::Names(other)) if !is_directory(*other) && other != object => {
                        Some(Some(*other))
                    }
                    _ => None,
                };
                match replaced {
                    Some(replaced) if !is_directory(*object) && is_directory(to.object) && to != at => {
                        Some(Deed::Rename {
                            from: at,
                            to,
                            moved: *object,
                            replaced: replaced.map(|other| (other, 0)),
                        })
                    }
                    _ => Some(Deed::Remove { at, object: *object, left: 0 }),
                }
            }
            _ => None,
        };
        Plan::Call(deed.map_or(Call::Read(at), Call::Do))
    }

    /// Mostly in the client's own corner of the tree, and in what it has come to know.
    fn choose_in_tree(&mut self, context: &mut Context) -> Plan {
        let layout = context.config.layout();
        let Some(delayed) = &mut self.delayed else { return Plan::Sync(0) };
        let corners = layout.objects / 2 - 1;
        let corner = 2 + 2 * (self.number as Object % corners);
        let near: Vec<Object> =
            [corner, corner + 1].into_iter().chain(delayed.known.iter().copied()).collect();
        let all: Vec<Object> = (0..layout.objects).chain(delayed.known.iter().copied()).collect();
        let pick = |context: &mut Context| {
            let objects = if context.rng.chance(3, 4) { &near } else { &all };
            let (object, cell) = (context.rng.pick(objects), context.rng.below(layout.cells.into()) as u8);
            Register { object, cell }
        };
        let at = pick(context);
        if context.rng.chance(1, context.config.fsync_every) {
            return Plan::Sync(at.object);
        }
        if context.rng.below(100) >= context.config.changes_percent {
            let attributes = context.rng.chance(1, 4);
            return Plan::Call(Call::Read(if attributes { Register::attributes(at.object) } else { at }));
        }
        if !is_directory(at.object) {
            let to = pick(context);
            return Plan::Call(match delayed.choose_link(context, at.object, to) {
                Some(call) => call,
                None => Call::Do(Deed::Write(at)),
            });
        }
        Plan::Call(match delayed.view.get(&at) {
            Some(Content::Blank) => {
                delayed.last_object += 2;
                let is_file = context.rng.chance(1, 2);
                Call::Do(Deed::Create { at, object: delayed.last_object + Object::from(is_file) })
            }
            Some(Content::Names(object)) if context.rng.chance(1, 2) => {
                delayed.choose_rename(at, pick(context), *object)
            }
            Some(Content::Names(object)) if is_directory(*object) => {
                Call::Do(Deed::Remove { at, object: *object, left: 0 })
            }
            Some(Content::Names(object)) => match delayed.view.get(&Register::attributes(*object)) {
                Some(Content::Links(names)) => {
                    Call::Do(Deed::Remove { at, object: *object, left: names.saturating_sub(1) })
                }
                _ => Call::Read(Register::attributes(*object)),
            },
            _ => Call::Read(at),
        })
    }
}

impl Delayed {
    /// Now and then another name for the file.
    fn choose_link(&self, context: &mut Context, object: Object, at: Register) -> Option<Call> {
        if !context.rng.chance(1, 4) || !is_directory(at.object) {
            return None;
        }
        match (self.view.get(&Register::attributes(object)), self.view.get(&at)) {
            (None, _) => Some(Call::Read(Register::attributes(object))),
            (Some(Content::Links(names)), Some(Content::Blank)) if *names < MOST_NAMES => {
                Some(Call::Do(Deed::Link { at, object, names: *names }))
            }
            _ => None,
        }
    }

    /// Of `moved`, which lies at `from`; perhaps in the place of another file.
    fn choose_rename(&self, from: Register, to: Register, moved: Object) -> Call {
        if !is_directory(to.object) || to == from {
            return Call::Read(from);
        }
        match self.view.get(&to) {
            Some(Content::Blank) => Call::Do(Deed::Rename { from, to, moved, replaced: None }),
            Some(Content::Names(other))
                if !is_directory(moved) && !is_directory(*other) && *other != moved =>
            {
                match self.view.get(&Register::attributes(*other)) {
                    Some(Content::Links(names)) => {
                        let replaced = Some((*other, names.saturating_sub(1)));
                        Call::Do(Deed::Rename { from, to, moved, replaced })
                    }
                    _ => Call::Read(Register::attributes(*other)),
                }
            }
            _ => Call::Read(to),
        }
    }
}
