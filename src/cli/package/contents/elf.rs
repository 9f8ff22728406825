//! Requirements of a program file, read from its ELF headers.
//!
//! # Design
//!
//! The platform's image cannot be chosen, and its C library is not documented. A program that needs a newer
//! one crashes at its start with a message that is easily missed, so it is rejected here, before the deployment.
//! Few fields matter. Each is read through a checked slice, and inconsistent files are rejected as damaged.
//! <https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html>
//! <https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html>

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeSet;

/// The newest C library that a program may need: that of Debian 11, the oldest image that the Functions
/// host was seen on. <https://github.com/Azure/azure-functions-docker>
const GLIBC_MAX: (u32, u32) = (2, 31);

/// Libraries of the C library or the compiler, which are on every image with a C library.
const LIBRARIES: &[&str] = &[
    "ld-linux-x86-64.so.2",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
];

/// Most entries that are read of any table; a program has a few dozen.
const ENTRIES_MAX: usize = 4_096;

const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const EXECUTABLE: u16 = 2;
const POSITION_INDEPENDENT: u16 = 3;
const X86_64: u16 = 62;
const SEGMENT_LOAD: u32 = 1;
const SEGMENT_DYNAMIC: u32 = 2;
const SEGMENT_INTERPRETER: u32 = 3;
const TAG_NEEDED: u64 = 1;
const TAG_STRINGS: u64 = 5;
const TAG_VERSIONS: u64 = 0x6fff_fffe;

/// What a program needs besides the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing: it is linked statically.
    Nothing,
    /// A C library of at least this version.
    Glibc(u32, u32),
}

/// Reads `bytes` as a program, and checks whether Azure Functions can run it.
///
/// # Errors
///
/// The defect, as a phrase that follows the program's name.
pub(super) fn judge(bytes: &[u8]) -> Result<Needs, String> {
    if !bytes.starts_with(b"\x7fELF") {
        return Err("is not a Linux program".to_owned());
    }
    let elf = Elf { bytes };
    elf.judge()
        .unwrap_or_else(|| Err("is damaged: its ELF headers point outside the file".to_owned()))
}

struct Elf<'a> {
    bytes: &'a [u8],
}

/// A segment of the file, and its address in memory.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    length: u64,
}

impl<'a> Elf<'a> {
    /// Returns `None` if a header points outside the file.
    fn judge(&self) -> Option<Result<Needs, String>> {
        let (class, order) = (*self.bytes.get(4)?, *self.bytes.get(5)?);
        let machine = self.u16(18)?;
        if class != CLASS_64 || order != LITTLE_ENDIAN || machine != X86_64 {
            let name = machine_name(machine);
            return Some(Err(format!("is built for {name}, Azure Functions runs x86_64")));
        }
        if ![EXECUTABLE, POSITION_INDEPENDENT].contains(&self.u16(16)?) || self.u64(24)? == 0 {
            return Some(Err("is not a program: it has no entry point".to_owned()));
        }
        let segments = self.segments()?;
        let dynamic = segments.iter().find(|segment| segment.kind == SEGMENT_DYNAMIC);
        let (libraries, versions) = match dynamic {
            None => Default::default(),
            Some(dynamic) => self.dynamic(dynamic, &segments)?,
        };
        let interpreter = segments.iter().find(|segment| segment.kind == SEGMENT_INTERPRETER);
        let interpreter = match interpreter {
            None => None,
            Some(segment) => Some(self.text(usize::try_from(segment.offset).ok()?)?),
        };
        Some(of_what(interpreter, &libraries, &versions))
    }

    fn segments(&self) -> Option<Vec<Segment>> {
        let start = usize::try_from(self.u64(32)?).ok()?;
        let (size, count) = (usize::from(self.u16(54)?), usize::from(self.u16(56)?));
        let mut segments = Vec::new();
        for index in 0..count {
            let at = start.checked_add(index.checked_mul(size)?)?;
            segments.push(Segment {
                kind: self.u32(at)?,
                offset: self.u64(at.checked_add(8)?)?,
                address: self.u64(at.checked_add(16)?)?,
                length: self.u64(at.checked_add(32)?)?,
            });
        }
        Some(segments)
    }

