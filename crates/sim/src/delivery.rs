//! Messages travel as TCP takes them: in order or broken. Loss is a connection that breaks with what is on the way; a cut
//! link holds everything back until it heals, or the connection breaks first. Runs may ask for worse ([`Order`], [`Copies`]);
//! not for file locks and questions for space, which rest on TCP, and on a server that reads nothing from a connection when the
//! session has another one.

use crate::clock::Time;
use crate::config::{Copies, Order};
use crate::context::Context;
use crate::event::{ConnId, Event};
use crate::message::{ToClient, ToServer};
use crate::network::Connection;
use std::time::Duration;

struct Travel {
    arrives: Time,
    /// A second time, so much later than now.
    copy: Option<Duration>,
}

impl Context {
    pub fn send_to_server(&mut self, id: ConnId, message: ToServer) {
        let Some(Travel { arrives, copy }) = self.travel(id, |one| &mut one.last_to_server) else { return };
        if let Some(copy) = copy.filter(|_| !message.comes_once()) {
            self.after(copy, Event::CopyAtServer(id, message.clone()));
        }
        self.schedule(arrives, Event::ArrivesAtServer(id, message));
    }

    pub fn send_to_client(&mut self, id: ConnId, message: ToClient) {
        let Some(Travel { arrives, copy }) = self.travel(id, |one| &mut one.last_to_client) else { return };
        if let Some(copy) = copy.filter(|_| !message.comes_once()) {
            self.after(copy, Event::ArrivesAtClient(id, message.clone()));
        }
        self.schedule(arrives, Event::ArrivesAtClient(id, message));
    }

    /// What becomes of a message sent now. `last`: when the last one in its direction arrives. `None`: the connection is gone.
    fn travel(&mut self, id: ConnId, last: fn(&mut Connection) -> &mut Time) -> Option<Travel> {
        let delay = self.delay();
        let copy = self.delay_of_copy();
        let connection = self.network.connections.get_mut(&id)?;
        let mut arrives = self.now.after(delay);
        if self.config.order != Order::Scrambled {
            let last = last(connection);
            arrives = arrives.max(Time(last.0 + 1));
            *last = arrives;
        }
        Some(Travel { arrives, copy })
    }

    /// The event, unless its connection is gone, or held back by a cut link.
    pub fn pass(&mut self, event: Event) -> Option<Event> {
        let (Event::ArrivesAtServer(id, _) | Event::ArrivesAtClient(id, _)) = &event else {
            return Some(event);
        };
        let connection = self.network.connections.get_mut(id)?;
        if self.network.cut.contains(&connection.client) {
            connection.held.push(event);
            return None;
        }
        match &event {
            Event::ArrivesAtServer(_, ToServer::Hello { .. } | ToServer::Attach { .. }) => {
                connection.greeted = true
            }
            Event::ArrivesAtServer(..) if !connection.greeted => {
                self.after(Duration::from_millis(1), event);
                return None;
            }
            _ => {}
        }
        Some(event)
    }

    /// Breaks a connection: what is on the way is lost, each side learns of it in its own time.
    pub fn break_connection(&mut self, id: ConnId) {
        let Some(connection) = self.network.connections.remove(&id) else { return };
        let (one, other) = (self.about(Duration::from_millis(20)), self.about(Duration::from_millis(200)));
        self.after(one, Event::ResetAtClient { client: connection.client, conn: id });
        self.after(other, Event::ResetAtServer(id));
    }

    /// The link works again: what was held back goes on, or the connection turns out to be broken.
    pub fn heal_link(&mut self, client: usize) {
        self.network.cut.remove(&client);
        self.trouble(client, Duration::from_secs(1));
        for id in self.network.connections_of(client) {
            if self.rng.chance(1, 3) {
                self.break_connection(id);
                continue;
            }
            let held = self.network.connections.get_mut(&id).map(|one| std::mem::take(&mut one.held));
            let mut at = self.now;
            for event in held.unwrap_or_default() {
                at = at.after(self.delay());
                self.schedule(at, event);
            }
            if let Some(connection) = self.network.connections.get_mut(&id) {
                connection.last_to_server = connection.last_to_server.max(at);
                connection.last_to_client = connection.last_to_client.max(at);
            }
        }
    }

    /// One message in twenty comes twice, the second time at once or in a later life of its session.
    fn delay_of_copy(&mut self) -> Option<Duration> {
        if self.config.copies == Copies::Never || !self.rng.chance(1, 20) {
            return None;
        }
        let term = self.config.table.session_term;
        let mean = self.rng.pick(&[Duration::from_millis(1), term / 10, term * 2]);
        Some(self.about(mean))
    }

    fn delay(&mut self) -> Duration {
        let mean =
            if self.rng.chance(1, 50) { Duration::from_millis(100) } else { Duration::from_micros(500) };
        Duration::from_micros(50) + self.about(mean)
    }
}
