//! Names of directory entries, checked once at the edge.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Longest name of a directory entry, bytes (Linux `NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link, bytes (Linux `PATH_MAX` less the NUL).
pub const SYMLINK_MAX: usize = 4095;
/// Longest name of an extended attribute, bytes (Linux `XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;
/// Longest value of an extended attribute, bytes (Linux `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_MAX: usize = 65536;
/// The attribute that holds file capabilities (capabilities(7)): rights that a program gets when it is run, meant for its
/// contents as they are.
pub const XATTR_CAPABILITY: &[u8] = b"security.capability";

/// The access list of an inode, as an attribute (acl(5)).
pub const XATTR_ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// The access list that a directory hands down, as an attribute (acl(5)).
pub const XATTR_DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// Names and values of all extended attributes of an inode, bytes: they are asked for in one message.
pub const XATTRS_MAX: usize = 1 << 20;

/// Longest list of extended attribute names, bytes (Linux `XATTR_LIST_MAX`).
pub const XATTR_LIST_MAX: usize = 65536;

/// The name of a directory entry: 1 to 255 bytes, no `/`, no NUL, not `.` or `..`. Not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Bytes", into = "Bytes")]
pub struct Name(Arc<[u8]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("a name cannot be empty, `.` or `..`")]
    Reserved,
    #[error("a name has at most 255 bytes")]
    TooLong,
    #[error("a name cannot contain `/` or NUL")]
    BadByte,
}

impl Name {
    pub fn new(bytes: &[u8]) -> Result<Name, NameError> {
        if bytes.is_empty() || bytes == b"." || bytes == b".." {
            return Err(NameError::Reserved);
        }
        if bytes.len() > NAME_MAX {
            return Err(NameError::TooLong);
        }
        if bytes.iter().any(|byte| *byte == b'/' || *byte == 0) {
            return Err(NameError::BadByte);
        }
        Ok(Name(bytes.into()))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<&[u8]> for Name {
    type Error = NameError;
    fn try_from(bytes: &[u8]) -> Result<Name, NameError> {
        Name::new(bytes)
    }
}

impl TryFrom<&str> for Name {
    type Error = NameError;
    fn try_from(text: &str) -> Result<Name, NameError> {
        Name::new(text.as_bytes())
    }
}

impl TryFrom<Bytes> for Name {
    type Error = NameError;
    fn try_from(bytes: Bytes) -> Result<Name, NameError> {
        Name::new(&bytes)
    }
}

impl From<Name> for Bytes {
    fn from(name: Name) -> Bytes {
        Bytes::copy_from_slice(&name.0)
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert_eq!(Name::new(b""), Err(NameError::Reserved));
        assert_eq!(Name::new(b".."), Err(NameError::Reserved));
        assert_eq!(Name::new(b"a/b"), Err(NameError::BadByte));
        assert_eq!(Name::new(b"a\0"), Err(NameError::BadByte));
        assert_eq!(Name::new(&[b'x'; 256]), Err(NameError::TooLong));
        assert_eq!(Name::new(&[b'x'; 255]).unwrap().as_bytes().len(), 255);
        assert!(Name::new(b"...").is_ok());
        assert!(Name::new(&[0xff, 0xfe]).is_ok());
    }
}
