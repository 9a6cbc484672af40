//! Linearizability: could these overlapping operations have happened one after the other on one copy, each at a moment
//! between its call and its return?
//!
//! * [`History`] is what was observed, [`check`] the verdict for all of it.
//! * A mount that delays its writes may lose what it has acknowledged ([`Loss`]): then the copy goes back to what it was at some
//!   moment since when that mount alone had used it, and stays so. `branch` is that.
//! * [`object`] has the words; `state` says what each kind of object may answer. Linearizability is local (Herlihy & Wing,
//!   "Linearizability: A Correctness Condition for Concurrent Objects", 1990, theorem 1), so every object is searched by itself.
//! * [`search`] is the search.

mod branch;
mod directories;
mod names;
pub mod object;
mod ranges;
pub mod search;
mod state;

use object::{Answer, Object, Operation};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use object::Call;
pub use ranges::PARTS;
pub use search::Verdict;

/// What all clients saw.
#[derive(Clone, Default, Debug, Serialize)]
pub struct History {
    /// What repeats the run.
    pub reproduce: String,
    pub calls: Vec<Call>,
    /// Thread n works on mount n modulo this.
    pub mounts: u16,
    /// In the order of their times, 64 at most.
    pub losses: Vec<Loss>,
}

/// A mount lost changes that it had acknowledged and not told the server, and said so.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Loss {
    pub mount: u16,
    /// Nanoseconds of `CLOCK_MONOTONIC`: it was not before.
    pub since: u64,
    /// Nor after.
    pub until: u64,
}

/// What is wrong with a history.
#[derive(Clone, Debug, Serialize)]
pub struct Violation {
    pub object: Object,
    pub verdict: Verdict,
    /// The calls on that object around the place where no order could go on.
    pub calls: Vec<Call>,
}

/// Checks every object of the history. Empty: linearizable.
pub fn check(history: &History) -> Vec<Violation> {
    let mut objects: BTreeMap<Object, Vec<Call>> = BTreeMap::new();
    for call in &history.calls {
        objects.entry(call.object).or_default().push(call.clone());
    }
    let mut violations = Vec::new();
    for (object, mut calls) in objects {
        calls.sort_by_key(|call| call.called);
        drop_unseen(&mut calls);
        if object.may_be_lost() {
            insert_losses(object, &mut calls, &history.losses);
        }
        let verdict = search::search(object, &calls, history.mounts.max(1));
        if verdict == Verdict::Linearizable {
            continue;
        }
        let nearby = match &verdict {
            Verdict::Impossible { stuck_at, .. } => {
                let (from, to) = (stuck_at.saturating_sub(40), (stuck_at + 20).min(calls.len()));
                calls[from..to].to_vec()
            }
            _ => calls,
        };
        violations.push(Violation { object, verdict, calls: nearby });
    }
    violations
}

/// For each loss two calls: that the mount is ahead from some moment on, which may or may not be; and that what it did since is
/// lost.
fn insert_losses(object: Object, calls: &mut Vec<Call>, losses: &[Loss]) {
    for (number, Loss { mount, since, until }) in losses.iter().enumerate() {
        let earlier = losses[..number].iter().filter(|earlier| earlier.mount == *mount);
        let ahead_since = earlier.map(|earlier| earlier.since).max().unwrap_or(0);
        let (client, loss) = (*mount, number as u8);
        let ahead = Operation::Ahead { mount: *mount, loss };
        calls.push(Call { client, object, operation: ahead, called: ahead_since, returned: None });
        let (lose, returned) = (Operation::Lose { mount: *mount, loss }, Some((*until, Answer::Done)));
        calls.push(Call { client, object, operation: lose, called: *since, returned });
    }
    calls.sort_by_key(|call| call.called);
}

/// Takes out the writes and appends without an answer whose value nobody has seen. An order that has one of them is an
/// order without it as well, and each that is left doubles the orders to try.
fn drop_unseen(calls: &mut Vec<Call>) {
    let mut seen = HashSet::new();
    for call in calls.iter() {
        match &call.returned {
            Some((_, Answer::Value(value))) => {
                seen.insert(*value);
            }
            Some((_, Answer::Records(records))) => seen.extend(records),
            _ => {}
        }
    }
    calls.retain(|call| match call.operation {
        Operation::Write(value) | Operation::Append(value) => {
            call.returned.is_some() || seen.contains(&value)
        }
        _ => true,
    });
}

/// Checks, and leaves a dump with the whole history where one is wrong.
///
/// # Panics
/// If the history is not linearizable, saying where the dump is and what repeats the run.
pub fn assert_linearizable(history: &History) {
    let violations = check(history);
    if violations.is_empty() {
        return;
    }
    let path = dump(history, &violations);
    let first = &violations[0];
    let mut story = String::new();
    for call in &first.calls {
        story.push_str(&format!("  {call:?}\n"));
    }
    panic!(
        "{} of the objects are not linearizable; first {:?}: {:?}\n{story}history: {}\nrepeat with: {}",
        violations.len(),
        first.object,
        first.verdict,
        path.display(),
        history.reproduce
    );
}

fn dump(history: &History, violations: &[Violation]) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("soda-history-{}-{number}.json", std::process::id()));
    let document = serde_json::json!({ "violations": violations, "history": history });
    match serde_json::to_vec_pretty(&document) {
        Ok(bytes) => {
            if let Err(error) = std::fs::write(&path, bytes) {
                eprintln!("{}: {error}", path.display());
            }
        }
        Err(error) => eprintln!("history cannot be written as JSON: {error}"),
    }
    path
}
