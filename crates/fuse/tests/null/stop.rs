//! Threads that bring requests, and wait until they are told to go on.

use super::Null;
use std::sync::{Condvar, Mutex};

/// Where a thread that brings a request waits.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Place {
    Before,
    /// It has answered, attributes.
    Behind,
}

#[derive(Debug, Default)]
pub(super) struct Stop {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    at: Option<Place>,
    /// So many are not to wait.
    let_through: usize,
    waiting: usize,
}

impl Null {
    /// From here on nothing is taken in hand: the thread that brings a request waits.
    pub(crate) fn stop(&self) {
        self.stop_at(Place::Before);
    }

    pub(super) fn stop_at(&self, place: Place) {
        self.stop.state.lock().unwrap().at = Some(place);
    }

    pub(super) fn wait_at(&self, place: Place) {
        let mut state = self.stop.state.lock().unwrap();
        if state.at != Some(place) {
            return;
        }
        state.waiting += 1;
        let waits = |state: &mut State| state.at == Some(place) && state.let_through == 0;
        let mut state = self.stop.changed.wait_while(state, waits).unwrap();
        state.waiting -= 1;
        if state.at == Some(place) {
            state.let_through -= 1;
        }
    }

    pub(crate) fn go_on(&self) {
        let mut state = self.stop.state.lock().unwrap();
        (state.at, state.let_through) = (None, 0);
        drop(state);
        self.stop.changed.notify_all();
    }

    /// So many requests are taken in hand, and no more.
    pub(crate) fn go_on_for(&self, requests: usize) {
        self.stop.state.lock().unwrap().let_through += requests;
        self.stop.changed.notify_all();
    }

    pub(crate) fn waiting_to_go_on(&self) -> usize {
        self.stop.state.lock().unwrap().waiting
    }
}
