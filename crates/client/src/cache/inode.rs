//! What is known of one inode, and who needs it to stay.

use crate::cache::layout::Layout;
use crate::cache::lru::LruPlace;
use crate::cache::names::Directory;
use crate::cache::reading::Reading;
use crate::cache::unseen::Unseen;
use crate::hooks::KERNEL_LAG;
use crate::why::Why;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use soda_lease::holder::Holding;
use soda_oplog::DigestId;
use soda_protocol::XattrSummary;
use soda_types::{Attr, Fid, InUse, Monotonic, Name, Version};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Own changes younger than this may not have left the kernel's hands yet. At least a lease's term: until then
/// the kernel may use what it was told before.
const RECENT: Duration = Duration::from_secs(60);

/// Names and values.
pub(crate) type XattrList = Arc<Vec<(Vec<u8>, Bytes)>>;

#[derive(Clone, Debug, Default)]
pub(crate) enum Xattrs {
    #[default]
    Unknown,
    None,
    All(XattrList),
}

impl Xattrs {
    /// What they take in memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        const EACH: u64 = 80;
        let Xattrs::All(list) = self else { return 0 };
        list.iter().map(|(name, value)| EACH + (name.len() + value.len()) as u64).sum()
    }
}

/// Whether the server knows an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Origin {
    #[default]
    AtServer,
    /// Made here; the server will hear of it.
    Here,
    /// Made here. The server has heard of it, but the lease that came with its answer was lost with a connection, and is asked
    /// for already: its recall tells of it.
    Told,
}

/// Whether the server keeps an inode without a name for this session, as the log tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Keeping {
    /// It has a name, or nobody had it open when it lost the last one: then the server deletes it, and the lease with it.
    #[default]
    No,
    /// It was open here when it lost its last name.
    Open,
    /// It was closed since, which is logged, too.
    Closed,
}

/// An inode as it is known here; the caches write that, from replies and for changes made here. The rest by whose it is.
#[derive(Debug, Default)]
pub(crate) struct Inode {
    /// `None`: nothing that the lease covers is known. The rest of what is cached is void then too.
    pub(crate) attr: Option<Attr>,
    /// The holding that what is cached belongs to.
    pub(crate) holding: Option<Holding>,
    /// When the attributes were fetched: for caching by time.
    pub(crate) fetched: Monotonic,
    /// The version that the server has, as far as it has told: changes that were made here are ahead of it.
    pub(crate) told: Version,
    /// What was heard of it last its holder said, without a lease.
    pub(crate) hearsay: bool,
    /// The newest version ever seen: nothing older is entered.
    pub(crate) seen: Version,
    pub(crate) xattrs: Xattrs,
    /// A symbolic link's, which never changes.
    pub(crate) target: Option<Bytes>,
    pub(crate) dir: Option<Box<Directory>>,
    /// Where a file has data, as far as lseek has asked.
    pub(crate) layout: Option<Box<Layout>>,
    /// A directory that it was met in lately; of files only, and no more than a hint.
    pub(crate) parent: Option<Fid>,
    pub(crate) unseen: Unseen,
    pub(crate) described: Described,
    pub(crate) reading: Reading,

    pub(crate) changes: OwnChanges,
    pub(crate) log: Logged,
    pub(crate) uses: Uses,
    pub(crate) kernel: AtKernel,
    /// In the list of inodes that nobody needs.
    pub(crate) place: Option<LruPlace>,
}

/// Own changes on their way through to the server. The caches count them, `behind` those that are made here, and a recall says
/// that it has uncovered them.
#[derive(Debug, Default)]
pub(crate) struct OwnChanges {
    /// Not answered.
    pub(crate) unanswered: u32,
    /// Of these, how many began while no write lease covered them, or were overtaken by a recall: they may be applied at the
    /// server while another machine already sees it.
    pub(crate) uncovered: u32,
    /// Grows when one begins or ends, or is made here.
    pub(crate) count: u64,
}

/// What the log has to tell of it. Only [`behind`](crate::behind) writes it.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    /// Whether the server knows it.
    pub(crate) origin: Origin,
    /// Records about it that the server has not applied.
    pub(crate) records: u32,
    /// The last digest that told the server of it.
    pub(crate) told_in: DigestId,
    /// Callers that are about to go through to the server with it.
    pub(crate) going_through: u32,
    pub(crate) keeping: Keeping,
    /// The server has deleted it with a digest, and the lease on it.
    pub(crate) deleted: bool,
    /// Why its last change went through; `None`: it was made here, or there was none.
    pub(crate) through: Option<Why>,
}

/// What others were told that it is like ([`crate::recall`]), by the count of its changes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Described {
    /// As it was when somebody asked last.
    pub(crate) at: Option<u64>,
    /// How often it was the same again.
    pub(crate) again: u32,
    /// Nothing from before is shown by the kernel.
    pub(crate) shown: Option<u64>,
}

/// Who uses it here: `opens` counts, and whoever tells the server of it, or loses a session, notes that.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) opens: u32,
    /// Whether the server has this session in its list of those who have the inode open.
    pub(crate) open_at_server: InUse,
    /// Sessions with locks on the inode that were lost; see [`crate::ops::OpenFile`].
    pub(crate) locks_lost: u64,
}

