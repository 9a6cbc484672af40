//! Numbered work on a small tree, of every kind that a log can hold, and what the tree is like after each step: so what is
//! found of it can be told to be a beginning of what was done, across all objects.

use crate::common::delayed::{find, mkdir};
use crate::common::*;
use soda_client::{Allocate, Client, RenameHow};
use soda_protocol::{Replace, SetXattr, WriteAt};
use soda_types::{SetAttr, SetTime, Timestamp};
use std::collections::BTreeMap;
use std::fmt;

/// The tree's name in the root. It is there before the first step.
pub(crate) const TOP: &str = "work";

const XATTR: &[u8] = b"user.step";
/// Some second; all before a later one were said and not done.
const LONG_AGO: i64 = 1_000_000_000;
const NOT_SO_LONG_AGO: i64 = 1_500_000_000;
/// Of a whiteout.
const CREDS: Creds = Creds { uid: 5, gid: 6, pid: 7 };

/// One change, by paths below the top.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Mkdir(String),
    Make(String),
    Write(String, u64, String),
    Truncate(String, u64),
    Chmod(String, u16),
    SetXattr(String, String),
    Symlink(String, String),
    Link(String, String),
    Rename(String, String),
    /// The same where nothing may be there.
    NoReplace(String, String),
    Exchange(String, String),
    /// A rename that leaves a whiteout.
    Whiteout(String, String),
    /// Made without a name, written and then linked.
    Named(String, String),
    Fifo(String),
    Fallocate(String, u64, u64, Allocate),
    Chown(String, u32, u32),
    /// Of the last change; seconds since 1970.
    SetTime(String, i64),
    RemoveXattr(String),
    Unlink(String),
    Rmdir(String),
}

/// What is to be seen of an inode.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    kind: FileKind,
    /// Of a file its data, of a link its target.
    content: String,
    perm: u16,
    owner: (u32, u32),
    nlink: u32,
    xattr: Option<String>,
    /// When it was changed last, if that was said and not done.
    time: Option<i64>,
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { kind, content, perm, owner, nlink, xattr, time } = self;
        write!(f, "{kind:?} {content:?} {perm:o} {owner:?} {nlink} {xattr:?} {time:?}")
    }
}

/// A tree: what each path is.
pub(crate) type Picture = BTreeMap<String, Seen>;

/// Some rounds of everything: files and directories that come, are changed, linked, moved about, replaced and removed.
pub(crate) fn steps(rounds: usize) -> Vec<Step> {
    use Step::*;
    let mut steps = vec![Make("keep".into()), Write("keep".into(), 0, "first".into())];
    for round in 0..rounds {
        let at = |text: &str| format!("{round}/{text}");
        let (out, moved) = (format!("out{round}"), format!("moved{round}"));
        steps.extend([
            Mkdir(round.to_string()),
            Make(at("a")),
            Write(at("a"), 0, format!("a of {round}")),
            Make(at("b")),
            Write(at("b"), 0, format!("b of {round}")),
            SetXattr(at("a"), format!("x{round}")),
            Link(at("a"), at("c")),
            Symlink(at("s"), "a".into()),
            Rename(at("b"), out.clone()),
            Truncate(at("a"), 3),
            Mkdir(at("d")),
            Make(at("d/x")),
            Write(at("d/x"), 0, "before".into()),
            Rename(at("d"), moved.clone()),
            Write(format!("{moved}/x"), 3, " and after".into()),
            Link(format!("{moved}/x"), at("linked")),
            Unlink(at("c")),
            Rename(out, "keep".into()),
            Make(at("gone")),
            Write(at("gone"), 0, "nobody sees it".into()),
            Unlink(at("gone")),
            Mkdir(at("e")),
            Rmdir(at("e")),
            Chmod(at("a"), 0o600),
            Unlink(at("s")),
            Symlink(at("s"), "b".into()),
            Named(at("t"), "named later".into()),
            NoReplace(at("t"), at("u")),
            SetTime(at("u"), LONG_AGO + round as i64),
            Exchange(at("u"), at("a")),
            Whiteout(at("a"), at("under")),
            Chown(at("under"), 7, 8 + round as u32),
            Fifo(at("fifo")),
            Mkdir(at("x")),
            Make(at("x/y")),
            Exchange(at("x"), at("fifo")),
            SetTime(at("u"), LONG_AGO),
            Fallocate(at("u"), 0, 9, Allocate::Extend),
            Write(at("u"), 2, "a longer text".into()),
            Fallocate(at("u"), 4, 6, Allocate::PunchHole),
            RemoveXattr(at("u")),
        ]);
        if round > 0 {
            let old = format!("moved{}", round - 1);
            steps.extend([Unlink(format!("{old}/x")), Rmdir(old)]);
            steps.push(Rename(at("linked"), format!("{}/linked", round - 1)));
        }
    }
    steps
}

