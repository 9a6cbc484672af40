//! What a request costs over each transport, with a file system that does nothing itself: `cargo bench -p soda-fuse` as root, on
//! a machine that does nothing else. io_uring is left out where the kernel has none.

#![allow(clippy::unwrap_used, reason = "as in tests")]

#[path = "../tests/null/mod.rs"]
mod null;

use null::{NullMount, UringOn, can_mount};
use soda_fuse::wire::Cores;
use soda_fuse::wire::connection::{Transport, TransportChoice};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_millis(200);
const TIME: Duration = Duration::from_secs(1);
const MIB: usize = 1 << 20;

/// Of the null file system's, one that is opened past the page cache, so that each read is a request.
const DIRECT: u64 = 0;

fn main() {
    if !can_mount() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    println!(
        "{:>12} {:>28} {:>14} {:>28} {:>12}",
        "", "fstat, us: p50, p99", "by 4, /s", "open+read+close", "read, GB/s"
    );
    for _ in 0..ROUNDS {
        for (name, transport, cores) in [
            ("dev", Transport::Dev, Cores::Free),
            ("dev, follow", Transport::Dev, Cores::Follow),
            ("uring", Transport::Uring, Cores::Free),
        ] {
            let on = (transport == Transport::Uring).then(UringOn::turn);
            if matches!(on, Some(None)) {
                continue;
            }
            let choice = TransportChoice::Only(transport);
            let mount = NullMount::try_start_with(choice, cores, runtime.handle()).unwrap();
            drop(on);
            println!("{name:>12} {}", figures(&mount));
            mount.end();
        }
    }
}

fn figures(mount: &NullMount) -> String {
    let file = File::open(mount.file(DIRECT)).unwrap();
    // Attributes are not believed: each is a request.
    let stat = || assert!(file.metadata().unwrap().is_file());
    let path = mount.file(DIRECT);
    let open = || assert_eq!(File::open(&path).unwrap().read_at(&mut [0; 4096], 0).unwrap(), 4096);
    let mut megabyte = vec![0; MIB];
    let read = times(|| assert_eq!(file.read_at(&mut megabyte, 0).unwrap(), MIB));
    let by_four = thread::scope(|scope| {
        let all = [(); 4].map(|()| scope.spawn(|| times(stat)));
        all.map(|one| one.join().unwrap().len() as f64 / TIME.as_secs_f64()).iter().sum::<f64>()
    });
    let rate = read.len() as f64 * MIB as f64 / TIME.as_secs_f64() / 1e9;
    format!("{:>28} {by_four:>14.0} {:>28} {rate:>12.2}", middle(times(stat)), middle(times(open)))
}

/// How long each call took, in microseconds, for [`TIME`].
fn times(mut call: impl FnMut()) -> Vec<f64> {
    let begin = Instant::now();
    while begin.elapsed() < WARM_UP {
        call();
    }
    let (mut times, begin) = (Vec::new(), Instant::now());
    while begin.elapsed() < TIME {
        let start = Instant::now();
        call();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times
}

fn middle(mut times: Vec<f64>) -> String {
    times.sort_unstable_by(f64::total_cmp);
    let of = |part: f64| times[(times.len() as f64 * part) as usize];
    format!("{:.1}, {:.1}", of(0.5), of(0.99))
}
