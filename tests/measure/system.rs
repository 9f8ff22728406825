//! Linux statistics of processes and of the machine.

use std::fs;

/// Units of the times in `/proc/<pid>/stat`; the kernel's ABI has fixed them at 100.
const TICKS_PER_SECOND: f64 = 100.0;

fn path(pid: Option<u32>, file: &str) -> String {
    pid.map_or_else(|| format!("/proc/self/{file}"), |pid| format!("/proc/{pid}/{file}"))
}

/// Returns the CPU time that a process, or this one, has used, in user and kernel mode.
pub(crate) fn cpu_seconds(pid: Option<u32>) -> f64 {
    let stat = fs::read_to_string(path(pid, "stat")).unwrap();
    // The name, in parentheses, may contain spaces.
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u32 = fields[11..13].iter().map(|ticks| ticks.parse::<u32>().unwrap()).sum();
    f64::from(ticks) / TICKS_PER_SECOND
}

/// Returns a line of `/proc/<pid>/status` in KiB.
fn kib(pid: Option<u32>, name: &str) -> u64 {
    let status = fs::read_to_string(path(pid, "status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the resident memory of a process, or of this one, in KiB.
pub(crate) fn resident_kib(pid: Option<u32>) -> u64 {
    kib(pid, "VmRSS")
}

/// Returns the peak resident memory of this process, in KiB.
pub(crate) fn peak_kib() -> u64 {
    kib(None, "VmHWM")
}

/// Returns a description of the machine, without its name.
pub(crate) fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let of = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let cpu = of(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "CPU".to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory: u64 = of(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    format!(
        "{cores} cores of {cpu}, {} GB, Linux {}, load {} before",
        memory / (1 << 20),
        kernel.trim().split('-').next().unwrap_or_default(),
        load.split(' ').next().unwrap_or_default(),
    )
}