/// The tree before the first step, after it, and so on.
pub(crate) fn pictures(steps: &[Step]) -> Vec<Picture> {
    let mut model = Model::default();
    let mut all = vec![model.picture()];
    for step in steps {
        model.apply(step);
        all.push(model.picture());
    }
    all
}

#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    nodes: Vec<Seen>,
}

impl Model {
    fn add(&mut self, path: &str, kind: FileKind, content: &str) {
        let perm = if kind == FileKind::Symlink { 0o777 } else { 0o755 };
        self.names.insert(path.to_owned(), self.nodes.len());
        let (owner, content) = ((0, 0), content.to_owned());
        self.nodes.push(Seen { kind, content, perm, owner, nlink: 1, xattr: None, time: None });
    }

    /// Everything at and below a path is at or below another one, and the other way round.
    fn exchange(&mut self, one: &str, other: &str) {
        let instead = |path: &str| {
            let under =
                |from: &str| path.strip_prefix(from).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            let moved = under(one).map(|rest| format!("{other}{rest}"));
            moved.or_else(|| under(other).map(|rest| format!("{one}{rest}")))
        };
        let names = std::mem::take(&mut self.names).into_iter();
        self.names = names.map(|(path, node)| (instead(&path).unwrap_or(path), node)).collect();
    }

    fn written(&mut self, path: &str) -> &mut String {
        let node = self.node(path);
        node.time = None;
        &mut node.content
    }

    fn node(&mut self, path: &str) -> &mut Seen {
        &mut self.nodes[self.names[path]]
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Mkdir(path) => self.add(path, FileKind::Directory, ""),
            Step::Make(path) => self.add(path, FileKind::File, ""),
            Step::Symlink(path, target) => self.add(path, FileKind::Symlink, target),
            Step::Write(path, at, data) => {
                let content = self.written(path);
                content.truncate(*at as usize);
                content.push_str(data);
            }
            Step::Truncate(path, size) => self.written(path).truncate(*size as usize),
            Step::Fallocate(path, at, len, how) => {
                let (at, end, content) = (*at as usize, (*at + *len) as usize, self.written(path));
                match how {
                    Allocate::Extend => {
                        content.extend(std::iter::repeat_n('\0', end.saturating_sub(content.len())))
                    }
                    Allocate::PunchHole => content.replace_range(at..end, &"\0".repeat(end - at)),
                    other => panic!("{other:?}"),
                }
            }
            Step::Named(path, data) => self.add(path, FileKind::File, data),
            Step::Fifo(path) => self.add(path, FileKind::Fifo, ""),
            Step::Chown(path, uid, gid) => self.node(path).owner = (*uid, *gid),
            Step::SetTime(path, secs) => self.node(path).time = Some(*secs),
            Step::RemoveXattr(path) => self.node(path).xattr = None,
            Step::Exchange(one, other) => self.exchange(one, other),
            Step::Whiteout(from, to) => {
                self.apply(&Step::Rename(from.clone(), to.clone()));
                self.add(from, FileKind::CharDevice, "");
                let left = self.node(from);
                (left.perm, left.owner) = (0, (CREDS.uid, CREDS.gid));
            }
            Step::Chmod(path, perm) => self.node(path).perm = *perm,
            Step::SetXattr(path, value) => self.node(path).xattr = Some(value.clone()),
            Step::Link(from, to) => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Step::Unlink(path) | Step::Rmdir(path) => {
                self.names.remove(path);
            }
            Step::Rename(from, to) | Step::NoReplace(from, to) => {
                let below = format!("{from}/");
                let moved = |path: &str| path == from || path.starts_with(&below);
                let (moving, rest): (Vec<_>, Vec<_>) =
                    std::mem::take(&mut self.names).into_iter().partition(|(path, _)| moved(path));
                self.names = rest.into_iter().collect();
                let renamed =
                    moving.into_iter().map(|(path, node)| (format!("{to}{}", &path[from.len()..]), node));
                self.names.extend(renamed);
            }
        }
    }

    fn picture(&self) -> Picture {
        let count = |node: usize| self.names.values().filter(|other| **other == node).count() as u32;
        let seen = |node: usize| {
            let nlink = if self.nodes[node].kind == FileKind::Directory { 0 } else { count(node) };
            Seen { nlink, ..self.nodes[node].clone() }
        };
        self.names.iter().map(|(path, node)| (path.clone(), seen(*node))).collect()
    }
}

