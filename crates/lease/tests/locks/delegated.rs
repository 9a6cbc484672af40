//! Clients that take locks of one file by themselves where the server lets them, or where one of them has just made the file:
//! whatever is under way, and lost with a connection, a restart or a power cut, no two of them have what excludes each other, and
//! in the end the server knows of every lock.

use super::fid;
use proptest::prelude::*;
use soda_lease::locks::{
    Delegate, Delegations, HeldLock, IfBusy, LockAnswer, LockTable, OwnLocks, Return, Truth, WaitKey,
};
use soda_types::{Epoch, Fid, Lock, LockFamily, LockMode, LockOwner, Monotonic, SessionId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

const CLIENTS: usize = 3;
const OWNERS: usize = 2;

fn file() -> Fid {
    fid(1)
}

fn session(client: usize) -> SessionId {
    SessionId(client as u64 + 1)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    No,
    Yes,
}

#[derive(Clone, Debug)]
enum Step {
    Lock {
        client: usize,
        owner: usize,
        lock: Lock,
        wait: Wait,
    },
    Unlock {
        client: usize,
        owner: usize,
        lock: Lock,
    },
    /// The server takes the next request of the client.
    Request(usize),
    /// The client takes the next message of the server.
    Message(usize),
    /// What is under way is lost; the client sends again what was not answered.
    Cut(usize),
    GiveUp(usize),
    /// The one who made the file tells the server of it.
    Tell,
    /// The server does not take what it is being told, which is told anew.
    Refuse,
    Restart(Store, Again),
}

/// What a server that is started anew has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Store {
    All,
    /// A power cut has taken the file.
    WithoutFile,
}

/// When the maker tells a server that is started anew and lacks the file, in a new digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Again {
    /// Before it claims its locks; the digest goes ahead of what else has no answer.
    Ahead,
    /// Before it claims its locks; the digest goes behind that.
    Behind,
    Later,
}

/// Who makes the file, if it is not there from the first.
const MAKER: usize = 0;

#[derive(Clone, Debug)]
enum Call {
    Set(Lock, Wait),
    Release(Lock),
    Return(Epoch, Option<Vec<Lock>>),
    /// The file was made; whether its maker decides about the locks.
    Tell(bool),
}

/// What the maker of the file knows of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Standing {
    /// It has the file.
    #[default]
    Told,
    Telling(u64),
    Untold,
}

#[derive(Clone, Debug)]
enum Message {
    Taken(u64, Option<Epoch>),
    Refused(u64),
    Done(u64),
    Recall(Epoch),
}

#[derive(Debug, Default)]
struct Client {
    delegate: Delegate,
    held: [OwnLocks; OWNERS],
    /// What its processes count on: taken, and not about to be released or changed.
    counted_on: [OwnLocks; OWNERS],
    busy: [bool; OWNERS],
    unanswered: BTreeMap<u64, Call>,
    to_server: VecDeque<(u64, Call)>,
    to_client: VecDeque<Message>,
}

#[derive(Debug, Default)]
struct World {
    now: Monotonic,
    last: u64,
    locks: LockTable,
    delegations: Delegations,
    put_off: VecDeque<(usize, u64, Call)>,
    /// Those are being decided about, one after the other.
    in_turn: bool,
    waits: BTreeMap<WaitKey, (usize, u64)>,
    clients: [Client; CLIENTS],
    standing: Standing,
    /// Whether the server was ever being told of the file.
    was_told: bool,
    /// The digest in which the server has heard of the file.
    file_of: Option<u64>,
    /// Who has found the file.
    found: [bool; CLIENTS],
    /// Locks that were taken without the server.
    here: usize,
}

fn conflict(one: &Lock, other: &Lock) -> bool {
    let shared = one.mode == LockMode::Shared && other.mode == LockMode::Shared;
    !shared && one.start <= other.end && other.start <= one.end
}

impl Client {
    fn in_the_way(&self, owner: usize, lock: &Lock) -> bool {
        let others = self.held.iter().enumerate().filter(|(of, _)| *of != owner);
        others.flat_map(|(_, held)| held.iter()).any(|held| conflict(held, lock))
    }
}

impl World {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The file is there, or one of the clients has just made it.
    fn new(made: bool) -> World {
        let mut world = World::default();
        if made {
            world.standing = Standing::Untold;
        } else {
            (world.file_of, world.was_told) = (Some(0), true);
        }
        world
    }

