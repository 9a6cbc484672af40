//! Mistakes that are put in on purpose, and the property that each of them has to break.

use crate::property::Property;
use std::fmt;
use std::str::FromStr;

/// A mistake, put in on purpose: the harness is worth something only if it finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    None,
    /// The server takes a recall for answered as soon as it is sent.
    SkipAckWait,
    /// Clients use leases to the last moment, on clocks that drift apart.
    IgnoreDriftMargin,
    /// Clients forget a recall that comes before its grant.
    NoBarForLateGrants,
    /// The server admits operations right after a restart.
    NoGrace,
    /// The kernel's caches are not dropped before a recall is answered.
    KernelKeeps,
    /// The kernel is told a longer time than the lease has.
    KernelToldTooLong,
    /// Replies are not stored with the change.
    ForgetReplies,
    /// The term is counted from the reply.
    CountFromReply,
    /// What an answer brings is cached without asking whether the lease was held all the time.
    CacheEverything,
    /// Epochs start anew after a restart.
    EpochsStartAnew,
    /// The server ends a silent session without waiting for its lease to run out.
    FenceAtOnce,
    /// A recall that meets a broken connection is never sent again.
    NoResend,
    /// What a session still waited for when it ended is carried out all the same.
    CarryOutRefused,

    // With delayed writes:
    /// A recall is answered before what the object needs has been sent.
    AnswerBeforeFlush,
    /// Changes are made under a lease that is being recalled, and the answer does not wait for them: what has to be sent before
    /// was looked at when the recall came.
    ChangeWhileRecalled,
    /// Changes are made under a lease whose term is over.
    ChangeAfterTerm,
    /// Of what is sent ahead for somebody who waits, the first dependency is left out.
    SendPart,
    /// An operation goes through the server before what it depends on has been sent.
    ThroughBeforeFlush,
    /// fsync does not send what the file depends on.
    SyncBeforeFlush,
    /// The server answers an fsync without making anything durable.
    SyncNothing,
    /// What a power cut of the server took is not sent again.
    ForgetLost,
    /// A digest without an answer is sent again to a new run of the server as it was, whatever that has lost.
    KeepInDoubt,
    /// A log that survived the client's crash is sent, but its leases are not reclaimed.
    ReclaimNothing,
    /// The server applies a digest without asking for leases, or for the session.
    ApplyWithoutLeases,
    /// What a digest made comes without leases.
    NoLeasesOnMade,
    /// A digest that comes again is applied again.
    ForgetDigests,
    /// A digest is applied although the one before it was not.
    ApplyOutOfTurn,
    /// Over a new connection digests without an answer are sent under new numbers.
    RenumberOnReconnect,
    /// A lease is reclaimed although the server has lost what it covered.
    ReclaimAnyState,
    /// Leases are given back unasked as soon as the server has been told, while a power cut can still take what they cover.
    ReleaseUnsynced,
    /// After a power cut the log is sent as if nothing had gone through the server in between.
    ForgetThrough,
    /// Operations of a client's former life go on after it has come back.
    KeepFormerLife,
    /// A holder says what the server knows, too: the state before all that it has not told.
    DescribeWhatIsTold,
    /// The server goes on to answer with what a holder has said once.
    KeepDescriptions,

    // With syncs along with digests:
    /// The server does not wait for the digest that a sync was sent along with.
    SyncAtOnce,
    /// Nor does it ask whether that was applied.
    SyncOutOfTurn,
    /// fsync returns though the server has not done the sync, because it has not applied the digest.
    TakeOutOfTurn,
    /// It asks for the sync along with the first digest that tells of the file, whatever is left.
    SyncWithPart,
    /// It shares a sync that has been asked for along with a digest before it was called.
    ShareAlong,

    // With `fsync=local`:
    /// fsync does not sync the log on the local disk.
    SyncHereNothing,
    /// What is given up is not kept for recovery.
    DropGivenUp,
    /// Others are let in to what fsync has returned for before the server's disk has it.
    HandOverPromised,
    /// fsync is content with the log, though others were let in to something of it before the server's disk had that.
    SyncHereShared,

    // With file locks:
    /// Who is asked back the right to decide about a file's locks does not tell which it has taken.
    ReturnWithoutLocks,
    /// The digest that tells of a file does not say that its maker decides about the locks.
    TellWithoutLocks,
    /// The server decides about a lock without waiting for what the one tells who has decided so far.
    DecideUntold,
    /// Nor does it wait, after a restart, for those who had locks before.
    LocksInGrace,

    // With reservations, and a disk that is full now and then:
    /// A client does not count what it has not told when it does more.
    CountNothingUntold,
    /// When it asks for more, it does not count what goes through the server meanwhile.
    CountNothingThrough,
    /// The server does not know any more after a restart which space was set aside.
    ForgetReservations,
    /// After a restart it sets aside again what had been used up.
    KeepUsedUp,
    /// It tells a client what is set aside before that is durable.
    ReserveUnsynced,
    /// It does not know any more after a restart whose numbers of inodes are.
    ForgetNumbers,
    /// Its numbers start anew after a restart.
    NumbersStartAnew,
    /// It sets aside what is taken already.
    ReserveWhatIsTaken,
    /// It lets others take what is set aside.
    TakeWhatIsReserved,
    /// Who is away keeps what was set aside for it.
    KeepSpaceOfTheAway,
    /// So does who has gone.
    KeepSpaceOfTheEnded,

    // With deep leases:
    /// The server says that a deep lease covers what lies in one of its holes.
    ForgetHoles,
    /// The lease table does not hear of moves.
    MovesUntold,
    /// Nor of files that have several names.
    LinksUntold,
    /// Of a part of a deep lease only the object that was named is dropped and flushed, not what is below.
    KeepBelow,
    /// Such a part is given back before what was done below has been sent.
    AnswerPartBeforeFlush,
    /// Or before what is to be told of what no lease is known to cover.
    AnswerUncovered,
    /// After a restart of the server deep leases are claimed whole, whatever it has lost of what they cover.
    ReclaimWhole,
    /// Who has had an inode removed goes on to serve it from its caches.
    KeepRemoved,
}