/// Makes the tree, empty, and has the server know of it.
pub(crate) async fn begin(client: &Arc<Client>) {
    mkdir(client, client.root(), TOP).await;
    client.sync_all().await.unwrap();
}

/// The directory and the last name of a path.
async fn place(client: &Arc<Client>, path: &str) -> (Fid, Name) {
    let (dir, last) = path.rsplit_once('/').map_or(("", path), |(dir, last)| (dir, last));
    let above: Vec<&str> =
        std::iter::once(TOP).chain(dir.split('/').filter(|part| !part.is_empty())).collect();
    (find(client, &above).await.expect(path), name(last))
}

async fn meant(client: &Arc<Client>, path: &str) -> Fid {
    let (dir, last) = place(client, path).await;
    client.lookup(dir, &last).await.unwrap().node.expect(path).fid
}

/// Does one step.
pub(crate) async fn take(client: &Arc<Client>, step: &Step) {
    match step {
        Step::Mkdir(path) | Step::Make(path) => {
            let (dir, last) = place(client, path).await;
            let kind = if matches!(step, Step::Make(_)) { FileKind::File } else { FileKind::Directory };
            client.create(dir, &last, NewNode { existing: IfExists::Fail, ..new_node(kind) }).await.unwrap();
        }
        Step::Symlink(path, target) => {
            let (dir, last) = place(client, path).await;
            let new = NewNode { target: target.clone().into_bytes(), ..new_node(FileKind::Symlink) };
            client.create(dir, &last, new).await.unwrap();
        }
        Step::Write(path, at, data) => {
            let file = client.open(meant(client, path).await, OpenMode::ReadWrite).await.unwrap();
            client.write_all(&file, WriteAt::Offset(*at), data.clone().into(), KillPriv::Keep).await.unwrap();
        }
        Step::Truncate(path, size) => {
            let set = SetAttr { size: Some(*size), ..SetAttr::default() };
            client.setattr(meant(client, path).await, set).await.unwrap();
        }
        Step::Chmod(path, perm) => {
            let set = SetAttr { perm: Some(*perm), ..SetAttr::default() };
            client.setattr(meant(client, path).await, set).await.unwrap();
        }
        Step::SetXattr(path, value) => {
            let fid = meant(client, path).await;
            client.setxattr(fid, XATTR, value.as_bytes(), SetXattr::Either, KillPriv::Keep).await.unwrap();
        }
        Step::RemoveXattr(path) => client.removexattr(meant(client, path).await, XATTR).await.unwrap(),
        Step::Chown(path, uid, gid) => {
            let set = SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() };
            client.setattr(meant(client, path).await, set).await.unwrap();
        }
        Step::SetTime(path, secs) => {
            let set = SetAttr { mtime: Some(SetTime::At(Timestamp::new(*secs, 5))), ..SetAttr::default() };
            client.setattr(meant(client, path).await, set).await.unwrap();
        }
        Step::Fallocate(path, at, len, how) => {
            let file = client.open(meant(client, path).await, OpenMode::ReadWrite).await.unwrap();
            client.fallocate(&file, *at, *len, *how, KillPriv::Keep).await.unwrap();
        }
        Step::Named(path, data) => {
            let (dir, last) = place(client, path).await;
            let (_, file) = client.tmpfile(dir, new_node(FileKind::File), OpenMode::ReadWrite).await.unwrap();
            write(client, &file, 0, data.clone()).await;
            client.link(file.fid(), dir, &last).await.unwrap();
        }
        Step::Fifo(path) => {
            let (dir, last) = place(client, path).await;
            client.create(dir, &last, new_node(FileKind::Fifo)).await.unwrap();
        }
        Step::Link(from, to) => {
            let fid = meant(client, from).await;
            let (dir, last) = place(client, to).await;
            client.link(fid, dir, &last).await.unwrap();
        }
        Step::Rename(from, to)
        | Step::NoReplace(from, to)
        | Step::Exchange(from, to)
        | Step::Whiteout(from, to) => {
            let how = match step {
                Step::NoReplace(..) => RenameHow::NoReplace,
                Step::Exchange(..) => RenameHow::Exchange,
                Step::Whiteout(..) => RenameHow::Whiteout { existing: Replace::Refused, creds: CREDS },
                _ => RenameHow::Plain,
            };
            let (from, to) = (place(client, from).await, place(client, to).await);
            client.rename(from.0, &from.1, to.0, &to.1, how).await.unwrap();
        }
        Step::Unlink(path) => {
            let (dir, last) = place(client, path).await;
            client.unlink(dir, &last).await.unwrap();
        }
        Step::Rmdir(path) => {
            let (dir, last) = place(client, path).await;
            client.rmdir(dir, &last).await.unwrap();
        }
    }
}