    fn do_step(&mut self, step: &Step) {
        self.now = self.now + Duration::from_millis(300);
        match step {
            Step::Lock { client, owner, lock, wait } => self.lock(*client, *owner, *lock, *wait),
            Step::Unlock { client, owner, lock } => self.unlock(*client, *owner, *lock),
            Step::Request(client) => {
                if let Some((id, call)) = self.clients[*client].to_server.pop_front() {
                    self.serve(*client, id, call);
                }
            }
            Step::Message(client) => {
                if let Some(message) = self.clients[*client].to_client.pop_front() {
                    self.take(*client, message);
                }
            }
            Step::Cut(client) => self.cut(*client),
            Step::GiveUp(client) => self.give_up(*client),
            Step::Tell => self.tell(),
            Step::Refuse => self.refuse(),
            Step::Restart(store, again) => self.restart(*store, *again),
        }
    }

    fn tell(&mut self) {
        if self.standing == Standing::Untold {
            let id = self.number();
            let decides = self.clients[MAKER].delegate.tell(file(), Epoch(id));
            (self.standing, self.was_told) = (Standing::Telling(id), true);
            self.send_as(MAKER, id, Call::Tell(decides));
        }
    }

    fn refuse(&mut self) {
        // What it has applied it cannot refuse.
        if let (Standing::Telling(id), None) = (self.standing, self.file_of) {
            self.lose_digest(id);
        }
    }

    /// The server does not have this digest, and will not hear of it any more.
    fn lose_digest(&mut self, id: u64) {
        let maker = &mut self.clients[MAKER];
        maker.to_server.retain(|(sent, _)| *sent != id);
        maker.unanswered.remove(&id);
        maker.delegate.handle_lost(Epoch(id));
        self.standing = Standing::Untold;
    }

    fn restart(&mut self, store: Store, again: Again) {
        (self.locks, self.delegations) = (LockTable::default(), Delegations::default());
        self.put_off.clear();
        self.waits.clear();
        let told_in = match self.standing {
            Standing::Told => self.file_of,
            Standing::Telling(id) => Some(id),
            Standing::Untold => None,
        };
        if store == Store::WithoutFile {
            self.file_of.take_if(|id| *id > 0);
        }
        // As it was a digest comes only to a run that has it.
        let is_lacking = self.file_of.is_none();
        told_in.filter(|_| is_lacking).into_iter().for_each(|id| self.lose_digest(id));
        if is_lacking && again != Again::Later {
            self.tell();
        }
        let first = (is_lacking && again == Again::Ahead).then_some(self.last);
        for (number, client) in self.clients.iter_mut().enumerate() {
            client.to_client.clear();
            client.to_server = client.unanswered.iter().map(|(id, call)| (*id, call.clone())).collect();
            client.to_server.make_contiguous().sort_by_key(|(id, _)| (Some(*id) != first, *id));
            client.delegate.leave_all();
            for (held, counted_on) in client.held.iter_mut().zip(&mut client.counted_on) {
                for lock in held.clone().iter() {
                    if self.locks.set(file(), session(number), *lock, IfBusy::Fail).is_err() {
                        // It is being changed to what others may have beside it: lost.
                        held.cut(*lock);
                        counted_on.cut(*lock);
                    }
                }
            }
        }
    }

    /// Whether a client has the file to lock it.
    fn finds(&mut self, client: usize) -> bool {
        let made_it = client == MAKER && !matches!(self.standing, Standing::Told);
        self.found[client] |= self.file_of.is_some() || made_it;
        self.found[client]
    }

    fn lock(&mut self, client: usize, owner: usize, lock: Lock, wait: Wait) {
        let lock = Lock { owner: LockOwner(owner as u64), ..lock };
        if self.clients[client].busy[owner] || !self.finds(client) {
            return;
        }
        self.clients[client].counted_on[owner].cut(lock);
        if client == MAKER && !self.was_told {
            self.clients[client].delegate.begin_made(self.now, file());
        }
        if self.clients[client].delegate.decides(file()) {
            let is_free = !self.clients[client].in_the_way(owner, &lock);
            if is_free {
                self.here += 1;
                self.clients[client].held[owner].put(lock);
                return self.count_on(client, owner, lock);
            } else if wait == Wait::No {
                return;
            }
            self.give_up(client);
        }
        // The server is told first.
        if client == MAKER && self.standing != Standing::Told {
            return;
        }
        self.clients[client].busy[owner] = true;
        self.clients[client].delegate.asked(file());
        self.send(client, Call::Set(lock, wait));
    }

