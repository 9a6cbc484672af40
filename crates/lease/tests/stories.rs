//! Runs the stories under `testdata/`: the protocol told to a newcomer, command by command, with what comes of each.
//!
//! A story is a list of blocks: comments (`#`) and commands, then `----`, then what happened. Messages do not travel by
//! themselves: an answer arrives with `reply op1`, a recall with `recalled s1 7`, its answer with `dropped s1 7`.
//! `UPDATE=1 cargo test -p soda-lease --test stories` writes down what happens now; read the difference before you
//! commit it.

use soda_lease::table::{
    Access, BackOff, Created, DeepLeases, Equation8, Hole, LeaseTable, Moved, ObjectTerm, OpKey, Outcome,
    Output, TableConfig, TreeChanges,
};
use soda_lease::{DriftMargin, Holder, HolderConfig, RecallStep, Ticket};
use soda_types::{
    Cause, Coverage, Epoch, Fid, FileKind, Grant, InUse, Ino, LeasePart, Mode, Monotonic, Recall, RecallAck,
    Scope, SessionId, VolumeId,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const TERM: Duration = Duration::from_secs(10);

#[test]
fn stories() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 8, "stories are missing");
    for path in paths {
        let told = std::fs::read_to_string(&path).unwrap();
        let happened = retell(&told);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &happened).unwrap();
        } else {
            assert_eq!(happened, told, "{}", path.display());
        }
    }
}

/// The story with what happens now in place of what it says.
fn retell(story: &str) -> String {
    let mut cell = Cell::new();
    let mut out = String::new();
    for block in story.split("\n\n").filter(|block| !block.trim().is_empty()) {
        let asked: Vec<&str> = block.trim_matches('\n').lines().take_while(|line| *line != "----").collect();
        let commands: Vec<&str> = asked.iter().copied().filter(|line| !line.starts_with('#')).collect();
        if !out.is_empty() {
            out += "\n";
        }
        out += &(asked.join("\n") + "\n");
        if commands.is_empty() {
            continue;
        }
        commands.iter().for_each(|command| cell.run(command));
        let lines = std::mem::take(&mut cell.lines);
        let happened = if lines.is_empty() { "nothing".to_owned() } else { lines.join("\n") };
        out += &format!("----\n{happened}\n");
    }
    out
}

/// A server's table and the holders of its clients.
struct Cell {
    now: Monotonic,
    config: TableConfig,
    table: LeaseTable,
    holders: BTreeMap<u64, Holder>,
    tickets: BTreeMap<u64, (u64, Ticket)>,
    answers: BTreeMap<u64, Vec<Grant>>,
    /// The last recall of each client and object, and the epoch of the work on it.
    recalls: BTreeMap<(u64, u64), Recall>,
    working: BTreeMap<(u64, u64), Epoch>,
    /// The same of what is asked out of a deep lease, by the object.
    parts: BTreeMap<(u64, u64), (Fid, Epoch)>,
    /// Where things lie, once deep leases are on.
    parents: BTreeMap<u64, u64>,
    covered: BTreeMap<u64, Vec<Coverage>>,
    /// Answers that were given and have not arrived.
    acks: BTreeMap<(u64, u64), RecallAck>,
    ops: u64,
    lines: Vec<String>,
}

fn fid(word: &str) -> Fid {
    Fid::new(VolumeId(1), Ino(word.parse().unwrap_or_else(|_| panic!("not an inode: {word}"))))
}

fn session(word: &str) -> u64 {
    word.trim_start_matches('s').parse().unwrap_or_else(|_| panic!("not a session: {word}"))
}

fn op(word: &str) -> u64 {
    word.trim_start_matches("op").parse().unwrap_or_else(|_| panic!("not an operation: {word}"))
}

fn secs(word: &str) -> Duration {
    Duration::from_secs_f64(
        word.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("not a time: {word}")),
    )
}

fn keeps(mode: Option<Mode>) -> &'static str {
    match mode {
        None => "nothing",
        Some(Mode::Read) => "reading",
        Some(Mode::Write) => "writing",
    }
}

fn hole_in_words(hole: Hole) -> &'static str {
    match hole {
        Hole::KeepsReading => "keeps reading",
        Hole::Object => "keeps nothing",
        Hole::Tree => "and all below it keep nothing",
    }
}

