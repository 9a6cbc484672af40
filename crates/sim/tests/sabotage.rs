//! The harness finds mistakes: each one that is put in on purpose breaks the property it should, within a few seeds.

use soda_sim::{Property, Sabotage, Show, SimConfig, run};

/// The first violation in the first seeds.
fn found(change: impl Fn(SimConfig) -> SimConfig) -> Option<(u64, Property)> {
    found_in(SimConfig::from_seed, change)
}

fn found_in(
    shape: impl Fn(u64) -> SimConfig,
    change: impl Fn(SimConfig) -> SimConfig,
) -> Option<(u64, Property)> {
    (1..500).find_map(|seed| {
        let report = run(change(shape(seed)), Show::No);
        report.violations.first().map(|violation| (seed, violation.property))
    })
}

fn expected(sabotage: Sabotage) -> &'static [Property] {
    // A lease that is used for too long shows as one of these two, whichever comes first.
    const USED_TOO_LONG: &[Property] = &[Property::Exclusive, Property::Fresh];
    match sabotage {
        Sabotage::None => &[],
        Sabotage::SkipAckWait
        | Sabotage::IgnoreDriftMargin
        | Sabotage::NoBarForLateGrants
        | Sabotage::NoGrace
        | Sabotage::CountFromReply
        | Sabotage::FenceAtOnce => USED_TOO_LONG,
        Sabotage::KernelKeeps | Sabotage::KernelToldTooLong | Sabotage::CacheEverything => &[Property::Fresh],
        Sabotage::ForgetReplies => &[Property::Once],
        Sabotage::EpochsStartAnew => &[Property::Epochs],
        Sabotage::NoResend => &[Property::Patience],
        Sabotage::CarryOutRefused => &[Property::Fenced],
        Sabotage::ChangeAfterTerm => USED_TOO_LONG,
        Sabotage::ThroughBeforeFlush | Sabotage::DescribeWhatIsTold | Sabotage::KeepDescriptions => {
            &[Property::Fresh]
        }
        Sabotage::SyncBeforeFlush | Sabotage::SyncNothing => &[Property::Synced],
        Sabotage::ApplyWithoutLeases => &[Property::Prefix],
        // The server refuses what it should not get, and so acknowledged changes are lost; or something is seen before.
        Sabotage::AnswerBeforeFlush
        | Sabotage::ChangeWhileRecalled
        | Sabotage::SendPart
        | Sabotage::ForgetLost
        | Sabotage::ReclaimNothing
        | Sabotage::NoLeasesOnMade
        | Sabotage::ForgetThrough
        | Sabotage::ReclaimAnyState => {
            &[Property::Durable, Property::Exclusive, Property::Fresh, Property::Prefix, Property::Synced]
        }
        // Or somebody else has been given the lease meanwhile.
        Sabotage::ReleaseUnsynced => &[Property::Durable, Property::Exclusive, Property::Prefix],
        Sabotage::KeepRemoved => &[Property::Fresh],
        // What comes again takes back what was done since, and somebody has seen that.
        Sabotage::ForgetDigests => &[Property::Synced, Property::Durable, Property::Prefix, Property::Fresh],
        // What is left over of the former life is in the way of what comes in its slot.
        Sabotage::KeepFormerLife => &[Property::Progress, Property::Fresh, Property::Prefix],
        // Somebody reads what is old, or what was acknowledged is refused.
        Sabotage::ForgetHoles
        | Sabotage::MovesUntold
        | Sabotage::LinksUntold
        | Sabotage::KeepBelow
        | Sabotage::AnswerPartBeforeFlush
        | Sabotage::ReclaimWhole => {
            &[Property::Durable, Property::Exclusive, Property::Fresh, Property::Prefix, Property::Synced]
        }
    }
}

#[test]
fn every_mistake_is_found() {
    for sabotage in Sabotage::ALL {
        let found = found(|config| config.with_sabotage(sabotage));
        let Some((seed, property)) = found else { panic!("{sabotage} was not found") };
        assert!(expected(sabotage).contains(&property), "{sabotage} showed as {property:?} with seed {seed}");
    }
}

#[test]
fn every_mistake_with_delayed_writes_is_found() {
    for sabotage in Sabotage::BEHIND {
        let shape = |seed: u64| match seed % 3 {
            0 => SimConfig::behind(seed / 3),
            1 => SimConfig::harsh(seed / 3 + 1),
            _ => SimConfig::cuts(seed / 3 + 1),
        };
        let found = found_in(shape, |config| config.with_sabotage(sabotage));
        let Some((seed, property)) = found else { panic!("{sabotage} was not found") };
        assert!(expected(sabotage).contains(&property), "{sabotage} showed as {property:?} with seed {seed}");
    }
}

#[test]
fn every_mistake_with_deep_leases_is_found() {
    for sabotage in Sabotage::DEEP {
        let found = found_in(SimConfig::deep, |config| config.with_sabotage(sabotage));
        let Some((seed, property)) = found else { panic!("{sabotage} was not found") };
        assert!(expected(sabotage).contains(&property), "{sabotage} showed as {property:?} with seed {seed}");
    }
}

#[test]
fn nothing_goes_wrong_with_a_harsh_server() {
    assert_eq!(found_in(SimConfig::harsh, |config| config), None);
}

#[test]
fn nor_with_one_power_cut_after_the_other() {
    assert_eq!(found_in(SimConfig::cuts, |config| config), None);
}

/// The margin is what keeps drifting clocks safe: beyond it they are not.
#[test]
fn drift_beyond_the_margin_is_found() {
    let found = found(|config| SimConfig { drift_ppm: 50_000, ..config });
    assert!(matches!(found, Some((_, Property::Exclusive | Property::Fresh))), "{found:?}");
}

/// The same drift with a margin for it is safe.
#[test]
fn a_margin_for_the_drift_is_safe() {
    let found = found(|mut config| {
        config.drift_ppm = 50_000;
        // Slowest client against fastest server: 1 - 0.95 / 1.05.
        config.margin.drift_ppm = 96_000;
        // Grace has to cover the slowest clocks too.
        config.table.grace = config.table.session_term * 13 / 10;
        config
    });
    assert_eq!(found, None);
}
