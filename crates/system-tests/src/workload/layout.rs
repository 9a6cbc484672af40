//! The objects on the volume: how many of each kind, where, and their initial state. Few, so that the threads meet.

use crate::linear::object::Attribute;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

pub(super) const DATA_FILES: u16 = 2;
pub(super) const BLOCKS: u16 = 3;
pub(super) const DIRECTORIES: u16 = 2;
/// In each directory.
pub(super) const NAMES: u8 = 4;
pub(super) const PARENTS: u16 = 1;
pub(super) const LEAVES: u8 = 2;
pub(super) const ATTRIBUTE_FILES: u16 = 2;
pub(super) const ATTRIBUTES: [Attribute; 4] =
    [Attribute::Permissions, Attribute::Size, Attribute::Mtime, Attribute::Extended];
pub(super) const LINKED_FILES: u16 = 1;
pub(super) const LOGS: u16 = 1;
pub(super) const LOCKS: u16 = 1;
pub(super) const RANGE_FILES: u16 = 1;

/// Bytes of the files that are written by one call: one that ends within a page, and as much as one call can do.
pub(super) const WHOLE: [usize; 2] = [40_000, 1 << 20];
/// Of a file that is written by one call, the pages that are also read each by itself, through the page cache.
pub(super) const PAGES: [u16; 2] = [0, 8];
/// Distance of two blocks, bytes: a page.
pub(super) const BLOCK_STRIDE: usize = 4096;
/// Records after which a log is only read: each check of a log looks at all of it.
pub(super) const LOG_RECORDS: usize = 1500;

pub(super) const EXTENDED: &str = "user.soda.test";

/// Puts every object in its initial state.
///
/// # Panics
/// If that fails.
pub(super) fn prepare(root: &Path, threads: u16) {
    let made = || -> std::io::Result<()> {
        for file in 0..DATA_FILES {
            fs::write(root.join(data_name(file)), vec![0; BLOCK_STRIDE * usize::from(BLOCKS)])?;
        }
        for file in 0..WHOLE.len() {
            fs::File::create(root.join(data_name(whole_number(file as u16))))?;
        }
        for directory in (0..DIRECTORIES).map(directory_name).chain((0..PARENTS).map(parent_name)) {
            fs::create_dir(root.join(directory))?;
        }
        for file in 0..ATTRIBUTE_FILES {
            for which in ATTRIBUTES {
                let path = root.join(attribute_name(file, which));
                let file = fs::File::create(&path)?;
                file.set_modified(UNIX_EPOCH)?;
                file.set_permissions(fs::Permissions::from_mode(0o000))?;
            }
        }
        let plain = (0..LINKED_FILES).map(linked_name).chain((0..LOGS).map(log_name));
        for name in plain.chain((0..LOCKS).map(lock_name)).chain((0..RANGE_FILES).map(ranges_name)) {
            fs::File::create(root.join(name))?;
        }
        for client in 0..threads {
            fs::create_dir(root.join(own_name(client)))?;
        }
        Ok(())
    };
    if let Err(error) = made() {
        panic!("{}: {error}", root.display());
    }
}

/// Files that are written as a whole are numbered behind those that are written block by block.
pub(super) fn whole_number(file: u16) -> u16 {
    DATA_FILES + file
}

pub(super) fn data_name(file: u16) -> String {
    format!("data{file}")
}

pub(super) fn directory_name(directory: u16) -> String {
    format!("names{directory}")
}

pub(super) fn parent_name(parent: u16) -> String {
    format!("parent{parent}")
}

pub(super) fn attribute_name(file: u16, which: Attribute) -> String {
    format!("attribute{file}.{which:?}")
}

pub(super) fn linked_name(file: u16) -> String {
    format!("linked{file}")
}

pub(super) fn log_name(file: u16) -> String {
    format!("log{file}")
}

pub(super) fn lock_name(file: u16) -> String {
    format!("lock{file}")
}

pub(super) fn ranges_name(file: u16) -> String {
    format!("ranges{file}")
}

/// A directory that only one thread uses.
pub(super) fn own_name(client: u16) -> String {
    format!("own{client}")
}
