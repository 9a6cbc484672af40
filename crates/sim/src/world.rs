//! One run: nodes, faults, and the two phases. First everything goes wrong at random and only safety is asked for; then
//! all is healed, and every operation has to end.

use crate::client::{Client, End, Stuck, Work, excludes};
use crate::clock::{Clock, Time};
use crate::config::{FileLocks, SimConfig};
use crate::context::{Context, Digest, Show};
use crate::event::{Event, Undo};
use crate::invariants::{exclusive, locked, progress};
use crate::property::Violation;
use crate::register::{Object, Register};
use crate::server::{Power, Server};
use soda_lease::table::Counters;
use std::time::Duration;

/// What a run was.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    pub violations: Vec<Violation>,
    pub digest: Digest,
    pub events: u64,
    pub operations: u64,
    pub simulated: Duration,
    /// Clients that have been followed by another process.
    pub heirs: u64,
    /// Digests that were begun while others had no answer.
    pub behind_others: u64,
    /// File locks that were taken, and those of them without the server.
    pub locks: u64,
    pub locks_here: u64,
    /// Operations that there was no room for.
    pub refused_for_space: u64,
    /// Inodes that clients have made by themselves, under numbers that were set aside for them.
    pub numbered_here: u64,
    /// fsyncs that the client's own disk was enough for.
    pub synced_here: u64,
    /// fsyncs that a sync along with their digest was enough for.
    pub synced_along: u64,
    /// Of the server's last life.
    pub counters: Counters,
}

#[derive(Debug)]
struct World {
    context: Context,
    server: Server,
    clients: Vec<Client>,
    /// What a frozen node will see when it goes on; one for each client, the server's last.
    backlogs: Vec<Option<Vec<Event>>>,
    work: Work,
    faults: Faults,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Faults {
    On,
    Off,
}

/// Runs the world of a seed to its end, or to the first violation.
pub fn run(config: SimConfig, show: Show) -> Report {
    let mut world = World::new(config, show);
    world.start();
    world.run();
    let context = &world.context;
    Report {
        violations: context.invariants.violations().to_vec(),
        digest: context.trace.digest(),
        events: context.trace.events(),
        operations: context.operations(),
        simulated: context.now.since(Time::ZERO),
        heirs: context.heirs,
        behind_others: context.behind_others,
        locks: context.locks,
        locks_here: context.locks_here,
        refused_for_space: context.refused_for_space,
        numbered_here: context.numbered_here,
        synced_here: context.synced_here,
        synced_along: context.synced_along,
        counters: world.server.counters(),
    }
}

impl World {
    fn new(config: SimConfig, show: Show) -> World {
        let mut context = Context::new(config, show);
        let server = Server::new(draw_clock(&mut context));
        let clients = (0..context.config.clients)
            .map(|number| {
                let clock = draw_clock(&mut context);
                Client::new(number, clock, &context.config)
            })
            .collect();
        let backlogs = (0..=context.config.clients).map(|_| None).collect();
        World { context, server, clients, backlogs, work: Work::GoesOn, faults: Faults::On }
    }

    fn start(&mut self) {
        self.server.start(&mut self.context);
        for client in &mut self.clients {
            client.start(&mut self.context);
        }
        let first = self.context.about(self.context.config.fault_every);
        self.context.after(first, Event::Fault);
    }

    fn run(&mut self) {
        let faulty = Time::ZERO.after(self.context.config.faulty);
        self.run_until(faulty);
        self.heal();
        let calm = faulty.after(self.context.config.calm);
        self.run_until(calm);
        self.work = Work::Ends;
        let bound = progress::bound(&self.context.config.table);
        self.run_until(calm.after(bound));
        // Who waits for a lock waits for what others do before they give it up.
        if self.clients.iter().any(Client::wants_locks) {
            self.run_until(calm.after(bound * 2));
        }
        let left: Vec<_> = self.clients.iter().flat_map(Client::unfinished).collect();
        for (uid, since) in left {
            let took = self.context.now.since(since.max(faulty));
            let found = progress::check(uid, took, bound);
            self.context.invariants.report(found);
        }
        self.check_durable();
        if self.context.invariants.violations().is_empty() {
            self.context.invariants.check_end();
            self.check_locks_end();
        }
    }

    fn run_until(&mut self, end: Time) {
        while self.context.invariants.violations().is_empty()
            && let Some(event) = self.context.next(end)
        {
            if let Some(event) = self.context.pass(event) {
                self.dispatch(event);
            }
        }
        if self.context.invariants.violations().is_empty() {
            self.context.now = end;
        }
    }

