//! What is to be mounted, and how.

use crate::options::MountOptions;
use crate::spec::Spec;
use std::path::PathBuf;

/// A mount as it was asked for, all paths absolute.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub spec: Spec,
    pub dir: PathBuf,
    pub options: MountOptions,
}
