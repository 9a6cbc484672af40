//! The connections there are, and which links are cut; how messages travel on them is in `delivery`.

use crate::clock::Time;
use crate::event::{ConnId, Event};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Control,
    Data,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) client: usize,
    pub(crate) kind: Kind,
    pub(crate) last_to_server: Time,
    pub(crate) last_to_client: Time,
    /// Its first message has arrived.
    pub(crate) greeted: bool,
    /// Held back by a cut link, in order.
    pub(crate) held: Vec<Event>,
}

#[derive(Debug, Default)]
pub struct Network {
    pub(crate) connections: BTreeMap<ConnId, Connection>,
    pub(crate) cut: BTreeSet<usize>,
    opened: u64,
}

impl Network {
    pub fn new() -> Network {
        Network::default()
    }

    pub fn open(&mut self, client: usize, kind: Kind) -> ConnId {
        self.opened += 1;
        let id = ConnId(self.opened);
        let connection = Connection {
            client,
            kind,
            last_to_server: Time::ZERO,
            last_to_client: Time::ZERO,
            greeted: false,
            held: Vec::new(),
        };
        self.connections.insert(id, connection);
        id
    }

    /// Neither broken nor closed.
    pub fn is_open(&self, id: ConnId) -> bool {
        self.connections.contains_key(&id)
    }

    pub fn client_of(&self, id: ConnId) -> Option<usize> {
        self.connections.get(&id).map(|connection| connection.client)
    }

    pub fn kind_of(&self, id: ConnId) -> Option<Kind> {
        self.connections.get(&id).map(|connection| connection.kind)
    }

    pub fn is_cut(&self, client: usize) -> bool {
        self.cut.contains(&client)
    }

    pub fn connections_of(&self, client: usize) -> Vec<ConnId> {
        self.connections.iter().filter(|(_, one)| one.client == client).map(|(id, _)| *id).collect()
    }

    pub fn all(&self) -> Vec<ConnId> {
        self.connections.keys().copied().collect()
    }

    pub fn cut(&mut self, client: usize) {
        self.cut.insert(client);
    }
}