fn named(lease: Fid, epoch: Epoch, part: Option<LeasePart>) -> String {
    match part {
        None => format!("{lease} {epoch}"),
        Some(part) if part == LeasePart::tree(lease) => format!("deep {lease} ({epoch})"),
        Some(LeasePart { fid, scope: Scope::Node }) => format!("{fid} out of deep {lease} ({epoch})"),
        Some(LeasePart { fid, .. }) => format!("all below {fid} out of deep {lease} ({epoch})"),
    }
}

impl Cell {
    fn new() -> Cell {
        let config = TableConfig {
            equation_8: Equation8::Off,
            back_off: BackOff::Off,
            ..TableConfig::with_term(TERM)
        };
        let now = Monotonic::ZERO;
        Cell {
            now,
            table: LeaseTable::new(config.clone(), Epoch(1), now),
            config,
            holders: BTreeMap::new(),
            tickets: BTreeMap::new(),
            answers: BTreeMap::new(),
            recalls: BTreeMap::new(),
            working: BTreeMap::new(),
            parts: BTreeMap::new(),
            parents: BTreeMap::new(),
            covered: BTreeMap::new(),
            acks: BTreeMap::new(),
            ops: 0,
            lines: Vec::new(),
        }
    }

    fn say(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    fn holder(&mut self, number: u64) -> &mut Holder {
        self.holders.get_mut(&number).unwrap_or_else(|| panic!("s{number} is not open"))
    }

    fn run(&mut self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        match words.as_slice() {
            ["object-term", term] => {
                self.config.object_term = ObjectTerm::For(secs(term));
                self.table = LeaseTable::new(self.config.clone(), Epoch(1), self.now);
            }
            ["deep-leases", "after", number] => {
                let after = number.parse().expect("a number");
                self.config.deep_leases = DeepLeases::On { after, max_holes: 8 };
                self.table = LeaseTable::new(self.config.clone(), Epoch(1), self.now);
            }
            ["tree", paths @ ..] => {
                for path in paths {
                    let inodes: Vec<u64> = path.split('/').map(|word| fid(word).ino.0).collect();
                    self.parents.extend(inodes.windows(2).map(|pair| (pair[1], pair[0])));
                }
            }
            ["holes", who, what] => {
                let holes = self.table.holes(SessionId(session(who)), fid(what));
                let list: Vec<String> =
                    holes.iter().map(|(fid, hole)| format!("{fid} {}", hole_in_words(*hole))).collect();
                self.say(format!("server: {who}'s deep lease on {} has {list:?}", fid(what)));
            }
            ["open", sessions @ ..] => {
                for word in sessions {
                    let margin = HolderConfig { drift_margin: DriftMargin::NONE };
                    let mut holder = Holder::new(margin);
                    holder.start_session(self.now, self.now, SessionId(session(word)), TERM);
                    self.holders.insert(session(word), holder);
                    self.table.open_session(self.now, SessionId(session(word)));
                }
            }
            ["at", time] => self.pass(Monotonic::ZERO + secs(time)),
            ["restart", "knows", known @ ..] => {
                self.table = LeaseTable::new(self.config.clone(), Epoch(1000), self.now);
                self.table.begin_grace(self.now, known.iter().map(|word| SessionId(session(word))));
            }
            ["finish", word] => self.finish(word, &TreeChanges::default()),
            ["finish", word, "making", what, "in", parent] => {
                self.parents.insert(fid(what).ino.0, fid(parent).ino.0);
                let made = Created { fid: fid(what), kind: FileKind::Directory, parent: Some(fid(parent)) };
                self.finish(word, &TreeChanges { created: vec![made], ..TreeChanges::default() });
            }
            ["finish", word, "moving", what, "to", parent] => {
                self.parents.insert(fid(what).ino.0, fid(parent).ino.0);
                let (kind, above) = (FileKind::Directory, self.above(fid(what)));
                let moved = vec![Moved { fid: fid(what), kind, above }];
                self.finish(word, &TreeChanges { moved, ..TreeChanges::default() });
            }
            ["reply", word] => {
                let (number, ticket) = self.tickets[&op(word)];
                let grants = self.answers.remove(&op(word)).unwrap_or_default();
                let covered = self.covered.remove(&op(word)).unwrap_or_default();
                let now = self.now;
                self.holder(number).handle_reply_covered(now, ticket, &grants, &covered);
            }
            ["recalled", who, what] => self.recalled(session(who), what),
            ["dropped", who, what] => {
                self.drops(session(who), what);
                self.ack_arrives(session(who), what);
            }
            // The answer is given, and travels for a while.
            ["drops", who, what] => self.drops(session(who), what),
            ["ack", who, what] => self.ack_arrives(session(who), what),
            [who, "may", how, what] => {
                let mode = if *how == "read" { Mode::Read } else { Mode::Write };
                let now = self.now;
                let until = self.holder(session(who)).valid_until(now, fid(what), mode);
                self.say(match until {
                    Some(until) => format!("{who}: yes, until {}", show(until)),
                    None => format!("{who}: no"),
                });
            }
            [who, "runs", how, what] => {
                self.request(session(who), how, what);
                let word = format!("op{}", self.ops);
                self.run(&format!("finish {word}"));
                self.run(&format!("reply {word}"));
            }
            [who, how @ ("reads" | "changes"), what] => self.request(session(who), how, what),
            [who, "renews"] => {
                let (now, number) = (self.now, session(who));
                let ticket = self.holder(number).begin_request(now);
                match self.table.handle_traffic(now, SessionId(number)) {
                    Ok(()) => self.holder(number).handle_reply(now, ticket, &[]),
                    Err(error) => {
                        let lost = self.holder(number).handle_session_lost(now);
                        self.say(format!("{who}: {error}; gives up {lost:?}"));
                    }
                }
            }
            [who, "releases", what] => {
                let now = self.now;
                let release = self.holder(session(who)).release(now, fid(what));
                if let Some(release) = release {
                    self.table.handle_release(now, SessionId(session(who)), &[release]);
                }
            }
            [who, "reports", "progress", what] => {
                self.table.handle_progress(self.now, SessionId(session(who)), &[fid(what)]);
            }
            [who, "says", "goodbye"] => self.table.close_session(self.now, SessionId(session(who))),
            [who, "reclaims"] => self.reclaims(session(who)),
            _ => panic!("unknown command: {command}"),
        }
        self.outputs();
    }

    fn above(&self, what: Fid) -> Vec<Fid> {
        let up = |fid: &Fid| Some(Fid::new(VolumeId(1), Ino(*self.parents.get(&fid.ino.0)?)));
        std::iter::successors(up(&what), up).collect()
    }

    fn finish(&mut self, word: &str, changes: &TreeChanges) {
        let granted = self.table.finish_tree(self.now, OpKey(op(word)), Outcome::Applied, changes);
        let list: Vec<String> = granted.leases.iter().map(Grant::to_string).collect();
        let with = if list.is_empty() { "no lease".to_owned() } else { list.join(", ") };
        let says =
            |covered: &Coverage| format!("; {} {} is under {}", covered.mode, covered.fid, covered.root);
        let covered: String = granted.covered.iter().map(says).collect();
        self.say(format!("server: answers {word} with {with}{covered}"));
        self.answers.insert(op(word), granted.leases);
        self.covered.insert(op(word), granted.covered);
    }

    fn request(&mut self, number: u64, how: &str, what: &str) {
        self.ops += 1;
        let now = self.now;
        let ticket = self.holder(number).begin_request(now);
        self.tickets.insert(self.ops, (number, ticket));
        let as_of = self.table.tree_version();
        let access = |word: &str| {
            let access = match how {
                "reads" => Access::read(fid(word)),
                _ => Access::change(fid(word), Cause::Data),
            };
            if self.parents.is_empty() { access } else { access.below(as_of, self.above(fid(word))) }
        };
        let accesses = what.split(',').map(access).collect();
        let _ = self.table.handle_traffic(now, SessionId(number));
        self.table.request(now, SessionId(number), OpKey(self.ops), accesses);
        let waits = self.table.waiting_count();
        self.outputs();
        if waits > 0 && !self.lines.last().is_some_and(|line| line.contains(&format!("op{} ", self.ops))) {
            self.say(format!("server: op{} waits", self.ops));
        }
    }

    fn recalled(&mut self, number: u64, what: &str) {
        let recall = self.recalls[&(number, fid(what).ino.0)].clone();
        let now = self.now;
        match self.holder(number).handle_recall(now, &recall) {
            RecallStep::AlreadyGone(ack) => {
                let what = named(ack.fid, ack.epoch, ack.part);
                self.say(format!("s{number}: {what} is gone already, keeps {}", keeps(ack.kept)));
                self.table.handle_acks(now, SessionId(number), &[ack]);
            }
            RecallStep::Working => self.say(format!("s{number}: is at work on that")),
            RecallStep::DropPart { lease, epoch, keep, inside } => {
                self.parts.insert((number, fid(what).ino.0), (lease, epoch));
                self.say(format!("s{number}: brings its caches of {inside:?} down to {}", keeps(keep)));
            }
            RecallStep::Drop { fid, epoch, keep } => {
                self.working.insert((number, fid.ino.0), epoch);
                self.say(format!("s{number}: brings its caches of {fid} down to {}", keeps(keep)));
            }
        }
    }

    fn drops(&mut self, number: u64, what: &str) {
        let (now, key) = (self.now, (number, fid(what).ino.0));
        let ack = match self.parts.remove(&key) {
            Some((lease, epoch)) => self.holder(number).finish_part(lease, epoch, InUse::No),
            None => {
                let epoch = self.working[&key];
                self.holder(number).finish_recall(now, fid(what), epoch, InUse::No)
            }
        };
        let asked = named(ack.fid, ack.epoch, ack.part);
        self.say(format!("s{number}: answers {asked}, keeps {}", keeps(ack.kept)));
        self.acks.insert(key, ack);
    }

    fn ack_arrives(&mut self, number: u64, what: &str) {
        let ack = self.acks.remove(&(number, fid(what).ino.0)).expect("an answer on the way");
        self.table.handle_acks(self.now, SessionId(number), &[ack]);
    }

    fn reclaims(&mut self, number: u64) {
        let now = self.now;
        let session = SessionId(number);
        let sent_at = now;
        if let Err(error) = self.table.handle_traffic(now, session) {
            let lost = self.holder(number).handle_session_lost(now);
            return self.say(format!("s{number}: {error}; gives up {lost:?}"));
        }
        self.holder(number).start_session(now, sent_at, session, TERM);
        let held = self.holder(number).reclaim_list(now);
        let ticket = self.holder(number).begin_request(now);
        let answers = self.table.handle_reclaim(now, session, &held).expect("known");
        self.table.finish_reclaim(now, session);
        let refused = self.holder(number).handle_reclaimed(now, ticket, &held, &answers);
        let list: Vec<String> = answers.iter().flatten().map(Grant::to_string).collect();
        self.say(format!("s{number}: has {list:?}, was refused {refused:?}"));
    }

    fn pass(&mut self, until: Monotonic) {
        while let Some(wake) = self.table.poll_timeout().filter(|wake| *wake <= until) {
            self.now = self.now.max(wake);
            self.table.handle_timeout(self.now);
            let before = self.lines.len();
            self.outputs();
            if self.lines.len() > before {
                let at = show(self.now);
                self.lines[before..].iter_mut().for_each(|line| *line = format!("{at} {line}"));
            }
        }
        self.now = until;
    }

    fn outputs(&mut self) {
        while let Some(output) = self.table.poll_output() {
            let line = match output {
                Output::Admit(op) => format!("op{} runs", op.0),
                Output::Refuse(op, refusal) => format!("op{} is refused: {refusal}", op.0),
                Output::Recall { session, recall } => {
                    let what = named(recall.fid, recall.epoch, recall.part);
                    let line = format!("asks s{} for {what}, to keep {}", session.0, keeps(recall.to));
                    let object = recall.asked();
                    self.recalls.insert((session.0, object.ino.0), recall);
                    line
                }
                Output::Fence { session, reason } => format!("ends s{}: {reason}", session.0),
                Output::SessionInUse { session, fid } => format!("s{} has {fid} open", session.0),
                Output::Inquire { session, fid, .. } => format!("s{} is asked about {fid}", session.0),
                Output::NotDescribed(op) => format!("op{} is not described", op.0),
            };
            self.say(format!("server: {line}"));
        }
    }
}

fn show(time: Monotonic) -> String {
    format!("{:.1}s", time.as_nanos() as f64 / 1e9)
}