    /// Returns the needed libraries and their versions.
    fn dynamic(
        &self,
        dynamic: &Segment,
        segments: &[Segment],
    ) -> Option<(BTreeSet<&'a str>, BTreeSet<&'a str>)> {
        let start = usize::try_from(dynamic.offset).ok()?;
        let (mut needed, mut strings, mut versions) = (Vec::new(), None, None);
        for index in 0..usize::try_from(dynamic.length / 16).ok()?.min(ENTRIES_MAX) {
            let at = start.checked_add(index.checked_mul(16)?)?;
            let (tag, value) = (self.u64(at)?, self.u64(at.checked_add(8)?)?);
            match tag {
                0 => break,
                TAG_NEEDED => needed.push(value),
                TAG_STRINGS => strings = Some(offset(segments, value)?),
                TAG_VERSIONS => versions = Some(offset(segments, value)?),
                _ => {}
            }
        }
        if needed.is_empty() {
            return Some(Default::default());
        }
        let strings = strings?;
        let text = |at: u64| self.text(strings.checked_add(usize::try_from(at).ok()?)?);
        let libraries = needed.into_iter().map(text).collect::<Option<_>>()?;
        let versions = match versions {
            None => BTreeSet::new(),
            Some(at) => self.versions(at, strings)?,
        };
        Some((libraries, versions))
    }

    /// Returns the names of versions in the table that begins at `at`.
    fn versions(&self, mut at: usize, strings: usize) -> Option<BTreeSet<&'a str>> {
        let mut names = BTreeSet::new();
        for _ in 0..ENTRIES_MAX {
            let count = usize::from(self.u16(at.checked_add(2)?)?);
            let mut entry = at.checked_add(self.index(at.checked_add(8)?)?)?;
            for _ in 0..count {
                let name = self.index(entry.checked_add(8)?)?;
                names.insert(self.text(strings.checked_add(name)?)?);
                entry = entry.checked_add(self.index(entry.checked_add(12)?)?)?;
            }
            match self.index(at.checked_add(12)?)? {
                0 => return Some(names),
                next => at = at.checked_add(next)?,
            }
        }
        None
    }

    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_le_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    fn index(&self, at: usize) -> Option<usize> {
        usize::try_from(self.u32(at)?).ok()
    }

    /// Returns the text that a zero ends.
    fn text(&self, at: usize) -> Option<&'a str> {
        let rest = self.bytes.get(at..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(rest.get(..end)?).ok()
    }
}

/// Returns where in the file an address in memory comes from.
fn offset(segments: &[Segment], address: u64) -> Option<usize> {
    let holds = |segment: &&Segment| {
        let within = address.checked_sub(segment.address);
        segment.kind == SEGMENT_LOAD && within.is_some_and(|within| within < segment.length)
    };
    let segment = segments.iter().find(holds)?;
    let within = address.checked_sub(segment.address)?;
    usize::try_from(segment.offset.checked_add(within)?).ok()
}

fn of_what(
    interpreter: Option<&str>,
    libraries: &BTreeSet<&str>,
    versions: &BTreeSet<&str>,
) -> Result<Needs, String> {
    let Some(interpreter) = interpreter else {
        return match libraries.first() {
            None => Ok(Needs::Nothing),
            Some(_) => Err("is a library, no program".to_owned()),
        };
    };
    if !interpreter.ends_with("/ld-linux-x86-64.so.2") {
        return Err(format!("is started by `{interpreter}`, which Azure Functions does not have"));
    }
    if let Some(foreign) = libraries.iter().find(|library| !LIBRARIES.contains(library)) {
        return Err(format!("needs the library `{foreign}`, which may be missing there"));
    }
    let glibc = versions.iter().filter_map(|name| Some((name.strip_prefix("GLIBC_")?, name)));
    let mut newest = (0, 0);
    for (version, name) in glibc {
        match numbers(version) {
            Some(numbers) if numbers <= GLIBC_MAX => newest = newest.max(numbers),
            _ => {
                let (major, minor) = GLIBC_MAX;
                return Err(format!("needs `{name}`, {major}.{minor} is the newest that is safe"));
            }
        }
    }
    Ok(Needs::Glibc(newest.0, newest.1))
}

/// Reads the first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// <https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html>
fn machine_name(machine: u16) -> String {
    match machine {
        3 => "x86 of 32 bits".to_owned(),
        40 => "arm of 32 bits".to_owned(),
        X86_64 => "x86_64, but not of 64 bits".to_owned(),
        183 => "aarch64".to_owned(),
        243 => "riscv".to_owned(),
        other => format!("machine {other}"),
    }
}
