//! What an operation does to the attributes of the inodes that it touches: in one place for those who do it, the server on
//! its store and a client under a write lease.
//!
//! Pure functions on [`Attr`]. Sources: POSIX.1-2024, "File Times Update" (section 4.12 of the base definitions) and the
//! pages of the functions; Linux's inode(7), open(2), mkdir(2), chmod(2), rename(2), unlink(2), path_resolution(7); for what
//! neither says, Linux's `inode_init_owner`, `setattr_should_drop_suidgid` and ext4.
//!
//! What is not here depends on more than attributes: access control lists (a parent with a default list, an inode with any:
//! [`crate::acl`]) and how many bytes are stored ([`Attr::allocated`], left as it is).

use crate::{
    Attr, Creds, Errno, FileKind, FsResult, Ino, SYMLINK_MAX, SetAttr, SetTime, Timestamp, Version,
    XATTR_ACCESS_LIST, XATTR_DEFAULT_LIST, XATTR_NAME_MAX, mode,
};

/// The most names that an inode can have, as on ext4.
pub const LINK_MAX: u32 = 65_000;

/// The largest file, bytes: offsets are signed in Linux.
pub const FILE_MAX: u64 = i64::MAX as u64;

/// Bytes that an entry adds to the size that a directory shows.
pub const ENTRY_SIZE: u64 = 32;

/// When a change happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    time: Timestamp,
    /// The lowest version that a change may give.
    first_version: Version,
    order: Order,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    AsMade,
    MaybeLater,
}

impl Moment {
    /// A change that is made as it is asked for. Its time is later than that of all before, also when the clock is not.
    pub fn now(time: Timestamp, first_version: Version) -> Moment {
        Moment { time, first_version, order: Order::AsMade }
    }

    /// A change with a time of its own: it was chosen later than those of what it touches, and is the same wherever the change
    /// is made. Only names in a directory may come and go in another order than they did first: then its times stay.
    pub fn logged(time: Timestamp, first_version: Version) -> Moment {
        Moment { time, first_version, order: Order::MaybeLater }
    }

    pub fn time(self) -> Timestamp {
        self.time
    }

    pub fn first_version(self) -> Version {
        self.first_version
    }
}

/// What is to be created, as far as attributes show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Newborn {
    pub kind: FileKind,
    /// As asked for; ignored for symbolic links.
    pub perm: u16,
    /// Taken off `perm`. With a default ACL at the parent, which replaces it: 0.
    pub umask: u16,
    pub creds: Creds,
    /// Of a special file, else 0.
    pub rdev: u32,
    /// Length of a symbolic link's target ([`check_target`]), else 0.
    pub size: u64,
    pub names: Names,
}

/// Whether what is created has a name from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Names {
    One,
    /// `O_TMPFILE`.
    None,
}

/// The end of a range of bytes.
///
/// # Errors
/// `EFBIG`: no file is that long.
pub fn checked_end(offset: u64, len: u64) -> FsResult<u64> {
    offset.checked_add(len).filter(|end| *end <= FILE_MAX).ok_or(Errno::FileTooBig.into())
}

/// Whether a symbolic link can have a target of this length (symlink(2)).
///
/// # Errors
/// `ENOENT` for none, `ENAMETOOLONG`.
pub fn check_target(len: usize) -> FsResult<()> {
    match len {
        0 => Err(Errno::NoEntry.into()),
        1..=SYMLINK_MAX => Ok(()),
        _ => Err(Errno::NameTooLong.into()),
    }
}

/// Whether a rename may replace `target` by something of this kind (rename(2)).
///
/// # Errors
/// `ENOTDIR`, `EISDIR`, `ENOTEMPTY`.
pub fn check_replace(moved: FileKind, target: &Attr) -> FsResult<()> {
    match (moved == FileKind::Directory, target.kind == FileKind::Directory) {
        (true, false) => Err(Errno::NotDirectory.into()),
        (false, true) => Err(Errno::IsDirectory.into()),
        (true, true) => target.check_empty(),
        (false, false) => Ok(()),
    }
}

