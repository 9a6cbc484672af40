//! How much room the extended attributes of an inode take: there are limits to a list of them, and to an answer with all.

use crate::record::{self, Xattr};
use bytes::Bytes;

/// What extended attributes take, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct XattrSizes {
    /// In a list of names: each ends with a NUL.
    pub(crate) list: usize,
    /// In an answer that has all of them.
    pub(crate) all: usize,
}

impl XattrSizes {
    pub(crate) fn of(name: &[u8], value: &Bytes) -> XattrSizes {
        XattrSizes::of_record(name, record::encode(&Xattr { value: value.clone() }).len())
    }

    pub(crate) fn of_record(name: &[u8], record: usize) -> XattrSizes {
        XattrSizes { list: name.len() + 1, all: name.len() + record }
    }

    pub(crate) fn exchange(self, gone: Option<XattrSizes>, new: Option<XattrSizes>) -> XattrSizes {
        let (gone, new) = (gone.unwrap_or_default(), new.unwrap_or_default());
        XattrSizes {
            list: (self.list + new.list).saturating_sub(gone.list),
            all: (self.all + new.all).saturating_sub(gone.all),
        }
    }
}
