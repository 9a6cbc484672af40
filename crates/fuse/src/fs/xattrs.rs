//! Extended attributes, access lists among them. Who may touch which name the kernel has checked.

use super::Inner;
use super::owners::as_owner;
use crate::caller::{Capability, has_capability};
use crate::wire::Reply;
use soda_client::{KillPriv, SetXattr};
use soda_types::semantics::is_access_list;
use soda_types::{Creds, Errno, Fid, XATTR_LIST_MAX};
use std::sync::Arc;

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;

#[derive(Debug)]
pub(super) struct SetRequest {
    name: Vec<u8>,
    value: Vec<u8>,
    how: SetXattr,
    /// An access list set by one who is not of the file's group: set-group-id goes.
    kill: KillPriv,
}

impl SetRequest {
    pub(super) fn new(name: &[u8], value: &[u8], flags: u32, kill_sgid: bool) -> Result<SetRequest, Errno> {
        let how = match flags {
            0 => SetXattr::Either,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            _ => return Err(Errno::Invalid),
        };
        let kill = KillPriv::when(kill_sgid);
        Ok(SetRequest { name: name.to_vec(), value: value.to_vec(), how, kill })
    }
}

impl Inner {
    pub(super) async fn getxattr(self: Arc<Self>, fid: Fid, name: Vec<u8>, size: u32, reply: Reply) {
        match self.client.getxattr(fid, &name).await {
            Ok(value) => answer_sized(&value, size, reply),
            // The kernel asks for access lists before it lets anybody look at a directory.
            Err(error) if self.is_removed(fid, &error).await => reply.error(Errno::NoData),
            Err(error) => self.fail("getxattr", &error, reply),
        }
    }

    pub(super) async fn listxattr(self: Arc<Self>, fid: Fid, creds: Creds, size: u32, reply: Reply) {
        match self.client.listxattr(fid).await {
            Ok(mut names) => {
                if names.iter().any(|name| is_trusted(name)) && !is_administrator(creds) {
                    names.retain(|name| !is_trusted(name));
                }
                let mut list = Vec::new();
                for name in names {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                match list.len() > XATTR_LIST_MAX {
                    true => reply.error(Errno::TooBig),
                    false => answer_sized(&list, size, reply),
                }
            }
            Err(error) => self.fail("listxattr", &error, reply),
        }
    }

    pub(super) async fn setxattr(self: Arc<Self>, fid: Fid, creds: Creds, request: SetRequest, reply: Reply) {
        let SetRequest { name, value, how, kill } = request;
        let set = |owner| self.client.setxattr_if(fid, (&name, &value), how, kill, owner);
        let result = as_owner(creds, set).await;
        self.attributes_changed(fid);
        self.finish("setxattr", result, reply);
    }

    pub(super) async fn removexattr(self: Arc<Self>, fid: Fid, creds: Creds, name: Vec<u8>, reply: Reply) {
        let result = match as_owner(creds, |owner| self.client.removexattr_if(fid, &name, owner)).await {
            // Without one there is one: the permission bits.
            Err(error) if error.errno == Errno::NoData && is_access_list(&name) => Ok(()),
            result => result,
        };
        self.attributes_changed(fid);
        self.finish("removexattr", result, reply);
    }
}

/// Whether the caller has CAP_SYS_ADMIN. The kernel asks for it before it lets anybody at `trusted.*`, but for lists it
/// leaves that to the file system. Where nobody can say it (a thread of another PID namespace), user 0 has it.
fn is_administrator(creds: Creds) -> bool {
    has_capability(creds.pid, Capability::Administration).unwrap_or(creds.uid == 0)
}

fn is_trusted(name: &[u8]) -> bool {
    name.starts_with(b"trusted.")
}

/// A caller's buffer of `size` 0 asks for the length only.
fn answer_sized(bytes: &[u8], size: u32, reply: Reply) {
    match size as usize {
        0 => reply.xattr_size(bytes.len() as u32),
        room if room < bytes.len() => reply.error(Errno::Range),
        _ => {
            reply.data(&[bytes]);
        }
    }
}
