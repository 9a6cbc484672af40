//! One copy: random operations on several mounts, with faults, and a check that the history could have happened on one
//! local file system. Zero stale reads, zero lost acknowledged changes.

use soda_system_tests::story::{Fault, OldKernel, Story};

// SEMANTICS 1-6
#[test]
fn two_mounts_are_one_copy() {
    Story::of(2).with_seed(11).undisturbed(2500);
}

// SEMANTICS 1-6, 13
#[test]
fn four_mounts_are_one_copy() {
    Story::of(4).with_seed(12).undisturbed(1500);
}

// SEMANTICS 46
#[test]
fn two_mounts_that_write_behind_are_one_copy() {
    Story::of(2).writing_behind().with_seed(51).undisturbed(2500);
}

// SEMANTICS 46
#[test]
fn four_mounts_that_write_behind_are_one_copy() {
    Story::of(4).writing_behind().with_seed(52).undisturbed(1500);
}

/// The log is sent again: nothing that was acknowledged is lost, whether the server had heard of it or not.
// SEMANTICS 47
#[test]
fn server_crashes_take_nothing_from_mounts_that_write_behind() {
    Story::of(2).writing_behind().with_seed(53).disturbed(|stage| {
        for _ in 0..3 {
            stage.suffer(&[Fault::ServerCrash]);
        }
        stage.suffer(&[Fault::ServerFrozen]);
    });
}

/// What a mount had not told when it was killed, the next one tells: nothing that was acknowledged is lost.
// SEMANTICS 50
#[test]
fn crashes_of_a_mount_that_logs_take_nothing() {
    let logs = tempfile::tempdir().unwrap();
    Story::of(1).writing_behind_with_logs_in(logs.path()).with_seed(54).disturbed(|stage| {
        for _ in 0..4 {
            stage.suffer(&[Fault::ClientCrash(0)]);
        }
        stage.suffer(&[Fault::ServerCrash]);
        stage.suffer(&[Fault::ClientCrash(0), Fault::ServerCrash]);
    });
}

// SEMANTICS 46, 49
/// What they had not told is lost as a whole, said to be, and seen by nobody else.
#[test]
fn frozen_clients_that_write_behind_lose_only_what_they_say() {
    Story::of(2).writing_behind().with_seed(71).disturbed(|stage| {
        stage.suffer(&[Fault::ClientFrozen(0)]);
        stage.suffer(&[Fault::ClientFrozen(1)]);
    });
}

// SEMANTICS 46, 47, 49
#[test]
fn crashes_of_clients_that_write_behind_take_only_what_they_had_not_told() {
    Story::of(2).writing_behind().with_seed(72).disturbed(|stage| {
        stage.suffer(&[Fault::ClientCrash(1)]);
        stage.suffer(&[Fault::ClientCrash(0), Fault::ServerCrash]);
        stage.suffer(&[Fault::ClientCrash(1)]);
    });
}

// SEMANTICS 46, 50, 51
#[test]
fn crashes_beside_another_mount_take_nothing_from_mounts_that_log() {
    let logs = tempfile::tempdir().unwrap();
    Story::of(2).writing_behind_with_logs_in(logs.path()).with_seed(73).disturbed(|stage| {
        stage.suffer(&[Fault::ClientCrash(1)]);
        stage.suffer(&[Fault::ClientCrash(0), Fault::ServerCrash]);
        stage.suffer(&[Fault::ClientFrozen(1)]);
        stage.suffer(&[Fault::ClientCrash(0)]);
    });
}

// SEMANTICS 36, 46, 49
#[test]
fn readers_and_writers_behind_that_are_cut_off_lose_only_what_they_say() {
    let (readers, writers) = ([0, 1], [2, 3]);
    Story::of(4).writing_behind().with_readers(readers.len()).with_cables().with_seed(74).disturbed(
        |stage| {
            stage.suffer(&[Fault::CutOff(writers[0])]);
            stage.suffer(&[Fault::CutOff(readers[0]), Fault::CutOff(writers[1])]);
        },
    );
}

// SEMANTICS 46, 49-51
#[test]
fn four_mounts_that_write_behind_through_several_faults_at_once() {
    let logs = tempfile::tempdir().unwrap();
    Story::of(4).writing_behind_with_logs_in(logs.path()).with_cables().with_seed(75).disturbed(|stage| {
        for _ in 0..3 {
            stage.suffer_something();
        }
    });
}

// SEMANTICS 1-6
#[test]
fn two_mounts_with_node_leases_only_are_one_copy() {
    Story::of(2).with_node_leases_only().with_seed(61).undisturbed(2500);
}

// SEMANTICS 1-6, 46
#[test]
fn four_mounts_with_node_leases_only_that_write_behind_are_one_copy() {
    Story::of(4).with_node_leases_only().writing_behind().with_seed(62).undisturbed(1500);
}