/// What the kernel may hold of it: noted when it is given, by [`Client`](crate::Client) for references, and by recalls.
#[derive(Debug, Default)]
pub(crate) struct AtKernel {
    pub(crate) refs: u64,
    pub(crate) attr_until: Monotonic,
    /// Whether it may hold pages.
    pub(crate) data: bool,
    /// Recalls in progress: nothing more is given to the kernel.
    pub(crate) recalling: u32,
    /// Reads answered while a recall was in progress: each may have brought a page back that the kernel had dropped.
    pub(crate) fills: u32,
    pub(crate) recent: Option<Box<Recent>>,
}

/// What own changes did lately: before another machine may see it, our kernel must show it.
#[derive(Debug)]
pub(crate) struct Recent {
    until: Monotonic,
    /// Names of the directory, too.
    names: bool,
    data: Option<Range<u64>>,
}

/// That its data were changed here lately, for another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rewritten {
    until: Monotonic,
    data: Range<u64>,
}

impl Rewritten {
    /// The same for who has another clock than that by which it was written down.
    pub(crate) fn anew_at(self, now: Monotonic) -> Rewritten {
        Rewritten { until: now + RECENT, ..self }
    }
}

impl Inode {
    /// Whether it must stay in the table.
    pub(crate) fn pinned(&self) -> bool {
        self.kernel.refs > 0
            || self.uses.opens > 0
            || self.changes.unanswered > 0
            || self.kernel.recalling > 0
            || self.uses.locks_lost > 0
            || self.log.records > 0
            || self.log.going_through > 0
            || self.log.origin != Origin::AtServer
    }

    /// Whether no own change has begun or ended since the count was this, nor is in progress.
    pub(crate) fn is_unchanged_since(&self, change_count: u64) -> bool {
        self.changes.unanswered == 0 && self.changes.count == change_count
    }

    pub(crate) fn directory(&mut self) -> &mut Directory {
        self.dir.get_or_insert_default()
    }

    /// What is known of it beyond the attributes takes so many bytes: names in it, extended attributes,
    /// a link's target, where a file has data.
    pub(crate) fn bytes(&self) -> u64 {
        let names = self.dir.as_ref().map_or(0, |dir| dir.bytes());
        let target = self.target.as_ref().map_or(0, |target| target.len() as u64);
        let layout = self.layout.as_ref().map_or(0, |layout| layout.bytes());
        names + target + layout + self.xattrs.bytes()
    }

    pub(crate) fn summary(&self) -> Option<XattrSummary> {
        match &self.xattrs {
            Xattrs::Unknown => None,
            Xattrs::None => Some(XattrSummary::None),
            Xattrs::All(list) if list.is_empty() => Some(XattrSummary::None),
            Xattrs::All(_) => Some(XattrSummary::Some),
        }
    }

    /// All that the lease covered is void.
    pub(crate) fn void(&mut self) {
        self.attr = None;
        self.holding = None;
        self.xattrs = Xattrs::Unknown;
        self.layout = None;
        if let Some(dir) = &mut self.dir {
            dir.clear();
        }
    }

    /// Only the attributes stay, and what is still to be told of it.
    pub(crate) fn forget_known(&mut self, now: Monotonic) {
        if let Xattrs::All(list) = &self.xattrs
            && !list.is_empty()
        {
            self.xattrs = Xattrs::Unknown;
        }
        self.layout = None;
        if let Some(dir) = &mut self.dir {
            dir.shed(now);
        }
    }

    /// A read is about to be answered, and the kernel may keep the pages.
    pub(crate) fn note_fill(&mut self) {
        self.reading.note_read();
        self.kernel.data = true;
        if self.kernel.recalling > 0 {
            self.kernel.fills = self.kernel.fills.wrapping_add(1);
        }
    }

    pub(crate) fn kernel_holds_attr(&self, now: Monotonic) -> bool {
        self.kernel.attr_until > Monotonic::ZERO && self.kernel.attr_until + KERNEL_LAG > now
    }

    pub(crate) fn note_recent(&mut self, now: Monotonic, name: Option<&Name>, data: Option<Range<u64>>) {
        let fresh = Recent { until: now, names: false, data: None };
        let recent = self.kernel.recent.get_or_insert_with(|| Box::new(fresh));
        if recent.until <= now {
            (recent.names, recent.data) = (false, None);
        }
        recent.until = now + RECENT;
        recent.names |= name.is_some();
        if let Some(data) = data {
            recent.data = Some(match recent.data.take() {
                Some(old) => old.start.min(data.start)..old.end.max(data.end),
                None => data,
            });
        }
    }

    /// For how long nothing has been changed here.
    pub(crate) fn unchanged_for(&self, now: Monotonic) -> Duration {
        let changed = |recent: &Recent| now.since(recent.until.min(now + RECENT) - RECENT);
        self.kernel.recent.as_deref().map_or(Duration::MAX, changed)
    }

    /// What was changed lately: whether names, and which data.
    pub(crate) fn recent(&self, now: Monotonic) -> Option<(bool, Option<Range<u64>>)> {
        let recent = self.kernel.recent.as_ref().filter(|recent| recent.until > now)?;
        Some((recent.names, recent.data.clone()))
    }

    pub(crate) fn rewritten(&self, now: Monotonic) -> Option<Rewritten> {
        let recent = self.kernel.recent.as_ref().filter(|recent| recent.until > now)?;
        Some(Rewritten { until: recent.until, data: recent.data.clone()? })
    }

    /// In a new process.
    pub(crate) fn note_rewritten(&mut self, Rewritten { until, data }: Rewritten) {
        self.kernel.recent = Some(Box::new(Recent { until, names: false, data: Some(data) }));
    }
}