    fn dispatch(&mut self, event: Event) {
        match self.target(&event) {
            Target::Nobody => {}
            Target::World => self.handle_fault(event),
            Target::Server => {
                if let Some(backlog) = self.backlogs.last_mut().and_then(Option::as_mut) {
                    backlog.push(event);
                    return;
                }
                if let Event::ArrivesAtServer(conn, _) = &event
                    && !self.server.is_running()
                {
                    self.context.break_connection(*conn);
                    return;
                }
                self.server.handle(&mut self.context, event);
            }
            Target::Client(number) => {
                if let Some(backlog) = &mut self.backlogs[number] {
                    if matches!(event, Event::Think { .. }) {
                        self.clients[number].read_frozen(&mut self.context);
                    }
                    backlog.push(event);
                    return;
                }
                let arrives = matches!(event, Event::ArrivesAtClient(..));
                self.clients[number].handle(&mut self.context, self.work, event);
                if arrives {
                    self.check_exclusive();
                }
                self.check_locks(number);
            }
        }
    }

    fn target(&self, event: &Event) -> Target {
        match event {
            Event::ArrivesAtServer(..)
            | Event::CopyAtServer(..)
            | Event::ResetAtServer(_)
            | Event::ServerTimer { .. }
            | Event::ServerStep { .. }
            | Event::ServerSyncs { .. }
            | Event::ServerStarts => Target::Server,
            Event::ArrivesAtClient(conn, _) => {
                self.context.network.client_of(*conn).map_or(Target::Nobody, Target::Client)
            }
            Event::ResetAtClient { client, .. }
            | Event::ClientTimer { client, .. }
            | Event::ClientStarts { client }
            | Event::Connect { client, .. }
            | Event::ConnectGivesUp { client, .. }
            | Event::ConnectData { client, .. }
            | Event::Think { client, .. }
            | Event::LockAgain { client, .. }
            | Event::CachesDropped { client, .. } => Target::Client(*client),
            Event::Fault | Event::Undo(_) => Target::World,
        }
    }

    // ------------------------------------------------------------------------------------------------------ faults

    fn handle_fault(&mut self, event: Event) {
        match event {
            Event::Fault if self.faults == Faults::On => {
                self.inject();
                let next = self.context.about(self.context.config.fault_every);
                self.context.after(next, Event::Fault);
            }
            Event::Undo(undo) => self.undo(undo),
            _ => {}
        }
    }

    fn inject(&mut self) {
        let term = self.context.config.table.session_term;
        let client = self.context.rng.below(self.clients.len() as u64) as usize;
        let mean = self.context.rng.pick(&[term / 20, term / 2, term * 2]);
        let span = self.context.about(mean);
        let server_crashes = self.context.rng.below(100) < self.context.config.server_crashes_percent;
        let kind = if server_crashes { 73 } else { self.context.rng.below(100) };
        self.context.note(|| format!("fault    {kind} client{client} {span:?}"));
        match kind {
            0..25 => {
                let connections = self.context.network.connections_of(client);
                if !connections.is_empty() {
                    let id = self.context.rng.pick(&connections);
                    self.context.break_connection(id);
                    self.context.trouble(client, Duration::from_secs(1));
                }
            }
            25..45 => {
                self.context.network.cut(client);
                self.context.trouble(client, span);
                self.context.after(span, Event::Undo(Undo::Cut(client)));
            }
            45..65 => {
                self.backlogs[client].get_or_insert_default();
                self.context.trouble(client, span);
                self.context.after(span, Event::Undo(Undo::Freeze(client)));
            }
            65..73 => {
                if self.clients[client].is_on() {
                    let how = match self.context.rng.chance(1, 3) {
                        true => End::Goodbye,
                        false if self.context.syncs_here() && self.context.rng.chance(1, 2) => End::PowerCut,
                        false => End::Crash,
                    };
                    self.clients[client].stop(&mut self.context, how);
                    self.backlogs[client] = None;
                    // Some come back at once, when what they asked for may still be waiting at the server.
                    let at_once = self.context.config.delayed().is_some() && self.context.rng.chance(1, 2);
                    let span = if at_once { self.context.about(Duration::from_millis(20)) } else { span };
                    self.context.trouble(client, span);
                    self.context.after(span, Event::ClientStarts { client });
                }
            }
            73..85 => {
                if self.server.is_running() {
                    self.crash_server();
                    self.context.trouble_for_all(span);
                    if let Some(backlog) = self.backlogs.last_mut() {
                        *backlog = None;
                    }
                    self.check_durable();
                    self.context.after(span, Event::ServerStarts);
                }
            }
            85..90 => {
                if let Some(backlog) = self.backlogs.last_mut() {
                    backlog.get_or_insert_default();
                }
                self.context.trouble_for_all(span);
                self.context.after(span, Event::Undo(Undo::FreezeServer));
            }
            _ => {
                self.clients[client].set_stuck(Stuck::Yes);
                self.context.trouble(client, span * 3);
                self.context.after(span * 3, Event::Undo(Undo::Stuck(client)));
            }
        }
    }