/// The tree as this client sees it. `None`: there is none.
pub(crate) async fn look(client: &Arc<Client>) -> Option<Picture> {
    let mut picture = Picture::new();
    let mut todo = vec![(String::new(), find(client, &[TOP]).await?)];
    while let Some((path, dir)) = todo.pop() {
        let open = client.open_dir(dir).await.unwrap();
        let entries = client.read_dir(&open, 0, 1024).await.unwrap();
        for entry in entries {
            let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            let path = if path.is_empty() { text } else { format!("{path}/{text}") };
            let attr = client.getattr(entry.fid).await.unwrap().value;
            let mut seen = Seen {
                kind: attr.kind,
                content: String::new(),
                perm: attr.perm,
                owner: (attr.uid, attr.gid),
                time: None,
                nlink: if attr.kind == FileKind::Directory { 0 } else { attr.nlink },
                xattr: None,
            };
            match attr.kind {
                FileKind::Directory => todo.push((path.clone(), entry.fid)),
                FileKind::Symlink => {
                    let target = client.readlink(entry.fid).await.unwrap();
                    seen.content = String::from_utf8(target.to_vec()).unwrap();
                }
                FileKind::File => {
                    let secs = attr.mtime.secs();
                    seen.time = (secs < NOT_SO_LONG_AGO).then_some(secs);
                    let file = client.open(entry.fid, OpenMode::Read).await.unwrap();
                    seen.content = String::from_utf8(read(client, &file).await.to_vec()).unwrap();
                    let value = client.getxattr(entry.fid, XATTR).await.ok();
                    seen.xattr = value.map(|value| String::from_utf8(value.to_vec()).unwrap());
                }
                _ => {}
            }
            picture.insert(path, seen);
        }
    }
    Some(picture)
}

/// After how many steps the tree was like this, of those numbers of steps.
///
/// # Panics
/// If it never was.
pub(crate) fn number_of(
    picture: &Picture,
    pictures: &[Picture],
    among: std::ops::RangeInclusive<usize>,
    what: &str,
) -> usize {
    let most = *among.end();
    let found = among.clone().rev().find(|number| pictures.get(*number) == Some(picture));
    found.unwrap_or_else(|| {
        let whenever = pictures.iter().position(|other| other == picture);
        let closest = &pictures[most.min(pictures.len() - 1)];
        let differs = |(path, seen): &(&String, &Seen)| closest.get(*path) != Some(seen);
        let odd: Vec<_> = picture.iter().filter(differs).collect();
        let missing: Vec<_> = closest.keys().filter(|path| !picture.contains_key(*path)).collect();
        panic!("{what}: not as after {among:?} steps, but {whenever:?}; beside the last of these: {odd:?}, without {missing:?}")
    })
}