    fn unlock(&mut self, client: usize, owner: usize, lock: Lock) {
        let lock = Lock { owner: LockOwner(owner as u64), ..lock };
        let it = &mut self.clients[client];
        if it.busy[owner] {
            return;
        }
        it.counted_on[owner].cut(lock);
        it.held[owner].cut(lock);
        if !it.delegate.decides(file()) {
            it.busy[owner] = true;
            it.delegate.asked(file());
            self.send(client, Call::Release(lock));
        }
    }

    /// A process has the lock: nobody else may.
    fn count_on(&mut self, client: usize, owner: usize, lock: Lock) {
        for (of, it) in self.clients.iter().enumerate() {
            for (other, counted_on) in it.counted_on.iter().enumerate() {
                let rival = counted_on.iter().find(|held| conflict(held, &lock));
                assert!(
                    (of, other) == (client, owner) || rival.is_none(),
                    "{client}.{owner} has {lock:?}, {of}.{other} {rival:?}"
                );
            }
        }
        self.clients[client].counted_on[owner].put(lock);
    }

    fn give_up(&mut self, client: usize) {
        let given_up = self.clients[client].delegate.give_up(file());
        self.give_back(client, given_up);
    }

    fn give_back(&mut self, client: usize, given_back: Option<Return>) {
        let Some(Return { epoch, truth }) = given_back else { return };
        let all = || self.clients[client].held.iter().flat_map(OwnLocks::iter).copied().collect();
        let locks = (truth == Truth::Here).then(all);
        self.send(client, Call::Return(epoch, locks));
    }

    fn send(&mut self, client: usize, call: Call) {
        let id = self.number();
        self.send_as(client, id, call);
    }

    fn send_as(&mut self, client: usize, id: u64, call: Call) {
        self.clients[client].unanswered.insert(id, call.clone());
        self.clients[client].to_server.push_back((id, call));
    }

    fn cut(&mut self, client: usize) {
        let it = &mut self.clients[client];
        it.to_client.clear();
        it.to_server = it.unanswered.iter().map(|(id, call)| (*id, call.clone())).collect();
        self.put_off.retain(|(of, ..)| *of != client);
        let waited = self.waits.iter().filter(|(_, (of, _))| *of == client).map(|(key, _)| *key);
        for key in waited.collect::<Vec<_>>() {
            self.waits.remove(&key);
            self.locks.cancel(key);
        }
        self.grant();
        for (_, epoch) in self.delegations.recalled_from(session(client)) {
            self.clients[client].to_client.push_back(Message::Recall(epoch));
        }
    }

    // The server's side.

    fn serve(&mut self, client: usize, id: u64, call: Call) {
        if matches!(call, Call::Set(..)) && self.delegations.other(file(), session(client)).is_some() {
            if let Some((asked, epoch)) = self.delegations.recall(self.now, file()) {
                self.clients[asked.0 as usize - 1].to_client.push_back(Message::Recall(epoch));
            }
            self.put_off.push_back((client, id, call));
            return;
        }
        self.decide(client, id, call);
    }

    fn decide(&mut self, client: usize, id: u64, call: Call) {
        match call {
            Call::Set(lock, wait) => {
                let key = WaitKey(self.number());
                let if_busy = if wait == Wait::Yes { IfBusy::Wait(key) } else { IfBusy::Fail };
                match self.locks.set(file(), session(client), lock, if_busy) {
                    Ok(LockAnswer::Granted) => self.taken(client, id),
                    Ok(LockAnswer::Waits) => drop(self.waits.insert(key, (client, id))),
                    Err(_) => self.clients[client].to_client.push_back(Message::Refused(id)),
                }
            }
            Call::Release(lock) => {
                self.locks.release(file(), session(client), lock);
                self.clients[client].to_client.push_back(Message::Done(id));
            }
            Call::Tell(decides) => {
                // Told again it is answered, and no more.
                if self.file_of.is_none() {
                    self.file_of = Some(id);
                    if decides {
                        self.delegations.enter_made(file(), session(client), Epoch(id));
                    }
                }
                self.clients[client].to_client.push_back(Message::Done(id));
            }
            Call::Return(epoch, locks) => {
                let had_it = self.delegations.take_back(file(), session(client), epoch);
                if let Some(locks) = locks.filter(|_| had_it) {
                    assert_eq!(self.locks.replace(file(), session(client), &locks), []);
                }
                self.clients[client].to_client.push_back(Message::Done(id));
                if had_it {
                    self.in_turn = true;
                    while let Some((client, id, call)) = self.put_off.pop_front() {
                        self.decide(client, id, call);
                    }
                    self.in_turn = false;
                }
            }
        }
        self.grant();
    }

