//! What `bench/door` measures with: calls of a mount that have to ask the daemon, timed, and a file system that does nothing
//! itself. Any file system can be measured so.

#![allow(clippy::unwrap_used, reason = "as in tests")]

#[path = "../tests/null/mod.rs"]
mod null;

use null::{KEPT, NullMount, Setting};
use rustix::fs::{AtFlags, StatxFlags, statx};
use soda_fuse::wire::Readers;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

const USAGE: &str = "usage: door WHAT, each prints lines of a name and a figure

serve DIR TRANSPORT CORES THREADS
                           mounts the null file system until the end of its input, with so many threads that read /dev/fuse;
                           of a line `store` it says what giving the kernel 4 KiB of a file takes (FUSE_NOTIFY_STORE): p50 and
                           p99, us
stat FILE                  what one statx that asks takes: p50 and p99, us
stat4 FILE                 such calls by four threads, a second
create DIR                 files of 4 KiB created, written and closed, a second
open FILE                  open+read+close of 4 KiB: p50 and p99, us
write FILE                 32 MiB in order, 4 KiB, 64 KiB and 1 MiB at a time: p50 and p99 of each, us
read FILE                  from end to end, 1 MiB at a time: MB/s of the first 256 MiB, and of all";

const WARM_UP: Duration = Duration::from_millis(200);
const TIME: Duration = Duration::from_millis(1000);
const MIB: usize = 1 << 20;
const SMALL: usize = 4096;
const STORED: u64 = 2000;
/// Of a file that is read, what is judged by itself: a daemon's first memory.
const BEGINNING: usize = 256 * MIB;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", dir, transport, cores, threads] => {
            let readers = Readers { threads: threads.parse().unwrap(), cores: cores.parse().unwrap() };
            serve(dir.as_ref(), transport, readers)
        }
        ["stat", file] => percentiles(&mut times(stat_of(&File::open(file).unwrap()))),
        ["stat4", file] => stat_by_four(file.as_ref()),
        ["create", dir] => create(dir.as_ref()),
        ["open", file] => percentiles(&mut times(|| open(file.as_ref()))),
        ["write", file] => write(file.as_ref()),
        ["read", file] => read(file.as_ref()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn serve(dir: &Path, transport: &str, readers: Readers) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let transport = transport.parse().unwrap();
    let setting = Setting { transport, readers, dir: Some(dir), ..Setting::default() };
    let mount = NullMount::try_start(setting, runtime.handle()).unwrap();
    mount.fs.keeps_root.store(true, Ordering::Relaxed);
    mount.fs.sums_nothing.store(true, Ordering::Relaxed);
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "store");
        store(&mount);
    }
    mount.end();
}

/// Pages that the kernel has not had yet.
fn store(mount: &NullMount) {
    let mut times = Vec::new();
    for number in KEPT..KEPT + STORED {
        // What the kernel does not know it does not take.
        mount.file(number).metadata().unwrap();
        mount.invalidate(number).unwrap();
        let start = Instant::now();
        mount.store(number, SMALL).unwrap();
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    percentiles(&mut times);
}

/// Asks whatever the kernel believes.
fn stat_of(file: &File) -> impl FnMut() {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    move || assert!(statx(file, "", flags, StatxFlags::BASIC_STATS).unwrap().stx_nlink > 0)
}

fn stat_by_four(file: &Path) {
    let count: usize = thread::scope(|scope| {
        let all = [(); 4].map(|()| scope.spawn(|| times(stat_of(&File::open(file).unwrap())).len()));
        all.map(|one| one.join().unwrap()).iter().sum()
    });
    println!("rate {}", count as f64 / TIME.as_secs_f64());
}

/// Opened by path each time.
fn open(file: &Path) {
    let mut data = [0; SMALL];
    File::open(file).unwrap().read_exact(&mut data).unwrap();
}

fn create(dir: &Path) {
    let (data, mut number) = ([7; SMALL], 0);
    let made = times(|| {
        number += 1;
        File::create_new(dir.join(format!("new{number}"))).unwrap().write_all(&data).unwrap();
    });
    println!("rate {}", made.len() as f64 / TIME.as_secs_f64());
}

/// So little that a file system which delays writes need not wait for anybody.
fn write(file: &Path) {
    const LEN: usize = 32 * MIB;
    for size in [SMALL, 64 << 10, MIB] {
        let file = File::options().write(true).create(true).truncate(false).open(file).unwrap();
        let data = vec![7; size];
        let write = |at: usize| {
            let start = Instant::now();
            file.write_all_at(&data, at as u64).unwrap();
            start.elapsed().as_secs_f64() * 1e6
        };
        percentiles(&mut (0..LEN).step_by(size).map(write).collect::<Vec<_>>());
    }
}

/// The memory that is read to has been touched before.
fn read(file: &Path) {
    let (mut file, mut buffer) = (File::open(file).unwrap(), vec![1; MIB]);
    let (begin, mut len, mut beginning) = (Instant::now(), 0, 0.0);
    let rate = |len| len as f64 / 1e6 / begin.elapsed().as_secs_f64();
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => break,
            count => len += count,
        }
        if len <= BEGINNING {
            beginning = rate(len);
        }
    }
    println!("beginning {beginning}\nall {}", rate(len));
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

fn percentiles(times: &mut [f64]) {
    times.sort_unstable_by(f64::total_cmp);
    let of = |part: f64| times[(times.len() as f64 * part) as usize];
    println!("p50 {}\np99 {}", of(0.5), of(0.99));
}
