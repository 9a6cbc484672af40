//! The records of a kept log, carried out once more as ordinary operations, where nobody else was faster.
//!
//! A file is as the log left it if it is at the version that the log knows, or was last changed at the very time of one of the
//! log's records (the times of records are their own: no other change has the same).
//!
//! How far it comes is noted beside the log record by record, so that who is interrupted can go on: with what the server has
//! done, as done, and with the one that was under way, which may have been done or not. What is noted is not needed any more
//! when the server's disk has it. If a power cut of the server takes something before that, nothing of what was done since the
//! server was last asked for its disk counts as done, and the rest is left to the next time. (Not so if nobody is there to
//! notice: the power fails between the end of this program, be it killed or out of patience, and its next run.)

use super::progress::{Notes, Progress, Reached};
use super::report::{Applied, Halt, Outcome, Report};
use super::show::Paths;
use crate::client::Client;
use crate::log::disk::inodes_of;
use crate::ops::{OpenFile, OpenMode, RenameHow};
use bytes::Bytes;
use soda_oplog::segments::Found;
use soda_oplog::{Change, Object, Place, Record, Touch};
use soda_protocol::{IfExists, Lsn, NewNode, Node, Replace, SetXattr, WriteAt};
use soda_types::acl::{self, Kept, NewList};
use soda_types::semantics::is_access_list;
use soda_types::{
    Attr, Creds, Errno, Fid, FileKind, FsError, FsResult, InUse, KillPriv, SetAttr, Timestamp, Version,
};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// After so many records the server's disk is waited for.
const SETTLED: usize = 1000;

/// Carries out what can be. `before`: how far it came the last time; `paths`: those of the report.
pub(super) async fn apply(
    client: &Arc<Client>,
    found: &Found,
    before: Progress,
    mut notes: Notes,
    mut paths: Paths,
    mut progress: impl FnMut(usize),
) -> Result<Report, Halt> {
    let Progress { reached, mut done, tried, .. } = before;
    let mut work = Work {
        client,
        found,
        reached,
        tried,
        last: HashMap::new(),
        open: Vec::new(),
        spoiled: HashMap::new(),
    };
    let mut report = Report::begin(client);
    let silent = |done: usize| move |cause| Halt::Silent { done, cause };
    work.forget_nameless(&mut done).await.map_err(silent(0))?;
    for record in found.records() {
        let so_far = report.applied.len();
        let outcome = if done.contains(&record.lsn) {
            work.note_last(record);
            Outcome::Already
        } else {
            notes.note_tried(record.lsn)?;
            let carried_out = work.next(record).await;
            if let Ok((outcome, reached)) = &carried_out
                && outcome.is_done()
            {
                notes.note_done(record.lsn, reached)?;
                report.unsettled.push(record.lsn);
            }
            report.check_loss(&work, &mut notes)?;
            match carried_out {
                Ok((outcome, _)) => outcome,
                Err(cause) if [Errno::NoSpace, Errno::Quota].contains(&cause.errno) => {
                    report.settle(&work, &mut notes).await?;
                    return Err(Halt::NoRoom { done: so_far, cause });
                }
                Err(cause) => return Err(silent(so_far)(cause)),
            }
        };
        report.applied.push(Applied { record: paths.show(record), outcome });
        progress(so_far + 1);
        if (so_far + 1).is_multiple_of(SETTLED) {
            report.settle(&work, &mut notes).await?;
        }
    }
    report.settle(&work, &mut notes).await?;
    Ok(report)
}

pub(super) struct Work<'a> {
    pub(super) client: &'a Arc<Client>,
    pub(super) found: &'a Found,
    /// What the inodes of the log have become.
    reached: HashMap<Fid, Reached>,
    /// The record that was under way when somebody was interrupted.
    tried: Option<Lsn>,
    /// When the log's records changed an inode.
    last: HashMap<Fid, HashSet<Timestamp>>,
    /// Files without names.
    open: Vec<Arc<OpenFile>>,
    /// What was not done touches these.
    spoiled: HashMap<Object, Touch>,
}