    fn grant(&mut self) {
        while let Some(key) = self.locks.poll_granted() {
            if let Some((client, id)) = self.waits.remove(&key) {
                self.taken(client, id);
            }
        }
    }

    fn taken(&mut self, client: usize, id: u64) {
        let epoch = Epoch(self.number());
        let alone = self.put_off.is_empty() && !self.in_turn;
        let mut offered = || self.delegations.offer(self.now, file(), session(client), &self.locks, epoch);
        let given = if alone { offered() } else { None };
        self.clients[client].to_client.push_back(Message::Taken(id, given));
    }

    // The client's.

    fn take(&mut self, client: usize, message: Message) {
        let now = self.now;
        let it = &mut self.clients[client];
        match message {
            Message::Taken(id, given) => {
                if let Some(Call::Set(lock, _)) = it.unanswered.remove(&id) {
                    let owner = lock.owner.0 as usize;
                    it.delegate.answered(now, file(), given);
                    it.busy[owner] = false;
                    it.held[owner].put(lock);
                    self.count_on(client, owner, lock);
                }
            }
            Message::Refused(id) | Message::Done(id) => match it.unanswered.remove(&id) {
                Some(Call::Set(lock, _) | Call::Release(lock)) => {
                    it.delegate.answered(now, file(), None);
                    it.busy[lock.owner.0 as usize] = false;
                }
                Some(Call::Return(epoch, _)) => it.delegate.returned(file(), epoch),
                Some(Call::Tell(_)) => {
                    let given_back = it.delegate.told(file(), Epoch(id));
                    self.standing = Standing::Told;
                    self.give_back(client, given_back);
                }
                None => {}
            },
            Message::Recall(epoch) => {
                let given_back = it.delegate.recalled(file(), epoch);
                self.give_back(client, given_back);
            }
        }
    }

    /// Everything arrives, and the server asks for what is decided elsewhere.
    fn come_to_rest(&mut self) {
        // The last time there is nothing to ask for: what was contended lately nobody is let decide about.
        for _ in 0..3 {
            self.tell();
            while self.clients.iter().any(|it| !it.to_server.is_empty() || !it.to_client.is_empty()) {
                for client in 0..CLIENTS {
                    self.do_step(&Step::Request(client));
                    self.do_step(&Step::Message(client));
                }
            }
            for (number, it) in self.clients.iter().enumerate() {
                let decides = self.delegations.delegate(file()).is_some_and(|(of, _)| of == session(number));
                assert_eq!(!it.delegate.is_empty(), decides, "both sides know of the right, or none: {it:?}");
            }
            if let Some((asked, epoch)) = self.delegations.recall(self.now, file()) {
                self.clients[asked.0 as usize - 1].to_client.push_back(Message::Recall(epoch));
            }
        }
    }
}

fn lock() -> impl Strategy<Value = Lock> {
    (0..4u64, 0..3u64, any::<bool>()).prop_map(|(start, more, shared)| Lock {
        family: LockFamily::Record,
        owner: LockOwner(0),
        pid: 1,
        start,
        end: start + more,
        mode: if shared { LockMode::Shared } else { LockMode::Exclusive },
    })
}