// SEMANTICS 17, 20, 39
#[test]
fn with_node_leases_only_faults_lose_nothing_and_show_nothing_stale() {
    Story::of(2).with_node_leases_only().with_seed(63).disturbed(|stage| {
        stage.suffer(&[Fault::ServerCrash]);
        stage.suffer(&[Fault::ClientFrozen(0)]);
        stage.suffer(&[Fault::ServerCrash]);
        stage.suffer(&[Fault::ClientCrash(1)]);
    });
}

// SEMANTICS 47
#[test]
fn with_node_leases_only_server_crashes_take_nothing_from_mounts_that_write_behind() {
    Story::of(2).with_node_leases_only().writing_behind().with_seed(64).disturbed(|stage| {
        for _ in 0..3 {
            stage.suffer(&[Fault::ServerCrash]);
        }
        stage.suffer(&[Fault::ServerFrozen]);
    });
}

// SEMANTICS 1-6
#[test]
fn before_linux_6_16_two_mounts_are_one_copy() {
    Story::of(2).on_kernel(OldKernel::Linux6_15).with_seed(41).undisturbed(800);
}

// SEMANTICS 1-5
#[test]
fn before_linux_6_6_two_mounts_are_one_copy_but_for_descriptors_for_both_ways() {
    Story::of(2).on_kernel(OldKernel::Linux6_5).with_seed(42).undisturbed(800);
}

// SEMANTICS 1-5
#[test]
fn before_linux_6_2_two_mounts_are_one_copy_but_for_descriptors_for_both_ways() {
    Story::of(2).on_kernel(OldKernel::Linux6_1).with_seed(43).undisturbed(800);
}

#[test]
fn on_debian_12s_kernel_faults_show_nothing_stale() {
    Story::of(2).on_kernel(OldKernel::Linux6_1).with_seed(44).disturbed(|stage| {
        stage.suffer(&[Fault::ServerCrash]);
        stage.suffer(&[Fault::ClientFrozen(0)]);
    });
}

// SEMANTICS 1-5, 46
#[test]
fn on_older_kernels_mounts_that_write_behind_are_one_copy() {
    for (kernel, seed) in [(OldKernel::Linux6_15, 76), (OldKernel::Linux6_5, 77), (OldKernel::Linux6_1, 78)] {
        Story::of(2).on_kernel(kernel).writing_behind().with_seed(seed).undisturbed(500);
    }
}

// SEMANTICS 17, 20, 39
/// What was acknowledged is there after kill -9 of the server; clients go on by themselves, without an error, with the files
/// and locks they had.
#[test]
fn server_crashes_lose_nothing_and_show_nothing_stale() {
    Story::of(2).with_seed(13).disturbed(|stage| {
        for _ in 0..3 {
            stage.suffer(&[Fault::ServerCrash]);
        }
    });
}

#[test]
fn client_crashes_lose_nothing_and_show_nothing_stale() {
    Story::of(2).with_seed(14).disturbed(|stage| {
        for _ in 0..3 {
            stage.suffer(&[Fault::ClientCrash(1)]);
        }
    });
}

// SEMANTICS 2, 37
/// The others go on after at most a term; when the client wakes up it must not use what it cached.
#[test]
fn a_frozen_client_shows_nothing_stale() {
    Story::of(2).with_seed(15).disturbed(|stage| {
        stage.suffer(&[Fault::ClientFrozen(0)]);
        stage.suffer(&[Fault::ClientFrozen(1)]);
    });
}

/// Nobody may believe in a lease that the server gives away when it wakes up, and it takes nobody for dead who was only
/// kept waiting: not one error.
#[test]
fn a_frozen_server_shows_nothing_stale() {
    Story::of(2).with_seed(17).disturbed(|stage| {
        stage.suffer(&[Fault::ServerFrozen]);
        stage.suffer(&[Fault::ServerFrozen]);
    });
}

// SEMANTICS 36, 38
#[test]
fn readers_and_writers_that_are_cut_off_show_nothing_stale() {
    let (readers, writers) = ([0, 1], [2, 3]);
    Story::of(4).with_readers(readers.len()).with_cables().with_seed(16).disturbed(|stage| {
        stage.suffer(&[Fault::CutOff(readers[0])]);
        stage.suffer(&[Fault::CutOff(writers[0])]);
        stage.suffer(&[Fault::CutOff(readers[1]), Fault::CutOff(writers[1])]);
    });
}

#[test]
fn four_mounts_through_several_faults_at_once() {
    Story::of(4).with_cables().with_seed(18).disturbed(|stage| {
        for _ in 0..4 {
            stage.suffer_something();
        }
    });
}