impl Sabotage {
    /// Found with [`SimConfig::deep`](crate::SimConfig::deep).
    pub const DEEP: [Sabotage; 8] = [
        Sabotage::ForgetHoles,
        Sabotage::MovesUntold,
        Sabotage::LinksUntold,
        Sabotage::KeepBelow,
        Sabotage::AnswerPartBeforeFlush,
        Sabotage::ReclaimWhole,
        Sabotage::KeepRemoved,
        Sabotage::AnswerUncovered,
    ];

    /// Found with [`SimConfig::behind`](crate::SimConfig::behind).
    pub const BEHIND: [Sabotage; 19] = [
        Sabotage::AnswerBeforeFlush,
        Sabotage::ChangeWhileRecalled,
        Sabotage::ChangeAfterTerm,
        Sabotage::SendPart,
        Sabotage::ThroughBeforeFlush,
        Sabotage::SyncBeforeFlush,
        Sabotage::SyncNothing,
        Sabotage::ForgetLost,
        Sabotage::KeepInDoubt,
        Sabotage::ReclaimNothing,
        Sabotage::ApplyWithoutLeases,
        Sabotage::NoLeasesOnMade,
        Sabotage::ForgetDigests,
        Sabotage::ReclaimAnyState,
        Sabotage::ReleaseUnsynced,
        Sabotage::ForgetThrough,
        Sabotage::KeepFormerLife,
        Sabotage::DescribeWhatIsTold,
        Sabotage::KeepDescriptions,
    ];

    /// Found with [`SimConfig::behind`](crate::SimConfig::behind) where several digests are under way.
    pub const DIGESTS: [Sabotage; 2] = [Sabotage::ApplyOutOfTurn, Sabotage::RenumberOnReconnect];

    /// Found with [`SimConfig::behind`](crate::SimConfig::behind) where syncs go along with digests.
    pub const ALONG: [Sabotage; 5] = [
        Sabotage::SyncAtOnce,
        Sabotage::SyncOutOfTurn,
        Sabotage::TakeOutOfTurn,
        Sabotage::SyncWithPart,
        Sabotage::ShareAlong,
    ];

    /// Found with [`SimConfig::behind`](crate::SimConfig::behind) where programs lock files.
    pub const LOCKS: [Sabotage; 4] = [
        Sabotage::ReturnWithoutLocks,
        Sabotage::TellWithoutLocks,
        Sabotage::DecideUntold,
        Sabotage::LocksInGrace,
    ];

    /// Found with [`SimConfig::full`](crate::SimConfig::full).
    pub const ROOM: [Sabotage; 11] = [
        Sabotage::CountNothingUntold,
        Sabotage::CountNothingThrough,
        Sabotage::ForgetReservations,
        Sabotage::KeepUsedUp,
        Sabotage::ReserveUnsynced,
        Sabotage::ForgetNumbers,
        Sabotage::NumbersStartAnew,
        Sabotage::ReserveWhatIsTaken,
        Sabotage::TakeWhatIsReserved,
        Sabotage::KeepSpaceOfTheAway,
        Sabotage::KeepSpaceOfTheEnded,
    ];

    /// Found with [`SimConfig::behind`](crate::SimConfig::behind) where fsync is content with the client's disk.
    pub const LOCAL: [Sabotage; 4] = [
        Sabotage::SyncHereNothing,
        Sabotage::DropGivenUp,
        Sabotage::HandOverPromised,
        Sabotage::SyncHereShared,
    ];