fn step() -> impl Strategy<Value = Step> {
    let (client, owner) = (0..CLIENTS, 0..OWNERS);
    let wait = prop_oneof![Just(Wait::No), Just(Wait::Yes)];
    let store = prop_oneof![Just(Store::All), Just(Store::WithoutFile)];
    let again = prop_oneof![Just(Again::Ahead), Just(Again::Behind), Just(Again::Later)];
    prop_oneof![
        4 => (client.clone(), owner.clone(), lock(), wait)
            .prop_map(|(client, owner, lock, wait)| Step::Lock { client, owner, lock, wait }),
        4 => (client.clone(), owner, lock())
            .prop_map(|(client, owner, lock)| Step::Unlock { client, owner, lock }),
        8 => client.clone().prop_map(Step::Request),
        8 => client.clone().prop_map(Step::Message),
        1 => client.clone().prop_map(Step::Cut),
        1 => client.prop_map(Step::GiveUp),
        2 => Just(Step::Tell),
        1 => prop_oneof![
            1 => Just(Step::Refuse),
            2 => (store, again).prop_map(|(store, again)| Step::Restart(store, again)),
        ],
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn locks_taken_alone_exclude_each_other(
        made in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(made);
        steps.iter().for_each(|step| world.do_step(step));
        world.come_to_rest();
        prop_assert!(world.delegations.is_empty() && world.put_off.is_empty());
        let mut known = Vec::new();
        for (number, client) in world.clients.iter().enumerate() {
            let unanswered = client.unanswered.values();
            prop_assert!(unanswered.clone().all(|call| matches!(call, Call::Set(_, Wait::Yes))), "{:?}", client);
            prop_assert_eq!(client.unanswered.len(), world.waits.values().filter(|(of, _)| *of == number).count());
            let locks = client.held.iter().flat_map(OwnLocks::iter);
            known.extend(locks.map(|lock| HeldLock { session: session(number), lock: *lock }));
        }
        prop_assert_eq!(world.locks.locks(file()), known);
    }
}

/// The steps above come to what they are for.
#[test]
fn who_is_alone_asks_once() {
    let mut world = World::new(false);
    for _ in 0..10 {
        world.do_step(&Step::Lock { client: 0, owner: 0, lock: ten_bytes(), wait: Wait::Yes });
        world.do_step(&Step::Request(0));
        world.do_step(&Step::Message(0));
        world.do_step(&Step::Unlock { client: 0, owner: 0, lock: ten_bytes() });
    }
    assert_eq!((world.here, world.clients[0].unanswered.len()), (9, 0));
}

#[test]
fn who_made_the_file_does_not_ask_and_whoever_finds_it_does() {
    let mut world = World::new(true);
    let locks = |client| Step::Lock { client, owner: 0, lock: ten_bytes(), wait: Wait::Yes };
    for step in [locks(1), locks(MAKER), Step::Tell, Step::Request(MAKER), locks(1), Step::Request(1)] {
        world.do_step(&step);
    }
    assert_eq!((world.here, world.put_off.len()), (1, 1));
    // The recall is behind the answer.
    for step in [Step::Message(MAKER), Step::Message(MAKER), Step::Request(MAKER)] {
        world.do_step(&step);
    }
    assert_eq!((world.put_off.len(), world.waits.len()), (0, 1));
}

/// A power cut takes the file while the answer to its digest, what is given back, and who waits for the lock are under way.
#[test]
fn what_is_given_back_again_after_a_power_cut_gives_nobody_what_its_maker_has() {
    for again in [Again::Ahead, Again::Behind, Again::Later] {
        let mut world = World::new(true);
        let locks = |client, wait| Step::Lock { client, owner: 0, lock: ten_bytes(), wait };
        for step in [
            locks(MAKER, Wait::No),
            Step::Tell,
            Step::Request(MAKER),
            Step::Cut(MAKER),
            locks(1, Wait::Yes),
            Step::Request(1),
            Step::Message(MAKER),
            Step::Restart(Store::WithoutFile, again),
            Step::Request(1),
        ] {
            world.do_step(&step);
        }
        assert!(world.clients[MAKER].unanswered.values().any(|call| matches!(call, Call::Return(..))));
        for _ in 0..2 {
            assert_eq!((world.locks.count_of(session(MAKER)), world.waits.len()), (1, 1));
            world.come_to_rest();
        }
    }
}

fn ten_bytes() -> Lock {
    let (family, mode) = (LockFamily::Record, LockMode::Exclusive);
    Lock { family, owner: LockOwner(0), pid: 1, start: 0, end: 9, mode }
}