    /// With delayed writes half of the crashes are power cuts.
    fn crash_server(&mut self) {
        let cut = self.context.config.delayed().is_some() && self.context.rng.chance(1, 2);
        self.server.crash(&mut self.context, if cut { Power::Cut } else { Power::Stays });
        if cut {
            let logged = self.clients.iter().flat_map(Client::logged).collect();
            let server = &self.server;
            self.context.invariants.power_cut(|register| server.value(register), &logged);
        }
    }

    fn undo(&mut self, undo: Undo) {
        self.context.note(|| format!("undo     {undo:?}"));
        match undo {
            Undo::Cut(client) => self.context.heal_link(client),
            Undo::Freeze(client) => self.thaw(client),
            Undo::FreezeServer => self.thaw(self.clients.len()),
            Undo::Stuck(client) => self.clients[client].set_stuck(Stuck::No),
        }
    }

    /// What has piled up is seen now, in its order.
    fn thaw(&mut self, node: usize) {
        for event in self.backlogs[node].take().unwrap_or_default() {
            self.context.schedule(self.context.now, event);
        }
    }

    fn heal(&mut self) {
        self.context.note(|| "heal     everything".to_owned());
        self.faults = Faults::Off;
        for client in 0..self.clients.len() {
            self.undo(Undo::Cut(client));
            self.undo(Undo::Freeze(client));
            self.undo(Undo::Stuck(client));
            if !self.clients[client].is_on() {
                self.clients[client].start(&mut self.context);
            }
        }
        self.undo(Undo::FreezeServer);
        if !self.server.is_running() {
            self.server.handle(&mut self.context, Event::ServerStarts);
        }
        self.context.end_of_trouble();
    }

    // ------------------------------------------------------------------------------------------------------ checks

    fn check_exclusive(&mut self) {
        for object in 0..Object::from(self.context.config.objects) {
            let register = Register { object, cell: 0 };
            let modes: Vec<_> = self
                .clients
                .iter()
                .enumerate()
                .map(|(number, client)| (number, client.valid_mode(&self.context, register.fid())))
                .collect();
            let found = exclusive::check(register, &modes);
            self.context.invariants.report(found);
        }
    }

    /// What the client's processes count on, beside all others.
    fn check_locks(&mut self, client: usize) {
        if self.context.config.locks == FileLocks::Unused {
            return;
        }
        let others = || {
            let clients = self.clients.iter().enumerate();
            clients.flat_map(|(of, one)| one.locks_counted_on(&self.context).map(move |held| (of, held)))
        };
        let found = self.clients[client].locks_counted_on(&self.context).find_map(|(object, owner, lock)| {
            let rival = others().find(|(of, (other, process, held))| {
                *other == object && (*of, *process) != (client, owner) && excludes(held, lock)
            });
            rival.map(|(of, (_, process, held))| {
                locked::check(object, ((client, owner), lock), ((of, process), held))
            })
        });
        self.context.invariants.report(found);
    }

    /// Everybody has unlocked what he had, and who waited has had his lock.
    fn check_locks_end(&mut self) {
        for client in &self.clients {
            let found = client.stuck_with_locks(|session, object| self.server.locks_of(session, object));
            self.context.invariants.report(found.map(locked::left));
        }
    }

    fn check_durable(&mut self) {
        let server = &self.server;
        self.context.invariants.check_durable(|register| server.value(register));
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Nobody,
    World,
    Server,
    Client(usize),
}

fn draw_clock(context: &mut Context) -> Clock {
    let drift = i64::from(context.config.drift_ppm);
    let drift_ppm = context.rng.below(2 * context.config.drift_ppm as u64 + 1) as i64 - drift;
    // The extremes are where it goes wrong, so they come often.
    let drift_ppm = match context.rng.below(3) {
        0 => drift,
        1 => -drift,
        _ => drift_ppm,
    };
    Clock::new(Duration::from_secs(context.rng.below(1000)), drift_ppm)
}
