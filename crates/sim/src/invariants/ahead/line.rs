//! The values of one register, in the order in which they were made.

use crate::register::Value;
use std::fmt;

#[derive(Clone)]
pub(super) struct Line {
    values: Vec<Value>,
    /// What the server has.
    applied: usize,
    /// The last that was completed or seen.
    required: usize,
    /// fsync has returned for it.
    durable: usize,
    /// What comes after is in limbo.
    limbo: Option<usize>,
}

impl Default for Line {
    fn default() -> Line {
        Line { values: vec![Value::default()], applied: 0, required: 0, durable: 0, limbo: None }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.values.len().saturating_sub(6).min(self.applied);
        write!(
            f,
            "server {}, completed {}, synced {}, limbo {:?}, from {start}:",
            self.applied, self.required, self.durable, self.limbo
        )?;
        self.values[start..].iter().try_for_each(|value| write!(f, " {:?}", value.stamp.by))
    }
}

impl Line {
    pub(super) fn applied(&self) -> usize {
        self.applied
    }

    pub(super) fn required(&self) -> usize {
        self.required
    }

    pub(super) fn durable(&self) -> usize {
        self.durable
    }

    pub(super) fn end(&self) -> usize {
        self.values.len() - 1
    }

    pub(super) fn get(&self, at: usize) -> Option<Value> {
        self.values.get(at).copied()
    }

    pub(super) fn last(&self) -> Value {
        self.values.last().copied().unwrap_or_default()
    }

    pub(super) fn position(&self, value: Value) -> Option<usize> {
        self.values.iter().rposition(|one| *one == value)
    }

    pub(super) fn push(&mut self, value: Value) {
        self.values.push(value);
    }

    /// Nobody may see anything older from now on.
    pub(super) fn require(&mut self, at: usize) {
        let most = self.limbo.unwrap_or(usize::MAX);
        self.required = self.required.max(at.min(most));
    }

    /// This one and what came after it need not be seen any more.
    pub(super) fn release(&mut self, value: Value) {
        if let Some(at) = self.position(value) {
            self.required = self.required.min(at.saturating_sub(1));
        }
    }

    /// The server has come so far.
    pub(super) fn apply(&mut self, at: usize) {
        self.applied = at;
        if self.limbo.is_some_and(|limbo| limbo < at) {
            self.limbo = None;
        }
    }

    pub(super) fn survive(&mut self, at: usize) {
        self.durable = self.durable.max(at);
    }

    /// Takes off the values from `at` on.
    pub(super) fn cut(&mut self, at: usize) -> Vec<Value> {
        let at = at.max(1).min(self.values.len());
        self.required = self.required.min(at - 1);
        self.applied = self.applied.min(at - 1);
        self.values.split_off(at)
    }

    /// The values from `at` on are lost. Who has them in its caches and has not heard of that may still see them.
    pub(super) fn doom(&mut self, at: usize) -> Vec<Value> {
        self.required = self.required.min(at.saturating_sub(1));
        self.values[at..].to_vec()
    }

    /// What comes after what the server has is lost, and what comes after that is not.
    pub(super) fn remove_next(&mut self) {
        let next = self.applied + 1;
        self.values.remove(next);
        if self.required >= next {
            self.required -= 1;
        }
    }

    /// The server has only so much; returns what it has lost.
    pub(super) fn roll_back(&mut self, at: usize) -> Vec<Value> {
        let lost = self.values[at + 1..=self.applied].to_vec();
        self.applied = at;
        lost
    }

    pub(super) fn begin_limbo(&mut self) {
        self.limbo = Some(self.applied);
        self.required = self.required.min(self.applied);
    }

    pub(super) fn is_in_limbo(&self, at: usize) -> bool {
        self.limbo.is_some_and(|limbo| limbo < at)
    }
}
