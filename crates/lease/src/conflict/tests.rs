use super::*;
use std::collections::BTreeSet;

/// A small tree, each object with its chain of ancestors: /, /a, /a/b, /a/b/c, /a/d, /e
const TREE: [&str; 6] = ["/", "/a/", "/a/b/", "/a/b/c/", "/a/d/", "/e/"];
const SCOPES: [Scope; 2] = [Scope::Node, Scope::Subtree];
const MODES: [Mode; 2] = [Mode::Read, Mode::Write];

fn covered(object: &str, scope: Scope) -> BTreeSet<&'static str> {
    let inside = |other: &&&str| **other == object || (scope == Scope::Subtree && other.starts_with(object));
    TREE.iter().filter(inside).copied().collect()
}

fn place(held: &str, asked: &str) -> Place {
    match (held == asked, asked.starts_with(held), held.starts_with(asked)) {
        (true, _, _) => Place::Same,
        (_, true, _) => Place::Above,
        (_, _, true) => Place::Below,
        _ => Place::Elsewhere,
    }
}

fn all() -> impl Iterator<Item = (&'static str, Reach)> {
    TREE.iter().flat_map(|object| {
        SCOPES.iter().flat_map(move |scope| {
            MODES.iter().map(move |mode| (*object, Reach { scope: *scope, mode: *mode }))
        })
    })
}

#[test]
fn conflict_is_a_common_object_and_a_writer() {
    for (held_at, held) in all() {
        for (asked_at, asked) in all() {
            let common = !covered(held_at, held.scope).is_disjoint(&covered(asked_at, asked.scope));
            let conflict = common && (held.mode == Mode::Write || asked.mode == Mode::Write);
            let found = concession(held, place(held_at, asked_at), asked);
            assert_eq!(found != Concession::Nothing, conflict, "{held:?} {held_at} {asked:?} {asked_at}");
        }
    }
}

#[test]
fn after_the_concession_there_is_no_conflict() {
    for (held_at, held) in all() {
        for (asked_at, asked) in all() {
            let place = place(held_at, asked_at);
            if concession(held, place, asked) == Concession::LowerToRead {
                let lowered = Reach { mode: Mode::Read, ..held };
                assert_eq!(concession(lowered, place, asked), Concession::Nothing);
            }
        }
    }
}

#[test]
fn conflict_is_symmetric() {
    for (one_at, one) in all() {
        for (other_at, other) in all() {
            let there = concession(one, place(one_at, other_at), other) == Concession::Nothing;
            let back = concession(other, place(other_at, one_at), one) == Concession::Nothing;
            assert_eq!(there, back);
        }
    }
}

#[test]
fn covering_means_all_objects_and_at_least_the_mode() {
    for (held_at, held) in all() {
        for (asked_at, asked) in all() {
            let enough = covered(asked_at, asked.scope).is_subset(&covered(held_at, held.scope))
                && held.mode >= asked.mode;
            // A node lease on a leaf covers what a deep one would; the rules do not know that it is a leaf.
            let leaf = held.scope == Scope::Node && asked.scope == Scope::Subtree;
            assert_eq!(covers(held, place(held_at, asked_at), asked), enough && !leaf);
        }
    }
}

/// The ancestry table: counting below each ancestor finds the same conflicts for a deep lease as walking the tree.
#[test]
fn counts_below_each_directory_replace_the_walk() {
    for (asked_at, asked) in all().filter(|(_, asked)| asked.scope == Scope::Subtree) {
        for (held_at, held) in all() {
            let mut writers_below = vec![0; TREE.len()];
            let mut leases_below = vec![0; TREE.len()];
            for (at, ancestor) in TREE.iter().enumerate() {
                if held_at != *ancestor && held_at.starts_with(ancestor) {
                    leases_below[at] += 1;
                    writers_below[at] += u32::from(held.mode == Mode::Write);
                }
            }
            let at = TREE.iter().position(|object| *object == asked_at).unwrap();
            let counted = if asked.mode == Mode::Write { leases_below[at] } else { writers_below[at] };
            let walked = place(held_at, asked_at) == Place::Below
                && concession(held, Place::Below, asked) != Concession::Nothing;
            assert_eq!(counted > 0, walked);
        }
    }
}