    /// Found with [`SimConfig::from_seed`](crate::SimConfig::from_seed).
    pub const ALL: [Sabotage; 13] = [
        Sabotage::SkipAckWait,
        Sabotage::IgnoreDriftMargin,
        Sabotage::NoBarForLateGrants,
        Sabotage::NoGrace,
        Sabotage::KernelKeeps,
        Sabotage::KernelToldTooLong,
        Sabotage::ForgetReplies,
        Sabotage::CountFromReply,
        Sabotage::CacheEverything,
        Sabotage::EpochsStartAnew,
        Sabotage::FenceAtOnce,
        Sabotage::NoResend,
        Sabotage::CarryOutRefused,
    ];
}

impl Sabotage {
    /// The property that has to catch it: a violation of another one does not count. `None`: there is no mistake.
    pub fn breaks(self) -> Option<Property> {
        Some(match self {
            Sabotage::None => return None,
            // Two machines hold what one may hold.
            Sabotage::SkipAckWait
            | Sabotage::IgnoreDriftMargin
            | Sabotage::NoBarForLateGrants
            | Sabotage::NoGrace
            | Sabotage::CountFromReply
            | Sabotage::FenceAtOnce
            | Sabotage::ForgetHoles => Property::Exclusive,
            // Somebody reads, or builds on, what is old.
            Sabotage::KernelKeeps
            | Sabotage::KernelToldTooLong
            | Sabotage::CacheEverything
            | Sabotage::AnswerBeforeFlush
            | Sabotage::ChangeAfterTerm
            | Sabotage::ThroughBeforeFlush
            | Sabotage::DescribeWhatIsTold
            | Sabotage::KeepDescriptions
            | Sabotage::KeepRemoved => Property::Fresh,
            // A change is done again.
            Sabotage::ForgetReplies | Sabotage::ForgetDigests | Sabotage::RenumberOnReconnect => {
                Property::Once
            }
            Sabotage::EpochsStartAnew => Property::Epochs,
            Sabotage::NoResend => Property::Patience,
            Sabotage::CarryOutRefused => Property::Fenced,
            // What is left over of the former life is in the way of what comes in its slot.
            Sabotage::KeepFormerLife => Property::Progress,
            // The server has a change without one that it rests on.
            Sabotage::SendPart
            | Sabotage::ApplyWithoutLeases
            | Sabotage::ApplyOutOfTurn
            | Sabotage::KeepInDoubt
            | Sabotage::ReclaimAnyState
            | Sabotage::ForgetThrough => Property::Prefix,
            // The server refuses what it should not get, and so acknowledged changes are lost.
            Sabotage::ChangeWhileRecalled
            | Sabotage::ForgetLost
            | Sabotage::ReclaimNothing
            | Sabotage::NoLeasesOnMade
            | Sabotage::ReleaseUnsynced
            | Sabotage::MovesUntold
            | Sabotage::LinksUntold
            | Sabotage::KeepBelow
            | Sabotage::AnswerPartBeforeFlush
            | Sabotage::AnswerUncovered
            | Sabotage::ReclaimWhole => Property::Durable,
            Sabotage::SyncBeforeFlush
            | Sabotage::SyncNothing
            | Sabotage::SyncAtOnce
            | Sabotage::SyncOutOfTurn
            | Sabotage::TakeOutOfTurn
            | Sabotage::SyncWithPart
            | Sabotage::ShareAlong
            | Sabotage::SyncHereNothing
            | Sabotage::DropGivenUp
            | Sabotage::HandOverPromised
            | Sabotage::SyncHereShared => Property::Synced,
            Sabotage::ReturnWithoutLocks
            | Sabotage::TellWithoutLocks
            | Sabotage::DecideUntold
            | Sabotage::LocksInGrace => Property::Locked,
            Sabotage::CountNothingUntold
            | Sabotage::CountNothingThrough
            | Sabotage::ForgetReservations
            | Sabotage::KeepUsedUp
            | Sabotage::ReserveUnsynced
            | Sabotage::ForgetNumbers
            | Sabotage::NumbersStartAnew
            | Sabotage::ReserveWhatIsTaken
            | Sabotage::TakeWhatIsReserved
            | Sabotage::KeepSpaceOfTheAway
            | Sabotage::KeepSpaceOfTheEnded => Property::Room,
        })
    }
}

impl fmt::Display for Sabotage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no such sabotage: {0}")]
pub struct UnknownSabotage(String);

impl FromStr for Sabotage {
    type Err = UnknownSabotage;
    fn from_str(text: &str) -> Result<Sabotage, UnknownSabotage> {
        let behind =
            [&Sabotage::BEHIND[..], &Sabotage::DIGESTS, &Sabotage::ALONG, &Sabotage::LOCKS, &Sabotage::LOCAL];
        let behind = [&behind.concat()[..], &Sabotage::ROOM].concat();
        let mut all = [Sabotage::None].into_iter().chain(Sabotage::ALL).chain(behind).chain(Sabotage::DEEP);
        all.find(|one| one.to_string() == text).ok_or_else(|| UnknownSabotage(text.to_owned()))
    }
}