enum Trouble {
    Conflict(String),
    Failed(FsError),
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Trouble {
        Trouble::Failed(error)
    }
}

fn conflict<T>(why: impl Into<String>) -> Result<T, Trouble> {
    Err(Trouble::Conflict(why.into()))
}

const CHANGED: &str = "somebody else has changed it since";

impl Work<'_> {
    /// What was done to files without names is not done any more if they got none.
    async fn forget_nameless(&mut self, done: &mut BTreeSet<Lsn>) -> FsResult<()> {
        let mut gone = HashSet::new();
        for record in self.found.records() {
            if let Change::TmpFile { fid, .. } = &record.change
                && done.contains(&record.lsn)
                && !self.has_name(*fid).await?
            {
                gone.insert(*fid);
            }
        }
        for record in self.found.records() {
            if inodes_of(&record.change).any(|fid| gone.contains(&fid)) {
                done.remove(&record.lsn);
            }
        }
        Ok(())
    }

    async fn has_name(&self, fid: Fid) -> FsResult<bool> {
        match self.client.getattr(self.now(fid)).await {
            Ok(attr) => Ok(attr.value.nlink > 0),
            Err(error) if error.errno == Errno::Stale => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Carries out one, and says how far the inodes that it touches have come by that.
    ///
    /// # Errors
    /// The server does not answer: it may have done it or not. ENOSPC, EDQUOT: it has no room, and has not done it.
    async fn next(&mut self, record: &Record) -> FsResult<(Outcome, Vec<(Fid, Reached)>)> {
        let touches = record.change.touches();
        let rests_on = |(object, touch): &(Object, Touch)| {
            self.spoiled.get(object).is_some_and(|spoiled| [*spoiled, *touch].contains(&Touch::Exclusive))
        };
        let outcome = if touches.iter().any(rests_on) {
            Outcome::LeftOut
        } else {
            let mut result = self.carry_out(record.lsn, &record.change).await;
            if let Err(Trouble::Failed(error)) = &result
                && error.errno == Errno::Io
            {
                // The server's disk fails, or the server is away, or the session was lost in between.
                self.client.tell_all().await.map_err(|_| error.clone())?;
                self.tried = Some(record.lsn);
                result = self.carry_out(record.lsn, &record.change).await;
            }
            match result {
                Ok(outcome) => outcome,
                Err(Trouble::Conflict(why)) => Outcome::Conflict(why),
                Err(Trouble::Failed(error)) => Outcome::of_failure(error)?,
            }
        };
        if !outcome.is_done() {
            for (object, touch) in touches {
                let spoiled = self.spoiled.entry(object).or_insert(touch);
                if touch == Touch::Exclusive {
                    *spoiled = touch;
                }
            }
            return Ok((outcome, Vec::new()));
        }
        self.note_last(record);
        let mut news = Vec::new();
        for fid in inodes_of(&record.change) {
            let now = self.now(fid);
            let Ok(attr) = self.client.getattr(now).await else { continue };
            let reached = Reached { now, version: attr.value.version };
            // If it was done by who was interrupted, that was one change.
            let known = self.known(fid, record.lsn).map(Version::next);
            let is_tried = self.tried == Some(record.lsn) && known == Some(reached.version);
            if outcome == Outcome::Done || is_tried {
                self.reached.insert(fid, reached);
                news.push((fid, reached));
            }
        }
        Ok((outcome, news))
    }

    fn note_last(&mut self, record: &Record) {
        for fid in inodes_of(&record.change) {
            self.last.entry(fid).or_default().insert(record.at);
        }
    }

    /// The version that an inode is at if nobody else has changed it.
    fn known(&self, fid: Fid, lsn: Lsn) -> Option<Version> {
        let reached = self.reached.get(&fid).map(|reached| reached.version);
        reached.or_else(|| self.found.version_before(fid, lsn))
    }

    async fn carry_out(&mut self, lsn: Lsn, change: &Change) -> Result<Outcome, Trouble> {
        match change {
            Change::Create { place, fid, new } => self.create(lsn, place, *fid, new).await,
            Change::TmpFile { directory, fid, new } => {
                let new = fresh(new);
                let made = self.client.tmpfile(self.now(*directory), new, OpenMode::ReadWrite).await?;
                self.has_made(*fid, made.1.fid());
                self.open.push(made.1);
                Ok(Outcome::Done)
            }
            Change::Link { fid, place } => {
                let fid = self.now(*fid);
                self.client.getattr(fid).await?;
                match self.meaning(place).await? {
                    None => drop(self.client.link(fid, self.now(place.directory), &place.name).await?),
                    Some(there) if there.fid == fid => return Ok(Outcome::Already),
                    Some(_) => return conflict("its name is taken"),
                }
                Ok(Outcome::Done)
            }
            Change::Unlink { place, fid, .. } => match self.meaning(place).await? {
                None => Ok(Outcome::Already),
                Some(there) if there.fid == self.now(*fid) => {
                    self.check_unchanged(*fid, lsn).await?;
                    self.client.unlink(self.now(place.directory), &place.name).await?;
                    Ok(Outcome::Done)
                }
                Some(_) => conflict("its name means something else now"),
            },
            Change::RemoveDirectory { place, fid } => match self.meaning(place).await? {
                None => Ok(Outcome::Already),
                Some(there) if there.fid == self.now(*fid) => {
                    self.client.rmdir(self.now(place.directory), &place.name).await?;
                    Ok(Outcome::Done)
                }
                Some(_) => conflict("its name means something else now"),
            },
            Change::Rename { from, to, moved, replaced, .. } => {
                self.rename(lsn, (from, to), *moved, replaced.map(|(fid, _)| fid), None).await
            }
            Change::Whiteout { from, to, moved, replaced, left, .. } => {
                let replaced = replaced.map(|(fid, _)| fid);
                let done = self.rename(lsn, (from, to), *moved, replaced, Some(left.1)).await?;
                if let Some(there) = self.meaning(from).await?
                    && is_whiteout(&there.attr)
                {
                    self.has_made(left.0, there.fid);
                }
                Ok(done)
            }
            Change::Exchange { one, other, .. } => self.exchange(one, other).await,
            Change::Release { .. } => Ok(Outcome::Already),
            Change::SetAttr { fid, set } => {
                let attr = self.client.getattr(self.now(*fid)).await?.value;
                if is_so(&attr, set) {
                    return Ok(Outcome::Already);
                }
                self.check_unchanged(*fid, lsn).await?;
                self.client.setattr(self.now(*fid), *set).await?;
                Ok(Outcome::Done)
            }
            Change::Write { fid, offset, data, kill_suid_sgid } => {
                self.write(lsn, *fid, *offset, &data.to_bytes(), KillPriv::when(*kill_suid_sgid)).await
            }
            Change::Allocate { fid, offset, len, how } => {
                self.check_unchanged(*fid, lsn).await?;
                let file = self.client.open(self.now(*fid), OpenMode::ReadWrite).await?;
                self.client.fallocate(&file, *offset, *len, *how, KillPriv::Keep).await?;
                Ok(Outcome::Done)
            }
            Change::SetXattr { fid, name, value, kill_sgid, .. } => {
                let now = self.now(*fid);
                let kill = KillPriv::when(*kill_sgid);
                if self.has_xattr(now, name, value, kill).await? {
                    return Ok(Outcome::Already);
                }
                self.check_unchanged(*fid, lsn).await?;
                self.client.setxattr(now, name, value, SetXattr::Either, kill).await?;
                Ok(Outcome::Done)
            }
            Change::RemoveXattr { fid, name } => {
                let now = self.now(*fid);
                if self.client.getxattr(now, name).await.is_err_and(|error| error.errno == Errno::NoData) {
                    return Ok(Outcome::Already);
                }
                self.check_unchanged(*fid, lsn).await?;
                self.client.removexattr(now, name).await?;
                Ok(Outcome::Done)
            }
        }
    }

    /// Whether an inode is as it is with this extended attribute: of an access list the permission bits say some, or all.
    async fn has_xattr(&self, fid: Fid, name: &[u8], value: &[u8], kill: KillPriv) -> FsResult<bool> {
        let known = match self.client.getxattr(fid, name).await {
            Err(error) if error.errno == Errno::NoData => None,
            known => Some(known?),
        };
        if !is_access_list(name) {
            return Ok(known.is_some_and(|known| known == value));
        }
        let attr = self.client.getattr(fid).await?.value;
        let new = NewList { name, list: value, kill_sgid: kill.kills() };
        let set = acl::set_list(attr.kind, attr.perm, &new)?;
        let expected = (set.kept == Kept::Yes).then_some(value);
        Ok(set.perm == attr.perm && known.as_deref() == expected)
    }

    async fn create(&mut self, lsn: Lsn, place: &Place, fid: Fid, new: &NewNode) -> Result<Outcome, Trouble> {
        match self.meaning(place).await? {
            None => {
                let directory = self.now(place.directory);
                let entry = self.client.create(directory, &place.name, fresh(new)).await?;
                let node = entry.node.ok_or_else(|| FsError::new(Errno::Io, "created nothing"))?;
                self.has_made(fid, node.fid);
                Ok(Outcome::Done)
            }
            Some(there) if there.fid == self.now(fid) => Ok(Outcome::Already),
            Some(there) if self.tried == Some(lsn) && self.is_as_made(there.fid, new).await? => {
                self.has_made(fid, there.fid);
                Ok(Outcome::Done)
            }
            Some(_) => conflict("its name is taken"),
        }
    }

    /// Whether nothing has been done to an inode since it was made like that.
    async fn is_as_made(&self, fid: Fid, new: &NewNode) -> FsResult<bool> {
        let attr = self.client.getattr(fid).await?.value;
        let is_new = attr.kind == new.kind && attr.ctime == attr.btime && attr.mtime == attr.btime;
        match attr.kind {
            FileKind::Symlink if is_new => Ok(self.client.readlink(fid).await? == new.target),
            _ => Ok(is_new),
        }
    }

    async fn rename(
        &mut self,
        lsn: Lsn,
        (from, to): (&Place, &Place),
        moved: Fid,
        replaced: Option<Fid>,
        whiteout: Option<Creds>,
    ) -> Result<Outcome, Trouble> {
        let now = self.now(moved);
        let target = self.meaning(to).await?.map(|node| node.fid);
        match self.meaning(from).await? {
            None if target == Some(now) && whiteout.is_none() => return Ok(Outcome::Already),
            Some(left) if target == Some(now) && whiteout.is_some() && is_whiteout(&left.attr) => {
                return Ok(Outcome::Already);
            }
            Some(there) if there.fid == now => {}
            _ => return conflict("its name means something else now"),
        }
        match (target, replaced) {
            (None, _) => {}
            (Some(target), Some(replaced)) if target == self.now(replaced) => {
                self.check_unchanged(replaced, lsn).await?;
            }
            _ => return conflict("its new name is taken"),
        }
        let (from_dir, to_dir) = (self.now(from.directory), self.now(to.directory));
        let how = whiteout
            .map_or(RenameHow::Plain, |creds| RenameHow::Whiteout { existing: Replace::Allowed, creds });
        self.client.rename(from_dir, &from.name, to_dir, &to.name, how).await?;
        Ok(Outcome::Done)
    }

    async fn exchange(&mut self, one: &(Place, Fid), other: &(Place, Fid)) -> Result<Outcome, Trouble> {
        let means = (self.meaning(&one.0).await?, self.meaning(&other.0).await?);
        let means = (means.0.map(|node| node.fid), means.1.map(|node| node.fid));
        let before = (Some(self.now(one.1)), Some(self.now(other.1)));
        if means == (before.1, before.0) {
            return Ok(Outcome::Already);
        }
        if means != before {
            return conflict("one of the names means something else now");
        }
        let (first, second) = (self.now(one.0.directory), self.now(other.0.directory));
        self.client.rename(first, &one.0.name, second, &other.0.name, RenameHow::Exchange).await?;
        Ok(Outcome::Done)
    }

    async fn write(
        &mut self,
        lsn: Lsn,
        fid: Fid,
        offset: u64,
        data: &Bytes,
        kill: KillPriv,
    ) -> Result<Outcome, Trouble> {
        let file = self.client.open(self.now(fid), OpenMode::ReadWrite).await?;
        if self.holds(&file, offset, data).await? {
            return Ok(Outcome::Already);
        }
        self.check_unchanged(fid, lsn).await?;
        self.client.write_all(&file, WriteAt::Offset(offset), data.clone(), kill).await?;
        Ok(Outcome::Done)
    }

    async fn holds(&self, file: &OpenFile, offset: u64, data: &Bytes) -> FsResult<bool> {
        let mut at = 0;
        while at < data.len() {
            let wanted = (data.len() - at).min(self.client.max_io() as usize);
            let there = self.client.read(file, offset + at as u64, wanted as u32).await?.to_bytes();
            if there != data[at..at + wanted] {
                return Ok(false);
            }
            at += wanted;
        }
        Ok(true)
    }

    fn has_made(&mut self, fid: Fid, now: Fid) {
        self.reached.insert(fid, Reached { now, version: Version(0) });
    }

    /// The number that an inode of the log has now.
    pub(super) fn now(&self, fid: Fid) -> Fid {
        self.reached.get(&fid).map_or(fid, |reached| reached.now)
    }

    async fn meaning(&self, place: &Place) -> Result<Option<Node>, Trouble> {
        match self.client.lookup(self.now(place.directory), &place.name).await {
            Ok(entry) => Ok(entry.node),
            Err(error) if [Errno::Stale, Errno::NoEntry].contains(&error.errno) => {
                conflict("its directory is gone")
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nobody else has changed an inode since the log did.
    async fn check_unchanged(&self, fid: Fid, lsn: Lsn) -> Result<(), Trouble> {
        let now = self.now(fid);
        let attr = self.client.getattr(now).await?.value;
        let by_us = self.reached.get(&fid).is_some_and(|reached| reached.version == attr.version);
        let as_known = self.found.version_before(fid, lsn) == Some(attr.version);
        let by_log = self.last.get(&fid).is_some_and(|times| times.contains(&attr.ctime));
        if by_us || as_known || by_log { Ok(()) } else { conflict(CHANGED) }
    }
}

fn fresh(new: &NewNode) -> NewNode {
    NewNode { existing: IfExists::Fail, open: InUse::No, ..new.clone() }
}

fn is_whiteout(attr: &Attr) -> bool {
    attr.kind == FileKind::CharDevice && attr.rdev == 0
}

/// Whether the attributes are as they would be set. Times are not looked at: where one is set, that is to be done.
fn is_so(attr: &Attr, set: &SetAttr) -> bool {
    set.atime.is_none()
        && set.mtime.is_none()
        && !set.kill_suid_sgid
        && set.perm.is_none_or(|perm| perm == attr.perm)
        && set.uid.is_none_or(|uid| uid == attr.uid)
        && set.gid.is_none_or(|gid| gid == attr.gid)
        && set.size.is_none_or(|size| size == attr.size)
}