/// Whether this extended attribute is an access list: the volume reads it, and only the inode's owner may change it.
pub fn is_access_list(name: &[u8]) -> bool {
    name == XATTR_ACCESS_LIST || name == XATTR_DEFAULT_LIST
}

/// Whether an extended attribute can have this name (xattr(7); the errors are ext4's).
///
/// # Errors
/// `ERANGE` if it is too long, `EINVAL` if it is a prefix alone, `EOPNOTSUPP` if it has none that is known.
pub fn check_xattr_name(name: &[u8]) -> FsResult<()> {
    const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if name.len() > XATTR_NAME_MAX {
        return Err(Errno::Range.into());
    }
    if is_access_list(name) {
        return Ok(());
    }
    match PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix)) {
        Some([]) => Err(Errno::Invalid.into()),
        Some(rest) if !rest.contains(&0) => Ok(()),
        _ => Err(Errno::NotSupported.into()),
    }
}

impl SetAttr {
    /// Whether file capabilities go: with every change of contents or owner (Linux: `ATTR_KILL_PRIV`).
    pub fn drops_capabilities(&self) -> bool {
        self.size.is_some() || self.uid.is_some() || self.gid.is_some() || self.kill_suid_sgid
    }
}

impl Attr {
    /// Whether `owner`, if it is said who that must be, owns the inode.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn check_owner(&self, owner: Option<u32>) -> FsResult<()> {
        match owner {
            Some(owner) if owner != self.uid => Err(Errno::Perm.into()),
            _ => Ok(()),
        }
    }

    /// Something new in a directory. The group comes from the directory if that has set-group-ID, and directories hand the
    /// bit on (inode(7)).
    pub fn created(parent: &Attr, ino: Ino, new: &Newborn, at: Moment) -> Attr {
        let mut perm = match new.kind {
            FileKind::Symlink => 0o777,
            _ => new.perm & mode::ALL & !(new.umask & 0o777),
        };
        let mut gid = new.creds.gid;
        if parent.perm & mode::SET_GID != 0 {
            gid = parent.gid;
            if new.kind == FileKind::Directory {
                perm |= mode::SET_GID;
            }
        }
        Attr {
            ino,
            kind: new.kind,
            perm,
            nlink: match (new.kind, new.names) {
                (FileKind::Directory, _) => 2,
                (_, Names::One) => 1,
                (_, Names::None) => 0,
            },
            uid: new.creds.uid,
            gid,
            rdev: new.rdev,
            size: new.size,
            allocated: 0,
            atime: at.time,
            mtime: at.time,
            ctime: at.time,
            btime: at.time,
            version: at.first_version,
            data_version: at.first_version,
        }
    }

    /// chmod(2), chown(2), truncate(2), utimensat(2), all at once. A size that is given counts as a change of the data even
    /// if it is the one there was, as ftruncate(2) has it. To ask for nothing changes nothing.
    pub fn set(&mut self, set: &SetAttr, at: Moment) {
        if *set == SetAttr::default() {
            return;
        }
        match set.size {
            Some(size) => {
                self.size = size;
                self.data_changed(at);
            }
            None => self.changed(at),
        }
        if set.kill_suid_sgid && self.kind != FileKind::Directory {
            self.drop_privileges();
        }
        if let Some(perm) = set.perm {
            self.perm = perm & mode::ALL;
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        let time = |time: SetTime, ctime: Timestamp| match time {
            SetTime::Now => ctime,
            SetTime::At(time) => time,
        };
        if let Some(atime) = set.atime {
            self.atime = time(atime, self.ctime);
        }
        // One that was logged before the last change says how a directory was left before that.
        if let Some(mtime) = set.mtime
            && (at.order == Order::AsMade || self.ctime == at.time)
        {
            self.mtime = time(mtime, self.ctime);
        }
    }

    /// Data changed up to `end` (write(2), fallocate(2)); 0 where the size cannot change.
    pub fn written(&mut self, end: u64, at: Moment) {
        self.size = self.size.max(end);
        self.data_changed(at);
    }

    /// A directory has one name more, of something of this kind.
    pub fn entry_added(&mut self, kind: FileKind, at: Moment) {
        self.size = self.size.saturating_add(ENTRY_SIZE);
        if kind == FileKind::Directory {
            self.nlink = self.nlink.saturating_add(1);
        }
        self.data_changed(at);
    }

    /// A directory has one name less.
    pub fn entry_removed(&mut self, kind: FileKind, at: Moment) {
        self.size = self.size.saturating_sub(ENTRY_SIZE);
        if kind == FileKind::Directory {
            self.nlink = self.nlink.saturating_sub(1);
        }
        self.data_changed(at);
    }

    /// Whether it can have one name more (link(2)).
    ///
    /// # Errors
    /// `EPERM` for directories, `EMLINK`.
    pub fn check_link(&self) -> FsResult<()> {
        match self.kind {
            FileKind::Directory => Err(Errno::Perm.into()),
            _ if self.nlink >= LINK_MAX => Err(Errno::TooManyLinks.into()),
            _ => Ok(()),
        }
    }

    /// Whether a directory has no names (rmdir(2)).
    ///
    /// # Errors
    /// `ENOTEMPTY`.
    pub fn check_empty(&self) -> FsResult<()> {
        if self.size == 0 { Ok(()) } else { Err(Errno::NotEmpty.into()) }
    }

    /// It has one name more.
    pub fn linked(&mut self, at: Moment) {
        self.nlink = self.nlink.saturating_add(1);
        self.changed(at);
    }

    /// It has one name less; a directory then has none.
    pub fn unlinked(&mut self, at: Moment) {
        self.nlink = match self.kind {
            FileKind::Directory => 0,
            _ => self.nlink.saturating_sub(1),
        };
        self.changed(at);
    }

    /// Anything but data and names changed: its place (rename(2)), an extended attribute.
    pub fn changed(&mut self, at: Moment) {
        self.version = self.version.next().max(at.first_version);
        self.ctime = match at.order {
            Order::AsMade => at.time.max(self.ctime.successor()),
            Order::MaybeLater => at.time.max(self.ctime),
        };
    }

    /// Data changed, or the names of a directory.
    pub fn data_changed(&mut self, at: Moment) {
        self.changed(at);
        // What is older than the last change was overtaken by it.
        if at.order == Order::AsMade || self.ctime == at.time {
            self.mtime = self.ctime;
        }
        self.data_version = self.data_version.next().max(at.first_version);
    }

    /// What a write by one without privilege takes away (Linux: `setattr_should_drop_suidgid`).
    pub fn drop_privileges(&mut self) {
        self.perm &= !mode::SET_UID;
        if self.perm & mode::GROUP_EXEC != 0 {
            self.perm &= !mode::SET_GID;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: i64) -> Moment {
        Moment::now(Timestamp::new(secs, 0), Version(1))
    }

    fn logged(secs: i64) -> Moment {
        Moment::logged(Timestamp::new(secs, 0), Version(1))
    }

    #[test]
    fn times_that_were_logged_before_the_last_change_are_overtaken() {
        let mut dir = directory();
        dir.entry_added(FileKind::File, logged(9));
        let set = |secs| SetAttr { mtime: Some(SetTime::At(Timestamp::new(secs, 0))), ..SetAttr::default() };
        dir.set(&set(7), logged(7));
        assert_eq!((dir.mtime, dir.ctime), (Timestamp::new(9, 0), Timestamp::new(9, 0)));
        dir.set(&set(1), logged(10));
        assert_eq!((dir.mtime, dir.ctime), (Timestamp::new(1, 0), Timestamp::new(10, 0)), "utimensat");
    }

    fn newborn(kind: FileKind) -> Newborn {
        let creds = Creds { uid: 7, gid: 8, pid: 1 };
        Newborn { kind, perm: 0o6777, umask: 0o022, creds, rdev: 0, size: 0, names: Names::One }
    }

    fn directory() -> Attr {
        let top = Attr {
            ino: Ino::ROOT,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 100,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            btime: Timestamp::default(),
            version: Version(1),
            data_version: Version(1),
        };
        Attr::created(&top, Ino(2), &newborn(FileKind::Directory), at(5))
    }

    fn file() -> Attr {
        Attr::created(&directory(), Ino(3), &newborn(FileKind::File), at(5))
    }

    #[test]
    fn what_is_new_has_the_umask_off_and_one_time() {
        let file = Attr::created(
            &directory(),
            Ino(3),
            &Newborn { perm: 0o17_666, ..newborn(FileKind::File) },
            at(9),
        );
        assert_eq!((file.perm, file.nlink, file.uid, file.gid), (0o7644, 1, 7, 8));
        let time = Timestamp::new(9, 0);
        assert_eq!([file.atime, file.mtime, file.ctime, file.btime], [time; 4]);
        let link = Newborn { size: 5, ..newborn(FileKind::Symlink) };
        assert_eq!(Attr::created(&directory(), Ino(4), &link, at(9)).perm, 0o777);
        let unnamed = Newborn { names: Names::None, ..newborn(FileKind::File) };
        assert_eq!(Attr::created(&directory(), Ino(4), &unnamed, at(9)).nlink, 0);
    }

    #[test]
    fn set_group_id_hands_the_group_on_and_directories_the_bit() {
        let mut parent = directory();
        parent.perm = 0o2755;
        parent.gid = 55;
        let plain = |kind| Attr::created(&parent, Ino(3), &Newborn { perm: 0o777, ..newborn(kind) }, at(9));
        assert_eq!((plain(FileKind::File).gid, plain(FileKind::File).perm), (55, 0o755));
        assert_eq!((plain(FileKind::Directory).gid, plain(FileKind::Directory).perm), (55, 0o2755));
    }

    #[test]
    fn names_count_in_the_size_and_directories_in_the_links() {
        let mut parent = directory();
        parent.entry_added(FileKind::File, at(6));
        parent.entry_added(FileKind::Directory, at(7));
        assert_eq!((parent.nlink, parent.size), (3, 2 * ENTRY_SIZE));
        assert!(parent.check_empty().is_err());
        parent.entry_removed(FileKind::Directory, at(8));
        parent.entry_removed(FileKind::File, at(9));
        assert_eq!((parent.nlink, parent.size, parent.mtime), (2, 0, Timestamp::new(9, 0)));
        assert!(parent.check_empty().is_ok());
    }

    #[test]
    fn times_grow_when_the_clock_does_not() {
        let mut file = file();
        file.changed(at(1));
        assert_eq!((file.ctime, file.mtime), (Timestamp::new(5, 1), Timestamp::new(5, 0)));
        file.data_changed(at(1));
        assert_eq!((file.ctime, file.mtime), (Timestamp::new(5, 2), Timestamp::new(5, 2)));
        assert_eq!((file.version, file.data_version), (Version(3), Version(2)));
    }

    #[test]
    fn what_comes_late_leaves_the_times_of_a_directory_and_nothing_else() {
        let mut early = directory();
        early.entry_added(FileKind::File, logged(6));
        early.entry_added(FileKind::File, logged(7));
        let mut late = directory();
        late.entry_added(FileKind::File, logged(7));
        late.entry_added(FileKind::File, logged(6));
        assert_eq!(early, late);
        assert_eq!((late.mtime, late.ctime), (Timestamp::new(7, 0), Timestamp::new(7, 0)));
    }

    #[test]
    fn a_logged_change_has_its_own_time_twice() {
        let mut parent = directory();
        let set = SetAttr { mtime: Some(SetTime::At(Timestamp::new(99, 0))), ..SetAttr::default() };
        parent.set(&set, logged(6));
        assert_eq!((parent.mtime, parent.ctime), (Timestamp::new(99, 0), Timestamp::new(6, 0)));
        parent.entry_removed(FileKind::File, logged(7));
        parent.entry_added(FileKind::File, logged(7));
        assert_eq!((parent.mtime, parent.ctime), (Timestamp::new(7, 0), Timestamp::new(7, 0)));
    }

    #[test]
    fn to_set_nothing_changes_nothing_and_a_size_always_does() {
        let (mut file, before) = (file(), file());
        file.set(&SetAttr::default(), at(9));
        assert_eq!(file, before);
        file.set(&SetAttr { size: Some(0), ..SetAttr::default() }, at(9));
        assert_eq!((file.mtime, file.data_version), (Timestamp::new(9, 0), Version(2)));
        file.set(&SetAttr { atime: Some(SetTime::Now), perm: Some(0o10_600), ..SetAttr::default() }, at(10));
        assert_eq!((file.atime, file.mtime, file.perm), (Timestamp::new(10, 0), Timestamp::new(9, 0), 0o600));
    }

    #[test]
    fn set_group_id_without_group_execute_is_no_privilege() {
        let mut file = file();
        file.perm = 0o6644;
        file.drop_privileges();
        assert_eq!(file.perm, 0o2644);
        file.perm = 0o6654;
        file.set(&SetAttr { kill_suid_sgid: true, ..SetAttr::default() }, at(6));
        assert_eq!(file.perm, 0o654);
        let mut dir = Attr { kind: FileKind::Directory, perm: 0o6777, ..file };
        dir.set(&SetAttr { kill_suid_sgid: true, ..SetAttr::default() }, at(7));
        assert_eq!(dir.perm, 0o6777, "they mean something else there");
    }

    #[test]
    fn names_of_extended_attributes_are_those_of_a_local_file_system() {
        let errno = |name: &[u8]| check_xattr_name(name).err().map(|error| error.errno);
        for name in ["user.a", "trusted.a", "security.a", "user..", "system.posix_acl_access"] {
            assert_eq!(errno(name.as_bytes()), None, "{name}");
        }
        for name in ["user", "osx.a", "system.a", "system.posix_acl_accessx", "", "USER.a", "user.\0"] {
            assert_eq!(errno(name.as_bytes()), Some(Errno::NotSupported), "{name}");
        }
        for name in ["user.", "trusted.", "security."] {
            assert_eq!(errno(name.as_bytes()), Some(Errno::Invalid), "{name}");
        }
        assert_eq!(errno(&[b'u'; XATTR_NAME_MAX + 1]), Some(Errno::Range));
    }

    #[test]
    fn limits_are_where_they_are_said_to_be() {
        assert_eq!(checked_end(FILE_MAX - 1, 1).unwrap(), FILE_MAX);
        assert!(checked_end(FILE_MAX, 1).is_err() && checked_end(u64::MAX, 1).is_err());
        assert!(check_target(0).is_err() && check_target(1).is_ok());
        assert!(check_target(SYMLINK_MAX).is_ok() && check_target(SYMLINK_MAX + 1).is_err());
        let mut file = file();
        file.nlink = LINK_MAX - 1;
        assert!(file.check_link().is_ok());
        file.linked(at(6));
        assert_eq!(file.check_link(), Err(Errno::TooManyLinks.into()));
        assert_eq!(directory().check_link(), Err(Errno::Perm.into()));
    }

    #[test]
    fn like_replaces_like() {
        let (mut full, empty) = (directory(), directory());
        full.entry_added(FileKind::File, at(6));
        let check = |kind, target: &Attr| check_replace(kind, target).err().map(|error| error.errno);
        assert_eq!(check(FileKind::File, &file()), None);
        assert_eq!(check(FileKind::Directory, &empty), None);
        assert_eq!(check(FileKind::Directory, &full), Some(Errno::NotEmpty));
        assert_eq!(check(FileKind::Directory, &file()), Some(Errno::NotDirectory));
        assert_eq!(check(FileKind::Symlink, &empty), Some(Errno::IsDirectory));
    }

    #[test]
    fn a_directory_loses_all_its_links_at_once() {
        let (mut directory, mut file) = (directory(), file());
        file.linked(at(6));
        file.unlinked(at(7));
        directory.unlinked(at(7));
        assert_eq!((directory.nlink, file.nlink, file.ctime), (0, 1, Timestamp::new(7, 0)));
    }
}
