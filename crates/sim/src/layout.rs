//! Which registers an inode has, and where the inodes lie that have been there from the start.

use crate::register::{Object, Register};

/// Of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Inodes that have been there from the start. They have no names, and stay.
    pub objects: Object,
    /// Registers of an inode: names, or data.
    pub cells: u8,
    pub tree: Tree,
}

/// Whether it matters how inodes lie to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tree {
    /// Each inode of the start lies by itself; files have one name, directories stay where they are.
    Flat,
    /// One tree, with hard links and moves of directories: each inode has attributes beside its other registers.
    Deep,
}

/// Where an inode lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    Root,
    /// From the start, and for ever.
    In(Object),
    /// Where it has its names.
    Named,
}

/// Even ones are directories.
pub fn is_directory(object: Object) -> bool {
    object.is_multiple_of(2)
}

impl Layout {
    /// Its names, or its data.
    pub fn cells_of(self, object: Object) -> impl Iterator<Item = Register> + Clone {
        (0..self.cells).map(move |cell| Register { object, cell })
    }

    pub fn registers_of(self, object: Object) -> impl Iterator<Item = Register> + Clone {
        let attributes = (self.tree == Tree::Deep).then(|| Register::attributes(object));
        self.cells_of(object).chain(attributes)
    }

    /// Below the root there is a directory for each client to be busy in, with a file.
    pub fn home(self, object: Object) -> Home {
        match object {
            0 => Home::Root,
            _ if object >= self.objects => Home::Named,
            _ if is_directory(object) => Home::In(0),
            _ => Home::In(object - 1),
        }
    }
}
